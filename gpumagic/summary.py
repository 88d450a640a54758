"""Recording + span -> Summary: what one cell used, figure by figure, with what it rests on.

A reading counts in a span only if all the time that it speaks of lies inside the span; so a
cell that is too short for a figure gets none, and the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from .figures import Coverage, DeviceSummary, Energy, Figure, Summary, Throttling
from .metrics import CLOCK_EVENT_REASONS, METRICS, THROTTLE_REASONS, Metric, throttle_names
from .recording import REACH_PERIODS, Recording, Series
from .sample import Device, Span
from .units import duration, quantity

__all__ = [
    "Coverage",
    "DeviceSummary",
    "Energy",
    "Figure",
    "Summary",
    "Throttling",
    "peak_text",
    "summarise",
]

# Processor times count in steps of 10 ms: below this length a share says little.
_SHORTEST_RATE_S = 0.1
# What the device holds at an instant: the state at the cell's start belongs to the cell too.
_STATES = frozenset(
    name for name, row in METRICS.items() if row.unit == "bytes" and row.kind == "gauge"
)
_PEAK_COUNTERS = {
    "torch_allocated_bytes": "torch_allocated_peak_bytes",
    "torch_reserved_bytes": "torch_reserved_peak_bytes",
}


def summarise(
    recording: Recording,
    span: Span,
    *,
    devices: Sequence[str] | None = None,
    reasons: Mapping[str, str] | None = None,
    watch_cpu_s: float | None = None,
    cuda_at_start: bool = True,
) -> Summary:
    """Compute the figures of a closed span.

    ``devices`` limits it to some ids; ``reasons`` says per source why it gives nothing;
    ``cuda_at_start`` is false if torch's CUDA was not initialised when the span began, so that
    its allocator counted from nothing.
    Raises :class:`ValueError` for a span that still runs.
    """
    if span.end is None:
        raise ValueError("a span is summarised after its end")
    chosen = [d for d in recording.devices if devices is None or d.id in devices]
    found = tuple(
        _device(recording, span, device, reasons or {}, cuda_at_start) for device in chosen
    )
    # The oldest samples of a very long cell can have left the recording.
    dropped = [
        until
        for device in chosen
        if (until := recording.dropped_until(_quick(device), device.id)) is not None
    ]
    truncated = max(dropped, default=span.start) - span.start
    return Summary(span, found, watch_cpu_s, truncated if truncated > 5.0 else 0.0)


def _quick(device: Device) -> str:
    """Name the source that reads a device most often."""
    return "nvml" if device.kind == "gpu" else "host"


def _device(
    recording: Recording,
    span: Span,
    device: Device,
    reasons: Mapping[str, str],
    cuda_at_start: bool,
) -> DeviceSummary:
    figures = {}
    for metric in METRICS.values():
        if metric.kind == "constant" or metric.name == "gpu_energy_joules":
            continue
        if metric.source == "host" and device.kind != "host":
            continue
        if metric.source != "host" and device.kind == "host":
            continue
        figure = _figure(recording, span, device, metric, reasons)
        if metric.source == "allocator" and not cuda_at_start and figure.measured:
            # The allocator came into being inside the span: before, it held nothing.
            figure = replace(figure, start=0.0)
        figures[metric.name] = figure
    for name, counter in _PEAK_COUNTERS.items():
        if name in figures:
            figures[name] = _with_peak_counter(figures[name], figures[counter], cuda_at_start)
    return DeviceSummary(
        device,
        figures,
        _energy(recording, span, device, reasons),
        _throttling(recording, span, device, reasons),
        _coverage(recording, span, device, _quick(device)),
        *_lost(recording, span, device, _quick(device)),
    )


def _gaps(
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


def _lost(
    recording: Recording, span: Span, device: Device, source: str
) -> tuple[float, str]:
    """Return for how long a source gave nothing for a device, and the longest gap's reason."""
    gaps = _gaps(recording, span, device, source)
    if not gaps:
        return 0.0, ""
    lost, until = 0.0, span.start
    for start, end, _ in gaps:
        lost += max(0.0, end - max(start, until))
        until = max(until, end)
    return lost, max(gaps, key=lambda gap: gap[1] - gap[0])[2]


def _without_break(
    recording: Recording, device: Device, source: str, one: float, other: float
) -> bool:
    """Tell whether a reading at one time can stand for another: no gap lies between them."""
    period = recording.periods.get(source, 0.1)
    early, late = min(one, other), max(one, other)
    if late - early > max(REACH_PERIODS * period, 0.5):
        return False
    return not any(
        gap.source == source and gap.device in (device.id, None)
        # A gap ends with the reading that ends it.
        and gap.start < late and (gap.end is None or gap.end > early)
        for gap in recording.gaps(early, late)
    )


def _around(
    recording: Recording, metric: Metric, device: str, span: Span
) -> tuple[Series, float]:
    """Return a metric's readings from just before a span to just after it, and the margin."""
    period = recording.periods.get(metric.source, 0.1)
    margin = max(REACH_PERIODS * period, 0.5)
    assert span.end is not None
    return recording.series(metric.name, device, span.start - margin, span.end + margin), margin


def _figure(
    recording: Recording,
    span: Span,
    device: Device,
    metric: Metric,
    reasons: Mapping[str, str],
) -> Figure:
    assert span.end is not None
    series, _ = _around(recording, metric, device.id, span)
    if not series:
        return Figure(metric.name, reason=_why_absent(recording, span, device, metric, reasons))

    def near(points: Iterable[tuple[float, float]], edge: float) -> float | None:
        point = next(iter(points), None)
        if point is None:
            return None
        there = _without_break(recording, device, metric.source, point[0], edge)
        return point[1] if there else None

    start = near(((t, v) for t, v in reversed(list(series)) if t <= span.start), span.start)
    end = near(((t, v) for t, v in series if t >= span.end), span.end)
    counting = [(t, v) for t, v in series if t - metric.reach_s >= span.start and t <= span.end]
    inside = [v for _, v in counting]
    if start is None and metric.reach_s == 0 and inside:
        # The source came up inside the span (CUDA was initialised in the cell).
        start = near(counting, span.start) if metric.source != "allocator" else None
    if end is None and metric.reach_s == 0 and inside:
        end = near(reversed(counting), span.end)
    if metric.rate_of is not None:
        mean = _mean_rate(recording, span, device.id, METRICS[metric.rate_of])
        if mean is not None:
            peak = max([*inside, mean])
            return Figure(metric.name, start, mean, peak, end, max(len(inside), 2))
    if metric.kind == "counter":
        return Figure(metric.name, start=start, end=end, samples=len(inside))
    counted = list(inside)
    if metric.name in _STATES:
        counted += [v for v in (start, end) if v is not None]
    return Figure(
        metric.name,
        start=start,
        mean=sum(inside) / len(inside) if inside else None,
        peak=max(counted) if counted else None,
        end=end,
        samples=len(inside),
        reason="" if inside else _why_none_inside(recording, span, device, metric),
    )


def _why_none_inside(
    recording: Recording, span: Span, device: Device, metric: Metric
) -> str:
    """Say why there were readings around a span but none that counts in it."""
    assert span.end is not None
    lost, reason = _lost(recording, span, device, metric.source)
    if lost and reason:
        return reason
    period = recording.periods.get(metric.source, 0.1)
    if span.end - span.start > metric.reach_s + 3 * period:
        return "no reading fell into the cell"
    if period > metric.reach_s and period > 1:
        return f"too short to say: a reading every {duration(period)}"
    if metric.reach_s:
        return f"too short to say: a reading speaks of {duration(metric.reach_s)}"
    return "too short to say: no reading fell into the cell"


def _mean_rate(
    recording: Recording, span: Span, device: str, counter: Metric
) -> float | None:
    """Return a counter's growth a second between the readings next to a span's ends."""
    series, _ = _around(recording, counter, device, span)
    first = next(((t, v) for t, v in reversed(list(series)) if t <= span.start), None)
    last = next(((t, v) for t, v in series if span.end is not None and t >= span.end), None)
    if first is None or last is None or last[0] - first[0] < _SHORTEST_RATE_S:
        return None
    if last[1] < first[1]:
        return None  # counted anew, as the children's time is by a new sampler
    return (last[1] - first[1]) / (last[0] - first[0])


def _why_absent(
    recording: Recording,
    span: Span,
    device: Device,
    metric: Metric,
    reasons: Mapping[str, str],
) -> str:
    if metric.name in device.absent:
        return device.absent[metric.name]
    assert span.end is not None
    for source in (metric.source, _quick(device)):
        # What loses a GPU is seen first by whoever reads it most often.
        lost, reason = _lost(recording, span, device, source)
        driver = source == metric.source or metric.source.startswith("nvml")
        if lost and reason and driver:
            return reason
    if metric.source in reasons:
        return reasons[metric.source]
    if metric.source == "allocator":
        return "torch has not initialised CUDA on this GPU in this process"
    if span.end - span.start > 3 * recording.periods.get(metric.source, 0.1):
        return "the device gave no value"
    return _why_none_inside(recording, span, device, metric)


def _with_peak_counter(figure: Figure, counter: Figure, cuda_at_start: bool) -> Figure:
    """Sharpen a sampled peak by the allocator's own peak before (p0) and after (p1) the cell.

    p1 > p0: p1 is the cell's peak, exactly. p1 = p0: it lies between the highest reading and
    p0. A counter that was seen to fall, or a reading above p1: the cell reset the peak; the
    cell's is at least the largest of p1, the readings, and what the counter itself rose to.
    """
    sampled, after = figure.peak, counter.end
    if sampled is None or after is None:
        return figure
    before = counter.start if cuda_at_start else 0.0
    highest = counter.peak if counter.peak is not None else after
    if after < max(sampled, highest):
        risen = highest if before is not None and highest > before else 0.0
        peak, low, exact = max(sampled, after, risen), None, False
    elif before is None:
        peak, low, exact = after, sampled, False
    elif after > before:
        peak, low, exact = after, None, True
    else:
        peak, low, exact = after, sampled, sampled >= after
    return Figure(
        figure.metric, figure.start, figure.mean, peak, figure.end, figure.samples,
        peak_low=None if exact else low, peak_exact=exact,
    )


def _energy(
    recording: Recording, span: Span, device: Device, reasons: Mapping[str, str]
) -> Energy:
    if device.kind != "gpu":
        return Energy(reason="not a GPU")
    assert span.end is not None
    metric = METRICS["gpu_energy_joules"]
    series, _ = _around(recording, metric, device.id, span)
    if not series:
        return Energy(reason=_why_absent(recording, span, device, metric, reasons))
    first = next(((t, v) for t, v in reversed(list(series)) if t <= span.start), None)
    last = next(((t, v) for t, v in series if t >= span.end), None)
    if first is None or last is None:
        _, reason = _lost(recording, span, device, metric.source)
        return Energy(reason=reason or "the counter was not read at both ends of the cell")
    (t0, e0), (t1, e1) = first, last
    if e1 < e0:
        return Energy(reason="the counter went back (the driver was reloaded)")
    wall = span.end - span.start
    power, _ = _around(recording, METRICS["gpu_power_watts"], device.id, span)
    highest = max(power.values, default=(e1 - e0) / (t1 - t0) if t1 > t0 else 0.0)
    edges = (span.start - t0) + (t1 - span.end)
    # The counter is renewed every refresh_s, so each reading can be that much too old.
    bound = highest * (edges + metric.refresh_s)
    if wall <= 2 * metric.refresh_s:
        return Energy(
            reason=f"too short to say: the counter is renewed every {duration(metric.refresh_s)}"
        )
    joules = (e1 - e0) * wall / (t1 - t0)
    return Energy(joules, bound, joules / wall)


def _throttling(
    recording: Recording, span: Span, device: Device, reasons: Mapping[str, str]
) -> Throttling:
    if device.kind != "gpu":
        return Throttling(reason="not a GPU")
    assert span.end is not None
    metric = METRICS["gpu_clock_event_reasons_state"]
    series = recording.series(metric.name, device.id, span.start + metric.reach_s, span.end)
    if not series:
        around, _ = _around(recording, metric, device.id, span)
        if around:
            return Throttling(reason=_why_none_inside(recording, span, device, metric))
        return Throttling(reason=_why_absent(recording, span, device, metric, reasons))
    total = len(series)
    by_reason = {
        CLOCK_EVENT_REASONS[bit]: sum(1 for v in series.values if int(v) & bit) / total
        for bit in sorted(THROTTLE_REASONS)
    }
    held = sum(1 for v in series.values if throttle_names(v)) / total
    return Throttling(held, {k: v for k, v in by_reason.items() if v}, total)


def _coverage(
    recording: Recording, span: Span, device: Device, source: str
) -> Coverage | None:
    assert span.end is not None
    period = recording.periods.get(source, 0.1)
    times = [*recording.times(source, device.id, span.start, span.end)]
    edges = [span.start, *times, span.end]
    longest = max(b - a for a, b in pairwise(edges))
    return Coverage(source, len(times), longest, period)


def peak_text(figure: Figure) -> str:
    """Write a peak with how sure it is: exact, or as a bound."""
    unit = METRICS[figure.metric].unit
    if figure.peak is None:
        return quantity(None, unit)
    if figure.peak_low is not None:
        return f"{quantity(figure.peak_low, unit)} to {quantity(figure.peak, unit)}"
    return quantity(figure.peak, unit)
