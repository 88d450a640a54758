"""What ``%load_ext`` costs: time and new modules, gpumagic beside others in the same run.

``python benchmarks/load_ext.py [--rounds 15] [--out FILE] [NAME ...]``; names that are not
installed are left out. Each load happens in a fresh Python with a fresh shell, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

CHILD = """
import sys, time, warnings
warnings.simplefilter("ignore")
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
begun = time.perf_counter()
shell.run_line_magic("load_ext", sys.argv[1])
print((time.perf_counter() - begun) * 1e3, len(set(sys.modules) - before))
"""

NAMES = ["gpumagic", "line_profiler", "pyinstrument", "memray", "pytorch_memlab", "scalene",
         "jumper_extension"]


def load(name: str) -> tuple[float, int] | None:
    """Load one extension in a fresh Python; return milliseconds and new modules."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, name], capture_output=True, text=True, check=False
    )
    words = done.stdout.split()[-2:]
    if done.returncode or len(words) != 2:
        return None
    return float(words[0]), int(words[1])


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [name for name in options.names if load(name) is not None]
    times: dict[str, list[float]] = {name: [] for name in names}
    modules: dict[str, int] = {}
    for _ in range(options.rounds):
        for name in names:
            found = load(name)
            assert found is not None
            times[name].append(found[0])
            modules[name] = found[1]
    ours = statistics.median(times["gpumagic"])
    result = {
        name: {
            "median_ms": statistics.median(times[name]), "min_ms": min(times[name]),
            "modules": modules[name], "times_gpumagic": statistics.median(times[name]) / ours,
        }
        for name in names
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
