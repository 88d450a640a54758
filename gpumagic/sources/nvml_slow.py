"""What NVML answers slowly: energy (2 ms, at times 17 ms), limits' counters, processes' memory.

Read once a second and at the ends of a cell, on the sampler's thread. The energy counter costs
half a percent of a core that way, and no live view shows it: while GPUs are only looked at it is
read once a minute, which loses none of what a counter counts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..devices import Gpu
from ..errors import SourceUnavailable
from ..sample import Device, Gap, Sample
from . import Clock
from .nvml import chosen_gpus
from .nvml_library import GONE_REASONS, UNINITIALISED, Nvml, reason_of, value_of
from .nvml_processes import OthersLoad, process_memory

__all__ = ["LIMITED_FIELDS", "NvmlSlowSource", "limited_seconds"]

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
_LOOKING_ENERGY_S = 60.0
_ENERGY = "gpu_energy_joules"
_OTHERS = "gpu_other_processes_memory_bytes"
_OTHERS_LOAD = "gpu_other_processes_utilization_ratio"


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
    looking = False

    def __init__(self, selection: Sequence[str] = ("usable",), *, period_s: float = 1.0) -> None:
        self.period_s = period_s
        self._selection = tuple(selection)
        self._nvml = Nvml()
        self._cards: list[tuple[Gpu, Any]] = []
        self._devices: dict[str, Device] = {}
        self._energy_due: dict[str, float] = {}
        self._loads: dict[str, OthersLoad] = {}

    def open(self) -> None:
        """Initialise NVML and find the selected GPUs."""
        self._nvml.open()
        try:
            self._cards, _ = chosen_gpus(self._nvml, self._selection)
        except BaseException:
            self._nvml.close()
            raise
        self._devices = {
            gpu.uuid: Device(gpu.uuid, "gpu", gpu.name) for gpu, _ in self._cards
        }

    def devices(self) -> Sequence[Device]:
        """Return the GPUs with the reasons for what they did not answer when last asked."""
        return [*self._devices.values()]

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield a sample, or a gap, for each GPU, letting quick sources in between."""
        if not self._nvml.is_open:
            raise SourceUnavailable("NVML is closed in this process")
        for gpu, handle in self._cards:
            if gpu is not self._cards[0][0]:
                await asyncio.sleep(0)
            values, absent = self._energy(gpu, handle, now)
            # The stamp belongs to the counters: differences of them are what counts.
            time = now()
            limited, why = limited_seconds(self._nvml, handle)
            reasons = {*absent.values(), *why.values()}
            if reason_of(UNINITIALISED) in reasons:
                raise SourceUnavailable("somebody shut NVML down in this process")
            if lost := reasons & GONE_REASONS:
                self._energy_due.pop(gpu.uuid, None)
                yield Gap(time, None, self.name, gpu.uuid, min(lost))
                continue
            values |= limited
            absent |= why
            await asyncio.sleep(0)
            memory, reason = process_memory(self._nvml, handle)
            if not memory:
                absent["gpu_process_memory_bytes"] = reason
                absent[_OTHERS] = reason
            elif memory.get(_OTHERS):
                load = self._loads.setdefault(gpu.uuid, OthersLoad())
                share, reason = load.read(self._nvml, handle)
                if share is None:
                    absent[_OTHERS_LOAD] = reason
                else:
                    memory[_OTHERS_LOAD] = share
            if absent != self._devices[gpu.uuid].absent:
                self._devices[gpu.uuid] = replace(self._devices[gpu.uuid], absent=absent)
            if values or memory:
                yield Sample(time, gpu.uuid, self.name, values | memory)

    def _energy(
        self, gpu: Gpu, handle: Any, now: Clock
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return a GPU's energy, or why it is absent; neither while it is not due."""
        time = now()
        if self.looking and time < self._energy_due.get(gpu.uuid, -math.inf):
            known = self._devices[gpu.uuid].absent.get(_ENERGY)
            return {}, {} if known is None else {_ENERGY: known}
        self._energy_due[gpu.uuid] = time + _LOOKING_ENERGY_S
        millijoules, reason = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        if millijoules is None:
            return {}, {_ENERGY: reason}
        return {_ENERGY: millijoules * 1e-3}, {}

    def close(self) -> None:
        """Shut NVML down as often as it was initialised here."""
        self._cards = []
        self._devices = {}
        self._energy_due = {}
        self._loads = {}
        self._nvml.close()
