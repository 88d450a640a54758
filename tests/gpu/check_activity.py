"""Compare the activity counters with arithmetic: work of a known size in a known time.

On a machine with an NVIDIA GPU of Hopper or newer and torch: ``python tests/gpu/check_activity.py
[--out DIR]``. Takes about 45 s; prints a table, writes DIR/activity.json, and exits with 1 if a
figure is outside its range.

The peak of the tensor cores is SMs x 4096 floating-point operations a clock (Hopper, dense bf16)
x the mean SM clock during the work: 132 SMs at 1830 MHz give the data sheet's 989.4 TFLOP/s.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpumagic
from comparison import Row, between, near, report
from gpumagic.figures import Figure
from gpumagic.session import current

GIB = 2**30
BF16_PER_SM_AND_CLOCK = 4096
DRAM_BYTES_PER_SECOND = 4.8e12
"""Peak bandwidth of an H200's memory, from its data sheet."""

Work = Callable[[], None]


@dataclass(frozen=True)
class Run:
    """Work done under a profile: how often, in how many seconds of CUDA events."""

    times: int
    seconds: float
    figures: dict[str, Figure]

    def mean(self, metric: str) -> tuple[float | None, str]:
        """Return a metric's mean, or None and why there is none."""
        figure = self.figures.get(metric)
        if figure is None:
            return None, "no such figure in the report"
        return figure.mean, figure.reason

    def row(self, make: Callable[..., Row], title: str, metric: str, *rest: object) -> Row:
        """Return a row of the comparison for a metric's mean."""
        value, reason = self.mean(metric)
        return make(title, value, *rest, reason=reason)


def sustain(name: str, once: Work, *, group: int, seconds: float) -> Run:
    """Do work without a pause for some seconds; the queue is at most two groups long."""
    for _ in range(group):
        once()
    torch.cuda.synchronize()
    with gpumagic.profile(name, sync=True) as handle:
        first = torch.cuda.Event(enable_timing=True)
        first.record()
        earlier, last, times = first, first, 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(group):
                once()
            times += group
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            earlier.synchronize()
            earlier, last = last, event
        torch.cuda.synchronize()
        elapsed = first.elapsed_time(last) / 1e3
    assert handle.result is not None
    gpu = handle.result.summary.gpus[0]
    print(handle.result.to_text(), flush=True)
    return Run(times, elapsed, dict(gpu.figures))


def tensor_rows(seconds: float, sms: int) -> list[Row]:
    """Multiply bf16 matrices of 8192 x 8192."""
    size = 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    run = sustain("matmul", lambda: torch.matmul(a, b, out=out), group=20, seconds=seconds)
    flops = run.times * 2 * size**3 / run.seconds
    clock, why = run.mean("gpu_sm_clock_hertz")
    if clock is None:
        return [Row("matmul: SM clock", None, None, None, "Hz", "", why)]
    peak = sms * BF16_PER_SM_AND_CLOCK * clock
    source = (
        f"{flops / 1e12:.0f} TFLOP/s of {peak / 1e12:.0f} at {clock / 1e6:.0f} MHz, CUDA events"
    )
    return [
        # A tensor pipe that waits for operands counts as active and does no arithmetic.
        run.row(between, "matmul: tensor active", "gpu_tensor_active_ratio", flops / peak - 0.02,
                flops / peak + 0.13, "ratio", source),
        run.row(between, "matmul: SM active", "gpu_sm_active_ratio", flops / peak - 0.02, 1.0,
                "ratio", "at least the share of the peak"),
        run.row(between, "matmul: memory bandwidth", "gpu_dram_active_ratio", 0.02, 0.40,
                "ratio", "far from the limit"),
    ]


def dram_rows(seconds: float) -> list[Row]:
    """Copy 4 GiB of device memory to device memory."""
    source = torch.ones(4 * GIB, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    run = sustain("copy in memory", lambda: target.copy_(source), group=10, seconds=seconds)
    rate = run.times * 2 * source.numel() / run.seconds  # each byte is read and written
    return [
        run.row(near, "copy: memory bandwidth", "gpu_dram_active_ratio",
                rate / DRAM_BYTES_PER_SECOND, 0.06, "ratio",
                f"{rate / 1e12:.2f} of 4.8 TB/s, CUDA events"),
        run.row(between, "copy: tensor active", "gpu_tensor_active_ratio", 0.0, 0.01, "ratio",
                "no tensor core is used"),
    ]


def pcie_rows(seconds: float) -> list[Row]:
    """Copy 1 GiB between pinned host memory and the device, one way and the other."""
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    rows = []
    for title, metric, once in (
        ("to GPU", "gpu_pcie_receive_bytes_per_second",
         lambda: device.copy_(host, non_blocking=True)),
        ("from GPU", "gpu_pcie_transmit_bytes_per_second",
         lambda: host.copy_(device, non_blocking=True)),
    ):
        run = sustain(f"copy {title}", once, group=4, seconds=seconds)
        rate = run.times * GIB / run.seconds
        # The counter has the packets' headers too, which are up to a sixth of the payload.
        rows.append(run.row(between, f"copy {title}: PCIe", metric, 0.97 * rate, 1.17 * rate,
                            "bytes/s", f"{rate / GIB:.1f} GiB/s, CUDA events"))
        rows.append(run.row(between, f"copy {title}: SM active", "gpu_sm_active_ratio",
                            0.0, 0.01, "ratio", "no kernel runs"))
    return rows


def sm_rows(seconds: float, sms: int) -> list[Row]:
    """Run a kernel of one thread, and then nothing."""

    def spin() -> None:
        torch.cuda._sleep(100_000_000)

    run = sustain("one thread", spin, group=1, seconds=seconds)
    rows = [
        run.row(near, "one thread: SM active", "gpu_sm_active_ratio", 1 / sms, 0.002, "ratio",
                f"one of {sms} SMs"),
        run.row(between, "one thread: occupancy", "gpu_sm_occupancy_ratio", 0.0, 0.005, "ratio",
                f"one of {sms} x 64 warps"),
    ]
    with gpumagic.profile("at rest") as handle:
        time.sleep(max(2.0, seconds / 2))
    assert handle.result is not None
    figures = handle.result.summary.gpus[0].figures
    for title, metric in (
        ("SM active", "gpu_sm_active_ratio"), ("tensor active", "gpu_tensor_active_ratio"),
        ("memory bandwidth", "gpu_dram_active_ratio"),
    ):
        figure = figures.get(metric)
        rows.append(between(
            f"at rest: {title}", figure.mean if figure else None, 0.0, 0.01, "ratio",
            "nothing runs", reason=figure.reason if figure else "no such figure in the report",
        ))
    return rows


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each kind of work")
    options = parser.parse_args()
    properties = torch.cuda.get_device_properties(0)
    sms = properties.multi_processor_count
    with current().lease("activity"):
        rows = [
            *tensor_rows(options.seconds, sms),
            *dram_rows(options.seconds),
            *pcie_rows(options.seconds),
            *sm_rows(options.seconds, sms),
        ]
    return report(
        rows, options.out / "activity.json",
        gpu=properties.name, sms=sms, torch=torch.__version__, seconds=options.seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
