"""A watch from its start to the picture that stays, over reloads, restarts and reopening."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from nvml_stub import NvmlStub

from .conftest import OpenNotebook
from .lab import Notebook

pytestmark = pytest.mark.browser

THREADS = (
    "import threading; print([t.name for t in threading.enumerate() if 'gpumagic' in t.name])"
)
MODELS = "import ipywidgets; print('models:', len(ipywidgets.widgets.widget._instances))"


def bundles(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rich outputs of a saved cell."""
    return [output["data"] for output in cell["outputs"] if "data" in output]


def require_twin(cell: dict[str, Any]) -> None:
    """Require that a saved cell holds one picture with its text, and no widget."""
    (twin,) = bundles(cell)
    assert set(twin) == {"image/png", "text/plain"}
    assert base64.b64decode("".join(twin["image/png"])).startswith(b"\x89PNG")
    assert "GPU 0" in "".join(twin["text/plain"])


def start(notebook: Notebook) -> None:
    """Load the extension and show the watch of cell 1."""
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)


def test_stop_leaves_a_picture(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Stop puts a picture in the view's place, in the page and the file, and frees its models."""
    notebook = open_notebook("%gpuwatch", "%gpuwatch stop", MODELS, THREADS)
    start(notebook)
    notebook.run(2)
    notebook.wait_picture(1)
    notebook.screenshot(screenshots, "stopped")
    assert notebook.output(1).locator(".jupyter-widgets").count() == 0
    assert notebook.moves(1, 1.5).times == []
    assert notebook.texts(2) == []
    assert notebook.printed(3) == "models: 0"
    assert notebook.printed(4) == "[]"
    cells = notebook.save()
    require_twin(cells[1])
    assert cells[2]["outputs"] == []


def test_second_watch_moves_the_view(open_notebook: OpenNotebook) -> None:
    """A second watch turns the first into a picture and leaves one sampler and one view."""
    notebook = open_notebook("%gpuwatch", "%gpuwatch", THREADS)
    start(notebook)
    notebook.run(2)
    notebook.wait_live(2)
    notebook.wait_picture(1)
    assert notebook.output(1).locator(".jupyter-widgets").count() == 0
    assert sorted(notebook.printed(3).strip("[]").split(", ")) == [
        "'gpumagic-sampler'", "'gpumagic-view'"
    ]


def test_reload_finds_the_view_again(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """After a reload the view moves on, and stop puts pictures below itself and in its place."""
    notebook = open_notebook("%gpuwatch", "%gpuwatch stop", THREADS)
    start(notebook)
    notebook.save()
    notebook.reload()
    notebook.wait_live(1)
    notebook.run(2)
    notebook.wait_picture(2)
    notebook.until(lambda: notebook.output(1).locator("img").count() == 1, "the old place's image")
    image = notebook.output(1).locator("img")
    notebook.until(
        lambda: image.evaluate("i => i.complete && i.naturalWidth > 0"), "the old place's picture"
    )
    notebook.screenshot(screenshots, "reloaded-stopped")
    assert notebook.moves(1, 1.5).times == []
    assert notebook.printed(3) == "[]"
    require_twin(notebook.save()[2])


def test_restart_of_the_kernel(open_notebook: OpenNotebook) -> None:
    """A kernel restarted under a running watch raises no dialog and can show a watch again."""
    notebook = open_notebook("%gpuwatch", THREADS)
    start(notebook)
    notebook.restart()
    assert notebook.dialog() == ""
    # What the old kernel still sent after the page had let go of its widgets.
    notebook.forgive("Comm not found")
    notebook.run(0)
    assert notebook.text(0) == ""
    assert notebook.printed(2) == "[]"
    notebook.run(1)
    notebook.wait_live(1)
    assert notebook.dialog() == ""


def test_unload_leaves_nothing(open_notebook: OpenNotebook) -> None:
    """Unloading the extension puts the picture in place and ends all threads and models."""
    notebook = open_notebook("%gpuwatch", "%unload_ext gpumagic", THREADS, MODELS)
    start(notebook)
    notebook.run(2)
    notebook.wait_picture(1)
    assert notebook.texts(2) == []
    assert notebook.printed(3) == "[]"
    assert notebook.printed(4) == "models: 0"


def test_reopened_notebook_shows_the_picture(open_notebook: OpenNotebook) -> None:
    """A stopped notebook that is saved and opened with a fresh kernel shows the picture."""
    notebook = open_notebook("%gpuwatch", "%gpuwatch stop")
    start(notebook)
    notebook.run(2)
    notebook.wait_picture(1)
    notebook.save()
    again = open_notebook.again(notebook)
    again.wait_picture(1)
    assert again.picture_width(1) > 400


def test_replay(open_notebook: OpenNotebook, stub: NvmlStub, screenshots: Path) -> None:
    """A recording that a watch has written is replayed by another, values and all."""
    stub.gpu(0, wave=False, utilization=37)
    notebook = open_notebook(
        "%gpuwatch -g 0 --record run.jsonl", "import time; time.sleep(3)", "%gpuwatch stop",
        "%gpuwatch --replay run.jsonl", THREADS,
    )
    start(notebook)
    notebook.run(2)
    notebook.run(3)
    notebook.wait_picture(1)
    stub.gpu(0, utilization=64)
    notebook.run(4)
    notebook.output(4).locator(".jupyter-widgets").first.wait_for(state="attached")
    notebook.until(lambda: "37" in notebook.texts(4), "the recorded value")
    assert "64" not in notebook.texts(4)
    assert "run.jsonl" in notebook.text(4)
    notebook.screenshot(screenshots, "replay")
    assert "gpumagic-sampler" not in notebook.printed(5)


@pytest.mark.parametrize("frontend", ["lab"], indirect=True)
def test_replay_of_the_demo(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """The recording that is shipped is replayed without a sampler, and stops as a picture."""
    notebook = open_notebook("%gpuwatch --replay demo --speed 4", "%gpuwatch stop", THREADS)
    start(notebook)
    assert "a recorded H200" in notebook.text(1)
    notebook.screenshot(screenshots, "replay-demo")
    assert notebook.printed(3) == "['gpumagic-view']"
    notebook.run(2)
    notebook.wait_picture(1)
    assert notebook.printed(3) == "[]"
