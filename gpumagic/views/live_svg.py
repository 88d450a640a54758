"""The live view as one HTML widget with inline SVG."""

from __future__ import annotations

from typing import Any

from .live_widgets import WidgetView, exact, html, picture
from .parts import Scene

__all__ = ["SvgView"]


class SvgView(WidgetView):
    """Draw a scene as inline SVG, sent as a whole whenever it changes."""

    _html: Any = None
    _size: tuple[float, float] = (0.0, 0.0)

    def _show(self, scene: Scene) -> None:
        value = picture(scene, traces=True)
        if self._size != (scene.width, scene.height):
            self._size = scene.width, scene.height
            self._html = html(value, exact(*self._size))
            self._put(self._html)
        else:
            self._html.value = value
