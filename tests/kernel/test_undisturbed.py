"""Watching beside torch's data loaders, forks and CUDA's state, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu import check_undisturbed
from needs import cannot
from nvml_stub import NvmlStub, compiler


@pytest.mark.parametrize("name", check_undisturbed.CHECKS)
def test_undisturbed(name: str, tmp_path: Path) -> None:
    """A running watch and profile change nothing for torch, its workers and forks."""
    if find_spec("torch") is None:  # not imported here: it would stay in this process
        cannot("torch is not installed; its build for the CPU will do")
    if compiler() is None:
        cannot("the stub NVML is built with gcc")
    stub = NvmlStub(tmp_path, gpus=2)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", check_undisturbed.__file__, name],
        capture_output=True, text=True, timeout=120, check=False, env=stub.environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert stub.calls("nvmlInitWithFlags")
