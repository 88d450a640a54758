"""Some columns of a scene's traces as inline SVG: what a page of a live view consists of.

Coordinates are whole tenths of a pixel, which is short to write and quick to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .pages import Layout, Series
from .shapes import MIDDLE_OVER_OUTER, OPACITY
from .svg import COLOURS

__all__ = ["draw", "runs"]

_USE, _LINE = COLOURS["light"]["use"], COLOURS["light"]["line"]
_OTHER = f'fill="{_LINE}"'
_STROKE = f'fill="none" stroke="{_LINE}" stroke-width="14"'
_ORDER = (_OTHER, *(
    f'opacity="{opacity:.3g}"' for opacity in (OPACITY["outer"], MIDDLE_OVER_OUTER,
                                               OPACITY["middle"])
), "", _STROKE)


def _paint(series: Series) -> str:
    """Return the attributes of a trace's path; areas inherit the colour of use."""
    match series.style:
        case "other":
            return _OTHER
        case "line":
            return _STROKE
        case "outer":
            return _ORDER[1]
        case "middle":
            return _ORDER[2] if series.over else _ORDER[3]
        case _:
            return ""


def runs(heights: Sequence[float | None]) -> Iterator[tuple[int, int]]:
    """Yield each run of columns that have heights: its first column and the one after it."""
    if heights and None not in heights:
        yield 0, len(heights)  # what is seen much faster than each of them
        return
    begin = None
    for column, height in enumerate(heights):
        if height is None:
            if begin is not None:
                yield begin, column
                begin = None
        elif begin is None:
            begin = column
    if begin is not None:
        yield begin, len(heights)


def _move(dx: int, dy: int) -> str:
    return f"l{dx} {dy}" if dy > 0 else f"l{dx}{dy}" if dy else f"h{dx}"


def _sloped(ys: Sequence[int], edges: Sequence[int]) -> str:
    """Join the middles of columns, from the outer edge of the first to that of the last one.

    There is one edge more than there are columns; they can run in either direction.
    """
    x, y = edges[0], ys[0]
    parts = []
    for here, left, middle, right in zip(ys[1:], edges, edges[1:], edges[2:], strict=False):
        if here != y:
            before = (left + middle) // 2
            if before != x:
                parts.append(f"h{before - x}")
                x = before
            after = (middle + right) // 2
            parts.append(_move(after - x, here - y))
            x, y = after, here
    parts.append(f"h{edges[-1] - x}")
    return "".join(parts)


def _stepped(ys: Sequence[int], edges: Sequence[int]) -> str:
    """Draw each column as wide as it is, at its own height."""
    x, y = edges[0], ys[0]
    parts = []
    for here, left in zip(ys[1:], edges[1:], strict=False):
        if here != y:
            parts.append(f"h{left - x}v{here - y}")
            x, y = left, here
    parts.append(f"h{edges[-1] - x}")
    return "".join(parts)


def _path(series: Series, low: int, high: int, lefts: Sequence[int], steps: bool) -> str:
    """Write the path of one trace; ``lefts`` begin with the edge of the column before ``low``."""
    begin = max(low - 1, 0)
    heights = series.heights[begin : high + 1]
    low_end, rise = round((series.top + series.height) * 10), series.height * 10
    filled = series.style != "line"
    line = _stepped if steps and filled else _sloped
    found = []
    for a, b in runs(heights):
        ys = [low_end - round(rise * h) for h in heights[a:b]]  # type: ignore[operator]
        edges = lefts[a + begin - low + 1 : b + begin - low + 2]
        if not filled:
            found.append(f"M{edges[0]} {ys[0]}{line(ys, edges)}")
        elif series.floor is not None:
            floor = series.floor[begin + a : begin + b]
            below = [low_end - round(rise * (h or 0.0)) for h in reversed(floor)]
            found.append(
                f"M{edges[0]} {ys[0]}{line(ys, edges)}V{below[0]}{line(below, edges[::-1])}z"
            )
        elif ys.count(low_end) < len(ys):
            found.append(f"M{edges[0]} {low_end}V{ys[0]}{line(ys, edges)}V{low_end}z")
    return "".join(found)


def draw(
    series: Sequence[Series], layout: Layout, low: int, high: int, left: float, *,
    steps: bool = False,
) -> str:
    """Draw the columns from ``low`` to before ``high`` at ``left`` pixels, in each panel.

    Every panel's stretch is a box of its own that cuts off what its lines reach beyond. The
    browser puts the edges of boxes on whole pixels of the screen, so that neighbours meet
    without a seam at any zoom. ``steps`` draws areas as columns, as bqplot does.
    """
    pitch = layout.pitch
    lefts = [round((column - low) * pitch * 10) for column in range(low - 1, high + 2)]
    width = (high - low) * pitch
    kinds: list[dict[str, list[str]]] = [{} for _ in layout.panels]
    for one in series:
        path = _path(one, low, high, lefts, steps)
        if path:
            kinds[one.panel].setdefault(_paint(one), []).append(path)
    crisp = ' shape-rendering="crispEdges"' if steps else ""
    # An edge through the middle of a pixel of the screen leaves it out, as with bqplot's lines.
    upper = 0.2 if steps else 0
    boxes = []
    for kind, x in zip(kinds, layout.lefts, strict=True):
        if not kind:
            continue
        drawn = "".join(
            f'<path {paint}{crisp if paint is not _STROKE else ""} d="{"".join(kind[paint])}"/>'
            for paint in _ORDER if paint in kind
        )
        boxes.append(
            f'<div style="position:absolute;overflow:hidden;top:0;left:{left + x:g}px;'
            f'width:{width:g}px;height:{layout.height:g}px"><svg width="{width:g}"'
            f' height="{layout.height:g}"'
            f' viewBox="0 {upper:g} {width * 10:g} {layout.height * 10:g}"'
            f' fill="{_USE}" aria-hidden="true" style="display:block;overflow:visible">'
            f'{drawn}</svg></div>'
        )
    return "".join(boxes)
