"""Live memory from run to run of the same cell: what only grows is a leak, and gets names.

Two runs are of the same cell if its text is the same, with or without ``%%gpuprofile`` above
it. The ends of its runs are compared by readings that there are anyway. Only where they have
grown twice in a row are the names searched for that hold GPU memory, and again at each later
growth: the difference says which of them grew.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from .devices import cuda_module
from .diagnosis import Thresholds
from .diagnosis.growing import RunGrowth
from .figures import DeviceSummary, Summary
from .grown_names import Held, Names, held_of, names_grown
from .session import Session

if TYPE_CHECKING:
    from .memory.scan import Scan

__all__ = ["CellGrowth", "Growths", "growth_of", "key_of"]

Growths = dict[str, RunGrowth]
"""How live tensors grew from run to run, by the ids of the GPUs on which they did."""

_ALLOCATED = "torch_allocated_bytes"
_FIRST_SEARCH = 2
_FIRST_FINDING = 3
_SLOW_S = 0.5
_PAUSE = 10
_MOST_SOURCES = 200
_NAMED = 100
_MAGIC = "%%gpuprofile"


def key_of(source: str) -> bytes:
    """Return what two runs of the same cell have in common: a hash of its text.

    White space at its end and a first line ``%%gpuprofile ...`` do not count.
    """
    text = source.rstrip()
    first, _, rest = text.partition("\n")
    if first.split(None, 1)[:1] == [_MAGIC]:
        text = rest.lstrip("\n")
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(eq=False, slots=True)
class _Streak:
    """The runs of a cell on one GPU: the last end, and the growths in a row up to it.

    ``low`` is the lowest that was read since, at other cells' ends too. ``before`` is what a
    search found in the run ``before_run``, when ``before_gained`` was gained; ``names`` is what a
    later one said, ``compared`` runs and ``compared_bytes`` after it.
    """

    end: float
    low: float
    runs: int = 0
    gained: float = 0.0
    before: Held | None = None
    before_gained: float = 0.0
    before_run: int = 0
    names: Names | None = None
    compared: int = 0
    compared_bytes: float = 0.0

    def grows(self, start: float, end: float, limits: Thresholds) -> bool:
        """Take the next run in if it grew; return whether it did."""
        # What others took since the last run is not its own, nor what it takes again after a fall.
        gain = end - start - (self.end - self.low)
        if gain <= 0 or gain < max(limits.run_growth_bytes, limits.run_growth_ratio * end):
            return False
        self.end = self.low = end
        self.runs += 1
        self.gained += gain
        return True

    def take(self, held: Held, run: int) -> None:
        """Keep what a search found, or compare it with what is kept."""
        if self.before is None:
            self.before, self.before_gained, self.before_run = held, self.gained, run
            return
        self.compared = run - self.before_run
        self.compared_bytes = self.gained - self.before_gained
        self.names = names_grown(self.before, held, self.compared_bytes)

    def growth(self) -> RunGrowth:
        """Say how it grew."""
        names = self.names or Names((), (), False)
        return RunGrowth(
            self.runs, self.gained, self.compared, self.compared_bytes, names.holders,
            names.graphs, names.cut,
        )


@dataclass(eq=False, slots=True)
class _Source:
    """A cell by its text: how often it ran, when it may be searched again, and its GPUs."""

    runs: int = 0
    next_search: int = 0
    streaks: dict[str, _Streak] = field(default_factory=dict)


class CellGrowth:
    """Compare the ends of the runs of each cell; hold numbers and names of the last 200 cells.

    ``search`` finds who holds GPU memory now (``None``: there is nothing to be found), ``clock``
    gives seconds to time it by.
    """

    def __init__(
        self,
        search: Callable[[], Scan | None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.search = search
        self.clock = clock
        self._sources: OrderedDict[bytes, _Source] = OrderedDict()
        # By thread: a kernel's subshells run cells in threads of their own, at the same time.
        self._expected: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def expect(self, number: int, source: str) -> None:
        """Note that a cell which is measured begins in this thread; ``measured`` ends it."""
        self._expected[get_ident()] = number, key_of(source)

    def measured(self, summary: Summary, limits: Thresholds) -> Growths:
        """Take in the run of this thread's cell that was expected; of any other return nothing."""
        number, key = self._expected.get(get_ident(), (None, b""))
        if number is None or number != summary.span.number:
            return {}
        del self._expected[get_ident()]
        return self._note(key, summary, limits)

    def note(self, source: str, summary: Summary, limits: Thresholds) -> Growths:
        """Take in the run of a cell that has ended; return on which GPUs its runs only grow.

        A run that did not end well is left out, as is a GPU whose live tensors were not read at
        the run's start and end. Takes as long as a search where one is due.
        """
        return self._note(key_of(source), summary, limits)

    def still(self, source: str) -> None:
        """Take in the run of a cell that allocated nothing: its growths in a row are over."""
        known = self._sources.get(key_of(source))
        if known is not None:
            known.runs += 1
            known.streaks.clear()

    def _note(self, key: bytes, summary: Summary, limits: Thresholds) -> Growths:
        for gpu in summary.gpus:
            figure = gpu.figure(_ALLOCATED)
            read = [value for value in (figure.start, figure.end) if value is not None]
            for source in list(self._sources.values()):
                streak = source.streaks.get(gpu.device.id)
                if streak is not None:
                    streak.low = min(streak.low, *read) if read else streak.low
        if summary.span.status != "ok":
            return {}
        return self._compare(self._source(key), summary, limits)

    def _compare(self, known: _Source, summary: Summary, limits: Thresholds) -> Growths:
        known.runs += 1
        growing: list[tuple[DeviceSummary, _Streak]] = []
        for gpu in summary.gpus:
            figure = gpu.figure(_ALLOCATED)
            if figure.start is None or figure.end is None:
                continue
            streak = known.streaks.get(gpu.device.id)
            if streak is None or not streak.grows(figure.start, figure.end, limits):
                known.streaks[gpu.device.id] = _Streak(figure.end, figure.end)
            elif streak.runs >= _FIRST_SEARCH:
                growing.append((gpu, streak))
        if growing and known.runs >= known.next_search:
            self._search(known, growing)
        return {
            gpu.device.id: streak.growth() for gpu, streak in growing
            if streak.runs >= _FIRST_FINDING
        }

    def _source(self, key: bytes) -> _Source:
        known = self._sources.setdefault(key, _Source())
        self._sources.move_to_end(key)
        while len(self._sources) > _MOST_SOURCES:
            self._sources.popitem(last=False)
        return known

    def _search(self, known: _Source, growing: list[tuple[DeviceSummary, _Streak]]) -> None:
        begun = self.clock()
        try:
            found = self.search()
        except Exception:
            found = None  # the report is worth more than its names
        if self.clock() - begun > _SLOW_S:
            known.next_search = known.runs + _PAUSE
        if found is None:
            return
        for gpu, streak in growing:
            if gpu.device.torch_index is not None:
                streak.take(held_of(found, f"cuda:{gpu.device.torch_index}"), known.runs)


_kept: weakref.WeakKeyDictionary[Session, CellGrowth] = weakref.WeakKeyDictionary()


def growth_of(session: Session) -> CellGrowth:
    """Return what is kept of a session's cells, made at first use; it goes with the session."""
    found = _kept.get(session)
    if found is None:
        # Nothing here may keep the session, or neither would ever go.
        found = _kept[session] = CellGrowth(partial(_search, weakref.ref(session)))
    return found


def _search(session: weakref.ref[Session]) -> Scan | None:
    """Search for who holds GPU memory, for half a second or little more."""
    from .memory.report import running_shell
    from .memory.roots import Notebook
    from .memory.scan import scan
    from .memory.tensors import TensorReader, torch_module

    torch, owner = torch_module(), session()
    if torch is None or owner is None or cuda_module() is None:
        return None
    shell = owner.shell if owner.shell is not None else running_shell()
    return scan(Notebook(shell), TensorReader(torch, "cuda"), count=_NAMED)
