"""torch's segments of device memory and the blocks in them, as a snapshot lists them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..units import MIB

__all__ = ["Block", "BlockState", "Segment", "segment_of"]

BlockState = Literal["live", "awaited", "free"]
"""``live`` in use; ``awaited`` freed, but a stream may still use it; ``free`` in the cache."""

_STATES: Mapping[str, BlockState] = {
    "active_allocated": "live",
    "active_awaiting_free": "awaited",
    "active_pending_free": "awaited",
}
_SHARED = (0, 0)
# An expandable segment goes back in pieces of this size, counted from its begin.
_LARGE_PIECE = 20 * MIB
_SMALL_PIECE = 2 * MIB


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

    def pinned_bytes(self) -> int:
        """Return the free bytes that live blocks keep from going back; none in private pools."""
        if self.private or not self.live():
            return 0
        if not self.expandable:
            return self.free_bytes
        awaited = sum(block.size for block in self.blocks if block.state == "awaited")
        # Where awaited and free blocks share a piece that can go, it counts as of the free ones.
        return max(0, self.free_bytes - max(0, self.returnable() - awaited))


def segment_of(given: Mapping[str, Any]) -> Segment:
    """Read one segment of a snapshot."""
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
