"""Stand-ins for time, sources and recordings, for tests that need neither a GPU nor a sleep.

``FakeClock`` is moved by hand; ``drive`` runs a sampler in it without a thread. ``FakeSource``
reads what it is told to. ``fill`` puts readings into a recording.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from gpumagic.recording import MAX_BYTES, Recording
from gpumagic.sample import HOST, Device, Gap, Sample
from gpumagic.sampler import Sampler

__all__ = [
    "GIB",
    "GPU",
    "HOST_DEVICE",
    "OTHER_GPU",
    "START",
    "FakeClock",
    "FakeSource",
    "drive",
    "fill",
    "recording_of",
    "ticks",
]

GIB = 1 << 30
START = 1_764_515_520.0
"""A time like those of today, where a float resolves a quarter of a microsecond."""

GPU = Device(
    "GPU-aaaaaaaa-0000-4000-8000-000000000000", "gpu", "NVIDIA H200", 0, 0,
    constants={"gpu_memory_total_bytes": 140.0 * GIB, "gpu_power_limit_watts": 700.0},
)
OTHER_GPU = Device("GPU-bbbbbbbb-0000-4000-8000-000000000001", "gpu", "NVIDIA H200", 1, 1)
HOST_DEVICE = Device(HOST, "host", "Host", constants={"host_cpu_count": 8.0})


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Go on by some seconds."""
        self.now += seconds


def drive(sampler: Sampler, time: FakeClock, *steps: float | Callable[[], object]) -> None:
    """Run a sampler in fake time: to each time (seconds from now), calling what is between.

    What is called runs while the sampler sleeps; it is closed after the last step.
    """
    start = time.now
    for step in steps:
        if callable(step):
            step()
            continue
        # A reading can move the clock, too.
        while (pause := sampler.turn()) + time.now <= start + step:
            time.advance(pause)
        time.now = max(time.now, start + step)
    sampler.close()


class FakeSource:
    """A source that yields ``values`` of its devices; everything about it can be changed.

    ``open_error`` and ``error`` are raised by ``open`` and ``read``; ``gap`` is yielded as a gap
    of each device; ``work`` is called in each reading. ``times`` notes when it was read.
    """

    def __init__(
        self,
        name: str = "nvml",
        *,
        period_s: float = 0.1,
        devices: Sequence[Device] = (GPU,),
        values: Mapping[str, float] | None = None,
        work: Callable[[], object] | None = None,
        open_error: Exception | None = None,
    ) -> None:
        self.name = name
        self.period_s = period_s
        self.looking = False
        self.values = dict(values) if values is not None else {"gpu_power_watts": 100.0}
        self.work = work
        self.open_error = open_error
        self.error: Exception | None = None
        self.gap = ""
        self.opened = 0
        self.closed = 0
        self.opened_at: list[float] = []
        self.times: list[float] = []
        self.clock: Callable[[], float] | None = None
        self.told: Sequence[Device] = devices

    def open(self) -> None:
        """Count, and raise what was asked for."""
        self.opened_at.append(self.clock() if self.clock is not None else 0.0)
        if self.open_error is not None:
            raise self.open_error
        self.opened += 1

    def devices(self) -> Sequence[Device]:
        """Return the devices."""
        return self.told

    async def read(self, now: Callable[[], float]) -> AsyncIterator[Sample | Gap]:
        """Yield a sample of each device, or what was asked for."""
        time = now()
        self.times.append(time)
        await asyncio.sleep(0)
        if self.work is not None:
            self.work()
        if self.error is not None:
            raise self.error
        for device in self.told:
            if self.gap:
                yield Gap(time, None, self.name, device.id, self.gap)
            else:
                yield Sample(time, device.id, self.name, dict(self.values))

    def close(self) -> None:
        """Count."""
        self.closed += 1


def ticks(start: float, end: float, step: float = 0.1) -> list[float]:
    """Return times from start to end, both included."""
    return [start + n * step for n in range(round((end - start) / step) + 1)]


def fill(
    recording: Recording,
    times: Iterable[float],
    device: Device = GPU,
    source: str = "nvml",
    **values: float | Callable[[float], float],
) -> None:
    """Append a sample at each time; a value can be a function of the time."""
    for time in times:
        read = {name: v(time) if callable(v) else float(v) for name, v in values.items()}
        recording.append(Sample(time, device.id, source, read))


def recording_of(*devices: Device, max_bytes: int = MAX_BYTES) -> Recording:
    """Make a recording that knows some devices (one GPU and the host) and the usual periods."""
    recording = Recording(max_bytes=max_bytes)
    recording.periods.update(
        {"nvml": 0.1, "allocator": 0.1, "cell": 0.1, "gpm": 0.2, "nvml_slow": 1.0, "host": 1.0}
    )
    for device in devices or (GPU, HOST_DEVICE):
        recording.add_device(device)
    return recording
