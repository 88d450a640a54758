"""torch's CUDA caching allocator, through the cheap nested call.

torch is never imported here: it is taken from ``sys.modules`` once the user has imported it
whole and has initialised CUDA. Nothing is initialised, synchronised or reset.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ..devices import cuda_module
from ..sample import Device, Gap, Sample
from . import Clock

__all__ = ["AllocatorSource", "allocator_values", "is_native", "torch_devices"]

_KEYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torch_allocated_bytes", ("allocated_bytes", "all", "current")),
    ("torch_reserved_bytes", ("reserved_bytes", "all", "current")),
    ("torch_active_bytes", ("active_bytes", "all", "current")),
    ("torch_requested_bytes", ("requested_bytes", "all", "current")),
    ("torch_inactive_split_bytes", ("inactive_split_bytes", "all", "current")),
    ("torch_allocated_peak_bytes", ("allocated_bytes", "all", "peak")),
    ("torch_reserved_peak_bytes", ("reserved_bytes", "all", "peak")),
    ("torch_alloc_retries_count", ("num_alloc_retries",)),
    ("torch_ooms_count", ("num_ooms",)),
)


# The cudaMallocAsync backend answers 0 for what it does not count.
_NATIVE_ONLY = frozenset({"torch_requested_bytes", "torch_inactive_split_bytes"})


def allocator_values(stats: Mapping[str, Any], *, native: bool = True) -> dict[str, float]:
    """Take METRICS' values out of ``torch.cuda.memory_stats_as_nested_dict()``.

    A figure that this torch does not keep is left out, as is one that only torch's own
    allocator keeps where ``native`` is false.
    """
    values: dict[str, float] = {}
    for name, path in _KEYS if native else [row for row in _KEYS if row[0] not in _NATIVE_ONLY]:
        value: Any = stats
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            values[name] = float(value)
    return values


def is_native(cuda: Any) -> bool:
    """Tell whether torch's own caching allocator is in use, and not cudaMallocAsync."""
    backend = getattr(cuda, "get_allocator_backend", None)
    return backend is None or backend() == "native"


def torch_devices(cuda: Any) -> list[tuple[int, str, str]]:
    """List torch's GPUs as index, UUID and name; CUDA has to be initialised.

    From ``torch.cuda.get_device_properties``, which makes no context once CUDA is up.
    """
    found = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    for index in range(cuda.device_count()):
        properties = cuda.get_device_properties(index)
        uuid = str(getattr(properties, "uuid", ""))
        if visible.startswith("MIG-"):
            # A process has one slice, and torch tells its UUID without saying that it is one.
            uuid = visible
        elif uuid and not uuid.startswith(("GPU-", "MIG-")):
            uuid = f"GPU-{uuid}"
        # torch before 2.5 does not tell the UUID; the index is then all there is.
        found.append((index, uuid or f"cuda:{index}", properties.name))
    return found


class AllocatorSource:
    """Read the allocator's figures of each of torch's GPUs."""

    name = "allocator"
    looking = False

    def __init__(self, *, period_s: float = 0.1) -> None:
        self.period_s = period_s
        self._devices: list[tuple[int, str, str]] = []
        self._described: list[Device] = []
        self._native = True

    def open(self) -> None:
        """Do nothing: torch can come at any time."""

    def devices(self) -> Sequence[Device]:
        """Return torch's GPUs once CUDA is initialised."""
        return self._described

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield a sample for each GPU of torch, or nothing before CUDA is initialised."""
        cuda = cuda_module()
        if cuda is None:
            return
        if not self._devices:
            self._devices = torch_devices(cuda)
            self._described = [
                Device(uuid, "gpu", name, torch_index=index) for index, uuid, name in self._devices
            ]
            self._native = is_native(cuda)
        for index, uuid, _ in self._devices:
            stats = cuda.memory_stats_as_nested_dict(index)
            if stats:
                values = allocator_values(stats, native=self._native)
                yield Sample(now(), uuid, self.name, values)

    def close(self) -> None:
        """Forget torch's devices."""
        self._devices = []
        self._described = []
