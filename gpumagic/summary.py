"""Recording + span -> Summary: what one cell used, figure by figure, with what it rests on.

A reading counts in a span only if all the time that it speaks of lies inside the span; so a
cell that is too short for a figure gets none, and the reason instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .coverage import around, lost_in, quick_source, why_absent, why_none_inside, without_break
from .energy import energy_of
from .figures import Coverage, DeviceSummary, Energy, Figure, Summary, Throttling
from .metrics import METRICS, Metric, of_source
from .recording import REACH_PERIODS, Recording, Series
from .sample import Device, Span
from .sources.nvml_rings import BRIDGED
from .throttling import throttling_of
from .units import quantity

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
    return Summary(span, found, watch_cpu_s)


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
        if metric.source == "cell":
            continue  # a place in a program has neither mean nor peak
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
        energy_of(recording, span, device, reasons),
        throttling_of(recording, span, device, reasons),
        _coverage(recording, span, device, quick_source(device)),
        *lost_in(recording, span, device, quick_source(device)),
    )


def _figure(
    recording: Recording,
    span: Span,
    device: Device,
    metric: Metric,
    reasons: Mapping[str, str],
) -> Figure:
    assert span.end is not None
    series = around(recording, metric, device.id, span)
    if not series:
        return Figure(metric.name, reason=why_absent(recording, span, device, metric, reasons))

    counter = metric.kind == "counter"

    def near(row: tuple[float, float, float] | None, edge: float) -> float | None:
        if row is None:
            return None
        begin, time, value = row
        # A counter is what it was at its time, and a merged gauge speaks of the whole row.
        far = time if counter or abs(time - edge) > abs(begin - edge) else begin
        there = without_break(recording, device, metric.source, far, edge)
        return value if there else None

    rows = list(zip(series.starts, series.times, series.values, strict=True))
    start = near(next((r for r in reversed(rows) if r[1] <= span.start), None), span.start)
    end = near(
        next((r for r in rows if r[1 if counter else 0] >= span.end), None), span.end
    )
    counting = series.where([
        begin - metric.reach_s >= span.start and time <= span.end for begin, time, _ in rows
    ])
    inside = list(zip(counting.starts, counting.times, counting.values, strict=True))
    if start is None and metric.reach_s == 0 and inside:
        # The source came up inside the span (CUDA was initialised in the cell).
        start = near(inside[0], span.start) if metric.source != "allocator" else None
    if end is None and metric.reach_s == 0 and inside:
        end = near(inside[-1], span.end)
    samples = sum(counting.counts)
    if metric.rate_of is not None:
        mean = _mean_rate(recording, span, device.id, METRICS[metric.rate_of])
        if mean is not None:
            peak = max([*counting.highs, mean])
            return Figure(metric.name, start, mean, peak, end, max(samples, 2))
    if counter:
        return Figure(metric.name, start=start, end=end, samples=samples)
    counted = list(counting.highs)
    # Of a row that is in the span only in part, no one knows where its highest lies.
    straddling = [
        high for begin, time, high in zip(series.starts, series.times, series.highs, strict=True)
        if begin < time and begin < span.end and time >= span.start + metric.reach_s
        and not (begin - metric.reach_s >= span.start and time <= span.end)
    ]
    if metric.name in _STATES:
        counted += [v for v in (start, end) if v is not None]
    sure = max(counted) if counted else None
    highest = None if sure is None else max([sure, *straddling])
    total = sum(v * n for v, n in zip(counting.values, counting.counts, strict=True))
    return Figure(
        metric.name,
        start=start,
        mean=total / samples if samples else None,
        peak=highest,
        end=end,
        samples=samples,
        reason="" if samples else why_none_inside(recording, span, device, metric),
        peak_low=None if highest == sure else sure,
    )


def _mean_rate(
    recording: Recording, span: Span, device: str, counter: Metric
) -> float | None:
    """Return a counter's growth a second between the readings next to a span's ends."""
    series = around(recording, counter, device, span)
    first = next(((t, v) for t, v in reversed(list(series)) if t <= span.start), None)
    last = next(((t, v) for t, v in series if span.end is not None and t >= span.end), None)
    if first is None or last is None or last[0] - first[0] < _SHORTEST_RATE_S:
        return None
    if last[1] < first[1]:
        return None  # counted anew, as the children's time is by a new sampler
    return (last[1] - first[1]) / (last[0] - first[0])


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


def _coverage(recording: Recording, span: Span, device: Device, source: str) -> Coverage:
    assert span.end is not None
    period = recording.periods.get(source, 0.1)
    read = _read_in(recording, span, device, source)
    joined = REACH_PERIODS * (recording.longest_period(source, device.id) or period)
    samples, longest, merged, until = 0, 0.0, 0.0, span.start
    estimated = False
    for begin, time, count in zip(read.starts, read.times, read.counts, strict=True):
        longest = max(longest, begin - until)
        if time > begin:
            # How merged readings lie is not known, only that they were near enough to be joined.
            longest = max(longest, min(time - begin, joined))
            merged = max(merged, time - begin)
            outside = (begin < span.start) + (time > span.end)
            if outside:
                share = (min(time, span.end) - max(begin, span.start)) / (time - begin)
                count, estimated = min(round(count * share), count - outside), True
        samples += count
        until = time
    if merged:
        # Of breaks that come thick, some lie between readings that are merged.
        longest = max([longest, *(
            min(after, span.end) - max(before, span.start)
            for before, after in recording.breaks(
                source, device.id, span.start, span.end, metric=read.metric
            )
        )])
    longest = max(longest, span.end - until)
    return Coverage(source, samples, longest, period, merged, estimated)


def _read_in(recording: Recording, span: Span, device: Device, source: str) -> Series:
    """Return when a source read a device in a span, without what the driver's rings filled in."""
    assert span.end is not None
    metrics = of_source(source)
    for metric in sorted(metrics, key=lambda metric: metric.name in BRIDGED):
        found = recording.series(metric.name, device.id, span.start, span.end)
        if found:
            return found
    return Series(source, device.id, (), ())


def peak_text(figure: Figure) -> str:
    """Write a peak with how sure it is: exact, or as a bound."""
    unit = METRICS[figure.metric].unit
    if figure.peak is None:
        return quantity(None, unit)
    if figure.peak_low is not None:
        return f"{quantity(figure.peak_low, unit)} to {quantity(figure.peak, unit)}"
    return quantity(figure.peak, unit)
