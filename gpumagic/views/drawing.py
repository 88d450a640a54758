"""A scene as a list of shapes, which SVG and PNG draw alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .drawn_words import (
    axis,
    block_title,
    figures,
    flag,
    header,
    heading_key,
    heading_title,
    notice,
)
from .events import OOM
from .parts import Panel, Row, Scene, Trace
from .rows import LEAST_STRETCH
from .shapes import (
    MIDDLE_OVER_OUTER,
    OPACITY,
    Area,
    Box,
    Dot,
    Paint,
    Point,
    Shape,
    Stroke,
)

__all__ = ["fixed_shapes", "moving_shapes", "shapes", "trace_shapes"]

Heights = tuple[float | None, ...]

_NOTCH = 5.0
_SAME_PLACE = 0.02


def _stretches(row: Row, trace: Trace) -> tuple[tuple[Point, ...], ...]:
    """Return the points of each stretch of columns that has heights, from edge to edge."""
    width = (row.panel.x1 - row.panel.x0) / len(trace.heights)
    found = []
    for run in trace.stretches():
        part = [(column, row.top + row.height * (1 - height)) for column, height in run]
        left = row.panel.x0 + part[0][0] * width
        right = row.panel.x0 + (part[-1][0] + 1) * width
        middle = [(row.panel.x0 + (index + 0.5) * width, y) for index, y in part]
        found.append(((left, part[0][1]), *middle, (right, part[-1][1])))
    return tuple(found)


def _between(row: Row, upper: Trace, lower: Trace) -> tuple[tuple[Point, ...], ...]:
    """Return the outlines of what lies between two traces, where the upper one has heights."""
    heights = tuple(
        None if above is None else below
        for above, below in zip(upper.heights, lower.heights, strict=True)
    )
    below = _stretches(row, replace(lower, heights=heights))
    return tuple(
        (*top, *reversed(bottom))
        for top, bottom in zip(_stretches(row, upper), below, strict=True)
    )


def _traces(row: Row) -> Iterator[Shape]:
    under = False
    for trace, following in zip(row.traces, [*row.traces[1:], None], strict=True):
        if trace.style == "other" and following is not None:
            # What is ours is translucent, so that no grey may lie below it.
            outlines = _between(row, trace, following)
            if outlines:
                yield Area(outlines, row.top + row.height, 1.0, 1.0, "line")
            continue
        stretches = _stretches(row, trace)
        if not stretches:
            continue
        if trace.style == "line":
            yield Stroke(stretches, "line", 1.4)
            continue
        tone = opacity = OPACITY[trace.style]
        if trace.style == "middle" and under:
            opacity = MIDDLE_OVER_OUTER
        under = under or trace.style == "outer"
        yield Area(stretches, row.top + row.height, tone, opacity)


def _ticks(scene: Scene) -> Iterator[Shape]:
    """Yield what marks events: at the ceiling of memory, and below their word.

    An OOM goes through the strip. Without a word, there is no orange.
    """
    for note in scene.events:
        paint: Paint = "limit" if note.label else "label"
        for tick in note.ticks:
            row = scene.memory_row(tick.device)
            if row is None:
                continue
            height = row.height if tick.kind == OOM else _NOTCH
            yield Box(row.panel.x(tick.x) - 1, row.top - 3, 2, 3 + height, paint)
            for panel in {scene.panels[0]: None, row.panel: None} if note.label else ():
                yield Box(panel.x(tick.x) - 1, scene.band_top - 1, 2, 5, paint)


def _dot(row: Row) -> Iterator[Shape]:
    """Yield the dot on a line's present value."""
    for trace in row.traces:
        height = trace.heights[-1]
        if trace.style == "line" and height is not None and row.value:
            yield Dot(row.panel.x1 - 1, row.top + row.height * (1 - height), 2, "ink")


def _held(row: Row) -> Iterator[Shape]:
    for part in row.limited:
        left, right = row.panel.x(part.x0), row.panel.x(part.x1)
        yield Box(left, row.top - 1.5, max(right - left, LEAST_STRETCH), 3, "limit")


def _bottom(scene: Scene, panel: Panel) -> float:
    """Return where a panel's lowest strip ends; in a table, the host has no strip in some."""
    ends = [row.top + row.height for row in scene.rows if row.panel == panel]
    return max(ends, default=scene.plot_bottom)


def _heights(scene: Scene, panel: Panel) -> list[tuple[float, float]]:
    """List from where to where lines run down a panel: from its bands on, but for headings."""
    top, bottom = scene.band_top, _bottom(scene, panel)
    found = []
    for heading in scene.headings:
        if heading.panel == panel and heading.top > top:
            rows = [row for row in scene.rows if row.panel == panel]
            above = [r.top + r.height for r in rows if r.top < heading.top]
            found.append((top, max(above, default=top)))
            top = min((r.top for r in rows if r.top >= heading.top), default=bottom)
    return [*found, (top, bottom)]


def _ceilings(scene: Scene) -> Iterator[Shape]:
    rules = tuple(((r.panel.x0, r.top), (r.panel.x1, r.top)) for r in scene.rows)
    if rules:
        yield Stroke(rules, "rule", 1)


def _edges(scene: Scene) -> Iterator[Shape]:
    """Yield the edges of cells, which run through the timeline and behind its areas."""
    edges = sorted({b.x0 for b in scene.bands if b.opens} | {b.x1 for b in scene.bands if b.closes})
    for panel in scene.panels if edges else ():
        areas = sorted(_areas(scene, panel), key=lambda area: area[0].top)
        stretches = _heights(scene, panel)
        drawn: list[tuple[Point, Point]] = []
        for edge in edges:
            x = panel.x(edge)
            column = min(scene.columns - 1, int(edge * scene.columns))
            for top, bottom in stretches:
                for row, heights in areas:
                    if top <= row.top < bottom:
                        highest = max([column_heights[column] or 0.0 for column_heights in heights])
                        if highest > 0:
                            end = row.top + row.height
                            drawn.append(((x, top), (x, end - row.height * highest)))
                            top = end
                if top < bottom:
                    drawn.append(((x, top), (x, bottom)))
        if drawn:
            yield Stroke(tuple(drawn), "hair", 1)


def _areas(scene: Scene, panel: Panel) -> Iterator[tuple[Row, list[Heights]]]:
    """Yield the rows of a panel that have areas, with the heights of those."""
    for row in scene.rows:
        heights = [trace.heights for trace in row.traces if trace.style != "line"]
        if heights and row.panel == panel:
            yield row, heights


def _marks(scene: Scene) -> Iterator[Shape]:
    dotted = tuple(
        ((p.x(m.x), top), (p.x(m.x), bottom))
        for p in scene.panels if scene.marks
        for ends in [_heights(scene, p)] for m in scene.marks for top, bottom in ends
    )
    if dotted:
        yield Stroke(dotted, "label", 1, dotted=True)


def _bands(scene: Scene) -> Iterator[Shape]:
    told = [t.x for note in scene.events if note.label for t in note.ticks if t.kind == OOM]
    for panel in scene.panels:
        for band in scene.bands:
            left, right = panel.x(band.x0), panel.x(band.x1)
            opacity = 1.0 if band.running else 0.65
            yield Box(left, scene.band_top, right - left, 3, "line", opacity)
            if band.failed:
                width = min(4.0, right - left)
                # There is no orange without a word; what a cell failed of is one too.
                word = band.label or any(abs(x - band.x1) < _SAME_PLACE for x in told)
                paint: Paint = "limit" if word else "label"
                yield Box(right - width, scene.band_top - 1, width, 5, paint)


def fixed_shapes(scene: Scene) -> list[Shape]:
    """List what changes only with the layout: ceilings, titles and labels."""
    found = list(_ceilings(scene))
    found += header(scene)
    for heading in scene.headings:
        found += heading_title(heading)
    for block in scene.blocks:
        found += block_title(scene, block)
    return found


def trace_shapes(scene: Scene) -> list[Shape]:
    """List what is drawn inside the plots: areas and lines."""
    return [shape for row in scene.rows for shape in _traces(row)]


def moving_shapes(scene: Scene) -> list[Shape]:
    """List what moves or changes with each reading, but for the traces; it lies over them."""
    found = list(_edges(scene))
    found += _bands(scene)
    found += _marks(scene)
    for row in scene.rows:
        found += _held(row)
        found += _dot(row)
    found += _ticks(scene)
    found += axis(scene)
    for heading in scene.headings:
        found += heading_key(heading)
    for block in scene.blocks:
        found += flag(block)
        for row in block.rows:
            found += figures(scene, row)
    found += notice(scene)
    return found


def shapes(scene: Scene) -> list[Shape]:
    """List the shapes of a scene in the order in which they are painted."""
    return [*fixed_shapes(scene), *trace_shapes(scene), *moving_shapes(scene)]
