"""Readings into columns.

A column is a bin of time that ends at an absolute multiple of its width. As the window
moves, the columns move with it and none changes what it holds: nothing shimmers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Grid", "fill", "merge"]

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


def merge(holes: Iterable[Hole]) -> tuple[Hole, ...]:
    """Join stretches that touch, oldest first."""
    merged: list[Hole] = []
    for start, end in sorted(holes):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def fill(
    points: Iterable[tuple[float, float]],
    grid: Grid,
    *,
    reach: float,
    until: float,
    holes: Sequence[Hole] = (),
) -> tuple[float | None, ...]:
    """Put readings into columns, the highest of a column winning.

    A column between two readings no further apart than ``reach`` seconds gets the value on
    the line between them; one after the newest reading keeps its value as far as ``until``
    (the present), if that is within reach. All others, and those with their middle in one of
    ``holes``, are ``None``.
    """
    kept = [(time, value) for time, value in points if math.isfinite(value)]
    columns: list[float | None] = [None] * grid.count
    first, count, width = grid.first, grid.count, grid.width
    for time, value in kept:
        column = int(-(-time // width)) - 1 - first
        if 0 <= column < count:
            known = columns[column]
            if known is None or value > known:
                columns[column] = value
    if kept:
        _join(kept, grid, columns, reach, holes)
        _hold(kept[-1], grid, columns, reach, until)
    for start, end in holes:
        first = max(0, grid.column(start))
        for column in range(first, min(grid.count, grid.column(min(end, grid.end)) + 1)):
            if start < grid.middle(column) < end:
                columns[column] = None
    return tuple(columns)


def _join(
    kept: list[tuple[float, float]],
    grid: Grid,
    columns: list[float | None],
    reach: float,
    holes: Sequence[Hole],
) -> None:
    for (time0, value0), (time1, value1) in pairwise(kept):
        # Most neighbours share a column or lie in adjacent ones.
        if time1 - time0 < grid.width or time1 - time0 > reach:
            continue
        if any(start < time1 and end > time0 for start, end in holes):
            continue
        first = max(0, grid.column(time0) + 1)
        for column in range(first, min(grid.count, grid.column(time1))):
            share = (grid.middle(column) - time0) / (time1 - time0)
            columns[column] = value0 + share * (value1 - value0)


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
