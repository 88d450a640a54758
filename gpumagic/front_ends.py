"""Which front end looks at this kernel: it decides what a live view is made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

__all__ = ["FRONT_ENDS", "FrontEnd", "front_end"]

FrontEnd = Literal["terminal", "page", "headless", "vscode", "colab"]
"""What shows the outputs.

- "terminal": a client that shows text only: IPython in a terminal, ``jupyter console``.
- "page": JupyterLab, Notebook 7, and whatever cannot be told from them.
- "headless": nbclient, papermill, ``nbconvert --execute``, ``jupyter execute``. Nobody looks
  while the notebook runs, and the file that is left counts.
- "vscode" and "colab": VS Code and Google Colab.
"""

FRONT_ENDS: tuple[FrontEnd, ...] = get_args(FrontEnd)

_SESSION = "JPY_SESSION_NAME"
"""jupyter_server sets it to the notebook's path for the kernels of its sessions."""

_CONSOLES = ("jupyter-console", "jupyter_console")
_SERVERS = (
    "jupyter-lab", "jupyterlab", "jupyter-notebook", "notebook", "jupyter-server",
    "jupyter_server", "jupyter-nbclassic", "jupyterhub-singleuser", "voila",
)
_VSCODE = (
    "VSCODE_PID", "VSCODE_CWD", "VSCODE_IPC_HOOK", "VSCODE_NLS_CONFIG", "VSCODE_AGENT_FOLDER"
)
_COLAB = ("COLAB_RELEASE_TAG", "COLAB_GPU", "COLAB_JUPYTER_IP")


@dataclass(frozen=True)
class _Parent:
    """The process that started the kernel, as far as it can be read (Linux)."""

    command: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None

    def is_one_of(self, programs: Iterable[str]) -> bool:
        """Tell whether it is one of some programs: by its script's name, or after ``-m``."""
        words = self.command
        names = {Path(word).name for word in words[:2]}
        if len(words) > 2 and "-m" in words[:-1]:
            names.add(words[words.index("-m") + 1].partition(".")[0])
        return any(program in names for program in programs)


def front_end(
    environ: Mapping[str, str], modules: Iterable[str], shell: Any, *,
    proc: Path = Path("/proc"),
) -> FrontEnd:
    """Tell which front end runs the present cell; "page" when in doubt.

    ``environ`` is the kernel's environment, ``modules`` the names of its modules, ``shell``
    IPython's. The request of the present cell says most, so ask while a cell runs: a page and
    VS Code give the cell's id with it, and what runs a whole notebook says that nobody can
    answer ``input()``. The rest is told from variables, and from the process that started the
    kernel, read below ``proc`` where there is such a folder. Nothing is raised.
    """
    if not hasattr(shell, "kernel"):
        return "terminal"
    request = _request(shell)
    cell_id = str(_part(request, "metadata").get("cellId") or "")
    space = getattr(shell, "user_ns", None) or {}
    # Both are there with a remote server too, where no variable tells of VS Code.
    if "__vsc_ipynb_file__" in space or cell_id.startswith("vscode-"):
        return "vscode"
    if "google.colab" in modules:
        return "colab"
    if cell_id:
        return "page"
    parent = _parent(environ, proc)
    answers = _part(request, "content").get("allow_stdin")
    if parent.is_one_of(_CONSOLES):
        return "terminal"
    if _has_session(environ, parent, answers) or parent.is_one_of(_SERVERS):
        return "page"
    if answers is False:
        return "headless"
    if any(name in environ for name in _VSCODE):
        return "vscode"
    if any(name in environ for name in _COLAB):
        return "colab"
    return "page"


def _request(shell: Any) -> Mapping[str, Any]:
    try:
        found = shell.get_parent()
    except Exception:
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _part(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = request.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _has_session(environ: Mapping[str, str], parent: _Parent, answers: object) -> bool:
    """Tell whether the kernel is that of a server's notebook, and not started from its cell.

    Whatever a cell starts (``!papermill ...``) inherits the variable. Where the parent's
    environment cannot be read, the variable is believed unless nobody can answer ``input()``.
    """
    path = environ.get(_SESSION)
    if path is None:
        return False
    if parent.environ is None:
        return answers is not False
    return parent.environ.get(_SESSION) != path


def _parent(environ: Mapping[str, str], proc: Path) -> _Parent:
    """Read the process that jupyter_client names as the one that started the kernel."""
    pid = environ.get("JPY_PARENT_PID", "")
    if not pid.isdecimal() or int(pid) <= 1:
        return _Parent()
    words = _strings(proc / pid / "cmdline")
    pairs = _strings(proc / pid / "environ")
    return _Parent(
        tuple(words or ()),
        None if pairs is None else dict(p.split("=", 1) for p in pairs if "=" in p),
    )


def _strings(path: Path) -> list[str] | None:
    try:
        found = os.fsdecode(path.read_bytes())
    except OSError:
        return None
    return found.rstrip("\0").split("\0")
