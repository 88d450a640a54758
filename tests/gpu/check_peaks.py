"""Compare memory peaks with constructed allocations, to the byte where they claim to be exact.

On a machine with an NVIDIA GPU and torch: ``python tests/gpu/check_peaks.py [--out DIR]``. Takes
about 45 s; prints a table, writes DIR/peaks.json, and exits with 1 if a figure is wrong. The
truth is torch's own count after each allocation, all of which are on the main thread.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpumagic
from comparison import Row, between, near, report
from gpumagic.figures import Figure
from gpumagic.profiles import Profile
from gpumagic.session import current

GIB = 2**30
ALLOCATED, RESERVED = "torch_allocated_bytes", "torch_reserved_bytes"


class Blocks:
    """Allocations whose highest sum is known, as torch counts it after each of them."""

    def __init__(self) -> None:
        self.allocated = torch.cuda.memory_allocated()
        self.reserved = torch.cuda.memory_reserved()

    def take(self, size: int) -> torch.Tensor:
        """Allocate some bytes and note how high torch's counts stand."""
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.allocated = max(self.allocated, torch.cuda.memory_allocated())
        self.reserved = max(self.reserved, torch.cuda.memory_reserved())
        return block


Work = Callable[[Blocks], None]


def plain(blocks: Blocks) -> None:
    """Hold 3 GiB for a moment that no reading meets."""
    blocks.take(3 * GIB)


def odd(blocks: Blocks) -> None:
    """Allocate and free blocks of all sizes, so that torch splits, joins and rounds them."""
    random_sizes = random.Random(7)
    held: list[torch.Tensor] = []
    for _ in range(3000):
        if held and random_sizes.random() < 0.48:
            del held[random_sizes.randrange(len(held))]
        else:
            held.append(blocks.take(int(10 ** random_sizes.uniform(0, 8.4))))


def reset_within(blocks: Blocks) -> None:
    """Hold 5 GiB, reset torch's peak as a user may, and hold 2 GiB."""
    blocks.take(5 * GIB)
    torch.cuda.reset_peak_memory_stats()
    blocks.take(2 * GIB)


def train(blocks: Blocks) -> None:
    """Train for some steps; torch's own peak, reset at the begin, is the truth."""
    torch.cuda.reset_peak_memory_stats()
    model = nn.Sequential(*(nn.Linear(1500, 1500) for _ in range(12))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for rows in (100, 3000, 700):
        model(torch.randn(rows, 1500, device="cuda")).relu().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    blocks.allocated = torch.cuda.max_memory_allocated()
    blocks.reserved = torch.cuda.max_memory_reserved()


def many_after(blocks: Blocks) -> None:
    """Hold 3 GiB for a moment, and allocate and free small blocks 5000 times after it."""
    blocks.take(3 * GIB)
    for _ in range(5000):
        blocks.take(4096)


def fresh(*, earlier: int = 0) -> None:
    """Empty torch's cache, let its peaks begin anew, and raise them by ``earlier`` bytes."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if earlier:
        torch.empty(earlier, dtype=torch.uint8, device="cuda")
    time.sleep(0.6)  # what was before is no part of the block


def measured(name: str, work: Work, *, exact: bool) -> tuple[Profile, Blocks]:
    """Profile a block; return the profile and the truth."""
    options: dict[str, Any] = {"peak": "exact"} if exact else {}
    with gpumagic.profile(name, **options) as handle:
        blocks = Blocks()
        work(blocks)
    assert handle.result is not None
    return handle.result, blocks


def figure_of(profile: Profile, metric: str) -> Figure:
    """Return a figure of the GPU that torch uses."""
    gpus = profile.summary.gpus
    found = next((gpu for gpu in gpus if gpu.device.torch_index == 0), gpus[0])
    return found.figure(metric)


def method_of(profile: Profile) -> str:
    """Return how the profile says that its peaks are known."""
    return str(getattr(profile, "peak_method", "") or "")


def exactly(title: str, profile: Profile, truth: Blocks) -> list[Row]:
    """Return rows for peaks that have to be exact and say so."""
    rows = []
    for metric, expected in ((ALLOCATED, truth.allocated), (RESERVED, truth.reserved)):
        figure = figure_of(profile, metric)
        name = metric.split("_")[1]
        why = figure.reason or method_of(profile)
        rows.append(near(f"{title}: {name}", figure.peak, expected, 0, "bytes",
                         "torch's count after each allocation", why))
        rows.append(near(f"{title}: {name} is said to be exact", float(figure.peak_exact), 1, 0,
                         "", "Figure.peak_exact", why))
    return rows


def contained(title: str, profile: Profile, truth: Blocks) -> list[Row]:
    """Return a row for a peak that has to hold the truth between its bounds, or be the truth.

    A peak with no lower bound that is not exact says that it was at least this high.
    """
    figure = figure_of(profile, ALLOCATED)
    why = figure.reason or method_of(profile)
    if figure.peak is None:
        return [Row(f"{title}: truth in the bound", None, None, None, "bytes", "", why)]
    low = figure.peak if figure.peak_low is None else figure.peak_low
    at_least = figure.peak_low is None and not figure.peak_exact
    high = None if at_least else figure.peak
    return [between(f"{title}: truth in the bound", truth.allocated, low, high, "bytes",
                    "the report's bound", why)]


def _history_on() -> bool:
    return bool(torch._C._cuda_isHistoryEnabled())


@contextmanager
def _few_entries(number: int) -> Iterator[None]:
    """Let the allocator's history keep few events."""
    from gpumagic.memory.history import History

    defaults = History.__init__.__kwdefaults__
    assert defaults is not None
    known = defaults["max_entries"]
    defaults["max_entries"] = number
    try:
        yield
    finally:
        defaults["max_entries"] = known


# -- the checks -----------------------------------------------------------------------------


def by_counters() -> list[Row]:
    """Without the option: exact where torch's counter rose, a bound elsewhere."""
    fresh()
    rows = exactly("counter, risen", *measured("risen", plain, exact=False))
    for title, work in (
        ("counter, earlier peak", plain), ("counter, reset within", reset_within),
        ("counter, training", train),
    ):
        fresh(earlier=20 * GIB)
        rows += contained(title, *measured(title, work, exact=False))
    return rows


def by_history() -> list[Row]:
    """With the option: exact in every case, and the history is off again."""
    rows = []
    for title, work, earlier in (
        ("exact, risen", plain, 0), ("exact, earlier peak", plain, 20 * GIB),
        ("exact, odd sizes", odd, 20 * GIB), ("exact, reset within", reset_within, 20 * GIB),
        ("exact, training", train, 20 * GIB),
    ):
        fresh(earlier=earlier)
        rows += exactly(title, *measured(title, work, exact=True))
        rows.append(near(f"{title}: history is on after", float(_history_on()), 0, 0, "",
                         "torch._C._cuda_isHistoryEnabled"))
    return rows


def users_history() -> list[Row]:
    """A history that the user keeps stays on, keeps its events, and is told of."""
    fresh(earlier=20 * GIB)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10_000)
    try:
        mine = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
        profile, truth = measured("user's history", plain, exact=True)
        on = _history_on()
        traces = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    kept = any(
        event["action"] == "alloc" and event["addr"] == mine.data_ptr() for event in traces
    )
    said = "history" in method_of(profile) and "history" in profile.to_text()
    return [
        *contained("user's history", profile, truth),
        near("user's history: on after", float(on), 1, 0, "", "torch._C._cuda_isHistoryEnabled"),
        near("user's history: its events kept", float(kept), 1, 0, "", "torch's snapshot"),
        near("user's history: told of", float(said), 1, 0, "", "peak_method and the report",
             method_of(profile)),
    ]


def overflow() -> list[Row]:
    """More events than are kept: a bound, or exact where torch's counter proves it."""
    with _few_entries(500):
        fresh(earlier=20 * GIB)
        profile, truth = measured("overflow", many_after, exact=True)
        rows = contained("overflow", profile, truth)
        exact = figure_of(profile, ALLOCATED).peak_exact
        rows.append(near("overflow: is said to be exact", float(exact), 0, 0, "",
                         "Figure.peak_exact", method_of(profile)))
        fresh()
        profile, truth = measured("overflow, risen", many_after, exact=True)
        rows += contained("overflow, risen", profile, truth)
    return rows


def users_counters() -> list[Row]:
    """The user's own peak counters stand where they would without a profile."""
    rows = []
    for earlier in (0, 20 * GIB):
        found: list[tuple[int, int]] = []
        for mode in (None, False, True):
            fresh(earlier=earlier)
            if mode is None:
                odd(Blocks())
            else:
                measured("user's counters", odd, exact=mode)
            found.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
        for mode, values in zip(("profiled", "exact"), found[1:], strict=True):
            for name, value, expected in zip(
                ("allocated", "reserved"), values, found[0], strict=True
            ):
                rows.append(near(
                    f"user's peak {name}, {mode}, {earlier // GIB} GiB before", value, expected,
                    0, "bytes", "the same allocations without a profile",
                ))
    return rows


def cost(seconds: float, pairs: int) -> list[Row]:
    """What the option costs a loop that is bound by launches, in alternating blocks."""
    layers: list[nn.Module] = []
    for _ in range(30):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(16, 64, device="cuda")
    leaving: list[float] = []

    def rate(*, exact: bool) -> float:
        steps, took = 0, 1.0

        def work(_: Blocks) -> None:
            nonlocal steps, took
            begun = time.perf_counter()
            while (took := time.perf_counter() - begun) < seconds:
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                steps += 1

        begun = time.perf_counter()
        measured("cost", work, exact=exact)
        if exact:
            leaving.append(time.perf_counter() - begun - took)
        return steps / took

    rate(exact=False)
    leaving.clear()
    ratios = []
    for pair in range(pairs):
        order = (False, True) if pair % 2 else (True, False)
        rates = {exact: rate(exact=exact) for exact in order}
        ratios.append(rates[True] / rates[False])
    spread = f"pairs {', '.join(f'{ratio:.3f}' for ratio in ratios)}"
    return [
        between("cost: steps a second with the option", median(ratios), 0.90, 1.10, "ratio",
                f"of those without, median of {pairs} pairs", spread),
        between("cost: at the block's two ends", median(leaving), 0.0, 1.5, "s",
                f"beside a block of {seconds:g} s"),
    ]


def main() -> int:
    """Run the checks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--pairs", type=int, default=7, help="pairs of blocks for the cost")
    options = parser.parse_args()
    base = torch.ones(GIB, dtype=torch.uint8, device="cuda")
    rows: list[Row] = []
    with current().lease("peaks"):
        rows += by_counters()
        if "peak" in inspect.signature(gpumagic.profile).parameters:
            for check in (by_history, users_history, overflow, users_counters):
                rows += check()
            fresh()
            rows += cost(1.5, options.pairs)
        else:
            rows.append(Row("exact", None, None, None, "", "", "profile() has no peak="))
    del base
    return report(
        rows, options.out / "peaks.json",
        gpu=torch.cuda.get_device_name(0), torch=torch.__version__,
    )


if __name__ == "__main__":
    sys.exit(main())
