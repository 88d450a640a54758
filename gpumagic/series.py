"""A series: one metric of one device over time, as a recording gives it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from .tracks import Merged

__all__ = ["Series"]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one device over time, absent values left out.

    ``times`` (epoch seconds, ascending) and ``values`` (base units) have the same length. A row
    is one reading or, where a recording has merged old ones, stands for several in a row: then
    its value is the mean of a gauge, and the last one of a counter or a state. ``merged`` is
    ``None`` in a series of readings alone.
    """

    metric: str
    device: str
    times: Sequence[float]
    values: Sequence[float]
    merged: Merged | None = None

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.times, self.values, strict=True)

    @property
    def starts(self) -> Sequence[float]:
        """The time of each row's first reading: no two of its readings are too far apart."""
        return self.times if self.merged is None else self.merged.starts

    @property
    def counts(self) -> Sequence[int]:
        """How many readings each row stands for."""
        return [1] * len(self.times) if self.merged is None else self.merged.counts

    @property
    def highs(self) -> Sequence[float]:
        """The highest reading of each row; of the bits of a state, all that were set."""
        return self.values if self.merged is None else self.merged.highs

    def where(self, chosen: Sequence[bool]) -> Series:
        """Return the rows for which ``chosen`` is true."""

        def those(column: Sequence[Any]) -> list[Any]:
            return list(compress(column, chosen))

        merged = self.merged and Merged(
            those(self.merged.starts), those(self.merged.counts), those(self.merged.highs),
            those(self.merged.tallies) if self.merged.tallies else (),
        )
        return Series(self.metric, self.device, those(self.times), those(self.values), merged)

    def finite(self) -> Series:
        """Return the rows whose value is a number."""
        # A sum is a number only if all of its parts are; that is seen much faster than each.
        if math.isfinite(sum(self.values)):
            return self
        return self.where([math.isfinite(value) for value in self.values])

    def within(self, start: float, end: float) -> Series:
        """Return the rows of which all readings lie in ``[start, end]``."""
        inside = [a >= start and b <= end for a, b in zip(self.starts, self.times, strict=True)]
        return self if all(inside) else self.where(inside)
