"""Where things go: readings become rows with their place in the picture.

Up to two GPUs stand below each other, one strip a row; see :mod:`.table` for more of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..sample import Device
from .bins import Grid
from .parts import Block, Detail, Heading, Panel, Row, Stretch, Trace
from .readings import Reading
from .strips import Strip, scale_of
from .wording import (
    LABEL,
    LIMIT,
    LINE_PITCH,
    SMALL,
    TITLE,
    clean,
    fit,
    short_name,
    text_width,
    wrap,
)

__all__ = [
    "HEADER", "About", "Arrangement", "Place", "Readings", "row_at", "rows_of", "zoom_of",
]

About = frozenset[tuple[str, str]]
Readings = Sequence[Sequence[Reading]]

HEADER = 24.0
_PLOT = Panel(174.0, 534.0)
_LABEL_X = 168.0
_VALUE_X = 578.0
_DETAIL_X = 585.0
_ROWS_WIDTH = 760.0
_LEAST_TITLE = text_width("GPU 12", TITLE) * 1.06
_SMALLEST_ZOOM = 1 / 64


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Blocks with their places, and the places of all else; see :class:`Scene`."""

    panels: tuple[Panel, ...]
    headings: tuple[Heading, ...]
    blocks: tuple[Block, ...]
    devices: str
    width: float
    height: float
    header_y: float | None
    label_x: float
    label_y: float
    band_top: float
    plot_bottom: float
    notice_y: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row goes; the fields are those of :class:`Row`."""

    panel: Panel
    top: float
    height: float
    value_x: float
    detail_x: float


def zoom_of(readings: Readings) -> float:
    """Return the fraction of full memory that all GPUs' strips show.

    It is 1 until every peak is below an eighth, then the power of two that still holds them.
    """
    peaks = [r.peak / r.top for group in readings for r in group if r.strip.zoom and r.top]
    highest = max(peaks, default=1.0)
    if not 0 < highest < 1 / 8:
        return 1.0
    return float(max(_SMALLEST_ZOOM, 2.0 ** math.ceil(math.log2(highest))))


def _round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))


def _ceiling(reading: Reading, zoom: float) -> tuple[float, str]:
    """Return the value at the top of a strip, in base units, and the words for it."""
    strip, scale = reading.strip, scale_of(reading.strip.metric)
    if reading.top is None:
        if reading.peak <= 0:
            return 1 / scale.factor, scale.unit
        top = _round_up(reading.peak * scale.factor) / scale.factor
        return top, f"top {scale.limit(top)}"
    if strip.zoom and zoom < 1:
        return reading.top * zoom, f"top {scale.limit(reading.top * zoom)}"
    return reading.top, strip.limit.format(scale.limit(reading.top))


def _details(reading: Reading) -> tuple[Detail, ...]:
    found = []
    scale = scale_of(reading.strip.metric)
    for part in reading.layers[1:]:
        style, word = part.layer.style, part.layer.word
        if part.present is None or style not in ("middle", "inner"):
            continue
        if reading.children is not None:
            if reading.children == 0:
                continue
            word = "1 child" if reading.children == 1 else f"{reading.children} children"
        found.append(Detail(style, word, scale.number(part.present)))
    if reading.limit_words is not None:
        found.append(Detail("limit", *reading.limit_words))
    return tuple(found)


def _heights(
    columns: Sequence[float | None], ceiling: float
) -> tuple[float | None, ...]:
    return tuple(
        None if v is None else 0.0 if v <= 0 else 1.0 if v >= ceiling else v / ceiling
        for v in columns
    )


def row_at(reading: Reading, place: Place, grid: Grid, zoom: float, about: About) -> Row:
    """Make a row of a reading."""
    ceiling, limit = _ceiling(reading, zoom)
    scale = scale_of(reading.strip.metric)
    traces = tuple(
        Trace(part.metric, part.layer.style, _heights(part.columns, ceiling))
        for part in reading.layers
    )
    present = reading.layers[0].present
    name, device = reading.strip.name, reading.device.id
    return Row(
        name=name, device=device, label=reading.strip.label, limit=limit, unit=scale.unit,
        traces=traces, value="" if present is None else scale.number(present),
        bold=(device, name) in about, details=_details(reading),
        missing=None if reading.missing is None else clean(reading.missing),
        limited=tuple(Stretch(grid.place(a), grid.place(b)) for a, b in reading.limited),
        ceiling=ceiling, panel=place.panel, top=place.top, height=place.height,
        value_x=place.value_x, detail_x=place.detail_x,
    )


def _label_width(row: Row) -> float:
    return text_width(row.label, LABEL) + text_width(f" {row.limit}", LIMIT)


def _rooms(rows: Sequence[Row], lines: int) -> list[float]:
    """Return how wide each small line under a title can be beside the labels of the rows."""
    rooms = []
    first = rows[0].top + rows[0].height / 2
    for index in range(lines):
        y = first + LINE_PITCH * (index + 1)
        near = [r for r in rows if abs(r.top + r.height / 2 - y) < 13]
        rooms.append(_LABEL_X - 5 - max(map(_label_width, near), default=60.0))
    return rooms


def _title_room(row: Row) -> float:
    return _LABEL_X - 6 - _label_width(row)


def _beside_title(row: Row) -> Row:
    """Shorten the limit of a block's first row until the title has its room beside it.

    A title cut short would be that of another GPU.
    """
    for limit in (row.limit, row.limit.rpartition(" ")[0], ""):
        shorter = replace(row, limit=limit)
        if _title_room(shorter) >= _LEAST_TITLE:
            return shorter
    return shorter


def _title(device: Device, rows: Sequence[Row]) -> tuple[str, str, tuple[str, ...]]:
    """Return a block's title, what stands beside it and the small lines below."""
    torch = "" if device.torch_index is None else f"cuda:{device.torch_index}"
    room = _title_room(rows[0])
    title = fit(clean(device.label), TITLE, room)
    beside = text_width(title, TITLE) * 1.06 + 5 + text_width(torch, SMALL) <= room
    rooms = _rooms(rows, 5)
    below = [] if beside or not torch else [torch]
    if device.kind == "gpu":
        below.append(short_name(device.name))
    if device.torch_assumed:
        below.append("index assumed")
    lines: tuple[str, ...] = ()
    for text in below:
        lines += wrap(text, SMALL, rooms[len(lines) : len(lines) + 3])
    return title, torch if beside else "", lines


def rows_of(
    readings: Readings,
    host: Sequence[Reading],
    strips: Sequence[Strip],
    host_strips: Sequence[Strip],
    grid: Grid,
    about: About,
    *,
    header: bool,
) -> Arrangement:
    """Arrange devices below each other, one strip a row."""
    shift = HEADER if header else 0.0
    zoom = zoom_of(readings)
    top = shift + 24.0
    bottom = top
    blocks = []
    for group in [*readings, host] if host else readings:
        first = top
        rows = []
        for reading in group:
            place = Place(_PLOT, top, reading.strip.height, _VALUE_X, _DETAIL_X)
            rows.append(row_at(reading, place, grid, zoom, about))
            bottom = top + reading.strip.height
            top = bottom + 4
        if not rows:
            continue
        device = group[0].device
        rows[0] = _beside_title(rows[0])
        title, torch, lines = _title(device, rows)
        blocks.append(Block(device.id, title, torch, lines, clean(device.name), tuple(rows), first))
        # A block with few rows still has to hold the lines under its title.
        top = max(top, first + 16 + LINE_PITCH * len(lines)) + 4
    return Arrangement(
        panels=(_PLOT,), headings=(), blocks=tuple(blocks), devices="", width=_ROWS_WIDTH,
        height=bottom + 34, header_y=14.0 if header else None, label_x=_LABEL_X,
        label_y=shift + 12, band_top=shift + 16, plot_bottom=bottom, notice_y=bottom + 24,
    )
