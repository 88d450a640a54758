"""What the live views share: one root widget, and the life of the models in it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from . import svg
from .parts import Scene


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings of the widget packages, about themselves, from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():
    import ipywidgets

__all__ = ["WidgetView", "close_all", "exact", "html", "picture", "quiet"]

_PLACE = "1 / 1"
_MARGIN_PX = 8
"""That of the PNG: nothing jumps when the view stops."""


def exact(width: float, height: float) -> dict[str, str]:
    """Return a layout of exactly that size, in the one place of the root's grid."""
    x, y = f"{width:g}px", f"{height:g}px"
    return {
        "width": x, "height": y, "min_width": x, "min_height": y, "max_width": x,
        "margin": "0", "padding": "0", "overflow": "hidden", "grid_area": _PLACE,
    }


def html(value: str, layout: dict[str, str]) -> Any:
    """Make an HTML widget."""
    return ipywidgets.HTML(value, layout=layout)


def picture(scene: Scene, *, traces: bool) -> str:
    """Write a scene as inline SVG that leaves no room for a line of text around it."""
    return f'<div style="display:flex">{svg.render(scene, "auto", traces=traces)}</div>'


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

    The root is a grid with one place, in which the children lie above each other. It scrolls
    where the page is narrower than the scene.
    """

    def __init__(self, scene: Scene, extras: Sequence[Any] = ()) -> None:
        self._page = _page()
        self._extras = tuple(extras)
        self._closed = self._still = False
        with quiet():
            self.root = ipywidgets.GridBox(
                layout={"margin": "0", "padding": f"{_MARGIN_PX}px", "overflow": "auto hidden"}
            )
            self.root.add_class("gpumagic-live")
            try:
                self._show(scene)
            except BaseException:
                self.close()
                raise

    def _show(self, scene: Scene) -> None:
        """Bring the root's children up to date, or make them."""
        raise NotImplementedError

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
        close_all(*vars(self).values())


def _page() -> object:
    """Return what a front end opens anew when a page connects, or ``None`` before the first."""
    return getattr(ipywidgets.Widget, "_control_comm", None)
