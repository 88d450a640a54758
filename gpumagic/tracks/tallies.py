"""How many readings of bits a merged row has of each value, for the rows of a block."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..metrics import THROTTLE_REASONS

__all__ = ["BITS", "TALLIED", "Tallies", "Tally", "tallied"]

BITS = "gpu_clock_event_reasons_state"
"""The metric whose readings are sets of bits."""

TALLIED = sum(THROTTLE_REASONS)
"""The bits by which readings are told apart; those of a value below 256 fit in a byte."""

_MOST_VALUES = 16

Tally: TypeAlias = tuple[tuple[int, int], ...]
"""Readings of bits and how many there were of each; empty where all are the row's value."""


class Tallies:
    """The tallies of a block's rows, one after the other in flat arrays."""

    __slots__ = ("bits", "counts", "ends")

    def __init__(self) -> None:
        self.bits = array("B")
        self.counts = array("I")
        self.ends = array("I")

    def __getitem__(self, row: int) -> Tally:
        if not self.ends:
            return ()
        low, high = self.ends[row - 1] if row else 0, self.ends[row]
        return tuple(zip(self.bits[low:high], self.counts[low:high], strict=True))

    @property
    def size(self) -> int:
        """The bytes of all tallies."""
        return 5 * len(self.bits) + 4 * len(self.ends)

    def append(self, tally: Tally) -> None:
        """Add the tally of the next row."""
        for bits, count in tally:
            self.bits.append(bits & TALLIED)
            self.counts.append(count)
        self.ends.append(len(self.bits))

    def extend(self, other: Tallies) -> None:
        """Add the tallies of further rows."""
        before = len(self.bits)
        self.ends.extend(before + end for end in other.ends)
        self.bits.extend(other.bits)
        self.counts.extend(other.counts)

    def seal(self) -> None:
        """Give back the room that the arrays had to grow into."""
        self.bits, self.counts, self.ends = self.bits[:], self.counts[:], self.ends[:]


def tallied(
    known: Tallies, column: Sequence[float], counts: Sequence[int],
    groups: Iterable[tuple[int, int]],
) -> Tallies:
    """Count the readings of groups of rows, each from its first row to the one after its last.

    Of more than 16 values in a group the rarest are left out.
    """
    done = Tallies()
    for low, high in groups:
        if not known.bits and column[low:high].count(column[low]) == high - low:
            done.append(())
            continue
        tally: Counter[int] = Counter()
        for row in range(low, high):
            own = known[row]
            for bits, count in own:
                tally[bits] += count
            if not own and math.isfinite(column[row]):
                tally[int(column[row]) & TALLIED] += counts[row]
        # Absent readings are in none.
        alike = len(tally) < 2 and tally.total() in (0, sum(counts[low:high]))
        # A GPU shows a handful of combinations; what shows more must not undo the bound.
        done.append(() if alike else tuple(sorted(tally.most_common(_MOST_VALUES))))
    return done
