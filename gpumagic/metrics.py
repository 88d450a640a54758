"""METRICS: one row for each thing that is measured.

To add a metric, add a row here and read it in the source that the row names. Names carry
their base unit and are the same everywhere: in Python, JSON lines, pandas and exporters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

__all__ = [
    "CELL_PLACES",
    "CLOCK_EVENT_REASONS",
    "LIMITED_SECONDS",
    "METRICS",
    "THROTTLE_REASONS",
    "Metric",
    "of_source",
    "throttle_names",
]

Unit = Literal[
    "ratio", "cores", "bytes", "bytes/s", "watts", "joules", "celsius", "hertz", "seconds",
    "count", "state",
]
Kind = Literal["gauge", "counter", "constant"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is measured.

    ``kind``: a gauge is a value now, a counter only grows, a constant is read once.
    ``window_s`` is the time that a value averages over and ``refresh_s`` how often the device
    renews it; a reading can therefore speak of the last ``window_s + refresh_s`` seconds.
    ``rate_of`` names the counter whose difference over time the gauge is.
    ``ceiling`` names the constant that a gauge cannot pass, or is the number itself.
    ``call`` is where the number comes from.
    """

    name: str
    title: str
    unit: Unit
    kind: Kind
    source: str
    call: str
    help: str
    window_s: float = 0.0
    refresh_s: float = 0.0
    ceiling: str | float | None = None
    rate_of: str | None = None

    @property
    def reach_s(self) -> float:
        """How far back in time a reading can speak, in seconds."""
        return self.window_s + self.refresh_s


def _nvml(name: str, title: str, unit: Unit, call: str, help: str, **more: object) -> Metric:
    kind: Kind = more.pop("kind", "gauge")  # type: ignore[assignment]
    source: str = more.pop("source", "nvml")  # type: ignore[assignment]
    return Metric(name, title, unit, kind, source, call, help, **more)  # type: ignore[arg-type]


def _gpm(name: str, title: str, unit: Unit, number: str, help: str) -> Metric:
    return Metric(
        name, title, unit, "gauge", "gpm", f"nvmlGpmMetricsGet: metric {number}", help,
        window_s=0.2, refresh_s=0.2, ceiling=1.0 if unit == "ratio" else None,
    )


def _limited(name: str, title: str, field: str, help: str) -> Metric:
    return Metric(
        name, title, "seconds", "counter", "nvml_slow", f"nvmlDeviceGetFieldValues: field {field}",
        help, refresh_s=0.1,
    )


def _torch(name: str, title: str, unit: Unit, key: str, help: str, kind: Kind = "gauge") -> Metric:
    ceiling = "gpu_memory_total_bytes" if unit == "bytes" else None
    call = f"torch.cuda.memory_stats_as_nested_dict: {key}"
    return Metric(name, title, unit, kind, "allocator", call, help, ceiling=ceiling)


_ROWS: tuple[Metric, ...] = (
    # GPU, ten times a second
    _nvml(
        "gpu_utilization_ratio", "GPU-Util", "ratio", "nvmlDeviceGetUtilizationRates .gpu",
        "Share of the window in which at least one kernel or copy was running; says nothing of"
        " how much of the GPU it filled.", window_s=0.2, refresh_s=0.2, ceiling=1.0,
    ),
    _nvml(
        "gpu_memory_utilization_ratio", "memory controller", "ratio",
        "nvmlDeviceGetUtilizationRates .memory",
        "Share of the window in which device memory was being read or written.",
        window_s=0.2, refresh_s=0.2, ceiling=1.0,
    ),
    _nvml(
        "gpu_memory_used_bytes", "memory used", "bytes", "nvmlDeviceGetMemoryInfo_v2 .used",
        "Device memory in use by all processes, without what the driver reserves (with it"
        " where only version 1 of the call answers; the device's notes say so).",
        ceiling="gpu_memory_total_bytes",
    ),
    _nvml(
        "gpu_memory_free_bytes", "memory free", "bytes", "nvmlDeviceGetMemoryInfo_v2 .free",
        "Device memory that nobody holds.", ceiling="gpu_memory_total_bytes",
    ),
    _nvml(
        "gpu_memory_reserved_bytes", "driver-reserved", "bytes",
        "nvmlDeviceGetMemoryInfo_v2 .reserved", "Device memory that the driver keeps for itself.",
        ceiling="gpu_memory_total_bytes",
    ),
    _nvml(
        "gpu_power_watts", "power", "watts", "nvmlDeviceGetPowerUsage",
        "Board power; a mean over one second on most Ampere and newer parts.",
        window_s=1.0, refresh_s=0.1, ceiling="gpu_power_limit_watts",
    ),
    _nvml(
        "gpu_temperature_celsius", "temperature", "celsius", "nvmlDeviceGetTemperature (GPU core)",
        "Temperature of the GPU core.", refresh_s=0.1, ceiling="gpu_temperature_slowdown_celsius",
    ),
    _nvml(
        "gpu_sm_clock_hertz", "SM clock", "hertz", "nvmlDeviceGetClockInfo (SM)",
        "Present clock of the SMs.", refresh_s=0.1, ceiling="gpu_sm_clock_max_hertz",
    ),
    _nvml(
        "gpu_memory_clock_hertz", "memory clock", "hertz", "nvmlDeviceGetClockInfo (MEM)",
        "Present clock of the device memory.", refresh_s=0.1,
        ceiling="gpu_memory_clock_max_hertz",
    ),
    _nvml(
        "gpu_clock_event_reasons_state", "clock event reasons", "state",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "Bits that say why the clocks are below their maximum; see CLOCK_EVENT_REASONS.",
        refresh_s=0.1,
    ),
    _nvml(
        "gpu_performance_state", "performance state", "state", "nvmlDeviceGetPerformanceState",
        "P0 (highest) to P15 (lowest).", refresh_s=0.1,
    ),
    _nvml(
        "gpu_encoder_utilization_ratio", "encoder", "ratio", "nvmlDeviceGetEncoderUtilization",
        "Share of the window in which the video encoder was busy.",
        window_s=0.2, refresh_s=0.2, ceiling=1.0,
    ),
    _nvml(
        "gpu_decoder_utilization_ratio", "decoder", "ratio", "nvmlDeviceGetDecoderUtilization",
        "Share of the window in which the video decoder was busy.",
        window_s=0.2, refresh_s=0.2, ceiling=1.0,
    ),
    # GPU, once a second and at the ends of a cell
    _nvml(
        "gpu_energy_joules", "energy", "joules", "nvmlDeviceGetTotalEnergyConsumption",
        "Energy since the driver was loaded; a difference of two readings is the energy between"
        " them.", kind="counter", source="nvml_slow", refresh_s=0.1,
    ),
    _nvml(
        "gpu_process_memory_bytes", "this process", "bytes",
        "nvmlDeviceGetComputeRunningProcesses, our PID",
        "Device memory of this process: torch's, the CUDA context and every other library's.",
        source="nvml_slow", ceiling="gpu_memory_total_bytes",
    ),
    _nvml(
        "gpu_other_processes_memory_bytes", "other processes", "bytes",
        "nvmlDeviceGetComputeRunningProcesses, other PIDs",
        "Device memory of other processes, this process's children among them.",
        source="nvml_slow", ceiling="gpu_memory_total_bytes",
    ),
    _nvml(
        "gpu_other_processes_utilization_ratio", "other processes' share", "ratio",
        "nvmlDeviceGetProcessUtilization .smUtil, other PIDs",
        "Share of the time in which kernels of other processes ran, this process's children"
        " among them.", source="nvml_slow", window_s=1.0, refresh_s=1.0, ceiling=1.0,
    ),
    _limited(
        "gpu_power_limited_seconds", "power cap", "74 (PERF_POLICY_POWER)",
        "Seconds in which the power cap held the clocks back, since the driver was loaded.",
    ),
    _limited(
        "gpu_thermal_limited_seconds", "thermal", "75 (PERF_POLICY_THERMAL)",
        "Seconds in which heat held the clocks back, since the driver was loaded.",
    ),
    _limited(
        "gpu_sync_boost_limited_seconds", "sync boost", "76 (PERF_POLICY_SYNC_BOOST)",
        "Seconds in which a group of GPUs held to one clock held this one back.",
    ),
    _limited(
        "gpu_power_brake_limited_seconds", "power brake", "271 (HW_POWER_BRAKE_SLOWDOWN)",
        "Seconds in which the power brake of the machine held the clocks back.",
    ),
    # GPU, five times a second, where the hardware counts what its SMs do (Hopper and newer)
    _gpm(
        "gpu_sm_active_ratio", "SM active", "ratio", "2 (SM_UTIL)",
        "Share of the window in which an SM had a warp, averaged over all SMs: how much of the"
        " GPU was used.",
    ),
    _gpm(
        "gpu_sm_occupancy_ratio", "SM occupancy", "ratio", "3 (SM_OCCUPANCY)",
        "Warps on the SMs as a share of those that they can hold.",
    ),
    _gpm(
        "gpu_tensor_active_ratio", "tensor cores", "ratio", "5 (ANY_TENSOR_UTIL)",
        "Share of the window in which tensor cores were busy.",
    ),
    _gpm(
        "gpu_dram_active_ratio", "memory bandwidth", "ratio", "10 (DRAM_BW_UTIL)",
        "Bandwidth of device memory in use, as a share of what it can do.",
    ),
    _gpm(
        "gpu_pcie_receive_bytes_per_second", "PCIe to GPU", "bytes/s", "21 (PCIE_RX_PER_SEC)",
        "Bytes that came over PCIe to the GPU, a second.",
    ),
    _gpm(
        "gpu_pcie_transmit_bytes_per_second", "PCIe from GPU", "bytes/s", "20 (PCIE_TX_PER_SEC)",
        "Bytes that left the GPU over PCIe, a second.",
    ),
    # GPU, once
    _nvml(
        "gpu_memory_total_bytes", "memory", "bytes", "nvmlDeviceGetMemoryInfo_v2 .total",
        "Device memory in all.", kind="constant",
    ),
    _nvml(
        "gpu_power_limit_watts", "power cap", "watts", "nvmlDeviceGetEnforcedPowerLimit",
        "The power cap in force.", kind="constant",
    ),
    _nvml(
        "gpu_temperature_slowdown_celsius", "slowdown temperature", "celsius",
        "nvmlDeviceGetTemperatureThreshold (SLOWDOWN)",
        "Temperature at which the hardware lowers its clocks.", kind="constant",
    ),
    _nvml(
        "gpu_sm_clock_max_hertz", "maximum SM clock", "hertz", "nvmlDeviceGetMaxClockInfo (SM)",
        "Highest clock of the SMs.", kind="constant",
    ),
    _nvml(
        "gpu_memory_clock_max_hertz", "maximum memory clock", "hertz",
        "nvmlDeviceGetMaxClockInfo (MEM)", "Highest clock of the device memory.", kind="constant",
    ),
    # torch's CUDA allocator, ten times a second, on the GPU's row
    _torch(
        "torch_allocated_bytes", "allocated", "bytes", "allocated_bytes.all.current",
        "Bytes in live tensors of this process.",
    ),
    _torch(
        "torch_reserved_bytes", "reserved", "bytes", "reserved_bytes.all.current",
        "Bytes that torch's caching allocator holds, live tensors included.",
    ),
    _torch(
        "torch_active_bytes", "active", "bytes", "active_bytes.all.current",
        "Bytes in blocks in use, or waiting for a stream to let go of them.",
    ),
    _torch(
        "torch_requested_bytes", "requested", "bytes", "requested_bytes.all.current",
        "Bytes that tensors asked for, before rounding up to blocks.",
    ),
    _torch(
        "torch_inactive_split_bytes", "inactive split", "bytes",
        "inactive_split_bytes.all.current",
        "Free bytes in segments that live blocks pin: the part of the cache that cannot be"
        " returned.",
    ),
    _torch(
        "torch_allocated_peak_bytes", "allocated peak", "bytes", "allocated_bytes.all.peak",
        "Highest allocated bytes since the user last reset the peak, or since start.",
    ),
    _torch(
        "torch_reserved_peak_bytes", "reserved peak", "bytes", "reserved_bytes.all.peak",
        "Highest reserved bytes since the user last reset the peak, or since start.",
    ),
    _torch(
        "torch_alloc_retries_count", "allocator retries", "count", "num_alloc_retries",
        "How often the allocator had to empty its cache and ask the driver again.", "counter",
    ),
    _torch(
        "torch_ooms_count", "out of memory", "count", "num_ooms",
        "How often an allocation failed for want of memory.", "counter",
    ),
    # The cell, ten times a second
    Metric(
        "cell_place_state", "where the cell is", "state", "gauge", "cell",
        "sys._current_frames of the main thread",
        "The part of the program that the main thread is in while a cell runs; see CELL_PLACES."
        " A wait inside a call such as .item() or .cpu() counts as the place that made the call.",
    ),
    # Host, once a second
    Metric(
        "process_cpu_seconds", "this process", "seconds", "counter", "host",
        "psutil.Process.cpu_times: user + system",
        "Processor seconds of this process since its start.",
    ),
    Metric(
        "children_cpu_seconds", "children", "seconds", "counter", "host",
        "psutil.Process.cpu_times: children_user + children_system, and cpu_times of the living",
        "Processor seconds of this process's children since sampling began, of all generations,"
        " the ended ones included (on Linux). Not seen: what outlives its parent, and the last"
        " moments of children that nobody waits for (SIGCHLD ignored).",
    ),
    Metric(
        "host_cpu_seconds", "CPU", "seconds", "counter", "host",
        "psutil.cpu_times without idle and iowait",
        "Processor seconds of all processes since the machine's start.",
    ),
    Metric(
        "process_cpu_ratio", "this process", "cores", "gauge", "host",
        "psutil.Process.cpu_times, difference over the interval",
        "Processor time of this process; 1.0 is one core.",
        window_s=1.0, rate_of="process_cpu_seconds",
        ceiling="host_cpu_limit_ratio",
    ),
    Metric(
        "children_cpu_ratio", "children", "cores", "gauge", "host",
        "children_cpu_seconds, difference over the interval",
        "Processor time of this process's children (DataLoader workers, commands), as far as"
        " children_cpu_seconds sees them; 1.0 is one core.",
        window_s=1.0, rate_of="children_cpu_seconds",
        ceiling="host_cpu_limit_ratio",
    ),
    Metric(
        "main_thread_cpu_seconds", "main thread", "seconds", "counter", "host",
        "time.clock_gettime of the main thread's CPU clock",
        "Processor seconds of the main thread, which runs the cells.",
    ),
    Metric(
        "main_thread_cpu_ratio", "main thread", "cores", "gauge", "host",
        "main_thread_cpu_seconds, difference over the interval",
        "Processor time of the main thread; 1.0 is one core full. A wait that spins, as CUDA's"
        " does by default, counts as well.",
        window_s=1.0, rate_of="main_thread_cpu_seconds", ceiling=1.0,
    ),
    Metric(
        "workers_count", "workers", "count", "gauge", "host",
        "children whose name in /proc/PID/stat is pt_data_worker",
        "Number of worker processes of torch's DataLoaders (torch 2.5 and newer, on Linux).",
    ),
    Metric(
        "workers_cpu_ratio", "workers", "cores", "gauge", "host",
        "psutil.Process.cpu_times of each worker, difference over the interval",
        "Processor time of all DataLoader workers that lived through the interval.",
        window_s=1.0, ceiling="host_cpu_limit_ratio",
    ),
    Metric(
        "workers_busiest_cpu_ratio", "busiest worker", "cores", "gauge", "host",
        "psutil.Process.cpu_times of each worker, difference over the interval",
        "Processor time of the DataLoader worker that used the most; 1.0 is one core full.",
        window_s=1.0,
    ),
    Metric(
        "workers_idlest_cpu_ratio", "idlest worker", "cores", "gauge", "host",
        "psutil.Process.cpu_times of each worker, difference over the interval",
        "Processor time of the DataLoader worker that used the least.", window_s=1.0,
    ),
    Metric(
        "container_cpu_throttled_seconds", "held back by the quota", "seconds", "counter", "host",
        "cgroup v2 cpu.stat throttled_usec, v1 cpu.stat throttled_time",
        "Seconds that the container waited because its processor quota was used up, summed over"
        " processors: they can be more than the time that passed.",
    ),
    Metric(
        "container_cpu_periods_count", "quota periods", "count", "counter", "host",
        "cgroup cpu.stat nr_periods", "Periods of the processor quota in which something ran.",
    ),
    Metric(
        "container_cpu_throttled_periods_count", "quota periods held back", "count", "counter",
        "host", "cgroup cpu.stat nr_throttled",
        "Periods in which the container used its processor quota up and had to wait.",
    ),
    Metric(
        "io_pressure_seconds", "waiting for storage", "seconds", "counter", "host",
        "cgroup v2 io.pressure, else /proc/pressure/io: some total",
        "Seconds in which at least one task of the container (or the machine) waited for"
        " storage.",
    ),
    Metric(
        "children_count", "children", "count", "gauge", "host",
        "psutil.Process.children", "Number of child processes, all generations.",
    ),
    Metric(
        "process_rss_bytes", "resident memory", "bytes", "gauge", "host",
        "psutil.Process.memory_info .rss", "Resident memory of this process.",
        ceiling="host_memory_limit_bytes",
    ),
    Metric(
        "children_rss_bytes", "children's memory", "bytes", "gauge", "host",
        "psutil.Process.memory_info .rss of each child",
        "Resident memory of the children; pages shared with this process count again.",
        ceiling="host_memory_limit_bytes",
    ),
    Metric(
        "host_cpu_ratio", "CPU", "cores", "gauge", "host",
        "psutil.cpu_times, difference over the interval",
        "Processor time of all processes of the machine; 1.0 is one core.", window_s=1.0,
        rate_of="host_cpu_seconds", ceiling="host_cpu_count",
    ),
    Metric(
        "host_memory_used_bytes", "RAM", "bytes", "gauge", "host",
        "psutil.virtual_memory: total - available",
        "Memory of the machine that is not available to new programs.",
        ceiling="host_memory_total_bytes",
    ),
    Metric(
        "container_memory_used_bytes", "container memory", "bytes", "gauge", "host",
        "cgroup v2 memory.current, v1 memory.usage_in_bytes, less inactive file pages",
        "Memory that counts against the container's limit.", ceiling="host_memory_limit_bytes",
    ),
    Metric(
        "host_cpu_count", "cores of the machine", "cores", "constant", "host",
        "psutil.cpu_count", "Logical processors of the machine.",
    ),
    Metric(
        "host_cpu_limit_ratio", "cores usable", "cores", "constant", "host",
        "minimum of cgroup v2 cpu.max, v1 cpu.cfs_quota_us, and the affinity mask",
        "Processors that this process may use; 1.0 is one core.",
    ),
    Metric(
        "host_memory_total_bytes", "RAM", "bytes", "constant", "host",
        "psutil.virtual_memory .total", "Memory of the machine.",
    ),
    Metric(
        "host_memory_limit_bytes", "memory usable", "bytes", "constant", "host",
        "minimum of cgroup v2 memory.max, v1 memory.limit_in_bytes, and the machine's memory",
        "Memory that this process may use.",
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({row.name: row for row in _ROWS})
"""All metrics by name, in the order in which reports list them."""

CLOCK_EVENT_REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x001: "idle",
        0x002: "application clocks",
        0x004: "power cap",
        0x008: "hardware slowdown",
        0x010: "sync boost",
        0x020: "thermal (software)",
        0x040: "thermal (hardware)",
        0x080: "power brake",
        0x100: "display clocks",
    }
)
"""The bits of ``gpu_clock_event_reasons_state``, from nvml.h."""

CELL_PLACES: Mapping[int, str] = MappingProxyType(
    {
        0: "other code",
        1: "waiting for the workers of a DataLoader",
        2: "loading data in this process",
        3: "waiting for the GPU",
        4: "in a model or an optimizer",
        5: "compiling a model",
    }
)
"""The values of ``cell_place_state``; the first that applies of 1, 2, 3, 5, 4."""

LIMITED_SECONDS: Mapping[str, str] = MappingProxyType(
    {
        "gpu_power_limited_seconds": "power cap",
        "gpu_thermal_limited_seconds": "thermal",
        "gpu_sync_boost_limited_seconds": "sync boost",
        "gpu_power_brake_limited_seconds": "power brake",
    }
)
"""The counters of time in which clocks were held back, with the reason that each counts."""

THROTTLE_REASONS: frozenset[int] = frozenset({0x004, 0x008, 0x010, 0x020, 0x040, 0x080})
"""The reasons that hold work back; idle, application and display clocks do not."""

_THROTTLE_MASK = sum(THROTTLE_REASONS)


def throttle_names(bits: float) -> tuple[str, ...]:
    """Name the reasons in a reading of ``gpu_clock_event_reasons_state`` that hold work back."""
    held = int(bits) & _THROTTLE_MASK
    return tuple(text for bit, text in CLOCK_EVENT_REASONS.items() if held & bit)


def of_source(source: str, *, kinds: Iterable[Kind] = ("gauge", "counter")) -> tuple[Metric, ...]:
    """List the metrics that a source reads, in table order."""
    wanted = frozenset(kinds)
    return tuple(row for row in _ROWS if row.source == source and row.kind in wanted)
