"""Many GPUs as a table: they are rows and strips are columns.

The question is then which one differs, so that each column has one scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ..sample import Device
from .arrange import ABOVE, HEADER, Arrangement, Titles
from .bins import Grid
from .column_cache import ColumnCache
from .parts import Block, Heading, Key, Panel, Row
from .readings import Reading
from .rows import About, Place, Readings, row_at, said_once, zoom_of
from .strips import Strip
from .titles import BOLD
from .wording import LABEL, LIMIT, SMALL, SWATCH, TITLE, clean, fit, short_name, text_width

__all__ = ["columns_of_table", "table_of"]

_WIDTH = 900.0
_LEAST_X0 = 70.0
_MOST_X0 = 140.0
_FLAG = 18.0
_HEIGHT = 21.0
_PITCH = 30.0
_FIGURE = 44.0
_SECOND_FIGURE = 34.0
_BETWEEN = 16.0
_KEY_GAP = 8.0
_TEXT_Y = 11.0
_LINE = 15.0
"""The baseline of a heading, and of the key in the line below it, from its top down."""


def columns_of_table(strips: Sequence[Strip], host: Sequence[Strip], titles: Titles) -> int:
    """Return how many columns of two pixels a table's plots have room for."""
    return int(_panels(strips, host, _left(titles))[0][2] // 2)


def _left(titles: Titles) -> float:
    """Return where the plots begin: right of the titles and of the mark for the odd one."""
    widest = max((title.width for title in titles.values()), default=0.0)
    return min(_MOST_X0, max(_LEAST_X0, math.ceil(widest + _FLAG)))


def _panels(
    strips: Sequence[Strip], host: Sequence[Strip], left: float
) -> tuple[tuple[float, bool, float], ...]:
    """Return for each column of a table its left edge, whether it has a second figure, and the
    width of its plot.
    """
    count = max(len(strips), len(host), 1)
    second = [any(s[i].second for s in (strips, host) if i < len(s)) for i in range(count)]
    room = _WIDTH - left - _FIGURE * count - _BETWEEN * (count - 1)
    plot = 2 * ((room - _SECOND_FIGURE * sum(second)) / count // 2)
    found = []
    x = left
    for extra in second:
        found.append((x, extra, plot))
        x += plot + _FIGURE + _BETWEEN + (_SECOND_FIGURE if extra else 0)
    return tuple(found)


def _places(strips: Sequence[Strip], host: Sequence[Strip], left: float) -> list[Place]:
    places = []
    for x, extra, plot in _panels(strips, host, left):
        value = x + plot + _FIGURE
        detail = value + _SECOND_FIGURE if extra else value
        places.append(Place(Panel(x, x + plot), 0, _HEIGHT, value, detail))
    return places


def _width_of(key: str) -> float:
    """Return how wide a key is: a square and its word."""
    return SWATCH + text_width(key, SMALL)


def _heading(
    rows: Sequence[Row], place: Place, top: float, strip: Strip, *, second_line: bool = True
) -> Heading:
    """Title a column; the key of its parts stands where it collides with nothing.

    The parts that are ours have a line of their own, others the end of the title's line.
    """
    words = {"outer": "used"}
    words |= {d.style: d.label for row in rows for d in row.details}
    foreign = words.pop("other", "")
    order = ("inner",) if strip.second else ("outer", "middle", "inner")
    styles = [s for s in order if s in words and len(strip.layers) > 1]
    entries = [(s, words[s]) for s in styles if len(words) > 1]
    if "limit" in words:
        entries.append(("limit", words["limit"]))
    limits = Counter(row.limit for row in rows if row.drawn) or Counter([rows[0].limit])
    # GPUs of different kinds have different ceilings, for which a column has no one word.
    limit = next(iter(limits)) if len(limits) == 1 else f"{rows[0].unit}, each its own top"
    x0, end, y = place.panel.x0, place.detail_x, top + _TEXT_Y
    below = y + _LINE if second_line else y
    key = []
    if strip.second:
        for style, word in entries[-1:]:
            end -= _width_of(word)
            key.append(Key(style, word, end, below))
    else:
        x = x0
        for style, word in entries:
            key.append(Key(style, word, x, below))
            x += _width_of(word) + _KEY_GAP
    if foreign:
        end = place.detail_x - _width_of(foreign) if second_line else end - _KEY_GAP
        title = text_width(rows[0].label, LABEL) * BOLD + 4 + _KEY_GAP
        for shorter in (limit, rows[0].unit, ""):
            if title + text_width(shorter, LIMIT) <= end - x0:
                limit = shorter
                break
        key.append(Key("other", foreign, end, y))
    return Heading(place.panel, top, rows[0].label, limit, tuple(key))


def _sum_up(devices: Sequence[Device]) -> tuple[str, bool]:
    """Sum up the GPUs, and say whether torch's indices are told with it."""
    names = Counter(short_name(d.name) for d in devices)
    text = ", ".join(f"{n} × {name}" for name, n in names.items())
    indices = [d.torch_index for d in devices]
    alike = all(d.torch_index == d.nvml_index and not d.torch_assumed for d in devices)
    if devices and alike and None not in indices:
        return f"{text}, cuda:{indices[0]} to cuda:{indices[-1]}", True
    return text, not any(i is not None for i in indices)


def table_of(
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
    """Arrange GPUs as rows and strips as columns of a table."""
    shift = HEADER if header else 0.0
    zoom = zoom_of(readings)
    left = _left(titles)
    places = _places(strips, host_strips, left)
    devices, told = _sum_up([group[0].device for group in readings if group])
    top = shift + 44.0
    blocks = []
    headings: list[Heading] = []

    def block(group: Sequence[Reading], top: float) -> Block:
        rows = tuple(
            row_at(
                r, Place(p.panel, top, p.height, p.value_x, p.detail_x), grid, zoom, about, cache
            )
            for r, p in zip(group, places, strict=False)
        )
        device = group[0].device
        title = titles[device.id]
        flagged = any(owner == device.id for owner, _ in about)
        untold = "" if told or device.kind == "host" else device.torch_label
        text = fit(title.text, TITLE, (left - _FLAG - title.indent) / BOLD)
        return Block(
            device.id, text, "", (untold,) if untold else (), clean(device.name),
            said_once(rows), top, flagged, title.label, title.above, top - 4, title.indent,
        )

    for group in readings:
        if group:
            if titles[group[0].device.id].above:
                top += ABOVE
            blocks.append(block(group, top))
            top += _PITCH
    for index, strip in enumerate(strips if blocks else ()):
        column = [b.rows[index] for b in blocks]
        headings.append(_heading(column, places[index], shift, strip))
    if host:
        top += 18
        blocks.append(block(host, top))
        for index, row in enumerate(blocks[-1].rows):
            headings.append(
                _heading([row], places[index], top - 17, host_strips[index], second_line=False)
            )
        top += _PITCH
    bottom = top - _PITCH + _HEIGHT if blocks else top
    return Arrangement(
        panels=tuple(p.panel for p in places), headings=tuple(headings), blocks=tuple(blocks),
        devices=devices, width=_WIDTH, height=bottom + 34,
        header_y=14.0 if header else None, label_x=left - 8, label_y=shift + 27,
        band_top=shift + 31, plot_bottom=bottom, notice_y=bottom + 24,
    )
