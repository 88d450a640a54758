"""Where readings of a track lie too far apart to be joined."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right

__all__ = ["Breaks"]


class Breaks:
    """Pairs of readings too far apart to be joined, oldest first; of too many short ones go."""

    limit = 2048

    def __init__(self) -> None:
        self._befores, self._afters = array("d"), array("d")

    def add(self, before: float, after: float) -> None:
        """Add the newest one."""
        self._befores.append(before)
        self._afters.append(after)
        if len(self._befores) > self.limit:
            self._forget()

    def _forget(self) -> None:
        """Forget the shorter ones of the older half: of long ago, long silences matter."""
        pairs = self.touching(-math.inf, math.inf)
        half = len(pairs) // 2
        by_length = sorted(range(half), key=lambda i: pairs[i][1] - pairs[i][0])
        gone = set(by_length[:half // 2 + 1])
        kept = [pair for index, pair in enumerate(pairs) if index not in gone]
        self._befores = array("d", [before for before, _ in kept])
        self._afters = array("d", [after for _, after in kept])

    def touching(self, start: float, end: float) -> list[tuple[float, float]]:
        """List those that touch a stretch."""
        if not self._afters or self._afters[-1] < start:
            return []  # what is asked for most often
        low, high = bisect_left(self._afters, start), bisect_right(self._befores, end)
        return list(zip(self._befores[low:high], self._afters[low:high], strict=True))
