"""Give tests a GPU: a libnvidia-ml.so.1 built from ``stub/nvml_stub.c``, told what to answer.

Make an `NvmlStub`, and either start a process with its `environment`, or enter its
`load_in_process`. Whatever speaks to NVML there, nvidia-ml-py or torch, meets the stub::

    stub = NvmlStub(tmp_path, gpus=2)
    stub.gpu(0, utilization=73, processes="self:1073741824")
    subprocess.run([sys.executable, "-c", script], env=stub.environment(), check=True)
    assert stub.init_balance == 0

A running process sees each change at its next call. A GPU key set to None is a query that the
device does not support.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "GPU_KEYS",
    "H200",
    "LEGACY",
    "MEASURED_DELAYS_US",
    "SONAME",
    "SYSTEM",
    "UNIFIED",
    "Call",
    "NvmlStub",
    "Value",
    "build",
    "compiler",
    "symbols",
]

Value = str | int | float | bool
"""What a key can hold; True is written as 1."""

SONAME = "libnvidia-ml.so.1"
SOURCE = Path(__file__).parent / "stub" / "nvml_stub.c"

SYSTEM: Mapping[str, Value] = {
    "driver_version": "580.159.04",
    "nvml_version": "13.580.159.04",
    "cuda_version": 13000,
}

H200: Mapping[str, Value] = {
    "name": "NVIDIA H200",
    "architecture": 9,
    "compute_capability": "9.0",
    "cores": 16896,
    "memory_bus_width": 6016,
    "persistence": 1,
    "pci_device_id": 0x233510DE,
    "pci_subsystem_id": 0x18BF10DE,
    "pcie_generation": 5,
    "pcie_width": 16,
    "utilization": 0,
    "memory_utilization": 0,
    "encoder": 0,
    "decoder": 0,
    "memory_total": 143771 << 20,
    "memory_used": 0,
    "memory_reserved": 644_939_776,
    "bar1_total": 262144 << 20,
    "bar1_used": 1_703_936,
    "temperature": 35,
    "memory_temperature": 33,
    "temperature_slowdown": 89,
    "temperature_shutdown": 95,
    "temperature_gpu_max": 87,
    "temperature_memory_max": 95,
    "power_mw": 114_000,
    "power_idle_mw": 114_000,
    "power_limit_mw": 700_000,
    "power_default_limit_mw": 700_000,
    "power_min_limit_mw": 200_000,
    "power_max_limit_mw": 700_000,
    "graphics_clock_mhz": 420,
    "sm_clock_mhz": 420,
    "memory_clock_mhz": 3201,
    "video_clock_mhz": 765,
    "max_graphics_clock_mhz": 1980,
    "max_sm_clock_mhz": 1980,
    "max_memory_clock_mhz": 3201,
    "max_video_clock_mhz": 1545,
    "clock_event_reasons": 1,
    "supported_clock_event_reasons": 0x1FF,
    "pstate": 0,
    "energy_mj": 1_000_000_000,
    "power_violation_ns": 0,
    "thermal_violation_ns": 0,
    "sync_boost_violation_ns": 0,
    "power_brake_violation_ns": 0,
    "pcie_tx_bytes": 0,
    "pcie_rx_bytes": 0,
    "pcie_tx_kib_s": 0,
    "pcie_rx_kib_s": 0,
    "gpm_supported": 1,
    "mig": 0,
}
"""An idle data-centre GPU that answers every query, with what one of them said."""

LEGACY: Mapping[str, Value] = {
    "name": "NVIDIA GeForce GTX 960M",
    "architecture": 3,
    "compute_capability": "5.0",
    "utilization": 0,
    "memory_utilization": 0,
    "memory_total": 4096 << 20,
    "memory_used": 3 << 20,
    "temperature": 45,
    "sm_clock_mhz": 135,
    "graphics_clock_mhz": 135,
    "memory_clock_mhz": 405,
    "pstate": 8,
}
"""An old laptop GPU without power, energy, limits, violation counters, GPM or MIG."""

UNIFIED: Mapping[str, Value] = {
    "name": "NVIDIA GB10",
    "architecture": 10,
    "compute_capability": "12.1",
    "utilization": 0,
    "memory_utilization": 0,
    "temperature": 40,
    "power_mw": 5_000,
    "sm_clock_mhz": 208,
    "graphics_clock_mhz": 208,
    "clock_event_reasons": 1,
    "pstate": 8,
    "energy_mj": 1_000_000,
}
"""A GPU that shares the host's memory and so has no memory of its own to report."""

MEASURED_DELAYS_US: Mapping[str, int] = {
    "nvmlDeviceGetTotalEnergyConsumption": 2_400,
    "nvmlDeviceGetMaxClockInfo": 800,
    "nvmlDeviceGetMarginTemperature": 500,
    "nvmlDeviceGetSamples": 800,
    "nvmlGpmMetricsGet": 1_000,
}
"""What the slow calls took on an H200; `NvmlStub.delay` takes them. PCIe throughput always
blocks for 20 ms."""

GPU_KEYS = frozenset(H200) | {
    "fan_speed",
    "graphics_processes",
    "lost",
    "mps_processes",
    "pci_bus_id",
    "process_utilization",
    "processes",
    "uuid",
    "wave",
    "wave_period_s",
}
SYSTEM_KEYS = frozenset(SYSTEM) | {"clock_us", "count", "init_error", "log_calls"}
SLICE_KEYS = {
    "graphics_processes",
    "memory_reserved",
    "memory_total",
    "memory_used",
    "mps_processes",
    "name",
    "processes",
    "uuid",
}
MOST_GPUS = 16


@functools.cache
def symbols() -> frozenset[str]:
    """Return the name of every function the stub has."""
    declared = re.findall(r"^[A-Z_]+\((nvml\w+)[,)]", SOURCE.read_text(), re.MULTILINE)
    return frozenset(declared)


def compiler() -> str | None:
    """Return the C compiler to build with, None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    return shutil.which("gcc") or shutil.which("cc")


def build(directory: Path, without: Collection[str] = ()) -> Path:
    """Compile the library under `directory` unless it is there already, and return its path.

    The symbols in `without` are left out, as an older driver would. Raises ValueError for one
    that the stub never had, and RuntimeError if there is no compiler or it fails.
    """
    _known(without, symbols(), "symbol")
    flags = sorted(f"-DWITHOUT_{symbol}" for symbol in without)
    recipe = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-pthread"]
    recipe += [f"-Wl,-soname,{SONAME}", *flags]
    digest = hashlib.sha256(SOURCE.read_bytes() + "\0".join(recipe).encode()).hexdigest()[:16]
    library = directory / f"nvml-{digest}" / SONAME
    if library.exists():
        return library
    gcc = compiler()
    if gcc is None:
        raise RuntimeError("the NVML stub needs Linux and a C compiler: install gcc")
    library.parent.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [gcc, *recipe, "-o", str(unfinished), str(SOURCE), "-lm"]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{outcome.stderr}")
    unfinished.replace(library)
    return library


@dataclass(frozen=True)
class Call:
    """One line of the log."""

    pid: int
    time_us: int
    """Microseconds since the epoch, from the real clock."""
    symbol: str
    gpu: int | None
    """The GPU asked, None for a call without a device."""
    code: int
    """What decided the call before its arguments were looked at: 0, or an NVML error."""


class NvmlStub:
    """One machine's driver: the GPUs it shows, what they answer, and what it was asked."""

    def __init__(
        self,
        directory: Path,
        gpus: int | Sequence[Mapping[str, Value]] = 1,
        *,
        without: Collection[str] = (),
        libraries: Path | None = None,
        **system: Value | None,
    ) -> None:
        """Build the library and write the first state.

        `directory` holds the state and the log, one stub each. `gpus` is one mapping a GPU, or
        how many H200 there are. `libraries` is where builds are kept, so that many stubs share
        one (`directory` if not given). `system` is as for `write`.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.library = build(libraries or directory, without)
        self.state_path = directory / "nvml-state.txt"
        self.log_path = directory / "nvml-log.txt"
        self.log_path.touch()
        self._mtime_ns = 0
        self._state: dict[str, Value] = dict(SYSTEM)
        if isinstance(gpus, int):
            gpus = [H200] * gpus
        if len(gpus) > MOST_GPUS:
            raise ValueError(f"the NVML stub has at most {MOST_GPUS} GPUs")
        for index, values in enumerate(gpus):
            own = {"uuid": _uuid(index), "pci_bus_id": f"00000000:{0x0B + 0x10 * index:02X}:00.0"}
            self._set(f"gpu.{index}.", {**own, **values}, GPU_KEYS)
        self.write(count=len(gpus), **system)

    def write(self, **state: Value | None) -> None:
        """Set values of the whole machine and show them; None takes a key away.

        They are count, driver_version, nvml_version, cuda_version (13000 is CUDA 13.0),
        init_error (the NVML code nvmlInit returns), log_calls, and clock_us, which stops the
        stub's clock at so many microseconds, so that a test moves time instead of sleeping.
        Counters run up to the new time with the values last read.
        """
        self._set("", state, SYSTEM_KEYS)
        text = "".join(f"{key}={_text(value)}\n" for key, value in self._state.items())
        unseen = self.state_path.with_suffix(".new")
        unseen.write_text(text)
        # Two writes within one tick of the file system's clock must still look different.
        self._mtime_ns = max(time.time_ns(), self._mtime_ns + 1_000)
        os.utime(unseen, ns=(self._mtime_ns, self._mtime_ns))
        unseen.replace(self.state_path)

    def gpu(self, index: int, **values: Value | None) -> None:
        """Set values of one GPU, keys as in `GPU_KEYS`; None makes the query unsupported.

        `memory_used` leaves out `memory_reserved`, as NVML's v2 does. `processes` is a
        comma-separated PID:BYTES, where PID can be `self` and BYTES `na`;
        `process_utilization` is PID:PERCENT likewise. With `wave` the values
        swing between a tenth of their size and all of it, every `wave_period_s` (10).
        """
        self._set(f"gpu.{index}.", values, GPU_KEYS)
        self.write()

    def slice(self, index: int, position: int, **values: Value | None) -> None:
        """Set values of one MIG slice; `gpu(index, mig=N)` says how many there are."""
        self._set(f"gpu.{index}.mig.{position}.", values, SLICE_KEYS)
        self.write()

    def gpm(self, index: int, metrics: Mapping[int, float | None]) -> None:
        """Set GPM metrics of one GPU by their number: percentages, or MiB/s for rates."""
        known = {str(number) for number in range(1, 477)}
        self._set(f"gpu.{index}.gpm.", {str(k): v for k, v in metrics.items()}, known)
        self.write()

    def lose(self, index: int) -> None:
        """Let a GPU fall off the bus: every call to it answers GPU_IS_LOST."""
        self.gpu(index, lost=True)

    def find(self, index: int) -> None:
        """Bring a lost GPU back."""
        self.gpu(index, lost=None)

    def fail(self, symbol: str, code: int | None, gpu: int | None = None) -> None:
        """Make a function answer an NVML error, on one GPU or on all; None mends it."""
        self._set(_scope(gpu) + "error.", {symbol: code}, symbols())
        self.write()

    def fail_field(self, index: int, field: int, code: int | None) -> None:
        """Make one field of nvmlDeviceGetFieldValues answer an NVML error; None mends it."""
        self._set(f"gpu.{index}.field_error.", {str(field): code}, {str(field)})
        self.write()

    def delay(self, delays_us: Mapping[str, int | None], gpu: int | None = None) -> None:
        """Make functions take so many microseconds, on one GPU or on all."""
        self._set(_scope(gpu) + "delay_us.", delays_us, symbols())
        self.write()

    def calls(self, *only: str) -> list[Call]:
        """Return what was logged, of all processes in order, or of the symbols in `only`.

        Initialisations, shutdowns, and GPM samples allocated and freed are always logged; other
        calls from `write(log_calls=True)` on.
        """
        _known(only, symbols(), "symbol")
        logged = []
        for line in self.log_path.read_text().splitlines():
            pid, time_us, symbol, gpu, code = line.split()
            if not only or symbol in only:
                where = None if gpu == "-1" else int(gpu)
                logged.append(Call(int(pid), int(time_us), symbol, where, int(code)))
        return logged

    def forget_calls(self) -> None:
        """Empty the log."""
        os.truncate(self.log_path, 0)

    @property
    def init_balance(self) -> int:
        """Successful initialisations that no shutdown followed, over all processes."""
        good = [call.symbol for call in self.calls() if call.code == 0]
        return sum(name.startswith("nvmlInit") for name in good) - good.count("nvmlShutdown")

    @property
    def gpm_balance(self) -> int:
        """GPM samples allocated and not freed, over all processes."""
        good = [call.symbol for call in self.calls() if call.code == 0]
        return good.count("nvmlGpmSampleAlloc") - good.count("nvmlGpmSampleFree")

    def variables(self) -> dict[str, str]:
        """Return the environment variables that lead a new process to this stub, no others."""
        found = os.environ.get("LD_LIBRARY_PATH")
        paths = [str(self.library.parent), *([found] if found else [])]
        return {"LD_LIBRARY_PATH": os.pathsep.join(paths), **self._files()}

    def environment(self) -> dict[str, str]:
        """Return a whole environment for a subprocess or a kernel: this process's, and ours."""
        return {**os.environ, **self.variables()}

    @contextmanager
    def load_in_process(self) -> Iterator[None]:
        """Make this stub the driver of the running process for the length of a with block.

        The library stays loaded afterwards, as nothing can unload it; the next stub of the same
        build takes it over. Initialisations left over at the end are undone without a trace in
        the log: read `init_balance` inside the block. Raises RuntimeError if the process already
        has another libnvidia-ml: use a subprocess for a second build.
        """
        ours = ctypes.CDLL(str(self.library))
        if ctypes.CDLL(SONAME)._handle != ours._handle:
            raise RuntimeError(f"this process already has another {SONAME}: use a subprocess")
        before = {name: os.environ.get(name) for name in self._files()}
        os.environ.update(self._files())
        try:
            yield
        finally:
            del os.environ["NVML_STUB_LOG"]
            while ours.nvmlShutdown() == 0:
                pass
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _files(self) -> dict[str, str]:
        return {"NVML_STUB_STATE": str(self.state_path), "NVML_STUB_LOG": str(self.log_path)}

    def _set(
        self, prefix: str, values: Mapping[str, Value | None], allowed: Collection[str]
    ) -> None:
        _known(values, allowed, "key")
        for key, value in values.items():
            if value is None:
                self._state.pop(prefix + key, None)
            else:
                self._state[prefix + key] = value


def _known(names: Collection[str], allowed: Collection[str], kind: str) -> None:
    unknown = sorted(set(names) - set(allowed))
    if unknown:
        raise ValueError(f"the NVML stub has no {kind} {', '.join(unknown)}")


def _scope(gpu: int | None) -> str:
    return "" if gpu is None else f"gpu.{gpu}."


def _uuid(index: int) -> str:
    return f"GPU-{hashlib.sha256(bytes([index])).hexdigest()[:8]}-7e57-4000-8000-{index:012x}"


def _text(value: Value) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
