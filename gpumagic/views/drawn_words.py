"""The words and figures of a scene as shapes, with the squares beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .parts import Block, Detail, Heading, Row, Scene
from .shapes import OPACITY, Box, Dot, Ink, Paint, Run, Shape, Text
from .shelf import LABEL_SIZE
from .wording import FIGURE, LABEL, LIMIT, LINE_PITCH, SMALL, SWATCH, TITLE, fit, text_width

__all__ = [
    "DETAIL_ENDS", "axis", "block_title", "detail_places", "figures", "flag", "header",
    "heading_key", "heading_title", "notice",
]

DETAIL_ENDS = (92.0, 189.0)
"""Where the figures of details end, from the left edge of the first on."""

_BETWEEN_DETAILS = 4.0
_TWO_LINES = 20.0
_LINE = 12.0
_FIRST_LINE = -6.0
"""The height of a row that holds two lines of details, how far apart and how far up they are."""

_CONTROLS = 230.0
"""The width at the right of the header that is left to the controls of a live view."""


def detail_places(scene: Scene, row: Row) -> list[tuple[Detail, float, float, float]]:
    """List the details that a row has room for: their left and right ends and baselines.

    Two stand in a line; a row that is high enough has a second line.
    """
    y = row.top + row.height / 2 + 4.5
    if row.missing is not None:
        return []
    if scene.layout == "table":
        if row.detail_x <= row.value_x:
            return []
        inner = [d for d in row.details if d.style == "inner"]
        return [(detail, row.value_x, row.detail_x, y) for detail in inner]
    two = len(row.details) > len(DETAIL_ENDS) and row.height >= _TWO_LINES
    places = []
    for line in range(2 if two else 1):
        left = 0.0
        for end in DETAIL_ENDS:
            below = y + _FIRST_LINE + line * _LINE if two else y
            places.append((row.detail_x + left, row.detail_x + end, below))
            left = end + _BETWEEN_DETAILS
    return [(d, *place) for d, place in zip(row.details, places, strict=False)]


def _swatch(x: float, baseline: float, style: str) -> Box:
    paints: dict[str, Paint] = {"limit": "limit", "other": "line"}
    # On whole pixels: half a pixel would blur its edges.
    left, top = math.floor(x + 0.5), math.floor(baseline - 6.5)
    return Box(left, top, 7, 7, paints.get(style, "use"), OPACITY.get(style, 1.0))


def _detail(detail: Detail, x: float, end: float, y: float) -> Iterator[Shape]:
    yield _swatch(x, y, detail.style)
    label = Run(detail.label, SMALL, "label")
    if detail.style == "limit":
        yield Text(x + SWATCH, y, (label, Run(detail.text, SMALL, gap=6)))
    else:
        yield Text(x + SWATCH, y, (label,))
        yield Text(end, y, (Run(detail.text, SMALL),), "end")


def _reason_in_table(row: Row, y: float) -> Iterator[Shape]:
    """Yield a reason right of what is drawn, if there is room for it."""
    last = max(i for i, height in enumerate(row.totals()) if height is not None)
    left = row.panel.x((last + 1) / len(row.traces[0].heights)) + 4
    room = row.panel.x1 - left
    if row.missing and text_width(row.missing, LIMIT) <= room:
        yield Text(row.panel.x1 - 2, y, (Run(row.missing, LIMIT, "label"),), "end")


def _room_of_reason(scene: Scene, row: Row) -> float:
    """Return how wide a reason can be in the place of a trace and of a figure."""
    if scene.layout == "rows":
        return scene.width - row.panel.x0 - 4
    right = [r for r in scene.rows if r.top == row.top and r.panel.x0 > row.panel.x0]
    if right and right[0].missing == "" and not right[0].drawn:
        end = right[0].value_x - text_width("n/a", FIGURE) - 4
    else:
        end = row.detail_x
    return end - row.panel.x0 - 4


def figures(scene: Scene, row: Row) -> Iterator[Shape]:
    """Yield a row's present figure and its details, or why there is none."""
    y = row.top + row.height / 2 + 4.5
    table = scene.layout == "table"
    if row.missing and not row.drawn:
        text = fit(f"n/a: {row.missing}", LIMIT, _room_of_reason(scene, row))
        yield Text(row.panel.x0 + 2, y, (Run(text, LIMIT, "label"),))
        return
    if row.missing is not None:
        yield Text(row.value_x, y, (Run("n/a", FIGURE, "label"),), "end")
        if table and row.drawn:
            yield from _reason_in_table(row, y)
        elif row.missing:
            text = fit(row.missing, SMALL, scene.width - row.detail_x)
            yield Text(row.detail_x, y, (Run(text, SMALL, "label"),))
        return
    yield Text(row.value_x, y, (Run(row.value, FIGURE, bold=row.bold),), "end")
    for detail, x, end, below in detail_places(scene, row):
        if table:
            yield Text(end, below, (Run(detail.text, FIGURE, "label"),), "end")
        else:
            yield from _detail(detail, x, end, below)


def _row_label(scene: Scene, row: Row) -> Iterator[Shape]:
    size = LABEL if row.limit == "%" else LIMIT
    runs = (Run(row.label, LABEL, "label"), Run(row.limit, size, "label", gap=3))
    yield Text(scene.label_x, row.top + row.height / 2 + 4, runs, "end")


def _title_y(scene: Scene, block: Block) -> float:
    y = block.top + (block.rows[0].height if block.rows else 18) / 2 + 4.5
    return y - 5 if block.lines and scene.layout == "table" else y


def block_title(scene: Scene, block: Block) -> Iterator[Shape]:
    """Yield what names a block and its rows."""
    y, x = _title_y(scene, block), block.indent
    if block.above:
        yield Text(0, block.above_y, (Run(block.above, TITLE, bold=True),))
    runs = [Run(block.title, TITLE, bold=True)]
    if block.torch_label:
        runs.append(Run(block.torch_label, SMALL, "label", gap=5))
    yield Text(x, y, tuple(runs))
    for index, line in enumerate(block.lines):
        yield Text(x, y + LINE_PITCH * (index + 1), (Run(line, SMALL, "label"),))
    if scene.layout == "rows":
        for row in block.rows:
            yield from _row_label(scene, row)


def flag(block: Block) -> Iterator[Shape]:
    """Yield the square beside the device that the notice is about."""
    if block.flagged and block.rows:
        row = block.rows[0]
        yield Box(row.panel.x0 - 14, row.top + row.height / 2 - 3.5, 7, 7, "limit")


def heading_title(heading: Heading) -> Iterator[Shape]:
    """Yield the title of a column of a table."""
    runs = (Run(heading.label, LABEL, bold=True), Run(heading.limit, LIMIT, "label", gap=4))
    yield Text(heading.panel.x0, heading.top + 11, runs)


def heading_key(heading: Heading) -> Iterator[Shape]:
    """Yield the key of the parts that are drawn in a column of a table."""
    for key in heading.key:
        yield _swatch(key.x, key.y, key.style)
        yield Text(key.x + SWATCH, key.y, (Run(key.word, SMALL, "label"),))


def header(scene: Scene) -> Iterator[Shape]:
    """Yield the line with state and caption."""
    if scene.header_y is None:
        return
    y = scene.header_y
    paint: Paint = "use" if scene.state == "recording" else "line"
    yield Dot(4.5, y - 4.5, 4, paint, hollow=scene.state == "paused")
    runs = [Run(scene.state, FIGURE, bold=True)]
    runs += [Run(t, LABEL, "label", gap=8) for t in (scene.caption, scene.devices) if t]
    room = scene.width - 14
    if scene.devices:
        # Names of devices can be many; the rest of the line is as long as it has to be.
        before = sum(run.gap + text_width(run.text, run.size) * 1.06 for run in runs[:-1])
        text = fit(scene.devices, LABEL, room - _CONTROLS - before - 8)
        runs[-1] = Run(text, LABEL, "label", gap=8)
    yield Text(14, y, tuple(runs))


def axis(scene: Scene) -> Iterator[Shape]:
    """Yield the words above the bands and those at the ends of the time axis."""
    y = scene.label_y
    for band in scene.bands:
        if band.label:
            ink: Ink = "ink" if band.running else "label"
            run = Run(band.label, LABEL_SIZE, ink, bold=band.running)
            yield Text(band.label_x, y, (run,))
    for note in scene.events:
        if note.label:
            yield Text(note.label_x, y, (Run(note.label, LABEL_SIZE),))
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
            x = min(panel.x1 + 3, scene.width - text_width(scene.end_text, SMALL))
            yield Text(x, y, (run,))
            continue
        ends = {row.value_x for row in scene.rows if row.panel == panel}
        yield Text(max(ends, default=panel.x1 + 44), y, (run,), "end")


def notice(scene: Scene) -> Iterator[Shape]:
    """Yield the one finding."""
    if not scene.notice:
        return
    yield Box(0, scene.notice_y - 8.5, 8, 8, "limit")
    pieces = fit(scene.notice, FIGURE, (scene.width - 14) * 1.1).split("`")
    runs = tuple(
        Run(piece, LABEL if index % 2 else FIGURE, mono=bool(index % 2))
        for index, piece in enumerate(pieces) if piece
    )
    yield Text(14, scene.notice_y, runs)
