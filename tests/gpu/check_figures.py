"""Compare each figure of a report with an independent source in the same run.

Run on a machine with an NVIDIA GPU and torch: ``python tests/gpu/check_figures.py [--out DIR]``.
Beside a training block that gpumagic profiles, ``nvidia-smi`` prints its own readings every
100 ms, torch's own counters are read, the energy counter is read by plain nvidia-ml-py, and a
clock of its own is kept. Prints a table and exits with 1 if a difference is over its bound.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pynvml
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpumagic
from training import Job

QUERY = (
    "utilization.gpu,memory.used,power.draw.average,power.draw,temperature.gpu,clocks.sm,"
    "clocks_event_reasons.active"
)


@dataclass
class Row:
    """One comparison; ``bound`` is the difference that is still explained by timing."""

    figure: str
    gpumagic: float | None
    independent: float | None
    source: str
    unit: str
    bound: float

    @property
    def difference(self) -> float | None:
        """Return gpumagic's figure minus the independent one."""
        if self.gpumagic is None or self.independent is None:
            return None
        return self.gpumagic - self.independent

    @property
    def fits(self) -> bool:
        """Whether the difference is within the bound."""
        return self.difference is not None and abs(self.difference) <= self.bound


class NvidiaSmi:
    """``nvidia-smi`` printing its readings every 100 ms, with the time each line came."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w")
        self._process = subprocess.Popen(
            ["nvidia-smi", f"--query-gpu=timestamp,{QUERY}", "--format=csv,noheader,nounits",
             "-lms", "100", "-i", "0"],
            stdout=self._file,
        )

    def stop(self) -> list[tuple[float, list[str]]]:
        """Stop it and return its lines as epoch seconds and fields."""
        self._process.terminate()
        self._process.wait()
        self._file.close()
        found = []
        for line in self._path.read_text().splitlines():
            fields = [part.strip() for part in line.split(",")]
            if len(fields) < 8:
                continue
            stamp, _, millis = fields[0].partition(".")
            seconds = time.mktime(time.strptime(stamp, "%Y/%m/%d %H:%M:%S"))
            found.append((seconds + float(f"0.{millis or 0}"), fields[1:]))
        return found


def column(lines: list[tuple[float, list[str]]], index: int) -> list[float]:
    """Return one column of nvidia-smi's lines as numbers, leaving out what is none."""
    values = []
    for _, fields in lines:
        try:
            values.append(float(fields[index]))
        except ValueError:
            continue
    return values


def mean(values: list[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return sum(values) / len(values) if values else None


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    job = Job()
    job.busy(2)
    # One earlier, larger allocation, so that the user's peak is above what the block needs not.
    torch.cuda.reset_peak_memory_stats()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    smi = NvidiaSmi(options.out / "nvidia-smi.csv")
    time.sleep(1.0)
    allocated_before = torch.cuda.memory_allocated()
    reserved_before = torch.cuda.memory_reserved()
    used_before = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
    with gpumagic.profile("check", sync=True) as profiled:
        begun_epoch, begun = time.time(), time.perf_counter()
        cpu0 = resource.getrusage(resource.RUSAGE_SELF)
        energy0 = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        job.starved(options.seconds * 0.3)
        job.busy(options.seconds * 0.4)
        job.climbing(options.seconds * 0.3)
        energy1 = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        cpu1 = resource.getrusage(resource.RUSAGE_SELF)
        ended, ended_epoch = time.perf_counter(), time.time()
    peak_allocated = torch.cuda.max_memory_allocated()
    peak_reserved = torch.cuda.max_memory_reserved()
    allocated_after = torch.cuda.memory_allocated()
    used_after = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
    inside = [line for line in smi.stop() if begun_epoch <= line[0] <= ended_epoch]
    # GPU-Util speaks of up to 0.4 s before the reading, power of up to 1.1 s.
    recent = [line for line in inside if line[0] >= begun_epoch + 0.4]
    lines = [line for line in inside if line[0] >= begun_epoch + 1.1]

    report = profiled.to_dict()
    gpu = next(d for d in report["devices"] if d["device"] != "host")
    host = next(d for d in report["devices"] if d["device"] == "host")
    metrics = gpu["metrics"]
    gib = 2**30

    def figure(name: str, key: str, scale: float = 1.0) -> float | None:
        value = metrics[name].get(key)
        return None if value is None else value * scale

    used = column(lines, 1)
    throttled = [int(f[6], 16) & 0xFC != 0 for _, f in inside if f[6].startswith("0x")]
    wall = ended - begun
    cpu = (cpu1.ru_utime + cpu1.ru_stime - cpu0.ru_utime - cpu0.ru_stime) / wall
    rows = [
        Row("wall time", report["wall_s"], wall, "time.perf_counter", "s", 0.05),
        Row("GPU-Util, mean", figure("gpu_utilization_ratio", "mean", 100),
            mean(column(recent, 0)), "nvidia-smi every 100 ms", "%", 3.0),
        Row("GPU-Util, max", figure("gpu_utilization_ratio", "peak", 100),
            max(column(lines, 0), default=None), "nvidia-smi every 100 ms", "%", 2.0),
        Row("memory used, start", figure("gpu_memory_used_bytes", "start", 1 / gib),
            used_before / gib, "nvmlDeviceGetMemoryInfo v2", "GiB", 0.01),
        Row("memory used, peak", figure("gpu_memory_used_bytes", "peak", 1 / gib),
            max(used, default=0) / 1024, "nvidia-smi every 100 ms", "GiB", 0.7),
        Row("memory used, end", figure("gpu_memory_used_bytes", "end", 1 / gib),
            used_after / gib, "nvmlDeviceGetMemoryInfo v2", "GiB", 0.01),
        Row("torch allocated, start", figure("torch_allocated_bytes", "start", 1 / gib),
            allocated_before / gib, "torch.cuda.memory_allocated", "GiB", 1e-6),
        Row("torch allocated, peak", figure("torch_allocated_bytes", "peak", 1 / gib),
            peak_allocated / gib, "torch.cuda.max_memory_allocated", "GiB", 1e-6),
        Row("torch allocated, end", figure("torch_allocated_bytes", "end", 1 / gib),
            allocated_after / gib, "torch.cuda.memory_allocated", "GiB", 1e-6),
        Row("torch reserved, start", figure("torch_reserved_bytes", "start", 1 / gib),
            reserved_before / gib, "torch.cuda.memory_reserved", "GiB", 1e-6),
        Row("torch reserved, peak", figure("torch_reserved_bytes", "peak", 1 / gib),
            peak_reserved / gib, "torch.cuda.max_memory_reserved", "GiB", 1e-6),
        Row("energy", metrics["gpu_energy_joules"].get("joules"), (energy1 - energy0) / 1e3,
            "the counter's own difference", "J",
            metrics["gpu_energy_joules"].get("bound_joules", 0.0)),
        Row("power, mean of samples", figure("gpu_power_watts", "mean"),
            mean(column(lines, 2)) or mean(column(lines, 3)), "nvidia-smi every 100 ms", "W", 10.0),
        Row("power, mean of energy", metrics["gpu_energy_joules"].get("mean_watts"),
            (energy1 - energy0) / 1e3 / wall, "the counter over the clock", "W", 5.0),
        Row("temperature, max", figure("gpu_temperature_celsius", "peak"),
            max(column(lines, 4), default=None), "nvidia-smi every 100 ms", "°C", 1.0),
        Row("SM clock, mean", figure("gpu_sm_clock_hertz", "mean", 1e-6),
            mean(column(inside, 5)), "nvidia-smi every 100 ms", "MHz", 30.0),
        Row("throttled", gpu["throttled"].get("ratio", 0) * 100,
            mean([100.0 * t for t in throttled]), "nvidia-smi every 100 ms", "%", 4.0),
        Row("CPU of this process", host["metrics"]["process_cpu_ratio"].get("mean"), cpu,
            "getrusage", "cores", 0.05),
    ]
    print(f"{'figure':24} {'gpumagic':>12} {'independent':>12} {'difference':>11} unit  source")
    for row in rows:
        cells = [
            "n/a" if v is None else f"{v:.3f}" for v in (row.gpumagic, row.independent,
                                                        row.difference)
        ]
        flag = "" if row.fits else f"   over the bound of {row.bound:g}"
        print(f"{row.figure:24} {cells[0]:>12} {cells[1]:>12} {cells[2]:>11} {row.unit:5}"
              f" {row.source}{flag}")
    (options.out / "figures.json").write_text(json.dumps({
        "gpu": gpu["name"], "torch": torch.__version__,
        "driver": pynvml.nvmlSystemGetDriverVersion(), "seconds": wall,
        "rows": [asdict(row) | {"difference": row.difference, "fits": row.fits} for row in rows],
        "report": report,
    }, indent=1))
    (options.out / "report.txt").write_text(profiled.to_text())
    (options.out / "report.html").write_text(profiled.to_html())
    print(profiled.to_text())
    return 0 if all(row.fits for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
