"""Telling the front end from a cell's request, the environment and the parent process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets import TraitError

from gpumagic.front_ends import FRONT_ENDS, FrontEnd, front_end
from gpumagic.settings import GpuMagic

PATH = "/home/me/train.ipynb"
PARENT = 4321
SCRIPT = ("python", "run.py")


def kernel(
    *, answers: bool | None = True, cell_id: str | None = None, space: Mapping[str, Any] = {}
) -> Any:
    """Return the shell of a kernel that runs a cell with such a request."""
    metadata = {} if cell_id is None else {"cellId": cell_id}
    content = {} if answers is None else {"code": "%gpuwatch", "allow_stdin": answers}
    request = {"header": {}, "metadata": metadata, "content": content}
    return SimpleNamespace(kernel=object(), user_ns=space, get_parent=lambda: request)


UNATTENDED = kernel(answers=False)


class Processes:
    """A folder such as /proc, in which the kernel's parent stands."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def parent(self, command: Sequence[str], environ: Mapping[str, str] = {}) -> None:
        folder = self.root / str(PARENT)
        folder.mkdir()
        (folder / "cmdline").write_bytes(os.fsencode("".join(f"{w}\0" for w in command)))
        pairs = "".join(f"{name}={value}\0" for name, value in environ.items())
        (folder / "environ").write_bytes(os.fsencode(pairs))

    def tell(
        self, shell: Any, environ: Mapping[str, str] = {}, modules: Sequence[str] = ()
    ) -> FrontEnd:
        """Ask for the front end of a kernel that jupyter_client has started."""
        given = {"JPY_PARENT_PID": str(PARENT), **environ}
        return front_end(given, modules, shell, proc=self.root)


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_no_kernel_is_a_terminal(processes: Processes) -> None:
    """A shell without a kernel is a terminal, whatever it has inherited."""
    environ = {"JPY_SESSION_NAME": PATH, "VSCODE_PID": "7", "COLAB_GPU": "1"}
    assert processes.tell(SimpleNamespace(), environ, ["google.colab"]) == "terminal"


def test_a_cell_with_an_id_is_on_a_page(processes: Processes) -> None:
    """A page sends the cell's id; variables of VS Code that its server has do not count."""
    shell = kernel(cell_id="1e9aac6b-cee9-4786-813b-df30c0debc38")
    assert processes.tell(shell, {"VSCODE_PID": "7", "COLAB_GPU": "1"}) == "page"


@pytest.mark.parametrize(
    "shell",
    [
        kernel(cell_id="vscode-notebook-cell:/home/me/train.ipynb#W1sZmlsZQ%3D%3D"),
        kernel(space={"__vsc_ipynb_file__": PATH}),
    ],
    ids=["cell", "name"],
)
def test_vscode_is_known_by_its_cell(processes: Processes, shell: Any) -> None:
    """VS Code is told by its cell's id or by the name that it sets, on a remote server too."""
    processes.parent(["python", "/opt/bin/jupyter-lab"])
    assert processes.tell(shell, {"JPY_SESSION_NAME": PATH}) == "vscode"


def test_vscode_is_known_by_a_variable() -> None:
    """A local kernel of VS Code is started without jupyter_client and has its variables."""
    assert front_end({"VSCODE_PID": "7"}, [], kernel()) == "vscode"
    assert front_end({"VSCODE_GIT_IPC_HANDLE": "/run/x"}, [], kernel()) == "page"


def test_colab(processes: Processes) -> None:
    """Colab is told by its package or by its variables, and papermill in it is headless."""
    processes.parent(SCRIPT)
    assert processes.tell(kernel(), modules=["sys", "google.colab"]) == "colab"
    assert processes.tell(kernel(), {"COLAB_RELEASE_TAG": "release"}) == "colab"
    assert processes.tell(UNATTENDED, {"COLAB_RELEASE_TAG": "release"}) == "headless"


def test_nobody_to_answer_is_headless(processes: Processes) -> None:
    """What runs a whole notebook says that nobody can answer, also where VS Code started it."""
    processes.parent(["python", "/opt/bin/papermill", "a.ipynb", "b.ipynb"])
    assert processes.tell(UNATTENDED) == "headless"
    assert processes.tell(UNATTENDED, {"VSCODE_PID": "7"}) == "headless"


def test_an_inherited_session_is_none(processes: Processes) -> None:
    """papermill started from a cell inherits the session's name and is headless all the same."""
    processes.parent(["python", "/opt/bin/papermill"], {"JPY_SESSION_NAME": PATH})
    assert processes.tell(UNATTENDED, {"JPY_SESSION_NAME": PATH}) == "headless"


def test_a_session_of_a_server_is_a_page(processes: Processes) -> None:
    """A kernel with a session of its own has a page, whoever sends the present request."""
    processes.parent(["python", "serve.py"], {"JPY_SESSION_NAME": "/another.ipynb"})
    assert processes.tell(UNATTENDED, {"JPY_SESSION_NAME": PATH}) == "page"


def test_where_no_process_can_be_read(processes: Processes) -> None:
    """The session's name is believed there, unless nobody can answer."""
    assert processes.tell(kernel(), {"JPY_SESSION_NAME": PATH}) == "page"
    assert processes.tell(UNATTENDED, {"JPY_SESSION_NAME": PATH}) == "headless"


@pytest.mark.parametrize(
    "command",
    [
        ("/usr/bin/python3", "/opt/bin/jupyter-lab", "--no-browser"),
        ("/usr/bin/python3", "-m", "jupyterlab"),
        ("python", "-I", "-m", "jupyter_server.serverapp"),
        ("/opt/bin/jupyterhub-singleuser", "--ip=0.0.0.0"),
        ("python", "/opt/bin/voila", "a.ipynb"),
    ],
    ids=["lab", "lab module", "server module", "hub", "voila"],
)
def test_a_kernel_that_a_server_started_is_on_a_page(
    processes: Processes, command: tuple[str, ...]
) -> None:
    """A server's kernel without a session may be shown by any page."""
    processes.parent(command)
    assert processes.tell(UNATTENDED) == "page"


def test_a_console_is_a_terminal(processes: Processes) -> None:
    """The terminal client of a kernel shows text only."""
    processes.parent(["python", "/opt/bin/jupyter-console", "--simple-prompt"])
    assert processes.tell(kernel()) == "terminal"


def test_an_argument_is_no_program(processes: Processes) -> None:
    """A name among the arguments says nothing about the process."""
    processes.parent(["python", "run.py", "voila", "jupyter-console"])
    assert processes.tell(UNATTENDED) == "headless"


@pytest.mark.parametrize("environ", [{}, {"JPY_PARENT_PID": "no number"}, {"JPY_PARENT_PID": "1"}])
def test_in_doubt_it_is_a_page(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """A kernel about which nothing is known is taken to have a page."""
    for shell in (kernel(answers=None), SimpleNamespace(kernel=object())):
        assert front_end(environ, [], shell, proc=tmp_path) == "page"


def test_the_setting_takes_every_front_end() -> None:
    """The setting is "auto" or any front end, and nothing else."""
    settings = GpuMagic()
    assert settings.front_end == "auto"
    for name in FRONT_ENDS:
        settings.front_end = name
        assert settings.front_end == name
    with pytest.raises(TraitError):
        settings.front_end = "emacs"
