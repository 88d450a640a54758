"""Where references begin in a notebook: names, functions that run, modules, displays, errors."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import CoroutineType, FrameType, ModuleType, TracebackType
from typing import Any

from .frames import CodePlaces, frame_locals
from .graph import Root
from .kinds import OURS, is_one_of
from .labels import instance_dict

__all__ = ["DEBUGGER", "DisplayCopy", "Notebook"]

DEBUGGER = "%debug"
"""What a Root is called that stands for the debugger's last session."""

_UNDERSCORES = ("_", "__", "___")
_NUMBERED = re.compile(r"_\d+\Z")
_INPUT = re.compile(r"_i+\Z|_i\d+\Z")
_MACHINERY = frozenset(
    {OURS, "IPython", "asyncio", "ipykernel", "jupyter_client", "runpy", "tornado", "traitlets"}
)


@dataclass(frozen=True, slots=True, eq=False)
class DisplayCopy:
    """A place where a displayed value is kept: ``label`` for people, and how it is emptied.

    ``owner`` is a dict or an object, ``key`` its key or attribute.
    """

    label: str
    cell: int
    owner: Any
    key: Any
    value: Any


class Notebook:
    """What an IPython shell keeps, or ``__main__`` where there is none; nothing is changed."""

    def __init__(self, shell: Any = None) -> None:
        self.shell = shell
        if shell is None:
            main = sys.modules.get("__main__")
            self.namespace: dict[str, Any] = getattr(main, "__dict__", {})
            self.hidden: dict[str, Any] = {}
        else:
            self.namespace = shell.user_ns
            self.hidden = shell.user_ns_hidden
        compiler = getattr(shell, "compile", None)
        self.places = CodePlaces(dict(getattr(compiler, "_filename_map", None) or {}))

    # -- the user's names ------------------------------------------------------------------

    def variables(self) -> list[Root]:
        """Return the user's own names, as ``%who`` would list them."""
        # Plain values are the shell's and the user's at once.
        parts = {id(part) for part in self._shell_parts() if gc.is_tracked(part)}
        copies = {copy.key for copy in self.display_copies() if copy.owner is self.namespace}
        return [
            Root("variable", name, value)
            for name, value in list(self.namespace.items())
            if type(name) is str
            and name not in copies
            and id(value) not in parts
            and self._is_users(name, value)
        ]

    def _is_users(self, name: str, value: Any) -> bool:
        if name.startswith("__") and name.endswith("__") and len(name) > 4:
            return False
        if name in self.hidden and self.hidden[name] is value:
            return False
        return not _INPUT.match(name) and not is_one_of(type(value), (ModuleType,))

    # -- values that were displayed --------------------------------------------------------

    @property
    def outputs(self) -> dict[Any, Any]:
        """The dict ``Out``; the history has it even where the user has deleted its names."""
        found = getattr(getattr(self.shell, "history_manager", None), "output_hist", None)
        found = self.namespace.get("_oh") if found is None else found
        return found if type(found) is dict else {}

    def display_copies(self) -> list[DisplayCopy]:
        """Return each place where IPython keeps a displayed value: Out, ``_n``, ``_`` to ``___``.

        The result of the last cell is among them. A ``_`` that the user has bound himself is a
        variable and not among them.
        """
        shell = self.shell
        if shell is None:
            return []
        copies = [
            DisplayCopy(f"Out[{number}]", number, self.outputs, number, value)
            for number, value in list(self.outputs.items())
            if type(number) is int
        ]
        numbers = {id(copy.value): copy.cell for copy in copies}
        for owner, suffix in ((self.namespace, ""), (self.hidden, " (hidden)")):
            for name, value in list(owner.items()):
                if type(name) is not str or not _NUMBERED.match(name):
                    continue
                number = int(name[1:])
                if owner is self.namespace and self.outputs.get(number, value) is not value:
                    continue  # bound by the user since
                copies.append(DisplayCopy(f"{name}{suffix}", number, owner, name, value))
        displayhook = getattr(shell, "displayhook", None)
        for name in _UNDERSCORES:
            own = getattr(displayhook, name, None)
            places: list[tuple[str, Any, Any]] = [
                (" (hidden)", self.hidden, self.hidden.get(name)),
                (" of the displayhook", displayhook, own),
            ]
            if self.namespace.get(name) is own:
                places.insert(0, ("", self.namespace, own))
            copies += [
                DisplayCopy(f"{name}{suffix}", numbers.get(id(value), 0), owner, name, value)
                for suffix, owner, value in places
                if value is not None
            ]
        result = getattr(shell, "last_execution_result", None)
        value = getattr(result, "result", None)
        if value is not None:
            cell = numbers.get(id(value), 0)
            copies.append(DisplayCopy("result of the last cell", cell, result, "result", value))
        return [copy for copy in copies if type(copy.value) is not str]

    def displayed(self) -> list[Root]:
        """Return the displayed values, one Root for each, with all places that keep it."""
        values: dict[int, list[DisplayCopy]] = {}
        for copy in self.display_copies():
            values.setdefault(id(copy.value), []).append(copy)
        roots = []
        for copies in values.values():
            first = copies[0]
            label = first.label
            also = [copy.label for copy in copies[1:] if " " not in copy.label]
            where = ""
            if first.label.startswith("Out["):
                where = f"value shown by [{first.cell}]"
            elif " " in label:
                label = "_" if label.startswith(("_ ", "result")) else label.split(" ")[0]
                where = "the last value shown"
            also = [name for name in also if name != f"_{first.cell}" and name != label]
            if also:
                where += f", also {', '.join(dict.fromkeys(also))}"
            roots.append(Root("output", label, first.value, where, first.cell))
        return roots

    # -- errors ----------------------------------------------------------------------------

    def errors(self) -> list[tuple[str, Any]]:
        """Return who keeps an error, a traceback or a debugger, and what: empty ones left out."""
        found: list[tuple[str, Any]] = [
            (f"sys.{name}", vars(sys)[name])
            for name in ("last_exc", "last_value", "last_traceback")
            if vars(sys).get(name) is not None
        ]
        shell = self.shell
        if shell is None:
            return found
        tb = getattr(shell, "InteractiveTB", None)
        result = getattr(shell, "last_execution_result", None)
        places = [(tb, "tb"), (tb, "pdb"), (result, "error_in_exec"), (result, "error_before_exec")]
        for owner, name in places:
            value = getattr(owner, name, None)
            if value is not None:
                found.append((name, value))
        return found

    def tracebacks(self) -> list[Root]:
        """Return one Root for each error that is kept, and for a debugger."""
        roots = []
        seen: set[int] = set()
        for who, value in self.errors():
            if id(value) in seen:
                continue
            seen.add(id(value))
            if who == "pdb":
                roots.append(Root("traceback", DEBUGGER, value, "the debugger's last session"))
                continue
            cell, _ = self.cell_of(value)
            name = f"traceback of [{cell}]" if cell else "traceback"
            roots.append(Root("traceback", name, value, "", cell))
        return roots

    def cell_of(self, error: Any) -> tuple[int, int | None]:
        """Return the number of the cell in which an error was raised, or 0, and the line in it.

        The line is known where the cell's own code stands there, not a function of it.
        """
        if is_one_of(type(error), (BaseException,)):
            error = _traceback(error)
        traceback: TracebackType | None = error if type(error) is TracebackType else None
        while traceback is not None:
            code = traceback.tb_frame.f_code
            number = self.places.cell(code.co_filename)
            if number is not None:
                return number, traceback.tb_lineno if code.co_name == "<module>" else None
            traceback = traceback.tb_next
        return 0, None

    # -- code that runs --------------------------------------------------------------------

    def running(self) -> list[Root]:
        """Return the local variables of all functions that run now, of every thread, but ours."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = threading.get_ident()
        roots = []
        # Our own frame is among them. A frame that outlives its call keeps all of its variables,
        # and those of its callers: neither name below may refer to one in the end.
        frames: dict[int, FrameType] = sys._current_frames()
        frame: FrameType | None = None
        try:
            while frames:
                ident, frame = frames.popitem()
                at = "" if ident == own else f" in thread {names.get(ident, ident)}"
                while frame is not None:
                    if not _is_machinery(frame):
                        scope = f"{self.places.code(frame.f_code)}{at}"
                        variables = self._variables_of(frame)
                        roots += [Root("frame", n, value, scope) for n, value in variables.items()]
                    frame = frame.f_back
        finally:
            frames.clear()
            frame = None
        return [*roots, *self._tasks()]

    def _variables_of(self, frame: FrameType) -> dict[str, Any]:
        """Return the variables of a function, or of code that runs in a namespace of its own."""
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return frame_locals(frame)
        values: Any = frame.f_locals  # the namespace itself, not a copy
        known = values is self.namespace or (values is frame.f_globals and _is_module(values))
        return dict(values) if type(values) is dict and not known else {}

    def _tasks(self) -> Iterator[Root]:
        """Yield the coroutines of tasks that wait in this thread's event loop."""
        asyncio = sys.modules.get("asyncio")
        try:
            tasks = asyncio.all_tasks() if asyncio is not None else ()
        except RuntimeError:  # no loop runs in this thread
            return
        for task in tasks:
            coroutine = task.get_coro()
            frame = coroutine.cr_frame if type(coroutine) is CoroutineType else None
            if frame is not None and not _is_machinery(frame):
                yield Root("frame", task.get_name(), coroutine, "a task of the event loop")

    # -- modules, and what is never entered --------------------------------------------------

    def own_modules(self) -> list[Root]:
        """Return the variables of the user's own modules: those outside of any installation."""
        return [
            Root("module", name, values)
            for name, values in _namespaces()
            if values is not self.namespace
            and name.partition(".")[0] not in (OURS, "__main__")
            and _is_own(values.get("__file__"))
        ]

    def landmarks(self) -> dict[int, Root]:
        """Return by id the namespaces of all modules and the shell: where a search may end."""
        found = {
            id(values): Root("module", name, values)
            for name, values in _namespaces()
            if values is not self.namespace
        }
        if self.shell is not None:
            found[id(self.shell)] = Root("module", "get_ipython()", self.shell)
        return found

    def fences(self) -> list[Any]:
        """Return the objects that a walk never enters on its way: they are roots of their own.

        The namespaces of all modules, and the shell with what belongs to it.
        """
        return [
            self.namespace,
            self.hidden,
            self.outputs,
            sys.modules,
            *(values for _, values in _namespaces()),
            *self._shell_parts(),
        ]

    def _shell_parts(self) -> list[Any]:
        if self.shell is None:
            return []
        parts = instance_dict(self.shell) or {}
        return [self.shell, *parts.values(), *(parts.get("_trait_values") or {}).values()]


# Not an attribute of the module: a lazy one would load what it stands for.
_module_dict: Any = vars(ModuleType)["__dict__"].__get__
_traceback: Any = vars(BaseException)["__traceback__"].__get__


def _namespaces() -> list[tuple[str, dict[str, Any]]]:
    """Return the names and the namespaces of all modules; none of them is asked."""
    return [
        (name, _module_dict(module))
        for name, module in list(sys.modules.items())
        if type(name) is str and is_one_of(type(module), (ModuleType,))
    ]


def _is_module(values: dict[str, Any]) -> bool:
    """Tell whether some global variables are those of a module that can be imported."""
    return any(values is namespace for _, namespace in _namespaces())


_INSTALLED = tuple(
    os.path.realpath(prefix) + os.sep for prefix in {sys.prefix, sys.base_prefix}
)


def _is_own(file: Any) -> bool:
    return type(file) is str and _is_own_file(file)


@functools.lru_cache(maxsize=8192)
def _is_own_file(file: str) -> bool:
    if "site-packages" in file or "dist-packages" in file:
        return False
    return not os.path.realpath(file).startswith(_INSTALLED)


def _is_machinery(frame: FrameType) -> bool:
    """Tell whether a frame is of the machinery that runs cells, or ours: it holds no data."""
    name = frame.f_globals.get("__name__", "")
    return type(name) is str and name.partition(".")[0] in _MACHINERY
