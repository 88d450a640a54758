"""What the figures of a report rest on, and the single figures beside the table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..summary import Coverage, DeviceSummary, Figure
from ..units import duration, quantity
from .report_parts import Fact, Group, ReportLine
from .report_rows import TOO_SHORT
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["evidence", "facts", "notes"]

_ALLOCATED = "torch_allocated_bytes"


# -- single figures -------------------------------------------------------------------------


def facts(
    gpus: Sequence[DeviceSummary], told: Collection[str], *, titled: bool
) -> tuple[Group, ...]:
    """List energy, throttling, clock and the allocator's failures of each GPU.

    A reason that is among ``told``, or was given by an earlier figure, is not said again.
    """
    said = set(told)
    groups = []
    for gpu in gpus:
        found = [_energy(gpu, said), _throttled(gpu, said), *_clock(gpu)]
        found += _count(gpu.figure("torch_alloc_retries_count"), "allocator retries")
        found += [
            fact for fact in _count(gpu.figure("torch_ooms_count"), "out of memory")
            if fact.value != "0"
        ]
        if all(fact.value == "n/a" and not fact.rest for fact in found):
            continue  # the table has said why
        groups.append(Group(clean(gpu.device.label) if titled else "", tuple(found)))
    return tuple(groups)


def _absent(label: str, reason: str, said: set[str]) -> Fact:
    reason = TOO_SHORT if reason.startswith(TOO_SHORT) else clean(reason)
    known = reason in said or not reason
    said.add(reason)
    return Fact(label, "n/a", "" if known else f": {reason}")


def _energy(gpu: DeviceSummary, said: set[str]) -> Fact:
    energy = gpu.energy
    if energy.joules is None:
        return _absent("energy", energy.reason, said)
    mean = f", mean {quantity(energy.mean_watts, 'watts')}" if energy.mean_watts else ""
    return Fact("energy", quantity(energy.joules, "joules"), mean)


def _throttled(gpu: DeviceSummary, said: set[str]) -> Fact:
    held = gpu.throttling
    if held.ratio is None:
        return _absent("throttled", held.reason, said)
    names = sorted(held.by_reason, key=lambda name: -held.by_reason[name])
    share = "under 1 %" if 0 < held.ratio < 0.005 else quantity(held.ratio, "ratio")
    rest = f", {' and '.join(names)}" if names else ""
    return Fact("throttled", share, rest + _while_read(gpu), limited=held.ratio > 0)


def _clock(gpu: DeviceSummary) -> list[Fact]:
    mean = gpu.figure("gpu_sm_clock_hertz").mean
    return [] if mean is None else [Fact(
        "SM clock", quantity(mean, "hertz"), ", mean" + _while_read(gpu)
    )]


def _while_read(gpu: DeviceSummary) -> str:
    """Say of a share or a mean that it is not of the whole cell, where that is so."""
    return " (while it could be read)" if gpu.lost_s else ""


def _count(figure: Figure, label: str) -> list[Fact]:
    """Count what a counter grew by; without a reading at the start that is an upper bound."""
    if figure.end is None:
        return []
    if figure.start is None and figure.end > 0:
        return [Fact(label, f"at most {figure.end:.0f}")]
    grown = figure.end - (figure.start or 0.0)
    # A counter that went back was reset by the user.
    return [Fact(label, f"{grown:.0f}", limited=grown > 0)] if grown >= 0 else []


# -- evidence -------------------------------------------------------------------------------


def evidence(profile: Profile, lines: Sequence[ReportLine]) -> str:
    """Say in one line what the figures rest on."""
    summary = profile.summary
    readings = [_readings(summary.gpus, summary.host), _cost(profile)]
    parts = [", ".join(part for part in readings if part)]
    parts += [_peak(summary.gpus), _joules(summary.gpus), _streams(profile)]
    if any(line.start == "n/a" for line in lines):
        parts.append("start n/a: no reading before the cell")
    if any(line.end == "n/a" for line in lines):
        parts.append("end n/a: no reading after the cell")
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
    if text == "0":
        return f"no sample in the cell at {_rate(found[0])}"
    gap = duration(max(coverage.longest_gap_s for coverage in found))
    return f"{text} {word}{each} at {_rate(found[0])}, longest gap {gap}"


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


def _peak(gpus: Sequence[DeviceSummary]) -> str:
    figures = [f for gpu in gpus if (f := gpu.figure(_ALLOCATED)).peak is not None]
    if not figures:
        return ""
    if all(figure.peak_exact for figure in figures):
        return "peak exact"
    if any(figure.peak_low is not None for figure in figures):
        return "peak within bounds: torch's own peak is from before the cell"
    return "peak sampled"


def _joules(gpus: Sequence[DeviceSummary]) -> str:
    bounds = [gpu.energy.bound_joules for gpu in gpus if gpu.energy.joules is not None]
    known = [bound for bound in bounds if bound is not None]
    if not known:
        return ""
    each = "counters, each " if len(known) > 1 else "counter, "
    return f"energy from the {each}±{quantity(max(known), 'joules')}"


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
