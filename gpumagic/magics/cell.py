"""Run a cell under a magic exactly as it would run without the magic.

A cell magic normally receives its cell as text and has to run that text itself, which costs
top-level await, line numbers, ``Out[]`` or the trailing semicolon. Here the first line of the cell,
``%%name ARGS``, is rewritten to one call, and the rest stays a cell that IPython runs as ever:

    %%gpuprofile -o p           get_ipython().run_cell_magic('gpuprofile', '-o p', None)
    loss = await train()        loss = await train()
    loss                        loss

The call begins a measurement; the ``post_run_cell`` of the outermost cell ends it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import (
    cell_magic,
    classic_prompt,
    ipython_prompt,
    leading_indent,
)
from IPython.core.magic import no_var_expand

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

__all__ = ["CellContext", "CellMagic", "CellOutcome"]

Status = Literal["ok", "error", "interrupted", "abandoned"]


@dataclass(frozen=True)
class CellContext:
    """Say which cell is being measured.

    All three belong to the outermost cell, also where ``%%capture`` runs the rest in a cell of its
    own: ``execution_count`` is the n of its ``In[n]``, ``source`` its text as the user typed it,
    ``cell_id`` the front-end's id where it sends one. ``store_history`` is false for a cell that
    has no number of its own: a front end or a program runs it.
    """

    execution_count: int
    source: str
    cell_id: str | None
    store_history: bool = True


@dataclass(frozen=True)
class CellOutcome:
    """Say how a measured cell ended.

    It holds no exception, traceback or frame, so it keeps none of the user's tensors alive.

    - ``status``: "ok", "error" (SystemExit too), "interrupted" (KeyboardInterrupt or a
      cancelled await), or "abandoned" (nobody saw the cell end: show nothing in this one).
    - ``error``: the exception's class name; None where there was none or nobody knows it.
    - ``execution_count``: the n of the cell's ``In[n]``.
    - ``clear_output_pending``: a display now would erase the cell's last output.
    - ``ignored``: how many more times the magic was met while this measurement was open; only the
      first one measures.
    """

    status: Status
    error: str | None
    execution_count: int
    clear_output_pending: bool = False
    ignored: int = 0


class _ClearWatch:
    """Follow whether a ``clear_output(wait=True)`` still waits for its next output.

    The front-end does the clearing, so the messages are all there is to see. ipykernel shows them
    to hooks, and those are per thread: display messages are made in the thread that runs the cell,
    stream messages in the output thread. What other threads display goes unseen, and pending
    then stays True: too careful, never too bold. A shell without messages has nothing pending.
    """

    def __init__(self, shell: InteractiveShell, parent: str | None) -> None:
        self.pending = False
        self._parent = parent
        self._publisher: Any = shell.display_pub
        self._streams: list[Any] = []
        if hasattr(self._publisher, "register_hook"):
            self._publisher.register_hook(self._on_display)

    def stop(self) -> bool:
        """Take every hook off and return whether a clear is still pending."""
        if self.pending:
            # Text printed after the clear may still wait in the buffers; the end of the cell
            # flushes them anyway.
            sys.stdout.flush()
            sys.stderr.flush()
        for stream in self._streams:
            stream.pub_thread.schedule(partial(stream.unregister_hook, self._on_stream))
        self._streams.clear()
        if hasattr(self._publisher, "unregister_hook"):
            self._publisher.unregister_hook(self._on_display)
        return self.pending

    def _on_display(self, message: dict[str, Any]) -> dict[str, Any]:
        kind = message.get("msg_type")
        if kind == "clear_output":
            self.pending = bool(message["content"].get("wait"))
            if self.pending and not self._streams:
                self._watch_streams()
        elif kind == "display_data":  # update_display_data leaves a pending clear pending
            self.pending = False
        return message

    def _watch_streams(self) -> None:
        # Only cells that clear with wait=True pay for this. The publisher has just flushed, so
        # what the hooks see comes after the clear.
        for stream in (sys.stdout, sys.stderr):
            thread = getattr(stream, "pub_thread", None)
            if thread is not None and hasattr(stream, "register_hook"):
                thread.schedule(partial(stream.register_hook, self._on_stream))
                self._streams.append(stream)

    def _on_stream(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["parent_header"].get("msg_id") == self._parent:
            self.pending = False
        return message


@dataclass(eq=False)
class _Cell:
    """A cell that runs: outermost, or run by another one."""

    info: Any  # IPython's ExecutionInfo: the text and where it came from
    execution_count: int
    parent: str | None  # msg_id of the request, where there is a kernel

    @property
    def context(self) -> CellContext:
        cell_id = getattr(self.info, "cell_id", None)
        history = bool(getattr(self.info, "store_history", True))
        return CellContext(self.execution_count, self.info.raw_cell, cell_id, history)


@dataclass(eq=False)
class _Measurement:
    cell: _Cell  # the cell whose own end says how the code ended
    watch: _ClearWatch
    verdict: tuple[Status, str | None] | None = None
    ignored: int = 0


class _State(threading.local):
    """What runs in one thread: subshells run cells in threads of their own."""

    def __init__(self) -> None:
        self.cells: list[_Cell] = []
        self.measurement: _Measurement | None = None
        self.watch: _ClearWatch | None = None
        self.expanded = False


class CellMagic:
    """Offer ``%%name`` as a magic that measures a cell without running it.

    ``begin(line, context)`` is called when the first line executes, with ``$x`` and ``{x}`` in its
    arguments expanded. What it raises fails the cell before the rest runs; raise ``UsageError`` for
    bad arguments, and leave nothing open behind. ``end(outcome)`` is called exactly once for each
    ``begin`` that returned, in the same thread: after the outermost cell, or as "abandoned" when
    the next one starts or at ``unregister()``, should that moment have been missed. ``doc`` is what
    ``%%name?`` shows. Cells that run silently or outside ``run_cell`` are not measured.

    ``on_cell(context)`` and ``after_cell(outcome)`` are called in pairs for every outermost cell,
    measured or not, and enclose ``begin``; ``after_cell`` comes before ``end``, so that what it
    times does not hold the drawing of a report. While ``watch_clears`` is true,
    ``clear_output_pending`` is told to ``after_cell`` as well; the displays of every cell then
    pass a hook.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        name: str = "gpuprofile",
        *,
        begin: Callable[[str, CellContext], None],
        end: Callable[[CellOutcome], None],
        doc: str | None = None,
        on_cell: Callable[[CellContext], None] | None = None,
        after_cell: Callable[[CellOutcome], None] | None = None,
    ) -> None:
        self.shell: Any = shell  # half of its methods have no types
        self.name = name
        self.watch_clears = False
        self._begin = begin
        self._end = end
        self._on_cell = on_cell
        self._after_cell = after_cell
        self._state = _State()
        self._registered = False
        self._replaced: Any = None

        # Plain functions, because attributes can't be set on a bound method. Expansion is ours:
        # it must see the frame of the user's cell and happen once.
        def magic(line: str, cell: str | None = None) -> None:
            __tracebackhide__ = True
            self._magic(line, cell)

        def rewrite(lines: list[str]) -> list[str]:
            return self._rewrite(lines)

        magic.__name__ = name
        magic.__doc__ = doc
        self._function = no_var_expand(magic)
        # Without this mark the terminal takes the rewritten first line for a complete cell.
        rewrite.has_side_effects = True  # type: ignore[attr-defined]
        self._transformer = rewrite

    def register(self) -> None:
        """Install the magic; a second call changes nothing."""
        if self._registered:
            return
        shell = self.shell
        magics = shell.magics_manager.magics["cell"]
        self._replaced = magics.get(self.name)
        magics[self.name] = self._function
        shell.input_transformers_cleanup.append(self._transformer)
        shell.input_transformers_post.append(self._prefilter)
        shell.events.register("pre_run_cell", self._on_pre_run_cell)
        shell.events.register("post_run_cell", self._on_post_run_cell)
        self._registered = True

    def unregister(self) -> None:
        """Take everything off again; a measurement still open ends as "abandoned"."""
        if not self._registered:
            return
        self._registered = False
        shell = self.shell
        shell.events.unregister("pre_run_cell", self._on_pre_run_cell)
        shell.events.unregister("post_run_cell", self._on_post_run_cell)
        shell.input_transformers_cleanup.remove(self._transformer)
        shell.input_transformers_post.remove(self._prefilter)
        magics = shell.magics_manager.magics["cell"]
        if magics.get(self.name) is self._function:  # else somebody's newer one: theirs to keep
            del magics[self.name]
            if self._replaced is not None:
                magics[self.name] = self._replaced
        self._replaced = None
        self._abandon()

    # -- the text of the cell --------------------------------------------------------------------

    def _rewrite(self, lines: list[str]) -> list[str]:
        """Replace the magic's line by a call; pure, because IPython may run it several times."""
        if not lines or not lines[0].startswith("%%"):
            return lines
        # Split as IPython's own cell_magic does: "%%name?" is another name and so left to help.
        name, _, line = lines[0][2:].rstrip().partition(" ")
        if name != self.name or not "".join(lines[1:]).strip():
            return lines  # an empty body gets IPython's usage error
        return self._with_call(line, lines[1:])

    def _with_call(self, line: str, body: list[str]) -> list[str]:
        blank = 0
        while body[blank].isspace():
            blank += 1
        rest = body[blank:]
        # The cleanups that IPython made already judged by the magic's line, not by this one.
        for clean in (leading_indent, classic_prompt, ipython_prompt, self._rewrite, cell_magic):
            rest = clean(rest)
        return [f"{self._call}{line!r}, None)\n", *body[:blank], *rest]

    @property
    def _call(self) -> str:
        return f"get_ipython().run_cell_magic({self.name!r}, "

    def _prefilter(self, lines: list[str]) -> list[str]:
        """Give a one-line body what IPython gives a one-line cell: automagic, macros, ``exit``."""
        if not lines or not (lines[0].startswith(self._call) and lines[0].endswith(", None)\n")):
            return lines
        body = [n for n in range(1, len(lines)) if not lines[n].isspace()]
        if not body or body[0] != len(lines) - 1:
            return lines
        with self.shell.builtin_trap:
            return [*lines[:-1], self.shell.prefilter_manager.prefilter_lines(lines[-1]) + "\n"]

    # -- the run of the cell ---------------------------------------------------------------------

    def _magic(self, line: str, cell: str | None) -> None:
        __tracebackhide__ = True  # IPython leaves such frames out of what it shows
        state = self._state
        if not state.expanded:
            # Up from here: magic(), run_cell_magic(), the user's frame.
            line = self.shell.var_expand(line, depth=3)
        state.expanded = False
        if cell is None:
            self._start(line)
            return
        # Somebody called run_cell_magic() with the text: an exported script, for example.
        if not cell.strip():
            raise UsageError(f"%%{self.name} is a cell magic, but the cell body is empty.")
        state.expanded = True
        try:
            text = "".join(self._with_call(line, cell.splitlines(keepends=True)))
            result = self.shell.run_cell(text, store_history=False)
        finally:
            state.expanded = False
        result.raise_error()

    def _start(self, line: str) -> None:
        state = self._state
        if not state.cells:
            return  # nobody would tell us when this ends
        if state.measurement is not None:
            state.measurement.ignored += 1
            return
        outer = state.cells[0]
        # Set before begin() and not after it: an interrupt between the two must not lose the end.
        measurement = state.measurement = _Measurement(
            state.cells[-1], state.watch or _ClearWatch(self.shell, outer.parent)
        )
        try:
            self._begin(line, outer.context)
        except BaseException:
            state.measurement = None
            if measurement.watch is not state.watch:
                measurement.watch.stop()
            raise

    def _on_pre_run_cell(self, info: Any) -> None:
        state = self._state
        cells = state.cells
        parent = self._request()
        if cells and self._is_stale(cells[0], parent):
            self._abandon()
        # Not shell.execution_count: IPython 9 counts up before a cell runs, IPython 8 after it.
        cells.append(_Cell(info, self.shell.displayhook.prompt_count, parent))
        if len(cells) > 1:
            return
        if self.watch_clears:
            state.watch = _ClearWatch(self.shell, parent)
        if self._on_cell is not None:
            self._on_cell(cells[0].context)

    def _on_post_run_cell(self, result: ExecutionResult | None) -> None:
        state = self._state
        index = self._index(result)
        if index is None:
            return
        measurement = state.measurement
        ended = state.cells[index:]
        del state.cells[index:]
        status, error = _verdict(result)
        if measurement is not None and measurement.verdict is None and measurement.cell in ended:
            measurement.verdict = status, error
        if not state.cells:
            self._leave(ended[0], result, status, error)

    def _leave(
        self, outer: _Cell, result: ExecutionResult | None, status: Status, error: str | None
    ) -> None:
        """Tell whom it concerns that the outermost cell has ended."""
        state = self._state
        measurement, state.measurement = state.measurement, None
        watch, state.watch = state.watch, None
        count = outer.execution_count
        pending = watch is not None and self._is_pending(watch, result, error)
        try:
            if self._after_cell is not None:
                self._after_cell(CellOutcome(status, error, count, pending))
        finally:
            if measurement is not None:
                if measurement.watch is not watch:
                    pending = self._is_pending(measurement.watch, result, error)
                if status != "abandoned" and measurement.verdict is not None:
                    status, error = measurement.verdict
                self._end(CellOutcome(status, error, count, pending, measurement.ignored))

    def _is_pending(
        self, watch: _ClearWatch, result: ExecutionResult | None, error: str | None
    ) -> bool:
        """Stop a watch and tell whether the cell has left a clear pending."""
        pending = watch.stop()
        if pending and result is not None:
            # Two outputs that pass no hook: the traceback, and Out[], the last of the
            # cell unless every expression shows its value.
            shows_last = self.shell.ast_node_interactivity != "all"
            pending = error is None and (result.result is None or not shows_last)
        return pending

    def _abandon(self) -> None:
        if self._state.cells:
            outer = self._state.cells[0]
            self._state.cells.clear()
            self._leave(outer, None, "abandoned", None)

    def _index(self, result: ExecutionResult | None) -> int | None:
        """Find the cell that ended; None for one that never started.

        IPython ends blank cells without starting them (ipython#14597), and makes a new info for a
        cell that its runner could not run; ipykernel has no result for a cancelled cell.
        """
        cells = self._state.cells
        indices = range(len(cells) - 1, -1, -1)
        if result is None:
            return next(iter(indices), None)
        info: Any = result.info
        for index in indices:
            if cells[index].info is info:
                return index
        for index in indices:
            if cells[index].info.raw_cell == info.raw_cell:
                return index
        return None

    def _request(self) -> str | None:
        """Return the msg_id of the request being run, None outside a kernel."""
        get_parent = getattr(self.shell, "get_parent", None)
        parent = get_parent() if get_parent is not None else None
        msg_id = ((parent or {}).get("header") or {}).get("msg_id")
        return msg_id if isinstance(msg_id, str) else None

    @staticmethod
    def _is_stale(outer: _Cell, parent: str | None) -> bool:
        """Tell whether the cell that starts now is a new one and not run by ``outer``."""
        if outer.parent is not None and parent is not None:
            return outer.parent != parent
        # No kernel: whoever runs us from within a cell has that cell's run on the stack as well.
        running, frame = 0, sys._getframe()
        while (caller := frame.f_back) is not None:
            frame = caller
            running += frame.f_code.co_name == "run_cell_async"
        return running < 2


def _verdict(result: ExecutionResult | None) -> tuple[Status, str | None]:
    if result is None:
        return "interrupted", None
    error = result.error_before_exec
    if error is None:
        error = result.error_in_exec
    if error is None:
        return "ok", None
    return "interrupted" if _is_interrupt(error) else "error", type(error).__name__


def _is_interrupt(error: BaseException) -> bool:
    # asyncio is looked up and not imported: it is half the cost of loading this module in a
    # shell without it, where nothing can be cancelled.
    asyncio = sys.modules.get("asyncio")
    cancelled = asyncio is not None and isinstance(error, asyncio.CancelledError)
    return cancelled or isinstance(error, KeyboardInterrupt)
