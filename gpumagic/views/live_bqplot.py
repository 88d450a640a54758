"""The live view with pages drawn by bqplot: a small figure each, with one ``FlexLine``.

``FlexLine`` is the only mark used: it sets attributes, where ``Lines`` piles up transitions in
a hidden tab. It has these traits of its own:

* It has no fill. An area is a column for each place in time: a segment from the baseline up,
  as wide as the column, and a segment without width to the next. Equal columns are one.
* Empty arrays at the start break it, NaN is drawn along the top edge, and segments stay when an
  array shrinks. So arrays are finite, never empty, and those of a page never get shorter.
* Every mark is a message of its own; a colour for each segment makes one mark enough.
* It does not draw new widths by themselves; and when a figure has got its size, a transition may
  end after newer data have been drawn, with the older ones in place. So the last point, which
  is never seen, moves whenever a page is drawn, and a page is drawn twice.

The tail and all else that moves is inline SVG: a figure that changed with each update costs a
browser several times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .live_rules import LINE
from .live_widgets import WidgetView, exact, quiet
from .pages import COLUMNS, Due, Layout, Series
from .shapes import MIDDLE_OVER_OUTER, OPACITY
from .stretches import runs
from .svg import COLOURS

with quiet():
    import bqplot
    import ipywidgets

__all__ = ["BqplotView", "Lines", "lines_of"]

_Array: TypeAlias = npt.NDArray[Any]
_Point: TypeAlias = tuple[float, float, float, int]

_STEPS = 16
"""Heights travel as whole sixteenths of a pixel: half the bytes of a float32."""

_UNSETTLED = (4, 16)
"""The updates at which all new figures are drawn again, as the page may not have laid them out
before.
"""


def _rgba(hexadecimal: str, opacity: float) -> str:
    red, green, blue = (int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.3g})"


_USE, _GREY = COLOURS["light"]["use"], COLOURS["light"]["line"]
_COLOURS = {
    "inner": _USE, "outer": _rgba(_USE, OPACITY["outer"]),
    "middle": _rgba(_USE, OPACITY["middle"]), "over": _rgba(_USE, MIDDLE_OVER_OUTER),
    "line": _GREY, "other": _GREY,
}
_NUMBERS = {name: number for number, name in enumerate(_COLOURS)}


@dataclass(frozen=True, slots=True)
class Lines:
    """The arrays of a page: points, and a width in pixels and a colour for what follows each."""

    x: _Array
    y: _Array
    width: _Array
    color: _Array


def _rising(series: Series, layout: Layout, height: float) -> float:
    """Return a place in sixteenths of a pixel above the lower edge of the figure."""
    return round(_STEPS * (layout.height - series.top - series.height * (1 - height)))


def _area(series: Series, layout: Layout, due: Due) -> Iterator[_Point]:
    """Yield filled columns; nothing rises where nothing is known."""
    number = _NUMBERS["over" if series.style == "middle" and series.over else series.style]
    begin = max(due.low, 0)
    heights = series.heights[begin : due.high]
    floor = series.floor or (0.0,) * len(series.heights)
    columns = [
        None if top is None else (
            _rising(series, layout, base or 0.0), _rising(series, layout, top)
        )
        for top, base in zip(heights, floor[begin : due.high], strict=True)
    ]
    x = layout.lefts[series.panel] + (begin - due.low) * layout.pitch
    for column, group in groupby(columns):
        width = layout.pitch * len(list(group))
        if column is not None and column[0] != column[1]:
            yield x + width / 2, column[0], width, number
            yield x + width / 2, column[1], 0.0, number
        x += width


def _line(series: Series, layout: Layout, due: Due) -> Iterator[_Point]:
    """Yield a line through the middles of columns, cut off where the page ends.

    Points are on whole pixels: elsewhere the joints of a flat line are paler than the rest.
    """
    pitch, left = layout.pitch, layout.lefts[series.panel]
    right = left + (due.high - due.low) * pitch
    begin = max(due.low - 1, 0)
    heights = series.heights[begin : due.high + 1]
    number = _NUMBERS["line"]
    for a, b in runs(heights):
        x0 = left + (begin + a - due.low) * pitch
        ys = [_rising(series, layout, h) for h in heights[a:b]]  # type: ignore[arg-type]
        middles = [(x0 + (i + 0.5) * pitch, y) for i, y in enumerate(ys)]
        points = [(x0, ys[0]), *middles, (x0 + len(ys) * pitch, ys[-1])]
        inside = [(float(int(x)), y) for x, y in points if left < x < right]
        whole = [_at(points, left), *inside, _at(points, right)]
        kept = [point for point in whole if point is not None]
        if len(kept) > 1:
            for x, y in kept[:-1]:
                yield x, y, LINE, number
            yield *kept[-1], 0.0, number


def _at(points: Sequence[tuple[float, float]], x: float) -> tuple[float, float] | None:
    """Return where a line crosses ``x``, if it does."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return x, y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None


def lines_of(series: Sequence[Series], layout: Layout, due: Due, length: int) -> Lines:
    """Return the columns that are due as the arrays of a page, of ``length`` points or more."""
    points: list[_Point] = []
    for one in series:
        points += (_line if one.style == "line" else _area)(one, layout, due)
    points += [(0.0, 0.0, 0.0, 0)] * max(1, length - len(points))
    x, y, width, colour = zip(*points, strict=True)
    return Lines(
        np.array(x, np.float32), np.clip(np.rint(y), 0, 0xFFFF).astype(np.uint16),
        np.array(width, np.float32), np.array(colour, np.uint8),
    )


class BqplotView(WidgetView):
    """Draw each page in a figure, the tail in steps as the pages are."""

    steps = True

    def _make_pages(self, layout: Layout) -> list[Any]:
        self._unsure: list[Any] = []
        self._updates = 0
        span = layout.lefts[-1] + COLUMNS * layout.pitch
        beyond = COLUMNS * layout.pitch - span
        place = exact(span, layout.height) | {"flex": "none", "margin": f"0 {beyond:g}px 0 0"}
        fixed = {"allow_padding": False}
        scales = {
            "x": bqplot.LinearScale(min=0.0, max=span, **fixed),
            "y": bqplot.LinearScale(min=0.0, max=_STEPS * layout.height, **fixed),
            # FlexLine maps widths to 0.5 and up to stroke_width: so a width means pixels.
            "width": bqplot.LinearScale(min=0.5, max=1.5, **fixed),
            "color": bqplot.ColorScale(
                colors=list(_COLOURS.values()), min=0.0, max=len(_COLOURS) - 1.0
            ),
        }
        empty = lines_of((), layout, Due(0, 0, 0), 2)
        size = ipywidgets.Layout(**place)
        return [
            bqplot.Figure(
                marks=[bqplot.FlexLine(
                    x=empty.x, y=empty.y, width=empty.width, color=empty.color, colors=[_USE],
                    stroke_width=1.5, scales=scales,
                )],
                scale_x=scales["x"], scale_y=scales["y"], padding_x=0.0, padding_y=0.0,
                fig_margin={"top": 0, "bottom": 0, "left": 0, "right": 0},
                background_style={"fill": "transparent"}, display_toolbar=False,
                animation_duration=0, layout=size,
            )
            for _ in range(layout.pages)
        ]

    def _draw_page(
        self, page: Any, layout: Layout, series: Sequence[Series], due: Due
    ) -> None:
        (mark,) = page.marks
        new = lines_of(series, layout, due, len(mark.x))
        new.y[-1] = 1 - mark.y[-1]
        with mark.hold_sync():
            for name in ("x", "y", "width", "color"):
                array = getattr(new, name)
                if not np.array_equal(getattr(mark, name), array):
                    setattr(mark, name, array)
        self._unsure.append(mark)

    def _settle(self) -> None:
        self._updates += 1
        if self._updates in _UNSETTLED:
            self._unsure = [page.marks[0] for page in self._pages.children]
        for mark in self._unsure:
            again = mark.y.copy()
            again[-1] = 1 - again[-1]
            mark.y = again
        self._unsure = []
