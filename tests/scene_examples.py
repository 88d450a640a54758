"""Small recordings for tests of scenes and of what draws them."""

from __future__ import annotations

import math
import random

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


def busy(gpus: int = 2, *, others: bool = True, hot: int | None = None) -> Recording:
    """Return a minute of training with all that a scene can show; ``hot`` is a GPU that throttles.

    Cells: 11 failed, 12 passed, 13 failed for want of memory, 14 is running. A gap, a mark,
    workers, power cap, and on GPU 0 another process from the middle on.
    """
    rnd = random.Random(7)
    recording = empty(*(gpu(i) for i in range(gpus)), host())
    recording.periods.update(nvml=0.1, allocator=0.1, gpm=0.2, nvml_slow=1.0, host=1.0)
    cells = ((3, 8, "error"), (12, 20, "ok"), (22, 34, "error"), (37, None, "running"))
    for number, (begin, finish, status) in enumerate(cells, start=11):
        end = None if finish is None else START + finish
        recording.add_span(Span(number, START + begin, end, number, status=status))  # type: ignore[arg-type]
    for step in range(600):
        second = step / 10 + 0.05
        load = any(a <= second < (60 if b is None else b) for a, b, _ in cells)
        at = START + second
        for index in range(gpus):
            device = f"GPU-{index}"
            foreign = 6.2 if others and index == 0 and second > 30 else 0.0
            base = (38 + 0.5 * second if index == 0 else 24) if second > 12 else 3.0
            allocated = base * (0.9 + 0.05 * math.sin(second * 3)) * 0.7
            hold = (second > 48 and index == 0) or (index == hot and second > 44)
            if not 26 <= second < 28:
                recording.append(Sample(at, device, "nvml", {
                    "gpu_utilization_ratio": 0.9 + 0.1 * rnd.random() if load else 0.0,
                    "gpu_memory_used_bytes": (base + 2 + foreign) * GIB,
                    "gpu_power_watts": 600 + 90 * rnd.random() if load else 120.0,
                    "gpu_temperature_celsius": min(
                        87 if index == hot else 64, 40 + second * (1.1 if load else 0.6)
                    ),
                    "gpu_clock_event_reasons_state": (
                        (0x20 if index == hot else 4) if hold else 0
                    ),
                }))
            recording.append(Sample(at, device, "allocator", {
                "torch_reserved_bytes": base * GIB, "torch_allocated_bytes": allocated * GIB,
                "torch_ooms_count": float(index == 0 and second > 33.8),
                "torch_alloc_retries_count": float(
                    (index == 0) * sum(second > t for t in (33.7, 47.0, 48.2, 48.9))
                ),
            }))
            if step % 2 == 0:
                share = (0.7 + 0.1 * rnd.random()) if load else 0.0
                recording.append(Sample(at, device, "gpm", {"gpu_sm_active_ratio": share}))
            if step % 10 == 0:
                recording.append(Sample(at, device, "nvml_slow", {
                    "gpu_other_processes_memory_bytes": foreign * GIB,
                    "gpu_other_processes_utilization_ratio": 0.12 if foreign else 0.0,
                }))
        if step % 10 == 0:
            recording.append(Sample(at, HOST, "host", {
                "process_cpu_ratio": 0.9, "children_cpu_ratio": 4.1, "children_count": 5,
                "workers_count": 4 if load else 0, "workers_cpu_ratio": 4.0 if load else 0.0,
                "host_memory_used_bytes": 41.7 * GIB,
            }))
    with_gap(recording, START + 26, START + 28, "the driver did not answer")
    recording.add_mark(Mark(START + 54, "epoch 3"))
    return recording
