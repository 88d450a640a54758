"""Record a training run for replay: a starved phase, a busy phase, memory that climbs.

Run on a machine with an NVIDIA GPU and torch: ``python tests/gpu/record_training.py FILE``.
The file is what ``%gpuwatch --replay demo`` shows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import gpumagic
from gpumagic.session import current
from training import Job


def main() -> None:
    """Run the job in three spans and save the recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="length of the phases")
    options = parser.parse_args()
    session = current()
    recording = session.recording
    lease = session.lease("record", gpus="0")
    number = 3

    def cell(seconds: float, run: object) -> None:
        nonlocal number
        number += 1
        session.cell_began(number)
        run(seconds * options.scale)  # type: ignore[operator]
        session.cell_ended("ok")
        time.sleep(1.5)

    time.sleep(2.0)
    session.cell_began(number)
    job = Job(width=6144, depth=8)
    torch.cuda.synchronize()
    session.cell_ended("ok")
    time.sleep(1.0)
    cell(16, job.starved)
    gpumagic.mark("mended")
    cell(20, job.busy)
    gpumagic.mark("keeps outputs")
    cell(18, job.climbing)
    job.kept.clear()
    torch.cuda.empty_cache()
    time.sleep(3.0)
    lease.release()
    lines = gpumagic.save(recording, options.file)
    print(f"{options.file}: {lines} lines, {options.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
