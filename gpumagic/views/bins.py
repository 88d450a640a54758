"""Readings into columns.

A column is a bin of time that ends at an absolute multiple of its width. As the window
moves, the columns move with it and none changes what it holds: nothing shimmers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..recording import Series

__all__ = ["Filling", "Grid", "Hole", "fill", "filling", "finite"]

Hole = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Grid:
    """``count`` columns of ``width`` seconds; ``first`` is the number of the oldest one."""

    first: int
    count: int
    width: float

    @classmethod
    def over(cls, start: float, end: float, count: int) -> Grid:
        """Lay ``count`` columns so that the last one holds ``end``."""
        # Epoch seconds are floats with 0.2 µs between neighbours: without rounding, the width
        # of "60 s" would differ from call to call and its multiples with it.
        width = round(max(end - start, 1e-3) / count, 6)
        return cls(math.ceil(end / width) - count, count, width)

    @property
    def start(self) -> float:
        """The left end of the oldest column."""
        return self.first * self.width

    @property
    def end(self) -> float:
        """The right end of the newest column."""
        return (self.first + self.count) * self.width

    def column(self, time: float) -> int:
        """Number the column that holds ``time``; it can lie outside of the grid.

        A column holds its right end and not its left one, as the last one has to hold "now".
        """
        return int(-(-time // self.width)) - 1 - self.first

    def middle(self, column: int) -> float:
        """Return the time in the middle of a column."""
        return (self.first + column + 0.5) * self.width

    def place(self, time: float) -> float:
        """Return ``time`` as a fraction of the axis, held within [0, 1]."""
        return min(1.0, max(0.0, (time - self.first * self.width) / (self.count * self.width)))


class Filling(NamedTuple):
    """How the readings of some rows go into columns, whatever their values are.

    Metrics of one sample share their times, so that one filling serves them all. ``columns`` is
    the number of columns. ``highest`` has a column and the rows whose highest goes there, from
    the first to the one after the last; ``between`` a column, the row after it and how far that
    column is on the way there from the row before. The columns from ``held`` to before ``until``
    get the newest value, and those in ``empty`` none. ``last`` is the column of the newest
    reading, which may lie outside, and ``resume`` the time of the newest reading left of it.
    """

    columns: int
    highest: tuple[tuple[int, int, int], ...]
    between: tuple[tuple[int, int, float], ...]
    held: int
    until: int
    empty: tuple[int, ...]
    last: int
    resume: float | None

    def of(self, series: Series) -> tuple[float | None, ...]:
        """Put the values of the rows into their columns."""
        columns: list[float | None] = [None] * self.columns
        values = series.highs
        for column, begin, end in self.highest:
            value, known = max(values[begin:end]), columns[column]
            columns[column] = value if known is None or known < value else known
        for column, row, share in self.between:
            before = values[row - 1]
            columns[column] = before + share * (values[row] - before)
        for column in range(self.held, self.until):
            columns[column] = series.values[-1]
        for column in self.empty:
            columns[column] = None
        return tuple(columns)


def filling(
    times: Sequence[float],
    starts: Sequence[float],
    grid: Grid,
    *,
    reach: float,
    until: float,
    holes: Sequence[Hole] = (),
) -> Filling:
    """Say how rows with some times, oldest first, go into columns; see :func:`fill`."""
    highest: list[tuple[int, int, int]] = []
    between: list[tuple[int, int, float]] = []
    count = len(times)
    begin = column = held = last = 0
    resume = None
    while begin < count:
        column = grid.column(times[begin])
        end = _end_of_column(times, begin, column, grid)
        if 0 <= column < grid.count:
            highest.append((column, begin, end))
        if starts[begin] < times[begin]:
            # Of the rows that end in a column only the first can begin to the left of it. Its
            # value goes into the columns from its start on.
            left = range(max(0, grid.column(starts[begin])), min(column, grid.count))
            highest += [(number, begin, begin + 1) for number in left]
        if end < count:
            between += _between(times[end - 1], starts[end], end, grid, reach, holes)
            resume = times[end - 1]
        begin = end
    if count and until - times[-1] <= reach:
        held, last = max(0, column + 1), min(grid.count, grid.column(until) + 1)
    return Filling(
        grid.count, tuple(highest), tuple(between), held, last, tuple(_empty(grid, holes)),
        column, resume,
    )


def fill(
    points: Series | Iterable[tuple[float, float]],
    grid: Grid,
    *,
    reach: float,
    until: float,
    holes: Sequence[Hole] = (),
) -> tuple[float | None, ...]:
    """Put readings, oldest first, into columns, the highest of a column winning.

    Readings that the recording has merged fill all columns from their first to their last with
    the highest of them. A column between two readings no further apart than ``reach`` seconds
    gets the value on the line between them; one after the newest reading keeps its value as far
    as ``until`` (the present), if that is within reach. All others, and those with their middle
    in one of ``holes``, are ``None``.
    """
    series = finite(points)
    how = filling(series.times, series.starts, grid, reach=reach, until=until, holes=holes)
    return how.of(series)


def finite(points: Series | Iterable[tuple[float, float]]) -> Series:
    """Return the points whose value is a number."""
    if isinstance(points, Series):
        return points.finite()
    pairs = list(points)
    return Series("", "", [time for time, _ in pairs], [value for _, value in pairs]).finite()


def _end_of_column(times: Sequence[float], begin: int, column: int, grid: Grid) -> int:
    """Return the index after the last of the readings that share a column with ``begin``."""
    edge = (grid.first + column + 1) * grid.width
    end = bisect_right(times, edge, begin + 1)
    # The edge is rounded; the number of a reading's column is what counts.
    while end > begin + 1 and grid.column(times[end - 1]) != column:
        end -= 1
    while end < len(times) and grid.column(times[end]) == column:
        end += 1
    return end


def _between(
    time0: float, time1: float, row: int, grid: Grid, reach: float, holes: Sequence[Hole]
) -> Iterator[tuple[int, int, float]]:
    """Yield the columns between a row and the one before it, if they can be joined."""
    length = time1 - time0
    if length < grid.width or length > reach:
        return
    if any(start < time1 and end > time0 for start, end in holes):
        return
    first = max(0, grid.column(time0) + 1)
    for column in range(first, min(grid.count, grid.column(time1))):
        yield column, row, (grid.middle(column) - time0) / length


def _empty(grid: Grid, holes: Sequence[Hole]) -> Iterator[int]:
    """Yield the columns that have their middle in a hole."""
    for start, end in holes:
        first = max(0, grid.column(start))
        last = min(grid.count - 1, grid.column(min(end, grid.end)))
        for column in range(first, last + 1):
            if start < grid.middle(column) < end:
                yield column
