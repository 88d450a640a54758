"""What is left of a watch in a notebook that nobody looked at: a picture, and text.

Real nbclient, nbconvert and papermill run the notebooks.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from kernel.matrix import Manager, kernel_environment
from needs import cannot
from nvml_stub import NvmlStub, compiler

pytestmark = pytest.mark.kernel

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 120
GROWTH = 60_000
BUSY = {
    "wave": True, "wave_period_s": 4, "utilization": 80, "memory_used": 60 << 30,
    "power_mw": 610_000, "temperature": 71, "sm_clock_mhz": 1755,
}
LOAD = "%load_ext gpumagic"
SLEEP = "import time\ntime.sleep(2)"
BARS = "▁▂▃▄▅▆▇█"
DIES = "import os, time\ntime.sleep(7)\nos._exit(1)"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    """Give a driver with two busy GPUs."""
    if compiler() is None:
        cannot("the stub NVML is built with gcc")
    made = NvmlStub(tmp_path_factory.mktemp("stub"), gpus=2)
    for index in range(2):
        made.gpu(index, **BUSY)
    return made


class AsyncManager(AsyncKernelManager):
    """A manager that starts ipykernel from one given Python.

    With one that is not asynchronous nbclient does not see that the kernel has died.
    """

    python: Path
    kernel_spec = Manager.kernel_spec


class Runner:
    """Runs notebooks in a folder, each way that nobody looks at."""

    def __init__(self, folder: Path, stub: NvmlStub) -> None:
        self.folder = folder
        self.environment = kernel_environment(folder, **stub.variables())
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)

    def write(self, *cells: str) -> Path:
        """Write a notebook of code cells."""
        path = self.folder / "given.ipynb"
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(c) for c in (LOAD, *cells)],
            metadata={
                "kernelspec": {
                    "name": "python3", "display_name": "Python 3", "language": "python",
                },
            },
        )
        nbformat.write(notebook, path)
        return path

    def command(self, *words: str | Path, fails: bool = False) -> str:
        """Run a module's command line here, and return what it said."""
        # A cell that starts this with ! hands down what its page has given its kernel.
        inherited = {"JPY_SESSION_NAME": str(self.folder / "other.ipynb")}
        process = subprocess.run(
            [sys.executable, "-m", *map(str, words)], cwd=self.folder,
            env=self.environment | inherited, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )
        said = process.stdout + process.stderr
        assert (process.returncode != 0) == fails, said
        return said

    def nbclient(
        self,
        given: Path,
        *,
        raises: type[Exception] | None = None,
        python: str = sys.executable,
        ended: Callable[[Any, int], None] | None = None,
    ) -> Path:
        """Run a notebook by nbclient in this process, and write it whatever happens.

        ``ended`` is told after each cell of the notebook so far and the number of the cell.
        """
        notebook = nbformat.read(given, as_version=4)
        manager = AsyncManager()
        manager.python = Path(python)
        client = NotebookClient(notebook, km=manager, timeout=TIMEOUT_S)
        if ended is not None:
            client.on_cell_executed = lambda cell, cell_index, execute_reply: ended(
                notebook, cell_index
            )
        keywords = {"env": self.environment, "cwd": str(self.folder), "cleanup_kc": True}
        if raises is None:
            client.execute(**keywords)
        else:
            with pytest.raises(raises):
                client.execute(**keywords)
        done = self.folder / "done.ipynb"
        nbformat.write(notebook, done)
        return done

    def nbconvert(self, given: Path) -> Path:
        """Run a notebook by ``nbconvert --execute``."""
        self.command(
            "nbconvert", "--to", "notebook", "--execute", given, "--output", "done.ipynb"
        )
        return self.folder / "done.ipynb"

    def papermill(self, given: Path, *, fails: bool = False) -> Path:
        """Run a notebook by papermill."""
        if find_spec("papermill") is None:
            cannot("not installed: pip install papermill")
        self.command("papermill", given, "done.ipynb", "--no-progress-bar", fails=fails)
        return self.folder / "done.ipynb"


Run = Callable[[Runner, Path], Path]
WAYS: dict[str, Run] = {
    "nbclient": Runner.nbclient, "nbconvert": Runner.nbconvert, "papermill": Runner.papermill
}


@pytest.fixture
def runner(tmp_path: Path, stub: NvmlStub) -> Runner:
    return Runner(tmp_path, stub)


def cells_of(path: Path) -> list[Any]:
    """Return the user's cells of a notebook; papermill puts one above a cell that failed."""
    found: list[Any] = nbformat.read(path, as_version=4).cells
    above = "papermill-error-cell-tag"
    return [cell for cell in found if above not in cell.metadata.get("tags", ())]


def twin_of(path: Path, index: int = 1) -> Any:
    """Return the data of the one output of the watch's cell, which is a picture and its text."""
    (output,) = cells_of(path)[index].outputs
    assert set(output.data) == {"image/png", "text/plain"}
    width, height = size(output.data)
    assert output.metadata["image/png"]["width"] * 2 == width
    assert height > 300
    assert "GPU 0" in output.data["text/plain"]
    assert "GPU 1" in output.data["text/plain"]
    return output.data


def size(data: Any) -> tuple[int, int]:
    header = base64.b64decode(data["image/png"])[:24]
    assert header.startswith(b"\x89PNG")
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def require_no_widgets(path: Path, given: Path) -> None:
    """Require that a file has no view and no state of widgets, and has not grown much."""
    assert "widgets" not in nbformat.read(path, as_version=4).metadata
    assert "widget" not in path.read_text(encoding="utf-8")
    assert path.stat().st_size - given.stat().st_size < GROWTH


# -- what stays -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_without_stop_the_last_picture_stays(runner: Runner, way: str) -> None:
    """A notebook that never stops its watch holds one picture, which shows its last cell."""
    given = runner.write("%gpuwatch", SLEEP, "x = 1")
    path = WAYS[way](runner, given)
    text = twin_of(path)["text/plain"]
    assert "[3]" in text
    assert "[4]" in text
    require_no_widgets(path, given)


@pytest.mark.parametrize("way", WAYS)
def test_stop_leaves_the_picture(runner: Runner, way: str) -> None:
    """A later cell that stops the watch leaves one picture, and nothing under itself."""
    given = runner.write("%gpuwatch", SLEEP, "%gpuwatch stop")
    path = WAYS[way](runner, given)
    twin_of(path)
    assert cells_of(path)[3].outputs == []
    require_no_widgets(path, given)


def test_one_cell_that_watches_and_works(runner: Runner) -> None:
    """The picture shows what came after its own beginning in the cell that starts the watch."""
    given = runner.write(f"%gpuwatch\n{SLEEP}")
    text = twin_of(runner.nbclient(given))["text/plain"]
    (line,) = [line for line in text.splitlines() if "utilization" in line and "GPU 0" in line]
    # Two of the five seconds shown; at the beginning there is not even one column.
    assert sum(map(line.count, BARS)) >= 10


@pytest.mark.parametrize("way", ["nbclient", "papermill"])
def test_a_failing_cell_leaves_the_picture(runner: Runner, way: str) -> None:
    """A cell that fails ends the run, and the picture shows that cell."""
    given = runner.write("%gpuwatch", f"{SLEEP}\n1 / 0", "never = 1")
    if way == "nbclient":
        path = runner.nbclient(given, raises=CellExecutionError)
    else:
        path = runner.papermill(given, fails=True)
    assert "[3] failed" in twin_of(path)["text/plain"]
    require_no_widgets(path, given)


def test_a_kernel_that_dies_leaves_a_picture(runner: Runner) -> None:
    """When the kernel dies under papermill, the picture is one of while the long cell ran.

    ``test_every_version_sends_the_picture`` has the same of nbclient.
    """
    given = runner.write("%gpuwatch", DIES)
    path = runner.papermill(given, fails=True)
    assert "═" in twin_of(path)["text/plain"], "the running cell is drawn"
    require_no_widgets(path, given)


def test_every_version_sends_the_picture(runner: Runner, python: Path) -> None:
    """nbclient takes the pictures of the thread and of the cell's end from each ipykernel."""
    shown: dict[int, str] = {}

    def ended(notebook: Any, cell: int) -> None:
        for output in notebook.cells[1].outputs:
            shown[cell] = output.data["text/plain"]

    given = runner.write("%gpuwatch", SLEEP, DIES)
    path = runner.nbclient(given, raises=DeadKernelError, python=str(python), ended=ended)
    assert "[3]" not in shown[1]
    assert "[3]" in shown[2]
    assert "[4]" not in shown[2]
    assert "═" not in shown[2], "no cell runs"
    last = twin_of(path)["text/plain"]
    assert "[4]" in last
    assert "═" in last, "the running cell is drawn"
    require_no_widgets(path, given)


# -- other files ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def executed(stub: NvmlStub, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runner, Path]:
    """Run one notebook for the tests of what nbconvert makes of it."""
    runner = Runner(tmp_path_factory.mktemp("converted"), stub)
    return runner, runner.nbclient(runner.write("%gpuwatch", SLEEP))


def test_html_holds_the_picture(executed: tuple[Runner, Path]) -> None:
    """As HTML the notebook shows the picture, at its width on the page."""
    runner, path = executed
    data = twin_of(path)
    runner.command("nbconvert", "--to", "html", path)
    page = path.with_suffix(".html").read_text(encoding="utf-8")
    (tag,) = re.findall(r"<img[^>]*>", page)
    assert f'src="data:image/png;base64,{data["image/png"].strip()}"' in tag
    assert f'width="{size(data)[0] // 2}"' in tag


@pytest.mark.parametrize(
    ("kind", "suffix", "before"),
    [("latex", ".tex", r"\adjustimage{max size={0.9\linewidth}{0.9\paperheight}}{"),
     ("markdown", ".md", "![png](")],
)
def test_the_picture_is_a_file_of_its_own(
    executed: tuple[Runner, Path], kind: str, suffix: str, before: str
) -> None:
    """LaTeX, from which PDF is made, and Markdown show the picture as a file beside them."""
    runner, path = executed
    runner.command("nbconvert", "--to", kind, path)
    text = path.with_suffix(suffix).read_text(encoding="utf-8")
    assert f"{before}done_files/done_1_0.png" in text
    drawn = (path.parent / "done_files" / "done_1_0.png").read_bytes()
    assert drawn == base64.b64decode(twin_of(path)["image/png"])


@pytest.mark.parametrize("kind", ["latex", "markdown"])
def test_the_text_stands_in_for_the_picture(executed: tuple[Runner, Path], kind: str) -> None:
    """Where text is preferred, the figures are in the text."""
    runner, path = executed
    said = runner.command(
        "nbconvert", "--to", kind, "--stdout",
        "--NbConvertBase.display_data_priority=text/plain", path,
    )
    assert "GPU 0" in said
    assert "utilization" in said
    assert "png" not in said.partition("GPU 0")[2]
