"""What the live views share: one root widget, its layers, and the life of the models in it.

The layers lie above each other: what changes only with the layout, the pages of finished columns
(:mod:`.pages`), and what moves. An update sends little more than the last: the newest columns,
the figures, and the rules of style that shift the pages. As one message carries it all, nothing
is seen twice, or missing, while a page is turned.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any
from uuid import uuid4

from . import svg
from .drawing import fixed_shapes, moving_shapes
from .live_rules import NARROWEST, places, rules
from .pages import Due, Layout, Ring, Series, View, series_of
from .parts import Scene, State
from .sentences import sentences
from .shapes import Shape, Text
from .stretches import draw


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings of the widget packages, about themselves, from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():
    import ipywidgets

__all__ = ["WidgetView", "close_all", "exact", "html", "quiet", "resize"]

_PLACE = "1 / 1"
_MARGIN_PX = 8
"""That of the PNG: nothing jumps when the view stops."""

_WORDS_PERIOD_S = 5.0
"""Nobody listens to four sentences a second."""


def exact(width: float, height: float) -> dict[str, str]:
    """Return a layout of exactly that size, in the one place of the root's grid."""
    x, y = f"{width:g}px", f"{height:g}px"
    return {
        "width": x, "height": y, "min_width": x, "min_height": y, "max_width": x,
        "margin": "0", "padding": "0", "overflow": "hidden", "grid_area": _PLACE,
    }


def resize(layout: Any, width: float, height: float, **more: str) -> None:
    """Give a layout exactly that size, and what more is given, in one message."""
    with layout.hold_sync():
        for name, value in {**exact(width, height), **more}.items():
            setattr(layout, name, value)


def html(value: str, layout: dict[str, str]) -> Any:
    """Make an HTML widget."""
    return ipywidgets.HTML(value, layout=layout)


def _drawing(layout: Layout, body: str, place: str = "display:block") -> str:
    """Write inline SVG that leaves no room for a line of text around it."""
    size = svg.size_and_font(layout.width, layout.height, place)
    return f'<svg {size} aria-hidden="true">{body}</svg>'


def _moving(scene: Scene) -> str:
    """Write what moves; the figures of now can be hidden by what tells those of another time."""
    figures: list[Shape] = []
    others: list[Shape] = []
    for shape in moving_shapes(scene):
        now = isinstance(shape, Text) and shape.anchor == "end" and shape.x != scene.label_x
        (figures if now else others).append(shape)
    return f'{svg.body(others)}<g class="gpumagic-now">{svg.body(figures)}</g>'


def _words(scene: Scene, layout: Layout) -> str:
    """Write a scene in words as a picture of nothing, for whoever has it read out."""
    title, *rest = sentences(scene)
    return (
        f'<svg role="img" width="{layout.width:g}" height="{layout.height:g}"'
        f' style="display:block"><title>{escape(title)}</title>'
        f"<desc>{escape(' '.join(rest))}</desc></svg>"
    )


def _models(value: Any, found: dict[int, Any]) -> None:
    """Collect a widget and all that its synchronized traits hold."""
    if isinstance(value, ipywidgets.Widget):
        if id(value) in found:
            return
        found[id(value)] = value
        for name in value.keys:
            _models(getattr(value, name, None), found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _models(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _models(item, found)


def close_all(*widgets: Any) -> None:
    """Close widgets and every model that they use; ``Widget.close`` leaves those alive."""
    found: dict[int, Any] = {}
    _models(widgets, found)
    for widget in found.values():
        widget.close()


class WidgetView:
    """A root widget of which the children change; see :class:`.live.View`.

    The root is a grid with one place, in which the children lie above each other. On a narrow
    page they are smaller, and scroll where that is not enough. Renderers say what a page is.
    """

    steps = False
    """Whether areas are drawn as columns with flat tops."""

    behind = False
    error: Exception | None = None

    def __init__(
        self, scene: Scene, extras: Sequence[Any] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._page = _page()
        self._extras = tuple(extras)
        self._clock = clock
        self._closed = self._still = False
        self._layout: Layout | None = None
        self._fixed_shapes: list[Shape] = []
        self._told: tuple[State, str | None] | None = None
        self._words_due = 0.0
        self._key = f"gpumagic-{uuid4().hex[:8]}"
        self._made: list[Any] = []
        with quiet():
            self.root = ipywidgets.GridBox(
                layout={"margin": "0", "padding": f"{_MARGIN_PX}px", "overflow": "auto hidden"}
            )
            self.root.add_class("gpumagic-live")
            self.root.add_class(self._key)
            try:
                self._show(scene)
            except BaseException:
                self.close()
                raise

    # -- pages, which are the renderer's ------------------------------------------------------

    def _make_pages(self, layout: Layout) -> list[Any]:
        """Make the empty pages of a view; each is as wide as its columns, and hides nothing."""
        raise NotImplementedError

    def _draw_page(
        self, page: Any, layout: Layout, series: Sequence[Series], due: Due
    ) -> None:
        """Draw the columns that are due on a page."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Do what is left to do for the pages drawn by the last update."""

    # -- layers -------------------------------------------------------------------------------

    def _show(self, scene: Scene) -> None:
        """Bring the layers up to date, or make them."""
        layout = Layout.of(scene)
        anew = layout != self._layout
        if anew:
            with quiet():
                self._make(layout)
        self._settle()
        series = series_of(scene)
        due, view = self._ring.turn(scene, series)
        for one in due:
            self._draw_page(self._pages.children[one.slot], layout, series, one)
        shapes = fixed_shapes(scene)
        if shapes != self._fixed_shapes:
            self._fixed_shapes = shapes
            self._fixed.value = rules(layout, self._key) + _drawing(layout, svg.body(shapes))
        told = (scene.state, scene.notice)
        if told != self._told or self._clock() >= self._words_due:
            self._told, self._words_due = told, self._clock() + _WORDS_PERIOD_S
            self._words.value = _words(scene, layout)
        self._moving.value = self._motion(scene, layout, series, view)
        if anew:
            self._layout = layout
            # Its width is that of the page, not that of what it holds; see live_rules.
            self.root.layout.min_width = f"{layout.width * NARROWEST + 2 * _MARGIN_PX:g}px"
            self._put(self._fixed, self._pages, self._moving, self._words)

    def _make(self, layout: Layout) -> None:
        """Make the layers anew: the first time, and when a row comes, goes or moves."""
        self._made = []
        size = self._own(ipywidgets.Layout(**exact(layout.width, layout.height)))
        self._fixed = self._layer("fixed", size)
        self._moving = self._layer("moving", size)
        self._words = self._layer("words", size)
        pages = self._own(self._make_pages(layout))
        place = exact(layout.span, layout.height) | {"margin": f"0 0 0 {layout.x0:g}px"}
        self._pages = self._own(ipywidgets.Box(pages, layout=place))
        self._pages.add_class("gpumagic-pages")
        self._ring = Ring(layout)
        self._fixed_shapes = []
        self._told = None

    def _own(self, widgets: Any) -> Any:
        """Keep widgets that have no place in the root yet, so that they are closed in any case."""
        self._made.append(widgets)
        return widgets

    def _layer(self, name: str, layout: Any) -> Any:
        layer = self._own(ipywidgets.HTML(layout=layout))
        layer.add_class(f"gpumagic-{name}")
        return layer

    def _motion(
        self, scene: Scene, layout: Layout, series: Sequence[Series], view: View
    ) -> str:
        """Write what changes with an update: where the pages are, the tail and all that moves."""
        tail = draw(
            series, layout, view.tail, scene.columns, layout.x0 + view.tail * layout.pitch,
            steps=self.steps,
        )
        text = _drawing(layout, _moving(scene), "position:absolute;top:0;left:0")
        return places(layout, self._key, view) + tail + text

    # -- life ---------------------------------------------------------------------------------

    def _put(self, *children: Any) -> None:
        """Make widgets the root's children and close those that it had, in this order."""
        before = self.root.children
        children = (*children, *(w for extra in self._extras for w in extra.widgets()))
        self.root.children = children
        kept = set(map(id, children))
        close_all(*(child for child in before if id(child) not in kept))

    def bundle(self) -> dict[str, Any]:
        """Return the mimebundle that shows the view."""
        return {
            "application/vnd.jupyter.widget-view+json": {
                "version_major": 2, "version_minor": 0, "model_id": self.root.model_id,
            }
        }

    def update(self, scene: Scene) -> None:
        """Show another scene; what has not changed is not sent again."""
        if not (self._closed or self._still):
            self._show(scene)
            for extra in self._extras:
                extra.update(scene)

    def lost(self) -> bool:
        """Tell whether a page was loaded since the view was made."""
        return _page() is not self._page

    def replace(self, bundle: dict[str, Any]) -> None:
        """Put a still picture in the place of what moves."""
        if self._closed:
            return
        self._still = True
        self._extras = ()
        self._made = []
        image = (
            f'<img src="data:image/png;base64,{bundle["image/png"]}"'
            f' width="{bundle["width"]}" alt="{escape(bundle["text/plain"])}"'
            f' style="display:block;max-width:none;margin:-{_MARGIN_PX}px">'
        )
        with quiet():
            self._put(html(image, {"margin": "0", "overflow": "visible", "grid_area": _PLACE}))

    def close(self) -> None:
        """Close every model of the view, also of one that could not be made."""
        self._closed = True
        close_all(self.root, self._made)


def _page() -> object:
    """Return what a front end opens anew when a page connects, or ``None`` before the first."""
    return getattr(ipywidgets.Widget, "_control_comm", None)
