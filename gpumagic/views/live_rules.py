"""Rules of style of the live view: how its layers lie, where pages are cut off, what is narrow."""

from __future__ import annotations

from collections.abc import Iterator

from .pages import COLUMNS, Layout, View

__all__ = ["LINE", "NARROWEST", "places", "rules"]

LINE = 1.375
"""The width in pixels that says of a segment of bqplot's that it belongs to a line."""

_LAYERS = f"""
:where(.gpumagic-live) > * {{ grid-area: 1 / 1; position: relative; z-index: 0 }}
.gpumagic-live {{ container-type: inline-size }}
.gpumagic-moving, .gpumagic-words {{ pointer-events: none }}
.gpumagic-pages > * {{ position: relative }}
.gpumagic-pages > .bqplot {{ pointer-events: none; background: transparent }}
.gpumagic-pages .line-elem {{ shape-rendering: crispEdges }}
.gpumagic-pages .line-elem[stroke-width="{LINE}"] {{ shape-rendering: auto }}
"""

_ZOOMS = tuple(sixteenths / 16 for sixteenths in range(15, 9, -1))
"""Sixteenths keep the edges of pages on the 64ths of a pixel that browsers lay out by."""

NARROWEST = _ZOOMS[-1]
"""How small a view becomes on a narrow page, as a fraction of its size.

Smaller words could not be read: the page scrolls then.
"""


def _window(layout: Layout) -> str:
    """Return what cuts the pages off at the panels' edges, where there is more than one panel."""
    if len(layout.panels) < 2:
        return "none"
    width = layout.panels[0].x1 - layout.panels[0].x0
    corners = "".join(
        f",{x:g}px 0,{x + width:g}px 0,{x + width:g}px 100%,{x:g}px 100%,{x:g}px 0"
        for x in layout.lefts
    )
    return f"polygon(0 0{corners},0 0)"


def _narrow(layout: Layout, key: str) -> Iterator[str]:
    """Yield the rules for pages too narrow for the view, from the widest of them on.

    A figure of bqplot measures itself on the screen, but is not told of another zoom. So it
    keeps its size, and its picture is scaled.
    """
    page = COLUMNS * layout.pitch
    span = layout.lefts[-1] + page
    room = layout.width
    for zoom in _ZOOMS:
        yield (
            f"@container (max-width: {room - 0.5:g}px) {{\n"
            f".{key} > * {{ zoom: {zoom:g} }}\n"
            f".{key} .bqplot {{ zoom: {1 / zoom:g}; --gpumagic-zoom: {zoom:g};"
            f" margin-right: {zoom * page - span:g}px !important }}\n"
            f".{key} .bqplot > svg {{ transform: scale({zoom:g}); transform-origin: 0 0 }}\n"
            "}\n"
        )
        room = layout.width * zoom


def rules(layout: Layout, key: str) -> str:
    """Return the rules of a view with this layout, of which the root has the class ``key``."""
    window = f".{key} > .gpumagic-pages {{ clip-path: {_window(layout)} }}\n"
    return f"<style>{_LAYERS}{window}{''.join(_narrow(layout, key))}</style>"


def places(layout: Layout, key: str, view: View) -> str:
    """Return the rules that shift the pages of such a view.

    Pages that have left the window are hidden: beside a panel of a table there is another one.
    """
    page, zoom = f".{key}>.gpumagic-pages>", "var(--gpumagic-zoom,1)"
    left, right = view.shift * layout.pitch, view.end * layout.pitch
    return (
        f"<style>{page}*{{left:calc({left:g}px*{zoom})}}"
        f"{page}:nth-child(-n+{view.turned}){{left:calc({right:g}px*{zoom})}}</style>"
        f"{_hidden(layout, key, view)}"
    )


def _hidden(layout: Layout, key: str, view: View) -> str:
    over = -(view.shift + view.turned * COLUMNS) // COLUMNS
    if over <= 0 or len(layout.panels) < 2:
        return ""
    numbers = [(view.turned + number) % layout.pages + 1 for number in range(over)]
    pages = ",".join(f".{key}>.gpumagic-pages>:nth-child({number})" for number in numbers)
    return f"<style>{pages}{{visibility:hidden}}</style>"
