"""What watching costs: processor seconds per second of sampling and of drawing, part by part.

``python benchmarks/watching.py [--gpus 1,2,8] [--windows 60,600,3600] [--out FILE]`` takes
minutes and needs no GPU: by default the tests' stub library stands in for the driver (Linux and
a C compiler) and a constant answer for torch's allocator. The stub's own calls cost about 3 us
each, of which a reading of one GPU makes ten. ``--real`` reads the GPUs of this machine, and
torch's allocator where torch can be imported.

All times are processor times of the one thread that does the work (``time.thread_time``):

* *sampler*: the sampler's thread as a session runs it, at ten readings a second, after its
  first seconds; then each source alone and the recording's ``append``.
* *view*: one live watch per window, full of samples at ten a second. It goes on by the pace at
  which a watch of that window draws, with new samples at each update. *scene* is building the
  scene, *render* is bringing the widget up to date, without a front end to send to; *first* is
  the first scene, which knows nothing from earlier ones.

Figures of one run compare with each other; those of two machines do not.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from gpumagic.clock import Clock
from gpumagic.recording import Recording
from gpumagic.sample import HOST, Device, Sample
from gpumagic.sampler import Sampler
from gpumagic.session import Session
from gpumagic.sources import SOURCES, Source, make_sources
from gpumagic.views import live
from gpumagic.watch import Watch, WatchOptions

GIB = 1 << 30
HZ = 10
UPDATES_PER_S = 4
SETTLE_S = 3.0
START = 1_800_000_000.0


def in_thread(work: Callable[[], Any]) -> Any:
    """Run something in a thread of its own and return its value."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


# -- what stands in for a GPU ---------------------------------------------------------------


def nested_stats(index: int) -> dict[str, Any]:
    """Answer as ``torch.cuda.memory_stats_as_nested_dict`` does, in its size."""
    one = {"current": 20 * GIB, "peak": 30 * GIB, "allocated": 90 * GIB, "freed": 70 * GIB}
    pools = {"all": one, "small_pool": one, "large_pool": one}
    names = ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
             "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
    return {**dict.fromkeys(names, pools), "num_alloc_retries": 0, "num_ooms": 0}


@contextmanager
def stub_machine(gpus: int) -> Iterator[None]:
    """Let the stub library and a constant allocator stand in for a machine with some GPUs."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from nvml_stub import NvmlStub

    with tempfile.TemporaryDirectory() as name:
        stub = NvmlStub(Path(name), gpus, libraries=Path(tempfile.gettempdir()))
        for index in range(gpus):
            stub.gpu(index, utilization=90, power_mw=600_000, wave=1, memory_used=60 * GIB)
        with stub.load_in_process():
            import pynvml

            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(gpus)]
            uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
            pynvml.nvmlShutdown()
            torch, cuda = ModuleType("torch"), ModuleType("torch.cuda")
            vars(torch).update(cuda=cuda)
            vars(cuda).update(
                is_initialized=lambda: True, device_count=lambda: gpus,
                get_device_properties=lambda i: SimpleNamespace(uuid=uuids[i], name="stub"),
                memory_stats_as_nested_dict=nested_stats, get_allocator_backend=lambda: "native",
            )
            sys.modules.update({"torch": torch, "torch.cuda": cuda})
            try:
                yield
            finally:
                del sys.modules["torch"], sys.modules["torch.cuda"]


def wake_torch() -> None:
    """Initialise CUDA where torch can be imported, so that its allocator is read."""
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.zeros(1, device="cuda")


# -- sampling -------------------------------------------------------------------------------


def whole_sampler(selection: Sequence[str], seconds: float) -> float:
    """Run a sampler; return its processor seconds per second once it has settled."""
    sampler = Sampler(Recording(), make_sources(selection), Clock().now)
    sampler.start()
    time.sleep(SETTLE_S)
    sampler.read_now([], 5.0)  # brings the count of processor time up to date
    begun, before = time.perf_counter(), sampler.cpu_s
    time.sleep(seconds)
    sampler.read_now([], 5.0)
    used, passed = sampler.cpu_s - before, time.perf_counter() - begun
    sampler.stop()
    return used / passed


def take(source: Source) -> list[Any]:
    """Take one reading of a source, without a loop."""
    found: list[Any] = []

    async def read() -> None:
        found.extend([record async for record in source.read(time.time)])

    coroutine = read()
    while True:
        try:
            coroutine.send(None)
        except StopIteration:
            return found


def one_reading(source: Source, seconds: float) -> float:
    """Return the processor seconds of one reading, at the pace at which it is taken."""
    def measure() -> float:
        source.open()
        take(source)
        source.devices()
        # Counts of processor time are too coarse for one reading where a clock ticks.
        used, count = 0.0, 0
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            time.sleep(0.02)
            begun = time.thread_time()
            take(source)
            source.devices()
            used += time.thread_time() - begun
            count += 1
        source.close()
        return used / count

    return float(in_thread(measure))


def one_append() -> float:
    """Return the processor seconds of appending one sample of the quick source."""
    names = [f"metric {index}" for index in range(13)]
    samples = [
        Sample(START + n / HZ, "GPU-0", "nvml", {name: float(n) for name in names})
        for n in range(20_000)
    ]

    def measure() -> float:
        recording = Recording()
        begun = time.thread_time()
        for sample in samples:
            recording.append(sample)
        return (time.thread_time() - begun) / len(samples)

    return float(in_thread(measure))


def sampling(gpus: int | None, seconds: float) -> dict[str, float]:
    """Measure the sampler and its parts; values are processor seconds per second."""
    selection = ["all"] if gpus is None else [str(index) for index in range(gpus)]
    found = {"whole": whole_sampler(selection, seconds)}
    for name in SOURCES:
        (source,) = make_sources(selection, names=[name])
        source_s = one_reading(source, min(seconds, 2.0))
        found[name] = source_s / source.period_s
    quick = 2 * (gpus or 1)
    found["append"] = one_append() * HZ * quick
    return found


# -- drawing --------------------------------------------------------------------------------


class Played:
    """A session whose time and readings are given: GPUs that train, and the host."""

    def __init__(self, gpus: int, window_s: float) -> None:
        self.now = START
        self.session = Session(make=lambda _: [], clock=lambda: self.now)
        self.recording = self.session.recording
        self.recording.periods.update(nvml=0.1, allocator=0.1, nvml_slow=1.0, host=1.0)
        for index in range(gpus):
            self.recording.add_device(Device(
                f"GPU-{index}", "gpu", "NVIDIA H200", index, index,
                constants={"gpu_memory_total_bytes": 140.0 * GIB, "gpu_power_limit_watts": 700.0,
                           "gpu_temperature_slowdown_celsius": 87.0},
            ))
        self.recording.add_device(Device(
            HOST, "host", "Host",
            constants={"host_cpu_limit_ratio": 8.0, "host_memory_limit_bytes": 64.0 * GIB},
        ))
        self._gpus = gpus
        self._ticks = 0
        self.play(window_s + 5)
        for number in range(5):
            span = self.recording.begin_span(self.now - window_s * (1 - number / 5), number=number)
            if number < 4:
                self.recording.end_span(span.id, span.start + window_s / 8)

    def play(self, seconds: float) -> None:
        """Let time go on, with the readings that fall into it."""
        end = self.now + seconds
        while START + self._ticks / HZ <= end:
            self._tick(self._ticks, START + self._ticks / HZ)
            self._ticks += 1
        self.now = end

    def _tick(self, tick: int, now: float) -> None:
        for index in range(self._gpus):
            wave = 0.5 + 0.4 * math.sin(tick / 30 + index) + 0.05 * math.sin(tick * 1.7)
            self.recording.append(Sample(now, f"GPU-{index}", "nvml", {
                "gpu_utilization_ratio": wave, "gpu_memory_used_bytes": (60 + 5 * wave) * GIB,
                "gpu_power_watts": 700 * wave, "gpu_temperature_celsius": 50 + 20 * wave,
                # At its cap a tenth of the time.
                "gpu_clock_event_reasons_state": 4.0 if tick % 600 < 60 else 0.0,
            }))
            self.recording.append(Sample(now + 0.001, f"GPU-{index}", "allocator", {
                "torch_allocated_bytes": (40 + 5 * wave) * GIB, "torch_reserved_bytes": 55.0 * GIB,
            }))
        if tick % HZ == 0:
            share = 1 + 0.3 * math.sin(tick / 50)
            self.recording.append(Sample(now, HOST, "host", {
                "process_cpu_ratio": share, "children_cpu_ratio": 2 * share, "children_count": 4,
                "host_memory_used_bytes": (20 + share) * GIB,
            }))


def drawing(gpus: int, window_s: float, updates: int) -> dict[str, float]:
    """Measure a live watch; values are processor seconds per second, but for ``first``."""
    played = Played(gpus, window_s)
    watch = Watch(played.session, WatchOptions(gpus=("all",), window_s=window_s))

    def measure() -> dict[str, float]:
        begun = time.thread_time()
        scene = watch.scene()
        first = time.thread_time() - begun
        view = live.make_view(scene)
        period = max(1 / UPDATES_PER_S, min(window_s / scene.columns / 4, 5.0))
        scenes, renders = [], []
        for index in range(-updates // 2, updates):
            played.play(period)
            begun = time.thread_time()
            scene = watch.scene()
            built = time.thread_time()
            view.update(scene)
            ended = time.thread_time()
            if index >= 0:  # the first updates send more
                scenes.append(built - begun)
                renders.append(ended - built)
        view.close()
        build, render = statistics.fmean(scenes) / period, statistics.fmean(renders) / period
        return {"period_s": period, "first_s": first, "scene": build, "render": render,
                "whole": build + render}

    try:
        return dict(in_thread(measure))
    finally:
        watch.stop()
        played.session.close()


# -- the table ------------------------------------------------------------------------------


def percent(share: float) -> str:
    """Write a share of a core."""
    return f"{share * 100:8.3f} %"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", default="1,2,8", help="numbers of GPUs")
    parser.add_argument("--windows", default="60,600,3600", help="windows in seconds")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a sampler's run")
    parser.add_argument("--updates", type=int, default=60, help="updates of a view")
    parser.add_argument("--real", action="store_true", help="this machine's GPUs, not the stub")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    counts = [int(part) for part in options.gpus.split(",")]
    windows = [float(part) for part in options.windows.split(",") if part]
    results: dict[str, Any] = {
        "python": platform.python_version(), "machine": platform.machine(),
        "driver": "real" if options.real else "stub", "sampler": {}, "view": {},
    }
    if options.real:
        wake_torch()
    names = ["whole", *SOURCES, "append"]
    print("sampler, share of a core:\n  GPUs" + "".join(f"{name:>11}" for name in names))
    for gpus in counts:
        with nullcontext() if options.real else stub_machine(gpus):
            found = results["sampler"][gpus] = sampling(gpus, options.seconds)
        print(f"  {gpus:4}" + "".join(f" {percent(found[name])}" for name in names), flush=True)
    print("view, share of a core:\n  GPUs   window   every       whole      scene     render"
          "   first scene")
    for gpus in counts:
        for window in windows:
            found = drawing(gpus, window, options.updates)
            results["view"][f"{gpus} GPUs, {window:g} s"] = found
            print(
                f"  {gpus:4} {window:6g} s {found['period_s']:5.2f} s "
                + " ".join(percent(found[name]) for name in ("whole", "scene", "render"))
                + f" {found['first_s'] * 1e3:10.1f} ms", flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
