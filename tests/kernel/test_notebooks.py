"""The notebooks, run as ``make demo`` runs them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from needs import cannot
from nvml_stub import NvmlStub, compiler

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))

ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    "live_view": {"GPUMAGIC_NOTEBOOK_SECONDS": "1"},
    "resource_baseline": {"GPUMAGIC_NOTEBOOK_N": "400"},
    "slow_training": {"GPUMAGIC_NOTEBOOK_SECONDS": "1"},
}
"""What makes a notebook small enough for a test, by its name."""

NEEDS_TORCH = frozenset({"out_of_memory", "slow_training"})
"""The notebooks that have nothing to run without torch."""

KEPT = ("out_of_memory", "resource_baseline", "slow_training")
"""The notebooks that are stored with the outputs of an H200."""

ABSOLUTE = re.compile(r"(?<![\w/.:<])/[\w.-]+/[\w.-]")
"""Finds where a path from the root begins, in text or in HTML."""

TIMEOUT_S = 300
SM_ACTIVE = 2
"""GPM's number of what the SMs did."""

DEVICE_COLUMNS = (
    "GPU-Util", "SM active", "torch allocated", "allocated peak", "torch reserved",
    "context and other", "energy",
)
TORCH_COLUMNS = ("torch allocated", "allocated peak", "torch reserved", "context and other")


@dataclass(frozen=True)
class Executed:
    """A notebook that has run: its cells with their outputs, its page and its summary."""

    cells: list[Any]
    page: str
    summary: list[str]


Execute = Callable[..., Executed]


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Execute:
    """Give a function that runs a notebook on so many stub GPUs, each combination once."""
    done: dict[tuple[str, int, bool], Executed] = {}

    def run(name: str, gpus: int, *, torch: bool = True) -> Executed:
        if torch and name in NEEDS_TORCH and not has_torch():
            cannot(f"{name} needs torch")
        key = (name, gpus, torch)
        if key not in done:
            done[key] = execute_once(name, gpus, torch, tmp_path_factory.mktemp(name))
        return done[key]

    return run


def has_torch() -> bool:
    """Tell whether a kernel of this Python can import torch."""
    return importlib.util.find_spec("torch") is not None


def execute_once(name: str, gpus: int, torch: bool, directory: Path) -> Executed:
    """Run a notebook with ``notebooks/run.py``; without ``torch``, importing it fails."""
    environment = dict(os.environ)
    if gpus:
        if compiler() is None:
            cannot("the stub NVML is built with gcc")
        stub = NvmlStub(directory / "stub", gpus=gpus)
        for index in range(gpus):
            stub.gpu(index, wave=True, utilization=90, memory_used=80 << 30, power_mw=600_000)
            stub.gpm(index, {SM_ACTIVE: 55.0})
        environment = stub.environment()
    if not torch:
        shadow = directory / "without_torch"
        shadow.mkdir()
        (shadow / "torch.py").write_text("raise ModuleNotFoundError('torch', name='torch')\n")
        found = environment.get("PYTHONPATH")
        paths = [str(shadow), *([found] if found else [])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment |= {**ENVIRONMENT.get(name, {}), "IPYTHONDIR": str(directory / "ipython")}
    page, executed = directory / f"{name}.html", directory / f"{name}.ipynb"
    process = subprocess.run(
        [
            sys.executable, NOTEBOOKS / "run.py", NOTEBOOKS / f"{name}.ipynb",
            "--html", page, "--executed", executed,
        ],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment,
    )
    assert process.returncode == 0, process.stderr
    where, *summary = process.stdout.splitlines()
    assert Path(where) == page
    cells = nbformat.read(executed, as_version=4).cells
    return Executed(cells, page.read_text(encoding="utf-8"), summary)


def kinds_of(cell: Any) -> list[str]:
    """List the MIME types that a cell shows."""
    return [kind for output in cell.get("outputs", ()) for kind in output.get("data", {})]


# -- every notebook -------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_notebook(execute: Execute, name: str, gpus: int) -> None:
    """A notebook runs with and without GPUs, and what it shows stays in the saved file."""
    ran = execute(name, gpus)
    assert ran.summary
    assert all(ran.summary)
    for cell in ran.cells:
        outputs, kinds = cell.get("outputs", []), kinds_of(cell)
        failed = any(output.output_type == "error" for output in outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", ()))
        assert all(output.get("name") != "stderr" for output in outputs)
        assert not [kind for kind in kinds if "widget" in kind]
        magic, *words = cell.source.partition("\n")[0].split() or [""]
        if magic == "%gpuwatch" and not {"stop", "status"} & set(words):
            assert kinds == ["image/png", "text/plain"]
        if magic in ("%gpureport", "%%gpuprofile"):
            assert ("text/html" in kinds) == (not {"-q", "--quiet"} & set(words))


@pytest.mark.kernel
@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_stored_with_a_plain_kernel(name: str) -> None:
    """A notebook asks for the kernel that every installation has."""
    kernel = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).metadata["kernelspec"]
    assert kernel["name"] == "python3"


# -- the notebooks that are stored with outputs ---------------------------------------------


def stored(name: str) -> list[Any]:
    """Return the code cells of a notebook as it is stored."""
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def texts_of(cell: Any) -> list[str]:
    """List all that a cell shows but its pictures."""
    found: list[str] = []
    for output in cell.get("outputs", ()):
        shown = output.get("data", {})
        found += [output.get("text", ""), *output.get("traceback", ())]
        found += [text for kind, text in shown.items() if not kind.startswith("image/")]
    return found


@pytest.mark.parametrize("name", KEPT)
def test_outputs_of_an_h200_are_stored(name: str) -> None:
    """A stored notebook has run from top to bottom: its reports, one table, no error of ours."""
    cells = stored(name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        kinds = kinds_of(cell)
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", ()))
        assert all(output.get("name") != "stderr" for output in cell.outputs)
        assert not [kind for kind in kinds if "widget" in kind]
        magic, *words = cell.source.partition("\n")[0].split()
        if magic in ("%gpureport", "%%gpuprofile"):
            assert ("text/html" in kinds) == (not {"-q", "--quiet"} & set(words))
            assert all("H200" in text for text in texts_of(cell) if len(text) > 200)
        if magic == "%gpuwatch" and not {"stop", "status"} & set(words):
            assert kinds == ["image/png", "text/plain"]
    assert sum(kinds_of(cell).count("text/html") for cell in cells) > 0
    tables = sum(kinds_of(cell).count("text/markdown") for cell in cells)
    assert tables == (0 if name == "out_of_memory" else 1)


@pytest.mark.parametrize("name", KEPT)
def test_stored_outputs_name_no_place(name: str) -> None:
    """What is stored has no path of the machine that it ran on, and no state of widgets."""
    found = [text for cell in stored(name) for text in texts_of(cell) if ABSOLUTE.search(text)]
    assert found == []
    metadata = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).metadata
    assert "widgets" not in metadata


@pytest.mark.parametrize("text", ["File /home/me/a.py", "<b>/usr/lib/x</b>", "at /a/b"])
def test_a_path_would_be_found(text: str) -> None:
    """The expression finds absolute paths, and no link, tag or unit."""
    assert ABSOLUTE.search(text)
    assert not ABSOLUTE.search("http://www.w3.org/2000/svg </text></g> images/s GB/s a/b/c")


@pytest.mark.kernel
@pytest.mark.parametrize("name", KEPT)
def test_a_run_replaces_what_is_stored(execute: Execute, name: str) -> None:
    """After a run without a GPU nothing is left of the outputs of the H200."""
    reported = "H200 · cuda:0"
    assert any(reported in text for cell in stored(name) for text in texts_of(cell))
    ran = execute(name, 0)
    assert not [text for cell in ran.cells for text in texts_of(cell) if reported in text]


# -- the quickstart -------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("gpus", [0, 2])
def test_quickstart(execute: Execute, gpus: int) -> None:
    """The quickstart shows two views, two reports, memory twice, and three lines on the GPU."""
    ran = execute("quickstart", gpus)
    assert ran.page.count("data:image/png;base64") >= 2
    shown = [kind for cell in ran.cells for kind in kinds_of(cell)]
    assert (shown.count("image/png"), shown.count("text/html")) == (2, 4)
    assert len(ran.summary) == 3
    assert ("NVIDIA H200" if gpus else "GPU: n/a: ") in ran.summary[1]


# -- out of memory --------------------------------------------------------------------------


def shown_by(ran: Executed, begin: str) -> list[str]:
    """Return what the cells that begin so show as text, each on one line."""
    return [
        " ".join((output.get("text") or output.data["text/plain"]).split())
        for cell in ran.cells
        for output in cell.get("outputs", ())
        if cell.source.startswith(begin) and output.output_type != "error"
    ]


@pytest.mark.kernel
@pytest.mark.parametrize("gpus", [0, 2])
def test_out_of_memory(execute: Execute, gpus: int) -> None:
    """One panel stands under the error, %gpufree releases the traceback, and nothing is left."""
    ran = execute("out_of_memory", gpus)
    (failed,) = [cell for cell in ran.cells if "raises-exception" in cell.metadata.get("tags", ())]
    assert [output.output_type for output in failed.outputs] == ["error", "display_data"]
    number = failed.execution_count
    (panel,) = shown_by(ran, failed.source)
    assert f"The largest holders are the traceback of [{number}] (16.0 MiB), model and" in panel
    assert ran.page.count('<div class="gps">') == 1
    kept, emptied = re.findall(r"\d+ MiB", " ".join(shown_by(ran, "before = held()")))
    assert kept == emptied
    (foreseen,) = shown_by(ran, "%gpufree --dry-run")
    released, displayed = shown_by(ran, "%gpufree $CPU") + shown_by(ran, "%gpufree --out")
    freed = f"traceback of [{number}] frame train_step(): acts 16.0"
    assert foreseen.index("Will be released") < foreseen.index(freed) < foreseen.index("Stays")
    assert released.index("Released") < released.index(freed) < released.index("Stays")
    assert displayed.index("Released") < displayed.index("Out[4]") < displayed.index("Stays")
    (still,) = shown_by(ran, "%gpufree model")
    assert "model deleted; still held by optimizer: %gpufree --cpu optimizer" in still
    before, after = map(int, re.findall(r"(\d+) MiB", ran.summary[0]))
    assert before - after == 16
    assert shown_by(ran, "import gpumagic")[0].startswith("[] ")
    assert ran.summary[1] == "0 MiB in tensors at the end"


# -- the resource baseline ------------------------------------------------------------------


Rows = dict[str, dict[str, str]]


def baseline_table(ran: Executed) -> tuple[Rows, list[str]]:
    """Return the table's cells by stage and column, and the lines that give reasons."""
    (shown,) = [
        output.data["text/markdown"]
        for cell in ran.cells
        for output in cell.get("outputs", ())
        if "text/markdown" in output.get("data", {})
    ]
    lines = shown.splitlines()
    header, _, *body = [
        [word.strip() for word in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    rows = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body}
    return rows, [line for line in lines if line.startswith("- ")]


def in_bytes(text: str) -> float:
    """Read an amount such as ``+12.4 MiB``."""
    number, unit = text.split()
    return float(number) * 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)


def reason_for(column: str, reasons: list[str]) -> str:
    """Return all that is said of the missing figures of a column."""
    return " ".join(line for line in reasons if column in line.partition(": n/a")[0])


@pytest.mark.kernel
@pytest.mark.parametrize("gpus", [0, 2])
def test_baseline_has_a_row_for_each_stage(execute: Execute, gpus: int) -> None:
    """Each stage has its time and its RAM, and ``import torch`` leaves the process larger."""
    if not has_torch():
        cannot("the stages after the first need torch")
    rows, _ = baseline_table(execute("resource_baseline", gpus))
    assert [stage[0] for stage in rows] == list("123456")
    for row in rows.values():
        assert "n/a" not in (row["time"], row["RAM"], row["RAM change"])
    idle, imported = (in_bytes(row["RAM"]) for row in list(rows.values())[:2])
    assert imported > idle
    assert in_bytes(rows["2 import torch"]["RAM change"]) > 0


@pytest.mark.kernel
def test_baseline_without_a_gpu(execute: Execute) -> None:
    """Without a GPU all device figures are n/a, the reason stands below, and none is 0."""
    rows, reasons = baseline_table(execute("resource_baseline", 0))
    for row in rows.values():
        assert {row[column] for column in DEVICE_COLUMNS} == {"n/a"}
    for column in DEVICE_COLUMNS:
        assert "no NVIDIA GPU here" in reason_for(column, reasons)


@pytest.mark.kernel
def test_baseline_with_a_gpu_that_torch_does_not_use(execute: Execute) -> None:
    """What NVML alone can tell is there, and torch's figures are n/a with their own reason."""
    rows, reasons = baseline_table(execute("resource_baseline", 2))
    idle = rows["1 idle kernel"]
    for column in ("GPU-Util", "SM active"):
        assert re.fullmatch(r"[1-9]\d*\s%", idle[column])
    assert re.match(r"[1-9][\d.]*\sk?J", idle["energy"])
    for column in TORCH_COLUMNS:
        assert {row[column] for row in rows.values()} == {"n/a"}
        assert "CUDA" in reason_for(column, reasons)
        assert "no NVIDIA GPU here" not in reason_for(column, reasons)


@pytest.mark.kernel
def test_baseline_without_torch(execute: Execute) -> None:
    """Without torch the notebook says so once, measures the idle kernel and runs to its end."""
    ran = execute("resource_baseline", 0, torch=False)
    said = [
        output.text
        for cell in ran.cells
        for output in cell.get("outputs", ())
        if output.get("text", "").startswith("torch is not installed")
    ]
    assert len(said) == 1
    rows, reasons = baseline_table(ran)
    idle, *others = rows.values()
    assert in_bytes(idle["RAM"]) > 0
    assert {text for row in others for text in row.values()} == {"n/a"}
    assert "torch is not installed" in reason_for("RAM", reasons)
    assert "torch is not installed" in ran.summary[0]
