"""What a recording knows of one strip of one device, in base units and in columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..coverage import length, merge
from ..metrics import METRICS
from ..sample import Device
from ..throttling import held_back
from .bins import Hole
from .layers import LayerReading, View, read_layer, source_of
from .strips import Layer, Strip

__all__ = ["Reading", "elapsed", "read"]

_NEAR_S = 30.0


class Reading(NamedTuple):
    """A strip's layers, what is missing, and where a limit held work back (in epoch seconds).

    ``top`` is the ceiling that the device gives, or ``None``. ``counted`` is the word for the
    inner part where it depends on how many there are ("4 workers"), empty for none of them.
    """

    strip: Strip
    device: Device
    layers: tuple[LayerReading, ...]
    missing: str | None
    top: float | None
    limited: tuple[Hole, ...]
    limit_words: tuple[str, str] | None
    counted: str | None

    @property
    def peak(self) -> float:
        """The highest value in any column, 0 if there is none."""
        parts = [x.columns for x in self.layers if x.layer.style != "other"]
        # Neither a zero nor what is not known can be higher than the rest.
        return max((max(filter(None, columns), default=0.0) for columns in parts), default=0.0)


def elapsed(seconds: float) -> str:
    """Write a length of time as briefly as a label needs: ``0.4 s``, ``22 s``, ``3 min 05 s``."""
    if seconds < 0.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _missing(view: View, device: Device, reading: LayerReading, newest: float | None) -> str:
    """Say why a layer has no present value."""
    for metric in reversed(reading.layer.metrics):
        if metric in device.absent:
            return device.absent[metric]
    source = source_of(reading.metric)
    for gap in view.recording.gaps(view.until, math.inf):
        if gap.end is None and gap.source == source and gap.device in (None, device.id):
            return gap.reason
    told = view.reasons.get(reading.metric) or view.reasons.get(source)
    if told:
        return told
    if newest is None and view.live:
        # The last reading can have left the window.
        last = view.recording.latest(reading.metric, device.id)
        newest = last[0] if last is not None else None
    if newest is not None:
        return f"no reading for {elapsed(view.until - newest)}"
    return "no reading yet" if view.live else "not recorded"


def _limits(
    view: View, device: str, kind: str
) -> tuple[tuple[Hole, ...], tuple[str, str] | None]:
    """Find where limits of a kind held work back; return that and the words for it."""
    if device not in view.held:
        view.held[device] = held_back(
            view.recording, device, view.grid.start, view.until, view.cache.runs[device]
        )
    held = {
        name: stretches
        for name, stretches in view.held[device].items()
        if name.startswith("thermal") == (kind == "thermal")
    }
    if not held:
        return (), None
    stretches = merge([stretch for found in held.values() for stretch in found])
    total = length(stretches)
    word = "at the cap" if "power cap" in held else next(iter(held))
    if kind == "thermal":
        word = "throttled"
    return stretches, (word, elapsed(total))


def _newest(view: View, metric: str, device: str) -> float | None:
    """Return the newest value of a metric in the view, or ``None``."""
    # Most often the newest one is near; a frozen view can end long after its last reading.
    for start in (max(view.grid.start, view.until - _NEAR_S), view.grid.start):
        values: Sequence[float] = view.recording.series(metric, device, start, view.until).values
        if values:
            return values[-1]
    return None


def _processes(view: View, device: str, inner: Layer) -> tuple[Layer, str | None]:
    """Return the inner layer of processor time and the word for it: workers, else children."""
    workers = _newest(view, "workers_count", device) if view.shares else None
    if workers and _newest(view, "workers_cpu_ratio", device) is not None:
        word = "1 worker" if workers == 1 else f"{workers:.0f} workers"
        return Layer(inner.style, ("workers_cpu_ratio",)), word
    children = _newest(view, "children_count", device)
    if children is None:
        return inner, None
    if children == 0:
        return inner, ""
    return inner, "1 child" if children == 1 else f"{children:.0f} children"


def _top(device: Device, metric: str) -> float | None:
    row = METRICS.get(metric)
    top = row.ceiling if row is not None else None
    if isinstance(top, str):
        top = device.constants.get(top)
    return top if top is not None and math.isfinite(top) and top > 0 else None


def read(view: View, device: Device, strip: Strip) -> Reading:
    """Read what the recording knows of one strip of one device in a view."""
    layers: list[LayerReading] = []
    missing: str | None = None
    parts = [layer for layer in strip.layers if view.shares or layer.style != "other"]
    counted = None
    if strip.name == "cpu":
        parts[-1], counted = _processes(view, device.id, parts[-1])
    for index, layer in enumerate(parts):
        reading, newest = read_layer(view, layer, device.id)
        if index == 0:
            if reading.present is None:
                missing = _missing(view, device, reading, newest)
            layers.append(reading)
        elif newest is not None:
            layers.append(reading)
    limited: tuple[Hole, ...] = ()
    words = None
    if strip.held_by is not None:
        limited, words = _limits(view, device.id, strip.held_by)
    return Reading(
        strip, device, tuple(layers), missing, _top(device, layers[0].metric), limited, words,
        counted,
    )
