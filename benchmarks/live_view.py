"""What the live view costs its page, its kernel and its file, beside what else shows GPUs.

``python benchmarks/live_view.py [--cases WORDS] [--seconds 12] [--rounds 1] [--peers] [--hidden]
[--day] [--renderers bqplot,svg] [--out FILE]`` starts JupyterLab and Chromium
($GPUMAGIC_CHROMIUM, or one on the PATH) for each case, with the tests' stub library as the driver
of 1, 2 or 8 GPUs whose values move. Needs no GPU, but Linux, a C compiler, jupyterlab, bqplot and
psutil; ``--hidden`` needs Xvfb and ``--peers`` a package index. ``--list`` names the cases; a case
takes two minutes.

All cores are processor time per second of the processes that do the work, so that others who use
the machine disturb little; its load is stored with each result. Those of a page without a view
are taken off in the tables, not in the file.

* *browser* is all of Chromium, *server* the Jupyter server, *kernel* the process in which the
  view lives. *Work* is how much a cell computes in a processor second of the kernel beside the
  view, to how much before it; on a busy machine the view's share of the kernel is larger.
* Bytes and messages are what the page's websockets receive, *drawn* how often the view changes
  in the page. They are counted after the processor time, as counting costs the page something.
* The heap is that after a forced collection; *nodes* are DOM nodes, *models* the widget models
  in the kernel, *file* how much the saved notebook grows by a view that was shown and stopped.

``--hidden`` hides a tab for an hour's worth of updates and shows it again; ``--real-hour`` takes
an hour for it, for each renderer. ``--day`` lets a day of readings pass in minutes. The file of
``--out`` has a part for the cases and for each of these; a part that is not measured anew stays as
it is. A run that is ended by SIGTERM takes its servers and browsers with it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import live_view_cases as cases
from live_view_day import day
from live_view_hidden import UPDATES, hidden
from live_view_peers import Peers
from live_view_tables import case_tables, long_run_table

OUT = Path(__file__).resolve().parent / "results" / "live_view.json"
_PACKAGES = ("gpumagic", "jupyterlab", "ipykernel", "ipywidgets", "bqplot", "nvidia-ml-py")
_FEW_GPUS = {"bqplot": 2}
_MANY_GPUS = 8
"""What is hidden, and shown for a day: as many as the renderer is the default for."""
_WINDOWS = (60.0, "all")
"""What of the day is shown: seconds, or all of it as by ``%gpuwatch -w all``."""


def environment(peers: Peers | None) -> dict[str, Any]:
    """Return what the figures depend on."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except ModuleNotFoundError:
            import gpumagic

            packages[name] = gpumagic.__version__
    return {
        "python": platform.python_version(), "machine": platform.machine(),
        "cores": os.cpu_count(), "packages": packages,
        "peers": peers.versions if peers is not None else None,
    }


# -- the run --------------------------------------------------------------------------------


class Results:
    """The file of results: written after each case, so that nothing is lost."""

    def __init__(self, path: Path, environment: dict[str, Any]) -> None:
        self._path = path
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self._environment = environment
        self._fresh: set[str] = set()

    def add(self, part: str, result: dict[str, Any]) -> None:
        """Add a result; the first of a part replaces what an earlier run has left there."""
        if part not in self._fresh:
            self.found[part] = {"environment": self._environment, "runs": []}
            self._fresh.add(part)
        self.found[part]["runs"].append(result)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.found, indent=1) + "\n")


def attempt(work: Callable[[], dict[str, Any]], **about: Any) -> dict[str, Any]:
    """Do a run; return its error as a result, so that the others go on."""
    begun = time.monotonic()
    try:
        found = work()
    except Exception as error:
        traceback.print_exc()
        found = {**about, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found), f"({time.monotonic() - begun:.0f} s)", flush=True)
    return found


def print_tables(found: dict[str, Any]) -> None:
    """Print all there is in a file of results, as Markdown."""
    for part, result in found.items():
        write = case_tables if part == "cases" else long_run_table
        print(f"\n{part}\n\n{write(result['runs'])}")


def main() -> None:
    """Measure what was asked for, write the results and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--tables", action="store_true", help="print those of the file and end")
    parser.add_argument(
        "--cases", nargs="*", metavar="WORDS",
        help="only cases whose name holds one of these; none of them if nothing is given",
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="of processor time per case")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each case")
    parser.add_argument("--peers", action="store_true", help="the other tools too")
    parser.add_argument("--hidden", action="store_true", help="a hidden tab, at 20 updates/s")
    parser.add_argument("--real-hour", action="store_true", help="hidden at 4 updates/s")
    parser.add_argument("--hidden-updates", type=int, default=UPDATES, help="while it is hidden")
    parser.add_argument("--day", action="store_true", help="a day of readings")
    parser.add_argument("--day-updates", type=int, default=10_000, help="shown in that day")
    parser.add_argument("--renderers", default="bqplot,svg", help="of gpumagic, with commas")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers and browsers end with it
    renderers = options.renderers.split(",")
    known = cases.known(renderers, peers=options.peers)
    if options.list:
        print("\n".join(case.name for case in known))
        return
    if options.tables:
        print_tables(json.loads(options.out.read_text()))
        return
    words = options.cases
    chosen = [
        case for case in known
        if case.tool != "nothing" and (words is None or any(word in case.name for word in words))
    ]
    if chosen:
        # What all others are compared with is measured at three times of each round.
        nothing, half = known[0], len(chosen) // 2
        chosen = [nothing, *chosen[:half], nothing, *chosen[half:], nothing]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        peers = Peers(directory) if options.peers and chosen else None
        results = Results(options.out, environment(peers))
        for _ in range(options.rounds):
            for case in chosen:
                work = partial(cases.run, directory, case, options.seconds, peers)
                results.add("cases", attempt(work, name=case.name))
        for renderer in renderers:
            gpus = _FEW_GPUS.get(renderer, _MANY_GPUS)
            about: dict[str, Any] = {"renderer": renderer, "gpus": gpus}
            for part, rate in (("hidden", 20), ("real_hour", 4)):
                if getattr(options, part):
                    work = partial(
                        hidden, directory, updates=options.hidden_updates, rate=rate, **about)
                    results.add(part, attempt(work, **about))
            for window in _WINDOWS if options.day else ():
                about["window"] = window
                work = partial(day, directory, updates=options.day_updates, **about)
                results.add("day", attempt(work, **about))
    print_tables(results.found)


if __name__ == "__main__":
    main()
