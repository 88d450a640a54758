"""Readings into columns.

A column is a bin of time that ends at an absolute multiple of its width. As the window
moves, the columns move with it and none changes what it holds: nothing shimmers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..recording import Series

__all__ = ["Grid", "fill", "finite"]

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
        return min(1.0, max(0.0, (time - self.start) / (self.end - self.start)))


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
    times, starts, values = series.times, series.starts, series.highs
    columns: list[float | None] = [None] * grid.count
    begin, count = 0, len(times)
    while begin < count:
        column = grid.column(times[begin])
        end = _end_of_column(times, begin, column, grid)
        if 0 <= column < grid.count:
            highest, before = max(values[begin:end]), columns[column]
            columns[column] = highest if before is None else max(before, highest)
        if starts[begin] < times[begin]:
            # Of the rows that end in a column only the first can begin to the left of it.
            _spread(starts[begin], column, values[begin], grid, columns)
        if end < count:
            _join(times, starts, values, end, grid, columns, reach, holes)
        begin = end
    if times:
        _hold((times[-1], series.values[-1]), grid, columns, reach, until)
    for start, end_of_hole in holes:
        first = max(0, grid.column(start))
        last = min(grid.count - 1, grid.column(min(end_of_hole, grid.end)))
        for number in range(first, last + 1):
            if start < grid.middle(number) < end_of_hole:
                columns[number] = None
    return tuple(columns)


def finite(points: Series | Iterable[tuple[float, float]]) -> Series:
    """Return the points whose value is a number."""
    if isinstance(points, Series):
        return points.finite()
    pairs = list(points)
    return Series("", "", [time for time, _ in pairs], [value for _, value in pairs]).finite()


def _spread(
    start: float, last: int, value: float, grid: Grid, columns: list[float | None]
) -> None:
    """Give a merged row's value to the columns from its start to the one before its last."""
    for column in range(max(0, grid.column(start)), min(last, grid.count)):
        known = columns[column]
        columns[column] = value if known is None else max(known, value)


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


def _join(
    times: Sequence[float],
    starts: Sequence[float],
    values: Sequence[float],
    index: int,
    grid: Grid,
    columns: list[float | None],
    reach: float,
    holes: Sequence[Hole],
) -> None:
    """Fill the columns between a reading and the one before it."""
    time0, time1 = times[index - 1], starts[index]
    if time1 - time0 < grid.width or time1 - time0 > reach:
        return
    if any(start < time1 and end > time0 for start, end in holes):
        return
    first = max(0, grid.column(time0) + 1)
    for column in range(first, min(grid.count, grid.column(time1))):
        share = (grid.middle(column) - time0) / (time1 - time0)
        columns[column] = values[index - 1] + share * (values[index] - values[index - 1])


def _hold(
    newest: tuple[float, float],
    grid: Grid,
    columns: list[float | None],
    reach: float,
    until: float,
) -> None:
    time, value = newest
    if until - time <= reach:
        for column in range(max(0, grid.column(time) + 1), grid.column(until) + 1):
            if column < grid.count:
                columns[column] = value
