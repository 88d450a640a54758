"""What a live view keeps from one scene to the next: the columns that nothing can change.

A column is finished once a reading lies to the right of it. The next scene then needs the
newest readings only, so that an hour costs as little as a minute. What the recording merges
meanwhile changes nothing in a finished column: it was made of the readings themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from ..recording import Series
from ..throttling import Runs
from .bins import Filling, Grid, Hole, filling

__all__ = ["ColumnCache", "Columns"]

Columns = tuple[float | None, ...]


class _Finished(NamedTuple):
    """The finished columns of a layer, from the one numbered ``first`` on.

    ``resume`` is the time of the last reading in them, to which the next one can be joined;
    ``until`` is the newest time that had been looked at.
    """

    first: int
    columns: Columns
    resume: float
    until: float
    width: float
    reach: float

    def serves(self, grid: Grid, reach: float, until: float) -> bool:
        """Tell whether a scene can go on from here: the same columns, moved on or not at all."""
        return (
            self.width == grid.width
            and self.reach == reach
            and self.until <= until
            and self.first <= grid.first < self.first + len(self.columns)
            and self.resume >= grid.start - reach
        )


class _Rows(NamedTuple):
    """All that it depends on how readings go into the columns from the one at ``begin`` on."""

    times: Sequence[float]
    starts: Sequence[float]
    grid: Grid
    begin: int
    reach: float
    until: float
    holes: Sequence[Hole]

    def filling(self) -> Filling:
        """Find out how they go there."""
        grid = self.grid
        rest = Grid(grid.first + self.begin, grid.count - self.begin, grid.width)
        return filling(
            self.times, self.starts, rest, reach=self.reach, until=self.until, holes=self.holes
        )


_UNSETTLED = 8
"""Columns at the right end that may have changed since the last scene; others seldom do."""


class _Mapped(NamedTuple):
    """What was made of columns, the first of which had the number ``first``, and by what."""

    first: int
    rule: tuple[float, object, object]
    inputs: tuple[Columns, ...]
    outputs: tuple[Columns, ...]

    def settled(self, grid: Grid, inputs: tuple[Columns, ...]) -> tuple[int, int]:
        """Return which columns of it can be kept: none, or all but the newest."""
        gone = grid.first - self.first
        end = min(len(self.inputs[0]), gone + grid.count) - _UNSETTLED
        same = len(inputs) == len(self.inputs) and 0 <= gone < end and all(
            before[gone:end] == now[: end - gone]
            for before, now in zip(self.inputs, inputs, strict=True)
        )
        return (gone, end) if same else (0, 0)


class ColumnCache:
    """The finished columns of one view of one recording; it belongs to one thread at a time.

    ``runs`` is what limits did to each device.
    """

    def __init__(self) -> None:
        self.runs: defaultdict[str, Runs] = defaultdict(Runs)
        self._finished: dict[Hashable, _Finished] = {}
        self._mapped: dict[Hashable, _Mapped] = {}
        self._filled: dict[Hashable, tuple[_Rows, Filling]] = {}

    def columns(
        self,
        key: Hashable,
        points: Callable[[float], Series],
        grid: Grid,
        *,
        reach: float,
        until: float,
        holes: Sequence[Hole] = (),
        source: Hashable = None,
    ) -> tuple[Columns, tuple[float, float] | None]:
        """Return a layer's columns as :func:`fill` makes them, and its newest reading.

        ``points`` gives the readings from a time on up to ``until``, all of them numbers. The
        layer is known by ``key``; those with one ``source`` have most often been read together.
        """
        known = self._finished.pop(key, None)
        if known is not None and known.serves(grid, reach, until):
            kept = known.columns[grid.first - known.first :]
            found = points(known.resume)
        else:
            kept = ()
            # A column at the left end can lie between a reading outside of the window and one
            # inside.
            found = points(grid.start - reach)
        rows = _Rows(found.times, found.starts, grid, len(kept), reach, until, holes)
        # What goes where is found out once for all layers with the same times.
        before = self._filled.get(source)
        if before is not None and before[0] == rows:
            how = before[1]
        else:
            how = rows.filling()
            self._filled[source] = rows, how
        columns = kept + how.of(found)
        if not found:
            return columns, None
        # The column of the newest reading can still get a higher one.
        finished = min(grid.count, len(kept) + how.last)
        if finished > 0 and how.resume is not None:
            self._finished[key] = _Finished(
                grid.first, columns[:finished], how.resume, until, grid.width, reach
            )
        return columns, (found.times[-1], found.values[-1])

    def mapped(
        self,
        key: Hashable,
        make: Callable[..., tuple[Columns, ...]],
        setting: tuple[float, ...],
        grid: Grid,
        *inputs: Columns,
    ) -> tuple[Columns, ...]:
        """Return ``make(setting, *inputs)``, made anew only for the columns that have changed.

        What is made of a column depends on those in its place alone. It is known by ``key``,
        and of each, what was made last is kept.
        """
        rule = (grid.width, make, setting)
        known = self._mapped.get(key)
        begin = end = 0
        if known is not None and known.rule == rule:
            begin, end = known.settled(grid, inputs)
        if known is not None and begin < end:
            new = make(setting, *[columns[end - begin :] for columns in inputs])
            pairs = zip(known.outputs, new, strict=True)
            made = tuple([before[begin:end] + after for before, after in pairs])
        else:
            made = make(setting, *inputs)
        self._mapped[key] = _Mapped(grid.first, rule, inputs, made)
        return made
