"""Compare energy and held-back clocks with the driver's counters, and show that a stall hides none.

On a machine with an NVIDIA GPU and torch: ``python tests/gpu/check_energy.py [--out DIR]``. Takes
about 100 s (``--scale 0.3`` shortens it); prints a table, writes DIR/energy.json, and exits with
1 if a figure is outside its range. The other side is read by plain nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from itertools import pairwise
from pathlib import Path

import pynvml
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpumagic
from comparison import Row, between, near, report
from gpumagic.session import current

POLICY_FIELDS = {"power cap": 74, "thermal": 75}
"""NVML's counters of nanoseconds in which a policy held the clocks back, by our reasons."""

STALLS_S = (2, 4)
POWER_RING_S = 2.4
UTILIZATION_RING_S = 14.0


class Counters:
    """The GPU's counters, read by plain nvidia-ml-py."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(
            uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        )

    def joules(self) -> float:
        """Return the energy since the driver was loaded."""
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3

    def held_back_s(self) -> dict[str, float]:
        """Return the seconds in which each policy has held the clocks back, where it is told."""
        wanted = list(POLICY_FIELDS.values())
        values = pynvml.nvmlDeviceGetFieldValues(self._handle, wanted)
        return {
            reason: value.value.ullVal / 1e9
            for reason, value in zip(POLICY_FIELDS, values, strict=True)
            if value.nvmlReturn == pynvml.NVML_SUCCESS
        }


class Load:
    """Multiplications of bf16 matrices."""

    def __init__(self, size: int) -> None:
        self._a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._a)
        self.queue(2)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        self.queue(10)
        torch.cuda.synchronize()
        self.one_s = (time.perf_counter() - begun) / 10

    def queue(self, times: int) -> None:
        """Launch some without waiting."""
        for _ in range(times):
            torch.matmul(self._a, self._a, out=self._out)

    def run(self, seconds: float) -> None:
        """Keep the GPU busy for some seconds, and wait for the end."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.queue(max(1, int(0.05 / self.one_s)))
            torch.cuda.current_stream().synchronize()


def alternating(load: Load, counters: Counters, seconds: float) -> list[Row]:
    """Be busy and idle in turn, twelve phases in all; compare the energy of all of it."""
    phase = seconds / 12
    with gpumagic.profile("alternating") as handle:
        begun, first = time.perf_counter(), counters.joules()
        for _ in range(6):
            load.run(phase)
            time.sleep(phase)
        last, ended = counters.joules(), time.perf_counter()
    assert handle.result is not None
    print(handle.result.to_text(), flush=True)
    gpu = handle.result.summary.gpus[0]
    energy, power = gpu.energy, gpu.figure("gpu_power_watts")
    spent = last - first
    # The counter is renewed every 0.1 s, and either side can have read it just before.
    bound = (energy.bound_joules or 0.0) + 0.1 * (power.peak or 0.0)
    watts = spent / (ended - begun)
    return [
        near("alternating: energy", energy.joules, spent, bound, "J",
             "the counter's difference, nvidia-ml-py", energy.reason),
        between("alternating: its bound", energy.bound_joules, 0.0, 0.02 * spent, "J",
                "at most 2 % of the energy", energy.reason),
        near("alternating: power by energy", energy.mean_watts, watts, 0.01 * watts, "W",
             "the counter's difference over the clock", energy.reason),
        near("alternating: power by readings", power.mean, watts, 0.05 * watts, "W",
             "the counter's difference over the clock", power.reason),
    ]


def capped(load: Load, counters: Counters, seconds: float) -> list[Row]:
    """Work against the power cap; compare the share of time in which clocks were held back."""
    load.run(2.0)  # the cap acts once the board is at it
    with gpumagic.profile("power cap") as handle:
        begun, first = time.perf_counter(), counters.held_back_s()
        load.run(seconds)
        last, ended = counters.held_back_s(), time.perf_counter()
    assert handle.result is not None
    print(handle.result.to_text(), flush=True)
    throttling = handle.result.summary.gpus[0].throttling
    rows = []
    for reason in POLICY_FIELDS:
        if reason not in first or reason not in last:
            rows.append(Row(f"power cap: {reason}", None, None, None, "ratio", "",
                            f"the driver does not tell field {POLICY_FIELDS[reason]}"))
            continue
        share = (last[reason] - first[reason]) / (ended - begun)
        told = throttling.by_reason.get(reason, 0.0) if throttling.ratio is not None else None
        rows.append(near(
            f"power cap: {reason}", told, share, 0.03, "ratio",
            f"field {POLICY_FIELDS[reason]} over the clock, nvidia-ml-py", throttling.reason,
        ))
    shares = [row.low for row in rows if row.low is not None]
    if shares:
        rows.append(between(
            "power cap: any reason", throttling.ratio, max(shares), 1.0, "ratio",
            "at least the largest", throttling.reason,
        ))
    return rows


def stalled(load: Load, counters: Counters, stall_s: int) -> list[Row]:
    """Hold the GIL for some seconds while the GPU works: what the driver kept fills the record.

    Its ring of power holds 2.4 s and that of utilization 14 s; what is older is lost.
    """
    with gpumagic.profile("stall") as handle:
        load.run(2.0)
        # The queue holds about a thousand launches; these outlast the stall.
        load.queue(int((stall_s + 1.5) / load.one_s))
        first, begun = counters.joules(), current().clock()
        ctypes.PyDLL(None).usleep(stall_s * 1_000_000)
        ended, last = current().clock(), counters.joules()
        torch.cuda.synchronize()
        load.run(1.0)
        time.sleep(1.5)  # the driver's rings are read once a second
    assert handle.result is not None
    print(handle.result.to_text(), flush=True)
    recording, gpu = current().recording, handle.result.summary.gpus[0].device
    watts = (last - first) / (ended - begun)
    name = f"stall of {stall_s} s"
    rows = [near(f"{name}: its length", ended - begun, stall_s, 0.3, "s", "usleep with the GIL")]
    for title, metric, low, high, kept_s in (
        ("power", "gpu_power_watts", 0.93 * watts, 1.07 * watts, POWER_RING_S),
        ("GPU-Util", "gpu_utilization_ratio", 0.97, 1.0, UTILIZATION_RING_S),
    ):
        series = recording.series(metric, gpu.id, begun - 0.5, ended + 0.5)
        hole = max((b - a for a, b in pairwise(series.times)), default=None)
        lost = max(0.0, stall_s - kept_s)
        rows.append(between(f"{name}: longest hole in {title}", hole, 0.0, lost + 0.3, "s",
                            f"{len(series)} values from 0.5 s before to 0.5 s after"))
        inside = [value for at, value in series if begun + 0.3 <= at <= ended - 0.1]
        mean = sum(inside) / len(inside) if inside else None
        rows.append(between(f"{name}: mean {title} in it", mean, low, high,
                            "W" if title == "power" else "ratio",
                            f"{len(inside)} values; the counter says {watts:.0f} W"))
    return rows


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--scale", type=float, default=1.0, help="length of the first two parts")
    options = parser.parse_args()
    counters = Counters()
    load = Load(16384)
    with current().lease("energy"):
        time.sleep(1.0)
        rows = [
            *alternating(load, counters, 60 * options.scale),
            *capped(load, counters, 20 * options.scale),
            *(row for stall_s in STALLS_S for row in stalled(load, counters, stall_s)),
        ]
    return report(
        rows, options.out / "energy.json",
        gpu=torch.cuda.get_device_name(0), torch=torch.__version__,
        driver=pynvml.nvmlSystemGetDriverVersion(),
    )


if __name__ == "__main__":
    sys.exit(main())
