"""The live view as inline SVG in HTML widgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .live_widgets import WidgetView, exact, quiet
from .pages import COLUMNS, Due, Layout, Series
from .stretches import draw

with quiet():
    import ipywidgets

__all__ = ["SvgView"]


class SvgView(WidgetView):
    """Draw each page as inline SVG."""

    def _make_pages(self, layout: Layout) -> list[Any]:
        size = exact(COLUMNS * layout.pitch, layout.height)
        first = ipywidgets.HTML(layout=size | {"overflow": "visible", "flex": "none"})
        # Models that pages share are models fewer.
        shared = {"layout": first.layout, "style": first.style}
        return [first, *(ipywidgets.HTML(**shared) for _ in range(layout.pages - 1))]

    def _draw_page(
        self, page: Any, layout: Layout, series: Sequence[Series], due: Due
    ) -> None:
        page.value = draw(series, layout, due.low, due.high, 0.0)
