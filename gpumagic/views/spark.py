"""One row of a scene as a small picture beside figures: as SVG, or as bars of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .parts import Row, Trace
from .shapes import MIDDLE_OVER_OUTER, OPACITY

__all__ = ["BARS", "bars", "bracket_svg", "bracket_text", "spark_svg"]

BARS = "▁▂▃▄▅▆▇█"
"""Block characters from the lowest to the full one."""

_RULE = 1.5
_RING = 3.5
# The room above a picture, over which a hairline comes down from the row above.
_ABOVE = 5


def bars(heights: Sequence[float | None], cells: int) -> str:
    """Draw heights in [0, 1] with block characters; a cell shows its highest, a gap a space."""
    there = [index for index, height in enumerate(heights) if height is not None]
    found = []
    for cell in range(cells):
        start = cell * len(heights) // cells
        stop = max(start + 1, (cell + 1) * len(heights) // cells)
        if not there or stop <= there[0] or start > there[-1]:
            found.append(" ")
            continue
        part = heights[max(start, there[0]) : min(stop, there[-1] + 1)]
        known = [height for height in part if height is not None]
        # A hole between readings is never bridged, however narrow it is beside a cell.
        whole = len(known) == len(part)
        found.append(BARS[min(7, int(max(known) * 8))] if whole else " ")
    return "".join(found)


def spark_svg(
    row: Row,
    height: int,
    ring: tuple[float, float] | None = None,
    ends: Iterable[float] = (),
    below: int = 0,
) -> str:
    """Draw a row over the whole width there is, ``height`` pixels high.

    ``ring`` is a place on the time axis and a height, both in [0, 1]; at the places ``ends`` a
    hairline runs through, from the row above to ``below`` pixels under the picture. Colours come
    from the classes ``use``, ``line``, ``rule``, ``held``, ``ring`` and ``hair`` of the page
    around it.
    """
    plot = height - _RULE
    columns = max((len(trace.heights) for trace in row.traces), default=0)
    drawn = "".join(_paths(row.traces, round(plot * 10)))
    held = "".join(
        f'<rect class="held" x="{_percent(part.x0)}" y="0" height="3"'
        f' width="{_percent(max(part.x1 - part.x0, 0.004))}"/>'
        for part in row.limited
    )
    mark = ""
    if ring is not None:
        y = _RULE + plot * (1 - ring[1])
        mark = f'<circle class="ring" cx="{_percent(ring[0])}" cy="{y:.1f}" r="{_RING}"/>'
    # The inner picture is stretched to the column's width; rings and limits are not.
    return (
        f'<svg width="100%" height="{height}" aria-hidden="true">'
        f'<svg y="{_RULE}" width="100%" height="{plot:g}" preserveAspectRatio="none"'
        f' viewBox="0 0 {2 * columns} {round(plot * 10)}">{drawn}</svg>'
        f'<rect class="rule" y="1" width="100%" height="1"/>'
        f"{_hairs(ends, _ABOVE, height + below)}{held}{mark}</svg>"
    )


def bracket_svg(stretches: Iterable[tuple[float, float]], ends: Iterable[float]) -> str:
    """Draw a thick line over stretches of the time axis, and a hairline down at each end."""
    lines = "".join(
        f'<rect class="held" x="{_percent(x0)}" y="0" height="3"'
        f' width="{_percent(max(x1 - x0, 0.004))}"/>'
        for x0, x1 in stretches
    )
    return f'<svg width="100%" height="5" aria-hidden="true">{_hairs(ends, 0, 5)}{lines}</svg>'


def bracket_text(stretches: Iterable[tuple[float, float]], cells: int) -> str:
    """Draw a bracket over the cells that each stretch covers: ``┌───┐  ┌┐``."""
    found = [" "] * cells
    for x0, x1 in stretches:
        first = min(cells - 1, int(x0 * cells + 0.5))
        last = max(first, min(cells - 1, int(x1 * cells + 0.5) - 1))
        found[first : last + 1] = "┌" + "─" * (last - first - 1) + "┐" if last > first else "┬"
    return "".join(found)


def _hairs(ends: Iterable[float], above: int, below: int) -> str:
    return "".join(
        f'<rect class="hair" x="{_percent(x)}" y="{-above}" width="1" height="{above + below}"/>'
        for x in ends
    )


def _percent(share: float) -> str:
    return f"{share * 100:.1f}".removesuffix(".0") + "%"


def _paths(traces: Sequence[Trace], height: int) -> list[str]:
    found = []
    under = False
    for trace in traces:
        path = "".join(_path(s, height, trace.style != "line") for s in _stretches(trace, height))
        if not path:
            continue
        if trace.style == "line":
            found.append(f'<path class="line" d="{path}"/>')
            continue
        opacity = OPACITY[trace.style]
        if trace.style == "middle" and under:
            opacity = MIDDLE_OVER_OUTER
        under = under or trace.style == "outer"
        found.append(f'<path class="use" d="{path}" opacity="{opacity:.2g}"/>')
    return found


def _stretches(trace: Trace, height: int) -> list[list[tuple[int, int]]]:
    """Return the points of each stretch that is known, two units of width a column."""
    found = []
    for run in trace.stretches():
        part = [(2 * column + 1, round(height * (1 - share))) for column, share in run]
        (left, first), (right, last) = part[0], part[-1]
        found.append([(left - 1, first), *part, (right + 1, last)])
    return found


def _path(points: Sequence[tuple[int, int]], base: int, area: bool) -> str:
    """Write points as relative moves; those on a level stretch are left out."""
    kept = [
        here for before, here, after in zip(points, points[1:], points[2:], strict=False)
        if not before[1] == here[1] == after[1]
    ]
    x, y = points[0]
    parts = [f"M{x} {y}"]
    for next_x, next_y in [*kept, points[-1]]:
        if next_y == y:
            parts.append(f"h{next_x - x}")
        else:
            parts.append(f"l{next_x - x}{'' if next_y < y else ' '}{next_y - y}")
        x, y = next_x, next_y
    return "".join(parts) + (f"V{base}H{points[0][0]}z" if area else "")
