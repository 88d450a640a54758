"""A quick look at torch's allocator from the thread that runs the cells."""

from __future__ import annotations

import time
from collections.abc import Callable

from .devices import cuda_module
from .recording import Recording
from .sample import Sample
from .sources.allocator import allocator_values, is_native, torch_devices

__all__ = ["AllocatorLook"]

_SOURCE = "allocator"
_LONGEST_S = 0.1e-3


class AllocatorLook:
    """Tell whether torch has allocated on a GPU since the last look.

    Each look is also a reading: between two cells it is the end of one and the start of the
    other, so that no reading from within another cell has to stand for them.
    """

    def __init__(self, recording: Recording, clock: Callable[[], float]) -> None:
        self._recording = recording
        self._clock = clock
        self._devices: list[tuple[int, str]] = []
        self._native = True
        self._counts: dict[int, int] = {}

    def changed(self) -> bool:
        """Look, and return whether any count of allocations has changed.

        From ``torch.cuda.memory_stats_as_nested_dict``: a locked copy of counters, 23 to 130 µs a
        GPU on an H200, without a synchronisation. After 0.1 ms the other GPUs are left to the
        next look: torch's current GPU comes first. False without an initialised CUDA.
        """
        cuda = cuda_module()
        if cuda is None:
            return False
        if not self._devices:
            self._devices = [(index, uuid) for index, uuid, _ in torch_devices(cuda)]
            self._native = is_native(cuda)
        begun = time.perf_counter()
        current = cuda.current_device() if len(self._devices) > 1 else 0
        changed = False
        for index, uuid in sorted(self._devices, key=lambda device: device[0] != current):
            stats = cuda.memory_stats_as_nested_dict(index)
            if stats:
                count = stats["allocation"]["all"]["allocated"]
                changed = changed or count != self._counts.get(index, 0)
                self._counts[index] = count
                values = allocator_values(stats, native=self._native)
                self._recording.append(Sample(self._clock(), uuid, _SOURCE, values))
            if time.perf_counter() - begun > _LONGEST_S:
                break
        return changed
