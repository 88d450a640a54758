"""A GPU's memory has run out: who holds it, and what would make room."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from .bindings import names_bound_by, names_read_by
from .live import DeviceMemory, Holder
from .out_of_memory import (
    Request,
    errors_behind,
    find_out_of_memory,
    is_out_of_memory,
    message_of,
    parse,
)
from .shortage_advice import Evidence, advice_for, functions_of, unreachable_bytes

__all__ = [
    "Request",
    "Shortage",
    "is_out_of_memory",
    "names_bound_by",
    "names_read_by",
    "parse",
    "shortage_of",
]

Returnable = int | Callable[[Sequence[Holder]], int]
"""Cached bytes that can go back to the driver; or a function that says for some holders how
many bytes the driver gets once they are released, the cache included."""

_MOST_HOLDERS = 3
# A holder below this share of the largest is not one of the largest.
_LEAST_SHARE = 0.01
# Below this share of what was asked for, an old object is not what is in the way.
_OLD_SHARE = 0.05
_OLD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a request for memory failed, and what would help; bytes, ``None`` where not told.

    ``label`` is how the device is called (``GPU 0``). ``free_bytes`` was free when the request
    failed, within what this process may use (``total_bytes``). ``holders`` are the three
    largest. ``rebinding`` is a variable that the cell was about to bind again, with what its
    old object holds. ``gives_back_bytes`` is what ``%gpufree`` would return, and ``saved_bytes``
    what autograd may have saved for it, which would go as well. ``again_bytes`` of it the cell
    had made itself, and makes again. ``fits`` says whether the request would have room then
    (``None``: that depends on what was saved), ``lasts`` whether the whole cell would.
    ``remedy`` is a further command, and after it the cell would have room if ``remedy_fits``.
    ``advice`` are sentences with code between backticks.
    """

    device: str
    asked_bytes: int | None
    free_bytes: int | None
    holders: tuple[Holder, ...]
    rebinding: tuple[str, int] | None
    gives_back_bytes: int
    fits: bool | None
    advice: tuple[str, ...] = ()
    label: str = ""
    total_bytes: int | None = None
    saved_bytes: int = 0
    again_bytes: int = 0
    lasts: bool | None = None
    remedy: str = ""
    remedy_fits: bool | None = None

    @property
    def never(self) -> bool:
        """Whether the request is larger than all that this process may use."""
        asked, total = self.asked_bytes, self.total_bytes
        return asked is not None and total is not None and asked > total

    @property
    def short_bytes(self) -> int | None:
        """What is missing after ``%gpufree``, for the cell where only the request fits."""
        if self.asked_bytes is None or self.free_bytes is None:
            return None
        again = self.again_bytes if self.fits else 0
        return max(0, self.asked_bytes + again - self.free_bytes - self.gives_back_bytes)


def shortage_of(
    error: BaseException,
    device: DeviceMemory,
    *,
    bound: Sequence[str] = (),
    needed: Collection[str] = (),
    others_bytes: int | None = None,
    returnable: Returnable = 0,
    history: Sequence[DeviceMemory] = (),
    cell: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> Shortage:
    """Say why memory ran out on a device and what would make room.

    ``device`` was looked at after the error. ``bound`` are the names that the failed statement
    was about to bind, ``needed`` those that the cell reads: their release is not proposed.
    ``others_bytes`` is what other processes hold. ``history`` are earlier looks at the device,
    the oldest first. ``cell`` is the number of the failed cell: what its traceback holds is made
    again by the next try (0: that of every traceback is). Figures of the moment of failure
    come from torch's message, all else from ``device``.
    """
    failed = find_out_of_memory(error) or error
    request = parse(message_of(failed))
    free, total = _free(request, device), _total(request, device)
    goes = device.of("traceback", "cycle")
    again = tuple(h for h in goes if h.kind == "traceback" and cell in (0, h.cell))

    def returned(*more: Holder) -> int:
        going = (*goes, *more)
        if callable(returnable):
            return returnable(going)
        return sum(holder.bytes for holder in going) + returnable

    short = Shortage(
        device=device.device,
        asked_bytes=request.asked_bytes,
        free_bytes=free,
        holders=_largest(device),
        rebinding=None,
        gives_back_bytes=returned(),
        fits=None,
        label=_label(device),
        total_bytes=total,
        saved_bytes=_saved(device, goes),
        again_bytes=sum(holder.bytes for holder in again),
    )
    short = _judged(short)
    short = _with_remedy(short, device, set(bound), set(needed), returned)
    evidence = Evidence(
        request, device, short.label, request.asked_bytes, free, total,
        _others(request, device, others_bytes), again, solved=short.lasts is True,
        functions=frozenset(f for one in errors_behind(error) for f in functions_of(one)),
        history=history, environment=environment,
    )
    return replace(short, advice=advice_for(evidence))


# -- the figures ----------------------------------------------------------------------------


def _label(device: DeviceMemory) -> str:
    stats = device.allocator
    if stats is None or stats.nvml_index is None:
        return "the CPU" if device.device == "cpu" else device.device
    same = stats.nvml_index == stats.torch_index
    return f"GPU {stats.nvml_index}" + ("" if same else f" ({device.device})")


def _total(request: Request, device: DeviceMemory) -> int | None:
    total = request.total_bytes
    if total is None and device.allocator is not None:
        total = device.allocator.gpu_memory_total_bytes
    return min((x for x in (total, request.allowed_bytes) if x is not None), default=None)


def _free(request: Request, device: DeviceMemory) -> int | None:
    free, stats = request.free_bytes, device.allocator
    if free is None and stats is not None:
        used, total = stats.gpu_memory_used_bytes, stats.gpu_memory_total_bytes
        free = None if used is None or total is None else max(0, total - used)
    parts = (request.allocated_bytes, request.private_bytes or 0, request.unallocated_bytes or 0)
    if request.allowed_bytes is None or parts[0] is None or free is None:
        return free
    return max(0, min(free, request.allowed_bytes - sum(part or 0 for part in parts)))


def _others(request: Request, device: DeviceMemory, told: int | None) -> int | None:
    if told is not None:
        return told
    if device.allocator is not None:
        told = device.allocator.gpu_other_processes_memory_bytes
    return request.others_bytes if told is None else told


def _largest(device: DeviceMemory) -> tuple[Holder, ...]:
    """Return the largest holders, what no tensor explains among them."""
    unexplained = [
        Holder("unknown", (rest.name,), rest.detail, rest.bytes, 0) for rest in device.remainders
    ]
    found = sorted((*device.holders, *unexplained), key=lambda holder: -holder.bytes)
    least = found[0].bytes * _LEAST_SHARE if found else 0
    return tuple(h for h in found[:_MOST_HOLDERS] if h.bytes and h.bytes >= least)


def _saved(device: DeviceMemory, goes: Sequence[Holder]) -> int:
    """Return what autograd may have saved for tensors that go."""
    names = {holder.name for holder in goes}
    graphs = any(s.has_graph for s in device.storages if s.holder in names)
    return unreachable_bytes(device) if graphs else 0


# -- what would make room -------------------------------------------------------------------


def _judged(short: Shortage) -> Shortage:
    asked, free = short.asked_bytes, short.free_bytes
    if short.never:
        return replace(short, fits=False, lasts=False)
    if asked is None or free is None:
        return short
    room = free + short.gives_back_bytes
    fits = True if room >= asked else None if room + short.saved_bytes >= asked else False
    # What was saved goes and comes again with the rest.
    lasts = fits and room >= asked + short.again_bytes
    return replace(short, fits=fits, lasts=lasts)


def _with_remedy(
    short: Shortage,
    device: DeviceMemory,
    bound: set[str],
    needed: set[str],
    returned: Callable[..., int],
) -> Shortage:
    """Add the old object that is in the way, or else the least that would have to go."""
    asked, free = short.asked_bytes, short.free_bytes

    def enough(holders: Sequence[Holder]) -> bool | None:
        if asked is None or free is None:
            return None
        room = free + returned(*holders)
        return not short.never and room >= asked + short.again_bytes

    variables = [h for h in device.of("variable") if h.command and h.bytes]
    old = next((h for h in variables if bound & set(h.roots)), None)
    least = _OLD_BYTES if asked is None else asked * _OLD_SHARE
    if old is not None and old.bytes >= least:
        # The name that is bound stands first, with all that hold the same tensors.
        roots = sorted(old.roots, key=lambda root: root not in bound)
        return replace(
            short, rebinding=(roots[0], old.bytes), remedy=old.command, remedy_fits=enough([old])
        )
    if short.lasts is not False or short.never:
        return short
    groups = [[h] for h in variables if not needed & set(h.roots)]
    displayed = [h for h in device.of("output") if h.command]
    groups += [displayed] if displayed else []
    suffice = [group for group in groups if enough(group)]
    if not suffice:
        return short
    best = min(suffice, key=lambda group: sum(holder.bytes for holder in group))
    return replace(short, remedy=best[0].command, remedy_fits=True)
