"""Profiles of made-up cells for the tests of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gpumagic.profiles import Profile
from gpumagic.recording import Recording
from gpumagic.sample import HOST, Device, Sample, Span, SpanStatus
from gpumagic.summary import summarise
from gpumagic.views.scene import build_scene

GIB = float(1 << 30)
START = 1_796_000_000.0
POWER_CAP = 4.0
IDLE = 1.0

H200: Mapping[str, float] = {
    "gpu_memory_total_bytes": 139.8 * GIB,
    "gpu_power_limit_watts": 700.0,
    "gpu_temperature_slowdown_celsius": 87.0,
}
PERIODS = {"nvml": 0.1, "allocator": 0.1, "nvml_slow": 1.0, "host": 1.0}

Values = Mapping[str, float]
Curve = Callable[[float], Values]


def gpu(index: int = 0, **more: object) -> Device:
    """Return an H200."""
    settings: dict[str, object] = {
        "name": "NVIDIA H200", "torch_index": index, "constants": H200, **more
    }
    return Device(f"GPU-{index}", "gpu", nvml_index=index, **settings)  # type: ignore[arg-type]


def host() -> Device:
    """Return a host with 8 cores and 64 GiB."""
    return Device(HOST, "host", "Host", constants={
        "host_cpu_limit_ratio": 8.0, "host_memory_limit_bytes": 64 * GIB,
        "host_memory_total_bytes": 64 * GIB,
    })


def recording(*devices: Device) -> Recording:
    """Return a recording without samples."""
    found = Recording()
    found.periods.update(PERIODS)
    for device in devices:
        found.add_device(device)
    return found


def feed(found: Recording, device: str, source: str, curve: Curve, wall: float) -> None:
    """Read a curve (of seconds since the cell's start) just before, in and just after a cell."""
    period = PERIODS[source]
    inside = [(i + 0.5) * period for i in range(math.ceil(wall / period - 0.5))]
    for time in [-0.02, *(t for t in inside if t < wall), wall + 0.02]:
        found.append(Sample(START + time, device, source, dict(curve(time))))


def nvml(time: float) -> Values:
    """Wait for data for 5.9 seconds, then work at the power cap."""
    waits = time < 5.9
    wave = math.sin(time * 5) * math.sin(time * 2.3)
    held = time > 6.9 and not 8.2 < time < 9.0
    return {
        "gpu_utilization_ratio": max(0.0, min(1.0, 0.5 + 0.25 * wave)) if waits else 0.99,
        "gpu_memory_used_bytes": (25.4 + min(1, max(0, time) / 0.6) * 41.4) * GIB,
        "gpu_power_watts": 196 + 180 * min(1, max(0, time)) if waits else min(
            686.0, 376 + 310 * (time - 5.9)
        ),
        "gpu_temperature_celsius": 46 + 14 * min(1, max(0, time) / 3) + (0 if waits else 6),
        "gpu_sm_clock_hertz": 1.98e9 - 30e6 * held,
        "gpu_clock_event_reasons_state": POWER_CAP if held else 0.0,
    }


def idle(time: float) -> Values:
    """Do nothing."""
    return {
        "gpu_utilization_ratio": 0.0, "gpu_memory_used_bytes": 0.4 * GIB,
        "gpu_power_watts": 71.0, "gpu_temperature_celsius": 31.0,
        "gpu_sm_clock_hertz": 345e6, "gpu_clock_event_reasons_state": IDLE,
    }


def allocator(time: float, *, old_peak: float = 0.0) -> Values:
    """Hold 20.6 GiB, then 48.8 with one peak of 58.8 at 6.35 s."""
    allocated = 20.6 if time < 0 else min(48.8, 20.6 + time * 45)
    peak = max(old_peak, 20.6 if time < 0 else 58.8 if time >= 6.3 else 50.0)
    return {
        "torch_allocated_bytes": (58.8 if 6.3 < time < 6.4 else allocated) * GIB,
        "torch_reserved_bytes": (20.6 if time < 0 else min(62.0, 20.6 + time * 70)) * GIB,
        "torch_allocated_peak_bytes": peak * GIB,
        "torch_reserved_peak_bytes": (20.6 if time < 0 else 62.0) * GIB,
        "torch_alloc_retries_count": 3.0, "torch_ooms_count": 0.0,
    }


def energy(time: float) -> Values:
    """Use 542 W on the mean."""
    return {"gpu_energy_joules": 10_000 + 542 * time}


def working(workers: int = 1) -> Curve:
    """Return the curve of a host with some workers."""

    def curve(time: float) -> Values:
        return {
            "process_cpu_seconds": 100 + 0.9 * time, "children_cpu_seconds": 0.7 * workers * time,
            "process_cpu_ratio": 0.9, "children_cpu_ratio": 0.7 * workers,
            "children_count": float(workers), "process_rss_bytes": 9.5 * GIB,
            "children_rss_bytes": 2.5 * workers * GIB,
            "container_memory_used_bytes": (21.9 + 0.04 * max(0, time)) * GIB,
            "host_memory_used_bytes": 30.0 * GIB,
        }

    return curve


def profile(
    found: Recording,
    wall: float,
    *,
    name: str = "train one epoch",
    number: int | None = 14,
    status: SpanStatus = "ok",
    streams: str = "idle",
    reasons: Mapping[str, str] | None = None,
    scene: bool = True,
    cuda_at_start: bool = True,
    devices: Sequence[str] | None = None,
) -> Profile:
    """Summarise a cell of ``wall`` seconds as a measurement would."""
    span = Span(1, START, START + wall, number, name, status)
    summary = summarise(
        found, span, reasons=reasons, watch_cpu_s=0.003 * wall, cuda_at_start=cuda_at_start,
        devices=devices,
    )
    picture = build_scene(
        found, start=START, end=START + max(wall, 0.01), state="stopped", header=False,
        clock_times=False, layout="rows", reasons=reasons or {},
    ) if scene else None
    return Profile(span, summary, streams, False, reasons, picture)  # type: ignore[arg-type]


def training(
    gpus: Sequence[Device] = (), *, wall: float = 12.4, workers: int = 1, **more: object
) -> Profile:
    """Return a cell that trains on the first GPU; the others are idle."""
    devices = gpus or [gpu()]
    old_peak = float(more.pop("old_peak", 0.0))  # type: ignore[arg-type]
    found = recording(*devices, host())
    for index, device in enumerate(devices):
        feed(found, device.id, "nvml", idle if index else nvml, wall)
        if not index:
            feed(found, device.id, "allocator", lambda t: allocator(t, old_peak=old_peak), wall)
        feed(found, device.id, "nvml_slow", energy, wall)
    feed(found, HOST, "host", working(workers), wall)
    return profile(found, wall, **more)  # type: ignore[arg-type]


def on_host(wall: float = 3.2, **more: object) -> Profile:
    """Return a cell on a machine without a GPU."""
    found = recording(host())
    feed(found, HOST, "host", working(0), wall)
    reason = "no NVIDIA GPU here: the NVML library (libnvidia-ml.so.1) was not found"
    settings = {"reasons": {"nvml": reason, "nvml_slow": reason}, "streams": "unknown", **more}
    return profile(found, wall, **settings)  # type: ignore[arg-type]
