"""What footers cost an empty cell: gpumagic's off and on, beside others in runs of the same kind.

``python benchmarks/footer.py [--blocks 40] [--cells 50] [--rounds 5] [--out FILE]
[--with NAME=PYTHON]``. A fresh Python with a real shell runs blocks of empty cells, footers off
and on in turns; each cell is timed from before ``run_cell`` to after it, without history.
``--with jumper=PYTHON`` names the Python of another environment in which jumper-extension is
installed; its automatic reports are measured there by the same loop. ``--cuda`` imports torch
and puts a tensor on the GPU first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHILD = """
import contextlib, io, json, sys, time, warnings
warnings.simplefilter("ignore")
from IPython.core.interactiveshell import InteractiveShell
name, blocks, cells, cuda = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"
shell = InteractiveShell.instance()
if cuda:
    shell.run_cell("import torch; kept = torch.zeros(1024, device='cuda')")
ON, OFF, BEGIN = {
    "gpumagic": ("%gpureport on", "%gpureport off", "%load_ext gpumagic"),
    "jumper": (
        "%perfmonitor_enable_perfreports --level process", "%perfmonitor_disable_perfreports",
        "%load_ext jumper_extension\\n%perfmonitor_start 1",
    ),
}[name]
said = io.StringIO()
def run(code):
    result = shell.run_cell(code, store_history=False)
    result.raise_error()
def timed(count):
    found = []
    with contextlib.redirect_stdout(io.StringIO()):
        for _ in range(count):
            begun = time.perf_counter()
            shell.run_cell("pass", store_history=True)
            found.append((time.perf_counter() - begun) * 1e3)
    return found
times = {"off": [], "on": []}
with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
    run(BEGIN)
    timed(20)
    for _ in range(blocks):
        for state, magic in (("off", OFF), ("on", ON)):
            run(magic)
            timed(3)
            times[state] += timed(cells)
    run(OFF)
print(json.dumps(times))
"""


def measure(name: str, python: str, options: argparse.Namespace) -> dict[str, list[float]] | None:
    """Run one Python's blocks and return milliseconds a cell by state, or ``None`` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", CHILD, name, str(options.blocks), str(options.cells),
             "1" if options.cuda else "0"],
            capture_output=True, text=True, check=False, env={**os.environ, "IPYTHONDIR": folder},
        )
    if done.returncode:
        print(f"{name} left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--cells", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--with", dest="others", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pythons = {"gpumagic": sys.executable}
    pythons |= dict(other.partition("=")[::2] for other in options.others)
    times: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.rounds):
        for name, python in pythons.items():
            for state, found in (measure(name, python, options) or {}).items():
                times.setdefault(name, {}).setdefault(state, []).extend(found)
    result: dict[str, Any] = {}
    for name, by_state in times.items():
        off, on = (statistics.median(by_state[state]) for state in ("off", "on"))
        result[name] = {
            "median_off_ms": off, "median_on_ms": on, "median_more_ms": on - off,
            "p95_off_ms": statistics.quantiles(by_state["off"], n=20)[-1],
            "p95_on_ms": statistics.quantiles(by_state["on"], n=20)[-1],
            "cells": len(by_state["on"]),
        }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
