"""Profiles of made-up cells for the tests of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpumagic.diagnosis import Finding
from gpumagic.profiles import Profile
from gpumagic.recording import MAX_BYTES, Recording
from gpumagic.sample import HOST, Device, Gap, Sample, Span, SpanStatus
from gpumagic.summary import summarise
from gpumagic.views.scene import build_scene
from gpumagic.waterfall import MemoryState, Moment, Part, Waterfall

GIB = float(1 << 30)
START = 1_796_000_000.0
POWER_CAP = 4.0
IDLE = 1.0

H200: Mapping[str, float] = {
    "gpu_memory_total_bytes": 139.8 * GIB,
    "gpu_power_limit_watts": 700.0,
    "gpu_temperature_slowdown_celsius": 87.0,
}
PERIODS = {"nvml": 0.1, "gpm": 0.2, "allocator": 0.1, "nvml_slow": 1.0, "host": 1.0}

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


def recording(*devices: Device, max_bytes: int = MAX_BYTES) -> Recording:
    """Return a recording without samples."""
    found = Recording(max_bytes=max_bytes)
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


def gpm(time: float) -> Values:
    """Fill less of the GPU than GPU-Util says, most of all while it waits for data."""
    use = nvml(time)["gpu_utilization_ratio"] * (0.8 if time < 5.9 else 0.86)
    return {
        "gpu_sm_active_ratio": use, "gpu_sm_occupancy_ratio": 0.2 * use,
        "gpu_tensor_active_ratio": 0.9 * use, "gpu_dram_active_ratio": 0.25 * use,
        "gpu_pcie_receive_bytes_per_second": 2.1 * GIB,
        "gpu_pcie_transmit_bytes_per_second": 0.1 * GIB,
    }


def idle_gpm(time: float) -> Values:
    """Do nothing, as the hardware counts it."""
    return dict.fromkeys(gpm(time), 0.0)


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


def working(workers: int = 1, *, loaders: bool = False, held: bool = False) -> Curve:
    """Return the curve of a host with some children: a DataLoader's workers or others.

    ``held`` lets the processor quota hold the container back.
    """

    def curve(time: float) -> Values:
        loading = {
            "workers_count": float(workers), "workers_cpu_ratio": 0.7 * workers,
            "workers_busiest_cpu_ratio": 0.74, "workers_idlest_cpu_ratio": 0.66,
        } if loaders else {}
        quota = {"container_cpu_throttled_seconds": 3 + 0.1 * time} if held else {}
        return {
            **loading, **quota, "main_thread_cpu_ratio": 0.85,
            "main_thread_cpu_seconds": 60 + 0.85 * time,
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
    loaders, held = bool(more.pop("loaders", False)), bool(more.pop("held", False))
    found = recording(*devices, host())
    for index, device in enumerate(devices):
        feed(found, device.id, "nvml", idle if index else nvml, wall)
        feed(found, device.id, "gpm", idle_gpm if index else gpm, wall)
        if not index:
            feed(found, device.id, "allocator", lambda t: allocator(t, old_peak=old_peak), wall)
        feed(found, device.id, "nvml_slow", energy, wall)
    feed(found, HOST, "host", working(workers, loaders=loaders, held=held), wall)
    return profile(found, wall, **more)  # type: ignore[arg-type]


def slices(*active: float, wall: float = 6.0) -> Profile:
    """Return a cell on MIG slices of GPU 0, each with a share of its SMs active."""
    devices = [
        Device(f"MIG-{index + 1}a2b3c4d-0000", "gpu", "NVIDIA H200 MIG 1g.18gb", 0,
               0 if index == 0 else None, constants=H200,
               absent={"gpu_utilization_ratio": "not on a MIG slice"})
        for index in range(len(active))
    ]
    found = recording(*devices)
    for device, share in zip(devices, active, strict=True):
        values = {k: v for k, v in idle(0).items() if k != "gpu_utilization_ratio"}
        feed(found, device.id, "nvml", lambda _, values=values: values, wall)  # type: ignore[misc]
        feed(found, device.id, "gpm", lambda _, s=share: {"gpu_sm_active_ratio": s}, wall)  # type: ignore[misc]
    return profile(found, wall)


LOST = "the GPU is lost (fallen off the bus, or reset)"


def losing(gpus: int, at: float, wall: float, lost: int = 1) -> Profile:
    """Return a cell in which the first ``lost`` GPUs were lost at a time."""
    found = recording(*(gpu(index) for index in range(gpus)), host())
    feed(found, HOST, "host", working(0), wall)
    for index in range(gpus):
        for tick in range(-10, round(wall * 10) + 2):
            if index >= lost or tick < at * 10:
                values = {**idle(0), "gpu_utilization_ratio": 0.7}
                found.append(Sample(START + tick / 10 + 0.02, f"GPU-{index}", "nvml", values))
    for index in range(lost):
        found.add_gap(Gap(START + at, None, "nvml", f"GPU-{index}", LOST))
    return profile(found, wall, streams="unknown")


def on_host(wall: float = 3.2, **more: object) -> Profile:
    """Return a cell on a machine without a GPU."""
    found = recording(host())
    feed(found, HOST, "host", working(0), wall)
    reason = "no NVIDIA GPU here: the NVML library (libnvidia-ml.so.1) was not found"
    settings = {"reasons": {"nvml": reason, "nvml_slow": reason}, "streams": "unknown", **more}
    return profile(found, wall, **settings)  # type: ignore[arg-type]


# -- what a diagnosis and a waterfall add ---------------------------------------------------


def starved(**more: object) -> Finding:
    """Return the finding of a GPU that waits for data in the first 5.9 seconds."""
    settings: dict[str, object] = {
        "lead": "The GPU waited for data for 5.9 of 12.4 s.",
        "evidence": "SM active was 41 % there and 85 % after; the one loader worker filled its"
                    " core (1.0) while 6 of 8 cores were idle.",
        "advice": "Try `DataLoader(…, num_workers=4)`.",
        "short": "waits for data 5.9 s", "label": "waits for data, 5.9 s", "device": "GPU-0",
        "stretches": ((START, START + 5.9),),
        "metrics": ("gpu_sm_active_ratio", "workers_busiest_cpu_ratio"),
        **more,
    }
    return Finding("starved", "waste", **settings)  # type: ignore[arg-type]


def throttled(device: str = "GPU-0") -> Finding:
    """Return the finding of clocks that the power cap held back."""
    return Finding(
        "throttled", "limit", "The power cap held the clocks back 38 % of the time.",
        "SM clock 1.95 GHz there and 1.98 GHz else.", short="power cap 38 %", device=device,
        label="power cap, 4.6 s", metrics=("gpu_power_watts",),
        stretches=((START + 6.9, START + 8.2), (START + 9.0, START + 12.4)),
    )


def healthy() -> Finding:
    """Return what is said of a cell that used its GPU well."""
    return Finding(
        "healthy", "well", "Nothing held the GPU back.", "SM active 85 %, GPU-Util 99 %.",
        device="GPU-0", metrics=("gpu_sm_active_ratio",),
    )


def out_of_memory() -> Finding:
    """Return the finding of a cell that failed for want of memory."""
    return Finding(
        "out of memory", "failed", "The cell ran out of GPU memory: 12.0 GiB more did not fit.",
        "66.8 of 139.8 GiB were free only in pieces; cached blocks pinned 9.8 GiB.",
        "Try `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.", device="GPU-0",
        metrics=("torch_allocated_bytes", "gpu_memory_used_bytes"),
    )


def state(
    moment: Moment, live: float, cached: float, fragmented: float | None = None, **more: float
) -> MemoryState:
    """Return a GPU's memory at a moment, in GiB; what is left of the H200 is free."""
    sizes = {
        "live tensors": live, "cached": cached, "context": 0.7, "other processes": 4.1,
        "driver": 0.6, **{name.replace("_", " "): size for name, size in more.items()},
    }
    sizes["free"] = 139.8 - sum(sizes.values())
    return MemoryState(moment, START, tuple(
        Part(name, size * GIB,
             fragmented * GIB if name == "cached" and fragmented is not None else None)
        for name, size in sizes.items()
    ))


def memory(device: Device, *states: MemoryState, notes: tuple[str, ...] = ()) -> Waterfall:
    """Return where a GPU's memory was; by default, at the three moments of ``training``."""
    found = states or (
        state("before", 20.6, 0.0), state("highest", 58.8, 3.2, 1.1),
        state("after", 48.8, 13.2, 4.1),
    )
    return Waterfall(device, 139.8 * GIB, found, notes=notes)


def diagnosed(shown: Profile, *findings: Finding, waterfalls: bool = True) -> Profile:
    """Add findings, and where memory was, to a profile."""
    gpus = [gpu.device for gpu in shown.summary.gpus]
    added = tuple(memory(device) for device in gpus[:1]) if waterfalls else ()
    return replace(shown, findings=findings, waterfalls=added)
