"""From which figures on an alert speaks; each can be set through ``GpuMagic.alerts``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..options import replace_thresholds

__all__ = ["AlertThresholds", "parse_alerts"]

_MOST_S = {"growth_s": 60.0, "straggler_s": 60.0}
"""What is read at each look is bounded."""


@dataclass(frozen=True, slots=True)
class AlertThresholds:
    """The figures at which alerts begin; what has begun ends a little below them.

    ``*_ratio`` are shares in [0, 1], ``*_s`` seconds, ``*_minutes`` minutes, ``*_bytes`` bytes,
    ``*_celsius`` degrees.
    """

    near_full_ratio: float = 0.95
    """Memory is nearly full where this part of the device is needed, torch's cache not counted."""
    full_within_s: float = 180.0
    """Growth is told if the memory is full within this time."""
    growth_s: float = 10.0
    """Growth is told once it has gone on for this time (up to four times as long, in steps
    that are up to 7 s apart)."""
    growth_ratio: float = 0.02
    """Growth is told if it took at least this part of the device in that time."""
    hot_margin_celsius: float = 2.0
    """A GPU is hot this near to its slowdown temperature."""
    hot_s: float = 5.0
    """Heat is told once it has lasted this long."""
    throttled_ratio: float = 0.2
    """Clocks held back by heat, brake or sync boost are told from this share of 30 s on."""
    capped_clock_ratio: float = 0.5
    """The power cap is told only where it holds the clock below this part of its highest."""
    straggler_s: float = 15.0
    """A GPU that differs from the others is told once it has done so for this time."""
    straggler_clock_ratio: float = 0.08
    """A hot GPU differs from this loss of clock on, against the others; one that is not hot from
    twice of it."""
    straggler_util_ratio: float = 0.4
    """A GPU differs from this distance in GPU-Util on, or three quarters of it in SM active."""
    idle_minutes: float = 0.0
    """Memory held on a GPU on which nothing runs is told after this time; 0 never tells it."""
    idle_bytes: float = 2.0**30
    """It is told from this much memory of this process on."""
    recent_s: float = 30.0
    """A failed allocation, or an emptied cache, stays told for this time."""


def parse_alerts(given: Mapping[str, object]) -> AlertThresholds:
    """Return the thresholds of alerts with some of them replaced.

    Raises :class:`~gpumagic.errors.SettingError` for a name that is none and for what is no
    number at or above zero.
    """
    return replace_thresholds(
        AlertThresholds(), given,
        called="threshold of alerts", page="docs/alerts.md", most=_MOST_S,
    )
