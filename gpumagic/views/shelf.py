"""The one line for labels above a time axis, on which none covers another."""

from __future__ import annotations

from bisect import bisect_right, insort

from .parts import Panel
from .titles import BOLD
from .wording import LIMIT, text_width

__all__ = ["GUTTER", "LABEL_SIZE", "Shelf", "width_of"]

LABEL_SIZE = LIMIT
GUTTER = 3.0


def width_of(label: str, bold: bool = False) -> float:
    """Estimate the width of a label in pixels, on the safe side."""
    return text_width(label, LABEL_SIZE) * (BOLD if bold else 1)


_SHORTEST = width_of("[1]") + 2 * GUTTER


class Shelf:
    """The one line above the bands; a label that finds no room is left out."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._taken: list[tuple[float, float]] = []

    def put(self, left: float, width: float, *, stay: bool = False) -> float | None:
        """Take room for a label and return its left edge; with ``stay`` it may not be moved."""
        panel = self._panel
        moved = max(panel.x0, min(left, panel.x1 - width))
        if width > panel.x1 - panel.x0 or (stay and moved != left):
            return None
        if not self._free(moved, width):
            return None
        insort(self._taken, (moved, moved + width))
        return moved

    def _free(self, left: float, width: float) -> bool:
        right = left + width
        # Sorted and apart, only the neighbours can be in the way.
        place = bisect_right(self._taken, (left, right))
        return all(
            left >= b + GUTTER or right <= a - GUTTER
            for a, b in self._taken[max(0, place - 1) : place + 1]
        )

    def near(self, left: float, width: float, reach: float) -> float | None:
        """Take the room nearest to ``left``, at most ``reach`` pixels away."""
        panel = self._panel
        tries = [max(panel.x0, min(left, panel.x1 - width))]
        for a, b in self._taken:
            tries += [b + GUTTER, a - GUTTER - width]
        tries.sort(key=lambda x: abs(x - left))
        for x in tries:
            if abs(x - left) > reach:
                break
            if (put := self.put(x, width, stay=True)) is not None:
                return put
        return None

    @property
    def full(self) -> bool:
        """Whether no label can find room any more."""
        edges = [self._panel.x0, *(x for pair in self._taken for x in pair), self._panel.x1]
        return all(b - a < _SHORTEST for a, b in zip(edges[::2], edges[1::2], strict=True))
