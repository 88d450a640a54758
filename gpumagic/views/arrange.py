"""Where things go: devices become blocks with their place in the picture.

Up to two GPUs stand below each other, one strip a row; see :mod:`.table` for more of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..sample import Device
from .bins import Grid
from .column_cache import ColumnCache
from .parts import Block, Heading, Panel, Row
from .readings import Reading
from .rows import About, Place, Readings, row_at, said_once, zoom_of
from .strips import Strip
from .titles import BOLD, Title, title_width
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

__all__ = ["ABOVE", "HEADER", "Arrangement", "Titles", "rows_of", "without_notice"]

Titles = Mapping[str, Title]

HEADER = 24.0
ABOVE = 18.0
"""Room for the title of a GPU above its first slice, if the GPU itself is not shown."""

_PLOT = Panel(174.0, 534.0)
_LABEL_X = 168.0
_VALUE_X = 578.0
_DETAIL_X = 585.0
_ROWS_WIDTH = 774.0
_LEAST_TITLE = title_width("GPU 12")
_END = 4.0


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


def without_notice(arranged: Arrangement) -> Arrangement:
    """Take away the line that is kept for a notice."""
    bottom = arranged.plot_bottom
    return replace(arranged, height=bottom + _END, notice_y=bottom + _END / 2)


def _label_width(row: Row) -> float:
    return text_width(row.label, LABEL) + text_width(f" {row.limit}", LIMIT)


@lru_cache(maxsize=64)
def _rooms(labels: tuple[tuple[float, float], ...], lines: int) -> tuple[float, ...]:
    """Return how wide each small line under a title can be beside the labels of the rows.

    ``labels`` are the middles of the rows and how wide their labels are.
    """
    rooms = []
    for index in range(lines):
        y = labels[0][0] + LINE_PITCH * (index + 1)
        near = [width for middle, width in labels if abs(middle - y) < 13]
        rooms.append(_LABEL_X - 5 - max(near, default=60.0))
    return tuple(rooms)


def _title_room(row: Row) -> float:
    return _LABEL_X - 6 - _label_width(row)


def _beside_title(row: Row, title: Title) -> Row:
    """Shorten the limit of a block's first row until the title has its room beside it.

    A title cut short would be that of another GPU.
    """
    needed = max(_LEAST_TITLE, title.width)
    for limit in (row.limit, row.limit.rpartition(" ")[0], ""):
        shorter = row if limit == row.limit else replace(row, limit=limit)
        if _title_room(shorter) >= needed:
            break
    return shorter


def _title(
    device: Device, title: Title, rows: Sequence[Row]
) -> tuple[str, str, tuple[str, ...]]:
    """Return a block's title, what stands beside it and the small lines below."""
    torch = "" if device.torch_index is None else f"cuda:{device.torch_index}"
    room = _title_room(rows[0]) - title.indent
    text = fit(title.text, TITLE, room / BOLD)
    beside = title_width(text) + 5 + text_width(torch, SMALL) <= room
    labels = tuple([(row.top + row.height / 2, _label_width(row)) for row in rows])
    rooms = [room - title.indent for room in _rooms(labels, 5)]
    below = [] if beside or not torch else [torch]
    if device.kind == "gpu":
        name = short_name(device.name)
        # A slice's title has the word already.
        below.append(name.replace(" MIG ", " ") if device.is_slice else name)
    if device.torch_assumed:
        below.append("index assumed")
    lines: tuple[str, ...] = ()
    for words in below:
        lines += wrap(words, SMALL, tuple(rooms[len(lines) : len(lines) + 3]))
    return text, torch if beside else "", lines


def rows_of(
    readings: Readings,
    host: Sequence[Reading],
    strips: Sequence[Strip],
    host_strips: Sequence[Strip],
    grid: Grid,
    about: About,
    titles: Titles,
    *,
    header: bool,
    cache: ColumnCache,
) -> Arrangement:
    """Arrange devices below each other, one strip a row."""
    shift = HEADER if header else 0.0
    zoom = zoom_of(readings)
    top = shift + 24.0
    bottom = top
    blocks = []
    for group in [*readings, host] if host else readings:
        if not group:
            continue
        device = group[0].device
        title = titles[device.id]
        if title.above:
            top += ABOVE
        first = top
        rows = []
        for reading in group:
            place = Place(_PLOT, top, reading.strip.height, _VALUE_X, _DETAIL_X)
            rows.append(row_at(reading, place, grid, zoom, about, cache))
            bottom = top + reading.strip.height
            top = bottom + 4
        rows[0] = _beside_title(rows[0], title)
        text, torch, lines = _title(device, title, rows)
        blocks.append(Block(
            device.id, text, torch, lines, clean(device.name), said_once(rows), first,
            label=title.label, above=title.above, above_y=first - 4, indent=title.indent,
        ))
        # A block with few rows still has to hold the lines under its title.
        top = max(top, first + 16 + LINE_PITCH * len(lines)) + 4
    return Arrangement(
        panels=(_PLOT,), headings=(), blocks=tuple(blocks), devices="", width=_ROWS_WIDTH,
        height=bottom + 34, header_y=14.0 if header else None, label_x=_LABEL_X,
        label_y=shift + 12, band_top=shift + 16, plot_bottom=bottom, notice_y=bottom + 24,
    )
