"""Footers: what is seen of every cell, for the line under it, its report and the list.

A short cell costs one look at torch's allocator; only one that ran for half a second or did
something on the GPU is read and summarised at its end. What a report says of a cell comes from
readings between the end of the cell before it and the begin of the one after.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING

from .allocator_look import AllocatorLook
from .cell_growth import growth_of
from .cell_profiles import profile_of
from .devices import cuda_module
from .diagnosis import RunGrowth, Thresholds
from .memory.streams import streams_state
from .options import parse_gpus
from .sample import Device, Span, SpanStatus
from .session import Lease, Session
from .summary import Summary
from .views.footer import FooterLine, build_footer
from .views.footer_words import ending_of
from .views.ranking import RankedCell, Ranking, rank, ranked_cell

if TYPE_CHECKING:
    from .profiles import Profile

__all__ = ["SHORT_S", "Footers", "SeenCell", "title_of"]

SHORT_S = 0.5
"""Below this time a cell that did nothing on the GPU gets no footer, in seconds."""

_READ_S = 0.5
_MOST_CELLS = 500
_MOST_PROFILES = 200
_LONGEST_TITLE = 120
_LISTED = 8
_SHORTEST_CPU_S = 0.05


@dataclass(frozen=True, slots=True)
class _Running:
    """A cell that runs: what has to be noted at its begin."""

    number: int
    source: str
    kept: bool
    start: float
    earliest: float
    cpu_s: float
    watch_cpu_s: float
    cuda: bool


@dataclass(eq=False, slots=True)
class SeenCell:
    """A cell that has ended; it holds nothing of the user's but one line of its source.

    ``earliest`` and ``latest`` bound the readings that may speak of it: the end of the cell
    before and the begin of the next one. ``growth`` says on which GPUs live memory only grew in
    the last runs of the same cell.
    """

    span: Span
    title: str
    error: str | None
    gpus: tuple[str, ...]
    earliest: float
    latest: float
    watch_cpu_s: float
    cuda_at_start: bool
    ranked: RankedCell
    profile: Profile | None = None
    shown: bool = False
    growth: Mapping[str, RunGrowth] = field(default_factory=dict)


class Footers:
    """Note the cells of a session and say what stands under each; off until :meth:`start`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seen: deque[SeenCell] = deque(maxlen=_MOST_CELLS)
        self._kept: deque[SeenCell] = deque()
        self._lease: Lease | None = None
        # By thread: a kernel's subshells run cells in threads of their own, at the same time.
        self._running: dict[int, _Running] = {}
        self._newest: SeenCell | None = None
        self._last_end = -math.inf
        self._look = AllocatorLook(session.recording, session.clock)
        self._growth = growth_of(session)
        self._told: frozenset[str] = frozenset()
        self._titles: deque[tuple[int, str]] = deque(maxlen=_MOST_CELLS)
        # Of cells that have a report of their own: what runs in each thread, what failed by what.
        self._measured: dict[int, int] = {}
        self._errors: deque[tuple[int, str]] = deque(maxlen=_MOST_CELLS)

    # -- on and off -----------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Whether cells get footers."""
        return self._lease is not None

    def start(self) -> str:
        """Claim sampling for footers from the next cell on; return what they will show.

        Where they are on, GPUs that the settings name by now take the place of those before.
        Raises :class:`~gpumagic.errors.DeviceError` for a GPU of the settings that is not
        there; what was on stays on.
        """
        old = self._lease
        if old is None or old.gpus != parse_gpus(self.session.settings.gpus):
            # The new claim comes first: where it fails, the old one is still there.
            self._lease = self.session.lease("footers")
            if old is not None:
                old.release()
            self._look.changed()
        assert self._lease is not None
        return self._announce(self._lease)

    def stop(self) -> bool:
        """Give the claim back; what was seen stays. Return whether footers were on."""
        lease, self._lease = self._lease, None
        self._running.clear()
        if lease is not None:
            lease.release()
        return lease is not None

    def _announce(self, lease: Lease) -> str:
        session = self.session
        gpus = [
            device for id_ in session.named_gpus(lease.gpus)
            if (device := session.recording.device(id_)) is not None
        ]
        if not gpus:
            reason = session.reasons().get("nvml", "none was found")
            self._told = frozenset()
            return (
                f"Footers are on: time, CPU cores, peak RAM. Quiet: cells under {SHORT_S:g} s."
                f" n/a: GPU ({reason})."
            )
        absent: dict[str, str] = {}
        for metric, word in (
            ("gpu_utilization_ratio", "GPU-Util"), ("gpu_sm_active_ratio", "SM active"),
        ):
            reasons = [gpu.absent.get(metric) for gpu in gpus]
            if None not in reasons:
                absent[metric] = f"{word} ({reasons[0]})"
        no_energy, estimate = _energy_of(gpus)
        if no_energy:
            absent["gpu_energy_joules"] = f"energy ({no_energy})"
        self._told = frozenset(absent)
        missing = f" n/a: {'; '.join(absent.values())}." if absent else ""
        slices = "gpu_utilization_ratio" in absent and "gpu_sm_active_ratio" not in absent
        return (
            f"Footers are on: time, {'SM active' if slices else 'GPU-Util'}, peak memory, energy"
            f"{estimate}. Quiet: cells under {SHORT_S:g} s without GPU work.{missing}"
        )

    # -- cells ----------------------------------------------------------------------------

    def cell_began(self, number: int, source: str, *, kept: bool = True) -> None:
        """Note that a cell begins in this thread; one not ``kept`` only bounds the others."""
        session = self.session
        start = session.clock()
        if self._newest is not None:
            self._newest.latest, self._newest = start, None
        if self._lease is not None and session.alive:
            self._running[get_ident()] = _Running(
                number, source, kept, start, self._last_end, time.process_time(),
                session.watch_cpu_s, cuda_module() is not None,
            )

    def cell_ended(
        self, status: SpanStatus, error: str | None = None, *, kept: bool = True
    ) -> FooterLine | None:
        """Note that this thread's cell has ended; return the line to show under it, if any.

        ``kept`` is false for a cell whose report is its own affair. Takes up to ``_READ_S`` for
        a cell that was not short, and one look at the allocator for any other.
        """
        running = self._running.pop(get_ident(), None)
        measured = self._measured.pop(get_ident(), None)
        if measured is not None and error is not None:
            self._errors.append((measured, error))
        session = self.session
        end = self._last_end = session.clock()
        if self._lease is None or not session.alive:
            return None
        active = self._look.changed()
        if running is None or not (running.kept and kept):
            return None
        wall = end - running.start
        cores = None
        if wall >= _SHORTEST_CPU_S:
            cores = (time.process_time() - running.cpu_s) / wall
        cell = self._note(running, Span(0, running.start, end, running.number, "", status), error)
        if wall < SHORT_S and not active:
            if status == "ok":
                self._growth.still(running.source)
            return None
        if wall >= SHORT_S and session.sampler is not None:
            session.sampler.read_now(timeout_s=_READ_S)
        cell.watch_cpu_s = session.watch_cpu_s - running.watch_cpu_s
        cell.profile = self._profile(cell, ended=running.source)
        cell.ranked = ranked_cell(cell.profile, cell.title, error)
        line = build_footer(cell.profile, error=error, cores=cores, told=self._told)
        cell.shown = True
        if wall >= SHORT_S:
            self._keep(cell)
        else:
            cell.profile = None  # made again, with what was read since, if it is asked for
        return line

    def _note(self, running: _Running, span: Span, error: str | None) -> SeenCell:
        assert self._lease is not None
        assert span.end is not None
        title = title_of(running.source)
        words, marked = ending_of(span.status, error)
        bare = RankedCell(
            span.label, title, span.end - span.start, words=words, marked=marked
        )
        cell = SeenCell(
            span, title, error, self._lease.gpus, running.earliest, math.inf, 0.0, running.cuda,
            bare,
        )
        self.seen.append(cell)
        self._newest = cell
        return cell

    def _keep(self, cell: SeenCell) -> None:
        self._kept.append(cell)
        if len(self._kept) > _MOST_PROFILES:
            self._kept.popleft().profile = None

    def _profile(self, cell: SeenCell, *, ended: str | None = None) -> Profile:
        """Make a cell's profile; ``ended`` is its source if it has ended just now."""
        def compare(summary: Summary, limits: Thresholds) -> Mapping[str, RunGrowth]:
            if ended is not None:
                cell.growth = self._growth.note(ended, summary, limits)
            return cell.growth

        return profile_of(
            self.session, cell.span, gpus=cell.gpus,
            streams=streams_state() if ended is not None else "unknown",
            watch_cpu_s=cell.watch_cpu_s, cuda_at_start=cell.cuda_at_start,
            earliest=cell.earliest, latest=cell.latest, compare=compare,
        )

    def note_measured(self, number: int, source: str) -> None:
        """Remember the first line of a cell that has a report of its own, and that it has one.

        It is this thread's cell, and runs.
        """
        self._titles.append((number, title_of(source)))
        self._measured[get_ident()] = number
        self._growth.expect(number, source)

    # -- what was seen --------------------------------------------------------------------

    def _all(self) -> list[SeenCell | Profile]:
        """List the cells seen and the profiles made of others, the oldest end first."""
        found: list[SeenCell | Profile] = [*self.seen, *self.session.profiles]
        return sorted(found, key=lambda one: one.span.end or one.span.start)

    @property
    def count(self) -> int:
        """How many cells and measured blocks there are reports of."""
        return len(self.seen) + len(self.session.profiles)

    def find(self, which: str | None = None, *, name: str | None = None) -> Profile | None:
        """Return the newest report with a number or a name, or the last one of all.

        The last one is that of a cell which got a footer or a report, if any did. ``name`` is
        taken as a name only. ``None`` is returned where nothing fits.
        """
        newest_first = [*reversed(self._all())]
        if which is None and name is None:
            # A cell that got neither a footer nor a report is asked for by its number.
            newest_first.sort(key=lambda one: isinstance(one, SeenCell) and not one.shown)
        for one in newest_first:
            if self._fits(one, which, name):
                if not isinstance(one, SeenCell):
                    return one
                return one.profile or self._profile(one)
        return None

    @staticmethod
    def _fits(one: SeenCell | Profile, which: str | None, name: str | None) -> bool:
        called = "" if isinstance(one, SeenCell) else one.span.name
        if name is not None:
            return name == called
        if which is None:
            return True
        return which == called or which.strip("[]") == str(one.span.number)

    def names(self) -> list[str]:
        """List what the newest reports are called, the newest last."""
        newest_first = (one.span.name or one.span.label for one in reversed(self._all()))
        return list(dict.fromkeys(newest_first))[_LISTED - 1 :: -1]

    def ranking(self, by: str = "time", count: int = 10) -> Ranking:
        """Rank all that was seen; see :func:`~gpumagic.views.ranking.rank`."""
        titles, errors = dict(self._titles), dict(self._errors)
        return rank(
            [
                one.ranked if isinstance(one, SeenCell)
                else ranked_cell(one, titles.get(one.number or 0, ""), errors.get(one.number or 0))
                for one in self._all()
            ],
            by, count,
        )


def _energy_of(gpus: Sequence[Device]) -> tuple[str, str]:
    """Say of some GPUs why their energy is n/a, or in a clause that it is an estimate."""
    reasons = [
        (reason, gpu.absent.get("gpu_power_watts")) for gpu in gpus
        if (reason := gpu.absent.get("gpu_energy_joules")) is not None
    ]
    if not reasons:
        return "", ""
    # The energy of all GPUs together is known only with that of each.
    unknown = next((reason for reason, no_power in reasons if no_power is not None), "")
    if unknown:
        return unknown, ""
    return "", f"; energy is estimated from power ({reasons[0][0]})"


def title_of(source: str) -> str:
    """Return the first line of a cell that is neither blank nor a cell magic."""
    lines = (line.strip() for line in source.splitlines())
    full = (line for line in lines if line and not line.startswith("%%"))
    return next(full, source.strip().partition("\n")[0])[:_LONGEST_TITLE]
