"""The energy of a span: the driver's counter, corrected at the span's ends, or power over time.

The counter is read beside the span's ends, not at them: what lies between is power integrated
over time. Where there is no counter, power integrated over the whole span is an estimate.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from .coverage import around, gaps_in, lost_in, reach_of, why_absent, without_break
from .figures import Energy
from .metrics import METRICS
from .recording import Recording, Series
from .sample import Device, Span
from .units import duration

__all__ = ["energy_of", "integrate"]

_COUNTER = METRICS["gpu_energy_joules"]
_POWER = METRICS["gpu_power_watts"]

Point = tuple[float, float]


def energy_of(
    recording: Recording, span: Span, device: Device, reasons: Mapping[str, str]
) -> Energy:
    """Return the joules of a closed span, or the reason why they cannot be told.

    From ``nvmlDeviceGetTotalEnergyConsumption`` where it was read at both ends, and from
    ``nvmlDeviceGetPowerUsage`` alone where not. ``reasons`` says per source why it gives nothing.
    """
    if device.kind != "gpu":
        return Energy(reason="not a GPU")
    assert span.end is not None
    if span.end - span.start <= 2 * _COUNTER.refresh_s:
        why = f"too short to say: the counter is renewed every {duration(_COUNTER.refresh_s)}"
        return Energy(reason=_absent(recording, span, device, reasons) or why)
    ends, why = _ends(recording, span, device, reasons)
    if ends is not None:
        # Power is to reach over the edges, and to what a late reading says of them.
        margin = reach_of(recording, _COUNTER.source) + _POWER.reach_s
        power = recording.series(
            _POWER.name, device.id, span.start - margin, span.end + margin
        )
        return _counted(span, *ends, power)
    estimate = _estimated(recording, span, device)
    return Energy(reason=why) if estimate is None else replace(estimate, reason=why)


def _absent(
    recording: Recording, span: Span, device: Device, reasons: Mapping[str, str]
) -> str:
    """Say why there is no counter near a span, or nothing if there is one."""
    if around(recording, _COUNTER, device.id, span):
        return ""
    return why_absent(recording, span, device, _COUNTER, reasons)


def _ends(
    recording: Recording, span: Span, device: Device, reasons: Mapping[str, str]
) -> tuple[tuple[Point, Point] | None, str]:
    """Find the counter's readings nearest to the span's ends, or say why they do not serve."""
    assert span.end is not None
    series = list(around(recording, _COUNTER, device.id, span))
    if not series:
        return None, why_absent(recording, span, device, _COUNTER, reasons)
    start, end = span.start, span.end
    first = min(series, key=lambda point: abs(point[0] - start))
    last = min(reversed(series), key=lambda point: abs(point[0] - end))
    if first[0] >= last[0]:
        # One reading is the nearest to both ends of a short span.
        first = next((p for p in reversed(series) if p[0] <= start), first)
        last = next((p for p in series if p[0] >= end), last)
    there = all(
        without_break(recording, device, _COUNTER.source, time, edge)
        and not gaps_in(recording, replace(span, start=min(time, edge), end=max(time, edge)),
                        device, _POWER.source)
        for time, edge in ((first[0], start), (last[0], end))
    )
    if first[0] >= last[0] or not there:
        lost = (lost_in(recording, span, device, s)[1] for s in (_COUNTER.source, _POWER.source))
        return None, next(filter(None, lost), "the counter was not read at both ends of the cell")
    between = [value for time, value in series if first[0] <= time <= last[0]]
    if any(after < before for before, after in pairwise(between)):
        return None, "the counter went back (the driver was reloaded)"
    return (first, last), ""


def _counted(span: Span, first: Point, last: Point, power: Series) -> Energy:
    """Take the counter's difference, and integrate power between its readings and the ends."""
    assert span.end is not None
    (t0, e0), (t1, e1) = first, last
    mean = (e1 - e0) / (t1 - t0)
    head, head_bound = _edge(span.start, t0, power, mean)
    tail, tail_bound = _edge(t1, span.end, power, mean)
    joules = max(0.0, e1 - e0 + head + tail)
    # Both readings can be as old as refresh_s. They lag the same way, so that the two errors
    # take from each other: the larger one bounds them.
    stale = max(power.highs, default=mean) * _COUNTER.refresh_s
    wall = span.end - span.start
    return Energy(joules, stale + head_bound + tail_bound, joules / wall, method="counter")


def _edge(start: float, end: float, power: Series, mean: float) -> tuple[float, float]:
    """Integrate power from one time to another, negative if backwards; give the bound too.

    A reading of power averages over the time before it, so the bound is the edge's length times
    the range of the readings within ``reach_s`` of it. Without any, the span's mean power stands
    for it, give or take all of it.
    """
    length = abs(end - start)
    low = bisect_left(power.times, min(start, end) - _POWER.reach_s)
    high = bisect_right(power.starts, max(start, end) + _POWER.reach_s)
    if low >= high:
        return mean * (end - start), mean * length
    spread = max(power.highs[low:high]) - min(power.values[low:high])
    return integrate(power, start, end), length * spread


def _estimated(recording: Recording, span: Span, device: Device) -> Energy | None:
    """Integrate power over a span, or nothing where its readings do not cover the span.

    A reading is late by up to ``reach_s``: at each end the estimate can be off by that time at
    the difference to what power was before.
    """
    assert span.end is not None
    wall = span.end - span.start
    reach = reach_of(recording, _POWER.source)
    power = around(recording, _POWER, device.id, span)
    starts, times = power.starts, power.times
    low, high = bisect_left(times, span.start), bisect_right(starts, span.end)
    if wall <= _POWER.reach_s or low >= high:
        return None
    # Within a row of merged readings none are too far apart.
    before = times[low - 1] if low else span.start
    after = starts[high] if high < len(starts) else span.end
    between = zip([before, *times[low:high]], [*starts[low:high], after], strict=True)
    if max(b - a for a, b in between) > reach:
        return None
    joules = integrate(power, span.start, span.end)
    bound = _POWER.reach_s * (max(power.highs) - min(power.values))
    return Energy(joules, bound, joules / wall, method="estimate")


def integrate(series: Series, start: float, end: float) -> float:
    """Return the integral of a series from ``start`` to ``end``, negative if backwards.

    Between two readings the value lies on the line between them, and within merged ones it is
    their mean; before the first and after the last one it is theirs. Where readings came at an
    even pace, merging changes the integral by at most one pace times the range of the outermost
    rows. Raises :class:`ValueError` for an empty series.
    """
    if end < start:
        return -integrate(series, end, start)
    times, values = _corners(series)
    if not times:
        raise ValueError("an empty series has no integral")

    def at(time: float) -> float:
        index = bisect_right(times, time)
        if index == 0:
            return values[0]
        if index == len(times):
            return values[-1]
        t0, t1 = times[index - 1], times[index]
        share = (time - t0) / (t1 - t0) if t1 > t0 else 1.0
        return values[index - 1] + share * (values[index] - values[index - 1])

    low, high = bisect_right(times, start), bisect_left(times, end)
    points = [(start, at(start)), *zip(times[low:high], values[low:high], strict=True),
              (end, at(end))]
    return sum((b - a) * (u + v) / 2 for (a, u), (b, v) in pairwise(points))


def _corners(series: Series) -> tuple[Sequence[float], Sequence[float]]:
    """Return the points between which a series runs straight: two for a merged row."""
    if series.merged is None:
        return series.times, series.values
    times: list[float] = []
    values: list[float] = []
    for start, time, value in zip(series.starts, series.times, series.values, strict=True):
        ends = (start, time) if start < time else (time,)
        times += ends
        values += [value] * len(ends)
    return times, values
