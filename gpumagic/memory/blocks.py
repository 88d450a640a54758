"""torch's blocks of device memory, compared with what Python can reach.

torch takes segments from the driver and cuts them into blocks. A snapshot lists both, so it
tells what no tensor explains, what keeps the cache from going back, and what would go back.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..devices import cuda_module
from ..errors import SettingError
from ..sources.allocator import is_native
from ..units import bytes_text
from .live import PinnedCache, Remainder
from .segments import Block, Segment, segment_of
from .stats import why_no_cuda

__all__ = ["BlockMap", "read_blocks", "write_snapshot"]

_MOST_NAMES = 5


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
        return cls(tuple(map(segment_of, segments)))

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
        Where no block is awaited, ``would_return`` of nothing, this and ``private_cached`` add up
        to what is cached. ``None`` where nothing is pinned.
        """
        named: dict[Block, list[str]] = {}
        for address, name in names.items():
            block = self._block_at(device_index, address)
            if block is not None:
                named.setdefault(block, []).append(name)
        pins: list[tuple[bool, float, list[str]]] = []
        total = 0
        for segment in self.of_device(device_index):
            pinned = segment.pinned_bytes()
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
