"""A Jupyter server, a Chromium, and a notebook as a person at the screen sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import psutil

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page

__all__ = ["Frontend", "Moves", "Notebook", "Server", "browser", "find_chromium", "until"]

Frontend = Literal["lab", "notebook"]

_ROOT = Path(__file__).parents[2]
_START_S = 60.0
_STOP_S = 15.0
_PATIENCE_S = 30.0
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)
_NOT_OURS = (
    # Notebook 7.6 raises both for every notebook, while it starts.
    r"page error: Cannot read properties of undefined \(reading 'schema'\)",
    r"page error: Command 'filebrowser:open-path' not registered\.",
    # A restart ends the front end's own talk with the debugger; a dialog lacks a font.
    r"console: Could not restore the debugger state: Canceled future .*",
    r"console: Failed to load resource: .* \(http://[^ ]*/static/notebook/[^ ]*\.woff2\)",
)
_BROKEN = ("Error displaying widget", "Error creating widget", "model not found")


def find_chromium() -> str | None:
    """Return the path of the Chromium to drive, or ``None``."""
    named = os.environ.get("GPUMAGIC_CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for name in _CHROMIUM if (path := shutil.which(name))), None)


def until(true: Callable[[], Any], what: str, seconds: float = _PATIENCE_S) -> Any:
    """Return what ``true`` returns as soon as it is truthy, or fail and say what was awaited."""
    deadline = time.monotonic() + seconds
    while True:
        found = true()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


# -- the server ----------------------------------------------------------------------------


class Server:
    """One Jupyter server on 127.0.0.1 that shares no file with the user's own."""

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self.root = directory / "root"
        self.log = directory / "server.log"
        self.token = uuid4().hex
        self._settings = directory / "settings"
        for path in (self.root, self._settings):
            path.mkdir(parents=True)
        self._set(
            "apputils-extension/notification", {"checkForUpdates": False, "fetchNews": "false"}
        )
        self._set("docmanager-extension/plugin", {"autosaveInterval": 3600})
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        python_path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            **variables,
            "PYTHONPATH": os.pathsep.join(python_path),
            "JUPYTER_CONFIG_DIR": str(directory / "config"),
            "JUPYTER_DATA_DIR": str(directory / "data"),
            "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(self._settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(directory / "workspaces"),
            "IPYTHONDIR": str(directory / "ipython"),
        }
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
            "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={self.root}",
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
            # Should the tests themselves be killed, server and kernels end by themselves.
            "--ServerApp.shutdown_no_activity_timeout=900",
            "--MappingKernelManager.cull_interval=60",
            "--MappingKernelManager.cull_idle_timeout=900",
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self.root, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT,
            )
        try:
            until(self._is_up, "the Jupyter server answers", _START_S)
        except BaseException:
            self.stop()
            raise

    def _set(self, plugin: str, settings: Mapping[str, Any]) -> None:
        path = self._settings / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))

    def use_light_theme(self) -> None:
        """Make the pages opened from now on light, whatever a page has chosen before."""
        self._set("apputils-extension/themes", {"theme": "JupyterLab Light"})

    def _is_up(self) -> bool:
        if self._process.poll() is not None:
            said = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the Jupyter server ended at its start:\n{said}")
        with suppress(OSError):
            self.request("GET", "/api/status")
            return True
        return False

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the server's REST interface and return its JSON, ``None`` for an empty answer."""
        request = urllib.request.Request(
            self.url + path, method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def start_kernel(self, path: str) -> None:
        """Start the kernel of a notebook before a page asks for it."""
        kernel = {"name": "python3"}
        session = {"path": path, "name": path, "type": "notebook", "kernel": kernel}
        self.request("POST", "/api/sessions", session)

    def end_kernels(self, path: str) -> None:
        """End every kernel of a notebook; harmless if it has none."""
        for session in self.request("GET", "/api/sessions"):
            if session["path"] == path:
                with suppress(urllib.error.HTTPError):
                    self.request("DELETE", f"/api/sessions/{session['id']}")

    def stop(self) -> None:
        """End the server and, one by one, whatever of its kernels outlives it."""
        try:
            started = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            started = []
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _, alive = psutil.wait_procs(started, timeout=2.0)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_STOP_S)


# -- the browser ---------------------------------------------------------------------------


@contextmanager
def browser(executable: str) -> Iterator[BrowserContext]:
    """Run a headless Chromium for the length of a ``with``; its pages share one cache."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=list(_ARGUMENTS))
        try:
            context = chromium.new_context(viewport={"width": 1280, "height": 1500})
            context.set_default_timeout(_PATIENCE_S * 1000)
            yield context
        finally:
            chromium.close()


# -- the notebook --------------------------------------------------------------------------

_FOLLOW_PROMPT = """
(index) => {
  const prompts = [];
  const follow = () => {
    const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
    const prompt = cell && cell.querySelector('.jp-InputPrompt');
    const text = prompt ? prompt.textContent.trim() : '';
    if (text && text !== prompts[prompts.length - 1]) prompts.push(text);
  };
  follow();
  // The whole page: the front end can put a fresh element in the place of any part of a cell.
  const observer = new MutationObserver(follow);
  observer.observe(document.body, {childList: true, characterData: true, subtree: true});
  const known = window.gpumagicPrompts || {};
  if (known[index]) known[index].observer.disconnect();
  window.gpumagicPrompts = {...known, [index]: {prompts, observer}};
}
"""

_OBSERVE = """
([watched, busy]) => {
  const cells = document.querySelectorAll('.jp-Notebook .jp-Cell');
  const prompt = cells[busy] && cells[busy].querySelector('.jp-InputPrompt');
  const moves = [];
  const observer = new MutationObserver(() => moves.push(
    [performance.now() / 1000, Boolean(prompt) && prompt.textContent.includes('[*]')]));
  const kinds = {attributes: true, childList: true, characterData: true, subtree: true};
  for (const output of cells[watched].querySelectorAll('.jp-OutputArea-output'))
    observer.observe(output, kinds);
  window.gpumagicMoves = {moves, observer};
}
"""

# As _OBSERVE, but over as soon as there were two updates; those of one are within TOGETHER_S.
_MOVES_TWICE = """
([watched, seconds, together]) => new Promise(done => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[watched];
  let updates = 0, last = -Infinity;
  const end = moved => { clearTimeout(timer); observer.disconnect(); done(moved); };
  const observer = new MutationObserver(() => {
    const now = performance.now() / 1000;
    if (now - last > together) updates += 1;
    last = now;
    if (updates == 2) end(true);
  });
  const timer = setTimeout(() => end(false), seconds * 1000);
  const kinds = {attributes: true, childList: true, characterData: true, subtree: true};
  for (const output of cell.querySelectorAll('.jp-OutputArea-output'))
    observer.observe(output, kinds);
})
"""

_COLLECT = """
() => {
  window.gpumagicMoves.observer.disconnect();
  return window.gpumagicMoves.moves;
}
"""

_TEXTS = """
(index) => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const found = [];
  for (const output of cell ? cell.querySelectorAll('.jp-OutputArea-output') : []) {
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const parent = walker.currentNode.parentElement;
      const text = walker.currentNode.textContent.trim();
      const tag = parent.tagName.toUpperCase();  // SVG's are in small letters
      if (text && !['STYLE', 'SCRIPT', 'TITLE', 'DESC'].includes(tag)) found.push(text);
    }
  }
  return found;
}
"""

_INKS = """
(index) => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const found = [];
  for (const output of cell.querySelectorAll('.jp-OutputArea-output')) {
    const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const parent = walker.currentNode.parentElement;
      const text = walker.currentNode.textContent.trim();
      const tag = parent.tagName.toUpperCase();
      if (!text || ['STYLE', 'SCRIPT', 'TITLE', 'DESC'].includes(tag)) continue;
      if (parent.getClientRects().length === 0) continue;
      const style = getComputedStyle(parent);
      const drawn = parent instanceof SVGElement;
      found.push([text, drawn ? style.fill : style.color]);
    }
  }
  return found;
}
"""

_BACKGROUNDS = """
(index) => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const found = [];
  const whole = 200;
  for (const part of cell.querySelectorAll('.jp-OutputArea-output, .jp-OutputArea-output *')) {
    const box = part.getBoundingClientRect();
    if (box.width < whole || box.height < 20) continue;
    const style = getComputedStyle(part);
    if (style.opacity === '0') continue;
    const painted = part instanceof SVGRectElement ? style.fill : style.backgroundColor;
    found.push([part.tagName + '.' + (part.getAttribute('class') || ''), painted]);
  }
  return found;
}
"""

_READY = """
() => {
  const app = window.jupyterapp;
  const manager = '@jupyter-widgets/jupyterlab-manager:plugin';
  const panel = app && app.shell && app.shell.currentWidget;
  const context = panel && panel.sessionContext;
  // Whoever runs a cell before the page has its kernel is asked to select one.
  return context && context.isReady && context.session && context.session.kernel
    && context.session.kernel.connectionStatus === 'connected'
    && document.querySelector('.jp-NotebookPanel .jp-Cell') && app
    && (!app.isPluginActivated || app.isPluginActivated(manager))
    && document.querySelector('.jp-Notebook-ExecutionIndicator[data-status="idle"]');
}
"""


class Moves:
    """When the watched output changed: seconds, those of one update taken together."""

    TOGETHER_S = 0.06

    def __init__(self, records: Sequence[tuple[float, bool]], seconds: float) -> None:
        self.seconds = seconds
        self.times = self._updates([time for time, _ in records])
        self.busy = self._updates([time for time, busy in records if busy])

    def _updates(self, times: Sequence[float]) -> list[float]:
        found: list[float] = []
        last = float("-inf")
        for moment in times:
            if moment - last > self.TOGETHER_S:
                found.append(moment)
            last = moment
        return found

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two updates while the cell ran."""
        pairs = zip(self.busy, self.busy[1:], strict=False)
        return max((after - before for before, after in pairs), default=float("inf"))

    def __repr__(self) -> str:
        return (
            f"<{len(self.times)} updates in {self.seconds:.1f} s, {len(self.busy)} while busy,"
            f" longest gap {self.longest_gap_s:.2f} s>"
        )


class Notebook:
    """A notebook in a page of JupyterLab or Notebook, worked with mouse and keys."""

    def __init__(
        self, server: Server, context: BrowserContext, frontend: Frontend, path: Path
    ) -> None:
        self.server = server
        self.frontend = frontend
        self.path = path
        self.errors: list[str] = []
        server.start_kernel(path.name)
        self.page: Page = context.new_page()
        self.page.on("pageerror", lambda error: self._note(f"page error: {error}"))
        self.page.on("console", self._hear)
        self.page.on("dialog", lambda dialog: dialog.accept())
        where = f"lab/workspaces/{uuid4().hex[:8]}/tree" if frontend == "lab" else "notebooks"
        self.page.goto(f"{server.url}/{where}/{path.name}?token={server.token}")
        self._wait_ready()

    @classmethod
    def create(
        cls, server: Server, context: BrowserContext, frontend: Frontend, cells: Sequence[str]
    ) -> Notebook:
        """Write a fresh notebook of code cells and open it with a kernel of its own."""
        path = server.root / f"{uuid4().hex[:8]}.ipynb"
        path.write_text(json.dumps({
            "nbformat": 4, "nbformat_minor": 5,
            "metadata": {
                "kernelspec": {
                    "name": "python3", "display_name": "Python 3", "language": "python",
                },
            },
            "cells": [
                {
                    "cell_type": "code", "id": f"cell-{index}", "metadata": {}, "source": source,
                    "outputs": [], "execution_count": None,
                }
                for index, source in enumerate(cells)
            ],
        }))
        return cls(server, context, frontend, path)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"console: {message.text} ({message.location['url']})")

    def _note(self, error: str) -> None:
        if not any(re.fullmatch(known, error) for known in _NOT_OURS):
            self.errors.append(error)

    def _wait_ready(self) -> None:
        self.page.wait_for_function(_READY)
        # Until the layout is restored, the front end can still take the focus away from a cell.
        self.page.evaluate("async () => { await window.jupyterapp.restored; }")

    def close(self) -> None:
        """Close the page and end the kernel."""
        if not self.page.is_closed():
            self.errors = self.complaints()
            self.page.close()
        self.server.end_kernels(self.path.name)

    # -- cells --------------------------------------------------------------------------

    def cell(self, index: int) -> Locator:
        """Return a cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> Locator:
        """Return the output area of a cell."""
        return self.cell(index).locator(".jp-OutputArea")

    def prompt(self, index: int) -> str:
        """Return what stands left of a cell, e.g. ``[3]:`` or ``[*]:``."""
        return self.cell(index).locator(".jp-InputPrompt").inner_text().strip()

    def press_run(self, index: int) -> None:
        """Run a cell by a click and Shift+Enter, and wait for nothing."""
        self.page.evaluate(_FOLLOW_PROMPT, index)
        editor = self.cell(index).locator(".cm-content")

        def focused() -> bool:
            editor.click()
            self.page.wait_for_timeout(50)
            has: bool = editor.evaluate("editor => editor.contains(document.activeElement)")
            return has

        self.until(focused, f"cell {index} takes the keyboard")
        self.page.keyboard.press("Shift+Enter")

    def run(self, index: int, seconds: float = _PATIENCE_S) -> None:
        """Run a cell and wait until it has ended."""
        self.press_run(index)
        self.wait_ended(index, seconds)

    def _prompts(self, index: int) -> list[str]:
        found: list[str] = self.page.evaluate("i => window.gpumagicPrompts[i].prompts", index)
        return found

    def wait_ended(self, index: int, seconds: float = _PATIENCE_S) -> None:
        """Wait until a cell that was run has been busy and has a number again."""

        def ended() -> bool:
            prompts = self._prompts(index)
            return "[*]:" in prompts and re.fullmatch(r"\[\d+\]:", prompts[-1]) is not None

        try:
            self.until(ended, f"cell {index} has run", seconds)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; its prompts were {self._prompts(index)}, a dialog: {self.dialog()!r}"
            ) from None
        self.page.evaluate("i => window.gpumagicPrompts[i].observer.disconnect()", index)

    def wait_busy(self, index: int) -> None:
        """Wait until a cell that was run is busy."""
        self.until(lambda: "[*]:" in self._prompts(index), f"cell {index} runs")

    def until(self, true: Callable[[], Any], what: str, seconds: float = _PATIENCE_S) -> Any:
        """Wait for a condition while the page lives on; see :func:`until`."""

        def ask() -> Any:
            found = true()
            if not found:
                self.page.wait_for_timeout(50)
            return found

        return until(ask, what, seconds)

    def texts(self, index: int) -> list[str]:
        """Return the pieces of text in a cell's output, in the order of the page."""
        found: list[str] = self.page.evaluate(_TEXTS, index)
        return found

    def text(self, index: int) -> str:
        """Return the text of a cell's output, its pieces parted by blanks."""
        return " ".join(self.texts(index))

    def printed(self, index: int) -> str:
        """Run a cell and return what it prints."""
        self.run(index)
        return self.text(index)

    # -- the live view ------------------------------------------------------------------

    def wait_live(self, index: int) -> None:
        """Wait until a cell's output shows a view that has moved twice."""
        view = self.output(index).locator(".jupyter-widgets").first
        view.wait_for(state="attached")
        window = [index, 0.7, Moves.TOGETHER_S]
        self.until(
            lambda: self.page.evaluate(_MOVES_TWICE, window), f"the view of {index} moves"
        )

    def moves(self, index: int, seconds: float) -> Moves:
        """Watch a cell's output for a time."""
        self.page.evaluate(_OBSERVE, [index, -1])
        self.page.wait_for_timeout(seconds * 1000)
        return Moves(self.page.evaluate(_COLLECT), seconds)

    def moves_while_running(self, index: int, busy: int) -> Moves:
        """Run the cell ``busy`` and watch the output of ``index`` until it has ended."""
        self.page.evaluate(_OBSERVE, [index, busy])
        self.press_run(busy)
        self.wait_busy(busy)
        begun = time.monotonic()
        self.wait_ended(busy)
        return Moves(self.page.evaluate(_COLLECT), time.monotonic() - begun)

    def picture(self, index: int) -> Locator:
        """Return the PNG in a cell's output."""
        return self.output(index).locator('img[src^="data:image/png"]')

    def picture_width(self, index: int) -> int:
        """Return the width of the one PNG in a cell's output, 0 while it is not drawn."""
        pictures = self.picture(index)
        if pictures.count() != 1:
            return 0
        width: int = pictures.evaluate("image => image.complete ? image.naturalWidth : 0")
        return width

    def wait_picture(self, index: int) -> None:
        """Wait until a cell shows one picture and no live view."""
        self.until(lambda: self.picture_width(index) > 0, f"a picture in cell {index}")

    # -- the rest of the page -----------------------------------------------------------

    def save(self) -> list[dict[str, Any]]:
        """Save by Ctrl+S and return the cells as they stand in the file."""
        before = self.path.stat().st_mtime_ns
        self.cell(0).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("Control+s")
        self.until(lambda: self.path.stat().st_mtime_ns != before, "the notebook is saved")
        cells: list[dict[str, Any]] = until(self._read, "the saved file is whole")
        return cells

    def _read(self) -> Any:
        try:
            return json.loads(self.path.read_text())["cells"]
        except ValueError:
            return None

    def reload(self) -> None:
        """Reload the page, as F5 does."""
        self.page.reload()
        self._wait_ready()

    def restart(self) -> None:
        """Restart the kernel by 0 0 and the dialog's button, and wait until it is idle."""
        self.cell(0).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("0")
        self.page.keyboard.press("0")
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        self.page.locator(".jp-Dialog").wait_for(state="detached")
        self.page.wait_for_timeout(500)
        self._wait_ready()

    def dialog(self) -> str:
        """Return the text of a dialog that is open, or an empty one."""
        found = self.page.locator(".jp-Dialog")
        return found.first.inner_text() if found.count() else ""

    def use_theme(self, name: str) -> None:
        """Change the theme as the Settings menu does, e.g. to ``JupyterLab Dark``."""
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
        )
        light = "false" if "Dark" in name else "true"
        self.page.locator(f'body[data-jp-theme-light="{light}"]').wait_for(state="attached")
        self.page.wait_for_timeout(300)

    def forgive(self, words: str) -> None:
        """Forget the errors so far that hold these words."""
        self.errors = [error for error in self.errors if words not in error]

    def inks(self, index: int) -> list[tuple[str, str]]:
        """Return each visible text of a cell's output with its computed colour."""
        return [(text, colour) for text, colour in self.page.evaluate(_INKS, index)]

    def backgrounds(self, index: int) -> list[tuple[str, str]]:
        """Return the computed fill of each large part of a cell's output."""
        return [(part, colour) for part, colour in self.page.evaluate(_BACKGROUNDS, index)]

    def screenshot(self, directory: Path, name: str) -> Path:
        """Take a picture of the page."""
        path = directory / f"{name}-{self.frontend}.png"
        self.page.screenshot(path=path)
        return path

    def complaints(self) -> list[str]:
        """Return what went wrong in the page so far: errors and broken widgets."""
        if self.page.is_closed():
            return self.errors
        body = self.page.locator("body").inner_text()
        return [*self.errors, *(words for words in _BROKEN if words in body)]
