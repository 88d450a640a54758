"""What the figures of a report rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..summary import Coverage, DeviceSummary, Figure
from ..units import duration, quantity
from .report_parts import ReportLine
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["evidence", "notes"]

_ALLOCATED = "torch_allocated_bytes"
_BY_COUNTERS = ": peak by torch's counters"


def evidence(profile: Profile, lines: Sequence[ReportLine]) -> str:
    """Say in one line what the figures rest on."""
    summary = profile.summary
    readings = [_readings(summary.gpus, summary.host), _cost(profile)]
    parts = [", ".join(part for part in readings if part)]
    parts += [_peak(profile), *_joules(summary.gpus), _held(summary.gpus), _streams(profile)]
    # One that is merged with those across the end of the cell speaks of neither side.
    merged = any(device.coverage and device.coverage.merged_s for device in summary.devices)
    none = "no single reading" if merged else "no reading"
    if any(line.start == "n/a" for line in lines):
        parts.append(f"start n/a: {none} before the cell")
    if any(line.end == "n/a" for line in lines):
        parts.append(f"end n/a: {none} after the cell")
    return "; ".join(part for part in parts if part)


def _readings(gpus: Sequence[DeviceSummary], host: DeviceSummary | None) -> str:
    found = [gpu.coverage for gpu in gpus if gpu.coverage is not None]
    each = " a GPU" if len(found) > 1 else ""
    if not found:
        found = [host.coverage] if host is not None and host.coverage is not None else []
    if not found:
        return ""
    counts = sorted(coverage.samples for coverage in found)
    text = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    word = "sample" if text == "1" else "samples"
    about = "about " if any(coverage.estimated for coverage in found) else ""
    if text == "0":
        return f"no sample in the cell at {_rate(found[0])}"
    gap = duration(max(coverage.longest_gap_s for coverage in found))
    said = f"{about}{text} {word}{each} at {_rate(found[0])}"
    merged = max(coverage.merged_s for coverage in found)
    if merged:
        return f"{said}, older ones merged over up to {duration(merged)}, no gap over {gap}"
    return f"{said}, longest gap {gap}"


def _rate(coverage: Coverage) -> str:
    if coverage.period_s > 1:
        return f"one each {duration(coverage.period_s)}"
    return f"{round(1 / coverage.period_s, 1):g} Hz"


def _cost(profile: Profile) -> str:
    cost, wall = profile.summary.watch_cpu_s, profile.wall_s
    if cost is None:
        return ""
    if wall < 1:
        return f"watching cost {duration(cost)} of processor time"
    return f"watching cost {cost / wall * 100:.1f} % of a core"


def _peak(profile: Profile) -> str:
    """Say how well the peak of torch's memory is known, or why an exact one asked for is none."""
    figures = [f for gpu in profile.summary.gpus if (f := gpu.figure(_ALLOCATED)).peak is not None]
    told = clean(profile.peak_method)
    if not figures:
        # Without figures of torch there is no peak by its counters either.
        return f"--peak exact: {told.removesuffix(_BY_COUNTERS)}" if told else ""
    if told.startswith("exact"):
        return f"peak {told}"
    words = _by_counters(figures)
    return f"{words} ({told})" if told else words


def _by_counters(figures: Sequence[Figure]) -> str:
    if all(figure.peak_exact for figure in figures):
        return "peak exact"
    if any(figure.peak_low is not None for figure in figures):
        return "peak within bounds: torch's own peak is from before the cell"
    return "peak sampled"


def _joules(gpus: Sequence[DeviceSummary]) -> Iterator[str]:
    """Say where energy comes from, and how far it can be off."""
    for method, source in (("counter", "from the counter"), ("estimate", "estimated from power")):
        known = [
            gpu.energy for gpu in gpus
            if gpu.energy.joules is not None and gpu.energy.method == method
        ]
        bounds = [energy.bound_joules for energy in known if energy.bound_joules is not None]
        if not known:
            continue
        several = len(known) > 1
        text = f"{source}{'s' * several}" if method == "counter" else f"{source} samples"
        if bounds:
            text += f", {'each ' if several else ''}±{quantity(max(bounds), 'joules')}"
        if method == "estimate":
            reasons = dict.fromkeys(clean(energy.reason) for energy in known if energy.reason)
            text += f" ({'; '.join(reasons)})" if reasons else ""
        yield f"energy {text}"


def _held(gpus: Sequence[DeviceSummary]) -> str:
    """Say where the share of time with held clocks comes from."""
    methods = {gpu.throttling.method for gpu in gpus if gpu.throttling.ratio is not None}
    words = []
    if "counters" in methods:
        words.append("the driver's counters")
    sampled = dict.fromkeys(
        name for gpu in gpus for name in gpu.throttling.sampled
        if gpu.throttling.method == "counters" and gpu.throttling.by_reason.get(name)
    )
    if "samples" in methods or sampled:
        names = f" ({' and '.join(sampled)})" if sampled and "samples" not in methods else ""
        words.append(f"samples{names}")
    return f"throttling from {' and '.join(words)}" if words else ""


def _streams(profile: Profile) -> str:
    if profile.synchronised:
        return "waited for the GPU at the end (--sync)"
    if profile.streams == "busy":
        return "current streams busy at the end"
    if profile.streams == "idle":
        return "current streams idle at the end"
    torch = any(gpu.figure(_ALLOCATED).measured for gpu in profile.summary.gpus)
    return "streams at the end unknown" if torch else ""


def notes(gpus: Sequence[DeviceSummary]) -> tuple[str, ...]:
    """List what is odd about devices; the same note of several GPUs stands once."""
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        device = gpu.device
        told = [clean(note) for note in device.notes]
        if device.torch_assumed:
            told.append("which GPU is torch's is assumed until it initialises CUDA")
        for note in told:
            found.setdefault(note, []).append(clean(device.label))
    return tuple(
        note if len(labels) == len(gpus) else f"{', '.join(labels)}: {note}"
        for note, labels in found.items()
    )
