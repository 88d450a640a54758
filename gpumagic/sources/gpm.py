"""GPM: what the SMs of a GPU do, counted by its hardware (Hopper and newer).

GPU-Util says that something ran; these say how much of the GPU it filled. A reading is the
difference of two samples of the hardware's counters, exact over the time between them, however
long that is: so a stall of the sampler loses nothing but detail.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from ..devices import Gpu
from ..errors import SourceUnavailable
from ..metrics import METRICS, of_source
from ..sample import Device, Gap, Sample
from . import Clock
from .nvml import chosen_gpus
from .nvml_library import GONE_REASONS, LASTING_REASONS, UNINITIALISED, Nvml, reason_of

__all__ = ["GpmSource", "checked", "stamps"]

_NUMBERS = {
    "gpu_sm_active_ratio": 2,
    "gpu_sm_occupancy_ratio": 3,
    "gpu_tensor_active_ratio": 5,
    "gpu_dram_active_ratio": 10,
    "gpu_pcie_receive_bytes_per_second": 21,
    "gpu_pcie_transmit_bytes_per_second": 20,
}
"""The numbers of the metrics in NVML: percentages, or MiB a second."""

_UNSUPPORTED = "not supported: SM activity is counted from Hopper on"
_RETRY_S = 60.0

# Between samples less than 0.1 s apart the driver gives 0 or NaN.
_WINDOW_S = 0.2
# Ticks come a little early at times: waiting for the next one would double the window.
_EARLY_S = 0.02
_STALL_PERIODS = 2.2
# The counters are not trusted over more than this (a machine that slept).
_LONGEST_S = 600.0
_MOST_KEPT = 8

_MOST_RATIO = 1.05
_MOST_BYTES_S = 1e12


def checked(metric: str, value: float) -> float | None:
    """Return what the driver gave for a metric in its base unit, ``None`` where it cannot be.

    A ratio may be over 1 by 5 % (it is 1 then); what is not a number or negative is no value.
    """
    if not math.isfinite(value) or value < 0:
        return None
    if METRICS[metric].unit == "ratio":
        ratio = value / 100
        return min(ratio, 1.0) if ratio <= _MOST_RATIO else None
    rate = value * 2**20
    return rate if rate <= _MOST_BYTES_S else None


def stamps(base: float, time: float, period: float) -> list[float]:
    """List the times, ascending, for the values of a pair of samples: its end, as a rule.

    Where the pair is well over two periods long there was a stall: then a time every period back
    to 0.2 s after ``base``, as what the values say holds for all of it.
    """
    if time - base <= _STALL_PERIODS * max(period, _WINDOW_S):
        return [time]
    count = math.floor((time - base - _WINDOW_S) / period + 1e-6)
    return [time - step * period for step in range(count, -1, -1)]


class _Refused(Exception):
    """The GPU gives no reading; the text is the reason."""


class _Card:
    """One GPU or MIG slice with its last samples of the counters."""

    def __init__(self, nvml: Nvml, gpu: Gpu, handle: Any) -> None:
        self.gpu = gpu
        self.device = Device(gpu.uuid, "gpu", gpu.name)
        self._nvml = nvml
        self._handle = handle
        self._take: tuple[Any, tuple[Any, ...]] | None = None
        self._retry_at = -math.inf
        self._kept: list[tuple[float, Any]] = []
        self._spare: list[Any] = []
        self._told_until = -math.inf
        self._get = nvml.py.c_nvmlGpmMetricsGet_t()
        self._get.version = nvml.py.NVML_GPM_METRICS_GET_VERSION
        self._get.numMetrics = len(_NUMBERS)
        for place, number in enumerate(_NUMBERS.values()):
            self._get.metrics[place].metricId = number

    def read(self, now: Clock, period: float) -> list[Sample | Gap]:
        """Take a sample; return what the pair with an older one says, if there is one."""
        time = now()
        if time < self._retry_at:
            return []
        try:
            return self._read(now, period)
        except _Refused as refusal:
            reason = str(refusal)
        self._forget()
        if reason == reason_of(UNINITIALISED):
            raise SourceUnavailable("somebody shut NVML down in this process")
        if reason in GONE_REASONS:
            return [Gap(time, None, "gpm", self.gpu.uuid, reason)]
        self._note_absent({metric.name: reason for metric in of_source("gpm")})
        if reason in LASTING_REASONS or reason == _UNSUPPORTED:
            self._retry_at = time + _RETRY_S
            self._take = None
        return []

    def _read(self, now: Clock, period: float) -> list[Sample | Gap]:
        if self._take is None:
            self._take = self._prepared()
        call, arguments = self._take
        sample = self._spare.pop() if self._spare else self._ask("nvmlGpmSampleAlloc")
        # Before the call, which keeps the GIL: afterwards could be much later.
        time = now()
        code = call(*arguments, sample)
        if code != 0:
            self._spare.append(sample)
            raise _Refused(reason_of(code))
        base = self._base(time)
        self._kept.append((time, sample))
        if len(self._kept) > _MOST_KEPT:
            # The oldest one stays: it is the next that is old enough.
            self._spare.append(self._kept.pop(1)[1])
        if base is None:
            return []
        values = self._values(base[1], sample)
        told, self._told_until = self._told_until, time
        return [
            Sample(stamp, self.gpu.uuid, "gpm", values)
            for stamp in stamps(base[0], time, period) if values and stamp > told
        ]

    def _base(self, time: float) -> tuple[float, Any] | None:
        """Return the newest sample that is old enough, and let go of those before it."""
        old = [n for n, (at, _) in enumerate(self._kept) if time - at >= _WINDOW_S - _EARLY_S]
        if not old:
            return None
        self._spare += [sample for _, sample in self._kept[:old[-1]]]
        del self._kept[:old[-1]]
        if time - self._kept[0][0] > _LONGEST_S:
            self._forget()
            return None
        return self._kept[0]

    def _prepared(self) -> tuple[Any, tuple[Any, ...]]:
        """Find out how to take a sample of this GPU, or raise why it cannot be done."""
        whole, name = self._handle, "nvmlGpmSampleGet"
        arguments: tuple[Any, ...] = (whole,)
        if self.gpu.parent is not None:
            whole = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self._handle)
            arguments = (whole, self._ask("nvmlDeviceGetGpuInstanceId", self._handle))
            name = "nvmlGpmMigSampleGet"
        if not self._ask("nvmlGpmQueryDeviceSupport", whole).isSupportedDevice:
            raise _Refused(_UNSUPPORTED)
        call = self._nvml.quick(name)
        if call is None:
            raise _Refused(reason_of(13))
        return call, arguments

    def _values(self, base: Any, sample: Any) -> dict[str, float]:
        """Return what two samples say, and note the reason for each metric that they lack."""
        get = self._get
        get.sample1, get.sample2 = base, sample
        # This takes up to a millisecond and no matter when: the GIL is released.
        self._ask("nvmlGpmMetricsGet", get)
        values: dict[str, float] = {}
        absent: dict[str, str] = {}
        for place, name in enumerate(_NUMBERS):
            metric = get.metrics[place]
            if metric.nvmlReturn != 0:
                absent[name] = reason_of(metric.nvmlReturn)
                continue
            value = checked(name, metric.value)
            if value is not None:
                values[name] = value
        self._note_absent(absent)
        return values

    def _note_absent(self, absent: dict[str, str]) -> None:
        if absent != self.device.absent:
            self.device = replace(self.device, absent=absent)

    def _ask(self, function: str, *arguments: Any) -> Any:
        value, reason = self._nvml.ask(function, *arguments)
        if value is None:
            raise _Refused(reason)
        return value

    def _forget(self) -> None:
        """Let go of the samples: what comes next is not to be compared with them."""
        self._spare += [sample for _, sample in self._kept]
        self._kept.clear()

    def close(self) -> None:
        """Free the samples."""
        self._forget()
        while self._spare:
            self._nvml.ask("nvmlGpmSampleFree", self._spare.pop())


class GpmSource:
    """Read what the SMs, the memory and the PCIe link of the selected GPUs do.

    ``selection`` is a list of names as :func:`gpumagic.devices.select` takes them. A reading
    covers the time since the newest sample of the counters that is at least 0.2 s older
    (``nvmlGpmSampleGet``, ``nvmlGpmMetricsGet``).
    """

    name = "gpm"
    looking = False

    def __init__(self, selection: Sequence[str] = ("usable",), *, period_s: float = 0.2) -> None:
        self.period_s = period_s
        self._selection = tuple(selection)
        self._nvml = Nvml()
        self._cards: list[_Card] = []

    def open(self) -> None:
        """Initialise NVML and find the selected GPUs."""
        self._nvml.open()
        try:
            if not hasattr(self._nvml.py, "c_nvmlGpmMetricsGet_t"):
                raise SourceUnavailable(
                    "this nvidia-ml-py does not know GPM: pip install -U nvidia-ml-py"
                )
            chosen, _ = chosen_gpus(self._nvml, self._selection)
            self._cards = [_Card(self._nvml, gpu, handle) for gpu, handle in chosen]
        except BaseException:
            self._nvml.close()
            raise

    def devices(self) -> Sequence[Device]:
        """Return the GPUs with the reasons for what they did not answer at the last reading."""
        return [card.device for card in self._cards]

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield a sample, or a gap, for each GPU, several after a stall; letting others between.

        Nothing comes of a GPU that has no pair of samples yet, or does not count this.
        """
        if not self._nvml.is_open:
            raise SourceUnavailable("NVML is closed in this process")
        for card in self._cards:
            if card is not self._cards[0]:
                await asyncio.sleep(0)
            for record in card.read(now, self.period_s):
                yield record

    def close(self) -> None:
        """Free all samples and shut NVML down as often as it was initialised here."""
        if self._nvml.is_open:
            for card in self._cards:
                card.close()
        self._cards = []
        self._nvml.close()
