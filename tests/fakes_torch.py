"""A torch whose CUDA is a few numbers, for tests on machines without a GPU.

``FakeTorch(...).install(monkeypatch)`` puts ``torch`` and ``torch.cuda`` into ``sys.modules``.
Calls that would disturb a user are counted in ``calls``, and calls that make a context raise.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest

__all__ = [
    "MIB", "FakeAllocator", "FakeDevice", "FakeHistory", "FakeTorch", "OutOfMemory",
    "nested_stats",
]

MIB = 1 << 20


def nested_stats(
    *,
    allocated: int = 0,
    reserved: int = 0,
    active: int | None = None,
    requested: int | None = None,
    inactive_split: int = 0,
    retries: int = 0,
    ooms: int = 0,
) -> dict[str, Any]:
    """Return bytes in the shape of ``torch.cuda.memory_stats_as_nested_dict``."""

    def stat(current: int) -> dict[str, dict[str, int]]:
        one = {"current": current, "peak": current, "allocated": current, "freed": 0}
        none = dict.fromkeys(one, 0)
        return {"all": one, "small_pool": none, "large_pool": dict(one)}

    return {
        "allocated_bytes": stat(allocated),
        "reserved_bytes": stat(reserved),
        "active_bytes": stat(allocated if active is None else active),
        "requested_bytes": stat(allocated if requested is None else requested),
        "inactive_split_bytes": stat(inactive_split),
        "allocation": stat(1),
        "segment": stat(1),
        "active": stat(1),
        "inactive_split": stat(1),
        "oversize_allocations": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
        "oversize_segments": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
        "max_split_size": -1,
        "num_alloc_retries": retries,
        "num_ooms": ooms,
        "num_sync_all_streams": 0,
        "num_device_alloc": 1,
        "num_device_free": 0,
    }


class OutOfMemory(RuntimeError):
    """torch.OutOfMemoryError."""


class FakeHistory:
    """The history that torch's allocator keeps: one switch, and a ring of events of each GPU.

    ``snapshot`` copies the events before it writes its own, as torch 2.11 does.
    """

    def __init__(self, gpus: int = 1) -> None:
        self.on = False
        self.stacks = False
        self.switched: list[bool] = []
        self.on_snapshot: Callable[[], None] = lambda: None
        self.on_switch: Callable[[bool], None] = lambda on: None
        self.allocators = [FakeAllocator(self, index) for index in range(gpus)]
        self.expandable = False
        self.divisions = 0
        self._rings: list[deque[dict[str, Any]]] = [deque() for _ in range(gpus)]

    def record(
        self, enabled: str | None = "all", context: str | None = "all", stacks: str = "all",
        max_entries: int = sys.maxsize,
    ) -> None:
        """Switch it on or off; off lets all events go."""
        self.on_switch(enabled is not None)
        self.on, self.stacks = enabled is not None, context is not None
        self.switched.append(self.on)
        keep = [] if not self.on else [list(ring) for ring in self._rings]
        self._rings = [
            deque(keep[i] if keep else (), maxlen=min(max_entries, 1 << 40))
            for i in range(len(self._rings))
        ]

    def note(self, device: int, action: str, address: int, size: int) -> None:
        """Write an event, if it is on."""
        if not self.on:
            return
        event: dict[str, Any] = {
            "action": action, "size": size, "stream": 0, "time_us": int(time.time() * 1e6),
        }
        event["device_free" if action == "oom" else "addr"] = address
        if self.stacks and action != "snapshot":
            event["frames"] = [{"filename": "cell.py", "line": 1, "name": "f"}]
        self._rings[device].append(event)

    def snapshot(self) -> dict[str, Any]:
        """Return what ``torch.cuda.memory._snapshot()`` does."""
        self.on_snapshot()
        traces = [[dict(event) for event in ring] for ring in self._rings]
        segments = []
        for allocator in self.allocators:
            segments += allocator.segment_dicts()
            active = sum(b.size for s in allocator.segments for b in s.blocks if b.state != "free")
            self.note(allocator.device, "snapshot", 0, active)
        divisions = {str(1 << n): self.divisions for n in range(16)}
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": {
                "expandable_segments": self.expandable, "max_split_size": -1,
                "roundup_power2_divisions": divisions,
            },
        }


@dataclass
class _Block:
    size: int
    state: str = "free"
    requested: int = 0


@dataclass
class _Segment:
    address: int
    large: bool
    blocks: list[_Block]

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    def find(self, address: int) -> int:
        at = self.address
        for index, block in enumerate(self.blocks):
            if at == address:
                return index
            at += block.size
        return -1

    def address_of(self, index: int) -> int:
        return self.address + sum(block.size for block in self.blocks[:index])

    def merge(self) -> None:
        merged: list[_Block] = []
        for block in self.blocks:
            if merged and merged[-1].state == block.state == "free":
                merged[-1].size += block.size
            else:
                merged.append(block)
        self.blocks[:] = merged


class FakeAllocator:
    """A caching allocator of one GPU with torch's rules for blocks, segments and counters.

    Segments lie next to each other, which real ones can. ``levels`` are the allocated bytes
    after each call, ``reserved_levels`` the reserved ones.
    """

    def __init__(self, history: FakeHistory, device: int = 0) -> None:
        self.device = device
        self.segments: list[_Segment] = []
        self.levels = [0]
        self.reserved_levels = [0]
        self.peak = self.reserved_peak = 0
        self._history = history
        self._top = (device + 1) << 44

    @property
    def allocated(self) -> int:
        """Bytes in blocks of live tensors."""
        return sum(b.size for s in self.segments for b in s.blocks if b.state == "live")

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def reset_peaks(self) -> None:
        """Do as ``torch.cuda.reset_peak_memory_stats``."""
        self.peak, self.reserved_peak = self.allocated, self.reserved

    def stats(self) -> dict[str, Any]:
        """Return the nested stats with their peaks."""
        found = nested_stats(allocated=self.allocated, reserved=self.reserved)
        found["allocated_bytes"]["all"]["peak"] = self.peak
        found["reserved_bytes"]["all"]["peak"] = self.reserved_peak
        return found

    def alloc(self, requested: int) -> int:
        """Allocate and return the address."""
        size = self._rounded(requested)
        large = size > MIB
        segment, index = self._best(size, large)
        if segment is None:
            segment = self._more(size, large)
            index = len(segment.blocks) - 1
        block = segment.blocks[index]
        rest = block.size - size
        if rest and (self._history.expandable or not large or rest > MIB):
            segment.blocks.insert(index + 1, _Block(rest))
            block.size = size
        block.state, block.requested = "live", requested
        address = segment.address_of(index)
        self._history.note(self.device, "alloc", address, requested)
        self._noted()
        return address

    def free(self, address: int, *, waits: bool = False) -> None:
        """Free a block; one that waits for a stream is given back by ``complete``."""
        _, block = self._at(address)
        block.state = "waiting"
        self._history.note(self.device, "free_requested", address, block.requested)
        self._noted()
        if not waits:
            self.complete(address)

    def complete(self, address: int) -> None:
        """Give a block back that no stream uses any more."""
        segment, block = self._at(address)
        assert block.state == "waiting"
        self._history.note(self.device, "free_completed", address, block.requested)
        block.state = "free"
        segment.merge()

    def empty_cache(self) -> None:
        """Give free segments back to the driver, and free ends of expandable ones."""
        for segment in list(self.segments):
            last = segment.blocks[-1]
            if last.state != "free" or (len(segment.blocks) > 1 and not self._history.expandable):
                continue
            address = segment.address_of(len(segment.blocks) - 1)
            action = "segment_unmap" if self._history.expandable else "segment_free"
            self._history.note(self.device, action, address, last.size)
            segment.blocks.pop()
            if not segment.blocks:
                self.segments.remove(segment)
            self._noted()

    def fail(self, size: int) -> None:
        """Run out of memory, as torch does: it empties its cache first."""
        self.empty_cache()
        self._history.note(self.device, "oom", 12345, size)
        raise OutOfMemory(size)

    def segment_dicts(self) -> list[dict[str, Any]]:
        """Return the segments as a snapshot has them."""
        names = {"live": "active_allocated", "waiting": "active_pending_free", "free": "inactive"}
        return [
            {
                "device": self.device, "address": segment.address, "total_size": segment.size,
                "active_size": sum(b.size for b in segment.blocks if b.state != "free"),
                "segment_type": "large" if segment.large else "small",
                "is_expandable": self._history.expandable,
                "blocks": [{"size": b.size, "state": names[b.state]} for b in segment.blocks],
            }
            for segment in self.segments
        ]

    def _rounded(self, size: int) -> int:
        divisions = self._history.divisions
        if divisions > 1 and size > 512 * divisions:
            floor = 1 << (size.bit_length() - 1)
            steps = [floor + floor * n // divisions for n in range(divisions + 1)]
            return next(step for step in steps if step >= size)
        return max(512, (size + 511) // 512 * 512)

    def _best(self, size: int, large: bool) -> tuple[_Segment | None, int]:
        fits: list[tuple[int, _Segment, int]] = [
            (block.size, segment, index)
            for segment in self.segments if segment.large == large
            for index, block in enumerate(segment.blocks)
            if block.state == "free" and block.size >= size
        ]
        if not fits:
            return None, 0
        _, segment, index = min(fits, key=lambda fit: (fit[0], fit[1].address))
        return segment, index

    def _more(self, size: int, large: bool) -> _Segment:
        step = 20 * MIB if large and size < 10 * MIB else 2 * MIB
        amount = (size + step - 1) // step * step
        mine = [segment for segment in self.segments if segment.large == large]
        if self._history.expandable and mine:
            segment = mine[0]
            last = segment.blocks[-1]
            missing = size - (last.size if last.state == "free" else 0)
            amount = (missing + step - 1) // step * step
            end = segment.address + segment.size
            self._history.note(self.device, "segment_map", end, amount)
            segment.blocks.append(_Block(amount))
            segment.merge()
        else:
            action = "segment_map" if self._history.expandable else "segment_alloc"
            room = 1 << 38 if self._history.expandable else amount
            segment = _Segment(self._top, large, [_Block(amount)])
            self._history.note(self.device, action, self._top, amount)
            self._top += room
            self.segments.append(segment)
        self._noted()
        return segment

    def _at(self, address: int) -> tuple[_Segment, _Block]:
        for segment in self.segments:
            index = segment.find(address)
            if index >= 0:
                return segment, segment.blocks[index]
        raise AssertionError(f"nothing at {address}")

    def _noted(self) -> None:
        self.levels.append(self.allocated)
        self.reserved_levels.append(self.reserved)
        self.peak = max(self.peak, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)


@dataclass
class FakeDevice:
    """One GPU of torch; its UUID stands without ``GPU-``, as torch writes it."""

    uuid: str
    stats: dict[str, Any] = field(default_factory=nested_stats)
    name: str = "NVIDIA H200"


class FakeTorch:
    """torch with some GPUs; ``on_empty_cache`` changes their stats as the real one would.

    With a ``history`` the stats come from its allocators.
    """

    def __init__(
        self,
        devices: Sequence[FakeDevice] = (),
        *,
        version: str = "2.11.0+cu130",
        cuda: str | None = "13.0",
        initialised: bool = True,
        backend: str = "native",
        on_empty_cache: Callable[[], None] = lambda: None,
        history: FakeHistory | None = None,
    ) -> None:
        self.devices = list(devices)
        self.calls: list[str] = []
        self.initialised = initialised
        self.history = history
        self._on_empty_cache = on_empty_cache
        self.torch = ModuleType("torch")
        self.cuda = ModuleType("torch.cuda")
        vars(self.torch).update(
            __version__=version, version=SimpleNamespace(cuda=cuda, hip=None), cuda=self.cuda
        )
        vars(self.cuda).update(
            is_initialized=lambda: self.initialised,
            device_count=lambda: len(self.devices),
            get_device_properties=self._properties,
            memory_stats_as_nested_dict=self._stats,
            get_allocator_backend=lambda: backend,
            empty_cache=self._empty_cache,
            ipc_collect=lambda: self.calls.append("ipc_collect"),
            mem_get_info=self._makes_a_context,
            is_available=self._makes_a_context,
            init=self._makes_a_context,
            synchronize=self._makes_a_context,
            reset_peak_memory_stats=self._makes_a_context,
        )

        if history is not None:
            vars(self.torch)["_C"] = SimpleNamespace(_cuda_isHistoryEnabled=lambda: history.on)
            vars(self.cuda)["memory"] = SimpleNamespace(
                _record_memory_history=self._record, _snapshot=history.snapshot
            )

    def _stats(self, index: int) -> dict[str, Any]:
        if not self.initialised:
            return {}
        if self.history is not None:
            return self.history.allocators[index].stats()
        return self.devices[index].stats

    def _record(self, *args: Any, **kwargs: Any) -> None:
        if not self.initialised:
            self._makes_a_context()
        assert self.history is not None
        self.history.record(*args, **kwargs)

    def _properties(self, index: int) -> SimpleNamespace:
        if not self.initialised:
            self._makes_a_context()
        device = self.devices[index]
        return SimpleNamespace(uuid=device.uuid, name=device.name)

    def _empty_cache(self) -> None:
        self.calls.append("empty_cache")
        self._on_empty_cache()

    def _makes_a_context(self, *_: object) -> NoReturn:
        raise AssertionError("this call makes a CUDA context or disturbs the user's work")

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
        """Make this the imported torch for the length of a test."""
        monkeypatch.setitem(sys.modules, "torch", self.torch)
        monkeypatch.setitem(sys.modules, "torch.cuda", self.cuda)
        return self
