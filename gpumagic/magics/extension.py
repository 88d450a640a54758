"""The extension in one shell: what ``%load_ext`` puts in and ``%unload_ext`` takes out."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from traitlets import TraitError

from ..settings import GpuMagic
from . import memory, profile, report, watch
from .cell import CellContext, CellMagic, CellOutcome
from .out_of_memory import OutOfMemoryPanel

if TYPE_CHECKING:
    from ..footers import Footers
    from ..measurement import Measurement
    from ..sample import SpanStatus
    from ..session import Session

__all__ = ["Extension"]


class Extension:
    """Hold what belongs to one shell: settings, magics, hooks, and the session once used."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        try:
            self.settings = GpuMagic(parent=shell)
        except TraitError as error:
            raise UsageError(f"a setting of gpumagic cannot be used: {error}") from None
        # By thread: a kernel's subshells run cells in threads of their own, at the same time.
        self._measured: dict[int, tuple[Measurement, profile.Options]] = {}
        self._session: Session | None = None
        self._footers: Footers | None = None
        self._complained = False
        self._magics: dict[str, Callable[..., Any]] = {}
        self._panel = OutOfMemoryPanel(shell)
        self._cell = CellMagic(
            shell, "gpuprofile", begin=self._begin, end=self._end, doc=profile.CELL_HELP,
            on_cell=self._cell_began, after_cell=self._cell_ended,
        )

    @property
    def session(self) -> Session:
        """The session, made at first use."""
        if self._session is None:
            from ..session import Session, install

            self._session = Session(self.settings, shell=self.shell)
            install(self._session)
            self.settings.observe(self._interval_changed, "interval_s")
        return self._session

    @property
    def footers(self) -> Footers:
        """What was seen of every cell, made at first use."""
        if self._footers is None:
            from ..footers import Footers

            self._footers = Footers(self.session)
        return self._footers

    def footers_on(self) -> str:
        """Put a footer under each cell from the next one on; return what it will show."""
        said = self.footers.start()
        self._cell.watch_clears = True
        self._complained = False
        return said

    def footers_off(self) -> str:
        """Put no more footers under cells; return what is left."""
        self._cell.watch_clears = False
        if not self.footers.stop():
            return "There are no footers; %gpureport on starts them."
        return f"No more footers; %gpureport list shows the cells seen ({self.footers.count})."

    def register(self) -> None:
        """Put settings, magics and hooks into the shell."""
        self.shell.configurables.append(self.settings)
        for module in (watch, profile, report, memory):
            for name, function in module.line_magics(self).items():
                self.shell.register_magic_function(function, "line", name)
                self._magics[name] = self.shell.magics_manager.magics["line"][name]
        self._panel.register()  # first: the panel stands above a footer or a report
        self._cell.register()
        atexit.register(self.unregister)

    def unregister(self) -> None:
        """Take everything out again and stop what runs; harmless a second time."""
        atexit.unregister(self.unregister)
        measured = bool(self._measured)
        self._panel.unregister()
        self._cell.unregister()
        if measured:
            print(
                "gpumagic was unloaded while this cell was measured: no report", file=sys.stderr
            )
        lines = self.shell.magics_manager.magics["line"]
        for name, function in self._magics.items():
            if lines.get(name) is function:
                del lines[name]
        self._magics.clear()
        if self.settings in self.shell.configurables:
            self.shell.configurables.remove(self.settings)
        self._footers = None
        session, self._session = self._session, None
        if session is not None:
            from ..session import install

            self.settings.unobserve(self._interval_changed, "interval_s")
            session.close()
            install(None)

    def _interval_changed(self, change: object) -> None:
        if self._session is not None:
            self._session.refresh()

    # -- cells ----------------------------------------------------------------------------

    def _cell_began(self, context: CellContext) -> None:
        if self._session is not None:
            self._session.cell_began(context.execution_count)
        if self._footers is not None:
            kept = context.store_history and not report.only_magics(context.source, self._magics)
            try:
                self._footers.cell_began(context.execution_count, context.source, kept=kept)
            except Exception as error:
                self._complain(error)

    def _cell_ended(self, outcome: CellOutcome) -> None:
        if self._session is None:
            return
        status: SpanStatus = "interrupted" if outcome.status == "abandoned" else outcome.status
        self._session.cell_ended(status)
        if self._footers is None:
            return
        kept = outcome.status != "abandoned" and get_ident() not in self._measured
        try:
            line = self._footers.cell_ended(status, outcome.error, kept=kept)
            if line is not None and not outcome.clear_output_pending:
                report.show_footer(line)
        except Exception as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Say once that footers fail; the cell is the user's and goes on."""
        if not self._complained:
            self._complained = True
            print(f"gpumagic: no footer: {type(error).__name__}: {error}", file=sys.stderr)

    def _begin(self, line: str, context: CellContext) -> None:
        options = profile.parse_cell(line)
        measurement = profile.begin(self.session, options, context.execution_count)
        self._measured[get_ident()] = (measurement, options)
        self.footers.note_measured(context.execution_count, context.source)

    def _end(self, outcome: CellOutcome) -> None:
        measurement, options = self._measured.pop(get_ident())
        profile.end(self.shell, measurement, options, outcome)
