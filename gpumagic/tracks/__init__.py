"""The track of one source and device: its readings, the newest as they came, older ones merged.

A track has levels. Level 0 holds readings; a row of each further level stands for up to four
rows of the level before. Rows lie in blocks, and thinning takes one block at a time, so that
what it costs is small, whatever a recording holds.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import itemgetter
from typing import TypeAlias

from ..metrics import METRICS
from ..sample import Sample
from .blocks import BLOCK_ROWS, Block, MergedSample, layout_of, merge_rows
from .breaks import Breaks
from .tallies import BITS, Tally

__all__ = ["BITS", "REACH_PERIODS", "Breaks", "Edge", "Merged", "MergedSample", "Tally", "Track"]

REACH_PERIODS = 2.5
"""Periods after a reading over which its value is carried on, or joined to the next one."""

_CUT_SHARE = 8
"""Of a block's rows, at most one in so many begins a row for the sake of a break or an edge."""
_LATEST_ROWS = 64
_MOST_PERIODS = 1024
_NAN = math.nan

Edge: TypeAlias = tuple[float, float]
"""A time beside which readings are kept as they came, and how many seconds rest on it."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What the rows of a series stand for, where some of them are merged readings.

    A row speaks of the readings from its ``starts`` (epoch seconds) to its time, ``counts`` of
    them, the highest of which is in ``highs``. ``tallies`` are there for readings of bits alone;
    a row whose readings are all its value has an empty one.
    """

    starts: Sequence[float]
    counts: Sequence[int]
    highs: Sequence[float]
    tallies: Sequence[Tally] = ()


class Track:
    """The readings of one source and device, in levels.

    ``end`` is the newest reading's time. Nothing goes for its age: :meth:`thin` merges the oldest
    block of a level into the next one. A merged row has the time of its last reading. A gauge
    keeps the mean of its readings and the highest; a counter and a state keep their last, and
    the bits of clock event reasons as their peak all that were set, and how many readings there
    were of each value. The mean is not weighted by
    time: readings of a row lie at most two and a half periods apart, and all readings count
    alike in the figures of a cell too. Absent values count in none; a metric absent in all
    readings of a row is absent there.
    """

    def __init__(self) -> None:
        self.end = -math.inf
        # Periods change and sampling pauses: how far a reading reaches is known only while
        # the period that it was taken at is in force.
        self.reach = math.inf
        self.longest_period: float | None = None
        # Since when each period was in force, oldest first; a file says it again.
        self.periods: list[tuple[float, float]] = []
        self.breaks = Breaks()
        # A sample can hold a part of the metrics only (what the driver's rings kept of a stall):
        # it joins nothing for the others. Of those, when they were last there and how far that
        # reaches.
        self.lacking: dict[str, tuple[float, float]] = {}
        self.breaks_of: dict[str, Breaks] = {}
        self._layout = layout_of(())
        self._levels: list[list[Block]] = [[]]
        self._sizes = [0]

    # -- writing ------------------------------------------------------------------------

    def append(self, sample: Sample, period: float | None) -> int:
        """Add a reading; return by how many bytes the track has grown."""
        # A stamp can be a hair older than the last one (another thread's reading); the order
        # of times is what bisection rests on.
        time = max(sample.time, self.end)
        row = self._row(time, time, sample.values, period)
        layout, blocks = self._layout, self._levels[0]
        block = blocks[-1] if blocks else None
        if block is None or block.layout is not layout or len(block.times) >= BLOCK_ROWS:
            if block is not None:
                block.seal()
            block = Block(layout)
            blocks.append(block)
        block.times.append(time)
        block.values.fromlist(row)
        grown = 8 + 8 * len(row)
        self._sizes[0] += grown
        return grown

    def append_merged(self, sample: MergedSample, period: float | None) -> int:
        """Add merged readings, as they come from a file; return the bytes that this takes."""
        if self._levels[0]:
            return self.append(sample, period)  # levels go from the oldest to the newest
        start, time = max(sample.start, self.end), max(sample.time, self.end)
        row = self._row(start, time, sample.values, period)
        block = Block(self._layout, merged=True)
        block.add_merged(start, time, sample.count, row, sample.highs, sample.tally)
        self._put(1, block)
        return block.size

    def _row(
        self, start: float, time: float, values: Mapping[str, float], period: float | None
    ) -> list[float]:
        """Lay out the values of what was read, and note how it joins what came before."""
        if start - self.end > self.reach:
            self.breaks.add(self.end, start)
        layout = self._layout
        try:
            row, lacks = list(layout.pick(values)), False
        except KeyError:
            row, lacks = [values.get(name, _NAN) for name in layout.place], True
        if lacks or self.lacking:
            self._note_lacking(start, values)
        if lacks or len(values) > len(row):
            more = [name for name in values if name not in layout.place]
            if more:
                self._layout = layout_of((*layout.place, *more))
                row += [values[name] for name in more]
        self.reach = math.inf if period is None else REACH_PERIODS * period
        if period is not None and (not self.periods or self.periods[-1][1] != period):
            self._note_period(time, period)
        self.end = time
        return row

    def _note_period(self, time: float, period: float) -> None:
        """Note a period that is in force from a reading on; of too many the oldest goes."""
        self.longest_period = max(period, self.longest_period or 0.0)
        self.periods.append((time, period))
        if len(self.periods) > _MOST_PERIODS:
            del self.periods[0]

    def _note_lacking(self, time: float, values: Mapping[str, float]) -> None:
        """Note the break of each metric that samples in between have lacked for too long."""
        for name in self._layout.place:
            if name not in values:
                if self.end > -math.inf:
                    self.lacking.setdefault(name, (self.end, self.reach))
            elif name in self.lacking:
                before, reach = self.lacking.pop(name)
                if time - before > reach:
                    self.breaks_of.setdefault(name, Breaks()).add(before, time)

    @property
    def thickest(self) -> tuple[int, int]:
        """The bytes of the largest level that can be thinned, and its number; 0 without one."""
        return max(
            ((size, level) for level, size in enumerate(self._sizes)
             if len(self._levels[level]) > 1),
            default=(0, 0),
        )

    def thin(self, level: int, edges: Sequence[Edge]) -> int:
        """Merge the oldest block of a level into the next; return by how much the track grew.

        Rows are merged neither across a break nor with the readings next to one of the edges,
        which are in the order of time. Where these come too thick, those on which the most
        seconds rest are kept to.
        """
        block = self._levels[level].pop(0)
        merged = merge_rows(block, self._cuts(block, edges))
        self._put(level + 1, merged)
        self._sizes[level] -= block.size
        return merged.size - block.size

    def _put(self, level: int, merged: Block) -> None:
        """Add the newest rows of a level."""
        if level == len(self._levels):
            self._levels.append([])
            self._sizes.append(0)
        self._sizes[level] += merged.size
        blocks = self._levels[level]
        last = blocks[-1] if blocks else None
        if last is not None and last.takes(merged):
            last.extend(merged)
        else:
            if last is not None:
                last.seal()
            blocks.append(merged)

    def _cuts(self, block: Block, edges: Sequence[Edge]) -> list[int]:
        """List the rows of a block at which a merged row has to begin."""
        times = block.times
        starts = times if block.starts is None else block.starts
        # No row is to hold both a reading that speaks of what was before an edge and one that
        # does not.
        reaches = {METRICS[name].reach_s for name in self.metrics if name in METRICS} - {0.0}
        margin = max(REACH_PERIODS * (self.longest_period or 0.4), *reaches, 0.0)
        wanted: list[tuple[float, tuple[int, ...]]] = []
        lesser: list[tuple[float, tuple[int, ...]]] = []
        for before, after in self.breaks.touching(starts[0], times[-1]):
            wanted.append((after - before, (bisect_left(starts, after),)))
        for own in self.breaks_of.values():
            for before, after in own.touching(starts[0], times[-1]):
                cut = (bisect_right(times, before), bisect_left(starts, after))
                wanted.append((after - before, cut))
        for before, reach in self.lacking.values():
            # How long that will be is not known yet.
            if starts[0] <= before <= times[-1] and self.end - before > reach:
                wanted.append((self.end - before, (bisect_right(times, before),)))
        begin = bisect_left(edges, (starts[0] - margin, 0.0))
        for time, weight in edges[begin:bisect_right(edges, (times[-1] + margin, math.inf))]:
            index = bisect_right(times, time)
            if index == len(times) or starts[index] >= time:
                wanted.append((weight, (index - 1, index, index + 1)))
            lesser.append((weight, tuple(bisect_left(starts, time + far) for far in reaches)))
        wanted.sort(key=itemgetter(0), reverse=True)
        lesser.sort(key=itemgetter(0), reverse=True)
        cuts: set[int] = set()
        for _, indices in wanted + lesser:
            cuts.update(index for index in indices if 0 < index < len(times))
            if len(cuts) >= max(3, len(times) // _CUT_SHARE):
                break
        return sorted(cuts)

    # -- reading ------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(len(block) for blocks in self._levels for block in blocks)

    @property
    def size(self) -> int:
        """The bytes of all rows."""
        return sum(self._sizes)

    @property
    def start(self) -> float:
        """The time of the oldest reading, whatever it has been merged into."""
        return next(self._touching(-math.inf, math.inf)).start

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of which there has been a value."""
        return tuple(self._layout.place)

    def __contains__(self, metric: str) -> bool:
        return metric in self._layout.place

    def _touching(self, start: float, end: float) -> Iterator[Block]:
        """Yield the blocks that touch a stretch, oldest first."""
        newest = self._levels[0][-1:]
        if newest and newest[0].start < start:
            # What live views ask for most often.
            yield newest[0]
            return
        for blocks in reversed(self._levels):
            if not blocks or blocks[-1].end < start:
                continue
            for block in blocks[bisect_left(blocks, start, key=lambda block: block.end):]:
                if block.start > end:
                    return
                yield block

    def times(self, start: float, end: float) -> list[float]:
        """List the times of the rows that touch a stretch."""
        found = array("d")
        for block in self._touching(start, end):
            found.extend(block.times[slice(*block.rows(start, end))])
        return found.tolist()

    def read(
        self, metric: str, start: float, end: float
    ) -> tuple[Sequence[float], Sequence[float], Merged | None]:
        """Return the times and values of a metric in the rows that touch a stretch.

        With them comes what these rows stand for, where any of them is merged.
        """
        times: list[float] = []
        values: list[float] = []
        starts: list[float] = []
        highs: list[float] = []
        counts: list[int] = []
        tallies: list[Tally] = []
        for block in self._touching(start, end):
            if metric not in block.layout.place:
                continue
            low, high = block.rows(start, end)
            stamps = block.times[low:high].tolist()
            numbers = block.column(metric, low, high).tolist()
            if block.starts is not None:
                starts += block.starts[low:high].tolist()
                counts += block.counts[low:high].tolist()
                highs += block.high_column(metric, low, high).tolist()
                if metric == BITS:
                    tallies += [block.tallies[index] for index in range(low, high)]
            elif starts:
                starts += stamps
                counts += [1] * len(stamps)
                highs += numbers
                if metric == BITS:
                    tallies += [()] * len(stamps)
            times += stamps
            values += numbers
        # Few metrics are ever absent, and one NaN makes the whole sum NaN.
        if math.isnan(sum(values)):
            there = [value == value for value in values]
            times, values = list(compress(times, there)), list(compress(values, there))
            if starts:
                starts, highs = list(compress(starts, there)), list(compress(highs, there))
                counts, tallies = list(compress(counts, there)), list(compress(tallies, there))
        return times, values, Merged(starts, counts, highs, tallies) if starts else None

    def latest(self, metric: str) -> tuple[float, float] | None:
        """Return the newest value and its time, unless the last 64 rows lack it."""
        left = _LATEST_ROWS
        for blocks in self._levels:
            for block in reversed(blocks):
                low = max(0, len(block) - left)
                left -= len(block) - low
                if metric in block.layout.place:
                    column = block.column(metric, low)
                    for index in range(len(column) - 1, -1, -1):
                        if column[index] == column[index]:
                            return block.times[low + index], column[index]
                if left <= 0:
                    return None
        return None

    def samples(self, device: str, source: str, start: float, end: float) -> Iterator[Sample]:
        """Yield the rows that touch a stretch, oldest first."""
        for block in self._touching(start, end):
            yield from block.samples(device, source, *block.rows(start, end))
