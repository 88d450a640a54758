"""The other live views of GPUs in JupyterLab, put beside what is installed, and opened.

jupyterlab-nvdashboard reads the GPUs in the server's process and draws in panels of its own;
gpuwidget reads them in the kernel (by gpustat) and draws ipywidgets in a cell's output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from live_view_chromium import PATIENCE_S
from live_view_notebook import Notebook, until

__all__ = ["NVDASHBOARD_WIDGETS", "Peers"]

# Without what is installed already, so that all run on one JupyterLab and one ipywidgets.
_PACKAGES = ("jupyterlab-nvdashboard", "gpuwidget", "gpustat", "blessed", "jinxed")

NVDASHBOARD_WIDGETS = {
    "gpu-utilization-widget": "GPU Utilization",
    "gpu-memory-widget": "GPU Memory",
    "gpu-resource-widget": "GPU Resources",
}

_SIDEBAR = """
(() => {
  const tabs = [...document.querySelectorAll('.jp-SideBar .lm-TabBar-tab')];
  const tab = tabs.find(tab => /GPU Dashboard/i.test(tab.title + tab.dataset.id + tab.innerText));
  if (tab) app.shell.activateById(tab.dataset.id);
  return [app.commands.hasCommand('gpu-dashboard-widget:open'),
          tabs.map(tab => tab.title || tab.dataset.id)];
})()
"""
_OPEN = """
(async () => {
  for (const [id, title] of Object.entries(%s))
    await app.commands.execute('gpu-dashboard-widget:open', {id, title});
  const opened = [...app.shell.widgets('main')].filter(widget => widget.id in %s);
  let [mode, ref] = ['split-right', panel.id];
  for (const widget of opened) {
    app.shell.add(widget, 'main', {mode, ref});
    [mode, ref] = ['split-bottom', widget.id];
  }
  app.shell.activateById(panel.id);
  return opened.map(widget => widget.id);
})()
"""


class Peers:
    """The peers, installed into a folder of their own by pip."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "peers"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
             "--disable-pip-version-check", "--target", str(self.directory), *_PACKAGES],
            check=True,
        )
        found = distributions(path=[str(self.directory)])
        self.versions = {found.metadata["Name"]: found.version for found in found}

    @property
    def path(self) -> list[str]:
        """Return what goes before the import path."""
        return [str(self.directory)]

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that let a Jupyter server find jupyterlab-nvdashboard."""
        before = os.environ.get("JUPYTER_PATH"), os.environ.get("JUPYTER_CONFIG_PATH")
        own = self.directory / "share" / "jupyter", self.directory / "etc" / "jupyter"
        data, config = (
            os.pathsep.join([str(mine), *filter(None, [other])])
            for mine, other in zip(own, before, strict=True)
        )
        return {"JUPYTER_PATH": data, "JUPYTER_CONFIG_PATH": config}


def set_rate(notebook_settings: Path, rate: float) -> None:
    """Let the panels opened from now on be updated so many times a second."""
    path = notebook_settings / "jupyterlab-nvdashboard" / "config.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"updateFrequency": round(1000 / rate)}))


def open_nvdashboard(notebook: Notebook) -> None:
    """Open its three GPU panels right of the notebook, so that all can be seen."""
    until(lambda: notebook.page.value(_SIDEBAR)[0], "the GPU dashboards can be opened", 30)
    names = json.dumps(NVDASHBOARD_WIDGETS)
    opened = notebook.page.value(_OPEN % (names, names))
    if len(opened) != len(NVDASHBOARD_WIDGETS):
        raise RuntimeError(f"only {opened} of jupyterlab-nvdashboard opened")
    until(
        lambda: notebook.page.value("document.querySelectorAll('.recharts-surface').length") >= 3,
        "the GPU dashboards draw", PATIENCE_S,
    )
