"""A scene as one self-contained SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from html import escape
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from .drawing import fixed_shapes, moving_shapes, shapes
from .parts import Scene
from .sentences import sentences
from .shapes import Area, Box, Dot, Paint, Point, Run, Shape, Stroke, Text

__all__ = ["COLOURS", "Theme", "body", "render", "size_and_font"]

Theme = Literal["auto", "light", "dark"]

_LIGHT: Mapping[str, str] = MappingProxyType({
    "use": "#2f7fc1", "line": "#8c8c8c", "limit": "#d9730d", "ink": "#212121",
    "label": "#616161", "rule": "#c4c4c4", "hair": "#e4e4e4", "page": "#ffffff",
})
_DARK: Mapping[str, str] = MappingProxyType({
    **_LIGHT, "ink": "#e4e4e4", "label": "#a3a3a3", "rule": "#4f4f4f", "hair": "#333333",
    "page": "#111111",
})
COLOURS: Mapping[str, Mapping[str, str]] = MappingProxyType({"light": _LIGHT, "dark": _DARK})
"""The colours of both themes; the marks' are the same in both."""

_VARIABLES = {
    "ink": "--jp-ui-font-color1", "label": "--jp-ui-font-color2", "rule": "--jp-border-color1",
    "hair": "--jp-border-color2",
}
_FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_MONO = "ui-monospace,Menlo,Consolas,monospace"


_ANCHORS = {"start": "", "middle": ' text-anchor="middle"', "end": ' text-anchor="end"'}


@lru_cache
def _colour(paint: Paint, theme: Theme) -> str:
    if theme != "auto":
        return COLOURS[theme][paint]
    variable = _VARIABLES.get(paint)
    return f"var({variable},{_LIGHT[paint]})" if variable else _LIGHT[paint]


@lru_cache(maxsize=4096)
def _n(value: float) -> str:
    """Write a number as short as SVG takes it."""
    if value == int(value):
        return str(int(value))
    text = f"{value:.1f}".removesuffix(".0")
    if text == "-0":
        return "0"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _path(points: Iterable[Point], base: float | None = None) -> str:
    """Write points as relative moves in tenths, summed from rounded places so none drift."""
    tenths = [(round(x * 10), round(y * 10)) for x, y in points]
    kept = tenths[:1]
    for before, here, after in zip(tenths, tenths[1:], tenths[2:], strict=False):
        if not before[1] == here[1] == after[1]:
            kept.append(here)
    kept += tenths[1:][-1:]
    parts = [f"M{_n(kept[0][0] / 10)} {_n(kept[0][1] / 10)}"]
    command = ""
    for (x0, y0), (x1, y1) in pairwise(kept):
        wanted = "h" if y0 == y1 else "l"
        text = _n((x1 - x0) / 10)
        if wanted == "l":
            y = _n((y1 - y0) / 10)
            text += y if y.startswith("-") else f" {y}"
        joint = wanted if wanted != command else ("" if text.startswith("-") else " ")
        parts.append(joint + text)
        command = wanted
    if base is not None:
        parts.append(f"V{_n(base)}H{_n(kept[0][0] / 10)}z")
    return "".join(parts)


def _area(area: Area) -> str:
    d = "".join(_path(points, area.base) for points in area.stretches)
    opacity = "" if area.opacity == 1 else f' opacity="{area.opacity:.3g}"'
    return f'<path d="{d}"{opacity}/>'


def _stroke(stroke: Stroke) -> str:
    d = "".join(
        f"M{_n(a[0])} {_n(a[1])}" + (f"V{_n(b[1])}" if a[0] == b[0] else f"H{_n(b[0])}")
        if len(points) == 2 else _path(points)
        for points in stroke.stretches for a, b in [(points[0], points[-1])]
    )
    dotted = ' stroke-dasharray="1 2"' if stroke.dotted else ""
    return f'<path d="{d}" stroke-width="{_n(stroke.width)}"{dotted}/>'


def _dot(dot: Dot, colour: str) -> str:
    paint = f' fill="none" stroke="{colour}" stroke-width="1.6"' if dot.hollow else ""
    radius = dot.radius - (0.8 if dot.hollow else 0)
    return f'<circle cx="{_n(dot.x)}" cy="{_n(dot.y)}" r="{_n(radius)}"{paint}/>'


def _box(box: Box) -> str:
    opacity = "" if box.opacity == 1 else f' opacity="{box.opacity:.3g}"'
    return (
        f'<path d="M{_n(box.x)} {_n(box.y)}h{_n(box.width)}v{_n(box.height)}'
        f'H{_n(box.x)}z"{opacity}/>'
    )


@lru_cache(maxsize=256)
def _style(size: float, ink: Paint, bold: bool, mono: bool, theme: Theme) -> str:
    style = f'font-size="{_n(size)}" fill="{_colour(ink, theme)}"'
    if bold:
        style += ' font-weight="600"'
    if mono:
        style += f' font-family="{_MONO}"'
    return style


def _text(text: Text, theme: Theme) -> str:
    first = text.runs[0]
    inner = escape(first.text) if not first.mono else _span(first, theme)
    for run in text.runs[1:]:
        inner += _span(run, theme)
    anchor = _ANCHORS[text.anchor]
    return f'<text x="{_n(text.x)}" y="{_n(text.y)}"{anchor}>{inner}</text>'


def _span(run: Run, theme: Theme) -> str:
    style = _style(run.size, run.ink, run.bold, run.mono, theme)
    if run.gap:
        style += f' dx="{_n(run.gap)}"'
    if not run.bold:
        # The first run's weight would be inherited.
        style += ' font-weight="400"'
    return f"<tspan {style}>{escape(run.text)}</tspan>"


def _group(shape: Shape, theme: Theme) -> str:
    """Return the attributes that a shape shares with its neighbours."""
    match shape:
        case Text():
            first = shape.runs[0]
            return _style(first.size, first.ink, first.bold, False, theme)
        case Stroke():
            # Rules and hairlines are straight: on whole pixels of the screen, at any zoom.
            crisp = "" if shape.paint == "line" else ' shape-rendering="crispEdges"'
            return f'fill="none" stroke="{_colour(shape.paint, theme)}"{crisp}'
        case _:
            return f'fill="{_colour(shape.paint, theme)}"'


def _element(shape: Shape, theme: Theme) -> str:
    match shape:
        case Text():
            return _text(shape, theme)
        case Stroke():
            return _stroke(shape)
        case Area():
            return _area(shape)
        case Dot():
            return _dot(shape, _colour(shape.paint, theme))
        case Box():
            return _box(shape)


@lru_cache(maxsize=2048)
def _kept(shape: Text | Box | Dot, theme: Theme) -> tuple[str, str]:
    """Write a shape that is likely to be there again in the next update, and its group."""
    return _group(shape, theme), _element(shape, theme)


def _written(shape: Shape, theme: Theme) -> tuple[str, str]:
    """Return the attributes that a shape shares with its neighbours, and its element."""
    if isinstance(shape, (Text, Box, Dot)):
        return _kept(shape, theme)
    return _group(shape, theme), _element(shape, theme)


def body(drawn: Iterable[Shape], theme: Theme = "auto") -> str:
    """Write shapes as groups that share their attributes.

    Texts lie on nothing and under nothing: they come last, sorted by style.
    """
    parts: list[str] = []
    texts: dict[str, list[str]] = {}
    before = ""
    for shape in drawn:
        style, element = _written(shape, theme)
        if isinstance(shape, Text):
            texts.setdefault(style, []).append(element)
            continue
        if style != before:
            parts.append(f"{'</g>' if before else ''}<g {style}>")
            before = style
        parts.append(element)
    if before:
        parts.append("</g>")
    for style in sorted(texts):
        parts += (f"<g {style}>", *texts[style], "</g>")
    return "".join(parts)


def size_and_font(width: float, height: float, style: str) -> str:
    """Write the attributes of an ``<svg>`` of that size that its texts inherit, and its style."""
    return (
        f'width="{_n(width)}" height="{_n(height)}" font-family="var(--jp-ui-font-family,{_FONT})"'
        f' style="{style};font-variant-numeric:tabular-nums"'
    )


def render(scene: Scene, theme: Theme = "auto", *, traces: bool = True) -> str:
    """Write a scene as one ``<svg>`` element, without scripts or styles that leak.

    ``theme="auto"`` takes ink and labels from JupyterLab's CSS variables and has no
    background; "light" and "dark" write the colours out and paint the page, for a file of its
    own. ``traces=False`` leaves out what lies inside the plots.
    """
    drawn = shapes(scene) if traces else [*fixed_shapes(scene), *moving_shapes(scene)]
    width, height = _n(scene.width), _n(scene.height)
    title, *rest = sentences(scene)
    page = "" if theme == "auto" else (
        f'<path d="M-8-8h{_n(scene.width + 16)}v{_n(scene.height + 16)}H-8z"'
        f' fill="{COLOURS[theme]["page"]}"/>'
    )
    margin = 0 if theme == "auto" else 8
    box = f"{-margin} {-margin} {_n(scene.width + 2 * margin)} {_n(scene.height + 2 * margin)}"
    if margin:
        width, height = _n(scene.width + 2 * margin), _n(scene.height + 2 * margin)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}"'
        f' viewBox="{box}" font-family="var(--jp-ui-font-family,{_FONT})"'
        f' style="font-variant-numeric:tabular-nums">'
        f"<title>{escape(title)}</title><desc>{escape(' '.join(rest))}</desc>"
        f"{page}{body(drawn, theme)}</svg>"
    )
