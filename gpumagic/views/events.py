"""Where a GPU's allocator ran out of memory, or had to empty its cache and try again."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal
from weakref import WeakKeyDictionary

from ..recording import Recording
from .bins import Grid

__all__ = ["OOM", "RETRY", "Event", "Kind", "events_of", "name_of"]

Kind = Literal["OOM", "retry"]
OOM: Kind = "OOM"
RETRY: Kind = "retry"

_COUNTERS: Mapping[Kind, str] = MappingProxyType(
    {OOM: "torch_ooms_count", RETRY: "torch_alloc_retries_count"}
)


_MOST = 1 << 16
"""Events of a counter that are kept as they were found, before the recording's merged ones do."""


@dataclass(frozen=True, slots=True)
class Event:
    """A counter of a device that grew by ``count`` from ``time`` to ``last`` (epoch seconds).

    Both are times at which it was read and had grown, in one column.
    """

    time: float
    device: str
    kind: Kind
    count: int
    last: float


@dataclass(frozen=True, slots=True)
class _Trail:
    """When one counter had grown, up to its newest reading.

    ``totals`` are sums of what it grew by, up to and with each of ``times``. ``first`` and
    ``newest`` are its oldest and newest value, ``until`` is the time of the newest reading and
    ``there`` how many of this time were seen. With many times, more than ``most``, the readings
    are looked through anew.
    """

    times: array[float] = field(default_factory=lambda: array("d"))
    totals: array[int] = field(default_factory=lambda: array("q"))
    first: float | None = None
    newest: float | None = None
    until: float = -math.inf
    there: int = 0
    most: int = 0


_TRAILS: WeakKeyDictionary[Recording, dict[tuple[str, Kind], _Trail]] = WeakKeyDictionary()
"""How far each recording has been looked through: a counter hardly ever changes, and its
readings are many, so that each of them is looked at once."""


def _follow(recording: Recording, device: str, kind: Kind, trail: _Trail) -> _Trail:
    """Look at the readings that came since."""
    found = _since(recording, device, kind, trail)
    if len(found.times) <= max(_MOST, found.most):
        return found
    # What the recording has merged meanwhile is less, and bounded.
    found = _since(recording, device, kind, _Trail(first=found.first, newest=found.first))
    return replace(found, most=2 * len(found.times))


def _since(recording: Recording, device: str, kind: Kind, trail: _Trail) -> _Trail:
    """Add the readings that came since; a counter that fell was begun anew."""
    series = recording.series(_COUNTERS[kind], device, trail.until, math.inf)
    # Merged readings can begin before the time that was asked for.
    seen = bisect_left(series.times, trail.until)
    if seen < len(series) and series.times[seen] == trail.until:
        seen += trail.there
    if seen >= len(series):
        return trail
    times, values = series.times[seen:], series.values[seen:]
    first = values[0] if trail.first is None else trail.first
    last = first if trail.newest is None else trail.newest
    grown, totals = trail.times, trail.totals
    # A counter hardly ever changes, which is seen much faster than each step of it.
    if not min(values) == max(values) == last:
        more, sums = array("d"), array("q")
        total = totals[-1] if totals else 0
        for time, value in zip(times, values, strict=True):
            if value > last:
                total += round(value - last)
                more.append(time)
                sums.append(total)
            last = value
        # Others may be reading the old ones.
        grown, totals = grown + more, totals + sums
    until = times[-1]
    there = len(series) - bisect_left(series.times, until)
    return replace(
        trail, times=grown, totals=totals, first=first, newest=values[-1], until=until,
        there=there,
    )


def _in_columns(
    trail: _Trail, device: str, kind: Kind, grid: Grid, until: float
) -> Iterator[Event]:
    """Yield one event for each column in which a counter had grown.

    What that takes grows with the columns, and hardly with the events.
    """
    times, totals = trail.times, trail.totals
    begin, end = bisect_left(times, 0, key=grid.column), bisect_right(times, until)
    while begin < end:
        column = grid.column(times[begin])
        after = bisect_right(times, column, begin, end, key=grid.column)
        count = totals[after - 1] - (totals[begin - 1] if begin else 0)
        yield Event(times[begin], device, kind, count, times[after - 1])
        begin = after


def events_of(
    recording: Recording, device: str, grid: Grid, until: float
) -> tuple[Event, ...]:
    """List the events of a device in the columns of a grid, oldest first, one a column and kind.

    They come from torch's counters of failed and of repeated allocations: what a counter grew
    by between two readings counts at the later one's time. None is later than ``until`` (epoch
    seconds).
    """
    trails = _TRAILS.setdefault(recording, {})
    found: list[Event] = []
    for kind in _COUNTERS:
        # Two threads can look at once; both come to the same, and either may stay.
        trail = _follow(recording, device, kind, trails.get((device, kind), _Trail()))
        trails[device, kind] = trail
        found += _in_columns(trail, device, kind, grid, until)
    return tuple(sorted(found, key=lambda event: event.time))


def name_of(kind: str, count: int) -> str:
    """Name a number of events of a kind: ``OOM``, ``2 OOMs``, ``retry``, ``3 retries``."""
    if count == 1:
        return kind
    return f"{count} OOMs" if kind == OOM else f"{count} retries"
