"""torch's blocks of device memory, compared with what Python can reach.

torch takes segments from the driver and cuts them into blocks. A snapshot lists both, so it
tells what no tensor explains, what keeps the cache from going back, and what would go back.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..devices import cuda_module
from ..errors import SettingError
from ..sources.allocator import is_native
from ..units import MIB, bytes_text
from .live import PinnedCache, Remainder
from .stats import why_no_cuda

__all__ = ["Block", "BlockMap", "BlockState", "Segment", "read_blocks", "write_snapshot"]

BlockState = str
"""``live`` in use; ``awaited`` freed, but a stream may still use it; ``free`` in the cache."""

_STATES = {
    "active_allocated": "live",
    "active_awaiting_free": "awaited",
    "active_pending_free": "awaited",
}
_SHARED = (0, 0)
# An expandable segment goes back in pieces of this size, counted from its begin.
_LARGE_PIECE = 20 * MIB
_SMALL_PIECE = 2 * MIB
_MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment; ``requested`` is what was asked for, ``size`` what was given."""

    address: int
    size: int
    requested: int
    state: BlockState

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class Segment:
    """What torch holds from the driver in one piece, with its blocks by address.

    ``private`` says that it is of a pool of its own: of a CUDA graph, or a
    ``torch.cuda.MemPool``. The pieces of an expandable segment that are mapped in a row are one
    Segment each; what is not mapped is in none.
    """

    device: int
    address: int
    size: int
    large: bool
    private: bool
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def free_bytes(self) -> int:
        """Bytes in the cache."""
        return sum(block.size for block in self.blocks if block.state == "free")

    def live(self, freed: Collection[Block] = ()) -> tuple[Block, ...]:
        """Return the blocks in use, but those in ``freed``."""
        return tuple(b for b in self.blocks if b.state == "live" and b not in freed)

    def returnable(self, freed: Collection[Block] = ()) -> int:
        """Return the bytes that ``empty_cache`` could give back once some blocks are free.

        It waits for the streams first, so awaited blocks count as free. A plain segment goes
        as a whole or not at all; of an expandable one, whole pieces of 20 MiB (2 MiB in the
        small pool) go.
        """
        live = self.live(freed)
        if not live:
            return self.size
        if not self.expandable:
            return 0
        return sum(self._pieces(begin, end) for begin, end in self._gaps(live))

    def _gaps(self, live: Sequence[Block]) -> Iterator[tuple[int, int]]:
        begin = self.address
        for block in live:
            yield begin, block.address
            begin = block.end
        yield begin, self.address + self.size

    def _pieces(self, begin: int, end: int) -> int:
        piece = _LARGE_PIECE if self.large else _SMALL_PIECE
        first = -(-(begin - self.address) // piece)
        # The last piece is as long as what is mapped.
        last = (end - self.address) // piece
        return max(0, last - first) * piece


@dataclass(frozen=True, slots=True)
class BlockMap:
    """All segments of torch's allocator at one moment, of all GPUs.

    For each GPU, the sizes of live blocks add up to torch's allocated bytes, those of live and
    awaited blocks to its active bytes, and those of segments to its reserved bytes.
    """

    segments: tuple[Segment, ...] = ()
    _ordered: dict[int, tuple[tuple[int, ...], tuple[Block, ...]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        active: dict[int, list[Block]] = {}
        for segment in self.segments:
            found = (block for block in segment.blocks if block.state != "free")
            active.setdefault(segment.device, []).extend(found)
        for device, blocks in active.items():
            blocks.sort(key=lambda block: block.address)
            self._ordered[device] = tuple(b.address for b in blocks), tuple(blocks)

    @classmethod
    def of(cls, segments: Iterable[Mapping[str, Any]]) -> BlockMap:
        """Read the segments of a snapshot of torch's."""
        return cls(tuple(map(_segment, segments)))

    # -- sums --------------------------------------------------------------------------------

    def of_device(self, device_index: int) -> tuple[Segment, ...]:
        """Return the segments of ``cuda:device_index``."""
        return tuple(s for s in self.segments if s.device == device_index)

    def allocated(self, device_index: int) -> int:
        """Return the bytes of live blocks."""
        return sum(b.size for s in self.of_device(device_index) for b in s.live())

    def reserved(self, device_index: int) -> int:
        """Return the bytes of all segments."""
        return sum(segment.size for segment in self.of_device(device_index))

    def private_cached(self, device_index: int) -> int:
        """Return the free bytes of private pools, which only their CUDA graphs can use."""
        return sum(s.free_bytes for s in self.of_device(device_index) if s.private)

    def largest_free(self, device_index: int) -> int:
        """Return the bytes of the largest free block outside private pools."""
        sizes = (
            block.size
            for segment in self.of_device(device_index) if not segment.private
            for block in segment.blocks if block.state == "free"
        )
        return max(sizes, default=0)

    # -- compared with what Python reaches ---------------------------------------------------

    def _block_at(self, device_index: int, address: int) -> Block | None:
        addresses, blocks = self._ordered.get(device_index, ((), ()))
        position = bisect_right(addresses, address) - 1
        if position < 0 or address >= blocks[position].end:
            return None
        return blocks[position]

    def _blocks_at(self, device_index: int, addresses: Iterable[int]) -> set[Block]:
        found = (self._block_at(device_index, address) for address in addresses)
        return {block for block in found if block is not None}

    def size_of(self, device_index: int, address: int) -> int | None:
        """Return the bytes of the active block in which an address lies, ``None`` if in none."""
        block = self._block_at(device_index, address)
        return None if block is None else block.size

    def unexplained(
        self, device_index: int, addresses: Collection[int]
    ) -> tuple[Remainder, ...]:
        """Return what is active and holds none of some storages, by what it may be.

        ``addresses`` are the storages' first bytes. The blocks that hold one and what is
        returned here add up to torch's active bytes.
        """
        known = self._blocks_at(device_index, addresses)
        private = awaited = others = 0
        for segment in self.of_device(device_index):
            for block in segment.blocks:
                if block.state == "free" or block in known:
                    continue
                if segment.private:
                    private += block.size
                elif block.state == "awaited":
                    awaited += block.size
                else:
                    others += block.size
        cached = self.private_cached(device_index)
        kept = f"; {bytes_text(cached)} more are cached for them" if cached else ""
        found = (
            Remainder(
                "CUDA graphs' private pools", private,
                f"of torch.cuda.CUDAGraph, or a torch.cuda.MemPool{kept}",
            ),
            Remainder("freed, awaited by a stream", awaited, "until its work is done"),
            Remainder("not reachable from Python", others, "autograd's saved tensors or C++"),
        )
        return tuple(one for one in found if one.bytes)

    def pinned(self, device_index: int, names: Mapping[int, str]) -> PinnedCache | None:
        """Return the cache that cannot go back since live blocks lie in the same segments.

        ``names`` are those of storages by their first byte. Those come first whose release
        would return most for each byte; segments in which a live block has no name come last.
        What is cached is ``would_return`` of nothing less what is awaited there, this, and
        ``private_cached``. ``None`` where nothing is pinned.
        """
        named: dict[Block, list[str]] = {}
        for address, name in names.items():
            block = self._block_at(device_index, address)
            if block is not None:
                named.setdefault(block, []).append(name)
        pins: list[tuple[bool, float, list[str]]] = []
        total = 0
        for segment in self.of_device(device_index):
            pinned = _pinned(segment)
            if not pinned:
                continue
            total += pinned
            live = sorted(segment.live(), key=lambda block: block.size)
            texts = [name for block in live for name in named.get(block, ()) if name]
            gain = pinned / sum(block.size for block in live)
            pins.append((all(any(named.get(b, ())) for b in live), gain, texts))
        if not total:
            return None
        pins.sort(key=lambda pin: pin[:2], reverse=True)
        ordered = dict.fromkeys(name for _, _, texts in pins for name in texts)
        return PinnedCache(total, len(pins), tuple(ordered)[:_MOST_NAMES])

    def would_return(self, device_index: int, addresses: Collection[int] = ()) -> int:
        """Return the bytes that the driver would get after some storages are freed.

        ``addresses`` are the storages' first bytes; then ``torch.cuda.empty_cache`` gives back
        the segments without a live block, what is cached already included. Private pools stay.
        """
        freed = self._blocks_at(device_index, addresses)
        shared = (s for s in self.of_device(device_index) if not s.private)
        return sum(segment.returnable(freed) for segment in shared)


def _pinned(segment: Segment) -> int:
    """Return the free bytes of a segment that live blocks keep from going back."""
    if segment.private or not segment.live():
        return 0
    if not segment.expandable:
        return segment.free_bytes
    awaited = sum(block.size for block in segment.blocks if block.state == "awaited")
    # Where awaited and free blocks share a piece that can go, it counts as of the free ones.
    return max(0, segment.free_bytes - max(0, segment.returnable() - awaited))


def _segment(given: Mapping[str, Any]) -> Segment:
    address = int(given["address"])
    blocks = []
    at = address
    for block in given["blocks"]:
        # torch before 2.1 does not tell where its blocks begin: they lie in a row.
        at = int(block.get("address", at))
        size = int(block["size"])
        state = _STATES.get(block["state"], "free")
        blocks.append(Block(at, size, int(block.get("requested_size", size)), state))
        at += size
    return Segment(
        int(given.get("device", 0)),
        address,
        int(given["total_size"]),
        given.get("segment_type") != "small",
        tuple(given.get("segment_pool_id", _SHARED)) != _SHARED,
        bool(given.get("is_expandable", False)),
        tuple(blocks),
    )


def read_blocks(cuda: Any) -> tuple[BlockMap | None, str]:
    """Return all of torch's blocks and "", or ``None`` and why there are none.

    ``cuda`` is torch.cuda (``None`` where it is not there); from
    ``torch.cuda.memory_snapshot``, which needs no context of its own and waits for nothing.
    """
    if cuda is None or not cuda.is_initialized():
        return None, "torch has not initialised CUDA in this process"
    if not is_native(cuda):
        return None, "the cudaMallocAsync allocator does not tell its blocks"
    try:
        return BlockMap.of(_snapshot(cuda)), ""
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return None, f"torch's blocks could not be read ({first})"


def _snapshot(cuda: Any) -> Iterable[Mapping[str, Any]]:
    read = getattr(cuda, "memory_snapshot", None)
    if read is None:
        found: Iterable[Mapping[str, Any]] = cuda.memory._snapshot()["segments"]
        return found
    # A history that the user has on is copied with the blocks unless torch can leave it out.
    code = getattr(read, "__code__", None)
    if code is not None and "include_traces" in code.co_varnames[: code.co_argcount]:
        found = read(include_traces=False)
    else:
        found = read()
    return found


def write_snapshot(path: str) -> str:
    """Write the allocator's snapshot into a file and return a sentence about it.

    The format is that of ``torch.cuda.memory._dump_snapshot``, which
    https://pytorch.org/memory_viz reads. Stacks are in it if the user keeps a history
    (``torch.cuda.memory._record_memory_history``). Raises
    :class:`~gpumagic.errors.SettingError` where there is none or the file cannot be written.
    """
    cuda = cuda_module()
    if cuda is None:
        raise SettingError(f"there is no snapshot: {why_no_cuda()}")
    if not is_native(cuda):
        raise SettingError("the cudaMallocAsync allocator keeps no snapshot")
    try:
        snapshot = cuda.memory._snapshot()
        with open(path, "wb") as file:
            pickle.dump(snapshot, file)
            size = file.tell()
    except (OSError, RuntimeError) as error:
        raise SettingError(f"the snapshot could not be written: {error}") from None
    with_stacks = any(
        event.get("frames") for trace in snapshot.get("device_traces", ()) for event in trace
    )
    hint = "" if with_stacks else (
        " It has no stacks: torch.cuda.memory._record_memory_history() keeps them from then on."
    )
    return (
        f"{bytes_text(size)} written to {path}; https://pytorch.org/memory_viz shows it.{hint}"
    )
