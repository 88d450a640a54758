"""Rules about a GPU that waits for this process: for launches, for its code, for a compiler."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import duration, part_of
from .case import Case, Value, at_least, at_most, mean_of
from .finding import Finding
from .signals import (
    CPU,
    MAIN,
    SM,
    UTIL,
    cores_idle,
    fill,
    idle_seconds,
    main_thread,
    own_gpus,
    part_of_stretch,
    percent,
    shared,
)

__all__ = ["compiling", "host_bound", "launch_bound"]

_OTHER, _MODEL, _COMPILER = 0, 4, 5
_LOADING = (1, 2)
_LEAST_UTIL = 0.02
_MOST_CORES = 1.5
_LARGE_KERNELS = 0.6
_UNFILLED_UTIL = 0.6
_OUTSIDE = 0.3
_COMES_AGAIN = 0.5


def _full_core(case: Case) -> list[bool]:
    """Tell for each slot whether one core, and not many more, was full in this process."""
    cpu = case.throughout(CPU)
    most = _MOST_CORES * max(1, own_gpus(case))
    return [value is not None and case.thresholds.full_core_ratio <= value <= most for value in cpu]


def launch_bound(case: Case) -> Finding | None:
    """One core is full with launching kernels that are over before the next one comes."""
    limits = case.thresholds
    if shared(case):
        return None
    util, sm, filled = case.over_time(UTIL), case.over_time(SM), fill(case)
    full, model, loader = _full_core(case), case.places(_MODEL), case.places(*_LOADING)
    # Without the SMs' counters, gaps have to be wide to be told from work on the CPU.
    most = limits.idle_util_ratio if case.mean(SM) is not None else _UNFILLED_UTIL

    def launches(i: int) -> bool:
        if not full[i] or not _LEAST_UTIL <= (util[i] or 0.0) <= most:
            return False
        if (sm[i] or 0.0) > limits.low_sm_ratio or at_least(loader[i], limits.loader_ratio):
            return False
        if at_least(filled[i], _LARGE_KERNELS):
            return False
        in_model = at_least(model[i], limits.model_ratio)
        return in_model or at_most(filled[i], limits.small_kernels_ratio)

    slots = case.where(launches)
    if not case.enough(slots):
        return None
    busy, active, core = (case.mean_in(metric, slots) for metric in (UTIL, SM, CPU))
    assert busy is not None
    evidence = f"A kernel ran {percent(busy)} of the time (GPU-Util)"
    if active is not None:
        evidence += f", SM active was {percent(active)}"
    evidence += f"; one core of this process was full ({core:.2f})."
    waited = idle_seconds(case, slots)
    return Finding(
        "launch-bound", "waste",
        f"{case.subject} waited for kernels to be launched, for {part_of(waited, case.wall_s)}.",
        evidence,
        "Give it more work a launch: a larger batch, `torch.compile(model)`, or CUDA graphs"
        " (`mode=\"reduce-overhead\"`); fused optimizers (`fused=True`) help too.",
        f"launch-bound {duration(waited)}: larger batch or `torch.compile`",
        case.device, f"waits for launches, {part_of_stretch(case, waited, slots)}",
        case.stretches(slots), (UTIL, SM),
        _known({"waited_s": waited, UTIL: busy, SM: active, CPU: core}),
    )


def _known(figures: dict[str, Value]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}


def host_bound(case: Case) -> Finding | None:
    """Code of this process fills one core between large kernels, outside of any loader."""
    slots = _by_hand(case)
    where = "outside of any model and loader"
    advice = (
        "If it makes data: `DataLoader` workers can. If it computes metrics, logs or saves: do"
        " that less often, or on the GPU."
    )
    if not case.enough(slots):
        slots = _in_model(case)
        where = "in a model or an optimizer"
        advice = (
            "If it computes on the CPU (transforms, `.cpu()`, offloading): do that on the GPU or"
            " in workers. If it launches kernels: a larger batch, or `torch.compile(model)`."
        )
        if not case.enough(slots):
            return None
    core, filled = main_thread(case, slots), fill(case)
    waited = idle_seconds(case, slots)
    ran = mean_of(filled[i] for i in slots)
    evidence = f"One core was full there ({core:.2f}), {where},{cores_idle(case, slots)}"
    if ran is not None:
        evidence += f"; kernels filled {percent(ran)} of the GPU while they ran"
    return Finding(
        "host-bound", "waste",
        f"{case.subject} waited for this process's own code for"
        f" {part_of(waited, case.wall_s)}.",
        f"{evidence}.", advice, f"waited for Python code {duration(waited)}",
        case.device, f"waits for this process, {part_of_stretch(case, waited, slots)}",
        case.stretches(slots), (UTIL, SM), _known({
            "waited_s": waited, UTIL: case.mean_in(UTIL, slots), SM: case.mean_in(SM, slots),
            MAIN: core,
        }),
    )


def _by_hand(case: Case) -> list[int]:
    """List the slots with a full core outside of models and loaders, and large kernels.

    Large, because a core can also be full of launching small ones; and outside for longer than
    a kernel runs, because a wait for the GPU (``.item()``) fills a core as well.
    """
    limits = case.thresholds
    util, other = case.over_time(UTIL), case.places(_OTHER)
    core = case.throughout(CPU if case.mean(MAIN) is None else MAIN)
    slots = case.where(
        lambda i: at_most(util[i], limits.idle_util_ratio)
        and at_least(core[i], limits.full_core_ratio)
        and at_least(other[i], limits.model_ratio)
        and (other[i] or 0.0) - (util[i] or 0.0) >= _OUTSIDE
    )
    return _with_kernels(case, slots, 2 * limits.small_kernels_ratio)


def _in_model(case: Case) -> list[int]:
    """List the slots with a full core in a model, and large kernels with gaps between them."""
    limits = case.thresholds
    util, model, filled = case.over_time(UTIL), case.places(_MODEL), fill(case)
    cpu = case.throughout(CPU)
    slots = case.where(
        lambda i: _LEAST_UTIL <= (util[i] or 0.0) <= _UNFILLED_UTIL
        and at_least(cpu[i], limits.full_core_ratio)
        and at_least(model[i], limits.model_ratio)
        and at_least(filled[i], _LARGE_KERNELS)
    )
    return [] if shared(case) else _with_kernels(case, slots, _LARGE_KERNELS)


def _with_kernels(case: Case, slots: Sequence[int], least: float) -> list[int]:
    """Keep slots only if work on the GPU comes again and again in them.

    A cell that prepares its data first and trains later does not wait.
    """
    filled = fill(case)
    worked = [i for i in slots if filled[i] is not None]
    mean = mean_of(filled[i] for i in worked)
    if mean is None or mean < least or len(worked) < _COMES_AGAIN * len(slots):
        return []
    return list(slots)


def compiling(case: Case) -> Finding | None:
    """A good part of the cell went into compiling a model."""
    share = case.places(_COMPILER)
    slots = case.where(lambda i: at_least(share[i], case.thresholds.model_ratio))
    if not case.enough(slots):
        return None
    long = case.seconds(slots)
    return Finding(
        "compiling", "hint",
        f"{case.subject} waited while a model was compiled, for {part_of(long, case.wall_s)}.",
        "",
        "Only the first run pays that, and each new shape: measure a later one, or mark what"
        " varies with `dynamic=True`.",
        f"compiling {duration(long)}", case.device, f"compiles, {duration(long)}",
        case.stretches(slots), (), {"compiling_s": long},
    )
