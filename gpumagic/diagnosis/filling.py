"""Rules about GPU-Util that misleads: the GPU runs all the time and does little."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import MIB, duration, part_of, quantity
from .case import Case, at_least, at_most
from .finding import Finding
from .memory import free_bytes, near_full
from .signals import (
    RECEIVE,
    SM,
    TRANSMIT,
    UTIL,
    inside,
    own_gpus,
    percent,
    shared,
)

__all__ = ["copies_alone", "under_filled"]

_ALLOCATED = "torch_allocated_bytes"
_GROWS_BY = 1.25
_MOST_TIMES = 10
_SMALLEST_ACTIVATIONS = 16 * MIB
_LOADED = 0.5


def _copying(case: Case) -> list[bool]:
    """Tell for each slot whether copies, and no kernel to speak of, kept the GPU busy."""
    limits = case.thresholds
    rows = zip(
        case.over_time(SM), case.over_time(RECEIVE), case.over_time(TRANSMIT), strict=True
    )
    return [
        at_most(sm, limits.no_sm_ratio)
        and max(receive or 0.0, transmit or 0.0) >= limits.copies_bytes_per_second
        for sm, receive, transmit in rows
    ]


def _loading(case: Case, rate: float, slots: Sequence[int]) -> bool:
    """Tell whether what was copied has stayed: a model or data being put on the GPU."""
    figure = case.figure(_ALLOCATED)
    if figure.start is None or figure.end is None:
        return False
    return figure.end - figure.start >= _LOADED * rate * case.seconds(slots)


def copies_alone(case: Case) -> Finding | None:
    """GPU-Util is high while no kernel runs: it counts copies. Not while something is loaded."""
    limits = case.thresholds
    util, copying = case.over_time(UTIL), _copying(case)
    slots = case.where(lambda i: copying[i] and at_least(util[i], limits.high_util_ratio))
    if not case.enough(slots):
        return None
    busy, active = case.mean_in(UTIL, slots), case.mean_in(SM, slots)
    to, back = case.mean_in(RECEIVE, slots) or 0.0, case.mean_in(TRANSMIT, slots) or 0.0
    if _loading(case, to, slots):
        return None
    rate, way = (to, "to") if to >= back else (back, "from")
    assert busy is not None
    assert active is not None
    long = case.seconds(slots)
    return Finding(
        "copies", "waste",
        f"GPU-Util said {percent(busy)}, but {inside(case)} only copied: SM active"
        f" {percent(active)}.",
        f"{quantity(rate, 'bytes/s')} went over PCIe {way} the GPU"
        f" for {part_of(long, case.wall_s)}.",
        "Keep the data on the GPU, or copy while it works: `pin_memory=True` and"
        " `.to(\"cuda\", non_blocking=True)` a batch ahead.",
        "only copied: keep data on the GPU",
        case.device, f"copies only, {duration(long)}", case.stretches(slots),
        (UTIL, SM), {UTIL: busy, SM: active, RECEIVE: to, TRANSMIT: back},
    )


def under_filled(case: Case) -> Finding | None:
    """GPU-Util is high and the kernels that run use little of the GPU."""
    limits = case.thresholds
    util, sm, copying = case.over_time(UTIL), case.over_time(SM), _copying(case)
    slots = case.where(
        lambda i: not copying[i]
        and at_least(util[i], limits.high_util_ratio)
        and at_most(sm[i], limits.low_sm_ratio)
    )
    if not case.enough(slots) or shared(case):
        return None
    busy, active = case.mean_in(UTIL, slots), case.mean_in(SM, slots)
    assert busy is not None
    assert active is not None
    long = case.seconds(slots)
    evidence = "Its kernels run without a break but fill little of the GPU"
    evidence += f", for {part_of(long, case.wall_s)}" if long < 0.95 * case.wall_s else ""
    room, tip = _room(case), "more work a kernel"
    if room:
        advice, tip = f"Try a larger batch: {room}.", "larger batch"
    else:
        advice = "Give each kernel more work: more rows, fused operations, or several streams."
    if own_gpus(case) > 1:
        advice += " It can also be waiting for another GPU: a wait for NCCL is a kernel."
    return Finding(
        "under-filled", "waste",
        f"GPU-Util said {percent(busy)}, but {inside(case)} was mostly empty: SM active"
        f" {percent(active)}.",
        f"{evidence}.", advice, f"SM active {percent(active)}: {tip}",
        case.device, f"under-filled, {duration(long)}", case.stretches(slots), (UTIL, SM),
        {UTIL: busy, SM: active},
    )


def _room(case: Case) -> str:
    """Say how far a batch could grow in the memory that is left, or nothing."""
    free = free_bytes(case)
    if free is None or near_full(case) is not None:
        return ""
    figure = case.figure(_ALLOCATED)
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
