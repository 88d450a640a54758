"""Where a GPU's allocator ran out of memory, or had to empty its cache and try again."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal
from weakref import WeakKeyDictionary

from ..recording import Recording

__all__ = ["OOM", "RETRY", "Event", "Kind", "events_of", "name_of"]

Kind = Literal["OOM", "retry"]
OOM: Kind = "OOM"
RETRY: Kind = "retry"

_COUNTERS: Mapping[Kind, str] = MappingProxyType(
    {OOM: "torch_ooms_count", RETRY: "torch_alloc_retries_count"}
)


@dataclass(frozen=True, slots=True)
class Event:
    """A counter of a device that had grown by ``count`` at ``time`` (epoch seconds)."""

    time: float
    device: str
    kind: Kind
    count: int


@dataclass(frozen=True, slots=True)
class _Trail:
    """All events of one counter up to its newest reading.

    ``until`` is the time of that reading and ``there`` how many of this time were seen.
    """

    events: tuple[Event, ...] = ()
    times: tuple[float, ...] = ()
    last: float | None = None
    until: float = -math.inf
    there: int = 0


_TRAILS: WeakKeyDictionary[Recording, dict[tuple[str, Kind], _Trail]] = WeakKeyDictionary()
"""How far each recording has been looked through: a counter hardly ever changes, and its
readings are many, so that each of them is looked at once."""


def _follow(recording: Recording, device: str, kind: Kind, trail: _Trail) -> _Trail:
    """Look at the readings that came since; a counter that fell was begun anew."""
    series = recording.series(_COUNTERS[kind], device, trail.until, math.inf)
    # Merged readings can begin before the time that was asked for.
    seen = bisect_left(series.times, trail.until)
    if seen < len(series) and series.times[seen] == trail.until:
        seen += trail.there
    if seen >= len(series):
        return trail
    last, found = trail.last, list(trail.events)
    times, values = series.times[seen:], series.values[seen:]
    if last is None:
        last = values[0]
    # A counter hardly ever changes, which is seen much faster than each step of it.
    if not min(values) == max(values) == last:
        for time, value in zip(times, values, strict=True):
            if value > last:
                found.append(Event(time, device, kind, round(value - last)))
            last = value
    until = times[-1]
    there = len(series) - bisect_left(series.times, until)
    return _Trail(tuple(found), tuple(e.time for e in found), values[-1], until, there)


def events_of(
    recording: Recording, device: str, start: float, end: float
) -> tuple[Event, ...]:
    """List the events of a device in ``[start, end]`` (epoch seconds), oldest first.

    They come from torch's counters of failed and of repeated allocations: what a counter grew
    by between two readings counts at the later one's time.
    """
    trails = _TRAILS.setdefault(recording, {})
    found: list[Event] = []
    for kind in _COUNTERS:
        # Two threads can look at once; both come to the same, and either may stay.
        trail = _follow(recording, device, kind, trails.get((device, kind), _Trail()))
        trails[device, kind] = trail
        found += trail.events[bisect_left(trail.times, start) : bisect_right(trail.times, end)]
    return tuple(sorted(found, key=lambda event: event.time))


def name_of(kind: str, count: int) -> str:
    """Name a number of events of a kind: ``OOM``, ``2 OOMs``, ``retry``, ``3 retries``."""
    if count == 1:
        return kind
    return f"{count} OOMs" if kind == OOM else f"{count} retries"
