"""Rules about what the GPU waited for, and how much of it was used while it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..units import duration, part_of, quantity
from .case import Case, Value, mean_of
from .finding import Finding
from .memory import free_bytes, near_full

__all__ = [
    "copies_alone",
    "input_bound_no_workers",
    "input_bound_storage",
    "input_bound_workers",
    "launch_bound",
    "under_filled",
]

_UTIL = "gpu_utilization_ratio"
_SM = "gpu_sm_active_ratio"
_CPU = "process_cpu_ratio"
_MAIN = "main_thread_cpu_ratio"
_RECEIVE = "gpu_pcie_receive_bytes_per_second"
_TRANSMIT = "gpu_pcie_transmit_bytes_per_second"
_WORKERS = "workers_cpu_ratio"

_LEAST_UTIL = 0.02
_GROWS_BY = 1.25
_MOST_TIMES = 10
_SMALLEST_ACTIVATIONS = 16 * 2**20


def _percent(value: float) -> str:
    return "under 1 %" if 0 < value < 0.005 else quantity(value, "ratio")


def _at_most(value: Value, limit: float) -> bool:
    return value is not None and value <= limit


def _at_least(value: Value, limit: float) -> bool:
    return value is not None and value >= limit


# -- waiting for data -----------------------------------------------------------------------


def _waiting(case: Case, *places: int) -> list[int]:
    """List the slots in which the cell was in a loader while the GPU had time to spare."""
    limits = case.thresholds
    util, loader = case.over_time(_UTIL), case.places(*places)
    return case.where(
        lambda i: _at_least(loader[i], limits.loader_ratio)
        and _at_most(util[i], limits.idle_util_ratio)
    )


def _contrast(case: Case, slots: Sequence[int]) -> str:
    """Say how busy the GPU was in some slots and, if that differs, in the others."""
    metric, name = (_SM, "SM active") if case.mean(_SM) is not None else (_UTIL, "GPU-Util")
    inside = case.mean_in(metric, slots)
    if inside is None:
        return ""
    text = f"{name} was {_percent(inside)} there"
    others = [i for i in range(len(case.slots)) if i not in set(slots)]
    if case.seconds(others) >= max(1.0, 0.1 * case.wall_s):
        outside = case.mean_in(metric, others)
        if outside is not None and outside > 1.3 * inside + 0.05:
            text += f" and {_percent(outside)} in the rest"
    return text


def _per_worker(case: Case, slots: Sequence[int]) -> tuple[Value, Value]:
    """Return the number of DataLoader workers and how full each was on average."""
    count, busy = case.mean_in("workers_count", slots), case.mean_in(_WORKERS, slots)
    if not count:
        return None, None
    return count, busy / count if busy is not None else None


def _cores_left(case: Case) -> Value:
    """Return the cores that neither this process nor its children used, or ``None``."""
    own, children = case.mean(_CPU), case.mean("children_cpu_ratio")
    if case.cores is None or own is None:
        return None
    return max(0.0, case.cores - own - (children or 0.0))


def _cores_gone(case: Case) -> bool:
    left, cores = _cores_left(case), case.cores
    return left is not None and cores is not None and left < max(0.5, 0.1 * cores)


def _idle_cores(case: Case) -> str:
    left, cores = _cores_left(case), case.cores
    if left is None or cores is None or left < 1:
        return ""
    return f" while {left:.0f} of {cores:.0f} cores were idle"


def _more_workers(case: Case, count: float, waited: float) -> int | None:
    """Return the workers that would keep the GPU fed, as far as there are cores."""
    wanted = math.ceil(count / max(0.05, 1 - waited))
    most = int(case.cores) if case.cores is not None else wanted
    return min(wanted, most) if min(wanted, most) > count else None


def _data(
    case: Case, rule: str, slots: Sequence[int], cause: str, advice: str, tip: str,
    **figures: Value,
) -> Finding:
    waited = case.seconds(slots)
    contrast = _contrast(case, slots)
    known = {
        "waited_s": waited, _UTIL: case.mean_in(_UTIL, slots), _SM: case.mean_in(_SM, slots),
        **figures,
    }
    return Finding(
        rule, "waste",
        f"{case.subject} waited for data for {part_of(waited, case.wall_s)}.",
        f"{contrast}; {cause}." if contrast else f"{cause[0].upper()}{cause[1:]}.",
        advice,
        f"waited for data {duration(waited)}: {tip}",
        case.device, f"waits for data, {duration(waited)}", case.stretches(slots),
        (_UTIL, _SM, _WORKERS), {name: v for name, v in known.items() if v is not None},
    )


def _main_thread(case: Case, slots: Sequence[int]) -> Value:
    """Return how full the main thread's core was, or that of the whole process."""
    busy = case.mean_in(_MAIN, slots)
    return case.mean_in(_CPU, slots) if busy is None else busy


def input_bound_workers(case: Case) -> Finding | None:
    """The cell waits for the workers of a DataLoader, and they are at work."""
    slots = _waiting(case, 1)
    if not case.enough(slots):
        return None
    count, each = _per_worker(case, slots)
    if each is not None and each <= case.thresholds.idle_worker_ratio:
        return None
    waited = mean_of(case.places(1)[i] for i in slots) or 0.0
    if count is None:
        cause, more = "the cell was waiting for the workers of its DataLoader", None
    else:
        workers = "worker" if round(count) == 1 else "workers"
        cause = f"the {count:.0f} {workers} of the DataLoader "
        if each is None:
            cause += "did not keep up"
        else:
            own = "its" if round(count) == 1 else "their"
            full = each >= case.thresholds.full_worker_ratio
            state = (
                f"filled {own} cores ({each:.2f} each)" if full
                else f"{'was' if round(count) == 1 else 'were'} at work {_percent(each)} of the"
                " time"
            )
            if round(count) == 1 and full:
                state = f"filled its core ({each:.2f})"
            cause += state + _idle_cores(case)
        more = None if _cores_gone(case) else _more_workers(case, round(count), waited)
    if more is not None:
        advice = f"Try `DataLoader(..., num_workers={more})`"
        tip = f"try `num_workers={more}`"
        if waited > 0 and count is not None and more < count / max(0.05, 1 - waited):
            advice += ", which is all the cores there are, and cheaper transforms"
        advice += "."
    else:
        advice = (
            "Make the transforms cheaper, do them once and keep the result, or do them on the GPU."
        )
        tip = "cheaper transforms"
    return _data(
        case, "input-bound-workers", slots, cause, advice, tip,
        workers=count, worker_cpu_ratio=each, waiting_ratio=waited,
    )


def input_bound_storage(case: Case) -> Finding | None:
    """The cell waits for data, and whoever loads it is idle: storage or network is slow."""
    limits = case.thresholds
    slots = _waiting(case, 1)
    if case.enough(slots):
        count, each = _per_worker(case, slots)
        if count is None or each is None or each > limits.idle_worker_ratio:
            return None
        workers = "worker waited" if round(count) == 1 else "workers waited"
        cause = (
            f"the {count:.0f} {workers} too ({each:.2f} of a core each): for storage or the"
            " network"
        )
        more = min(64, 4 * round(count))
        advice = (
            f"More can be under way at once: try `DataLoader(..., num_workers={more},"
            " prefetch_factor=4)`; or keep the data on a local disk or in memory."
        )
        tip = "its workers wait for storage"
    else:
        slots = _waiting(case, 2)
        busy = _main_thread(case, slots)
        if not case.enough(slots) or busy is None or busy > limits.idle_worker_ratio:
            return None
        each, count = busy, 0.0
        cause = (
            f"this process loads its data itself and waited too ({busy:.2f} of a core): for"
            " storage or the network"
        )
        advice = (
            "Try `DataLoader(..., num_workers=8)`, so that much is read at once; or keep the data"
            " on a local disk or in memory."
        )
        tip = "try `num_workers=8`"
    pressure = case.grown("io_pressure_seconds")
    if pressure is not None and pressure >= 0.1 * case.wall_s:
        cause += f" (tasks waited for storage in {part_of(pressure, case.wall_s)})"
    return _data(
        case, "input-bound-storage", slots, cause, advice, tip,
        workers=count, worker_cpu_ratio=each, io_pressure_seconds=pressure,
    )


def input_bound_no_workers(case: Case) -> Finding | None:
    """The cell makes its data itself, on one full core, while the GPU waits."""
    limits = case.thresholds
    slots = _waiting(case, 2)
    if case.enough(slots):
        busy = _main_thread(case, slots)
        if busy is not None and busy <= limits.idle_worker_ratio:
            return None
        cause = "this process loaded its data itself, without workers"
        if busy is not None:
            cause += f", on one core ({busy:.2f})"
        share = mean_of(case.places(2)[i] for i in slots) or 0.0
    else:
        slots = _by_hand(case)
        if not case.enough(slots):
            return None
        busy = _main_thread(case, slots)
        cause = f"one core was full in this process ({busy:.2f}), outside of any model"
        share = 1 - (case.mean_in(_UTIL, slots) or 0.0)
    cause += _idle_cores(case)
    most = max(1, int(case.cores or 2) - 1)
    workers = min(most, max(2, math.ceil(share / max(0.02, 1 - share))))
    if case.cores is not None and case.cores < 2:
        advice = "Make the data once and keep it, or make it on the GPU: there is one core."
        tip = "make the data once, or on the GPU"
    else:
        advice = f"Try `DataLoader(..., num_workers={workers})`, or make the data on the GPU."
        tip = f"try `num_workers={workers}`"
    return _data(
        case, "input-bound-no-workers", slots, cause, advice, tip,
        process_cpu_ratio=busy, loading_ratio=share,
    )


def _fill(case: Case) -> list[Value]:
    """Return for each slot how much of the GPU its kernels filled while they ran."""
    pairs = zip(case.over_time(_UTIL), case.over_time(_SM), strict=True)
    return [
        None if util is None or sm is None or util < 0.005 else min(1.0, sm / util)
        for util, sm in pairs
    ]


def _by_hand(case: Case) -> list[int]:
    """List the slots with a full core outside of models and loaders, and large kernels.

    Large, because a core can also be full of launching small ones. Work on the GPU has to come
    again and again: a cell that prepares its data first and trains later does not wait.
    """
    limits = case.thresholds
    util, other = case.over_time(_UTIL), case.places(0)
    core = _CPU if case.mean(_MAIN) is None else _MAIN
    cpu = case.throughout(core)
    fill = _fill(case)
    slots = case.where(
        lambda i: _at_most(util[i], limits.idle_util_ratio)
        and _at_least(cpu[i], limits.full_core_ratio)
        and _at_least(other[i], limits.model_ratio)
    )
    worked = [i for i in slots if _at_least(fill[i], 0.0)]
    filled = mean_of(fill[i] for i in worked)
    if filled is None or filled < 2 * limits.small_kernels_ratio:
        return []
    return slots if len(worked) >= 0.5 * len(slots) else []


# -- launching ------------------------------------------------------------------------------


def launch_bound(case: Case) -> Finding | None:
    """One core is full with launching kernels that are over before the next one comes."""
    limits = case.thresholds
    util, sm = case.over_time(_UTIL), case.over_time(_SM)
    cpu, model, loader = case.throughout(_CPU), case.places(4), case.places(1, 2)
    fill = _fill(case)

    def launches(i: int) -> bool:
        if not (_LEAST_UTIL <= (util[i] or 0.0) <= limits.idle_util_ratio):
            return False
        if not _at_least(cpu[i], limits.full_core_ratio) or (sm[i] or 0.0) > limits.low_sm_ratio:
            return False
        if _at_least(loader[i], limits.loader_ratio):
            return False
        in_model = _at_least(model[i], limits.model_ratio)
        return in_model or _at_most(fill[i], limits.small_kernels_ratio)

    slots = case.where(launches)
    if not case.enough(slots):
        return None
    busy, active = case.mean_in(_UTIL, slots), case.mean_in(_SM, slots)
    core = case.mean_in(_CPU, slots)
    assert busy is not None
    evidence = f"A kernel ran {_percent(busy)} of the time (GPU-Util)"
    if active is not None:
        evidence += f", SM active was {_percent(active)}"
    evidence += f"; one core of this process was full ({core:.2f})."
    long = case.seconds(slots)
    return Finding(
        "launch-bound", "waste",
        f"{case.subject} waited for kernels to be launched, for {part_of(long, case.wall_s)}.",
        evidence,
        "Give it more work a launch: a larger batch, `torch.compile(model)`, or CUDA graphs"
        " (`mode=\"reduce-overhead\"`); fused optimizers (`fused=True`) help too.",
        f"launch-bound {duration(long)}: larger batch or `torch.compile`",
        case.device, f"launches, {duration(long)}", case.stretches(slots), (_UTIL, _SM),
        {n: v for n, v in ((_UTIL, busy), (_SM, active), (_CPU, core)) if v is not None},
    )


# -- GPU-Util misleads ----------------------------------------------------------------------


def copies_alone(case: Case) -> Finding | None:
    """GPU-Util is high while no kernel runs: it counts copies."""
    limits = case.thresholds
    util, sm = case.over_time(_UTIL), case.over_time(_SM)
    receive, transmit = case.over_time(_RECEIVE), case.over_time(_TRANSMIT)
    slots = case.where(
        lambda i: _at_least(util[i], limits.high_util_ratio)
        and _at_most(sm[i], limits.no_sm_ratio)
        and max(receive[i] or 0.0, transmit[i] or 0.0) >= limits.copies_bytes_per_second
    )
    if not case.enough(slots):
        return None
    busy, active = case.mean_in(_UTIL, slots), case.mean_in(_SM, slots)
    to, back = case.mean_in(_RECEIVE, slots) or 0.0, case.mean_in(_TRANSMIT, slots) or 0.0
    rate, way = (to, "to") if to >= back else (back, "from")
    assert busy is not None
    assert active is not None
    return Finding(
        "copies", "waste",
        f"GPU-Util said {_percent(busy)}, but {_inside(case)} only copied: SM active"
        f" {_percent(active)}.",
        f"{quantity(rate, 'bytes/s')} went over PCIe {way} the GPU"
        f" for {part_of(case.seconds(slots), case.wall_s)}.",
        "Keep the data on the GPU, or copy while it works: `pin_memory=True` and"
        " `.to(\"cuda\", non_blocking=True)` a batch ahead.",
        "only copied: keep data on the GPU",
        case.device, f"copies only, {duration(case.seconds(slots))}", case.stretches(slots),
        (_UTIL, _SM), {_UTIL: busy, _SM: active, _RECEIVE: to, _TRANSMIT: back},
    )


def _inside(case: Case) -> str:
    return "the GPU" if case.subject == "The GPU" else case.subject


def under_filled(case: Case) -> Finding | None:
    """GPU-Util is high and the kernels that run use little of the GPU."""
    limits = case.thresholds
    util, sm = case.over_time(_UTIL), case.over_time(_SM)
    slots = case.where(
        lambda i: _at_least(util[i], limits.high_util_ratio)
        and _at_most(sm[i], limits.low_sm_ratio)
    )
    if not case.enough(slots):
        return None
    busy, active = case.mean_in(_UTIL, slots), case.mean_in(_SM, slots)
    assert busy is not None
    assert active is not None
    long = case.seconds(slots)
    evidence = "Its kernels run without a break but fill little of the GPU"
    evidence += f", for {part_of(long, case.wall_s)}" if long < 0.95 * case.wall_s else ""
    room, advice, tip = _room(case), "", "more work a kernel"
    if room:
        advice, tip = f"Try a larger batch: {room}.", "larger batch"
    else:
        advice = "Give each kernel more work: more rows, fused operations, or several streams."
    return Finding(
        "under-filled", "waste",
        f"GPU-Util said {_percent(busy)}, but {_inside(case)} was mostly empty: SM active"
        f" {_percent(active)}.",
        f"{evidence}.", advice, f"SM active {_percent(active)}: {tip}",
        case.device, f"under-filled, {duration(long)}", case.stretches(slots), (_UTIL, _SM),
        {_UTIL: busy, _SM: active},
    )


def _room(case: Case) -> str:
    """Say how far a batch could grow in the memory that is left, or nothing."""
    free = free_bytes(case)
    if free is None or near_full(case) is not None:
        return ""
    figure = case.figure("torch_allocated_bytes")
    text = f"{quantity(free, 'bytes')} of memory are left"
    if figure.peak is None or figure.start is None:
        return text
    activations = figure.peak - figure.start
    if activations < _SMALLEST_ACTIVATIONS:
        return text
    times = 1 + 0.9 * free / activations
    if times < _GROWS_BY:
        return ""
    size = f"over {_MOST_TIMES} times" if times > _MOST_TIMES else f"about {times:.1f} times"
    return f"{text}, room for one {size} as large"
