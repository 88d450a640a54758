"""NVML met through nvidia-ml-py, with a handle of our own for the quick calls.

nvidia-ml-py calls NVML through ``ctypes.CDLL``, which drops the GIL at each call; beside a cell
that runs pure Python each retake waits for the interpreter's switch interval, and a reading of
eight calls smears over 40 ms. :class:`QuickCall` makes calls that take microseconds with the
GIL kept, and goes over to releasing it for a call that turns out slow. nvidia-ml-py's own handle
is shared with torch and others and is left as it is.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..devices import Gpu
from ..errors import SourceUnavailable

__all__ = [
    "GONE",
    "GONE_REASONS",
    "LASTING_REASONS",
    "SLOW_CALL_S",
    "UNINITIALISED",
    "Nvml",
    "QuickCall",
    "reason_of",
    "value_of",
]

SLOW_CALL_S = 0.005
"""A call that takes longer than this is slow."""

_RETRY_S = 60.0

_SUCCESS = 0

_REASONS = {
    1: "NVML is not initialised",
    3: "not supported by this GPU",
    4: "no permission",
    6: "not found",
    9: "the NVIDIA driver is not loaded",
    12: "the NVIDIA driver's library libnvidia-ml.so.1 is not installed",
    13: "this driver does not know the call",
    15: "the GPU is lost (fallen off the bus, or reset)",
    16: "the GPU needs a reset",
    18: "the driver and its library have different versions",
    999: "the driver gives no reason (unknown error)",
}

UNINITIALISED = 1
"""The code that says that somebody shut NVML down."""

GONE = frozenset({UNINITIALISED, 9, 15, 16})
"""Codes after which a device cannot be read at all."""

GONE_REASONS = frozenset(_REASONS[code] for code in GONE)
"""The same in words."""

LASTING_REASONS = frozenset(_REASONS[code] for code in (3, 4, 13))
"""Refusals, in words, that asking again at once does not change."""


def reason_of(code: int) -> str:
    """Say in words what an NVML return code means for the reader."""
    return _REASONS.get(code, f"NVML error {code}")


_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def value_of(kind: int, value: Any) -> float:
    """Return the number in an ``nvmlValue_t`` of a type, NaN for a type that is not known."""
    if not 0 <= kind < len(_VALUE_TYPES):
        return math.nan
    return float(getattr(value, _VALUE_TYPES[kind], math.nan))


def _import_pynvml() -> ModuleType:
    try:
        import pynvml
    except ImportError as error:
        raise SourceUnavailable(
            "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        ) from error
    # nvidia-ml-py is a single module; the abandoned distribution `pynvml` is a package of the
    # same name that wins over it in site-packages.
    if hasattr(pynvml, "__path__") or not hasattr(pynvml, "nvmlDeviceGetMemoryInfo"):
        raise SourceUnavailable(
            "the abandoned package pynvml hides nvidia-ml-py:"
            " pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py"
        )
    module: ModuleType = pynvml
    return module


class QuickCall:
    """One NVML function, called with the GIL kept until it once takes over 5 ms.

    Then it releases the GIL, for a minute: the slow call can also have been the scheduler's
    doing, on a machine with more workers than cores, and a call that is slow by itself then
    holds Python up for some milliseconds a minute at the most. Returns NVML's code and never
    raises; ``demoted`` tells that it releases the GIL now.
    """

    __slots__ = ("_clock", "_keep", "_release", "_retry_at", "demoted", "symbol")

    def __init__(
        self,
        symbol: str,
        keep: Callable[..., int],
        release: Callable[..., int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.symbol = symbol
        self.demoted = False
        self._keep = keep
        self._release = release
        self._clock = clock
        self._retry_at = 0.0

    def __call__(self, *arguments: Any) -> int:
        start = self._clock()
        if self.demoted:
            if start < self._retry_at:
                return self._release(*arguments)
            self.demoted = False
        code = self._keep(*arguments)
        end = self._clock()
        if end - start > SLOW_CALL_S:
            self.demoted = True
            self._retry_at = end + _RETRY_S
        return code


class Nvml:
    """One reference on NVML: initialised on ``open``, shut down on ``close``, once per process.

    Raises :class:`~gpumagic.errors.SourceUnavailable` from ``open`` with the reason and the
    remedy. After a fork the child's copy counts as closed.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._keep: ctypes.PyDLL | None = None
        self._release: ctypes.CDLL | None = None
        self._calls: dict[str, QuickCall | None] = {}
        self.py: Any = None

    @property
    def is_open(self) -> bool:
        """Whether NVML is initialised through this object in this process."""
        return self._pid == os.getpid()

    def open(self) -> None:
        """Import nvidia-ml-py and initialise NVML (``nvmlInit_v2``; again costs microseconds)."""
        if self.is_open:
            return
        self.py = _import_pynvml()
        try:
            self.py.nvmlInit()
        except self.py.NVMLError as error:
            raise SourceUnavailable(self._explain(error.value)) from None
        self._pid = os.getpid()
        library = self.py.nvmlLib._name
        self._keep = ctypes.PyDLL(library)
        self._release = ctypes.CDLL(library)

    @staticmethod
    def _explain(code: int) -> str:
        text = reason_of(code)
        if code == 12:
            return f"no NVIDIA GPU here: {text}"
        if code in (9, 18):
            return f"{text}: run nvidia-smi, then reload the driver or restart the machine"
        return text

    def close(self) -> None:
        """Give the reference back (``nvmlShutdown``)."""
        if not self.is_open:
            return
        self._pid = None
        self._calls.clear()
        try:
            self.py.nvmlShutdown()
        except self.py.NVMLError:
            return  # somebody shut NVML down for all: there is nothing left to give back

    def quick(self, symbol: str) -> QuickCall | None:
        """Return a function of the library for quick calls, or ``None`` if it lacks it."""
        if symbol not in self._calls:
            keep = getattr(self._keep, symbol, None)
            release = getattr(self._release, symbol, None)
            if keep is None or release is None:
                self._calls[symbol] = None
            else:
                self._calls[symbol] = QuickCall(symbol, keep, release)
        return self._calls[symbol]

    @property
    def demoted(self) -> tuple[str, ...]:
        """The functions that turned out slow and release the GIL now."""
        return tuple(c.symbol for c in self._calls.values() if c is not None and c.demoted)

    def ask(self, function: str, *arguments: Any) -> tuple[Any, str]:
        """Call a function of nvidia-ml-py; return its value and "", or ``None`` and a reason."""
        call = getattr(self.py, function, None)
        if call is None:
            return None, "this nvidia-ml-py does not know the call"
        try:
            return call(*arguments), ""
        except self.py.NVMLError as error:
            return None, reason_of(error.value)

    def gpus(self) -> list[tuple[Gpu, Any]]:
        """List the GPUs of the machine, each followed by its MIG slices, with their handles.

        A GPU that cannot be opened is left out. Raises
        :class:`~gpumagic.errors.SourceUnavailable` where GPUs are there and none can be opened.
        """
        count, reason = self.ask("nvmlDeviceGetCount")
        if count is None:
            raise SourceUnavailable(f"GPUs cannot be counted: {reason}")
        found: list[tuple[Gpu, Any]] = []
        why = ""
        for index in range(count):
            handle, reason = self.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                why = reason
                continue
            uuid, reason = self.ask("nvmlDeviceGetUUID", handle)
            if uuid is None:
                why = reason
                continue
            name = self.ask("nvmlDeviceGetName", handle)[0] or "GPU"
            gpu = Gpu(uuid, index, name)
            found.append((gpu, handle))
            found.extend(self._slices(gpu, handle))
        if count and not found:
            gpus = "a GPU, but it cannot" if count == 1 else f"{count} GPUs, but none can"
            raise SourceUnavailable(f"the driver lists {gpus} be opened: {why}")
        return found

    def _slices(self, gpu: Gpu, handle: Any) -> Sequence[tuple[Gpu, Any]]:
        mode, _ = self.ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:
            return ()
        found = []
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle)[0] or 0):
            part, _ = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            uuid = self.ask("nvmlDeviceGetUUID", part)[0] if part is not None else None
            if uuid is not None:
                name = self.ask("nvmlDeviceGetName", part)[0] or f"{gpu.name} MIG"
                found.append((Gpu(uuid, gpu.index, name, gpu.uuid), part))
        return found
