"""Run every check for a real GPU and write the results: ``python tests/gpu/run_all.py DIR``.

Needs an NVIDIA GPU, torch, and what gpumagic and a kernel need. Takes about four minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests" / "gpu"


def main() -> int:
    """Run all; return how many failed."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "build").resolve()
    out.mkdir(parents=True, exist_ok=True)
    jobs = {
        "doctor": ["-m", "gpumagic", "doctor"],
        "figures": [str(GPU / "check_figures.py"), "--out", str(out)],
        "notebook": [str(GPU / "run_notebook.py"), "--out", str(out)],
        "devices": [str(GPU / "check_devices.py")],
        "undisturbed": [str(GPU / "check_undisturbed.py")],
        "reading": [str(ROOT / "benchmarks" / "reading.py"), "--out", str(out / "reading.json")],
        "record": [str(GPU / "record_training.py"), str(out / "h200-training.jsonl.gz")],
    }
    wanted = sys.argv[2:] or list(jobs)
    failed = 0
    with (out / "log.txt").open("w") as log:
        for name in wanted:
            begun = time.monotonic()
            done = subprocess.run(
                [sys.executable, *jobs[name]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, check=False, timeout=300,
            )
            failed += done.returncode != 0
            head = f"==== {name}: exit {done.returncode}, {time.monotonic() - begun:.1f} s"
            log.write(f"{head}\n{done.stdout}\n")
            log.flush()
            print(f"{head}\n{done.stdout[-6000:]}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
