"""What one reading of a GPU costs, idle and beside a cell that runs pure Python.

Needs an NVIDIA GPU (or the tests' stub library). Compares in one run: gpumagic's quick reading,
the same eight calls through nvidia-ml-py, and the tools a user would pick instead (nvitop where
it is installed, and ``nvidia-smi``). ``python benchmarks/reading.py [--out FILE]``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pynvml

from gpumagic.sources.nvml import NvmlSource


def plain_reading(handle: object) -> None:
    """Make the usual eight calls through nvidia-ml-py."""
    pynvml.nvmlDeviceGetUtilizationRates(handle)
    pynvml.nvmlDeviceGetMemoryInfo(handle)
    pynvml.nvmlDeviceGetPowerUsage(handle)
    pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    pynvml.nvmlDeviceGetPerformanceState(handle)


def gpumagic_reading(source: NvmlSource) -> None:
    """Take one reading as the sampler does (ten calls)."""

    async def read() -> None:
        async for _ in source.read(time.time):
            pass

    coroutine = read()
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("the quick reading waited")


def measure(read: Callable[[], None], count: int, pause_s: float = 0.05) -> dict[str, float]:
    """Time ``count`` readings from a thread of their own; milliseconds."""
    times: list[float] = []

    def run() -> None:
        read()
        for _ in range(count):
            time.sleep(pause_s)
            begun = time.perf_counter()
            read()
            times.append((time.perf_counter() - begun) * 1e3)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    times.sort()
    return {
        "median_ms": statistics.median(times), "p99_ms": times[int(len(times) * 0.99)],
        "max_ms": times[-1],
    }


def beside_python(read: Callable[[], None], count: int) -> dict[str, float]:
    """Time readings while the main thread runs pure Python, as a cell would."""
    result: dict[str, float] = {}
    done = threading.Event()

    def run() -> None:
        result.update(measure(read, count))
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    total = 0
    while not done.is_set():
        for number in range(10_000):
            total += number
    thread.join()
    return result


def each_quick_call(source: NvmlSource, count: int) -> dict[str, dict[str, float]]:
    """Time each of the calls that keep the GIL; microseconds."""
    found: dict[str, dict[str, float]] = {}
    for card in source._cards:
        for reading in card._readings:
            times = []
            for _ in range(count):
                begun = time.perf_counter()
                reading.take({})
                times.append((time.perf_counter() - begun) * 1e6)
            times.sort()
            name = f"{reading.call.symbol} ({reading.metrics[0]})"
            found[name] = {
                "median_us": statistics.median(times), "p99_us": times[int(count * 0.99)],
                "max_us": times[-1],
            }
        break
    return found


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    source = NvmlSource(["0"])
    source.open()
    results: dict[str, object] = {}
    table = {
        "gpumagic, 10 calls": lambda: gpumagic_reading(source),
        "nvidia-ml-py, 8 calls": lambda: plain_reading(handle),
    }
    for name, read in table.items():
        results[name] = {
            "idle": measure(read, options.count),
            "beside pure Python": beside_python(read, options.count),
        }
    if shutil.which("nvidia-smi"):
        def smi() -> None:
            subprocess.run(
                ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used,power.draw",
                 "--format=csv"], stdout=subprocess.DEVNULL, check=True,
            )
        results["nvidia-smi"] = {"idle": measure(smi, 20)}
    results["calls that keep the GIL"] = each_quick_call(source, 2000)
    results["demoted"] = list(source.demoted)
    plain = results["nvidia-ml-py, 8 calls"]["beside pure Python"]["median_ms"]  # type: ignore[index]
    ours = results["gpumagic, 10 calls"]["beside pure Python"]["median_ms"]  # type: ignore[index]
    results["ratio beside pure Python"] = plain / ours
    source.close()
    pynvml.nvmlShutdown()
    text = json.dumps(results, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
