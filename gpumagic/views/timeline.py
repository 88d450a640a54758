"""The time axis of a scene: bands of cells, marks and gaps, with labels that never collide."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from ..coverage import merge
from ..sample import Gap, Mark, Span
from .bins import Grid
from .parts import Band, GapNote, MarkLine, Panel
from .readings import elapsed
from .wording import LIMIT, clean, fit, text_width

__all__ = ["LABEL_SIZE", "Timeline", "lay"]

LABEL_SIZE = LIMIT
_GUTTER = 3.0
_LONGEST = 120.0

Timeline = tuple[tuple[Band, ...], tuple[MarkLine, ...], tuple[GapNote, ...]]


class _Shelf:
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
        right = moved + width
        if any(moved < b + _GUTTER and right > a - _GUTTER for a, b in self._taken):
            return None
        self._taken.append((moved, right))
        return moved


def _bands(spans: Iterable[Span], grid: Grid, until: float, panel: Panel) -> list[Band]:
    found: list[Band] = []
    pixel = 1 / (panel.x1 - panel.x0)
    for span in spans:
        end = until if span.end is None else span.end
        if end < grid.start or span.start > grid.end:
            continue
        running = span.end is None
        x0, x1 = grid.place(span.start), 1.0 if running else grid.place(end)
        failed = span.status == "error" and end <= grid.end
        # Ten thousand short cells in an hour are a texture, not ten thousand shapes.
        if found and x1 - found[-1].x1 < pixel and not (running or failed):
            found[-1] = replace(found[-1], x1=max(x1, found[-1].x1), label="", opens=False)
            continue
        wide = x1 - x0 >= 3 * pixel or running
        label = fit(clean(span.label), LABEL_SIZE, _LONGEST)
        if running:
            label += f" {elapsed(until - span.start)}"
        found.append(
            Band(
                x0, max(x1, min(1.0, x0 + pixel)), label, panel.x(x0), running, failed,
                opens=wide and span.start >= grid.start,
                closes=wide and not running and end <= grid.end,
            )
        )
    return found


def _label_bands(bands: list[Band], shelf: _Shelf, panel: Panel) -> tuple[Band, ...]:
    """Give the running band and then the newest ones their labels."""
    order = sorted(range(len(bands)), key=lambda i: (not bands[i].running, -i))
    for index in order:
        band = bands[index]
        left = panel.x(band.x0)
        # Orange never stands without a word; where there is no room, the number alone is left.
        texts = [f"{band.label} failed", band.label] if band.failed else [band.label]
        for text in texts if band.label else ():
            put = shelf.put(left, text_width(text, LABEL_SIZE) * (1.06 if band.running else 1))
            if put is not None:
                bands[index] = replace(band, label=text, label_x=put)
                break
        else:
            bands[index] = replace(band, label="")
    return tuple(bands)


def _marks(marks: Iterable[Mark], grid: Grid, shelf: _Shelf, panel: Panel) -> tuple[MarkLine, ...]:
    inside = [m for m in marks if grid.start <= m.time <= grid.end]
    found: list[MarkLine] = []
    taken: set[int] = set()
    for mark in reversed(inside):
        place = grid.place(mark.time)
        pixel = round(panel.x(place))
        if pixel in taken:
            continue
        taken.add(pixel)
        text = fit(clean(mark.text), LABEL_SIZE, _LONGEST)
        width = text_width(text, LABEL_SIZE)
        # Beside something else, a label stands to one side of its line.
        line = panel.x(place)
        tries = (line - width / 2, line - 2, line - width + 2)
        left = next((x for x in (shelf.put(t, width) for t in tries) if x is not None), None)
        if left is None:
            text, left = "", line - width / 2
        found.append(MarkLine(place, text, left + width / 2))
    return tuple(reversed(found))


def _gaps(gaps: Iterable[Gap], grid: Grid, until: float, shelf: _Shelf,
          panel: Panel) -> tuple[GapNote, ...]:
    listed = [(g.start, min(until, math.inf if g.end is None else g.end), g) for g in gaps]
    width = text_width("gap", LABEL_SIZE)
    found: list[GapNote] = []
    for start, end in merge((a, b) for a, b, _ in listed if b > a):
        if end < grid.start or start > grid.end:
            continue
        x0, x1 = grid.place(start), grid.place(end)
        reason = next(clean(g.reason) for a, b, g in listed if a <= end and b >= start)
        middle = (panel.x(x0) + panel.x(x1)) / 2
        # A gap that no column shows as empty needs no word.
        fits = end - start >= grid.width and (
            shelf.put(middle - width / 2, width, stay=True) is not None
        )
        found.append(GapNote(x0, x1, reason, fits))
    return tuple(found)


def lay(
    spans: Iterable[Span],
    marks: Iterable[Mark],
    gaps: Iterable[Gap],
    *,
    grid: Grid,
    until: float,
    panel: Panel,
) -> Timeline:
    """Place bands, marks and gaps on the time axis.

    Labels share one line over ``panel``; the running cell's comes first, then those of cells
    (the newest first), of marks and of gaps.
    """
    shelf = _Shelf(panel)
    bands = _label_bands(_bands(spans, grid, until, panel), shelf, panel)
    return bands, _marks(marks, grid, shelf, panel), _gaps(gaps, grid, until, shelf, panel)
