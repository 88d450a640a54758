"""What a recording holds of a span: the readings near it, the gaps in it, why there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .metrics import Metric
from .recording import REACH_PERIODS, Recording, Series
from .sample import Device, Span
from .units import duration

__all__ = [
    "around",
    "gaps_in",
    "length",
    "lost_in",
    "merge",
    "quick_source",
    "reach_of",
    "why_absent",
    "why_none_inside",
    "without_break",
]

_DRIVER = frozenset({"nvml", "nvml_slow", "gpm"})
"""The sources that read a GPU's driver: what one of them cannot reach, none can."""


def quick_source(device: Device) -> str:
    """Name the source that reads a device most often."""
    return "nvml" if device.kind == "gpu" else "host"


def gaps_in(
    recording: Recording, span: Span, device: Device, source: str
) -> list[tuple[float, float, str]]:
    """List the stretches of a span in which a source gave nothing for a device, and why."""
    assert span.end is not None
    found = [
        (max(gap.start, span.start), span.end if gap.end is None else min(gap.end, span.end),
         gap.reason)
        for gap in recording.gaps(span.start, span.end)
        if gap.source == source and gap.device in (device.id, None)
    ]
    return sorted(gap for gap in found if gap[1] > gap[0])


def lost_in(
    recording: Recording, span: Span, device: Device, source: str
) -> tuple[float, str]:
    """Return for how long a source gave nothing for a device, and the longest gap's reason."""
    gaps = gaps_in(recording, span, device, source)
    if not gaps:
        return 0.0, ""
    lost, until = 0.0, span.start
    for start, end, _ in gaps:
        lost += max(0.0, end - max(start, until))
        until = max(until, end)
    return lost, max(gaps, key=lambda gap: gap[1] - gap[0])[2]


def reach_of(recording: Recording, source: str) -> float:
    """Return for how many seconds a reading of a source can stand for what it read."""
    return max(REACH_PERIODS * recording.periods.get(source, 0.1), 0.5)


def without_break(
    recording: Recording, device: Device, source: str, one: float, other: float
) -> bool:
    """Tell whether a reading at one time can stand for another: no gap lies between them."""
    early, late = min(one, other), max(one, other)
    if late - early > reach_of(recording, source):
        return False
    return not any(
        gap.source == source and gap.device in (device.id, None)
        # A gap ends with the reading that ends it.
        and gap.start < late and (gap.end is None or gap.end > early)
        for gap in recording.gaps(early, late)
    )


def around(recording: Recording, metric: Metric, device: str, span: Span) -> Series:
    """Return a metric's readings from just before a span to just after it."""
    margin = reach_of(recording, metric.source)
    assert span.end is not None
    return recording.series(metric.name, device, span.start - margin, span.end + margin)


def why_none_inside(
    recording: Recording, span: Span, device: Device, metric: Metric
) -> str:
    """Say why there were readings around a span but none that counts in it."""
    assert span.end is not None
    lost, reason = lost_in(recording, span, device, metric.source)
    if lost and reason:
        return reason
    series = recording.series(metric.name, device.id, span.start, span.end)
    widest = max((b - a for a, b in zip(series.starts, series.times, strict=True)), default=0.0)
    if widest > 0:
        return f"too short to say: readings of that time are merged over {duration(widest)}"
    period = recording.periods.get(metric.source, 0.1)
    if span.end - span.start > metric.reach_s + 3 * period:
        return "no reading fell into the cell"
    if period > metric.reach_s and period > 1:
        return f"too short to say: a reading every {duration(period)}"
    if metric.reach_s:
        return f"too short to say: a reading speaks of {duration(metric.reach_s)}"
    return "too short to say: no reading fell into the cell"


def why_absent(
    recording: Recording,
    span: Span,
    device: Device,
    metric: Metric,
    reasons: Mapping[str, str],
) -> str:
    """Say why a device has no reading of a metric near a span.

    ``reasons`` says per source why it gives nothing.
    """
    if metric.name in device.absent:
        return device.absent[metric.name]
    assert span.end is not None
    for source in (metric.source, quick_source(device)):
        # What loses a GPU is seen first by whoever reads it most often.
        lost, reason = lost_in(recording, span, device, source)
        driver = source == metric.source or metric.source in _DRIVER
        if lost and reason and driver:
            return reason
    if metric.source in reasons:
        return reasons[metric.source]
    if metric.source == "allocator":
        return "torch has not initialised CUDA on this GPU in this process"
    if span.end - span.start > 3 * recording.periods.get(metric.source, 0.1):
        return "the device gave no value"
    return why_none_inside(recording, span, device, metric)


def merge(stretches: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Join stretches that touch, oldest first."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def length(stretches: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that stretches take together, which are taken not to overlap."""
    return sum(end - start for start, end in stretches)
