"""Small recordings for tests of scenes and of what draws them."""

from __future__ import annotations

from gpumagic.recording import Recording
from gpumagic.sample import HOST, Device, Gap, Mark, Sample, Span

GIB = 1 << 30
NOW = 1_796_000_060.0
LENGTH = 60.0
START = NOW - LENGTH

CONSTANTS = {
    "gpu_memory_total_bytes": 80 * GIB,
    "gpu_power_limit_watts": 700.0,
    "gpu_temperature_slowdown_celsius": 87.0,
}


def gpu(index: int = 0, **more: object) -> Device:
    """Return a GPU of which torch's index and NVML's are the same."""
    settings = {"name": "NVIDIA H200", "torch_index": index, "constants": CONSTANTS, **more}
    return Device(f"GPU-{index}", "gpu", nvml_index=index, **settings)  # type: ignore[arg-type]


def host() -> Device:
    """Return a host with 8 cores and 64 GiB."""
    limits = {
        "host_cpu_limit_ratio": 8.0, "host_memory_limit_bytes": 64.0 * GIB,
        "host_memory_total_bytes": 64.0 * GIB,
    }
    return Device(HOST, "host", "host", constants=limits)


def empty(*devices: Device) -> Recording:
    """Return a recording that knows its devices and periods, and holds no sample."""
    recording = Recording()
    recording.periods.update(nvml=0.5, allocator=0.5, host=1.0)
    for device in devices:
        recording.add_device(device)
    return recording


def feed(
    recording: Recording,
    device: str,
    source: str,
    *,
    every: float = 0.5,
    start: float = START,
    end: float = NOW,
    **values: float,
) -> None:
    """Add readings of one source, all alike, from ``start`` to before ``end``."""
    for index in range(round((end - start) / every)):
        recording.append(Sample(start + (index + 0.5) * every, device, source, dict(values)))


def training(gpus: int = 1, *, with_host: bool = True, end: float = NOW) -> Recording:
    """Return a minute in which cell 12 passed, cell 13 failed and cell 14 is running."""
    recording = empty(*(gpu(i) for i in range(gpus)), *([host()] if with_host else []))
    for index in range(gpus):
        feed(
            recording, f"GPU-{index}", "nvml", end=end,
            gpu_utilization_ratio=0.75, gpu_memory_used_bytes=40 * GIB,
            gpu_power_watts=350.0 + index, gpu_temperature_celsius=60.0,
            gpu_clock_event_reasons_state=0,
        )
        feed(
            recording, f"GPU-{index}", "allocator", end=end,
            torch_reserved_bytes=30 * GIB, torch_allocated_bytes=20 * GIB,
        )
    if with_host:
        feed(
            recording, HOST, "host", every=1.0, end=end,
            process_cpu_ratio=1.0, children_cpu_ratio=3.0, children_count=4,
            host_memory_used_bytes=32 * GIB,
        )
    recording.add_span(Span(1, START + 5, START + 15, 12, status="ok"))
    recording.add_span(Span(2, START + 20, START + 35, 13, status="error"))
    recording.add_span(Span(3, START + 38, None, 14))
    recording.add_mark(Mark(START + 55, "epoch 3"))
    return recording


def with_gap(recording: Recording, start: float, end: float | None, reason: str) -> Recording:
    """Add a gap of the source ``nvml``."""
    recording.add_gap(Gap(start, end, "nvml", None, reason))
    return recording
