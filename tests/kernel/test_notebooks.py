"""The notebooks, run as ``make demo`` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from needs import cannot
from nvml_stub import NvmlStub, compiler

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.kernel
@pytest.mark.parametrize("gpus", [0, 2])
def test_quickstart(gpus: int, tmp_path: Path) -> None:
    """The quickstart runs with and without GPUs, and what it shows stays in the saved file."""
    environment = dict(os.environ)
    if gpus:
        if compiler() is None:
            cannot("the stub NVML is built with gcc")
        stub = NvmlStub(tmp_path / "stub", gpus=gpus)
        for index in range(gpus):
            stub.gpu(index, wave=True, utilization=90, memory_used=80 << 30, power_mw=600_000)
        environment = stub.environment()
    page, executed = tmp_path / "quickstart.html", tmp_path / "quickstart.ipynb"
    done = subprocess.run(
        [
            sys.executable, NOTEBOOKS / "run.py", NOTEBOOKS / "quickstart.ipynb",
            "--html", page, "--executed", executed,
        ],
        capture_output=True, text=True, timeout=120, check=False,
        env=environment | {"IPYTHONDIR": str(tmp_path / "ipython")},
    )
    assert done.returncode == 0, done.stderr
    where, *summary = done.stdout.splitlines()
    assert Path(where) == page
    assert page.read_text(encoding="utf-8").count("data:image/png;base64") >= 2
    assert len(summary) == 3
    expected = "NVIDIA H200" if gpus else "GPU: n/a: "
    assert expected in summary[1]
    check_outputs(nbformat.read(executed, as_version=4).cells)


def check_outputs(cells: list[Any]) -> None:
    """Check that every view became a picture, that the report came, and that nothing failed."""
    reports = pictures = 0
    for cell in cells:
        outputs = cell.get("outputs", [])
        kinds = [kind for output in outputs for kind in output.get("data", {})]
        assert all(output.output_type != "error" for output in outputs)
        assert all(output.get("name") != "stderr" for output in outputs)
        assert not [kind for kind in kinds if "widget" in kind]
        if cell.source.startswith("%gpuwatch") and cell.source != "%gpuwatch stop":
            assert kinds == ["image/png", "text/plain"]
            pictures += 1
        if cell.source.startswith(("%%gpuprofile", "%gpureport")):
            assert "text/html" in kinds
            reports += 1
    assert (pictures, reports) == (2, 2)
