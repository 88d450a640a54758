"""A scene as a list of shapes, which SVG and PNG draw alike."""

from __future__ import annotations

from collections.abc import Iterator

from .parts import Block, Detail, Heading, Panel, Row, Scene, Trace
from .shapes import (
    MIDDLE_OVER_OUTER,
    OPACITY,
    Area,
    Box,
    Dot,
    Ink,
    Paint,
    Point,
    Run,
    Shape,
    Stroke,
    Text,
)
from .timeline import LABEL_SIZE
from .wording import FIGURE, LABEL, LIMIT, LINE_PITCH, SMALL, TITLE, fit, text_width

__all__ = ["fixed_shapes", "moving_shapes", "shapes", "trace_shapes"]


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


def _traces(row: Row) -> Iterator[Shape]:
    under = False
    for trace in row.traces:
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


def _dot(row: Row) -> Iterator[Shape]:
    """Yield the dot on a line's present value."""
    for trace in row.traces:
        height = trace.heights[-1]
        if trace.style == "line" and height is not None and row.value:
            yield Dot(row.panel.x1 - 1, row.top + row.height * (1 - height), 2, "ink")


def _held(row: Row) -> Iterator[Shape]:
    for part in row.limited:
        left, right = row.panel.x(part.x0), row.panel.x(part.x1)
        yield Box(left, row.top - 1.5, max(right - left, 1.5), 3, "limit")


def _swatch(x: float, baseline: float, style: str) -> Box:
    paint: Paint = "limit" if style == "limit" else "use"
    return Box(x, baseline - 7, 7, 7, paint, OPACITY.get(style, 1.0))


def _detail(detail: Detail, x: float, end: float, y: float) -> Iterator[Shape]:
    yield _swatch(x, y, detail.style)
    label = Run(detail.label, SMALL, "label")
    if detail.style == "limit":
        yield Text(x + 10, y, (label, Run(detail.text, SMALL, gap=6)))
    else:
        yield Text(x + 10, y, (label,))
        yield Text(end, y, (Run(detail.text, SMALL),), "end")


def _figures(scene: Scene, row: Row) -> Iterator[Shape]:
    y = row.top + row.height / 2 + 4.5
    if row.missing is not None and not row.drawn:
        table = scene.layout == "table"
        room = (row.panel.x1 if table else scene.width) - row.panel.x0 - 4
        text = fit(f"n/a: {row.missing}", LIMIT, room)
        yield Text(row.panel.x0 + 2, y, (Run(text, LIMIT, "label"),))
        return
    if row.missing is not None:
        yield Text(row.value_x, y, (Run("n/a", FIGURE, "label"),), "end")
        if scene.layout == "rows":
            text = fit(row.missing, SMALL, scene.width - row.detail_x)
            yield Text(row.detail_x, y, (Run(text, SMALL, "label"),))
        return
    yield Text(row.value_x, y, (Run(row.value, FIGURE, bold=row.bold),), "end")
    if scene.layout == "table":
        if row.detail_x > row.value_x:
            for detail in row.details[:1]:
                yield Text(row.detail_x, y, (Run(detail.text, FIGURE, "label"),), "end")
        return
    for detail, (x, end) in zip(row.details, ((0, 83), (87, 174)), strict=False):
        yield from _detail(detail, row.detail_x + x, row.detail_x + end, y)


def _row_label(scene: Scene, row: Row) -> Iterator[Shape]:
    size = LABEL if row.limit == "%" else LIMIT
    runs = (Run(row.label, LABEL, "label"), Run(row.limit, size, "label", gap=3))
    yield Text(scene.label_x, row.top + row.height / 2 + 4, runs, "end")


def _block(scene: Scene, block: Block) -> Iterator[Shape]:
    """Yield what names a block and its rows."""
    y = block.top + (block.rows[0].height if block.rows else 18) / 2 + 4.5
    if block.lines and scene.layout == "table":
        y -= 5
    runs = [Run(block.title, TITLE, bold=True)]
    if block.torch_label:
        runs.append(Run(block.torch_label, SMALL, "label", gap=5))
    yield Text(0, y, tuple(runs))
    for index, line in enumerate(block.lines):
        yield Text(0, y + LINE_PITCH * (index + 1), (Run(line, SMALL, "label"),))
    if block.flagged:
        yield Box(block.rows[0].panel.x0 - 14, y - 8, 7, 7, "limit")
    if scene.layout == "rows":
        for row in block.rows:
            yield from _row_label(scene, row)


def _heading(heading: Heading) -> Iterator[Shape]:
    y = heading.top + 11
    runs = (Run(heading.label, LABEL, bold=True), Run(heading.limit, LIMIT, "label", gap=4))
    yield Text(heading.panel.x0, y, runs)
    x, y = heading.key_x, heading.key_top + 11
    if heading.key_anchor == "end":
        for style, word in heading.key[-1:]:
            yield Text(x, y, (Run(word, SMALL, "label"),), "end")
            yield _swatch(x - text_width(word, SMALL) - 12, y, style)
        return
    for style, word in heading.key:
        yield _swatch(x, y, style)
        yield Text(x + 10, y, (Run(word, SMALL, "label"),))
        x += 10 + text_width(word, SMALL) + 8


def _header(scene: Scene) -> Iterator[Shape]:
    if scene.header_y is None:
        return
    y = scene.header_y
    paint: Paint = "use" if scene.state == "recording" else "line"
    yield Dot(4.5, y - 4.5, 4, paint, hollow=scene.state == "paused")
    runs = [Run(scene.state, FIGURE, bold=True)]
    runs += [Run(t, LABEL, "label", gap=8) for t in (scene.caption, scene.devices) if t]
    yield Text(14, y, tuple(runs))


def _bottom(scene: Scene, panel: Panel) -> float:
    """Return where a panel's lowest strip ends; in a table, the host has no strip in some."""
    ends = [row.top + row.height for row in scene.rows if row.panel == panel]
    return max(ends, default=scene.plot_bottom)


def _ceilings(scene: Scene) -> Iterator[Shape]:
    rules = tuple(((r.panel.x0, r.top), (r.panel.x1, r.top)) for r in scene.rows)
    if rules:
        yield Stroke(rules, "rule", 1)


def _edges(scene: Scene) -> Iterator[Shape]:
    """Yield the edges of cells, which run through the timeline."""
    top = scene.band_top
    edges = {b.x0 for b in scene.bands if b.opens} | {b.x1 for b in scene.bands if b.closes}
    for panel in scene.panels:
        bottom = _bottom(scene, panel)
        drawn = tuple(((panel.x(e), top), (panel.x(e), bottom)) for e in sorted(edges))
        if drawn:
            yield Stroke(drawn, "hair", 1)


def _marks(scene: Scene) -> Iterator[Shape]:
    dotted = tuple(
        ((p.x(m.x), scene.band_top - 1), (p.x(m.x), _bottom(scene, p)))
        for p in scene.panels for m in scene.marks
    )
    if dotted:
        yield Stroke(dotted, "label", 1, dotted=True)


def _bands(scene: Scene) -> Iterator[Shape]:
    for panel in scene.panels:
        for band in scene.bands:
            left, right = panel.x(band.x0), panel.x(band.x1)
            opacity = 1.0 if band.running else 0.65
            yield Box(left, scene.band_top, right - left, 3, "line", opacity)
            if band.failed:
                width = min(4.0, right - left)
                yield Box(right - width, scene.band_top - 1, width, 5, "limit")


def _axis(scene: Scene) -> Iterator[Shape]:
    y = scene.label_y
    for band in scene.bands:
        if band.label:
            ink: Ink = "ink" if band.running else "label"
            run = Run(band.label, LABEL_SIZE, ink, bold=band.running)
            yield Text(band.label_x, y, (run,))
    for mark in scene.marks:
        if mark.label:
            yield Text(mark.label_x, y, (Run(mark.label, LABEL_SIZE),), "middle")
    panel = scene.panels[0]
    for gap in scene.gaps:
        if gap.shown:
            x = (panel.x(gap.x0) + panel.x(gap.x1)) / 2
            yield Text(x, y, (Run("gap", LABEL_SIZE, "label"),), "middle")
    y = scene.band_top + 5
    yield Text(scene.label_x, y, (Run(scene.start_text, SMALL, "label"),), "end")
    for panel in scene.panels:
        run = Run(scene.end_text, SMALL, "label")
        if scene.end_text != "now":
            # A time of day is wider than the figures below it.
            yield Text(panel.x1 + 3, y, (run,))
            continue
        ends = {row.value_x for row in scene.rows if row.panel == panel}
        yield Text(max(ends, default=panel.x1 + 44), y, (run,), "end")


def _notice(scene: Scene) -> Iterator[Shape]:
    if not scene.notice:
        return
    yield Box(0, scene.notice_y - 8.5, 8, 8, "limit")
    pieces = fit(scene.notice, FIGURE, (scene.width - 14) * 1.1).split("`")
    runs = tuple(
        Run(piece, LABEL if index % 2 else FIGURE, mono=bool(index % 2))
        for index, piece in enumerate(pieces) if piece
    )
    yield Text(14, scene.notice_y, runs)


def fixed_shapes(scene: Scene) -> list[Shape]:
    """List what changes only with the layout: ceilings, titles and labels."""
    found = list(_ceilings(scene))
    found += _header(scene)
    for heading in scene.headings:
        found += _heading(heading)
    for block in scene.blocks:
        found += _block(scene, block)
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
    found += _axis(scene)
    for row in scene.rows:
        found += _figures(scene, row)
    found += _notice(scene)
    return found


def shapes(scene: Scene) -> list[Shape]:
    """List the shapes of a scene in the order in which they are painted."""
    return [*fixed_shapes(scene), *trace_shapes(scene), *moving_shapes(scene)]
