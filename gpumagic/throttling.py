"""For how long clocks were held back, and by what: the driver's counters, or readings of bits.

The counters (LIMITED_SECONDS) tell it exactly, and the bits of ``gpu_clock_event_reasons_state``
only at each reading. Reasons without a counter come from the bits alone. Where readings have been
merged, shares count each of them as it was; for the time at which a reason held, the last one
speaks for all of them, and a reason that only others showed for one of them.

A counter is not believed where it contradicts itself or the bits:

* it went back, or grew by more than the time that passed (its unit is not the one expected);
* it stands at exactly 0, so has not moved since the driver was loaded, while at least half of
  the readings in the span show its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from types import MappingProxyType

from .coverage import around, merge, reach_of, why_absent, why_none_inside
from .figures import Throttling
from .metrics import (
    CLOCK_EVENT_REASONS,
    LIMITED_SECONDS,
    METRICS,
    THROTTLE_REASONS,
    throttle_names,
)
from .recording import REACH_PERIODS, Recording, Series
from .sample import Device, Span

__all__ = ["held_back", "throttling_of"]

Stretch = tuple[float, float]

_BITS = METRICS["gpu_clock_event_reasons_state"]
_HARDWARE, _ITS_CAUSES = 0x008, 0x040 | 0x080
"""The hardware's slowdown, and the bits that name its cause: those are what is counted then."""

_BITS_OF: Mapping[str, int] = MappingProxyType(
    {
        "gpu_power_limited_seconds": 0x004,
        "gpu_thermal_limited_seconds": 0x020 | 0x040,
        "gpu_sync_boost_limited_seconds": 0x010,
        "gpu_power_brake_limited_seconds": 0x080,
    }
)
"""The bits whose time each counter counts."""

_DEAD_SHARE = 0.5
_TOO_MUCH = 1.1
# Readings beside the span's ends may add this share of the span to it, or the counter's own lag.
_EDGES = 0.1


def throttling_of(
    recording: Recording, span: Span, device: Device, reasons: Mapping[str, str]
) -> Throttling:
    """Return the share of a closed span in which the clocks were held back, and by what.

    ``reasons`` says per source why it gives nothing.
    """
    if device.kind != "gpu":
        return Throttling(reason="not a GPU")
    assert span.end is not None
    first, end = span.start + _BITS.reach_s, span.end
    rows = recording.series(_BITS.name, device.id, first, end).within(first, end)
    bits = _spelled_out(rows)
    counted = {
        name: grown
        for name in LIMITED_SECONDS
        if (grown := _growth(recording, span, device, name, bits)) is not None
    }
    if counted:
        return _from_counters(counted, bits)
    if bits:
        by_reason = _shares(bits, {CLOCK_EVENT_REASONS[b]: b for b in sorted(THROTTLE_REASONS)})
        return Throttling(_any(bits), by_reason, len(bits), method="samples")
    if around(recording, _BITS, device.id, span):
        return Throttling(reason=why_none_inside(recording, span, device, _BITS))
    return Throttling(reason=why_absent(recording, span, device, _BITS, reasons))


def _spelled_out(rows: Series) -> Sequence[float]:
    """Return the readings of bits, as many as there were of each value."""
    if rows.merged is None:
        return rows.values
    found: list[float] = []
    tallies = rows.merged.tallies or [()] * len(rows)
    for value, count, tally in zip(rows.values, rows.counts, tallies, strict=True):
        for bits, times in tally or ((value, count),):
            found += [float(bits)] * times
    return found


def _growth(
    recording: Recording, span: Span, device: Device, name: str, bits: Sequence[float]
) -> tuple[float, float] | None:
    """Return what a counter grew by over a span and the time of it, ``None`` if not believed."""
    assert span.end is not None
    metric = METRICS[name]
    wall = span.end - span.start
    if wall <= 2 * metric.refresh_s:
        return None
    series = list(around(recording, metric, device.id, span))
    first = next((p for p in reversed(series) if p[0] <= span.start), None)
    last = next((p for p in series if p[0] >= span.end), None)
    if first is None or last is None:
        return None
    (t0, before), (t1, after) = first, last
    if (t1 - t0) - wall > max(_EDGES * wall, metric.refresh_s):
        return None
    if after < before or after - before > _TOO_MUCH * (t1 - t0) + metric.refresh_s:
        return None
    shown = sum(1 for v in bits if int(v) & _BITS_OF[name])
    if after == 0 and bits and shown >= _DEAD_SHARE * len(bits):
        return None
    return after - before, t1 - t0


def _from_counters(
    counted: Mapping[str, tuple[float, float]], bits: Sequence[float]
) -> Throttling:
    """Take shares from the counters, and from readings for the reasons that have none."""
    by_reason = {
        LIMITED_SECONDS[name]: min(1.0, grown / time)
        for name, (grown, time) in counted.items() if grown > 0
    }
    known = sum(_BITS_OF[name] for name in counted)
    rest = {
        CLOCK_EVENT_REASONS[bit]: bit for bit in sorted(THROTTLE_REASONS) if not bit & known
    }
    causes = known & _ITS_CAUSES
    by_reason |= _shares([int(v) & ~_HARDWARE if int(v) & causes else v for v in bits], rest)
    return Throttling(
        _ratio(by_reason, bits), by_reason, len(bits), method="counters",
        seconds={LIMITED_SECONDS[name]: grown for name, (grown, _) in counted.items()},
        sampled=tuple(rest) if bits else (),
    )


def _shares(bits: Sequence[float], reasons: Mapping[str, int]) -> dict[str, float]:
    """Return each reason's share of the readings, without those that were never set."""
    counts = {name: sum(1 for v in bits if int(v) & bit) for name, bit in reasons.items()}
    return {name: count / len(bits) for name, count in counts.items() if count}


def _any(bits: Sequence[float]) -> float:
    return sum(1 for v in bits if throttle_names(v)) / len(bits)


def _ratio(by_reason: Mapping[str, float], bits: Sequence[float]) -> float:
    """Return the share of any reason: what the readings say, as far as the shares allow it."""
    if not by_reason:
        return 0.0
    largest = max(by_reason.values())
    together = min(1.0, sum(by_reason.values()))
    return min(together, max(largest, _any(bits) if bits else largest))


# -- when ----------------------------------------------------------------------------------


def held_back(
    recording: Recording, device: str, start: float, end: float
) -> dict[str, tuple[Stretch, ...]]:
    """Return when clocks were held back between two times, by the reasons of CLOCK_EVENT_REASONS.

    A stretch is where the readings show a reason; where the reason has a counter that is
    believed, only between such readings of it between which it grew. Before its first and after
    its newest reading the interval next to it decides. Reasons that did not hold are absent.
    """
    bits = recording.series(_BITS.name, device, start - _reach(recording, device), end)
    found: dict[str, tuple[Stretch, ...]] = {}
    for bit, stretches in _stretches(recording, bits, device, start, end).items():
        grown = _grown(recording, device, bit, bits, start, end)
        held = merge(stretches)
        if grown is not None:
            held = _both(held, grown)
        if held:
            found[CLOCK_EVENT_REASONS[bit]] = held
    return found


def _stretches(
    recording: Recording, bits: Series, device: str, start: float, end: float
) -> dict[int, list[Stretch]]:
    """List where readings show each reason; one holds until the next, if that is in reach."""
    period = recording.periods.get(_BITS.source, 0.1)
    alone = {
        a for a, _ in recording.breaks(_BITS.source, device, start, end, metric=_BITS.name)
    }
    reach = _reach(recording, device)
    found: dict[int, list[Stretch]] = {}
    index = 0
    # Reasons change seldom: readings that say the same are looked at together.
    for value, run in groupby(bits.values):
        first, index = index, index + len(list(run))
        set_bits = _holding(value)
        if not set_bits:
            continue
        nexts = [*bits.starts[first + 1:index + 1], *([end] if index == len(bits) else [])]
        rows = zip(bits.starts[first:index], bits.times[first:index], nexts, strict=True)
        held = [
            (max(a, start), min(end, c if c - b <= reach and b not in alone else b + period))
            for a, b, c in rows
        ]
        for bit in set_bits:
            found.setdefault(bit, []).extend(s for s in held if s[1] > s[0])
    if bits.merged is not None:
        for bit, stretch in _passing(bits, period):
            if stretch[1] > start and stretch[0] < end:
                held_on = (max(stretch[0], start), min(stretch[1], end))
                found.setdefault(bit, []).append(held_on)
    return found


def _holding(value: float) -> list[int]:
    """List the reasons that a reading shows; the hardware's slowdown only without its cause."""
    told = int(value) & ~_HARDWARE if int(value) & _ITS_CAUSES else int(value)
    return [bit for bit in sorted(THROTTLE_REASONS) if told & bit]


def _passing(bits: Series, period: float) -> Iterator[tuple[int, Stretch]]:
    """Yield the reasons that were seen in merged readings but not in the last of them."""
    for time, value, high in zip(bits.times, bits.values, bits.highs, strict=True):
        if high != value:
            for bit in set(_holding(high)) - set(_holding(value)):
                yield bit, (time - period, time)


def _reach(recording: Recording, device: str) -> float:
    """Return how far a reading of the bits can reach at most; breaks say where it does not."""
    longest = recording.longest_period(_BITS.source, device)
    return max(REACH_PERIODS * (longest or 0.0), reach_of(recording, _BITS.source))


def _grown(
    recording: Recording, device: str, bit: int, bits: Series, start: float, end: float
) -> list[Stretch] | None:
    """List where the counter of a reason grew; ``None`` without one that is believed."""
    name = next((n for n, mask in _BITS_OF.items() if mask & bit), None)
    if name is None:
        return None
    metric = METRICS[name]
    margin = reach_of(recording, metric.source)
    points = list(recording.series(name, device, start - margin, end + margin))
    if len(points) < 2:
        return None
    intervals = list(pairwise(points))
    if any(b < a or b - a > _TOO_MUCH * (t1 - t0) + metric.refresh_s
           for (t0, a), (t1, b) in intervals):
        return None
    readings = _spelled_out(bits)
    shown = sum(1 for v in readings if int(v) & _BITS_OF[name])
    if points[-1][1] == 0 and shown >= _DEAD_SHARE * len(readings):
        return None
    # The counter lags by refresh_s: what it shows in one interval can be of the one before.
    grown = [(t0 - metric.refresh_s, t1) for (t0, a), (t1, b) in intervals if b > a]
    if intervals[0][0][1] < intervals[0][1][1]:
        grown.insert(0, (min(start, points[0][0]), points[0][0]))
    if intervals[-1][0][1] < intervals[-1][1][1]:
        grown.append((points[-1][0], max(end, points[-1][0])))
    return list(merge(grown))


def _both(ones: Sequence[Stretch], others: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Return what two lists of stretches, oldest first, have in common."""

    def common() -> Iterator[Stretch]:
        index = 0
        for start, end in ones:
            while index < len(others) and others[index][1] <= start:
                index += 1
            for other in others[index:]:
                if other[0] >= end:
                    break
                yield max(start, other[0]), min(end, other[1])

    return tuple(common())
