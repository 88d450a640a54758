"""The live view moves, shows what the driver says, and looks right in both themes."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from needs import cannot
from nvml_stub import NvmlStub

from .conftest import OpenNotebook
from .lab import Notebook

pytestmark = pytest.mark.browser

SLEEP = "import time; time.sleep(6)"
PYTHON = """
import time
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    sum(x * x for x in range(10_000))
"""
TORCH = """
import time, torch
a = torch.rand(700, 700)
end = time.monotonic() + 6
while time.monotonic() < end:
    a = (a @ a).tanh()
"""


def luminance(colour: str) -> float:
    """Return how light an opaque ``rgb()`` is, from 0 to 1."""
    red, green, blue = (float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def shows(notebook: Notebook, cell: int, words: str) -> bool:
    """Tell whether these words are seen in a cell's output; what the pointer tells is hidden."""
    return words in " ".join(text for text, _ in notebook.inks(cell))


def test_moves_beside_running_cells(open_notebook: OpenNotebook) -> None:
    """The view is drawn at least twice a second beside sleep and pure Python."""
    notebook = open_notebook("%gpuwatch -g 0", SLEEP, PYTHON.replace("SECONDS", "6"))
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    for busy in (2, 3):
        moves = notebook.moves_while_running(1, busy)
        print(moves)
        assert len(moves.busy) >= 2 * 6, moves
        assert moves.longest_gap_s < 2, moves


@pytest.mark.parametrize("frontend", ["lab"], indirect=True)
def test_moves_beside_torch(open_notebook: OpenNotebook) -> None:
    """The view is drawn at least twice a second while torch multiplies on the processor."""
    if find_spec("torch") is None:
        cannot("torch is not installed: pip install torch")
    notebook = open_notebook("%gpuwatch -g 0", TORCH)
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    moves = notebook.moves_while_running(1, 2)
    print(moves)
    assert len(moves.busy) >= 2 * 6, moves


def test_follows_the_driver(open_notebook: OpenNotebook, stub: NvmlStub) -> None:
    """A utilization that the driver reports stands in the page within two seconds."""
    stub.gpu(0, wave=False, utilization=12)
    notebook = open_notebook("%gpuwatch -g 0 -m util", "import time; time.sleep(8)")
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    notebook.press_run(2)
    notebook.wait_busy(2)
    stub.gpu(0, utilization=37)
    notebook.until(lambda: "37" in notebook.texts(1), "37 is shown", seconds=2)
    stub.gpu(0, utilization=64)
    notebook.until(lambda: "64" in notebook.texts(1), "64 is shown", seconds=2)
    assert notebook.prompt(2) == "[*]:"
    assert "37" not in notebook.texts(1)


def test_four_gpus_move(
    open_notebook: OpenNotebook, stub: NvmlStub, screenshots: Path
) -> None:
    """The view of four GPUs shows each of them and moves beside a busy cell."""
    stub.write(count=4)
    notebook = open_notebook("%gpuwatch", PYTHON.replace("SECONDS", "3"))
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    moves = notebook.moves_while_running(1, 2)
    print(moves)
    assert len(moves.busy) >= 2 * 3, moves
    notebook.screenshot(screenshots, "four-gpus")
    text = notebook.text(1)
    assert all(f"GPU {index}" in text for index in range(4)), text


def test_lost_gpu_comes_back(
    open_notebook: OpenNotebook, stub: NvmlStub, screenshots: Path
) -> None:
    """A GPU that falls off the bus shows n/a and why while the view goes on, then its values."""
    stub.gpu(0, wave=False, utilization=37)
    notebook = open_notebook("%gpuwatch -g 0")
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    # Of what needs two readings, such as the SM activity, there is none at the very beginning.
    notebook.until(
        lambda: "37" in notebook.texts(1) and not shows(notebook, 1, "n/a"), "the values are shown"
    )
    stub.lose(0)
    notebook.until(lambda: shows(notebook, 1, "n/a"), "n/a is shown", seconds=10)
    assert shows(notebook, 1, "the GPU is lost"), notebook.inks(1)
    assert "37" not in notebook.texts(1)
    notebook.screenshot(screenshots, "lost")
    assert len(notebook.moves(1, 2.0).times) >= 2
    stub.find(0)
    stub.gpu(0, utilization=64)
    notebook.until(lambda: "64" in notebook.texts(1), "the new value is shown", seconds=60)
    assert not shows(notebook, 1, "n/a")


_TILES = """
seconds => new Promise(done => {
  const root = document.querySelector('.gpumagic-live');
  const box = root.querySelector('.gpumagic-pages');
  const moving = root.querySelector('.gpumagic-moving');
  const wrong = [], turns = new Set(), end = performance.now() + seconds * 1000;
  const near = (a, b) => Math.abs(a - b) < 0.1;
  const look = () => {
    const pages = [...box.children].map(page => page.getBoundingClientRect().left);
    turns.add(pages.indexOf(Math.min(...pages)));
    pages.sort((a, b) => a - b);
    const width = pages[1] - pages[0], plot = box.getBoundingClientRect();
    const tail = moving.querySelector('[style*="overflow:hidden"]').getBoundingClientRect();
    if (pages.some((left, i) => i && !near(left - pages[i - 1], width))) wrong.push('pages');
    if (pages[0] + width > plot.left) wrong.push('the spare page is seen');
    if (!near(pages[pages.length - 1] + width, tail.left)) wrong.push('the tail');
    if (performance.now() < end) requestAnimationFrame(look); else done([turns.size, wrong]);
  };
  look();
})
"""


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
@pytest.mark.parametrize("frontend", ["lab"], indirect=True)
def test_pages_meet_in_every_frame(
    open_notebook: OpenNotebook, screenshots: Path, renderer: str
) -> None:
    """While pages are turned, they and the tail lie side by side in every frame drawn."""
    notebook = open_notebook(f"%gpuwatch -w 30 --renderer {renderer}")
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    turns, wrong = notebook.page.evaluate(_TILES, 10.0)
    notebook.screenshot(screenshots, f"pages-{renderer}")
    assert wrong == []
    assert turns >= 3


_OUTSIDE = """
seconds => new Promise(done => {
  const box = document.querySelector('.gpumagic-live .gpumagic-pages');
  const wrong = [], end = performance.now() + seconds * 1000;
  let outside = 0;
  const look = () => {
    const left = box.getBoundingClientRect().left;
    // A page is as wide as the step to its neighbour, whatever reaches beyond it.
    const pages = [...box.children].map(p => [p.getBoundingClientRect().left, p]);
    pages.sort((a, b) => a[0] - b[0]);
    const width = pages[1][0] - pages[0][0];
    for (const [x, page] of pages) {
      const out = x + width < left + 0.1;
      outside += out;
      if (out != (getComputedStyle(page).visibility == 'hidden')) wrong.push(x - left);
    }
    if (performance.now() < end) requestAnimationFrame(look); else done([outside, wrong]);
  };
  look();
})
"""


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
@pytest.mark.parametrize("frontend", ["lab"], indirect=True)
def test_what_has_left_a_column_is_not_seen_in_the_next(
    open_notebook: OpenNotebook, stub: NvmlStub, screenshots: Path, renderer: str
) -> None:
    """In a table, pages left of the window are hidden, and only those."""
    stub.write(count=4)
    notebook = open_notebook(f"%gpuwatch -w 10 --renderer {renderer}")
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    outside, wrong = notebook.page.evaluate(_OUTSIDE, 12.0)
    notebook.screenshot(screenshots, f"table-{renderer}")
    assert wrong == []
    assert outside > 0


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
@pytest.mark.parametrize("frontend", ["lab"], indirect=True)
def test_a_narrow_page(open_notebook: OpenNotebook, screenshots: Path, renderer: str) -> None:
    """On a narrow page the view becomes smaller, also while it is shown, and its pages meet."""
    notebook = open_notebook(f"%gpuwatch -w 30 --renderer {renderer}")
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    moving = notebook.page.locator(".gpumagic-moving")
    whole = moving.bounding_box()["width"]  # type: ignore[index]
    notebook.page.set_viewport_size({"width": 1060, "height": 900})
    notebook.until(
        lambda: moving.bounding_box()["width"] < 0.95 * whole,  # type: ignore[index]
        "the view is smaller",
    )
    _, wrong = notebook.page.evaluate(_TILES, 3.0)
    notebook.screenshot(screenshots, f"narrow-{renderer}")
    assert wrong == []
    root = notebook.page.locator(".gpumagic-live")
    assert root.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_both_themes(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Labels are dark in the light theme and light in the dark one, on no background."""
    notebook = open_notebook("%gpuwatch", "import time; time.sleep(2)")
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    notebook.run(2)
    notebook.screenshot(screenshots, "light")
    assert {"utilization", "CPU"} <= {text for text, _ in notebook.inks(1)}
    for text, ink in notebook.inks(1):
        assert luminance(ink) < 0.6, (text, ink)
    notebook.use_theme("JupyterLab Dark")
    notebook.wait_live(1)
    notebook.screenshot(screenshots, "dark")
    for text, ink in notebook.inks(1):
        assert luminance(ink) > 0.4, (text, ink)
    clear = {"rgba(0, 0, 0, 0)", "none", "transparent"}
    painted = [(part, fill) for part, fill in notebook.backgrounds(1) if fill not in clear]
    assert painted == []
