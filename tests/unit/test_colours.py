"""Colours, as they are seen with any kind of colour vision, and in print without colour.

Distances are those of CIE 1976 L*a*b*: 2.3 is just noticed side by side, 10 is seen at a glance.
"""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from gpumagic.views.shapes import OPACITY
from gpumagic.views.svg import COLOURS

Colour = tuple[float, float, float]
Matrix = tuple[Colour, Colour, Colour]

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISION: dict[str, Matrix] = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
LUMINANCE: Colour = (0.2126, 0.7152, 0.0722)
XYZ: Matrix = (
    (0.4124, 0.3576, 0.1805), LUMINANCE, (0.0193, 0.1192, 0.9505),
)
WHITE: Colour = (0.9505, 1.0, 1.0888)


def rgb(text: str) -> Colour:
    red, green, blue = (int(text[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def mixed(top: Colour, below: Colour, opacity: float) -> Colour:
    red, green, blue = (a * opacity + b * (1 - opacity) for a, b in zip(top, below, strict=True))
    return red, green, blue


def times(matrix: Matrix, colour: Colour) -> Colour:
    x, y, z = (sum(a * b for a, b in zip(row, colour, strict=True)) for row in matrix)
    return x, y, z


def linear(colour: Colour) -> Colour:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return red, green, blue


def lab(light: Colour) -> Colour:
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (a / b for a, b in zip(times(XYZ, light), WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: Colour, vision: str) -> Colour:
    """Return a colour as it is seen, in L*a*b*."""
    red, green, blue = (
        min(1.0, max(0.0, c)) for c in times(VISION[vision], linear(colour))
    )
    return lab((red, green, blue))


def apart(one: Colour, other: Colour) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5


def paints(theme: str) -> dict[str, Colour]:
    """Return what a strip is painted with, on the page of a theme."""
    colours = {name: rgb(text) for name, text in COLOURS[theme].items()}
    page = colours["page"]
    parts = {p: mixed(colours["use"], page, OPACITY[p]) for p in ("outer", "middle", "inner")}
    return {"page": page, **parts, "other": colours["line"], "limit": colours["limit"]}


def lightness(theme: str) -> dict[str, float]:
    """Return how light each paint is, which is all that is left of it without colour."""
    return {name: lab(linear(colour))[0] for name, colour in paints(theme).items()}


@pytest.mark.parametrize("theme", COLOURS)
@pytest.mark.parametrize("vision", VISION)
def test_meanings_are_told_apart_by_everyone(theme: str, vision: str) -> None:
    """Use, others, limits and the page differ at a glance, whatever colours someone sees."""
    found = {name: seen(colour, vision) for name, colour in paints(theme).items()}
    for one, other in combinations(found, 2):
        if {one, other} <= {"outer", "middle", "inner"}:
            continue
        assert apart(found[one], found[other]) > 20, (one, other)


@pytest.mark.parametrize("theme", COLOURS)
@pytest.mark.parametrize("vision", VISION)
def test_nested_parts_are_told_apart_by_everyone(theme: str, vision: str) -> None:
    """Parts that lie inside each other differ, whatever colours someone sees."""
    found = {name: seen(colour, vision) for name, colour in paints(theme).items()}
    for one, other in pairwise(("page", "outer", "middle", "inner")):
        assert apart(found[one], found[other]) > 12, (one, other)


@pytest.mark.parametrize("theme", COLOURS)
def test_nested_parts_are_told_apart_without_colour(theme: str) -> None:
    """From the page inwards, each part is darker (on a dark page lighter) than the one around."""
    found = lightness(theme)
    steps = [
        found[b] - found[a] for a, b in pairwise(("page", "outer", "middle", "inner"))
    ]
    assert all(abs(step) > 11 for step in steps)
    assert len({step > 0 for step in steps}) == 1


@pytest.mark.parametrize("theme", COLOURS)
def test_what_touches_is_told_apart_without_colour(theme: str) -> None:
    """Others differ from the parts of ours that they can lie on, and from the page.

    An orange tick or stretch is as light as grey: it is told by its shape, beyond the strip's
    upper edge, and by its word.
    """
    found = lightness(theme)
    for part, least in (("page", 20), ("outer", 20), ("middle", 8), ("inner", 6)):
        assert abs(found["other"] - found[part]) > least, part
        assert abs(found["limit"] - found[part]) > min(least, 7), part
