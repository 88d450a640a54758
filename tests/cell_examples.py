"""Cells made of chosen figures, for the rules: ``cell(12, util=0.2, cpu=1.0).findings()``.

Each figure is a number or a function of the seconds since the cell's begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fakes import GIB, GPU, HOST_DEVICE, START, fill, recording_of, ticks
from gpumagic.diagnosis import Finding, Thresholds, diagnose
from gpumagic.recording import Recording
from gpumagic.sample import Span, SpanStatus
from gpumagic.summary import Summary, summarise
from gpumagic.waterfall import MemoryState, Part, Waterfall

__all__ = ["TOTAL", "Cell", "cell", "memory"]

TOTAL = 140.0 * GIB

NAMES: Mapping[str, tuple[str, str]] = {
    "util": ("nvml", "gpu_utilization_ratio"),
    "used": ("nvml", "gpu_memory_used_bytes"),
    "power": ("nvml", "gpu_power_watts"),
    "temp": ("nvml", "gpu_temperature_celsius"),
    "clock": ("nvml", "gpu_sm_clock_hertz"),
    "reasons": ("nvml", "gpu_clock_event_reasons_state"),
    "process": ("nvml_slow", "gpu_process_memory_bytes"),
    "others": ("nvml_slow", "gpu_other_processes_memory_bytes"),
    "others_load": ("nvml_slow", "gpu_other_processes_utilization_ratio"),
    "sm": ("gpm", "gpu_sm_active_ratio"),
    "tensor": ("gpm", "gpu_tensor_active_ratio"),
    "dram": ("gpm", "gpu_dram_active_ratio"),
    "receive": ("gpm", "gpu_pcie_receive_bytes_per_second"),
    "transmit": ("gpm", "gpu_pcie_transmit_bytes_per_second"),
    "allocated": ("allocator", "torch_allocated_bytes"),
    "reserved": ("allocator", "torch_reserved_bytes"),
    "split": ("allocator", "torch_inactive_split_bytes"),
    "retries": ("allocator", "torch_alloc_retries_count"),
    "ooms": ("allocator", "torch_ooms_count"),
    "cpu": ("host", "process_cpu_ratio"),
    "main": ("host", "main_thread_cpu_ratio"),
    "children": ("host", "children_cpu_ratio"),
    "child_count": ("host", "children_count"),
    "machine": ("host", "host_cpu_ratio"),
    "workers": ("host", "workers_count"),
    "workers_cpu": ("host", "workers_cpu_ratio"),
    "ram": ("host", "container_memory_used_bytes"),
    "pressure": ("host", "io_pressure_seconds"),
    "periods": ("host", "container_cpu_periods_count"),
    "held_periods": ("host", "container_cpu_throttled_periods_count"),
    "held": ("host", "container_cpu_throttled_seconds"),
    "place": ("cell", "cell_place_state"),
}
"""The short names of figures, with their source and metric."""

PERIODS = {"nvml": 0.1, "allocator": 0.1, "cell": 0.1, "gpm": 0.2, "nvml_slow": 1.0, "host": 1.0}

Value = float | Callable[[float], float]


def memory(live: float, cached: float = 0.0, others: float = 0.0) -> Waterfall:
    """Make a waterfall of one state, the highest, in GiB; the rest of 140 GiB is free."""
    parts = (
        Part("live tensors", live * GIB), Part("cached", cached * GIB),
        Part("context", 0.5 * GIB), Part("other processes", others * GIB),
        Part("driver", 0.5 * GIB), Part("free", TOTAL - (live + cached + others + 1) * GIB),
    )
    return Waterfall(GPU, TOTAL, (MemoryState("highest", START + 1, parts),))


@dataclass(frozen=True)
class Cell:
    """A summarised cell, ready to be judged."""

    recording: Recording
    summary: Summary
    waterfalls: tuple[Waterfall, ...]

    def findings(self, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
        """Judge it."""
        return diagnose(
            self.recording, self.summary, waterfalls=self.waterfalls, thresholds=thresholds
        )

    @property
    def rules(self) -> set[str]:
        """The names of the rules that speak."""
        return {finding.rule for finding in self.findings()}

    def finding(self, rule: str) -> Finding:
        """Return what a rule says; it has to speak."""
        return next(finding for finding in self.findings() if finding.rule == rule)


def cell(
    seconds: float = 12.0,
    *,
    waterfall: Waterfall | None = None,
    cores: float = 8.0,
    gpu: bool = True,
    absent: Mapping[str, str] | None = None,
    status: SpanStatus = "ok",
    own: bool = True,
    **figures: Value,
) -> Cell:
    """Make a cell of some seconds; readings go on for a second on both sides of it.

    ``own`` says that the driver lists this process on the GPU.
    """
    device = replace(
        GPU, absent=dict(absent or {}),
        constants={
            "gpu_memory_total_bytes": TOTAL, "gpu_power_limit_watts": 700.0,
            "gpu_temperature_slowdown_celsius": 89.0, "gpu_sm_clock_max_hertz": 1.98e9,
        },
    )
    host = replace(
        HOST_DEVICE,
        constants={
            "host_cpu_count": 16.0, "host_cpu_limit_ratio": cores,
            "host_memory_limit_bytes": 64.0 * GIB,
        },
    )
    recording = recording_of(*([device] if gpu else []), host)
    by_source: dict[str, dict[str, Value]] = {}
    if own:
        figures = {"process": GIB, **figures}
    for name, value in figures.items():
        source, metric = NAMES[name]
        by_source.setdefault(source, {})[metric] = _since_start(value)
    for source, values in by_source.items():
        owner = host if source in ("host", "cell") else device
        period = PERIODS[source]
        fill(recording, ticks(START - 1, START + seconds + 1, period), owner, source, **values)
    span = Span(1, START, START + seconds, number=1, status=status)
    return Cell(recording, summarise(recording, span), (waterfall,) if waterfall else ())


def _since_start(value: Value) -> Value:
    if callable(value):
        given = value
        return lambda time: given(time - START)
    return value
