"""The live view drawn by bqplot: one figure for what moves, over one HTML widget of text.

``FlexLine`` is the only mark used: it sets attributes, where ``Lines`` piles up transitions in
a hidden tab. It has these traits of its own:

* It has no fill. An area is a column for each place in time: a segment from the baseline up,
  as wide as the column, and a segment without width to the next.
* Empty arrays at the start break it, NaN is drawn along the top edge, and segments stay when an
  array shrinks. So arrays are finite, never empty, and keep their length; if that has to change,
  the figure is made anew.
* Every mark is a message of its own, so that all series of one colour share a mark.
* It does not draw new widths by themselves; and when the figure gets its size, a transition may
  end after newer data have been drawn, with the older ones in place. So the last point, which
  is never seen, moves with new widths, and at each of the first updates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .live_widgets import WidgetView, exact, html, picture, quiet
from .parts import Panel, Row, Scene
from .shapes import MIDDLE_OVER_OUTER, OPACITY
from .strips import STRIPS
from .svg import COLOURS

with quiet():
    import bqplot

__all__ = ["BqplotView", "Lines", "lines_of"]

_Array: TypeAlias = npt.NDArray[Any]
_Piece: TypeAlias = tuple[_Array, _Array, _Array]
_Straight: TypeAlias = tuple[float, float, float, float]

# Widths in pixels say in the style sheet what a segment is; no column is as wide.
_LINE, _MARK, _DOT, _LIMIT = 1.375, 1.0625, 4.25, 3.0
_INK, _LABEL = COLOURS["light"]["ink"], COLOURS["light"]["label"]
_STYLE = f"""<style>
.gpumagic-live .bqplot {{ pointer-events: none; background: transparent; }}
.gpumagic-live .line-elem {{ shape-rendering: crispEdges; }}
.gpumagic-live .line-elem[stroke-width="{_LINE}"] {{ shape-rendering: auto; }}
.gpumagic-live .line-elem[stroke-width="{_DOT}"] {{
  shape-rendering: auto; stroke: var(--jp-ui-font-color1, {_INK}); stroke-linecap: round; }}
.gpumagic-live .line-elem[stroke-width="{_MARK}"] {{
  shape-rendering: auto; stroke: var(--jp-ui-font-color2, {_LABEL}); stroke-dasharray: 1 2; }}
.gpumagic-live .widget-html [stroke-dasharray] {{ display: none; }}
</style>"""

_STEPS = 16
"""Heights travel as whole sixteenths of a pixel: half the bytes of a float32."""

_FEWEST_SLOTS = 4
_UNSETTLED = 20
"""How many updates it may take until the page has laid out a new figure."""

_ORDER = ("outer", "middle over outer", "middle", "inner", "line", "mark", "limit", "dot")


def _rgba(hexadecimal: str, opacity: float) -> str:
    red, green, blue = (int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.3g})"


def _colours() -> dict[str, str]:
    light = COLOURS["light"]
    use = light["use"]
    return {
        "outer": _rgba(use, OPACITY["outer"]), "middle": _rgba(use, OPACITY["middle"]),
        "middle over outer": _rgba(use, MIDDLE_OVER_OUTER), "inner": use,
        "line": light["line"], "limit": light["limit"],
        # In the style sheet too, with the page's variables, which old ipywidgets refuse here.
        "mark": _LABEL, "dot": _INK,
    }


@dataclass(frozen=True, slots=True)
class Lines:
    """The arrays of one mark: points, and a width in pixels for each segment that follows."""

    x: _Array
    y: _Array
    width: _Array


def _area(row: Row, heights: _Array) -> _Piece:
    """Return filled columns; nothing rises where nothing is known."""
    pitch = (row.panel.x1 - row.panel.x0) / len(heights)
    x = np.repeat(row.panel.x0 + (np.arange(len(heights)) + 0.5) * pitch, 2)
    y = np.full(2 * len(heights), row.top + row.height)
    y[1::2] -= np.nan_to_num(heights) * row.height
    width = np.zeros(2 * len(heights))
    width[::2] = np.where(np.isnan(heights), 0.0, pitch)
    return x, y, width


def _line(row: Row, heights: _Array) -> _Piece:
    """Return a line from edge to edge of each stretch of columns that has heights.

    The point of the first column of a gap, which is not seen, ends the stretch before it.
    Points are on whole pixels: elsewhere the joints of a flat line are paler than the rest.
    """
    count = len(heights)
    pitch = (row.panel.x1 - row.panel.x0) / count
    unknown = np.isnan(heights)
    x = np.floor(row.panel.x0 + (np.arange(count + 2) - 0.5) * pitch)
    y = row.top + row.height * (1 - np.nan_to_num(heights[[0, *range(count), -1]]))
    x[0], x[-1] = row.panel.x0, row.panel.x1
    ends = np.flatnonzero(unknown[1:] & ~unknown[:-1]) + 1
    x[ends + 1] = row.panel.x0 + ends * pitch
    y[ends + 1] = y[ends]
    width = np.zeros(count + 2)
    width[1:-1] = np.where(unknown, 0.0, _LINE)
    width[0] = width[1]
    return x, y, width


def _dot(row: Row, heights: _Array) -> _Piece:
    """Return the dot on the present value: a short segment with round ends."""
    known = bool(row.value) and not np.isnan(heights[-1])
    y = row.top + row.height * (1 - (float(heights[-1]) if known else 0.0))
    x = row.panel.x1 - 1
    return np.array([x, x + 0.01]), np.array([y, y]), np.array([_DOT if known else 0.0, 0.0])


def _segments(pieces: Iterable[_Straight], slots: int, width: float) -> _Piece:
    """Return straight pieces (x1, y1, x2, y2), with empty ones up to a constant count."""
    found = list(pieces)
    table = np.zeros((slots, 4))
    if found:
        table[: len(found)] = found
    widths = np.zeros(2 * slots)
    widths[: 2 * len(found) : 2] = width
    return table[:, [0, 2]].ravel(), table[:, [1, 3]].ravel(), widths


def _slots(count: int, least: int) -> int:
    """Return how many slots hold ``count`` pieces: at least as many as there have been."""
    while least < count:
        least *= 2
    return least


def _bottom(scene: Scene, panel: Panel) -> float:
    ends = [row.top + row.height for row in scene.rows if row.panel == panel]
    return max(ends, default=scene.plot_bottom)


def _held(scene: Scene) -> list[_Straight]:
    found: list[_Straight] = []
    for row in scene.rows:
        for part in row.limited:
            left = row.panel.x(part.x0)
            found.append((left, row.top, max(row.panel.x(part.x1), left + 1.5), row.top))
    return found


def _marked(scene: Scene) -> list[_Straight]:
    return [
        (panel.x(mark.x), scene.band_top - 1, panel.x(mark.x), _bottom(scene, panel))
        for panel in scene.panels for mark in scene.marks
    ]


def _parts(row: Row, columns: int) -> Iterator[tuple[str, _Array]]:
    """Yield the mark and the heights of each part that the row can have.

    A part without data has its place too, so that the figure need not be made anew when the
    first of them comes.
    """
    drawn = {trace.style: trace.heights for trace in row.traces}
    styles = [layer.style for layer in STRIPS[row.name].layers]
    for style in styles:
        heights = np.array(drawn.get(style) or [None] * columns, dtype=np.float64)
        over = style == "middle" and "outer" in styles
        yield "middle over outer" if over else style, heights


def lines_of(scene: Scene, slots: dict[str, int]) -> dict[str, Lines]:
    """Return the marks of a scene in the order in which they are painted.

    ``slots`` holds how many pieces the marks with a varying number of them have room for; it
    is raised to what the scene needs.
    """
    parts: dict[str, list[_Piece]] = defaultdict(list)
    for row in scene.rows:
        for name, heights in _parts(row, scene.columns):
            if name == "line":
                parts[name].append(_line(row, heights))
                parts["dot"].append(_dot(row, heights))
            else:
                parts[name].append(_area(row, heights))
    for name, pieces, width in (
        ("mark", _marked(scene), _MARK), ("limit", _held(scene), _LIMIT),
    ):
        slots[name] = _slots(len(pieces), slots.get(name, _FEWEST_SLOTS))
        parts[name].append(_segments(pieces, slots[name], width))
    unseen = np.zeros(1), np.array([scene.height]), np.zeros(1)
    found = {}
    for name in _ORDER:
        if name in parts:
            parts[name].append(unseen)
            all_x, all_y, all_width = zip(*parts[name], strict=True)
            rising = np.rint(_STEPS * (scene.height - np.concatenate(all_y)))
            found[name] = Lines(
                np.concatenate(all_x).astype(np.float32),
                np.clip(rising, 0, 0xFFFF).astype(np.uint16),
                np.concatenate(all_width).astype(np.float32),
            )
    return found


class BqplotView(WidgetView):
    """Draw what moves in one figure, over all else as one HTML widget."""

    def __init__(self, scene: Scene, extras: Sequence[Any] = ()) -> None:
        self._slots: dict[str, int] = {}
        self._sent: dict[str, Lines] = {}
        self._marks: dict[str, Any] = {}
        self._size = (0.0, 0.0)
        self._unsettled = 0
        self._text: Any = None
        self._figure: Any = None
        self._sheet: Any = None
        super().__init__(scene, extras)

    def _show(self, scene: Scene) -> None:
        lines = lines_of(scene, self._slots)
        text = picture(scene, traces=False)
        if self._size != (scene.width, scene.height) or not self._fits(lines):
            with quiet():
                self._make(scene, lines, text)
            return
        self._text.value = text
        self._unsettled = max(0, self._unsettled - 1)
        for name, new in lines.items():
            mark, old = self._marks[name], self._sent[name]
            redraw = self._unsettled > 0 or not np.array_equal(old.width, new.width)
            new.y[-1] = 1 - old.y[-1] if redraw else old.y[-1]
            with mark.hold_sync():
                for trait in ("x", "y", "width"):
                    array = getattr(new, trait)
                    if not np.array_equal(getattr(old, trait), array):
                        setattr(mark, trait, array)
        self._sent = lines

    def _fits(self, lines: dict[str, Lines]) -> bool:
        sent = {name: len(part.x) for name, part in self._sent.items()}
        return sent == {name: len(part.x) for name, part in lines.items()}

    def _make(self, scene: Scene, lines: dict[str, Lines], text: str) -> None:
        """Make the children anew: the first time, and when a row comes, goes or moves."""
        if self._sheet is None:
            self._sheet = html(_STYLE, {"display": "none"})
        size = exact(scene.width, scene.height)
        fixed = {"allow_padding": False}
        scales = {
            "x": bqplot.LinearScale(min=0.0, max=scene.width, **fixed),
            "y": bqplot.LinearScale(min=0.0, max=_STEPS * scene.height, **fixed),
            # FlexLine maps widths to 0.5 and up to stroke_width: so a width means pixels.
            "width": bqplot.LinearScale(min=0.5, max=1.5, **fixed),
        }
        colours = _colours()
        self._marks = {
            name: bqplot.FlexLine(
                x=part.x, y=part.y, width=part.width, colors=[colours[name]], stroke_width=1.5,
                scales=scales,
            )
            for name, part in lines.items()
        }
        self._figure = bqplot.Figure(
            marks=list(self._marks.values()), scale_x=scales["x"], scale_y=scales["y"],
            fig_margin={"top": 0, "bottom": 0, "left": 0, "right": 0}, padding_x=0.0,
            padding_y=0.0, background_style={"fill": "transparent"}, display_toolbar=False,
            animation_duration=0, layout=size,
        )
        self._text = html(text, size)
        self._sent = lines
        self._unsettled = _UNSETTLED
        self._size = scene.width, scene.height
        self._put(self._sheet, self._text, self._figure)
