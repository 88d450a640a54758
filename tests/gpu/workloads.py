"""Workloads of which each has one thing wrong with it, or nothing, and what should be found.

A workload is a generator: what comes before its ``yield`` is set-up, the function that it yields
is the cell, and what comes after is the taking down. SCENARIOS holds them by name.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from training import Job

__all__ = ["SCENARIOS", "Scenario", "Work"]

Work = Callable[[], None]

GIB = 2**30
DEVICE = "cuda"


@dataclass(frozen=True)
class Scenario:
    """One workload and the findings that it should give.

    ``prepare(seconds)`` is a context manager that gives the cell. Of ``must`` at least one rule
    has to be reported, if there is any in it; those in ``may`` can be. ``fails`` says that the
    cell ends with torch's OutOfMemoryError.
    """

    name: str
    prepare: Callable[[float], AbstractContextManager[Work]]
    seconds: float
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    fails: bool = False

    @property
    def text(self) -> str:
        """What happens in it, in one line."""
        return (self.prepare.__doc__ or "").strip().splitlines()[0]


SCENARIOS: dict[str, Scenario] = {}
"""All scenarios by name, in the order in which they run."""


def _scenario(
    name: str,
    seconds: float,
    *,
    must: set[str] | None = None,
    may: set[str] | None = None,
    fails: bool = False,
) -> Callable[[Callable[[float], Iterator[Work]]], Callable[[float], Iterator[Work]]]:
    def note(function: Callable[[float], Iterator[Work]]) -> Callable[[float], Iterator[Work]]:
        SCENARIOS[name] = Scenario(
            name, contextmanager(function), seconds,
            frozenset(must or ()), frozenset(may or ()), fails,
        )
        return function

    return note


def _repeat(seconds: float, once: Work) -> None:
    """Call a function until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        once()


def _matmul(size: int, *, times: int) -> Work:
    """Return a function that multiplies matrices some times and waits for the GPU."""
    a = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)
    out = torch.empty_like(a)

    def once() -> None:
        for _ in range(times):
            torch.matmul(a, b, out=out)
        torch.cuda.current_stream().synchronize()

    once()
    return once


# -- input ----------------------------------------------------------------------------------


class Items(Dataset[torch.Tensor]):
    """Rows of ``width`` numbers; each takes some processor time, and some time of waiting."""

    def __init__(self, width: int, *, cpu_s: float = 0.0, wait_s: float = 0.0) -> None:
        self.width = width
        self.cpu_s = cpu_s
        self.wait_s = wait_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        row = torch.full((self.width,), float(index % 7))
        begun = time.thread_time()
        while time.thread_time() - begun < self.cpu_s:
            row = torch.sin(row) + torch.cos(row)
        if self.wait_s:
            time.sleep(self.wait_s)
        return row


def _train_from(items: Items, workers: int, seconds: float) -> Iterator[Work]:
    job = Job(width=items.width, depth=6)
    job.step(torch.zeros(16, items.width, device=DEVICE, dtype=torch.bfloat16))
    torch.cuda.synchronize()
    threads = torch.get_num_threads()

    def work() -> None:
        loader = DataLoader(items, batch_size=16, num_workers=workers, pin_memory=False)
        end = time.monotonic() + seconds
        for batch in loader:
            job.step(batch.to(DEVICE, torch.bfloat16))
            if time.monotonic() > end:
                break

    torch.set_num_threads(1)
    try:
        yield work
    finally:
        torch.set_num_threads(threads)


@_scenario("input-workers-full", 7, must={"input-bound-workers"})
def _input_workers_full(seconds: float) -> Iterator[Work]:
    """Two loader workers compute 25 ms for each item and cannot keep up with the GPU."""
    yield from _train_from(Items(4096, cpu_s=0.025), 2, seconds)


@_scenario("input-no-workers", 7, must={"input-bound-no-workers"})
def _input_no_workers(seconds: float) -> Iterator[Work]:
    """A loader without workers computes 5 ms for each item in the main process."""
    yield from _train_from(Items(4096, cpu_s=0.005), 0, seconds)


@_scenario("input-storage", 7, must={"input-bound-storage"})
def _input_storage(seconds: float) -> Iterator[Work]:
    """Four loader workers wait 40 ms for each item, as for a slow store, and compute nothing."""
    yield from _train_from(Items(4096, wait_s=0.04), 4, seconds)


@_scenario("input-by-hand", 6, must={"host-bound"})
def _input_by_hand(seconds: float) -> Iterator[Work]:
    """Batches are made by torch on one thread of the host, without a loader."""
    job = Job()
    job.step(torch.zeros(2048, job.width, device=DEVICE, dtype=torch.bfloat16))
    torch.cuda.synchronize()

    def work() -> None:
        job.starved(seconds)

    yield work


# -- kernels --------------------------------------------------------------------------------


@_scenario("launch-bound", 6, must={"launch-bound"})
def _launch_bound(seconds: float) -> Iterator[Work]:
    """Train 30 layers of width 64 on 16 rows, eagerly: hundreds of tiny kernels a step."""
    layers: list[nn.Module] = []
    for _ in range(30):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(16, 64, device=DEVICE)

    def once() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        once()
    torch.cuda.synchronize()

    def work() -> None:
        _repeat(seconds, once)

    yield work


@_scenario("launch-bound-raw", 5, must={"launch-bound"})
def _launch_bound_raw(seconds: float) -> Iterator[Work]:
    """Add 1 to a thousand numbers, over and over, in a bare Python loop."""
    numbers = torch.zeros(1024, device=DEVICE)

    def once() -> None:
        for _ in range(200):
            numbers.add_(1.0).mul_(0.5)

    once()
    torch.cuda.synchronize()

    def work() -> None:
        _repeat(seconds, once)

    yield work


@_scenario("tensor-busy", 6, must={"healthy"}, may={"throttled"})
def _tensor_busy(seconds: float) -> Iterator[Work]:
    """Multiply bf16 matrices of 8192 x 8192 without a pause."""
    once = _matmul(8192, times=20)

    def work() -> None:
        _repeat(seconds, once)

    yield work


@_scenario("healthy", 6, must={"healthy"}, may={"throttled"})
def _healthy(seconds: float) -> Iterator[Work]:
    """Train on large batches that lie on the GPU already."""
    job = Job()
    job.busy(0.3)

    def work() -> None:
        job.busy(seconds)

    yield work


@_scenario("copies-alone", 5, must={"copies"})
def _copies_alone(seconds: float) -> Iterator[Work]:
    """Copy 1 GiB of pinned host memory to the GPU, over and over, and run no kernel."""
    source = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(GIB, dtype=torch.uint8, device=DEVICE)

    def once() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    once()

    def work() -> None:
        _repeat(seconds, once)

    yield work


@_scenario("one-thread", 5, must={"under-filled"})
def _one_thread(seconds: float) -> Iterator[Work]:
    """Run a kernel in which a single thread counts clocks."""

    def once() -> None:
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        torch.cuda.current_stream().synchronize()

    once()

    def work() -> None:
        _repeat(seconds, once)

    yield work


@_scenario("under-filled-batch", 6, must={"under-filled", "launch-bound"})
def _under_filled_batch(seconds: float) -> Iterator[Work]:
    """Run an LSTM of width 512 over one sequence of 4000 steps, which fills few of the SMs."""
    model = nn.LSTM(512, 512, num_layers=2, batch_first=True).to(DEVICE)
    batch = torch.randn(1, 4000, 512, device=DEVICE)

    def once() -> None:
        with torch.inference_mode():
            model(batch)
        torch.cuda.current_stream().synchronize()

    once()

    def work() -> None:
        _repeat(seconds, once)

    yield work


# -- memory ---------------------------------------------------------------------------------


@_scenario("leaking", 6, must={"staircase"}, may={"throttled"})
def _leaking(seconds: float) -> Iterator[Work]:
    """Keep an output of 1 GiB five times a second, while the GPU trains."""
    job = Job(width=4096, depth=2)
    batch = torch.randn(131_072, 4096, device=DEVICE, dtype=torch.bfloat16)
    job.step(batch)
    torch.cuda.synchronize()

    def once() -> None:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            job.step(batch)
            torch.cuda.current_stream().synchronize()
        job.step(batch, keep=True)

    def work() -> None:
        _repeat(seconds, once)

    yield work


@_scenario("fragmented", 6, must={"fragmentation"}, may={"throttled"})
def _fragmented(seconds: float) -> Iterator[Work]:
    """Cut a freed block of 48 GiB into pieces, free every other one, then need larger blocks."""
    sizes = random.Random(1)
    once = _matmul(4096, times=50)

    def work() -> None:
        whole = torch.empty(48 * GIB, dtype=torch.uint8, device=DEVICE)
        del whole  # torch keeps it and takes the pieces from it
        pieces, left = [], 48 * GIB
        while (size := sizes.randrange(50, 200) * 2**20) < left:
            pieces.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
            left -= size
        del pieces[::2]
        # Half of the block is free, in pieces that are too small for these.
        larger = [torch.empty(GIB, dtype=torch.uint8, device=DEVICE) for _ in range(24)]
        _repeat(seconds, once)
        del larger, pieces

    yield work


@_scenario("cache-only", 5, must={"cache"}, may={"throttled"})
def _cache_only(seconds: float) -> Iterator[Work]:
    """Allocate 40 GiB once, let go of it, and do work that needs little."""
    once = _matmul(4096, times=50)

    def work() -> None:
        large = torch.empty(40 * GIB, dtype=torch.uint8, device=DEVICE)
        _repeat(min(0.5, seconds / 4), once)
        del large
        _repeat(seconds, once)

    yield work


@_scenario("near-oom", 5, must={"near-full"}, may={"throttled"})
def _near_oom(seconds: float) -> Iterator[Work]:
    """Work while about 96 % of the device's memory is in use."""
    once = _matmul(4096, times=50)

    def work() -> None:
        free, total = torch.cuda.mem_get_info()
        filler = torch.empty(int(free - 0.035 * total), dtype=torch.uint8, device=DEVICE)
        _repeat(seconds, once)
        del filler

    yield work


@_scenario(
    "oom", 4, must={"out-of-memory"}, may={"near-full", "staircase", "throttled"}, fails=True
)
def _oom(seconds: float) -> Iterator[Work]:
    """Allocate 8 GiB after 8 GiB until there is no room."""
    once = _matmul(4096, times=20)
    total = torch.cuda.mem_get_info()[1]
    pause = seconds / (total / (8 * GIB))

    def work() -> None:
        held = []
        for _ in range(2 * total // (8 * GIB)):
            held.append(torch.empty(8 * GIB, dtype=torch.uint8, device=DEVICE))
            _repeat(pause, once)

    yield work


# -- others on the GPU, and cells that have nothing wrong with them -----------------------------

_NEIGHBOUR = """
import sys, time, torch
held = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
out = torch.matmul(a, a)
torch.cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    for _ in range(10):
        torch.matmul(a, a, out=out)
    torch.cuda.synchronize()
"""


@_scenario("other-process", 8, must={"other-process"}, may={"throttled"})
def _other_process(seconds: float) -> Iterator[Work]:
    """Train while another process holds 8 GiB of the same GPU and multiplies matrices."""
    job = Job(width=2048, depth=6)
    job.busy(0.3, rows=8192)
    neighbour = subprocess.Popen(
        [sys.executable, "-c", _NEIGHBOUR], stdout=subprocess.PIPE, text=True
    )
    try:
        assert neighbour.stdout is not None
        if neighbour.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the other process ended with {neighbour.wait(10)}")

        def work() -> None:
            job.busy(seconds, rows=8192)

        yield work
    finally:
        neighbour.terminate()
        neighbour.wait(20)
        if neighbour.stdout is not None:
            neighbour.stdout.close()


def _forward(seconds: float, *, autograd: bool) -> Iterator[Work]:
    job = Job()
    batch = torch.randn(16384, job.width, device=DEVICE, dtype=torch.bfloat16)

    def once() -> None:
        with torch.inference_mode(not autograd):
            outs = [job.model(batch) for _ in range(8)]
        torch.cuda.current_stream().synchronize()
        del outs

    def work() -> None:
        _repeat(seconds, once)

    yield work


@_scenario("autograd-forward", 4, may={"throttled"})
def _autograd_forward(seconds: float) -> Iterator[Work]:
    """Run forward passes with autograd and keep eight outputs, hence their graphs, a step."""
    yield from _forward(seconds, autograd=True)


@_scenario("inference-forward", 4, may={"throttled"})
def _inference_forward(seconds: float) -> Iterator[Work]:
    """Run the same forward passes under inference_mode and keep eight outputs a step."""
    yield from _forward(seconds, autograd=False)


@_scenario("short", 0.03, must={"too-short"})
def _short(seconds: float) -> Iterator[Work]:
    """Multiply matrices for 30 ms, which is less than any counter's window."""
    once = _matmul(4096, times=5)

    def work() -> None:
        _repeat(seconds, once)

    yield work
