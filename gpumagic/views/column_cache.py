"""What a live view keeps from one scene to the next: the columns that nothing can change.

A column is finished once a reading lies to the right of it. The next scene then needs the
newest readings only, so that an hour costs as little as a minute. What the recording merges
meanwhile changes nothing in a finished column: it was made of the readings themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ..recording import Series
from .bins import Grid, Hole, fill

__all__ = ["ColumnCache", "Columns"]

Columns = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Finished:
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


class ColumnCache:
    """The finished columns of one view of one recording; it belongs to one thread at a time."""

    def __init__(self) -> None:
        self._finished: dict[Hashable, _Finished] = {}

    def columns(
        self,
        key: Hashable,
        points: Callable[[float], Series],
        grid: Grid,
        *,
        reach: float,
        until: float,
        holes: Sequence[Hole] = (),
    ) -> tuple[Columns, tuple[float, float] | None]:
        """Return a layer's columns as :func:`fill` makes them, and its newest reading.

        ``points`` gives the readings from a time on up to ``until``, all of them numbers. The
        layer is known by ``key``.
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
        rest = Grid(grid.first + len(kept), grid.count - len(kept), grid.width)
        columns = kept + fill(found, rest, reach=reach, until=until, holes=holes)
        if not found:
            return columns, None
        # The column of the newest reading can still get a higher one.
        finished = min(grid.count, grid.column(found.times[-1]))
        resume = next((t for t in reversed(found.times) if grid.column(t) < finished), None)
        if finished > 0 and resume is not None:
            self._finished[key] = _Finished(
                grid.first, columns[:finished], resume, until, grid.width, reach
            )
        return columns, (found.times[-1], found.values[-1])
