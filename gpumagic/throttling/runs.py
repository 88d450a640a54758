"""Readings of clock event reasons as runs of readings that show the same."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import sub

from ..coverage import reach_of
from ..metrics import THROTTLE_REASONS
from ..recording import REACH_PERIODS, Recording, Series
from ..tracks import Tally
from .bits import BITS

__all__ = ["Run", "Runs"]

_MOST = 4096
"""Runs that are kept from one look to the next: reasons change seldom, or else with each reading,
and then the recording is the smaller one of the two."""

_TOLD = sum(THROTTLE_REASONS)
_NEVER = -math.inf


@dataclass(slots=True)
class Run:
    """Readings in a row that show the same bits, none too far from the next.

    ``start`` and ``last`` are the times of its first and its last reading, ``until`` how long
    that one holds: until the next reading, or for one period where that is too far away.
    ``row`` has the ends of the merged row of which it is a part: when it was in this time is not
    known. All times are epoch seconds.
    """

    start: float
    last: float
    until: float
    bits: int
    row: tuple[float, float] | None = None


class Runs:
    """The runs of one device of one recording, as far as they have been looked at.

    Who looks again, a little later, gets the same as who looks for the first time, but for
    readings that have been merged since: those stay as they were.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._forget()

    def _forget(self) -> None:
        self._runs.clear()
        self._begun = self._ended = self._newest = _NEVER
        self._there = 0

    def look(self, recording: Recording, device: str, start: float, end: float) -> list[Run]:
        """Return the runs between two times, and the one before if it can reach over ``start``."""
        longest = recording.longest_period(BITS.source, device) or 0.0
        reach = max(REACH_PERIODS * longest, reach_of(recording, BITS.source))
        first = start - reach
        if not (self._runs and self._begun <= first <= self._newest and self._ended <= end):
            self._forget()
        bits = recording.series(BITS.name, device, max(first, self._newest), end)
        if bits.merged is not None and self._runs:
            self._forget()
            bits = recording.series(BITS.name, device, first, end)
        breaks = recording.breaks(
            BITS.source, device, max(first, self._newest), end, metric=BITS.name
        )
        self._add(bits, {before for before, _ in breaks}, reach, recording)
        self._begun, self._ended = first, end
        found = self._runs = [run for run in self._runs if run.last >= first]
        if found:
            newest = found[-1]
            reaches = end - newest.last <= reach and all(a != newest.last for a, _ in breaks)
            newest.until = end if reaches else newest.last + self._period(recording)
        if len(found) > _MOST:
            self._runs = []
            self._forget()
        return found

    def _period(self, recording: Recording) -> float:
        return recording.periods.get(BITS.source, 0.1)

    def _add(
        self, bits: Series, alone: set[float], reach: float, recording: Recording
    ) -> None:
        """Add readings to the runs; those in ``alone`` reach no other."""
        runs = self._runs
        for start, last, shown, row in _rows(bits, self._seen(bits), alone, reach):
            newest = runs[-1] if runs else None
            if newest is not None:
                # Of two readings with one stamp only the second one can be alone.
                joined = start - newest.last <= reach and (
                    newest.last not in alone or start == newest.last
                )
                newest.until = start if joined else newest.last + self._period(recording)
                if joined and shown == newest.bits and row == newest.row:
                    newest.last = last
                    continue
            runs.append(Run(start, last, last, shown, row))
        if len(bits):
            self._newest = bits.times[-1]
            self._there = len(bits) - bisect_left(bits.times, self._newest)

    def _seen(self, bits: Series) -> int:
        """Return how many of some readings have been added before."""
        seen = bisect_left(bits.times, self._newest)
        if seen < len(bits) and bits.times[seen] == self._newest:
            seen += self._there
        return seen


_Row = tuple[float, float, int, tuple[float, float] | None]


def _rows(
    bits: Series, first: int, alone: set[float], reach: float
) -> Iterator[_Row]:
    """Yield the first and the last time and the bits of readings alike, from a row on."""
    if bits.merged is None:
        for value, same in groupby(bits.values[first:]):
            begin, first = first, first + len(list(same))
            times = bits.times[begin:first]
            # Readings that lie as they should are looked at together.
            apart = max(map(sub, times[1:], times), default=0.0) > reach
            if apart or (alone and not alone.isdisjoint(times[:-1])):
                ends = list(zip(times, times, strict=True))
            else:
                ends = [(times[0], times[-1])]
            for start, last in ends:
                yield start, last, int(value) & _TOLD, None
        return
    tallies = bits.merged.tallies or [()] * len(bits)
    rows = zip(bits.starts, bits.times, bits.values, tallies, strict=True)
    for start, last, value, tally in rows:
        if len(tally) > 1:
            yield from _parts(start, last, int(value) & _TOLD, tally)
        else:
            yield start, last, int(value) & _TOLD, None


def _parts(start: float, last: float, newest: int, tally: Tally) -> Iterator[_Row]:
    """Yield the parts of a merged row: each value for its share of the time, the newest last."""
    step = (last - start) / (sum(count for _, count in tally) - 1)
    before = 0
    for bits, count in sorted(tally, key=lambda pair: pair[0] == newest):
        begin = start + before * step
        before += count
        yield begin, last if bits == newest else start + (before - 1) * step, bits, (start, last)
