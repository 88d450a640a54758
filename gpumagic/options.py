"""Options that magics, settings and the command line share, and what they may be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from .errors import SettingError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "check_interval",
    "check_window",
    "parse_gpus",
    "parse_strips",
    "parse_window",
    "replace_thresholds",
]

_Thresholds = TypeVar("_Thresholds", bound="DataclassInstance")
"""A frozen dataclass of numbers, each with its unit at the end of its name."""

_INTERVAL_S = (0.02, 3600.0)
_WINDOW_S = (5.0, 7 * 86400.0)
_UNITS_S = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MOST_DIGITS = 9

_MOST_RATIO = 2.0
"""No share reaches it: what has this threshold is silent."""


def _within(name: str, value: float, bounds: tuple[float, float], remedy: str) -> float:
    low, high = bounds
    if not low <= value <= high:  # also turns NaN away
        raise SettingError(f"{name} is {value:g} s; it goes from {low:g} to {high:g} s. {remedy}")
    return value


def check_interval(value: float) -> float:
    """Return a sampling interval in seconds, or raise :class:`SettingError` out of bounds."""
    remedy = "NVML renews its values every 0.1 to 0.2 s, so 0.1 sees all"
    return _within("the interval", float(value), _INTERVAL_S, remedy)


def check_window(value: float) -> float:
    """Return a window in seconds, or raise :class:`SettingError` out of bounds.

    Infinity stands for all that there is.
    """
    if value == math.inf:
        return value
    return _within("the window", float(value), _WINDOW_S, "60 is the default, and there is all")


def parse_window(text: str) -> float:
    """Read a window: seconds, ``10min``, ``1h``, ``2d``, or ``all``, which is infinite.

    Raises :class:`SettingError` for anything else and out of bounds.
    """
    word = text.strip().lower()
    if word == "all":
        return math.inf
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*(s|sec|min|h|d)?", word)
    try:
        number = float(found[1]) if found else None
    except ValueError:
        number = None
    if found is None or number is None:
        raise SettingError(f"{text!r} is no window: give seconds, or such as 10min, 1h, all")
    return check_window(number * _UNITS_S[found[2] or "s"])


def parse_gpus(text: str) -> tuple[str, ...]:
    """Split a list of GPUs, e.g. ``0,1``, ``GPU-8f3a``, ``cuda:0``, ``all`` or ``usable``."""
    names = tuple(_gpu_name(part) for part in text.replace(",", " ").split())
    if not names:
        raise SettingError("no GPU is named: give indices, UUIDs, cuda:N, all or usable")
    return names


def _gpu_name(name: str) -> str:
    """Write an index as NVML and torch do, because names are also compared as text."""
    prefix = "cuda:" if name.startswith("cuda:") else ""
    digits = name.removeprefix(prefix)
    if not digits.isdecimal():
        return name
    if not digits.isascii() or len(digits) > _MOST_DIGITS:
        raise SettingError(f"{name[:40]!r} is no GPU's index: write it in digits, such as 0")
    return prefix + str(int(digits))


def parse_strips(text: str) -> tuple[str, ...]:
    """Split a list of strips by their short names, e.g. ``util,mem``."""
    from .views.strips import STRIPS

    names = tuple(part.strip().lower() for part in text.replace(",", " ").split())
    wrong = [name for name in names if name not in STRIPS]
    if wrong or not names:
        known = ", ".join(STRIPS)
        raise SettingError(f"no strip {', '.join(wrong) or 'is named'}; there are: {known}")
    return names


def replace_thresholds(
    defaults: _Thresholds,
    given: Mapping[str, object],
    *,
    called: str,
    page: str,
    most: Mapping[str, float] | None = None,
) -> _Thresholds:
    """Return ``defaults`` with some of them replaced.

    ``called`` is what errors call one of them, ``page`` the file that lists them all, and
    ``most`` the greatest value of those that have one, beside the ratios.

    Raises :class:`SettingError` for a name that is none and for what is no number at or above
    zero.
    """
    known = {field.name for field in fields(defaults)}
    changed: dict[str, float] = {}
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(str(name), sorted(known), 3, 0.4)
            names = f"near it: {', '.join(near)}; " if near else ""
            raise SettingError(
                f"no {called} is called {str(name)[:40]!r}; {names}{page} has them all"
            )
        bound = _MOST_RATIO if name.endswith("_ratio") else (most or {}).get(name, math.inf)
        changed[name] = _threshold(name, value, bound)
    return replace(defaults, **changed)


def _threshold(name: str, value: object, most: float) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= most:  # type: ignore[operator]
        bound = f"from 0 to {most:g}" if math.isfinite(most) else "from 0 on"
        raise SettingError(f"the threshold {name} is a number {bound}, not {value!r}")
    return float(value)  # type: ignore[arg-type]
