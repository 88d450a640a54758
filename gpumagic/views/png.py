"""A scene as a PNG, for readers that show no SVG."""

from __future__ import annotations

import io
import unicodedata
from functools import lru_cache
from typing import Literal

from PIL import Image, ImageColor, ImageDraw, ImageFont

from .drawing import shapes
from .parts import Scene
from .shapes import OPACITY, Area, Box, Dot, Paint, Point, Run, Shape, Stroke, Text
from .svg import COLOURS

__all__ = ["render"]

_MARGIN = 8
_FINER = 2
"""Pillow draws hard edges: shapes are drawn this much larger and made smaller again."""

_REPLACED = str.maketrans({
    "−": "-", "–": "-", "—": "-", "×": "x", "µ": "u", "μ": "u", "²": "2", "³": "3", "→": ">",
    "≤": "<", "≥": ">", "\u00a0": " ", "\u202f": " ",
})

Colour = tuple[int, int, int]
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


_STEPS: tuple[tuple[Paint, int], ...] = (
    ("ink", 20), ("label", 16), ("use", 24), ("line", 12), ("limit", 12), ("rule", 6), ("hair", 2)
)
"""Shades kept between the page and each paint; they are all that a picture needs."""


@lru_cache(maxsize=32)
def _font(size: float) -> _Font:
    return ImageFont.load_default(size)


@lru_cache(maxsize=512)
def _has(character: str) -> bool:
    """Say whether Pillow's own font has a character, by comparing it with one it cannot have."""
    font = _font(20)
    shape, unknown = font.getmask(character), font.getmask("\ue123")
    return shape.size != unknown.size or bytes(shape) != bytes(unknown)


def writable(text: str) -> str:
    """Put in place of what Pillow's own font lacks what comes nearest, or a question mark."""
    found = []
    for character in text.translate(_REPLACED):
        if not _has(character):
            plain = unicodedata.normalize("NFKD", character)[0]
            character = plain if plain != character and _has(plain) else "?"
        found.append(character)
    return "".join(found)


class _Canvas:
    """An image, twice: shapes in fine pixels, then texts in those of the result."""

    def __init__(self, scene: Scene, scale: float, theme: str) -> None:
        self._colours = COLOURS[theme]
        self._scale = scale
        self._size = (
            round((scene.width + 2 * _MARGIN) * scale), round((scene.height + 2 * _MARGIN) * scale)
        )
        fine = (self._size[0] * _FINER, self._size[1] * _FINER)
        self._fine = Image.new("RGB", fine, self._colours["page"])
        self._draw = ImageDraw.Draw(self._fine)
        self._step = scale * _FINER

    def _rgb(self, paint: Paint | Literal["page"]) -> Colour:
        return ImageColor.getrgb(self._colours[paint])[:3]

    def _at(self, point: Point) -> Point:
        return (point[0] + _MARGIN) * self._step, (point[1] + _MARGIN) * self._step

    def _mixed(self, paint: Paint, opacity: float) -> Colour:
        ink, page = self._rgb(paint), self._rgb("page")
        r, g, b = (round(p + (i - p) * opacity) for i, p in zip(ink, page, strict=True))
        return r, g, b

    def _box(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        (x0, y0), (x1, y1) = self._at((x, y)), self._at((x + width, y + height))
        # Pillow's rectangle takes its far edge in, and refuses one that lies before the near.
        left, top = round(x0), round(y0)
        far = max(left, round(x1) - 1), max(top, round(y1) - 1)
        self._draw.rectangle((left, top, *far), colour)

    def _area(self, area: Area) -> None:
        for points in area.stretches:
            corners = [(points[0][0], area.base), *points, (points[-1][0], area.base)]
            colour = self._mixed(area.paint, area.tone)
            self._draw.polygon([self._at(c) for c in corners], colour)

    def _stroke(self, stroke: Stroke) -> None:
        colour = self._rgb(stroke.paint)
        half = stroke.width / 2
        for points in stroke.stretches:
            (x0, y0), (x1, y1) = points[0], points[-1]
            if len(points) == 2 and x0 == x1:
                step = 3 if stroke.dotted else y1 - y0
                length = 1 if stroke.dotted else y1 - y0
                y = y0
                while y < y1:
                    self._box(x0 - half, y, stroke.width, length, colour)
                    y += step
            elif len(points) == 2:
                self._box(x0, y0 - half, x1 - x0, stroke.width, colour)
            else:
                width = round(stroke.width * self._step)
                self._draw.line([self._at(p) for p in points], colour, width, joint="curve")

    def _dot(self, dot: Dot) -> None:
        x, y = self._at((dot.x, dot.y))
        r = dot.radius * self._step
        self._draw.ellipse((x - r, y - r, x + r, y + r), self._rgb(dot.paint))
        if dot.hollow:
            r -= 1.6 * self._step
            self._draw.ellipse((x - r, y - r, x + r, y + r), self._rgb("page"))

    def shape(self, shape: Shape) -> None:
        """Draw anything but a text."""
        match shape:
            case Area():
                self._area(shape)
            case Box():
                colour = self._mixed(shape.paint, shape.opacity)
                self._box(shape.x, shape.y, shape.width, shape.height, colour)
            case Stroke():
                self._stroke(shape)
            case Dot():
                self._dot(shape)

    def finish(self, texts: list[Text]) -> Image.Image:
        """Make the shapes smaller and write the texts over them."""
        image = self._fine.resize(self._size, Image.Resampling.BOX)
        draw = ImageDraw.Draw(image)
        for text in texts:
            runs = [(run, writable(run.text), _font(run.size * self._scale)) for run in text.runs]
            width = sum(
                run.gap * self._scale + font.getlength(words) for run, words, font in runs
            )
            x = (text.x + _MARGIN) * self._scale
            x -= {"start": 0.0, "middle": width / 2, "end": width}[text.anchor]
            y = (text.y + _MARGIN) * self._scale
            for run, words, font in runs:
                x += run.gap * self._scale
                self._write(draw, (x, y), run, words, font)
                x += font.getlength(words)
        return image

    def palette(self) -> Image.Image:
        """Return the palette of the theme; one made from the image would lose small marks."""
        shades = [self._rgb("page")]
        for paint, steps in _STEPS:
            shades += [self._mixed(paint, (step + 1) / steps) for step in range(steps)]
        shades += [self._mixed("use", opacity) for opacity in OPACITY.values()]
        found = Image.new("P", (1, 1))
        found.putpalette([value for shade in shades for value in shade])
        return found

    def _write(self, draw: ImageDraw.ImageDraw, at: Point, run: Run, words: str,
               font: _Font) -> None:
        colour = self._rgb(run.ink)
        draw.text(at, words, colour, font, anchor="ls")
        if run.bold:
            # Pillow's own font has one weight; a second stroke beside the first makes another.
            draw.text((at[0] + 0.55 * self._scale, at[1]), words, colour, font, anchor="ls")


def render(
    scene: Scene, *, scale: float = 2, theme: Literal["light", "dark"] = "light"
) -> bytes:
    """Draw a scene as a PNG with ``scale`` pixels a CSS pixel, on a page of its own.

    It carries its background, so that it can be read on light and on dark pages. The font is
    the one in Pillow (10.1 and newer), which is there wherever Pillow is.
    """
    canvas = _Canvas(scene, scale, theme)
    drawn = shapes(scene)
    for shape in drawn:
        if not isinstance(shape, Text):
            canvas.shape(shape)
    image = canvas.finish([s for s in drawn if isinstance(s, Text)])
    out = io.BytesIO()
    palette = canvas.palette()
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()
