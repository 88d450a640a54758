"""A replay: it moves, is held and moved along, and shows what the recording holds."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpumagic import codec
from gpumagic.watch_content import DEMO

from .conftest import OpenNotebook
from .lab import Notebook
from .test_life import bundles, require_twin, start
from .test_pointer import plain, words

pytestmark = pytest.mark.browser

WHERE = "import gpumagic; print(gpumagic.session.current().watch.status().position)"
RECORDING = codec.load(DEMO)
BEGUN, ENDED = RECORDING.bounds or (0.0, 0.0)
(GPU,) = (device.id for device in RECORDING.devices if device.kind == "gpu")

# The present figures of the GPU's strips, from the top down.
FIGURES = """
() => [...document.querySelectorAll('.gpumagic-moving .gpumagic-now text')]
  .map(e => [e.getBBox().y, e.getBBox().x + e.getBBox().width, e.textContent])
  .filter(([, end]) => end < 580).sort((a, b) => a[0] - b[0]).map(([, , text]) => text)
"""


def where(notebook: Notebook, cell: int) -> float:
    """Return the second of the recording that the replay has come to."""
    return float(notebook.printed(cell)) * (ENDED - BEGUN)


def click(notebook: Notebook, word: str) -> None:
    """Click a word of the controls."""
    notebook.page.locator(".gpumagic-controls button").get_by_text(word, exact=True).click()


def latest(metric: str, moment: float) -> float:
    """Return the recording's last value of a metric at a moment."""
    return float(RECORDING.series(metric, GPU, moment - 5, moment).values[-1])


def require_figures(notebook: Notebook, second: float) -> None:
    """Require that the figures on the screen are the recording's at that second."""
    moment = BEGUN + second
    expected = [
        f"{100 * latest('gpu_utilization_ratio', moment):.0f}",
        f"{latest('gpu_memory_used_bytes', moment) / 2**30:.1f}",
        f"{latest('gpu_power_watts', moment):.0f}",
        f"{latest('gpu_temperature_celsius', moment):.0f}",
    ]
    notebook.until(
        lambda: notebook.page.evaluate(FIGURES)[:4] == expected,
        f"{expected} at {second:.2f} s, not {notebook.page.evaluate(FIGURES)}", 3,
    )


def test_from_its_place_to_its_end(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """A replay begins where it is told to, moves, shows the last figures and then stands still.

    Stop leaves a picture of the whole recording.
    """
    notebook = open_notebook(
        "%gpuwatch --replay demo --speed 20 --at 30", WHERE, "%gpuwatch stop"
    )
    start(notebook)
    assert "a recorded H200" in notebook.text(1)
    notebook.until(lambda: "20 times as fast" not in notebook.text(1), "the replay is over", 10)
    assert where(notebook, 2) == pytest.approx(ENDED - BEGUN)
    notebook.until(lambda: notebook.moves(1, 1.0).times == [], "it stands still", 10)
    require_figures(notebook, ENDED - BEGUN)
    notebook.screenshot(screenshots, "replay-over")
    notebook.run(3)
    notebook.wait_picture(1)
    cells = notebook.save()
    require_twin(cells[1])
    told = "".join(bundles(cells[1])[0]["text/plain"])
    for name in ("[4]", "[5]", "[6]", *(f"{datetime.fromtimestamp(t):%H:%M:%S}"
                                        for t in (BEGUN, ENDED))):
        assert name in told, told


def test_pause_and_windows(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Pause by the word and by the magic holds a replay, whose figures are then the recording's.

    Windows can be chosen meanwhile.
    """
    notebook = open_notebook(
        "%gpuwatch --replay demo --speed 2 --at 30", WHERE, "%gpuwatch resume", "%gpuwatch pause",
    )
    begun = time.monotonic()
    start(notebook)
    click(notebook, "pause")
    notebook.until(lambda: "paused" in notebook.texts(1), "it is paused", 5)
    passed = time.monotonic() - begun
    held = where(notebook, 2)
    assert 30 < held < min(30 + 2 * passed, ENDED - BEGUN)
    require_figures(notebook, held)
    assert where(notebook, 2) == held
    notebook.screenshot(screenshots, "replay-paused")

    notebook.run(3)
    notebook.until(lambda: words(notebook)[0][0] == "pause", "it is resumed", 5)
    notebook.wait_live(1)
    notebook.run(4)
    notebook.until(lambda: words(notebook)[0][0] == "resume", "it is paused again", 5)
    later = where(notebook, 2)
    assert later > held
    require_figures(notebook, later)

    for word, length in (("10 min", 600.0), ("all", 60.0), ("1 min", 60.0)):
        click(notebook, word)
        shown = plain((word, "solid", True), pause="resume")
        notebook.until(lambda s=shown: words(notebook) == s, word, 5)
        first = f"{datetime.fromtimestamp(BEGUN + later - length):%H:%M}"
        notebook.until(lambda t=first: t in notebook.text(1), f"{word} begins at {first}", 5)
        require_figures(notebook, later)
        notebook.screenshot(screenshots, f"replay-{word.replace(' ', '-')}")
    assert where(notebook, 2) == later


def test_slider(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """Keys on the slider move a replay along, forwards and backwards."""
    notebook = open_notebook("%gpuwatch --replay demo --at 20", WHERE, "%gpuwatch pause")
    start(notebook)
    notebook.run(3)
    before = where(notebook, 2)
    handle: Any = notebook.page.locator(".gpumagic-controls .noUi-handle")
    handle.focus()
    for _ in range(10):
        notebook.page.keyboard.press("ArrowRight")
    goal = float(handle.get_attribute("aria-valuetext"))
    notebook.screenshot(screenshots, "replay-slider")
    after = where(notebook, 2)
    assert after == pytest.approx(goal * (ENDED - BEGUN), abs=0.5)
    assert after - before == pytest.approx(0.1 * (ENDED - BEGUN), abs=1.0)
    require_figures(notebook, after)
    handle.focus()
    for _ in range(5):
        notebook.page.keyboard.press("ArrowLeft")
    notebook.page.wait_for_timeout(500)
    assert after - where(notebook, 2) == pytest.approx(0.05 * (ENDED - BEGUN), abs=1.0)


def test_alert(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """While the memory of cell [6] climbs, the line below the strips says so and nothing moves."""
    notebook = open_notebook("%gpuwatch --replay demo --at 46 --speed 2")
    start(notebook)
    view = notebook.page.locator(".gpumagic-live")
    height = view.bounding_box()["height"]  # type: ignore[index]
    grows = re.compile(r"GPU 0 memory grows [\d.]+ GiB/s in \[6\].*: full in about")
    notebook.until(lambda: grows.search(notebook.text(1)), "the alert", 15)
    notebook.screenshot(screenshots, "replay-alert")
    assert view.bounding_box()["height"] == height  # type: ignore[index]
    notebook.until(lambda: not grows.search(notebook.text(1)), "the alert is over", 30)
