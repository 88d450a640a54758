"""Where the cell is: the part of the program that the main thread is in, by its Python stack.

Which file and function each frame belongs to is all that is looked at; no variable is. What
waits inside a call of C code (``.item()``, ``.cpu()``) leaves no frame: it counts as the place
that called it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from types import CodeType

from ..sample import HOST, Device, Gap, Sample
from . import Clock

__all__ = ["DEEPEST", "CellSource", "Places", "main_thread_stack"]

DEEPEST = 60
"""So many frames of a stack are looked at, from the innermost on."""

# The kinds of files.
_OTHER, _LOADER, _GPU, _COMPILER, _MODEL, _SHELL = range(6)

_NOWHERE = 0
_ORDER = (1, 2, 3, 5, 4, _NOWHERE)
"""The places from the one that counts first; compiling happens within a model's call."""

_LOADER_FILE = "utils/data/dataloader.py"
# Stream.wait_event and its like are not here: they queue a wait on the GPU and return.
_GPU_FILES = frozenset({"cuda/__init__.py", "cuda/streams.py", "accelerator/__init__.py"})
# None of them is on the stack of a model that has been compiled already.
_COMPILER_FILES = frozenset(
    {
        "_dynamo/convert_frame.py", "_dynamo/symbolic_convert.py", "_dynamo/output_graph.py",
        "_inductor/graph.py", "_inductor/scheduler.py", "_inductor/select_algorithm.py",
        "_inductor/async_compile.py",
    }
)
_MODEL_FOLDERS = ("nn/", "optim/", "autograd/", "_dynamo/", "_inductor/")
_SHELL_FILE = "core/interactiveshell.py"
# A notebook has a file for each cell that was run.
_MOST_FILES = 4096


class CellSource:
    """Look ten times a second at where the main thread is; see CELL_PLACES.

    Cells run in the main thread. A cell that a subshell runs in another thread is not seen,
    and neither is one that awaits something: then nothing is yielded, as between cells.
    """

    name = "cell"
    looking = False

    def __init__(self, *, period_s: float = 0.1) -> None:
        self.period_s = period_s
        self._places = Places()
        self._device: Device | None = None

    def open(self) -> None:
        """Find out whether another thread's stack may be looked at."""
        absent = {}
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            # A running frame of another thread may go away under the hands of who follows it.
            reason = "the stack of another thread can be read safely under the GIL only"
            absent["cell_place_state"] = reason
        self._device = Device(HOST, "host", "Host", absent=absent)

    def devices(self) -> Sequence[Device]:
        """Return the host."""
        return [self._device] if self._device is not None else []

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield the place while a cell runs, and nothing else."""
        if self._device is None or self._device.absent:
            return
        time = now()
        self._places.follow_imports()
        # No frame may be held over a yield: its variables, the user's tensors, would live on.
        place = self._places.of(main_thread_stack())
        if place is not None:
            yield Sample(time, HOST, self.name, {"cell_place_state": float(place)})

    def close(self) -> None:
        """Do nothing: nothing is held."""


def main_thread_stack() -> list[CodeType]:
    """Return the code of the main thread's innermost frames, DEEPEST at most, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    codes: list[CodeType] = []
    try:
        while frame is not None and len(codes) < DEEPEST:
            codes.append(frame.f_code)
            frame = frame.f_back
    finally:
        del frame  # an exception's traceback would keep it
    return codes


class Places:
    """Tell a stack's place from the files and functions on it.

    ``torch`` and ``ipython`` are the folders of the two packages, ``""`` where they are not
    imported. With a ``shell`` (IPython's) a cell runs while the shell's ``run_code`` is on the
    stack; a stack deeper than DEEPEST is taken for a cell's, since an idle kernel's is not.
    Without a shell the program is a script, which runs all the time.
    """

    def __init__(self, torch: str = "", ipython: str = "", *, shell: bool = False) -> None:
        self.torch, self.ipython, self.shell = torch, ipython, shell
        self._kinds: dict[str, int] = {}

    def follow_imports(self) -> None:
        """Take notice of what the user has imported and started by now."""
        torch, ipython = _folder("torch"), _folder("IPython")
        if (torch, ipython) != (self.torch, self.ipython):
            self.torch, self.ipython = torch, ipython
            self._kinds.clear()
        self.shell = _has_shell()

    def of(self, stack: Sequence[CodeType]) -> int | None:
        """Return the key in CELL_PLACES, or ``None`` where no cell runs.

        ``stack`` begins with the innermost frame's code. Where several places apply, as in a
        model that loads data, the first in _ORDER counts.
        """
        found = _NOWHERE
        running = not self.shell or len(stack) >= DEEPEST
        for code in stack:
            kind = self._kinds.get(code.co_filename)
            if kind is None:
                kind = self._learn(code.co_filename)
            if kind == _OTHER:
                continue
            if kind == _SHELL:
                if code.co_name == "run_code":
                    running = True
                    break  # what follows called the cell and is not in it
            else:
                found = min(found, _place(kind, code), key=_ORDER.index)
        return found if running else None

    def _learn(self, filename: str) -> int:
        if len(self._kinds) >= _MOST_FILES:
            self._kinds.clear()
        kind = self._kinds[filename] = self._kind(filename)
        return kind

    def _kind(self, filename: str) -> int:
        within = _within(filename, self.torch)
        if within == _LOADER_FILE:
            return _LOADER
        if within in _GPU_FILES:
            return _GPU
        if within in _COMPILER_FILES:
            return _COMPILER
        if within.startswith(_MODEL_FOLDERS):
            return _MODEL
        return _SHELL if _within(filename, self.ipython) == _SHELL_FILE else _OTHER


def _place(kind: int, code: CodeType) -> int:
    name = code.co_name
    if kind == _MODEL:
        return 4
    if kind == _COMPILER:
        return 5
    if kind == _GPU:
        return 3 if name == "synchronize" else _NOWHERE
    if name in ("_get_data", "_try_get_data"):
        return 1
    if name == "_next_data":
        # Both kinds of iterators have it; the one with workers calls _get_data.
        return 1 if "_get_data" in code.co_names else 2
    return _NOWHERE


def _within(filename: str, folder: str) -> str:
    """Return a file's path in a folder with slashes, or nothing for a file elsewhere."""
    if not folder or not filename.startswith(folder):
        return ""
    rest = filename[len(folder):].replace("\\", "/")
    return rest[1:] if rest.startswith("/") else ""


def _folder(package: str) -> str:
    """Return where an imported package lies, or nothing."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return os.path.dirname(file) if file else ""


def _has_shell() -> bool:
    """Tell whether this process has an IPython shell, without importing IPython."""
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    return shell is not None and bool(shell.initialized())
