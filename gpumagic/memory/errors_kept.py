"""Let go of the errors that a notebook keeps, and of the frames under them."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .graph import Walk
from .kinds import is_one_of
from .roots import Notebook

__all__ = ["let_errors_go"]

_TIMEOUT_S = 1.0

# Those of the base class: an exception may define its own.
_attributes: Any = BaseException.__dict__

# From Python 3.11 on.
_Group: Any = getattr(builtins, "BaseExceptionGroup", None)


def let_errors_go(notebook: Notebook) -> bool:
    """Drop the last error's traceback wherever Python and IPython keep it.

    ``sys.last_*`` are deleted, IPython's own references to the traceback and the debugger are
    emptied, and the traceback is taken off the error of the last execution result and of those
    that led to it (``__cause__``, ``__context__``): the result itself stays as it was. Errors
    that the user holds in a variable keep their tracebacks. Return whether ``%debug`` had
    something to look at and has not any more.
    """
    had_debug = vars(sys).get("last_traceback") is not None
    users = _UsersErrors(notebook)
    for who, error in notebook.errors():
        for one in _chain(error):
            if not users.hold(one):
                _attributes["__traceback__"].__set__(one, None)
        if who.startswith("sys."):
            vars(sys).pop(who.removeprefix("sys."), None)
    handler = getattr(notebook.shell, "InteractiveTB", None)
    # A debugger that was left in the middle keeps frames in variables of the code it stood in.
    forget = getattr(getattr(handler, "pdb", None), "forget", None)
    if forget is not None:
        with suppress(Exception):
            forget()
    del forget
    for name in ("tb", "pdb"):
        if getattr(handler, name, None) is not None:
            setattr(handler, name, None)
    return had_debug


def _chain(error: Any) -> Iterator[BaseException]:
    """Yield an error and all that led to it, members of groups too; nothing for others."""
    waiting = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if not _is_error(type(one)) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [_attributes[name].__get__(one) for name in ("__cause__", "__context__")]
        if _Group is not None and is_one_of(type(one), (_Group,)):
            waiting += _Group.exceptions.__get__(one)


class _UsersErrors:
    """Which errors the user's own variables lead to."""

    def __init__(self, notebook: Notebook) -> None:
        self._walk = Walk(_is_error, lambda error: (), notebook.fences())
        roots = [*notebook.variables(), *notebook.running(), *notebook.own_modules()]
        self._done = self._walk.walk(roots, time.perf_counter() + _TIMEOUT_S)

    def hold(self, error: BaseException) -> bool:
        """Tell whether they do; also if there was no time to be sure."""
        return not self._done or self._walk.has_met(error)


def _is_error(kind: type) -> bool:
    return is_one_of(kind, (BaseException,))
