"""Pages: the finished columns of a live view, in pieces that are sent once.

Columns have absolute numbers (:mod:`.bins`) and a finished one does not change. A page holds
:data:`COLUMNS` of them for every row of a scene. The pages of a view stand side by side and form
a ring, which is shifted as time goes: a page that has left the window at the left is filled
again, still out of sight, and then comes in at the right end. The columns after the last page
are the *tail*, which is drawn anew with each update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .parts import Panel, Row, Scene

__all__ = ["COLUMNS", "Due", "Layout", "Ring", "Series", "View", "series_of"]

COLUMNS = 16
_LAG = 2
"""Columns in the tail that are finished: a reading of a slow source still joins its columns."""

_FIRST_TURN = -(1 << 62)

Heights = tuple[float | None, ...]


class Series(NamedTuple):
    """One trace and where it is drawn; ``over`` says whether an outer part is painted below.

    ``heights`` are those of :class:`.parts.Trace`, ``panel`` counts the panels of the scene. An
    area stands on ``floor`` where that is given, as what is above it may be translucent.
    """

    style: str
    over: bool
    panel: int
    top: float
    height: float
    heights: Heights
    floor: Heights | None = None


def series_of(scene: Scene) -> tuple[Series, ...]:
    """List the traces of a scene in the order in which they are painted."""
    panels = {panel: index for index, panel in enumerate(scene.panels)}
    found: list[Series] = []
    for row in scene.rows:
        found += _series_of_row(row, panels[row.panel])
    return tuple(found)


def _series_of_row(row: Row, panel: int) -> list[Series]:
    under = False
    found = []
    for index, trace in enumerate(row.traces):
        style = trace.style
        following = row.traces[index + 1 : index + 2] if style == "other" else ()
        floor = following[0].heights if following else None
        found.append(Series(style, under, panel, row.top, row.height, trace.heights, floor))
        if style == "outer" and not under:
            under = any(height is not None for height in trace.heights)
    return found


@dataclass(frozen=True, slots=True)
class Layout:
    """What the widgets of a view are laid out by: a scene with another one needs new ones.

    Lengths are pixels.
    """

    width: float
    height: float
    columns: int
    panels: tuple[Panel, ...]

    @classmethod
    def of(cls, scene: Scene) -> Layout:
        """Return the layout of a scene."""
        return cls(scene.width, scene.height, scene.columns, scene.panels)

    @property
    def x0(self) -> float:
        """The left edge of the first panel."""
        return self.panels[0].x0

    @property
    def span(self) -> float:
        """The width from the left edge of the first panel to the right edge of the last one."""
        return self.panels[-1].x1 - self.panels[0].x0

    @property
    def pitch(self) -> float:
        """The width of a column."""
        return (self.panels[0].x1 - self.panels[0].x0) / self.columns

    @property
    def lefts(self) -> tuple[float, ...]:
        """The left edge of each panel, counted from that of the first."""
        return tuple(panel.x0 - self.x0 for panel in self.panels)

    @property
    def pages(self) -> int:
        """How many pages a view needs: those that can be seen, in part too, and a spare one."""
        return -(-self.columns // COLUMNS) + 2


@dataclass(frozen=True, slots=True)
class Due:
    """A page that has to be drawn: the one numbered ``slot`` of the ring.

    It holds the columns of the scene from ``low`` to before ``high``; ``low`` is negative where
    it has left the window in part.
    """

    slot: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class View:
    """How the pages lie after an update.

    The ring begins ``shift`` columns right of the panel's left edge, which is left of it as the
    number is negative. Its first ``turned`` pages are moved on by its whole length: as if it
    began at ``end``. The tail begins with the column ``tail`` of the scene.
    """

    shift: int
    end: int
    turned: int
    tail: int


@dataclass(frozen=True, slots=True)
class _Held:
    """What a page was drawn from: heights from the column with the absolute number ``start``."""

    page: int
    start: int
    heights: tuple[Heights, ...]

    def shows(self, other: _Held) -> bool:
        """Tell whether a page drawn from this need not be drawn again from ``other``.

        Less of it can be known by now, as it leaves the window.
        """
        skip = other.start - self.start
        if self.page != other.page or skip < 0:
            return False
        if skip == 0:
            return self.heights == other.heights
        return len(self.heights) == len(other.heights) and all(
            mine[skip:] == theirs
            for mine, theirs in zip(self.heights, other.heights, strict=True)
        )


class _Seen(NamedTuple):
    """What pages were last drawn from, or found to show: the columns from ``first`` to ``end``."""

    first: int
    end: int
    heights: tuple[Heights, ...]

    def goes_on_from(self, before: _Seen) -> bool:
        """Tell whether all columns that were seen before are as they were, but for those gone."""
        gone, kept = self.first - before.first, before.end - self.first
        return gone >= 0 and len(self.heights) == len(before.heights) and all(
            then[gone : gone + kept] == now[:kept]
            for then, now in zip(before.heights, self.heights, strict=True)
        )


class Ring:
    """The book of a view's pages: what each of them shows, and which have to be drawn."""

    def __init__(self, layout: Layout) -> None:
        self._columns = layout.columns
        self._held: list[_Held | None] = [None] * layout.pages
        self._places: tuple[object, ...] = ()
        self._seen = _Seen(0, 0, ())
        self._shown = _FIRST_TURN

    def turn(self, scene: Scene, series: Sequence[Series]) -> tuple[list[Due], View]:
        """Go on to a scene of the same layout; return what to draw now, and how pages lie then.

        A page that comes in at the right end is drawn one update before it is moved there:
        pages and all else are sent by different messages.
        """
        count = len(self._held)
        # Rounded as the grid is: the two ends are floats with 0.2 µs between neighbours.
        first = round(scene.start / round((scene.end - scene.start) / self._columns, 6))
        over = (first + self._columns - _LAG) // COLUMNS
        places = tuple([s[:5] for s in series])
        if places != self._places:
            self._places = places
            self._held = [None] * count
        # A column more than the pages hold, as in what each of them was drawn from.
        seen = _Seen(first, over * COLUMNS + 1, tuple([s.heights for s in series]))
        same, self._seen = seen.goes_on_from(self._seen), seen
        due = []
        fresh = False
        for page in range(first // COLUMNS, over):
            slot = page % count
            if same and (known := self._held[slot]) is not None and known.page == page:
                continue
            low = page * COLUMNS - first
            # A column more on either side joins the lines of neighbours.
            start = max(low - 1, 0)
            now = _Held(
                page, first + start, tuple([s.heights[start : low + COLUMNS + 1] for s in series])
            )
            held = self._held[slot]
            if held is not None and held.shows(now):
                continue
            fresh = page == over - 1 and (held is None or held.page != page)
            self._held[slot] = now
            due.append(Due(slot, low, low + COLUMNS))
        self._shown = over - 1 if fresh and self._shown == over - 1 and len(due) == 1 else over
        turned = self._shown % count
        shift = (self._shown - count - turned) * COLUMNS - first
        tail = self._shown * COLUMNS - first
        return due, View(shift, shift + count * COLUMNS, turned, tail)
