"""The local variables of a frame, read so that nothing stays behind."""

from __future__ import annotations

import inspect
import sys
from types import CodeType, FrameType
from typing import Any

__all__ = ["CodePlaces", "frame_locals"]

# PEP 667: from 3.13 on ``f_locals`` of a function is a view of the variables themselves.
_IS_VIEW = sys.version_info >= (3, 13)


def frame_locals(frame: FrameType) -> dict[str, Any]:
    """Return a function's local variables, free ones too, by name; a module's are not copied.

    Before Python 3.13 ``f_locals`` is a copy that the frame keeps, and with it the values: a
    variable deleted later would live on in it. So the copy is emptied again, unless somebody
    else holds it (a debugger, or a function that has called ``locals()``): then it is brought
    up to date, as by any other who looks at the frame. Empty for the frame
    of a module or a class body: its variables are the namespace itself.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    kept = frame.f_locals
    found = dict(kept)
    if not _IS_VIEW and sys.getrefcount(kept) <= _UNSHARED:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            kept.pop(name, None)
    return found


def _unshared() -> int:
    """Return what ``getrefcount`` tells in :func:`frame_locals` of a copy only the frame holds."""

    def probe() -> int:
        kept = sys._getframe().f_locals
        return sys.getrefcount(kept)

    return probe()


_UNSHARED = _unshared()


class CodePlaces:
    """Say where code stands: ``[5] line 3`` for a cell, ``train.py line 12`` for a file.

    ``cells`` are execution counts by the file names that the kernel gives to its cells.
    """

    def __init__(self, cells: dict[str, int] | None = None) -> None:
        self._cells = cells or {}

    def cell(self, filename: str) -> int | None:
        """Return the number of the cell that a file name stands for, or ``None``."""
        number = self._cells.get(filename)
        if number is not None:
            return number
        if filename.startswith("<ipython-input-"):
            text = filename[len("<ipython-input-") :].split("-")[0]
            return int(text) if text.isdecimal() else None
        return None

    def place(self, filename: str, line: int) -> str:
        """Return a short place for a line of a file or cell."""
        number = self.cell(filename)
        name = f"[{number}]" if number is not None else filename.replace("\\", "/").split("/")[-1]
        return f"{name} line {line}"

    def code(self, code: CodeType) -> str:
        """Return ``train() of [5] line 3``, by the line on which the function begins."""
        name = getattr(code, "co_qualname", code.co_name).split("<locals>.")[-1]
        return f"{name}(), {self.place(code.co_filename, code.co_firstlineno)}"
