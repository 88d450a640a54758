"""The time axis of a scene: cells, events, marks and gaps, with labels that never collide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..coverage import merge
from ..sample import Gap, Mark, Span
from .axis import Axis
from .bins import Grid
from .event_notes import note_of, ooms_and_retries
from .events import Event
from .parts import Band, EventNote, GapNote, MarkLine, Panel, Tick
from .readings import elapsed
from .shelf import LABEL_SIZE, Shelf, width_of
from .wording import clean, fit

__all__ = ["Timeline", "lay"]

_LONGEST = 120.0
_MOST_EDGES = 24
_BESIDE = 10.0
"""How far from its line the label of a mark may begin, in pixels."""

_WIDE = 3.0
"""From how many pixels on a cell is drawn by itself."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What stands on the time axis; see :class:`~.parts.Scene`."""

    bands: tuple[Band, ...]
    marks: tuple[MarkLine, ...]
    gaps: tuple[GapNote, ...]
    events: tuple[EventNote, ...]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A band and the span that it is named after, if it is drawn by itself."""

    band: Band
    span: Span | None


def _bands(spans: Iterable[Span], grid: Grid, until: float, panel: Panel) -> list[_Cell]:
    found: list[_Cell] = []
    pixel = 1 / (panel.x1 - panel.x0)
    for span in sorted(spans, key=lambda s: s.start):
        end = until if span.end is None else span.end
        if end < grid.start or span.start > grid.end:
            continue
        running = span.end is None
        x0, x1 = grid.place(span.start), 1.0 if running else grid.place(end)
        failed = span.status == "error" and end <= grid.end
        wide = x1 - x0 >= _WIDE * pixel or running
        # Ten thousand short cells in an hour are a texture, not ten thousand shapes.
        if found and not wide and x1 - found[-1].band.x1 < pixel:
            joined = _joined(found[-1], span, x1, failed, pixel)
            if joined is not None:
                found[-1] = joined
                continue
        band = Band(
            x0, max(x1, min(1.0, x0 + pixel)), "", panel.x(x0), running, failed,
            opens=wide and span.start >= grid.start,
            closes=wide and not running and end <= grid.end,
        )
        found.append(_Cell(band, span))
    return found


def _joined(cell: _Cell, span: Span, x1: float, failed: bool, pixel: float) -> _Cell | None:
    """Draw a short cell with the one before it; ``None`` where it has to stand alone."""
    band = cell.band
    named = cell.span is not None and (band.running or band.x1 - band.x0 >= _WIDE * pixel)
    if failed:
        if named:
            return None
        # A cell that failed lends its name to what it is drawn with.
        return _Cell(replace(band, x1=max(x1, band.x1), failed=True), span)
    if named or band.failed:
        return cell  # the name, or the end that is marked, stays what and where it is
    return _Cell(replace(band, x1=max(x1, band.x1)), None)


def _name(cell: _Cell, until: float) -> str:
    if cell.span is None:
        return ""
    label = fit(clean(cell.span.label), LABEL_SIZE, _LONGEST)
    return f"{label} {elapsed(until - cell.span.start)}" if cell.band.running else label


def _label_bands(
    cells: list[_Cell], chosen: Iterable[int], shelf: Shelf, panel: Panel, until: float
) -> None:
    """Give some bands their labels, those of them that find room."""
    for index in chosen:
        if shelf.full:
            return
        cell = cells[index]
        band, name = cell.band, _name(cell, until)
        left = panel.x(band.x0)
        # Orange never stands without a word; where there is no room, the number alone is left.
        texts = [f"{name} failed", name] if band.failed else [name]
        for text in texts if name else ():
            put = shelf.put(left, width_of(text, band.running))
            if put is not None:
                cells[index] = _Cell(replace(band, label=text, label_x=put), cell.span)
                break


def _thinned(cells: Sequence[_Cell]) -> tuple[Band, ...]:
    """Of many cells, let only those with a label send hairlines through the timeline."""
    bands = [cell.band for cell in cells]
    if sum(band.opens or band.closes for band in bands) <= _MOST_EDGES:
        return tuple(bands)
    return tuple(b if b.label else replace(b, opens=False, closes=False) for b in bands)


def _marks(
    marks: Iterable[Mark], grid: Grid, axis: Axis, shelf: Shelf, panel: Panel
) -> tuple[MarkLine, ...]:
    inside = [m for m in marks if grid.start <= m.time <= grid.end]
    found: list[MarkLine] = []
    taken: set[int] = set()
    for mark in reversed(inside):
        place = grid.place(mark.time)
        pixel = round(panel.x(place))
        if pixel in taken:
            continue
        taken.add(pixel)
        whole = clean(mark.text)
        text = fit(whole, LABEL_SIZE, _LONGEST)
        width = width_of(text)
        # Like that of a cell, a label begins at its line, or a little beside it where something
        # else stands: further away it would read as that of another line.
        line = panel.x(place)
        left = shelf.put(line - 2, width)
        if left is None:
            left = shelf.near(line - 2, width, _BESIDE)
        if left is None:
            text, left = "", line - width / 2
        found.append(MarkLine(place, text, left + width / 2, whole, axis.when(mark.time)))
    return tuple(reversed(found))


def _gaps(gaps: Iterable[Gap], grid: Grid, until: float, shelf: Shelf,
          panel: Panel) -> tuple[GapNote, ...]:
    listed = [(g.start, min(until, math.inf if g.end is None else g.end), g) for g in gaps]
    width = width_of("gap")
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
    events: Iterable[Event],
    *,
    grid: Grid,
    axis: Axis,
    until: float,
    panel: Panel,
) -> Timeline:
    """Place bands, marks, gaps and events on the time axis.

    Labels share one line over ``panel``: what comes first in this order is sure of its room.
    The running cell, OOMs, cells that failed, retries, other cells (the newest first), marks
    and gaps.
    """
    shelf = Shelf(panel)
    cells = _bands(spans, grid, until, panel)
    newest = range(len(cells) - 1, -1, -1)

    def label(chosen: Iterable[int]) -> None:
        _label_bands(cells, chosen, shelf, panel, until)

    ticks = [
        Tick(grid.place(e.time), e.device, e.kind, e.count, axis.when(e.time), axis.when(e.last))
        for e in sorted(events, key=lambda e: e.time)
    ]
    label([i for i in newest if cells[i].band.running])
    failed = [
        (cell.band.x0, cell.band.x1, _name(cell, until)) for cell in cells if cell.band.failed
    ]
    notes, retries = ooms_and_retries(ticks, failed, shelf, panel)
    label([i for i in newest if cells[i].band.failed])
    notes += [note_of(group, failed, shelf, panel) for group in reversed(retries)]
    label([i for i in newest if not (cells[i].band.running or cells[i].band.failed)])
    lines = _marks(marks, grid, axis, shelf, panel)
    empty = _gaps(gaps, grid, until, shelf, panel)
    notes.sort(key=lambda note: note.ticks[0].x)
    return Timeline(_thinned(cells), lines, empty, tuple(notes))
