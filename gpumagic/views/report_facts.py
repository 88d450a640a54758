"""The single figures of a report, beside its table: energy, throttling, means, workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ..metrics import METRICS
from ..summary import DeviceSummary, Figure
from ..units import duration, quantity
from .report_findings import THROTTLE_METRICS, about
from .report_parts import Fact, Group
from .report_rows import TOO_SHORT
from .strips import Scale
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["facts"]

_ON_AVERAGE = "on average"
_WHILE_READ = "while it could be read"
_SM_ACTIVE = "gpu_sm_active_ratio"
# What the hardware counts beside SM activity; without that, none of it is there.
_ACTIVITY: Mapping[str, str] = {
    "gpu_tensor_active_ratio": "tensor cores",
    "gpu_dram_active_ratio": "memory bandwidth",
    "gpu_sm_occupancy_ratio": "occupancy",
    "gpu_pcie_receive_bytes_per_second": "PCIe to GPU",
}
_CORES = Scale(1, 2, "of a core")
_LEAST_HELD_S = 0.05


def facts(
    profile: Profile, gpus: Sequence[DeviceSummary], told: Collection[str], *, titled: bool
) -> tuple[Group, ...]:
    """List the single figures of each GPU and of the host; means stand in a line of their own.

    A reason that is among ``told``, or was given by an earlier figure, is not said again.
    """
    said = set(told)
    groups = []
    means: list[Fact] = []
    for gpu in gpus:
        strong = about(profile.findings, gpu.device)
        found = [_energy(gpu, said, strong), _throttled(gpu, said, strong)]
        found += _count(gpu.figure("torch_alloc_retries_count"), "allocator retries", strong)
        found += [
            fact for fact in _count(gpu.figure("torch_ooms_count"), "out of memory", strong)
            if fact.value != "0"
        ]
        means = _means(gpu, strong)
        title = clean(gpu.device.label) if titled else ""
        # Where all is absent, the table has said why.
        if any(fact.value != "n/a" or fact.rest for fact in found):
            groups.append(Group(title, tuple(found)))
            title = ""
        if titled and means:
            groups.append(Group(title, tuple(means), _averaged(gpu)))
    host = profile.summary.host
    counted, shares = _host(host, about(profile.findings, host.device)) if host else ([], [])
    if titled or not gpus:
        return (*groups, *_host_groups(counted, shares, "Host" if titled else ""))
    if counted:
        first = groups.pop(0).facts if groups else ()
        groups.append(Group("", (*first, *counted)))
    if means or shares:
        groups.append(Group("", (*means, *shares), _averaged(gpus[0]) if means else _ON_AVERAGE))
    return tuple(groups)


def _averaged(gpu: DeviceSummary) -> str:
    """Say of means that they are not of the whole cell, where that is so."""
    return f"{_ON_AVERAGE}, {_WHILE_READ}" if gpu.lost_s else _ON_AVERAGE


def _host_groups(counted: list[Fact], shares: list[Fact], title: str) -> list[Group]:
    groups = []
    if counted:
        groups.append(Group(title, tuple(counted)))
    if shares:
        groups.append(Group("" if counted else title, tuple(shares), _ON_AVERAGE))
    return groups


# -- of a GPU -------------------------------------------------------------------------------


def _absent(label: str, reason: str, said: set[str]) -> Fact:
    reason = TOO_SHORT if reason.startswith(TOO_SHORT) else clean(reason)
    known = reason in said or not reason
    said.add(reason)
    return Fact(label, "n/a", "" if known else f": {reason}")


def _energy(gpu: DeviceSummary, said: set[str], strong: Collection[str]) -> Fact:
    energy = gpu.energy
    if energy.joules is None:
        return _absent("energy", energy.reason, said)
    rest = f", mean {quantity(energy.mean_watts, 'watts')}" if energy.mean_watts else ""
    if energy.method == "estimate":
        rest += ", estimate"
    return Fact("energy", quantity(energy.joules, "joules"), rest,
                strong="gpu_energy_joules" in strong)


def _throttled(gpu: DeviceSummary, said: set[str], strong: Collection[str]) -> Fact:
    """Give the share of time in which clocks were held back, by what, and for how long."""
    held = gpu.throttling
    if held.ratio is None:
        return _absent("throttled", held.reason, said)
    names = sorted(held.by_reason, key=lambda name: -held.by_reason[name])
    timed = [(name, held.seconds.get(name, 0.0)) for name in names]
    if len(names) == 1:
        # One reason: its time is all of it, and stands behind its share and its name.
        words = [name + (f", {duration(seconds)}" if seconds else "") for name, seconds in timed]
    else:
        words = [name + (f" {duration(seconds)}" if seconds else "") for name, seconds in timed]
    share = "under 1 %" if 0 < held.ratio < 0.005 else quantity(held.ratio, "ratio")
    rest = f", {' and '.join(words)}" if words else ""
    if gpu.lost_s:
        rest += f" ({_WHILE_READ})"
    return Fact("throttled", share, rest, limited=held.ratio > 0,
                strong=not THROTTLE_METRICS.isdisjoint(strong))


def _means(gpu: DeviceSummary, strong: Collection[str]) -> list[Fact]:
    """List the means that have no row: the SM clock, and what the hardware counts."""
    clock = gpu.figure("gpu_sm_clock_hertz").mean
    found = []
    if clock is not None:
        found.append(Fact("SM clock", quantity(clock, "hertz"),
                          strong="gpu_sm_clock_hertz" in strong))
    if gpu.figure(_SM_ACTIVE).mean is None:
        return found
    for metric, label in _ACTIVITY.items():
        mean = gpu.figure(metric).mean
        if mean is not None:
            text = quantity(mean, METRICS[metric].unit)
            found.append(Fact(label, text, strong=metric in strong))
    return found


def _count(figure: Figure, label: str, strong: Collection[str]) -> list[Fact]:
    """Count what a counter grew by; without a reading at the start that is an upper bound."""
    if figure.end is None:
        return []
    marked = figure.metric in strong
    if figure.start is None and figure.end > 0:
        return [Fact(label, f"at most {figure.end:.0f}", strong=marked)]
    grown = figure.end - (figure.start or 0.0)
    # A counter that went back was reset by the user.
    return [Fact(label, f"{grown:.0f}", limited=grown > 0, strong=marked)] if grown >= 0 else []


# -- of the host ----------------------------------------------------------------------------


def _host(host: DeviceSummary, strong: Collection[str]) -> tuple[list[Fact], list[Fact]]:
    """Return what the quota held back, and the mean processor time of workers and main thread."""
    counted, shares = [], []
    quota = host.figure("container_cpu_throttled_seconds")
    if quota.start is not None and quota.end is not None:
        grown = quota.end - quota.start
        if grown >= _LEAST_HELD_S:
            counted.append(Fact("held back by the CPU quota", duration(grown), limited=True,
                                strong=quota.metric in strong))
    low, high = (host.figure(f"workers_{name}_cpu_ratio") for name in ("idlest", "busiest"))
    if low.mean is not None and high.mean is not None and host.figure("workers_count").peak:
        one, other = _CORES.number(low.mean), _CORES.number(high.mean)
        shares.append(Fact(
            "workers", one if one == other else f"{one} to {other}", f" {_CORES.unit} each",
            strong=low.metric in strong or high.metric in strong,
        ))
    main = host.figure("main_thread_cpu_ratio")
    if main.mean is not None:
        shares.append(Fact("main thread", _CORES.number(main.mean), f" {_CORES.unit}",
                           strong=main.metric in strong))
    return counted, shares
