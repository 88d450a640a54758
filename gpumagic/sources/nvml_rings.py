"""The driver's own rings of power and utilization: what they hold of a stall of the sampler.

A cell that keeps the GIL for seconds stops every thread; the driver goes on and keeps power
every 20 ms for 2.4 s and utilization every 200 ms for 14 s (``nvmlDeviceGetSamples``). Asking
takes 1 to 5 ms, so it is done after a stall only, by a call that releases the GIL.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from ..sample import Sample
from .nvml_library import Nvml, value_of

__all__ = ["BRIDGED", "place", "ring_samples", "thin"]

_RINGS: tuple[tuple[str, int, float, float], ...] = (
    ("gpu_power_watts", 0, 1e-3, 0.1),
    ("gpu_utilization_ratio", 1, 1e-2, 0.0),
)
"""Metric, number of the ring (NVML_TOTAL_POWER_SAMPLES, NVML_GPU_UTILIZATION_SAMPLES), scale to
the base unit, and the seconds that are made into one reading."""

BRIDGED = frozenset(row[0] for row in _RINGS)
"""The metrics that have readings from a stall."""

# A stamp this near to now is of the same clock.
_SAME_CLOCK_S = 2.0

Point = tuple[float, float]


def ring_samples(
    nvml: Nvml, handle: Any, device: str, between: tuple[float, float], wanted: Collection[str]
) -> list[Sample]:
    """Return what a GPU's rings hold between two readings, as samples of the nvml source.

    ``between`` are the epoch seconds of the reading before the stall and of the present one.
    Only metrics that are ``wanted`` are given; a ring that does not answer gives nothing.
    """
    found: dict[float, dict[str, float]] = {}
    for metric, number, scale, step in _RINGS:
        if metric not in wanted:
            continue
        # All of the ring: a stamp to start from would have to be of the driver's clock.
        answer, _ = nvml.ask("nvmlDeviceGetSamples", handle, number, 0)
        if answer is None:
            continue
        kind, entries = answer
        points = (
            (entry.timeStamp * 1e-6, value_of(kind, entry.sampleValue) * scale)
            for entry in entries if entry.timeStamp
        )
        good = [
            (time, value) for time, value in points
            if value >= 0 and not (metric.endswith("_ratio") and value > 1)
        ]
        for time, value in thin(place(good, *between), step):
            found.setdefault(time, {})[metric] = value
    return [Sample(time, device, "nvml", values) for time, values in sorted(found.items())]


def place(points: Iterable[Point], since: float, now: float) -> list[Point]:
    """Put a ring's entries on our clock; return those strictly between two times, oldest first.

    Stamps are epoch seconds with some drivers and seconds since boot with others: if the newest
    one is not within 2 s of ``now``, they are moved so that it is at ``now``.
    """
    ordered = sorted(points)
    if not ordered:
        return []
    newest = ordered[-1][0]
    shift = 0.0 if abs(newest - now) <= _SAME_CLOCK_S else now - newest
    return [(t + shift, value) for t, value in ordered if since < t + shift < now]


def thin(points: Iterable[Point], step: float) -> list[Point]:
    """Make one point, the mean at the last one's time, of all in each ``step`` seconds."""
    if step <= 0:
        return list(points)
    groups: dict[int, list[Point]] = {}
    for point in points:
        groups.setdefault(math.floor(point[0] / step), []).append(point)
    return [
        (group[-1][0], sum(value for _, value in group) / len(group))
        for group in groups.values()
    ]
