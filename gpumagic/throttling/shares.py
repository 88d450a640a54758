"""For what share of a span clocks were held back, and by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..coverage import around, why_absent, why_none_inside
from ..figures import Throttling
from ..metrics import (
    CLOCK_EVENT_REASONS,
    LIMITED_SECONDS,
    METRICS,
    THROTTLE_REASONS,
    throttle_names,
)
from ..recording import Recording, Series
from ..sample import Device, Span
from .bits import BITS, BITS_OF, DEAD_SHARE, ITS_CAUSES, SLOWDOWN, TOO_MUCH

__all__ = ["throttling_of"]

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
    first, end = span.start + BITS.reach_s, span.end
    rows = recording.series(BITS.name, device.id, first, end).within(first, end)
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
    if around(recording, BITS, device.id, span):
        return Throttling(reason=why_none_inside(recording, span, device, BITS))
    return Throttling(reason=why_absent(recording, span, device, BITS, reasons))


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
    if after < before or after - before > TOO_MUCH * (t1 - t0) + metric.refresh_s:
        return None
    shown = sum(1 for v in bits if int(v) & BITS_OF[name])
    if after == 0 and bits and shown >= DEAD_SHARE * len(bits):
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
    known = sum(BITS_OF[name] for name in counted)
    rest = {
        CLOCK_EVENT_REASONS[bit]: bit for bit in sorted(THROTTLE_REASONS) if not bit & known
    }
    causes = known & ITS_CAUSES
    by_reason |= _shares([int(v) & ~SLOWDOWN if int(v) & causes else v for v in bits], rest)
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
