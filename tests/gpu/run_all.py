"""Run checks for a real GPU and write the results: ``python tests/gpu/run_all.py DIR [JOB ...]``.

Needs an NVIDIA GPU, torch, and what gpumagic and a kernel need. Takes about ten minutes; names
after the directory choose some of the jobs, else all run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests" / "gpu"
TIMEOUT_S = 300


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
        "findings": [str(GPU / "check_findings.py"), "--out", str(out)],
        "activity": [str(GPU / "check_activity.py"), "--out", str(out)],
        "peaks": [str(GPU / "check_peaks.py"), "--out", str(out)],
        "energy": [str(GPU / "check_energy.py"), "--out", str(out)],
        "live": [str(GPU / "check_live.py"), "--out", str(out)],
        "holders": [str(GPU / "check_holders.py"), "--out", str(out)],
        "growth": [str(GPU / "check_growth.py"), "--out", str(out)],
        "sampling": [str(ROOT / "benchmarks" / "sampling_cost.py"), str(out)],
        "notebooks": [str(GPU / "run_notebooks.py"), "--out", str(out)],
        "record": [str(GPU / "record_training.py"), str(out / "h200-training.jsonl.gz")],
    }
    wanted = sys.argv[2:] or list(jobs)
    failed = 0
    with (out / "log.txt").open("w") as log:
        for name in wanted:
            begun = time.monotonic()
            try:
                done = subprocess.run(
                    [sys.executable, *jobs[name]], stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S,
                )
                ended, text = f"exit {done.returncode}", done.stdout
                failed += done.returncode != 0
            except subprocess.TimeoutExpired as late:
                said = late.stdout or b""
                text = said if isinstance(said, str) else said.decode(errors="replace")
                ended = "stopped, too late"
                failed += 1
            head = f"==== {name}: {ended}, {time.monotonic() - begun:.1f} s"
            log.write(f"{head}\n{text}\n")
            log.flush()
            print(f"{head}\n{text[-6000:]}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
