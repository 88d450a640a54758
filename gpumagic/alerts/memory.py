"""Alerts about memory that is nearly full or has just run out, and what is needed of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ..sample import Device
from ..units import bytes_of, bytes_text, quantity
from .alert import Alert
from .look import Look
from .words import count

__all__ = [
    "ALLOCATED",
    "LISTS",
    "NAMES",
    "OTHERS",
    "RESERVED",
    "USED",
    "Need",
    "allocator_retries",
    "near_full",
    "need_parts",
    "out_of_memory",
    "outside_torch",
    "part_s",
    "total_bytes",
]

USED = "gpu_memory_used_bytes"
_FREE = "gpu_memory_free_bytes"
ALLOCATED = "torch_allocated_bytes"
RESERVED = "torch_reserved_bytes"
OTHERS = "gpu_other_processes_memory_bytes"

NAMES = "`%gpumem` names what holds it."
LISTS = "`nvidia-smi` lists them."
_NEAR_FULL_S = 4
_MARGIN = 0.02
_OWN = "gpu_process_memory_bytes"
_DRIVERS = 0.1
_PROBES = 3
_HALF = 0.5
_FAILED_S = 2.0


@dataclass(frozen=True, slots=True)
class Need:
    """What was needed of a GPU's memory in one stretch: the least and the most of it."""

    floor: float
    top: float


def total_bytes(look: Look, device: Device) -> float | None:
    """Return the memory that processes can use: the driver's own part is not theirs."""
    used, free = look.present(USED, device), look.present(_FREE, device)
    if used is not None and free is not None and used + free > 0:
        return used + free
    return device.constants.get("gpu_memory_total_bytes")


def need_parts(look: Look, device: Device, seconds: float, parts: int) -> list[Need] | None:
    """Return what was needed in each part of the last seconds, ``None`` where it is not known.

    All that is used is needed but torch's cache, which torch gives back before it fails. It is
    read at other times than what the device uses: the least of some differences is taken, so
    that a segment that one of the two has seen and the other has not counts as none.
    """
    used = look.window(USED, device, seconds)
    if used is None:
        return None
    if look.present(RESERVED, device) is None:
        whole = look.parts(used, seconds, parts)
        return [Need(min(p), max(p)) for p in whole] if all(whole) else None
    reserved = look.window(RESERVED, device, seconds)
    allocated = look.window(ALLOCATED, device, seconds)
    if reserved is None or allocated is None:
        return None
    found = []
    begin, width = look.now - seconds, seconds / parts
    for index, live in enumerate(look.parts(allocated, seconds, parts)):
        outside = []
        for probe in range(_PROBES):
            time = begin + width * (index + (probe + 1) / _PROBES)
            there = bisect_right(used.times, time) - 1
            cached = bisect_right(reserved.times, time) - 1
            if there >= 0 and cached >= 0:
                outside.append(max(0.0, used.values[there] - reserved.values[cached]))
        if not outside or not live:
            return None
        found.append(Need(min(outside) + min(live), min(outside) + max(live)))
    return found


def part_s(look: Look, seconds: float) -> float:
    """Return the length of a part of a window: at least two readings' time."""
    return max(seconds, 2.0 * look.period(USED), 2.0 * look.period(ALLOCATED))


def outside_torch(look: Look, device: Device, own: float | None, torch: float, of: float) -> bool:
    """Tell whether torch here is known not to hold most of ``of``, and nothing says who does."""
    seen = look.present(RESERVED, device) is not None
    return seen and own is None and torch < _HALF * of


def _held_by_others(look: Look, device: Device, need: float) -> float | None:
    """Return what other processes hold if it is the larger part."""
    others = look.present(OTHERS, device)
    return others if others is not None and others >= _HALF * need else None


def near_full(look: Look) -> Iterator[Alert]:
    """95 % of a GPU's memory are needed, torch's cache not counted, for 4 s."""
    for device in look.gpus:
        on = look.on("near-full", device)
        used = look.present(USED, device)
        share = look.limits.near_full_ratio - (_MARGIN if on else 0.0)
        whole = device.constants.get("gpu_memory_total_bytes", 0.0)
        # The driver's own part, which is not in what is used, is less than that.
        if used is None or used < (share - _DRIVERS) * whole:
            continue
        total = total_bytes(look, device)
        if not total or used < share * total:
            continue
        # One part more: the first one can have been full at its end only.
        width = part_s(look, 1.0)
        parts = need_parts(look, device, width * (_NEAR_FULL_S + 1), _NEAR_FULL_S + 1)
        if parts is None and on:
            # After a hole, what has come since it decides whether it goes on.
            parts = need_parts(look, device, width, 1)
        if parts is None:
            continue
        tops = [part.top for part in parts]
        if (max(tops) if on else min(tops)) < share * total:
            continue
        need = min(max(tops), total)
        others = _held_by_others(look, device, need)
        text = f"{device.label} memory is {quantity(need / total, 'ratio')} full"
        if others is not None:
            text += f", {bytes_of(others, total)} held by other processes: {LISTS}"
        elif outside_torch(
            look, device, look.present(_OWN, device), look.present(RESERVED, device) or 0.0, need
        ):
            text += f": {bytes_of(need, total)} are needed, most of it outside this kernel's torch."
        else:
            text += f"{look.in_cell()}: {bytes_of(need, total)} are needed. {NAMES}"
        yield Alert(
            "near-full", device.id, text, "limit" if others is None else "hint",
            look.since("near-full", device, look.now - _NEAR_FULL_S * width), ((device.id, "mem"),),
            {"need_bytes": need, "total_bytes": total},
        )


# -- what has just happened -----------------------------------------------------------------


def _grown(look: Look, metric: str, device: Device, kind: str) -> list[tuple[float, float]]:
    """Return when a counter has just grown, and by how much each time.

    A counter that goes back was reset by the user.
    """
    seconds = look.limits.recent_s
    if seconds <= 0:
        return []
    if not look.on(kind, device):
        seconds = min(seconds, look.unseen_s)
    # The reading before the first of these is needed to tell whether that one is a growth.
    found = look.series(metric, device, seconds + max(1.0, 3.0 * look.period(metric)))
    values = found.values
    if not values or values.count(values[0]) == len(values):
        return []
    return [
        (time, after - before)
        for time, (before, after) in zip(found.times[1:], pairwise(values), strict=True)
        if after > before and time >= look.now - seconds
    ]


def _earlier(cells: dict[str, float]) -> str:
    """Say how often it happened in cells before the last one: `` (and twice in [13])``."""
    *others, _ = cells.items()
    if not others:
        return ""
    if len(others) > 1:
        return f" (and {_often(sum(n for _, n in others))} before)"
    (where, times), = others
    return f" (and {_often(times)}{where or ' before'})"


def _often(times: float) -> str:
    return "once" if times == 1 else "twice" if times == 2 else f"{count(round(times))} times"


def out_of_memory(look: Look) -> Iterator[Alert]:
    """An allocation of torch failed in the last 30 s."""
    for device in look.gpus:
        grown = _grown(look, "torch_ooms_count", device, "out-of-memory")
        if not grown:
            continue
        times, first, last = sum(n for _, n in grown), grown[0][0], grown[-1][0]
        cells = look.cells_of(grown, 2 * look.period("torch_ooms_count"))
        where, here = list(cells.items())[-1]
        often = f" ({here:.0f} times)" if here > 1 else ""
        text = f"CUDA out of memory on {device.label}{where}{often}{_earlier(cells)}"
        evidence = {"torch_ooms_count": times}
        held = look.recording.series(ALLOCATED, device.id, last - _FAILED_S, last).values
        total = device.constants.get("gpu_memory_total_bytes")
        if held and total:
            evidence |= {ALLOCATED: max(held), "total_bytes": total}
            text += f": tensors held {bytes_of(max(held), total)}"
        yield Alert(
            "out-of-memory", device.id, f"{text}. {NAMES}", "failed",
            look.since("out-of-memory", device, first), ((device.id, "mem"),), evidence,
        )


def allocator_retries(look: Look) -> Iterator[Alert]:
    """torch had to empty its cache in the last 30 s in order to go on."""
    for device in look.gpus:
        kind = "allocator-retries"
        grown = _grown(look, "torch_alloc_retries_count", device, kind)
        if not grown:
            continue
        times, first = sum(n for _, n in grown), grown[0][0]
        cells = look.cells_of(grown, 2 * look.period("torch_alloc_retries_count"))
        where, here = list(cells.items())[-1]
        used = look.present(USED, device)
        held = f", {bytes_text(used)} are used now" if used is not None else ""
        yield Alert(
            kind, device.id,
            f"{device.label} memory is short{where}: torch emptied its cache {_often(here)} to"
            f" go on{_earlier(cells)}{held}. {NAMES}",
            "limit", look.since(kind, device, first), ((device.id, "mem"),),
            {"torch_alloc_retries_count": times},
        )
