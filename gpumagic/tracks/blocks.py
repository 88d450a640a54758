"""Rows of a track in flat arrays, and how four of them are merged into one."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Literal, TypeAlias

from ..metrics import METRICS
from ..sample import Sample
from .tallies import BITS, Tallies, Tally, tallied

__all__ = ["BLOCK_ROWS", "Block", "Layout", "MergedSample", "layout_of", "merge_rows"]

BLOCK_ROWS = 256
"""Rows of a full block."""

_MERGED_ROWS = 4
_NAN = math.nan

How: TypeAlias = Literal["mean", "last", "bits"]


@dataclass(frozen=True, slots=True)
class MergedSample(Sample):
    """Readings merged into one: ``count`` of them from ``start`` to ``time``.

    ``values`` are means of gauges and the last ones of counters and states; ``highs`` has the
    highest of gauges and, of clock event reasons, all bits that were set. ``tally`` counts the
    readings of these. One reading among merged ones is a row too, with a count of 1.
    """

    start: float
    count: int
    highs: Mapping[str, float]
    tally: Tally = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the metrics of a block's rows lie; ``high`` numbers those that have a peak."""

    place: Mapping[str, int]
    high: Mapping[str, int]
    how: tuple[How, ...]
    pick: Callable[[Mapping[str, float]], tuple[float, ...]]

    @property
    def width(self) -> int:
        return len(self.place)


def _how(name: str) -> How:
    """Say how a metric is merged: a state and a counter are what they were last."""
    row = METRICS.get(name)
    if name == BITS:
        return "bits"
    if row is not None and (row.kind == "counter" or row.unit == "state"):
        return "last"
    return "mean"


@lru_cache(maxsize=256)
def layout_of(names: tuple[str, ...]) -> Layout:
    how = tuple(_how(name) for name in names)
    peaked = [name for name, way in zip(names, how, strict=True) if way != "last"]
    pick = itemgetter(*names) if len(names) > 1 else lambda values: tuple(
        values[name] for name in names
    )
    return Layout(
        {name: index for index, name in enumerate(names)},
        {name: index for index, name in enumerate(peaked)},
        how, pick,
    )


class Block:
    """Rows of one level, row after row in flat arrays; NaN stands for an absent value.

    ``starts`` are ``None`` in a block of readings, which have neither counts nor highs.
    ``tallies`` are there where the rows have readings of bits.
    """

    __slots__ = ("counts", "highs", "layout", "starts", "tallies", "times", "values")

    def __init__(self, layout: Layout, *, merged: bool = False) -> None:
        self.layout = layout
        self.times = array("d")
        self.values = array("d")
        self.starts = array("d") if merged else None
        self.counts = array("I")
        self.highs = array("d")
        self.tallies = Tallies()

    def __len__(self) -> int:
        return len(self.times)

    @property
    def start(self) -> float:
        return (self.times if self.starts is None else self.starts)[0]

    @property
    def end(self) -> float:
        return self.times[-1]

    @property
    def size(self) -> int:
        """The bytes of the rows."""
        stamps = 8 if self.starts is None else 20
        numbers = stamps * len(self) + 8 * (len(self.values) + len(self.highs))
        return numbers + self.tallies.size

    def rows(self, start: float, end: float) -> tuple[int, int]:
        """Return the first and the one after the last of the rows that touch a stretch."""
        starts = self.times if self.starts is None else self.starts
        return bisect_left(self.times, start), bisect_right(starts, end)

    def column(self, metric: str, low: int = 0, high: int | None = None) -> array[float]:
        width = self.layout.width
        stop = len(self.values) if high is None else high * width
        return self.values[low * width + self.layout.place[metric]:stop:width]

    def high_column(self, metric: str, low: int = 0, high: int | None = None) -> array[float]:
        """Return the peaks; those of a reading, and of what has none, are the values."""
        if self.starts is None or metric not in self.layout.high:
            return self.column(metric, low, high)
        width = len(self.layout.high)
        stop = len(self.highs) if high is None else high * width
        return self.highs[low * width + self.layout.high[metric]:stop:width]

    def add_merged(
        self, start: float, time: float, count: int, row: Sequence[float],
        highs: Mapping[str, float], tally: Tally = (),
    ) -> None:
        """Add a merged row; a peak that is not given is the row's value."""
        assert self.starts is not None
        if BITS in self.layout.place:
            self.tallies.append(tally)
        self.starts.append(start)
        self.times.append(time)
        self.counts.append(count)
        self.values.extend(row)
        place = self.layout.place
        self.highs.extend(highs.get(name, row[place[name]]) for name in self.layout.high)

    def takes(self, other: Block) -> bool:
        """Whether another one's rows fit in here."""
        return self.layout is other.layout and len(self) + len(other) <= BLOCK_ROWS

    def samples(self, device: str, source: str, low: int, high: int) -> Iterator[Sample]:
        """Yield some of the rows; what is absent in one is an absent key."""
        names, width = list(self.layout.place), self.layout.width
        peaked, peaks = list(self.layout.high), len(self.layout.high)
        for index in range(low, high):
            values = _there(names, self.values[index * width:(index + 1) * width])
            time = self.times[index]
            if self.starts is None:
                yield Sample(time, device, source, values)
            else:
                highs = _there(peaked, self.highs[index * peaks:(index + 1) * peaks])
                start, count = self.starts[index], self.counts[index]
                tally = self.tallies[index]
                yield MergedSample(time, device, source, values, start, count, highs, tally)

    def extend(self, other: Block) -> None:
        assert self.starts is not None
        assert other.starts is not None
        self.tallies.extend(other.tallies)
        self.times.extend(other.times)
        self.values.extend(other.values)
        self.starts.extend(other.starts)
        self.counts.extend(other.counts)
        self.highs.extend(other.highs)

    def seal(self) -> None:
        """Give back the room that the arrays had to grow into."""
        self.times, self.values, self.highs = self.times[:], self.values[:], self.highs[:]
        self.counts = self.counts[:]
        self.tallies.seal()
        if self.starts is not None:
            self.starts = self.starts[:]


def _there(names: Sequence[str], row: Sequence[float]) -> dict[str, float]:
    return {name: value for name, value in zip(names, row, strict=True) if value == value}


# -- merging -------------------------------------------------------------------------------


class _Groups:
    """The rows of a block that are merged into one each: four, or fewer before a cut.

    ``weights`` are those of the first, second, ... row of each group, 0 where there is none.
    """

    def __init__(self, counts: Sequence[int], cuts: Sequence[int]) -> None:
        edges = pairwise([0, *cuts, len(counts)])
        self.ends = [
            (low, min(low + _MERGED_ROWS, end))
            for begin, end in edges for low in range(begin, end, _MERGED_ROWS)
        ]
        self.counts = [sum(counts[low:high]) for low, high in self.ends]
        self.weights = [
            [counts[low + k] if low + k < high else 0 for low, high in self.ends]
            for k in range(_MERGED_ROWS)
        ]
        self.alike = min(map(min, self.weights)) == max(map(max, self.weights))
        # Where there is no such row, the last one is picked again.
        self._picks = [
            _picker([min(low + k, high - 1) for low, high in self.ends])
            for k in range(_MERGED_ROWS)
        ]

    def rows(self, column: Sequence[float]) -> list[Sequence[float]]:
        """Return the values in the first, second, ... row of each group."""
        return [pick(column) for pick in self._picks]


def _picker(indices: Sequence[int]) -> Callable[[Sequence[float]], Sequence[float]]:
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda column: [column[index] for index in indices]


def merge_rows(block: Block, cuts: Sequence[int]) -> Block:
    """Merge a block's rows, four to one, with no row across a cut."""
    layout = block.layout
    starts = block.times if block.starts is None else block.starts
    counts = array("I", [1]) * len(block) if block.starts is None else block.counts
    groups = _Groups(counts, cuts)
    done = Block(layout, merged=True)
    done.times = array("d", [block.times[high - 1] for _, high in groups.ends])
    done.starts = array("d", [starts[low] for low, _ in groups.ends])
    done.counts = array("I", groups.counts)
    done.values = array("d", bytes(8 * layout.width * len(groups.ends)))
    done.highs = array("d", bytes(8 * len(layout.high) * len(groups.ends)))
    for (name, place), how in zip(layout.place.items(), layout.how, strict=True):
        column = _Column(block.column(name).tolist(), groups)
        done.values[place::layout.width] = array(
            "d", column.means() if how == "mean" else column.lasts()
        )
        if how != "last":
            if block.starts is not None:
                column = _Column(block.high_column(name).tolist(), groups)
            peaks = column.joined(_together if how == "bits" else max)
            done.highs[layout.high[name]::len(layout.high)] = array("d", peaks)
        if how == "bits":
            numbers = block.column(name).tolist()
            done.tallies = tallied(block.tallies, numbers, counts, groups.ends)
    return done


class _Column:
    """The values of one metric in the groups of a block's rows.

    What is no number would make the whole row of its group none, so it counts as absent.
    """

    def __init__(self, values: Sequence[float], groups: _Groups) -> None:
        self._groups = groups
        # A sum tells quickly that all are numbers.
        self._whole = math.isfinite(sum(values))
        self._rows = groups.rows(values)

    def _present(self) -> Iterator[list[tuple[float, int]]]:
        """Yield the numbers in each group, and their weights."""
        pairs = zip(self._rows, self._groups.weights, strict=True)
        for group in zip(*(zip(*pair, strict=True) for pair in pairs), strict=True):
            yield [(value, weight) for value, weight in group if weight and math.isfinite(value)]

    def means(self) -> Iterable[float]:
        """Return each group's mean, weighted by what its rows stand for."""
        if not self._whole:
            return [
                there[0][0] if len(there) == 1
                else sum(value * weight for value, weight in there) / sum(w for _, w in there)
                if there else _NAN
                for there in self._present()
            ]
        groups, rows = self._groups, self._rows
        if groups.alike:
            # In this order the mean of four equal numbers is that number.
            return [((a + b) + (c + d)) * 0.25 for a, b, c, d in zip(*rows, strict=True)]
        return [
            a if n == u else (a * u + b * v + c * w + d * x) / n
            for a, b, c, d, u, v, w, x, n in zip(
                *rows, *groups.weights, groups.counts, strict=True
            )
        ]

    def lasts(self) -> Iterable[float]:
        """Return each group's last value."""
        if self._whole:
            return self._rows[-1]
        return [there[-1][0] if there else _NAN for there in self._present()]

    def joined(self, join: Callable[..., float]) -> Iterable[float]:
        """Return what a function of several values makes of each group's."""
        if self._whole:
            return map(join, *self._rows)
        return [
            join(*(value for value, _ in there), there[0][0]) if there else _NAN
            for there in self._present()
        ]


def _together(*readings: float) -> float:
    """Return the bits that were set in any reading."""
    bits = 0
    for reading in readings:
        bits |= int(reading)
    return float(bits)
