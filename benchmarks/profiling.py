"""What measuring a training loop costs, option by option, beside pytorch_memlab and JUmPER.

``python benchmarks/profiling.py [--rounds 7] [--most 98] [--out FILE]``. Runs on an NVIDIA GPU
where torch has one, else on the CPU. pytorch_memlab and jumper-extension take part where they
can be imported; what could not be measured is null, with its reason under ``absent``.

* *loops*: steps per second of the same loop, as a ratio of the plain loop's. Every block stands
  between two plain ones and is divided by their mean; the order turns from round to round. A
  block is left out (``left_out``) where its two plain ones differ by over 10 %: then something
  else ran on the machine. ``plain_again`` is the plain loop in place of an option: its spread is
  the noise of the run. The clock runs inside the measurement and ends with a synchronise.
  *launch* is a small MLP whose steps the CPU limits, *busy* a large one. In *launch* gpumagic's
  blocks last over a second, so that its sources of 1 Hz take part. ``begin_ms`` and ``end_ms``
  are what came before and after, ``around_ms`` what the shell and its hooks took around the cell
  in which the work ran.
* *ends*: the begin and the end of a measurement of nothing, and showing its report. A lease that
  is held already (a watch, footers) keeps the sampler running: ``profile_while_watching``.
* *cells*: what a cell of ``pass`` takes more under what is on from cell to cell.
* *counters*: what the user's counters in torch say after the same steps under each option.

JUmPER reads at 10 Hz here as gpumagic does (its default is 1 Hz); ``note`` says which of its
monitors it chose, some of which read in a process of their own, and how gpumagic found an exact
peak. JUmPER's log is silenced. pytorch_memlab gives memory by line, gpumagic's
``peak="exact"`` the peak of the block: the nearest of each, not the same. Figures of one run
compare with each other; those of two machines do not.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gpumagic
from gpumagic.session import current

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
MIB = 1 << 20
PLAIN = "plain_again"
STEADY = 0.1
NO_CUDA = "torch has no CUDA here"
said = io.StringIO()

Job = Callable[[], None]


@dataclass(frozen=True)
class Option:
    """A way to measure: ``begin`` gives a state to ``end``, ``show`` and ``note``.

    ``show`` renders the report, before the end with ``show_first``. ``extension`` is loaded
    around it, outside all times. ``in_cell`` runs the work as a cell of a shell. ``long`` asks
    for blocks of over a second.
    """

    name: str
    begin: Callable[[Job], Any]
    end: Callable[[Any], Any]
    show: Callable[[Any], Any] | None = None
    show_first: bool = False
    note: Callable[[Any], str] | None = None
    extension: str = ""
    in_cell: bool = False
    long: bool = False


# -- the options ------------------------------------------------------------------------------


def profiled(name: str, *, long: bool = True, **how: Any) -> Option:
    """Make the option that measures with ``gpumagic.profile``."""

    def begin(_: Job) -> Any:
        context = gpumagic.profile(name, **how)
        return context, context.__enter__()

    def end(state: Any) -> None:
        state[0].__exit__(None, None, None)

    return Option(
        name, begin, end, lambda state: state[1].result.to_html(), long=long,
        note=lambda state: state[1].result.peak_method if how.get("peak") else "",
    )


def magics(shell: Any, name: str, extension: str, on: str, off: str, **more: Any) -> Option:
    """Make an option that line magics switch on and off in a shell."""
    return Option(
        name, lambda _: magic(shell, on), lambda _: magic(shell, off),
        extension=extension, in_cell=True, **more,
    )


def magic(shell: Any, line: str) -> None:
    """Run a line magic, keeping what it prints."""
    name, _, rest = line.partition(" ")
    shell.run_line_magic(name, rest)


def memlab(module: Any) -> Option:
    """Make the option that profiles the step's lines with pytorch_memlab."""

    def begin(step: Job) -> Any:
        profiler = module.LineProfiler(step)
        profiler.enable()
        return profiler

    def show(profiler: Any) -> None:
        if profiler._raw_line_records:  # it cannot print none of them
            profiler.print_stats(stream=io.StringIO())

    return Option(
        "memlab_lines", begin, lambda profiler: profiler.disable(), show,
        note=lambda profiler: f"{len(profiler._raw_line_records)} records of lines",
    )


def jumper(shell: Any) -> Option:
    """Make the option that runs JUmPER's monitor and shows its report of the last cell."""
    module = import_module("jumper_extension.ipython.extension")
    logging.getLogger("extension").setLevel(logging.ERROR)
    return magics(
        shell, "jumper", "jumper_extension", "perfmonitor_start 0.1", "perfmonitor_stop",
        show=lambda _: magic(shell, "perfmonitor_perfreport --level process"), show_first=True,
        note=lambda _: type(module._perfmonitor_magics.magic_adapter.service.monitor).__name__,
    )


def make_options(shell: Any, absent: dict[str, str], counters: dict[str, Any]) -> list[Option]:
    """List the options of this machine; write down why others are absent."""
    found = [
        Option(PLAIN, lambda _: None, lambda _: None),
        profiled("profile"), profiled("exact", peak="exact"),
        profiled("sync", long=False, sync=True),
        Option("lease", lambda _: current().lease("benchmark"), lambda s: s.release(), long=True),
        magics(shell, "footers", "gpumagic", "gpureport on", "gpureport off", long=True),
    ]
    peers: list[Option] = []

    def load_memlab() -> None:
        peers.append(memlab(import_module("pytorch_memlab")))

    try:
        with contextlib.redirect_stdout(io.StringIO()) as answer:
            if CUDA:
                would = counted(nothing)
                counters["import pytorch_memlab"] = changes(would, counted(load_memlab))
            else:
                load_memlab()
        if CUDA:
            found += peers
        else:
            absent["memlab_lines"] = f"needs CUDA; it says: {answer.getvalue().strip()!r}"
    except ImportError as error:
        absent["memlab_lines"] = f"{error.name} cannot be imported"
    try:
        found.append(jumper(shell))
    except ImportError as error:
        absent["jumper"] = f"{error.name} cannot be imported"
    return found


# -- what runs --------------------------------------------------------------------------------


def make_job(width: int, depth: int, batch: int, dtype: torch.dtype) -> Job:
    """Build a stack of linear layers and return its training step."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    model = nn.Sequential(*layers).to(DEVICE, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(batch, width, device=DEVICE, dtype=dtype)

    def step() -> None:
        out = model(data)
        loss = out.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def nothing() -> None:
    """Stand for work where none is wanted."""


def finish() -> None:
    """Wait for the GPU, if there is one."""
    if CUDA:
        torch.cuda.synchronize()


@dataclass
class Ran:
    """One block: steps per second, and milliseconds of the ends."""

    rate: float = 0.0
    begin_ms: float = 0.0
    end_ms: float = 0.0
    around_ms: float = 0.0
    show_ms: float | None = None
    note: str = ""


class Bench:
    """Run blocks of work under options, in one shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def run(self, work: Job, in_cell: bool) -> None:
        """Run work as it is, or as a cell."""
        if in_cell:
            self.shell.user_ns["work"] = work
            self.shell.run_cell("work()", store_history=True).raise_error()
        else:
            work()

    def block(self, option: Option, step: Job, steps: int, show: bool = False) -> Ran:
        """Run some steps under an option; the first few of each block are not timed."""
        ran = Ran()
        work_ms = 0.0

        def work() -> None:
            nonlocal work_ms
            first = time.perf_counter()
            for _ in range(min(3, steps)):
                step()
            finish()
            begun = time.perf_counter()
            for _ in range(steps):
                step()
            finish()
            ended = time.perf_counter()
            ran.rate = steps / (ended - begun)
            work_ms = (ended - first) * 1e3

        def display() -> None:
            if show and option.show:
                begun = time.perf_counter()
                option.show(state)
                ran.show_ms = (time.perf_counter() - begun) * 1e3

        with contextlib.redirect_stdout(said):
            if option.extension:
                magic(self.shell, f"load_ext {option.extension}")
            begun = time.perf_counter()
            state = option.begin(step)
            ran.begin_ms = (time.perf_counter() - begun) * 1e3
            begun = time.perf_counter()
            self.run(work, option.in_cell)
            ran.around_ms = (time.perf_counter() - begun) * 1e3 - work_ms
            if option.show_first:
                display()
            begun = time.perf_counter()
            option.end(state)
            ran.end_ms = (time.perf_counter() - begun) * 1e3
            if not option.show_first:
                display()
            if option.note:
                ran.note = option.note(state)
            if option.extension:
                magic(self.shell, f"unload_ext {option.extension}")
        return ran

    def cells(self, option: Option, count: int) -> list[float]:
        """Return milliseconds a cell of ``pass`` while an option is on."""
        found = []
        with contextlib.redirect_stdout(said):
            if option.extension:
                magic(self.shell, f"load_ext {option.extension}")
            state = option.begin(nothing)
            for _ in range(count + 3):
                begun = time.perf_counter()
                self.shell.run_cell("pass", store_history=True)
                found.append((time.perf_counter() - begun) * 1e3)
            option.end(state)
            if option.extension:
                magic(self.shell, f"unload_ext {option.extension}")
        return found[3:]


# -- the user's counters ----------------------------------------------------------------------


def counted(work: Callable[[], object]) -> dict[str, int]:
    """Give the counters a history of the user's own, do the work, and read them."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    kept = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    del kept
    work()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "memory_reserved": torch.cuda.memory_reserved(),
        "allocations": stats["allocation.all.allocated"],
    }


def changes(would: dict[str, int], now: dict[str, int]) -> dict[str, Any]:
    """Compare counters with what they would have been."""
    changed = {name: [would[name], now[name]] for name in would if would[name] != now[name]}
    return {"kept": not changed, "would_be_and_is": changed}


# -- the measurements -------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the quartiles and the extremes."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "q1": low, "q3": high, "min": min(values), "max": max(values)}


class Loop:
    """One loop: its blocks under each option, between plain ones."""

    def __init__(self, bench: Bench, options: Sequence[Option], step: Job, times: Sequence[float]):
        self.bench, self.step = bench, step
        self.options = list(options)
        self.plain = options[0]
        self.plain_s, self.short_s, self.long_s = times
        self.ratios: dict[str, list[float]] = {option.name: [] for option in options}
        self.ran: dict[str, list[Ran]] = {option.name: [] for option in options}
        self.rates: list[float] = []
        for _ in range(10):
            step()
        self.pace = bench.block(self.plain, step, 20).rate
        self.pace = bench.block(self.plain, step, max(3, int(self.pace * 0.3))).rate
        # How many steps fill a block is an option's own: a slow one gets few.
        few = max(3, int(self.pace * 0.02))
        self.paces = {
            option.name: min(self.pace, bench.block(option, step, few, True).rate * 1.2)
            for option in options
        }

    def _plain(self) -> float:
        steps = max(3, int(self.pace * self.plain_s))
        self.rates.append(self.bench.block(self.plain, self.step, steps).rate)
        return self.rates[-1]

    def round(self) -> None:
        """Run each option once; the next round begins with another one."""
        before = self._plain()
        for option in self.options:
            block_s = self.long_s if option.long else self.short_s
            steps = max(3, int(self.paces[option.name] * block_s))
            ran = self.bench.block(option, self.step, steps, show=not self.ran[option.name])
            after = self._plain()
            if abs(before - after) <= STEADY * (before + after) / 2:
                self.ratios[option.name].append(2 * ran.rate / (before + after))
            self.ran[option.name].append(ran)
            before = after
        self.options = self.options[1:] + self.options[:1]

    def result(self) -> dict[str, Any]:
        """Return ratios and the ends' milliseconds by option."""
        found: dict[str, Any] = {"plain_steps_per_s": spread(self.rates), "ratio_of_plain": {}}
        for name, ratios in self.ratios.items():
            ran = self.ran[name]
            found["ratio_of_plain"][name] = {
                **(spread(ratios) if len(ratios) > 1 else {}),
                "pairs": len(ratios), "left_out": len(ran) - len(ratios),
                "begin_ms": statistics.median(one.begin_ms for one in ran),
                "end_ms": statistics.median(one.end_ms for one in ran),
                "around_ms": statistics.median(one.around_ms for one in ran),
                "show_ms": ran[0].show_ms, "note": ran[-1].note or None,
            }
        return found


def ends(bench: Bench, options: Sequence[Option], rounds: int) -> dict[str, Any]:
    """Measure the begin and the end around nothing, in turns."""
    found: dict[str, list[Ran]] = {}
    for turn in range(rounds + 1):
        for option in options:
            found.setdefault(option.name, []).append(bench.block(option, nothing, 0, True))
        with current().lease("benchmark"):
            ran = bench.block(profiled("profile"), nothing, 0, True)
        found.setdefault("profile_while_watching", []).append(ran)
        if not turn:
            first = {name: ran[0].begin_ms for name, ran in found.items()}
            found.clear()
    return {
        name: {
            "begin_ms": statistics.median(one.begin_ms for one in ran),
            "end_ms": statistics.median(one.end_ms for one in ran),
            "begin_and_end_ms": spread([one.begin_ms + one.end_ms for one in ran]),
            "show_ms": None if ran[0].show_ms is None
            else statistics.median(one.show_ms or 0.0 for one in ran),
            "first_begin_ms": first[name], "times": len(ran),
        }
        for name, ran in found.items()
    }


def cells(bench: Bench, options: Sequence[Option], blocks: int, count: int) -> dict[str, Any]:
    """Measure cells of ``pass`` in turns; the difference is the option's."""
    chosen = [options[0], *(one for one in options if one.in_cell or one.name == "lease")]
    found: dict[str, list[list[float]]] = {option.name: [] for option in chosen}
    for _ in range(blocks):
        for option in chosen:
            found[option.name].append(bench.cells(option, count))
    medians = {name: [statistics.median(one) for one in each] for name, each in found.items()}
    result: dict[str, Any] = {"plain_ms": spread(medians[PLAIN]), "cells": blocks * count}
    for name, values in medians.items():
        if name != PLAIN:
            more = [ours - plain for ours, plain in zip(values, medians[PLAIN], strict=True)]
            result[name] = {"more_ms": spread(more)}
    return result


def version(name: str) -> str | None:
    """Return a distribution's version, or ``None`` where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Run the comparison and print it."""
    begun = time.perf_counter()
    load = os.getloadavg()[0]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most", type=float, default=98.0, help="seconds; fewer rounds if needed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if CUDA:
        torch.cuda.init()
    else:
        torch.set_num_threads(1)  # leaves a core to what measures
    folder = tempfile.TemporaryDirectory()
    os.environ |= {"IPYTHONDIR": folder.name, "JUMPER_LOG_DIR": folder.name}
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    bench = Bench(shell)
    absent: dict[str, str] = {}
    counters: dict[str, Any] = {}
    chosen = make_options(shell, absent, counters)
    small = make_job(64, 4, 32, torch.float32)
    shape = (4096, 4, 8192, torch.bfloat16) if CUDA else (512, 4, 256, torch.float32)
    large = make_job(*shape)
    if CUDA:
        def after(option: Option) -> dict[str, int]:
            return counted(lambda: bench.block(option, small, 5))

        after(chosen[0])  # the optimizer's state and cuBLAS's workspace stay
        would = after(chosen[0])
        for option in chosen:
            counters[option.name] = changes(would, after(option))
    else:
        absent["counters"] = NO_CUDA
    result: dict[str, Any] = {
        "machine": {
            "python": platform.python_version(), "machine": platform.machine(),
            "system": platform.system(), "cpus": os.cpu_count(), "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if CUDA else None,
        },
        "versions": {"gpumagic": gpumagic.__version__} | {
            name: version(name) for name in ("pytorch_memlab", "jumper_extension", "ipython")
        },
        "absent": absent, "counters": counters or None,
        "ends": ends(bench, chosen, options.rounds),
        "cells": cells(bench, chosen, options.rounds, 20),
    }
    loops = {
        "launch": Loop(bench, chosen, small, (0.12, 0.4, 1.05)),
        "busy": Loop(bench, chosen, large, (0.1, 0.25, 0.25) if CUDA else (0.3, 0.6, 0.6)),
    }
    round_s = 0.0
    for _ in range(options.rounds):
        started = time.perf_counter()
        if started - begun + round_s > options.most:
            break
        for loop in loops.values():
            loop.round()
        round_s = time.perf_counter() - started
    result["loops"] = {name: loop.result() for name, loop in loops.items()}
    for name in absent:
        if name != "counters":
            for loop in result["loops"].values():
                loop["ratio_of_plain"][name] = None
            result["ends"][name] = None
    result["machine"]["load_before_and_after"] = [load, os.getloadavg()[0]]
    result["seconds"] = time.perf_counter() - begun
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    folder.cleanup()


if __name__ == "__main__":
    main()
