"""The live view beside the cells: in a side panel, and as a new view of a cell's output."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from needs import cannot

from .conftest import OpenNotebook
from .lab import Notebook

pytestmark = [pytest.mark.browser, pytest.mark.parametrize("frontend", ["lab"], indirect=True)]

SLEEP = "import time; time.sleep(5)"
MODELS = "import ipywidgets; print('models:', len(ipywidgets.widgets.widget._instances))"
# Where a view stands that is not in the notebook's own panel.
ELSEWHERE = ".gpumagic-live:not(.jp-Notebook .gpumagic-live)"
COUNT_CHANGES = f"""
async seconds => {{
  const view = document.querySelector('{ELSEWHERE}');
  let times = new Set();
  const observer = new MutationObserver(() => times.add(Math.round(performance.now() / 60)));
  observer.observe(view, {{subtree: true, childList: true, attributes: true}});
  await new Promise(done => setTimeout(done, seconds * 1000));
  observer.disconnect();
  return times.size;
}}
"""


def require_moves_elsewhere(notebook: Notebook, busy: int) -> None:
    """Require that the view outside of the notebook moves while a cell blocks the kernel."""
    notebook.press_run(busy)
    notebook.wait_busy(busy)
    changes = notebook.page.evaluate(COUNT_CHANGES, 3)
    assert notebook.prompt(busy) == "[*]:"
    assert changes >= 2 * 3, changes
    notebook.wait_ended(busy)


def test_a_new_view_of_the_output_keeps_moving(
    open_notebook: OpenNotebook, screenshots: Path
) -> None:
    """"Create New View for Cell Output" docks a second view that moves beside a busy cell."""
    notebook = open_notebook("%gpuwatch", SLEEP, "%gpuwatch stop", MODELS)
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    notebook.output(1).click(button="right")
    notebook.page.get_by_text("Create New View for Cell Output").click()
    notebook.until(lambda: notebook.page.locator(ELSEWHERE).count() == 1, "a second view")
    require_moves_elsewhere(notebook, 2)
    assert notebook.moves(1, 1.5).times
    notebook.screenshot(screenshots, "new-view")
    notebook.run(3)
    notebook.wait_picture(1)
    assert notebook.printed(4) == "models: 0"


def test_a_side_panel_keeps_moving(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """--sidecar docks the view beside the notebook; stop closes it and leaves the picture."""
    if find_spec("sidecar") is None:
        cannot("sidecar is not installed: pip install sidecar")
    notebook = open_notebook("%gpuwatch --sidecar", SLEEP, "%gpuwatch stop", MODELS)
    notebook.run(0)
    notebook.run(1)
    notebook.until(lambda: notebook.page.locator(ELSEWHERE).count() == 1, "a side panel")
    assert "if none has opened, %gpuwatch shows the view here" in notebook.text(1)
    require_moves_elsewhere(notebook, 2)
    notebook.screenshot(screenshots, "sidecar")
    notebook.run(3)
    notebook.wait_picture(1)
    notebook.until(lambda: notebook.page.locator(ELSEWHERE).count() == 0, "the panel is closed")
    assert notebook.printed(4) == "models: 0"
