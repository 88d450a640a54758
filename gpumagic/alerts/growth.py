"""The alert about memory that grows until it is full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..sample import Device
from ..units import quantity
from .alert import Alert
from .look import Look
from .memory import (
    ALLOCATED,
    LISTS,
    NAMES,
    OTHERS,
    RESERVED,
    USED,
    need_parts,
    outside_torch,
    part_s,
    total_bytes,
)
from .words import about

__all__ = ["filling"]

_OWN = "gpu_process_memory_bytes"
_SM = "gpu_sm_active_ratio"
_UTIL = "gpu_utilization_ratio"
_PARTS = 5
_LEAST_RISE, _LEAST_RISE_ON = 0.1, 0.06
_LARGEST_RISE, _LARGEST_RISE_ON = 0.45, 0.8
_LONGER = 1.5
_LARGE_STEPS = (1, 2, 4)
_LEVELS_ON = 0.25
_SOON_S = 90.0
_BEFORE_S = 120.0
_NOISE = 2.0 * 2**20
_WORKING_SM, _WORKING_UTIL = 0.1, 0.5
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class _Growth:
    """Memory that grows: over how many seconds, how fast, and until it is full."""

    seconds: float
    bytes_per_second: float
    seconds_to_full: float


def _can_have_grown(look: Look, device: Device, seconds: float, least: float) -> bool:
    """Tell in few steps whether there can be a growth of what the device has used."""
    values = look.series(USED, device, seconds).values
    return len(values) >= _PARTS and max(values[-2:]) - min(values[:2]) >= least


def _levels_off(floors: Sequence[float], left: float, on: bool) -> bool:
    """Tell whether a growth that slows down as it does now ends before the memory is full.

    Of two stretches of the same length the second one gained a part of what the first one did;
    each further one is taken to gain that part of the one before.
    """
    middle = (len(floors) + 1) // 2
    first, second = floors[middle] - floors[1], floors[-1] - floors[middle]
    if first <= 0 or second <= 0:
        return True
    kept = second / first + (_LEVELS_ON if on else 0.0)
    return kept < 1 and second * kept / (1 - kept) < left


def _was_there(look: Look, device: Device, seconds: float, top: float) -> bool:
    """Tell whether this cell has used as much before: then it comes and goes."""
    start = max([look.now - _BEFORE_S, *(s.start for s in look.running())])
    before = look.now - seconds
    if start >= before:
        return False
    values = look.series(USED, device, look.now - start)
    return any(v >= top for t, v in values if t < before)


def _growth(look: Look, device: Device, total: float, seconds: float) -> _Growth | None:
    """Find a growth of the floor that goes on from part to part of the last seconds."""
    limits, on = look.limits, look.on("filling", device)
    width = part_s(look, seconds / _PARTS)
    seconds = width * _PARTS
    # One part more: the growth can have begun at any time in the first one.
    parts = need_parts(look, device, seconds + width, _PARTS + 1)
    used = look.window(USED, device, seconds + width)
    if parts is None or used is None:
        return None
    taken = [min(p) for p in look.parts(used, seconds + width, _PARTS + 1) if p]
    gained = parts[-1].floor - parts[0].floor
    if gained <= 0 or gained < limits.growth_ratio * total:
        return None
    rises = [after.floor - before.floor for before, after in pairwise(parts)]
    # What levels off, one large allocation, and what comes down again are no growth.
    if min(rises) < (_LEAST_RISE_ON if on else _LEAST_RISE) * gained:
        return None
    if max(rises) > (_LARGEST_RISE_ON if on else _LARGEST_RISE) * gained:
        return None
    # The device fills by what it has used; tensors inside torch's cache take nothing of it.
    if len(taken) <= _PARTS or taken[-1] - taken[1] < _HALF * (parts[-1].floor - parts[1].floor):
        return None
    rate = (parts[-1].floor - parts[1].floor) / (width * (_PARTS - 1))
    left = max(0.0, total - parts[-1].top)
    if _levels_off([p.floor for p in parts], left, on):
        return None
    if not on and _was_there(look, device, seconds, used.values[-1]):
        return None
    return _Growth(seconds, rate, left / rate)


def _works(look: Look, device: Device, seconds: float) -> bool:
    """Tell whether the GPU works on what it holds; filling without work is loading, and ends."""
    active = look.mean(_SM, device, seconds)
    if active is not None:
        return active >= _WORKING_SM
    util = look.mean(_UTIL, device, seconds)
    return util is not None and util >= _WORKING_UTIL


def _gained(values: Sequence[float]) -> float:
    return values[-1] - values[0] if values else 0.0


def filling(look: Look) -> Iterator[Alert]:
    """Memory grows steadily for 10 s while the GPU works, and is full in less than 3 min."""
    limits = look.limits
    for device in look.gpus:
        total = device.constants.get("gpu_memory_total_bytes")
        windows = [limits.growth_s * steps for steps in _LARGE_STEPS]
        read = part_s(look, windows[0] / _PARTS) * (_PARTS + 1)
        if not total or not _can_have_grown(look, device, read, limits.growth_ratio * total):
            continue
        total = total_bytes(look, device) or total
        known = look.active.get(("filling", device.id))
        # What was found over the shorter time ends as fast.
        if known:
            windows = [known.evidence["grown_seconds"]]
        found = (_growth(look, device, total, seconds) for seconds in windows)
        growth = next((one for one in found if one is not None), None)
        within = limits.full_within_s * (_LONGER if look.on("filling", device) else 1.0)
        if growth is None or growth.seconds_to_full >= within:
            continue
        if not _works(look, device, growth.seconds):
            continue
        yield _filling(look, device, growth)


def _filling(look: Look, device: Device, growth: _Growth) -> Alert:
    rate = f"{quantity(growth.bytes_per_second, 'bytes/s')}"
    # What processes hold is read once a second.
    own = _gained(look.series(_OWN, device, growth.seconds).values)
    others = _gained(look.series(OTHERS, device, growth.seconds).values)
    soon = growth.seconds_to_full < _SOON_S
    full = f": full in {about(growth.seconds_to_full)}" if soon else ""
    used = _gained(look.series(USED, device, growth.seconds).values)
    torch = _gained(look.series(RESERVED, device, growth.seconds).values)
    listed = look.present(_OWN, device)
    if others > own and others >= _HALF * growth.bytes_per_second * growth.seconds:
        text = f"Other processes' memory on {device.label} grows {rate}{full}. {LISTS}"
    elif outside_torch(look, device, listed, torch, used):
        text = f"{device.label} memory grows {rate}, outside this kernel's torch{full}."
    else:
        kept = all(
            after >= before - _NOISE
            for metric in (USED, ALLOCATED)
            for before, after in pairwise(look.series(metric, device, growth.seconds).values)
        )
        none = " and none is released" if kept else ""
        text = f"{device.label} memory grows {rate}{look.in_cell()}{none}{full}. {NAMES}"
    return Alert(
        "filling", device.id, text, "limit",
        look.since("filling", device, look.now - growth.seconds), ((device.id, "mem"),),
        {
            "bytes_per_second": growth.bytes_per_second,
            "seconds_to_full": growth.seconds_to_full,
            "grown_seconds": growth.seconds,
        },
    )
