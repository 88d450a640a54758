"""What a recording of a long time costs: bytes, time to write a sample, time to read.

Needs no GPU: samples are made up, of all metrics of all sources at their usual periods, with a
cell a minute. ``python benchmarks/recording_memory.py [--hours 24] [--gpus 8] [--out FILE]``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import random
import time
from pathlib import Path
from typing import Any

from gpumagic.metrics import of_source
from gpumagic.recording import Recording
from gpumagic.sample import HOST, Device, Sample

START = 1_764_515_520.0
PERIODS = {
    "nvml": 0.1, "allocator": 0.1, "cell": 0.1, "gpm": 0.2, "nvml_slow": 1.0, "host": 1.0,
}
ON_HOST = ("cell", "host")
SPIKE_W = 5000.0
CELL_S = 60.0


def resident() -> int:
    """Return the bytes of this process that lie in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def pool_of(source: str, count: int = 499) -> list[dict[str, float]]:
    """Make up values to choose from."""
    names = [metric.name for metric in of_source(source)]
    rnd = random.Random(source)
    return [{name: rnd.random() * 1e3 for name in names} for _ in range(count)]


def play(recording: Recording, gpus: int, seconds: float) -> dict[str, Any]:
    """Write samples for some seconds of recorded time; return what that took."""
    devices = [f"GPU-{n:08d}" for n in range(gpus)]
    for number, name in enumerate(devices):
        recording.add_device(Device(name, "gpu", "NVIDIA H200", number))
    recording.add_device(Device(HOST, "host", "host"))
    recording.periods.update(PERIODS)
    pools = {source: pool_of(source) for source in PERIODS}
    spike = {**pools["nvml"][0], "gpu_power_watts": SPIKE_W}
    every = [(source, round(period / 0.1)) for source, period in PERIODS.items()]
    clock, append = time.perf_counter_ns, recording.append
    written = slowest = 0
    spent, late = 0.0, []
    span = recording.begin_span(START)
    ticks = round(seconds * 10)
    for tick in range(ticks):
        now = START + tick * 0.1
        if tick and tick % round(CELL_S * 10) == 0:
            recording.end_span(span.id, now - 1)
            span = recording.begin_span(now)
        samples = [
            Sample(now, device, source, pools[source][tick % 499])
            for source, ticks_between in every if tick % ticks_between == 0
            for device in ([HOST] if source in ON_HOST else devices)
        ]
        if tick == ticks // 7:
            samples[0] = Sample(now, devices[0], "nvml", spike)
        before = time.thread_time()
        for sample in samples:
            begun = clock()
            append(sample)
            took = clock() - begun
            if took > slowest:
                slowest = took
            if took > 2_000_000:
                late.append(took)
        spent += time.thread_time() - before
        written += len(samples)
    return {
        "samples_written": written,
        "us_of_processor_per_append": round(spent / written * 1e6, 2),
        "slowest_append_ms": round(slowest / 1e6, 2),
        "appends_over_2_ms": len(late),
    }


def reading(recording: Recording, seconds: float, repeat: int) -> dict[str, float]:
    """Time a series of the newest ``seconds``; milliseconds, the median of some."""
    bounds = recording.bounds
    assert bounds is not None
    times, rows = [], 0
    for _ in range(repeat):
        begun = time.perf_counter()
        series = recording.series("gpu_power_watts", "GPU-00000000", bounds[1] - seconds)
        times.append(time.perf_counter() - begun)
        rows = len(series)
    return {"rows": rows, "ms": round(sorted(times)[repeat // 2] * 1e3, 3)}


def thinning(recording: Recording) -> float | None:
    """Return the slowest merging of a block in processor time; milliseconds."""
    tracks = list(recording._tracks.values())
    worst = 0.0
    for _ in range(200):
        track = max(tracks, key=lambda track: track.thickest)
        begun = time.thread_time()
        track.thin(track.thickest[1], recording._edges())
        worst = max(worst, time.thread_time() - begun)
    return round(worst * 1e3, 3)


def main() -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gc.collect()
    before = resident()
    recording = Recording()
    found: dict[str, Any] = {
        "hours": options.hours, "gpus": options.gpus,
        "python": platform.python_version(), "machine": platform.machine(),
    }
    found |= play(recording, options.gpus, options.hours * 3600)
    gc.collect()
    found["rows_held"] = len(recording)
    found["resident_mib"] = round((resident() - before) / 2**20, 1)
    if hasattr(recording, "size"):
        found["samples_mib"] = round(recording.size / 2**20, 1)
    found["series_minute"] = reading(recording, 60.0, 101)
    found["series_hour"] = reading(recording, 3600.0, 21)
    found["series_all"] = reading(recording, math.inf, 21)
    if hasattr(recording, "size"):
        series = recording.series("gpu_power_watts", "GPU-00000000")
        found["spike_kept"] = max(series.highs) == SPIKE_W
        widths = [b - a for a, b in zip(series.starts, series.times, strict=True)]
        found["widest_row_s"] = round(max(widths), 1)
        raw = [t for t, count in zip(series.times, series.counts, strict=True) if count == 1]
        merged = [t for t, count in zip(series.times, series.counts, strict=True) if count > 1]
        found["minutes_not_merged"] = round((raw[-1] - (merged or raw)[-1]) / 60, 1)
        found["slowest_merging_ms"] = thinning(recording)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
