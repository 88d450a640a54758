"""Readings become rows: what a strip is labelled with, how high it is, what stands beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from .bins import Grid
from .column_cache import ColumnCache, Columns
from .layers import LayerReading
from .parts import Detail, Panel, Row, Stretch, Trace
from .readings import Reading
from .strips import scale_of
from .wording import clean

__all__ = ["LEAST_STRETCH", "About", "Place", "Readings", "row_at", "said_once", "zoom_of"]

About = frozenset[tuple[str, str]]
Readings = Sequence[Sequence[Reading]]

LEAST_STRETCH = 1.5
"""How wide a stretch of a limit is drawn at least, and how far from the next one, in pixels."""

_SMALLEST_ZOOM = 1 / 64


class Place(NamedTuple):
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
    zoomed = [(r, r.top) for group in readings for r in group if r.strip.zoom and r.top]
    # Most often the present says it, and the past need not be looked through.
    if any((r.layers[0].present or 0.0) >= top / 8 for r, top in zoomed):
        return 1.0
    highest = max((r.peak / top for r, top in zoomed), default=1.0)
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
    strip = reading.strip
    if reading.top is None:
        scale = scale_of(strip.metric)
        if reading.peak <= 0:
            return 1 / scale.factor, scale.unit
        top = _round_up(reading.peak * scale.factor) / scale.factor
        return top, _limit("top {}", strip.metric, top)
    if strip.zoom and zoom < 1:
        return reading.top * zoom, _limit("top {}", strip.metric, reading.top * zoom)
    return reading.top, _limit(strip.limit, strip.metric, reading.top)


@lru_cache
def _limit(words: str, metric: str, top: float) -> str:
    return words.format(scale_of(metric).limit(top))


def _details(reading: Reading) -> tuple[Detail, ...]:
    found = []
    scale = scale_of(reading.strip.metric)
    for part in reading.layers[1:]:
        style, word = part.layer.style, part.layer.word
        if part.present is None or style not in ("middle", "inner", "other"):
            continue
        if part.present < part.layer.floor:
            continue
        if style == "inner" and reading.counted is not None:
            word = reading.counted
        if word:
            found.append(Detail(style, word, scale.number(part.present)))
    if reading.limit_words is not None:
        found.append(Detail("limit", *reading.limit_words))
    return tuple(found)


def _share(total: float, others: float, within: Sequence[float | None]) -> float:
    """Return what is left of a total without others: no less than the parts that are ours.

    Others are read less often than the total, so that the difference can fall short for a while.
    """
    return min(total, max(total - others, 0.0, *(v for v in within if v is not None)))


def _heights(columns: Iterable[float | None], ceiling: float) -> Columns:
    return tuple([
        None if v is None else 0.0 if v <= 0 else 1.0 if v >= ceiling else v / ceiling
        for v in columns
    ])


def _drawn(setting: tuple[float, float], *own: Columns) -> tuple[Columns, ...]:
    """Return the heights of layers; a setting is a ceiling and the least that others are told."""
    return tuple([_heights(columns, setting[0]) for columns in own])


def _drawn_with_others(
    setting: tuple[float, float], foreign: Columns, total: Columns, *nested: Columns
) -> tuple[Columns, ...]:
    """Return the share of others, the heights of the total where there is one, and of layers.

    The first layer is what is ours of the total.
    """
    ceiling, floor = setting
    there = tuple([
        None if u is None or v is None or v < floor else v
        for u, v in zip(total, foreign, strict=True)
    ])
    whole = [None if v is None else u for u, v in zip(total, there, strict=True)]
    within = list(zip(*nested, strict=True)) or [()] * len(total)
    ours = [
        u if u is None or v is None else _share(u, v, parts)
        for u, v, parts in zip(total, there, within, strict=True)
    ]
    return there, *(_heights(columns, ceiling) for columns in (whole, ours, *nested))


def _told(foreign: LayerReading) -> bool:
    """Tell whether others have a share worth telling in any column."""
    highest = max(filter(None, foreign.columns), default=0.0)
    return highest > 0 and highest >= foreign.layer.floor


def _traces(
    reading: Reading, ceiling: float, grid: Grid, cache: ColumnCache
) -> tuple[Trace, ...]:
    """Return what is painted, in that order."""
    key = (reading.device.id, reading.strip.name)
    own = [x for x in reading.layers if x.layer.style != "other"]
    foreign = next((x for x in reading.layers if x.layer.style == "other" and _told(x)), None)
    columns = [x.columns for x in own]
    found: list[Trace] = []
    heights: Sequence[Columns]
    if foreign is None:
        heights = cache.mapped(key, _drawn, (ceiling, 0.0), grid, *columns)
    else:
        there, whole, *heights = cache.mapped(
            key, _drawn_with_others, (ceiling, foreign.layer.floor), grid,
            foreign.columns, *columns,
        )
        if any(there):
            found = [Trace(foreign.metric, "other", whole, there)]
    found += [
        Trace(x.metric, x.layer.style, drawn, x.columns)
        for x, drawn in zip(own, heights, strict=True)
    ]
    return tuple(found)


def _limited(reading: Reading, grid: Grid, panel: Panel) -> tuple[Stretch, ...]:
    """Place the stretches in which a limit held work back.

    Those between which nothing could be seen are one: there are no more than columns.
    """
    least = LEAST_STRETCH / (panel.x1 - panel.x0)
    found: list[tuple[float, float]] = []
    for start, end in reading.limited:
        x0, x1 = grid.place(start), grid.place(end)
        if found and x0 - max(found[-1][1], found[-1][0] + least) < least:
            found[-1] = found[-1][0], x1
        else:
            found.append((x0, x1))
    return tuple([Stretch(x0, x1) for x0, x1 in found])


def row_at(
    reading: Reading, place: Place, grid: Grid, zoom: float, about: About, cache: ColumnCache
) -> Row:
    """Make a row of a reading."""
    ceiling, limit = _ceiling(reading, zoom)
    scale = scale_of(reading.strip.metric)
    name, device = reading.strip.name, reading.device.id
    present = reading.layers[0].present
    return Row(
        name=name, device=device, label=reading.strip.label, limit=limit, unit=scale.unit,
        traces=_traces(reading, ceiling, grid, cache),
        value="" if present is None else scale.number(present),
        bold=(device, name) in about, details=_details(reading),
        missing=None if reading.missing is None else clean(reading.missing),
        limited=_limited(reading, grid, place.panel),
        ceiling=ceiling, panel=place.panel, top=place.top, height=place.height,
        value_x=place.value_x, detail_x=place.detail_x,
    )


def said_once(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Leave a reason out of a device's rows where it stands in a row above."""
    said: set[str] = set()
    found = []
    for row in rows:
        again = row.missing is not None and row.missing in said
        if row.missing:
            said.add(row.missing)
        found.append(replace(row, missing="") if again else row)
    return tuple(found)
