"""The quick NVML counters of each GPU, ten times a second.

Each call takes one to ten microseconds; nothing here blocks (PCIe throughput is left out for
that reason). What a GPU does not offer is found out once and is absent from then on, with the
reason in :attr:`gpumagic.sample.Device.absent`.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..devices import Gpu, Pairing, cuda_module, pair, select
from ..errors import SourceUnavailable
from ..sample import Device, Gap, Sample
from . import Clock
from .nvml_library import GONE, UNINITIALISED, Nvml, QuickCall, reason_of
from .nvml_rings import ring_samples

__all__ = ["NvmlSource", "chosen_gpus"]

_TEMPERATURE_GPU = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_THRESHOLD_SLOWDOWN = 1
_MEMORY = ("gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_memory_reserved_bytes")
_MEMORY_V1 = "memory used includes what the driver reserves (this driver has no version 2)"
_PSTATE_UNKNOWN = 32

# A reading that comes this much later than the one before it, or three periods, is a stall.
_STALL_S = 0.35
_STALL_PERIODS = 3


class _Lost(Exception):
    """The device cannot be read at all; the text is the reason."""


@dataclass(slots=True)
class _Reading:
    """One quick call with its buffers: which metrics it gives, and what puts them in place."""

    metrics: tuple[str, ...]
    call: QuickCall
    arguments: tuple[Any, ...]
    put: Callable[[dict[str, float]], None]

    def take(self, values: dict[str, float]) -> str:
        """Put what is read into ``values``; return why the device refuses it, or nothing."""
        code = self.call(*self.arguments)
        if code == UNINITIALISED:
            # Other users of the library in this process can take its last reference away.
            raise SourceUnavailable("somebody shut NVML down in this process")
        if code in GONE:
            raise _Lost(reason_of(code))
        if code != 0:
            return reason_of(code)
        self.put(values)
        return ""


def _readings(nvml: Nvml, handle: Any) -> tuple[list[_Reading], dict[str, str]]:
    """Prepare the readings of one device; the second part gives the missing functions."""
    found: list[_Reading] = []
    absent: dict[str, str] = {}

    def add(
        symbols: Sequence[str],
        metrics: tuple[str, ...],
        arguments: tuple[Any, ...],
        put: Callable[[dict[str, float]], None],
    ) -> None:
        call = next((c for s in symbols if (c := nvml.quick(s)) is not None), None)
        if call is None:
            absent.update(dict.fromkeys(metrics, f"this driver does not know {symbols[0]}"))
        else:
            found.append(_Reading(metrics, call, (handle, *arguments), put))

    def number(symbols: Sequence[str], metric: str, scale: float, *before: Any) -> None:
        out = ctypes.c_uint()

        def put(values: dict[str, float]) -> None:
            values[metric] = out.value * scale

        add(symbols, (metric,), (*before, ctypes.byref(out)), put)

    use = nvml.py.c_nvmlUtilization_t()

    def put_use(values: dict[str, float]) -> None:
        values["gpu_utilization_ratio"] = use.gpu / 100
        values["gpu_memory_utilization_ratio"] = use.memory / 100

    add(
        ["nvmlDeviceGetUtilizationRates"],
        ("gpu_utilization_ratio", "gpu_memory_utilization_ratio"),
        (ctypes.byref(use),),
        put_use,
    )
    number(["nvmlDeviceGetPowerUsage"], "gpu_power_watts", 1e-3)
    number(["nvmlDeviceGetTemperature"], "gpu_temperature_celsius", 1.0,
           ctypes.c_uint(_TEMPERATURE_GPU))
    number(["nvmlDeviceGetClockInfo"], "gpu_sm_clock_hertz", 1e6, ctypes.c_uint(_CLOCK_SM))
    number(["nvmlDeviceGetClockInfo"], "gpu_memory_clock_hertz", 1e6,
           ctypes.c_uint(_CLOCK_MEMORY))
    reasons = ctypes.c_ulonglong()

    def put_reasons(values: dict[str, float]) -> None:
        values["gpu_clock_event_reasons_state"] = float(reasons.value)

    add(
        ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"],
        ("gpu_clock_event_reasons_state",),
        (ctypes.byref(reasons),),
        put_reasons,
    )
    state = ctypes.c_uint()

    def put_state(values: dict[str, float]) -> None:
        if state.value != _PSTATE_UNKNOWN:
            values["gpu_performance_state"] = float(state.value)

    add(
        ["nvmlDeviceGetPerformanceState"],
        ("gpu_performance_state",),
        (ctypes.byref(state),),
        put_state,
    )
    for engine, metric in (
        ("Encoder", "gpu_encoder_utilization_ratio"),
        ("Decoder", "gpu_decoder_utilization_ratio"),
    ):
        busy, period = ctypes.c_uint(), ctypes.c_uint()

        def put_busy(values: dict[str, float], metric: str = metric, busy: Any = busy) -> None:
            values[metric] = busy.value / 100

        add(
            [f"nvmlDeviceGet{engine}Utilization"],
            (metric,),
            (ctypes.byref(busy), ctypes.byref(period)),
            put_busy,
        )
    return found, absent


def _memory(nvml: Nvml, handle: Any) -> tuple[_Reading, str]:
    """Prepare the memory reading: version 2, or version 1 (which was seen to work) with a note."""
    call = nvml.quick("nvmlDeviceGetMemoryInfo_v2")
    if call is not None:
        two = nvml.py.c_nvmlMemory_v2_t()
        version = two.version = nvml.py.nvmlMemory_v2

        def put_two(values: dict[str, float]) -> None:
            two.version = version
            values["gpu_memory_used_bytes"] = float(two.used)
            values["gpu_memory_free_bytes"] = float(two.free)
            values["gpu_memory_reserved_bytes"] = float(two.reserved)

        reading = _Reading(_MEMORY, call, (handle, ctypes.byref(two)), put_two)
        try:
            refused = reading.take({})
        except _Lost:
            return reading, ""
        if not refused:
            return reading, ""
        # An old driver can export the function and refuse the structure.
    call = nvml.quick("nvmlDeviceGetMemoryInfo")
    assert call is not None
    one = nvml.py.c_nvmlMemory_t()

    def put_one(values: dict[str, float]) -> None:
        values["gpu_memory_used_bytes"] = float(one.used)
        values["gpu_memory_free_bytes"] = float(one.free)

    return _Reading(_MEMORY[:2], call, (handle, ctypes.byref(one)), put_one), _MEMORY_V1


_CONSTANTS: tuple[tuple[str, str, tuple[Any, ...], float], ...] = (
    ("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    ("gpu_temperature_slowdown_celsius", "nvmlDeviceGetTemperatureThreshold",
     (_THRESHOLD_SLOWDOWN,), 1.0),
    ("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", (_CLOCK_SM,), 1e6),
    ("gpu_memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", (_CLOCK_MEMORY,), 1e6),
)


class _Card:
    """One GPU that is being read."""

    def __init__(self, nvml: Nvml, gpu: Gpu, handle: Any) -> None:
        constants: dict[str, float] = {}
        readings, absent = _readings(nvml, handle)
        for name, function, arguments, scale in _CONSTANTS:
            value, reason = nvml.ask(function, handle, *arguments)
            if value is None:
                absent[name] = reason
            else:
                constants[name] = value * scale
        memory, reason = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        note = ""
        if memory is None or not memory.total:
            why = reason or "the driver reports no memory"
            absent.update(dict.fromkeys(["gpu_memory_total_bytes", *_MEMORY], why))
        else:
            constants["gpu_memory_total_bytes"] = float(memory.total)
            reading, note = _memory(nvml, handle)
            readings.append(reading)
            if note:
                absent["gpu_memory_reserved_bytes"] = "this driver has no version 2 of the call"
        self._readings = self._offered(readings, absent)
        self._absent = absent
        self._refused: dict[str, str] = {}
        self._handle = handle
        self._stalled_at = math.inf
        self._last: float | None = None
        self.device = Device(
            gpu.uuid, "gpu", gpu.name, gpu.index,
            constants=constants, absent=absent, notes=(note,) if note else (),
        )

    @staticmethod
    def _offered(readings: list[_Reading], absent: dict[str, str]) -> list[_Reading]:
        """Keep what the device answers; note the reason for the rest."""
        kept = []
        for reading in readings:
            refusal = ""
            with suppress(_Lost):  # it may come back: try it at each reading
                refusal = reading.take({})
            if refusal:
                absent.update(dict.fromkeys(reading.metrics, refusal))
            else:
                kept.append(reading)
        return kept

    def read(self, nvml: Nvml, time: float, period: float) -> list[Sample | Gap]:
        """Return the present reading; after a stall, what the driver kept of it comes first."""
        found = self._read(time)
        last, stalled = self._last, time > self._stalled_at
        if isinstance(found, Gap):
            # What a lost GPU's driver kept is not to end the gap.
            self._last, self._stalled_at = None, math.inf
            return [found]
        self._last = time
        self._stalled_at = time + max(_STALL_S, _STALL_PERIODS * period)
        if last is None or not stalled:
            return [found]
        kept = ring_samples(nvml, self._handle, self.device.id, (last, time), found.values)
        return [*kept, found]

    def _read(self, time: float) -> Sample | Gap:
        values: dict[str, float] = {}
        refused: dict[str, str] = {}
        try:
            for reading in self._readings:
                refusal = reading.take(values)
                if refusal:
                    refused.update(dict.fromkeys(reading.metrics, refusal))
        except _Lost as loss:
            return Gap(time, None, "nvml", self.device.id, str(loss))
        if refused != self._refused:
            self._refused = refused
            self.device = replace(self.device, absent=self._absent | refused)
        return Sample(time, self.device.id, "nvml", values)


def chosen_gpus(
    nvml: Nvml, selection: Sequence[str]
) -> tuple[list[tuple[Gpu, Any]], Pairing]:
    """List the GPUs of a selection with their handles, and torch's pairing.

    Raises :class:`~gpumagic.errors.SourceUnavailable` where there is none, with the reason.
    """
    found = nvml.gpus()
    gpus = [gpu for gpu, _ in found]
    if not gpus:
        raise SourceUnavailable("no NVIDIA GPU here: the driver lists none")
    pairing = pair(gpus, os.environ)
    ids = select(gpus, selection, pairing)
    if not ids:
        why = pairing.reason or "this process may use no GPU"
        raise SourceUnavailable(f"{why}; --gpus all shows the machine's {len(gpus)}")
    return [(gpu, handle) for gpu, handle in found if gpu.uuid in ids], pairing


class NvmlSource:
    """Read the quick counters of the selected GPUs.

    ``selection`` is a list of names as :func:`gpumagic.devices.select` takes them.
    """

    name = "nvml"
    looking = False

    def __init__(self, selection: Sequence[str] = ("usable",), *, period_s: float = 0.1) -> None:
        self.period_s = period_s
        self._selection = tuple(selection)
        self._nvml = Nvml()
        self._cards: list[_Card] = []
        self._gpus: list[Gpu] = []
        self._told_by_torch = False

    def open(self) -> None:
        """Initialise NVML and read each selected GPU's constants, once."""
        self._nvml.open()
        try:
            chosen, pairing = chosen_gpus(self._nvml, self._selection)
            self._gpus = [gpu for gpu, _ in self._nvml.gpus()]
            self._cards = [_Card(self._nvml, gpu, handle) for gpu, handle in chosen]
        except BaseException:
            self._nvml.close()
            raise
        self._told_by_torch = cuda_module() is not None
        self._label(pairing)

    def _label(self, pairing: Pairing) -> None:
        for card in self._cards:
            index = pairing.torch_index(card.device.id)
            card.device = replace(
                card.device, torch_index=index,
                torch_assumed=pairing.assumed and index is not None,
            )

    def devices(self) -> Sequence[Device]:
        """Return the GPUs; torch's index is asked for again once CUDA is initialised."""
        if not self._told_by_torch and cuda_module() is not None:
            self._told_by_torch = True
            self._label(pair(self._gpus, os.environ))
        return [card.device for card in self._cards]

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield a sample, or a gap, for each GPU.

        After a stall of the sampler the samples of power and utilization that the driver's rings
        hold of it come first, at their own times.
        """
        if not self._nvml.is_open:
            raise SourceUnavailable("NVML is closed in this process")
        for card in self._cards:
            found = card.read(self._nvml, now(), self.period_s)
            for record in found:
                yield record
            if len(found) > 1:
                await asyncio.sleep(0)

    @property
    def demoted(self) -> tuple[str, ...]:
        """NVML functions that turned out slow and release the GIL now."""
        return self._nvml.demoted

    def close(self) -> None:
        """Shut NVML down as often as it was initialised here."""
        self._cards = []
        self._nvml.close()
