"""torch's blocks: what no tensor explains, what pins the cache, and what would go back."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes_torch import MIB, FakeDevice, FakeHistory, FakeTorch
from gpumagic.errors import SettingError
from gpumagic.memory.blocks import BlockMap, read_blocks, write_snapshot
from gpumagic.memory.live import Remainder
from gpumagic.units import bytes_text

BASE = 0x7F00_0000_0000
NAMES = {"live": "active_allocated", "awaited": "active_pending_free", "free": "inactive"}

Given = tuple[str, int]


def segment(
    address: int, *blocks: Given, old: bool = False, pool: tuple[int, int] = (0, 0),
    expandable: bool = False, small: bool = False, device: int = 0,
) -> dict[str, Any]:
    """Return a segment as torch's snapshot has it; ``old``: as torch before 2.1 has it."""
    found: list[dict[str, Any]] = []
    at = address
    for state, size in blocks:
        block = {"size": size, "state": NAMES[state]}
        if not old:
            block |= {"address": at, "requested_size": size - 16, "frames": []}
        found.append(block)
        at += size
    given = {
        "device": device, "address": address, "total_size": at - address,
        "allocated_size": sum(size for state, size in blocks if state == "live"),
        "active_size": sum(size for state, size in blocks if state != "free"),
        "segment_type": "small" if small else "large", "stream": 0, "blocks": found,
    }
    if not old:
        given |= {"segment_pool_id": pool, "is_expandable": expandable}
    return given


def mapped(*segments: dict[str, Any]) -> BlockMap:
    """Return the map of some segments."""
    return BlockMap.of(segments)


def adds_up(blocks: BlockMap, addresses: list[int], device: int = 0) -> None:
    """Check that blocks of storages and what is unexplained are all that is active."""
    known = sum(blocks.size_of(device, a) or 0 for a in addresses)
    rest = sum(one.bytes for one in blocks.unexplained(device, addresses))
    segments = blocks.of_device(device)
    active = sum(b.size for s in segments for b in s.blocks if b.state != "free")
    assert known + rest == active
    assert blocks.reserved(device) == active + sum(s.free_bytes for s in segments)


@pytest.mark.parametrize("old", [False, True])
def test_a_block_is_found_by_any_of_its_addresses(old: bool) -> None:
    """An address lies in the block around it, with addresses of blocks or without."""
    blocks = mapped(
        segment(BASE + 64 * MIB, ("free", 4 * MIB), ("live", 16 * MIB), old=old),
        segment(BASE, ("live", 2 * MIB), ("awaited", 3 * MIB), ("free", 15 * MIB), old=old),
    )
    assert blocks.size_of(0, BASE) == 2 * MIB
    assert blocks.size_of(0, BASE + 2 * MIB - 1) == 2 * MIB
    assert blocks.size_of(0, BASE + 2 * MIB) == 3 * MIB
    assert blocks.size_of(0, BASE + 68 * MIB) == 16 * MIB
    for elsewhere in (BASE - 1, BASE + 5 * MIB, BASE + 64 * MIB, BASE + 84 * MIB, 0):
        assert blocks.size_of(0, elsewhere) is None
    assert blocks.size_of(1, BASE) is None
    assert (blocks.allocated(0), blocks.reserved(0)) == (18 * MIB, 40 * MIB)


def test_what_no_storage_lies_in_is_unexplained() -> None:
    """Each active block without a storage is of one remainder; all add up to what is active."""
    blocks = mapped(
        segment(BASE, ("live", 4 * MIB), ("live", 6 * MIB), ("free", 10 * MIB)),
        segment(BASE + 20 * MIB, ("awaited", 8 * MIB), ("live", 12 * MIB)),
        segment(BASE + 40 * MIB, ("live", 2 * MIB), ("live", 1 * MIB), ("free", 17 * MIB),
                pool=(0, 7)),
        segment(BASE, ("live", 50 * MIB), device=1),
    )
    addresses = [BASE, BASE + 100, BASE + 40 * MIB]
    assert blocks.unexplained(0, addresses) == (
        Remainder(
            "CUDA graphs' private pools", MIB,
            "of torch.cuda.CUDAGraph, or a torch.cuda.MemPool; 17.0 MiB more are cached for them",
        ),
        Remainder("freed, awaited by a stream", 8 * MIB, "until its work is done"),
        Remainder("not reachable from Python", 18 * MIB, "autograd's saved tensors or C++"),
    )
    adds_up(blocks, [BASE, BASE + 40 * MIB])
    adds_up(blocks, [])
    assert blocks.private_cached(0) == 17 * MIB


def test_what_is_explained_leaves_no_remainder() -> None:
    """Where a storage lies in every active block, nothing is unexplained."""
    blocks = mapped(segment(BASE, ("live", 4 * MIB), ("free", 16 * MIB)))
    assert blocks.unexplained(0, {BASE + MIB}) == ()
    assert blocks.unexplained(3, ()) == ()


def test_a_segment_goes_back_whole_or_not_at_all() -> None:
    """A plain segment returns once its last live block is free; private pools never do."""
    blocks = mapped(
        segment(BASE, ("live", 4 * MIB), ("free", 16 * MIB)),
        segment(BASE + 20 * MIB, ("live", 5 * MIB), ("live", 5 * MIB), ("free", 10 * MIB)),
        segment(BASE + 40 * MIB, ("free", 20 * MIB)),
        segment(BASE + 60 * MIB, ("awaited", 20 * MIB)),
        segment(BASE + 80 * MIB, ("free", 20 * MIB), pool=(1, 0)),
    )
    # empty_cache waits for the stream of what is awaited.
    assert blocks.would_return(0) == 40 * MIB
    assert blocks.would_return(0, [BASE]) == 60 * MIB
    assert blocks.would_return(0, [BASE + 20 * MIB]) == 40 * MIB
    assert blocks.would_return(0, [BASE + 20 * MIB, BASE + 25 * MIB]) == 60 * MIB
    assert blocks.would_return(1) == 0


def test_an_expandable_segment_goes_back_in_pieces() -> None:
    """Of an expandable segment whole pieces of 20 MiB return; the rest beside them is pinned."""
    blocks = mapped(
        segment(BASE, ("live", 50 * MIB), ("free", 60 * MIB), ("live", 10 * MIB),
                ("free", 20 * MIB), expandable=True),
        segment(BASE + 200 * MIB, ("free", 1 * MIB), ("live", 2 * MIB), ("free", 3 * MIB),
                expandable=True, small=True),
    )
    # 60 to 100 MiB and 120 to 140 MiB lie in free pieces, and 4 to 6 MiB of the small ones.
    assert blocks.would_return(0) == 62 * MIB
    pinned = blocks.pinned(0, {})
    assert pinned is not None
    assert pinned.bytes == 84 * MIB - 62 * MIB
    assert pinned.segments == 2
    assert blocks.would_return(0, [BASE + 110 * MIB]) == 82 * MIB


def test_the_names_that_return_most_come_first() -> None:
    """Names that pin are ordered by what their segment would return for each byte of them."""
    blocks = mapped(
        segment(BASE, ("live", 10 * MIB), ("free", 10 * MIB)),
        segment(BASE + 20 * MIB, ("live", 1 * MIB), ("free", 17 * MIB), ("live", 2 * MIB)),
        segment(BASE + 40 * MIB, ("live", MIB // 2), ("live", MIB // 2), ("free", 19 * MIB)),
        segment(BASE + 60 * MIB, ("live", 20 * MIB)),
        segment(BASE + 80 * MIB, ("free", 20 * MIB)),
    )
    names = {
        BASE: "cache", BASE + 20 * MIB: "x", BASE + 38 * MIB: "y",
        BASE + 40 * MIB: "batch[3]", BASE + 60 * MIB: "whole",
    }
    pinned = blocks.pinned(0, names)
    assert pinned is not None
    # A nameless block lies beside batch[3]: releasing that alone returns nothing.
    assert pinned.names == ("x", "y", "cache", "batch[3]")
    assert (pinned.bytes, pinned.segments) == (46 * MIB, 3)
    free = sum(s.free_bytes for s in blocks.of_device(0))
    assert pinned.bytes + blocks.would_return(0) + blocks.private_cached(0) == free


def test_nothing_is_pinned_where_no_block_is_in_use() -> None:
    """Segments that are wholly free or wholly used pin nothing, and nor do private pools."""
    blocks = mapped(
        segment(BASE, ("free", 20 * MIB)),
        segment(BASE + 20 * MIB, ("live", 20 * MIB)),
        segment(BASE + 40 * MIB, ("live", 2 * MIB), ("free", 18 * MIB), pool=(0, 1)),
        segment(BASE + 60 * MIB, ("awaited", 2 * MIB), ("free", 18 * MIB)),
    )
    assert blocks.pinned(0, {BASE + 20 * MIB: "x"}) is None
    assert blocks.largest_free(0) == 20 * MIB
    assert blocks.largest_free(1) == 0


def test_the_largest_free_block_is_not_a_private_pools() -> None:
    """What lies free in a CUDA graph's pool is of no use to other tensors."""
    blocks = mapped(
        segment(BASE, ("live", 2 * MIB), ("free", 7 * MIB), ("live", 2 * MIB), ("free", 9 * MIB)),
        segment(BASE + 40 * MIB, ("free", 80 * MIB), pool=(0, 1)),
    )
    assert blocks.largest_free(0) == 9 * MIB


# -- reading --------------------------------------------------------------------------------


@pytest.mark.parametrize("expandable", [False, True])
def test_the_map_agrees_with_torchs_counters(
    monkeypatch: pytest.MonkeyPatch, expandable: bool
) -> None:
    """Bytes of blocks and segments are the allocator's own figures, on each GPU."""
    history = FakeHistory(2)
    history.expandable = expandable
    torch = FakeTorch([FakeDevice("a"), FakeDevice("b")], history=history).install(monkeypatch)
    first, second = history.allocators
    kept = [first.alloc(size) for size in (3 * MIB, 700, 40 * MIB, 5 * MIB)]
    second.alloc(9 * MIB)
    first.free(kept[2], waits=True)
    first.free(kept[0])
    blocks, reason = read_blocks(torch.cuda)
    assert reason == ""
    assert blocks is not None
    for index, allocator in enumerate(history.allocators):
        assert blocks.allocated(index) == allocator.allocated
        assert blocks.reserved(index) == allocator.reserved
    adds_up(blocks, kept)
    adds_up(blocks, [], device=1)
    assert torch.calls == []


def test_torchs_history_is_left_out_where_it_can_be() -> None:
    """A torch that can tell its blocks without their history is asked for the blocks only."""
    asked: list[bool] = []

    def newer(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
        asked.append(include_traces)
        return [segment(BASE, ("live", MIB))]

    def older() -> list[dict[str, Any]]:
        return [segment(BASE, ("live", 2 * MIB), old=True)]

    for read, size in ((newer, MIB), (older, 2 * MIB)):
        blocks, _ = read_blocks(
            SimpleNamespace(is_initialized=lambda: True, memory_snapshot=read)
        )
        assert blocks is not None
        assert blocks.allocated(0) == size
    assert asked == [False]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"initialised": False}, "has not initialised CUDA"),
        ({"backend": "cudaMallocAsync"}, "cudaMallocAsync"),
        ({}, "could not be read"),
    ],
)
def test_no_blocks_have_a_reason(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], reason: str
) -> None:
    """Without CUDA, with another backend, or where torch refuses, there is a reason, no map."""
    torch = FakeTorch([FakeDevice("a")], **given).install(monkeypatch)
    blocks, why = read_blocks(torch.cuda)
    assert blocks is None
    assert reason in why
    assert torch.calls == []


def test_no_torch_is_a_reason_too() -> None:
    """Without torch.cuda there is no map."""
    assert read_blocks(None) == (None, "torch has not initialised CUDA in this process")


# -- the snapshot as a file -------------------------------------------------------------------


def test_a_snapshot_is_what_torch_would_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file holds torch's own snapshot, and the sentence says its size, place and stacks."""
    history = FakeHistory()
    FakeTorch([FakeDevice("0")], history=history).install(monkeypatch)
    file = tmp_path / "mem.pickle"
    said = write_snapshot(str(file))
    assert pickle.loads(file.read_bytes()) == history.snapshot()
    assert said.startswith(f"{bytes_text(file.stat().st_size)} written to {file};")
    assert "It has no stacks" in said


def test_a_snapshot_that_cannot_be_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not there, and another allocator, are errors that say so."""
    FakeTorch([FakeDevice("0")], history=FakeHistory()).install(monkeypatch)
    with pytest.raises(SettingError, match=r"could not be written: .*No such file"):
        write_snapshot(str(tmp_path / "none" / "mem.pickle"))
    FakeTorch([FakeDevice("0")], backend="cudaMallocAsync").install(monkeypatch)
    with pytest.raises(SettingError, match="keeps no snapshot"):
        write_snapshot(str(tmp_path / "mem.pickle"))
