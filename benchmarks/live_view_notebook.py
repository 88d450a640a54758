"""A notebook in a real JupyterLab, whose kernels and server see GPUs of the stub library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from live_view_chromium import PATIENCE_S, Chromium

# These are in the tests' folder, which live_view_chromium has made importable.
from browser.lab import Server, until  # isort: skip
from nvml_stub import NvmlStub  # isort: skip

__all__ = ["Notebook", "Server", "jupyter", "until"]

_HERE = Path(__file__).resolve().parent
_GPU = {
    "wave": True, "wave_period_s": 7, "utilization": 90, "memory_utilization": 40,
    "memory_used": 60 << 30, "power_mw": 640_000, "temperature": 71, "sm_clock_mhz": 1755,
}

_READY = """
(() => {
  const app = window.jupyterapp;
  const panel = app && app.shell && app.shell.currentWidget;
  const context = panel && panel.sessionContext;
  const kernel = context && context.isReady && context.session && context.session.kernel;
  return Boolean(kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle'
    && app.isPluginActivated('@jupyter-widgets/jupyterlab-manager:plugin')
    && document.querySelector('.jp-NotebookPanel .jp-Cell'));
})()
"""
_REMEMBER = """
app = window.jupyterapp;
window.panel = app.shell.currentWidget;
app.restored.then(() => 0)
"""
_CELL = """
(() => {
  const cell = window.panel.content.widgets[%d];
  const failed = cell.model.outputs.toJSON().filter(output => output.output_type === 'error');
  return [cell.node.querySelector('.jp-InputPrompt').textContent.trim(),
          failed.map(output => output.ename + ': ' + output.evalue).join()];
})()
"""


@contextmanager
def jupyter(
    directory: Path, gpus: int, variables: Mapping[str, str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None, path: Sequence[str] = (),
) -> Iterator[Server]:
    """Run a Jupyter server whose processes see so many moving GPUs of the stub library.

    ``path`` goes before the import path of the server and of its kernels.
    """
    directory = directory / uuid4().hex[:8]
    stub = NvmlStub(directory / "nvml", gpus, libraries=directory.parent)
    for index in range(gpus):
        stub.gpu(index, **{**_GPU, "wave_period_s": 7 + index})
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, str(_HERE), *filter(None, [before])])
    try:
        server = Server(directory / "jupyter", {**stub.variables(), **(variables or {})})
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    for plugin, values in (settings or {}).items():
        server._set(plugin, values)
    try:
        yield server
    finally:
        server.stop()


class Notebook:
    """A notebook of code cells in a tab; cell 0 takes the keyboard and nothing else."""

    def __init__(self, server: Server, chromium: Chromium, cells: Sequence[str]) -> None:
        self.server = server
        self.path = server.root / f"{uuid4().hex[:8]}.ipynb"
        self.path.write_text(json.dumps({
            "nbformat": 4, "nbformat_minor": 5,
            "metadata": {"kernelspec": {
                "name": "python3", "display_name": "Python 3", "language": "python",
            }},
            "cells": [
                {"cell_type": "code", "id": f"cell-{index}", "metadata": {}, "source": source,
                 "outputs": [], "execution_count": None}
                for index, source in enumerate(cells)
            ],
        }))
        server.start_kernel(self.path.name)
        where = f"lab/workspaces/{uuid4().hex[:8]}/tree/{self.path.name}"
        self.page = chromium.open(f"{server.url}/{where}?token={server.token}")
        until(lambda: self._ready(), "the notebook is open", PATIENCE_S)
        self.page.value(_REMEMBER)

    def _ready(self) -> bool:
        try:
            return bool(self.page.value(_READY))
        except RuntimeError:  # the page is being replaced
            return False

    def start(self, index: int) -> None:
        """Run a cell and wait for nothing."""
        self.page.value(
            f"app.shell.activateById(panel.id); panel.content.activeCellIndex = {index};"
            " app.commands.execute('notebook:run-cell'); 0"
        )

    def ended(self, index: int) -> bool:
        """Tell whether a cell has ended; raise what it raised."""
        prompt, error = self.page.value(_CELL % index)
        if error:
            raise RuntimeError(f"cell {index}: {error}")
        return re.fullmatch(r"\[\d+\]:", prompt) is not None

    def run(self, index: int) -> None:
        """Run a cell to its end."""
        self.start(index)
        until(lambda: self.ended(index), f"cell {index} has run", PATIENCE_S)

    def text(self, index: int) -> str:
        """Return what a cell printed."""
        outputs = self.page.value(f"panel.content.widgets[{index}].model.outputs.toJSON()")
        return "".join("".join(output.get("text", "")) for output in outputs)

    def saved_bytes(self) -> int:
        """Save, and return the size of the file."""
        before = self.path.stat().st_mtime_ns
        self.page.value("panel.context.save().then(() => 0)")
        until(lambda: self.path.stat().st_mtime_ns != before, "the notebook is saved")
        return self.path.stat().st_size
