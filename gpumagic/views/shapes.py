"""The shapes that a drawing is made of; lengths are CSS pixels.

They are tuples: a live view makes a hundred of them for each update, and compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["MIDDLE_OVER_OUTER", "OPACITY", "Area", "Box", "Dot", "Ink", "Paint", "Point", "Run",
           "Shape", "Stroke", "Text"]

Paint = Literal["use", "line", "limit", "ink", "label", "rule", "hair"]
Ink = Literal["ink", "label"]
Point = tuple[float, float]

OPACITY: Mapping[str, float] = MappingProxyType({
    "outer": 0.42, "middle": 0.68, "inner": 1.0, "other": 1.0,
})
"""How opaque the nested parts of use are, and the share of others, which is grey."""

MIDDLE_OVER_OUTER = (OPACITY["middle"] - OPACITY["outer"]) / (1 - OPACITY["outer"])
"""How opaque the middle part is painted where it lies over the outer one."""


class Run(NamedTuple):
    """A piece of text in one style; ``gap`` is the room before it, in pixels."""

    text: str
    size: float
    ink: Ink = "ink"
    bold: bool = False
    mono: bool = False
    gap: float = 0.0


class Text(NamedTuple):
    """Runs on one baseline; ``x`` is their left edge, middle or right edge."""

    x: float
    y: float
    runs: tuple[Run, ...]
    anchor: Literal["start", "middle", "end"] = "start"


class Box(NamedTuple):
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    paint: Paint
    opacity: float = 1.0


class Area(NamedTuple):
    """Filled stretches between a baseline and points; each of them stands alone.

    A stretch that comes back to the place of its first point encloses its area by itself.
    ``tone`` is the opacity that is to be seen; ``opacity`` brings it about over what has been
    painted below.
    """

    stretches: tuple[tuple[Point, ...], ...]
    base: float
    tone: float
    opacity: float
    paint: Paint = "use"


class Stroke(NamedTuple):
    """Lines through points; each of them stands alone."""

    stretches: tuple[tuple[Point, ...], ...]
    paint: Paint
    width: float
    dotted: bool = False


class Dot(NamedTuple):
    """A disc, or a ring if ``hollow``."""

    x: float
    y: float
    radius: float
    paint: Paint
    hollow: bool = False


Shape: TypeAlias = Text | Box | Area | Stroke | Dot
