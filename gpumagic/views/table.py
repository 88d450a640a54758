"""Many GPUs as a table: they are rows and strips are columns.

The question is then which one differs, so that each column has one scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..sample import Device
from .arrange import HEADER, About, Arrangement, Place, Readings, row_at, zoom_of
from .bins import Grid
from .parts import Block, Heading, Panel, Row
from .readings import Reading
from .strips import Strip
from .wording import TITLE, clean, fit, short_name

__all__ = ["columns_of_table", "table_of"]

_WIDTH = 900.0
_X0 = 70.0
_HEIGHT = 21.0
_PITCH = 30.0
_FIGURE = 50.0
_SECOND_FIGURE = 34.0
_BETWEEN = 16.0


def columns_of_table(strips: Sequence[Strip], host: Sequence[Strip]) -> int:
    """Return how many columns of two pixels a table's plots have room for."""
    return int(_panels(strips, host)[0][2] // 2)


def _panels(
    strips: Sequence[Strip], host: Sequence[Strip]
) -> tuple[tuple[float, bool, float], ...]:
    """Return for each column of a table its left edge, whether it has a second figure, and the
    width of its plot.
    """
    count = max(len(strips), len(host), 1)
    second = [
        any(len(s[i].layers) == 2 for s in (strips, host) if i < len(s)) for i in range(count)
    ]
    room = _WIDTH - _X0 - _FIGURE * count - _BETWEEN * (count - 1)
    plot = 2 * ((room - _SECOND_FIGURE * sum(second)) / count // 2)
    found = []
    x = _X0
    for extra in second:
        found.append((x, extra, plot))
        x += plot + _FIGURE + _BETWEEN + (_SECOND_FIGURE if extra else 0)
    return tuple(found)


def _places(strips: Sequence[Strip], host: Sequence[Strip]) -> list[Place]:
    places = []
    for x, extra, plot in _panels(strips, host):
        value = x + plot + _FIGURE
        detail = value + _SECOND_FIGURE if extra else value
        places.append(Place(Panel(x, x + plot), 0, _HEIGHT, value, detail))
    return places


def _heading(rows: Sequence[Row], place: Place, top: float, strip: Strip) -> Heading:
    """Title a column; the key of its parts stands where it collides with nothing."""
    words = {"outer": "used"}
    words |= {d.style: d.label for row in rows for d in row.details}
    second = len(strip.layers) == 2
    order = ("inner",) if second else ("outer", "middle", "inner")
    styles = [s for s in order if s in words and len(strip.layers) > 1]
    key = [(s, words[s]) for s in styles if len(words) > 1]
    if "limit" in words:
        key.append(("limit", words["limit"]))
    limits = Counter(row.limit for row in rows)
    # GPUs of different kinds have different ceilings, for which a column has no one word.
    limit = rows[0].limit if len(limits) == 1 else f"{rows[0].unit}, each its own top"
    return Heading(
        place.panel, top, rows[0].label, limit, tuple(key), top + 15,
        place.detail_x if second else place.panel.x0, "end" if second else "start",
    )


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
    *,
    header: bool,
) -> Arrangement:
    """Arrange GPUs as rows and strips as columns of a table."""
    shift = HEADER if header else 0.0
    zoom = zoom_of(readings)
    places = _places(strips, host_strips)
    devices, told = _sum_up([group[0].device for group in readings if group])
    top = shift + 44.0
    blocks = []
    headings: list[Heading] = []

    def block(group: Sequence[Reading], top: float) -> Block:
        rows = tuple(
            row_at(r, Place(p.panel, top, p.height, p.value_x, p.detail_x), grid, zoom, about)
            for r, p in zip(group, places, strict=False)
        )
        device = group[0].device
        flagged = any(owner == device.id for owner, _ in about)
        lines = () if told or device.kind == "host" else (device.torch_label,)
        title = fit(clean(device.label), TITLE, _X0 - 4)
        return Block(device.id, title, "", lines, clean(device.name), rows, top, flagged)

    for group in readings:
        if group:
            blocks.append(block(group, top))
            top += _PITCH
    for index, strip in enumerate(strips if blocks else ()):
        column = [b.rows[index] for b in blocks]
        headings.append(_heading(column, places[index], shift, strip))
    if host:
        top += 12
        blocks.append(block(host, top))
        for index, row in enumerate(blocks[-1].rows):
            heading = _heading([row], places[index], top - 17, host_strips[index])
            headings.append(replace(heading, key_top=heading.top))
        top += _PITCH
    bottom = top - _PITCH + _HEIGHT if blocks else top
    return Arrangement(
        panels=tuple(p.panel for p in places), headings=tuple(headings), blocks=tuple(blocks),
        devices=devices, width=_WIDTH, height=bottom + 34,
        header_y=14.0 if header else None, label_x=_X0 - 8, label_y=shift + 27,
        band_top=shift + 31, plot_bottom=bottom, notice_y=bottom + 24,
    )
