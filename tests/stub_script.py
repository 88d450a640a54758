"""Run a script in a process of its own with the stub driver at hand, and return what it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gpumagic

__all__ = ["run_script"]


def run_script(
    prologue: str, script: str, libraries: Path, folder: Path, *, first_on_path: Path | None = None
) -> Any:
    """Run ``script`` after ``prologue``; it gets two paths and prints one JSON value.

    The paths are the folder of the built stubs and an empty one. A warning is an error, and
    so is anything on stderr.
    """
    paths = [Path(gpumagic.__file__).parents[1], Path(__file__).parent]
    if first_on_path is not None:
        paths.insert(0, first_on_path)
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", prologue + textwrap.dedent(script),
         str(libraries), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True, text=True, timeout=60,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == ""
    return json.loads(outcome.stdout)
