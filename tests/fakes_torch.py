"""A torch whose CUDA is a few numbers, for tests on machines without a GPU.

``FakeTorch(...).install(monkeypatch)`` puts ``torch`` and ``torch.cuda`` into ``sys.modules``.
Calls that would disturb a user are counted in ``calls``, and calls that make a context raise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest

__all__ = ["MIB", "FakeDevice", "FakeTorch", "nested_stats"]

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


@dataclass
class FakeDevice:
    """One GPU of torch; its UUID stands without ``GPU-``, as torch writes it."""

    uuid: str
    stats: dict[str, Any] = field(default_factory=nested_stats)
    name: str = "NVIDIA H200"


class FakeTorch:
    """torch with some GPUs; ``on_empty_cache`` changes their stats as the real one would."""

    def __init__(
        self,
        devices: Sequence[FakeDevice] = (),
        *,
        version: str = "2.11.0+cu130",
        cuda: str | None = "13.0",
        initialised: bool = True,
        backend: str = "native",
        on_empty_cache: Callable[[], None] = lambda: None,
    ) -> None:
        self.devices = list(devices)
        self.calls: list[str] = []
        self.initialised = initialised
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
            memory_stats_as_nested_dict=lambda i: self.devices[i].stats if self.initialised else {},
            get_allocator_backend=lambda: backend,
            empty_cache=self._empty_cache,
            ipc_collect=lambda: self.calls.append("ipc_collect"),
            mem_get_info=self._makes_a_context,
            is_available=self._makes_a_context,
            init=self._makes_a_context,
            synchronize=self._makes_a_context,
            reset_peak_memory_stats=self._makes_a_context,
        )

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
