"""What several rules look at: the names of metrics, and figures made of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import duration, part_of, quantity
from .case import Case, Value, at_least

__all__ = [
    "CPU",
    "MAIN",
    "OTHERS_LOAD",
    "RECEIVE",
    "SM",
    "TRANSMIT",
    "UTIL",
    "cores_gone",
    "cores_idle",
    "fill",
    "idle_seconds",
    "inside",
    "main_thread",
    "own_gpus",
    "part_of_stretch",
    "percent",
    "shared",
]

UTIL = "gpu_utilization_ratio"
SM = "gpu_sm_active_ratio"
CPU = "process_cpu_ratio"
MAIN = "main_thread_cpu_ratio"
RECEIVE = "gpu_pcie_receive_bytes_per_second"
TRANSMIT = "gpu_pcie_transmit_bytes_per_second"
OTHERS_LOAD = "gpu_other_processes_utilization_ratio"

_ALLOCATED = "torch_allocated_bytes"
_OTHERS = "gpu_other_processes_memory_bytes"
_SHARED = 0.3
_ALL_OF_IT = 0.9
_CORES_LEFT = 0.5
_CORES_LEFT_RATIO = 0.1


def percent(value: float) -> str:
    """Write a share; one that rounds to nothing is said to be under 1 %."""
    return "under 1 %" if 0 < value < 0.005 else quantity(value, "ratio")


def inside(case: Case) -> str:
    """Name the GPU within a sentence."""
    return "the GPU" if case.subject == "The GPU" else case.subject


# -- the GPU --------------------------------------------------------------------------------


def fill(case: Case) -> list[Value]:
    """Return for each slot how much of the GPU its kernels filled while they ran."""
    pairs = zip(case.over_time(UTIL), case.over_time(SM), strict=True)
    return [
        None if util is None or sm is None or util < 0.005 else min(1.0, sm / util)
        for util, sm in pairs
    ]


def idle_seconds(case: Case, slots: Sequence[int]) -> float:
    """Return for how long nothing ran on the GPU in some slots."""
    util = case.over_time(UTIL)
    return sum(
        (1 - (util[i] or 0.0)) * (case.slots[i][1] - case.slots[i][0]) for i in slots
    )


def part_of_stretch(case: Case, seconds: float, slots: Sequence[int]) -> str:
    """Write a time within a stretch that is marked: all of it, or a part."""
    long = case.seconds(slots)
    return duration(seconds) if seconds >= _ALL_OF_IT * long else part_of(seconds, long)


def own_gpus(case: Case) -> int:
    """Return on how many GPUs this process had tensors."""
    return sum(1 for gpu in case.summary.gpus if gpu.figure(_ALLOCATED).peak)


def shared(case: Case) -> bool:
    """Tell whether a good part of what ran on the GPU was, or may have been, other processes'."""
    load, util = case.mean(OTHERS_LOAD), case.mean(UTIL)
    if load is None:
        # What those do who hold memory is not known in a short cell, nor by every driver.
        return at_least(case.figure(_OTHERS).peak, case.thresholds.other_process_bytes)
    return util is not None and load >= _SHARED * util > 0


# -- the host -------------------------------------------------------------------------------


def main_thread(case: Case, slots: Sequence[int]) -> Value:
    """Return how full the main thread's core was, or that of the whole process."""
    busy = case.mean_in(MAIN, slots)
    return case.mean_in(CPU, slots) if busy is None else busy


def _cores_left(case: Case, slots: Sequence[int]) -> Value:
    """Return the cores that nobody used in some slots, as far as this process may use them."""
    own, children = case.mean_in(CPU, slots), case.mean_in("children_cpu_ratio", slots)
    if case.cores is None or own is None:
        return None
    left = case.cores - own - (children or 0.0)
    machine, used = case.constant("host_cpu_count"), case.mean_in("host_cpu_ratio", slots)
    if machine is not None and used is not None:
        left = min(left, machine - used)
    return max(0.0, left)


def cores_gone(case: Case, slots: Sequence[int]) -> bool:
    """Tell whether there was no core left in some slots."""
    left, cores = _cores_left(case, slots), case.cores
    return (
        left is not None and cores is not None
        and left < max(_CORES_LEFT, _CORES_LEFT_RATIO * cores)
    )


def cores_idle(case: Case, slots: Sequence[int]) -> str:
    """Say how many cores were idle in some slots, or nothing if that is none."""
    left, cores = _cores_left(case, slots), case.cores
    if left is None or cores is None or round(left) < 1:
        return ""
    were = "was" if round(left) == 1 else "were"
    return f" while {left:.0f} of {cores:.0f} cores {were} idle"
