"""A watch whose page is not alone, loses its kernel, or loses its connection."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import OpenNotebook
from .lab import Frontend, Notebook, Server
from .test_life import bundles, require_twin, start

pytestmark = pytest.mark.browser

VIEW = "application/vnd.jupyter.widget-view+json"
SLEEP = "import time; time.sleep(8)"
PID = "import os; print(os.getpid())"
FRONT_END = (
    "import os, sys; from gpumagic.front_ends import front_end;"
    " print(front_end(os.environ, sys.modules, get_ipython()))"
)
RECONNECT = (
    "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.reconnect()"
)
SHUT_DOWN = "() => window.jupyterapp.commands.execute('kernelmenu:shutdown')"


class OpenAgain:
    """Open the file of a notebook in more pages, whose errors are the test's to judge."""

    def __init__(self, server: Server, context: Any, frontend: Frontend) -> None:
        self.opened: list[Notebook] = []
        self._contexts: list[Any] = []
        self._server = server
        self._context = context
        self._frontend: Frontend = frontend

    def __call__(self, notebook: Notebook, *, other_browser: bool = False) -> Notebook:
        """Open the file in another page, or in another browser with its own storage."""
        context = self._context
        if other_browser:
            context = context.browser.new_context(viewport={"width": 1280, "height": 1500})
            self._contexts.append(context)
        page = Notebook(self._server, context, self._frontend, notebook.path)
        self.opened.append(page)
        return page

    def close(self) -> None:
        """Close the pages and browsers that were opened."""
        for page in self.opened:
            page.close()
        for context in self._contexts:
            context.close()


@pytest.fixture
def open_again(server: Server, context: Any, frontend: Frontend) -> Iterator[OpenAgain]:
    opener = OpenAgain(server, context, frontend)
    yield opener
    opener.close()


def require_widget(cell: dict[str, Any]) -> None:
    """Require that a saved cell holds the live view as it was shown, with its text."""
    (shown,) = bundles(cell)
    assert set(shown) == {VIEW, "text/plain"}
    assert "GPU 0" in "".join(shown["text/plain"])


def require_still(notebook: Notebook) -> None:
    """Require that the view is shown and stands still."""
    assert "utilization" in notebook.text(1)
    assert notebook.moves(1, 1.5).times == []


def test_a_page_is_told(open_notebook: OpenNotebook) -> None:
    """The kernel of a page knows that it has a page."""
    notebook = open_notebook(FRONT_END)
    assert notebook.printed(1) == "page"


def test_two_browsers_on_one_kernel(
    open_notebook: OpenNotebook, open_again: OpenAgain
) -> None:
    """The view moves in both browsers, and stop puts the picture in the place of both."""
    notebook = open_notebook("%gpuwatch", "%gpuwatch stop")
    start(notebook)
    notebook.save()
    other = open_again(notebook, other_browser=True)
    other.wait_live(1)
    notebook.wait_live(1)
    notebook.run(2)
    # The kernel knows only that a page has come, not whether the first one is still there: the
    # picture also stands under the cell that stops.
    for place in (1, 2):
        notebook.wait_picture(place)
    other.until(lambda: other.picture_width(1) > 0, "the picture in the other browser")
    for page in (notebook, other):
        assert page.moves(1, 1.5).times == []
    assert other.text(2) == ""
    assert other.complaints() == []
    cells = notebook.save()
    require_twin(cells[1])
    require_twin(cells[2])


def test_a_killed_kernel(open_notebook: OpenNotebook, open_again: OpenAgain) -> None:
    """When the kernel is killed the page says so and the view stands still.

    The file keeps the view and its text, of which a page opened later shows neither; a new watch
    in the new kernel moves.
    """
    notebook = open_notebook("%gpuwatch", PID, SLEEP)
    start(notebook)
    pid = int(notebook.printed(2))
    notebook.press_run(3)
    notebook.wait_busy(3)
    os.kill(pid, signal.SIGKILL)
    notebook.until(lambda: "appears to have died" in notebook.dialog(), "the page says so")
    notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    require_still(notebook)
    cells = notebook.save()
    require_widget(cells[1])
    notebook.run(0)
    notebook.run(1)
    notebook.wait_live(1)
    notebook.close()

    later = open_again(notebook)
    later.until(lambda: "model not found" in later.text(1), "the model is missed")
    assert "GPU 0" not in later.text(1)
    later.run(0)
    later.run(1)
    later.wait_live(1)


def test_a_kernel_that_is_shut_down(open_notebook: OpenNotebook) -> None:
    """A kernel that is shut down still sends its picture, which stays in the page and the file."""
    notebook = open_notebook("%gpuwatch")
    start(notebook)
    notebook.page.evaluate(SHUT_DOWN)
    notebook.wait_picture(1)
    require_twin(notebook.save()[1])


def test_a_kernel_that_is_restarted(open_notebook: OpenNotebook) -> None:
    """A restart keeps the view as it stood, because the page lets go of the kernel first."""
    notebook = open_notebook("%gpuwatch")
    start(notebook)
    notebook.restart()
    require_still(notebook)
    notebook.forgive("Comm not found")
    require_widget(notebook.save()[1])


def test_a_connection_that_is_lost(open_notebook: OpenNotebook, context: Any) -> None:
    """After the network was gone while a cell ran, the view moves again within that cell."""
    notebook = open_notebook("%gpuwatch", SLEEP, "%gpuwatch stop")
    start(notebook)
    notebook.press_run(2)
    notebook.wait_busy(2)
    context.set_offline(True)
    try:
        notebook.page.wait_for_timeout(500)
        assert notebook.moves(1, 1.5).times == []
    finally:
        context.set_offline(False)
    notebook.wait_live(1)
    assert notebook.prompt(2) == "[*]:"
    notebook.wait_ended(2)
    notebook.forgive("ERR_INTERNET_DISCONNECTED")
    if notebook.dialog():
        notebook.page.locator(".jp-Dialog button").first.click()
    notebook.run(3)
    notebook.wait_picture(1)


def test_a_connection_that_is_made_anew(open_notebook: OpenNotebook) -> None:
    """With a new connection to the kernel the view moves on within the running cell."""
    notebook = open_notebook("%gpuwatch", SLEEP, "%gpuwatch stop")
    start(notebook)
    notebook.press_run(2)
    notebook.wait_busy(2)
    notebook.page.evaluate(RECONNECT)
    notebook.wait_live(1)
    assert notebook.prompt(2) == "[*]:"
    notebook.wait_ended(2)
    notebook.run(3)
    notebook.wait_picture(1)


def test_a_page_opened_while_a_cell_runs(
    open_notebook: OpenNotebook, open_again: OpenAgain
) -> None:
    """A page closed and opened within a long cell shows the moving view when the cell has ended."""
    notebook = open_notebook("%gpuwatch", SLEEP)
    start(notebook)
    notebook.save()
    notebook.press_run(2)
    notebook.wait_busy(2)
    notebook.page.close()
    later = open_again(notebook)
    later.wait_live(1)
    assert later.complaints() == []
