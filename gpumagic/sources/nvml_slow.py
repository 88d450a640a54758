"""What NVML answers slowly: energy (2 ms, at times 17 ms), limits' counters, processes' memory.

Read once a second and at the ends of a cell, on the sampler's thread.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..devices import Gpu
from ..errors import SourceUnavailable
from ..sample import Device, Gap, Sample
from . import Clock
from .nvml import chosen_gpus
from .nvml_library import GONE_REASONS, UNINITIALISED, Nvml, reason_of, value_of

__all__ = ["LIMITED_FIELDS", "NvmlSlowSource", "limited_seconds", "process_memory", "split_memory"]

LIMITED_FIELDS: Mapping[int, str] = MappingProxyType(
    {
        74: "gpu_power_limited_seconds",
        75: "gpu_thermal_limited_seconds",
        76: "gpu_sync_boost_limited_seconds",
        271: "gpu_power_brake_limited_seconds",
    }
)
"""The driver's fields that count nanoseconds in which clocks were held back."""

_INVALID = 2

_HIDDEN = "the driver gives no process of this PID namespace (a container, or WSL)"


def split_memory(
    processes: Sequence[tuple[int, int | None]], own_pid: int, visible: Sequence[int]
) -> dict[str, float]:
    """Split per-process device memory into this process's and the others', in bytes.

    ``processes`` are pairs of PID and bytes (``None`` where the driver hides them, as WSL and
    WDDM do); ``visible`` are the PIDs that this PID namespace has. In a container the driver
    can give the host's PIDs: then ours cannot be told from others' and both are absent.
    """
    if any(used is None for _, used in processes):
        return {}
    known = set(visible)
    if any(pid != own_pid and pid not in known for pid, _ in processes):
        return {}
    own = [used or 0 for pid, used in processes if pid == own_pid]
    others = [used or 0 for pid, used in processes if pid != own_pid]
    values = {"gpu_other_processes_memory_bytes": float(sum(others))}
    if own:
        values["gpu_process_memory_bytes"] = float(sum(own))
    return values


def _visible(pids: Sequence[int]) -> list[int]:
    """Return those of some PIDs that exist in this PID namespace, as far as /proc tells."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def process_memory(nvml: Nvml, handle: Any) -> tuple[dict[str, float], str]:
    """Return a GPU's memory of this process and of others in bytes, or nothing and a reason.

    From ``nvmlDeviceGetComputeRunningProcesses`` and the same for graphics (30 us each).
    """
    used: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        processes, reason = nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)
        if processes is None and kind == "Compute":
            return {}, reason
        used.update({p.pid: p.usedGpuMemory for p in processes or ()})
    return split_memory(list(used.items()), os.getpid(), _visible(list(used))), _HIDDEN


def limited_seconds(nvml: Nvml, handle: Any) -> tuple[dict[str, float], dict[str, str]]:
    """Return the seconds in which limits held a GPU's clocks back, and why some are absent.

    From one call of ``nvmlDeviceGetFieldValues`` (0.5 ms), nanoseconds since the driver was
    loaded; each field has a return code of its own.
    """
    fields, reason = nvml.ask("nvmlDeviceGetFieldValues", handle, list(LIMITED_FIELDS))
    if fields is None:
        return {}, dict.fromkeys(LIMITED_FIELDS.values(), reason)
    values: dict[str, float] = {}
    absent: dict[str, str] = {}
    for (number, metric), field in zip(LIMITED_FIELDS.items(), fields, strict=True):
        code = field.nvmlReturn
        if code == _INVALID:
            absent[metric] = f"this driver does not know field {number}"
        elif code != 0:
            absent[metric] = reason_of(code)
        else:
            seconds = value_of(field.valueType, field.value) * 1e-9
            if math.isfinite(seconds) and seconds >= 0:
                values[metric] = seconds
            else:
                absent[metric] = "the driver gave no valid value"
    return values, absent


class NvmlSlowSource:
    """Read energy, the counters of limits and the memory of processes of the selected GPUs."""

    name = "nvml_slow"

    def __init__(self, selection: Sequence[str] = ("usable",), *, period_s: float = 1.0) -> None:
        self.period_s = period_s
        self._selection = tuple(selection)
        self._nvml = Nvml()
        self._cards: list[tuple[Gpu, Any]] = []
        self._absent: dict[str, dict[str, str]] = {}

    def open(self) -> None:
        """Initialise NVML and find the selected GPUs."""
        self._nvml.open()
        try:
            self._cards, _ = chosen_gpus(self._nvml, self._selection)
        except BaseException:
            self._nvml.close()
            raise

    def devices(self) -> Sequence[Device]:
        """Return the GPUs with the reasons for what they did not answer at the last reading."""
        return [
            Device(gpu.uuid, "gpu", gpu.name, absent=self._absent.get(gpu.uuid, {}))
            for gpu, _ in self._cards
        ]

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield a sample, or a gap, for each GPU, letting quick sources in between."""
        if not self._nvml.is_open:
            raise SourceUnavailable("NVML is closed in this process")
        for gpu, handle in self._cards:
            values: dict[str, float] = {}
            absent: dict[str, str] = {}
            millijoules, reason = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
            # The stamp belongs to the counters: differences of them are what counts.
            time = now()
            if reason == reason_of(UNINITIALISED):
                raise SourceUnavailable("somebody shut NVML down in this process")
            if reason in GONE_REASONS:
                yield Gap(time, None, self.name, gpu.uuid, reason)
                continue
            if millijoules is None:
                absent["gpu_energy_joules"] = reason
            else:
                values["gpu_energy_joules"] = millijoules * 1e-3
            limited, why = limited_seconds(self._nvml, handle)
            values |= limited
            absent |= why
            await asyncio.sleep(0)
            memory, reason = process_memory(self._nvml, handle)
            if not memory:
                absent["gpu_process_memory_bytes"] = reason
                absent["gpu_other_processes_memory_bytes"] = reason
            self._absent[gpu.uuid] = absent
            if values or memory:
                yield Sample(time, gpu.uuid, self.name, values | memory)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Shut NVML down as often as it was initialised here."""
        self._cards = []
        self._nvml.close()
