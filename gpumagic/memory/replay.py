"""The allocator's events played back: how high a GPU's allocated and reserved bytes rose.

An event names the bytes that were asked for, while ``allocated`` counts whole blocks. Blocks of
the small pool (requests up to 1 MiB) and of expandable segments are the request rounded up; a
larger request gets all of the free block that it was placed in if 1 MiB or less would remain.
The free blocks are therefore kept in step with the events, from the blocks of a snapshot on, and
the outcome counts as exact only if it ends at the blocks of the snapshot at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Blocks", "Peaks", "Rounding", "lowest_peaks", "replay"]

_MIN_BLOCK = 512
_SMALL = 1 << 20
_HELD = ("active_allocated",)
_WAITING = ("active_awaiting_free", "active_pending_free")


@dataclass(frozen=True, slots=True)
class Peaks:
    """The highest bytes of some events; without ``exact`` they were at least that high.

    The reserved bytes need no blocks, so they can be exact where the allocated ones are not.
    """

    allocated: int
    reserved: int
    allocated_exact: bool = False
    reserved_exact: bool = False


@dataclass(frozen=True, slots=True)
class Rounding:
    """How the allocator makes blocks of requests, from ``allocator_settings`` of a snapshot."""

    expandable: bool = False
    max_split: int = -1
    divisions: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Rounding:
        """Take what counts from the settings; what is absent is at its default."""
        given = settings.get("roundup_power2_divisions") or {}
        return cls(
            bool(settings.get("expandable_segments", False)),
            int(settings.get("max_split_size", -1)),
            tuple(int(given[key]) for key in sorted(given, key=int)),
        )

    def rounded(self, size: int) -> int:
        """Return the bytes of the smallest block for a request, as the allocator rounds it."""
        if size < _MIN_BLOCK:
            return _MIN_BLOCK
        if any(self.divisions):
            # One number for each power of two from 1 MiB on.
            power = size.bit_length() - 1
            count = self.divisions[min(max(power - 20, 0), len(self.divisions) - 1)]
            if count > 1 and size > _MIN_BLOCK * count:
                step = (1 << power) >> (count.bit_length() - 1)
                return -(-size // step) * step if step else 2 << power
        return -(-size // _MIN_BLOCK) * _MIN_BLOCK

    def splits(self, size: int, remaining: int) -> bool:
        """Tell whether a free block of the large pool is split for a block of ``size``."""
        limit = self.max_split
        return remaining > _SMALL and (limit < 0 or size < limit)


@dataclass(slots=True)
class Blocks:
    """One GPU's blocks by address: held by tensors, waiting for a stream, and free.

    ``free`` and ``starts`` are those of the large pool's segments.
    """

    held: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    free: dict[int, int] = field(default_factory=dict)
    starts: set[int] = field(default_factory=set)
    allocated: int = 0
    reserved: int = 0
    active: int = 0
    expandable: bool = False

    @classmethod
    def of(cls, segments: Iterable[Mapping[str, Any]], device: int) -> Blocks:
        """Read the segments of ``torch.cuda.memory._snapshot()``."""
        found = cls()
        for segment in segments:
            if segment.get("device", 0) != device:
                continue
            large = segment.get("segment_type") != "small"
            found.expandable |= bool(segment.get("is_expandable", False))
            found.reserved += segment["total_size"]
            found.active += segment.get("active_size", 0)
            address = segment["address"]
            if large:
                found.starts.add(address)
            for block in segment["blocks"]:
                size, state = block["size"], block["state"]
                if state in _HELD:
                    found.held[address] = size
                    found.allocated += size
                elif state in _WAITING:
                    found.waiting[address] = size
                elif large:
                    found.free[address] = size
                address += size
        return found


class _Mismatch(Exception):
    """The events do not fit the blocks that are thought to be there."""


def replay(
    begin: Blocks, events: Sequence[Mapping[str, Any]], end: Blocks, rounding: Rounding
) -> Peaks:
    """Play all events between two snapshots and return the peaks, both ends counted.

    ``begin`` is used up. Where the events do not lead from one snapshot to the other, the peaks
    are only known from below.
    """
    first = begin.allocated
    reserved, highest = begin.reserved, begin.reserved
    for event in events:
        reserved += _reserved_change(event)
        highest = max(highest, reserved)
    fits = reserved == end.reserved
    try:
        allocated = _Player(begin, rounding).play(events, end)
    except _Mismatch:
        lowest = lowest_peaks(events, end, rounding)
        allocated, exact = max(first, lowest.allocated), False
    else:
        exact = True
    if not fits:
        highest = lowest_peaks(events, end, rounding).reserved
    return Peaks(allocated, highest, exact, fits)


def _reserved_change(event: Mapping[str, Any]) -> int:
    action = event["action"]
    if action in ("segment_alloc", "segment_map"):
        return int(event["size"])
    if action in ("segment_free", "segment_unmap"):
        return -int(event["size"])
    return 0


class _Player:
    """Keep the blocks in step with the events."""

    def __init__(self, blocks: Blocks, rounding: Rounding) -> None:
        self._blocks = blocks
        self._rounding = rounding
        self._ends = {address + size: address for address, size in blocks.free.items()}
        # With expandable segments every block is what was asked for, rounded up.
        self._whole = rounding.expandable

    def play(self, events: Iterable[Mapping[str, Any]], end: Blocks) -> int:
        blocks, rounded = self._blocks, self._rounding.rounded
        held, waiting, whole = blocks.held, blocks.waiting, self._whole
        if blocks.expandable and not whole:
            raise _Mismatch("expandable segments beside others")
        level = highest = blocks.allocated
        for event in events:
            action, address, size = event["action"], event.get("addr", 0), event["size"]
            if action == "alloc":
                size = rounded(size)
                if not whole and size > _SMALL:
                    size = self._place(address, size)
                held[address] = size
                level += size
                if level > highest:
                    highest = level
            elif action == "free_requested":
                if address not in held:
                    raise _Mismatch(action)
                size = waiting[address] = held.pop(address)
                level -= size
            elif action == "free_completed":
                if address not in waiting:
                    raise _Mismatch(action)
                size = waiting.pop(address)
                if not whole:
                    self._give_back(address, size)
            elif whole:
                continue
            elif action == "segment_alloc":
                blocks.starts.add(address)
                self._put(address, size)
            elif action == "segment_free":
                self._unmake(address, size)
            elif action in ("segment_map", "segment_unmap"):
                raise _Mismatch(action)
        if held != end.held or level != end.allocated:
            raise _Mismatch("the end")
        return highest

    def _place(self, address: int, size: int) -> int:
        room = self._blocks.free.get(address, 0)
        if room < size:
            raise _Mismatch("alloc")
        self._take(address)
        if self._rounding.splits(size, room - size):
            self._put(address + size, room - size)
            return size
        return room

    def _give_back(self, address: int, size: int) -> None:
        # A small block lies in a segment whose free blocks are not kept: it touches none.
        if size <= _SMALL:
            return
        free, starts = self._blocks.free, self._blocks.starts
        if address not in starts and address in self._ends:
            before = self._ends[address]
            size += self._take(before)
            address = before
        after = address + size
        if after in free and after not in starts:
            size += self._take(after)
        self._put(address, size)

    def _unmake(self, address: int, size: int) -> None:
        if address not in self._blocks.starts:
            return  # of the small pool
        if self._blocks.free.get(address) != size:
            raise _Mismatch("segment_free")
        self._take(address)
        self._blocks.starts.discard(address)

    def _put(self, address: int, size: int) -> None:
        self._blocks.free[address] = size
        self._ends[address + size] = address

    def _take(self, address: int) -> int:
        size = self._blocks.free.pop(address)
        del self._ends[address + size]
        return size


def lowest_peaks(
    events: Sequence[Mapping[str, Any]], end: Blocks, rounding: Rounding
) -> Peaks:
    """Go back from a known end through the newest events; the peaks were at least that high.

    A level is the blocks held at a time: those still held at the end have their size from the
    snapshot, and the others were at least the request rounded up. Reserved bytes are exact as
    far back as the events go.
    """
    known = dict(end.held)
    allocated = highest = end.allocated
    reserved = highest_reserved = end.reserved
    for event in reversed(events):
        action = event["action"]
        if action == "alloc":
            allocated -= known.pop(event["addr"], 0) or rounding.rounded(event["size"])
        elif action == "free_requested":
            size = known[event["addr"]] = rounding.rounded(event["size"])
            allocated += size
            highest = max(highest, allocated)
        else:
            reserved -= _reserved_change(event)
            highest_reserved = max(highest_reserved, reserved)
    return Peaks(highest, highest_reserved)
