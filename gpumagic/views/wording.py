"""How wide words are, and how they are fitted into the room that there is."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = [
    "FIGURE", "LABEL", "LIMIT", "LINE_PITCH", "SLACK", "SMALL", "SWATCH", "TITLE", "clean", "fit",
    "short_name", "text_width", "wrap",
]

SLACK = 1.15
"""Fonts differ by platform; room is kept for one 15 % wider than Arial."""

TITLE = 13.0
FIGURE = 13.0
LABEL = 12.0
LIMIT = 11.0
SMALL = 10.5
"""Sizes of text, in pixels."""

LINE_PITCH = 14.0

SWATCH = 10.0
"""How far a word stands from the left edge of the square before it."""

# Widths of Arial in thousandths of the size.
_NARROW = {
    **dict.fromkeys("ijl'|", 222), **dict.fromkeys(" !,./:;[]ft\\I", 278),
    **dict.fromkeys("()-`r", 333), **dict.fromkeys('"*', 370), "°": 400,
    **dict.fromkeys("cksvxyzJ", 500), **dict.fromkeys("ABEKPSVXY&", 667),
    **dict.fromkeys("CDHNRUw", 722), **dict.fromkeys("GOQ", 778), **dict.fromkeys("Mm", 833),
    "%": 889, "W": 944, "@": 1015, "…": 1000, "_": 556,
}

_NARROWEST = min(_NARROW.values()) / 1000 * SLACK

_KEPT = 1024
"""Texts of which each function below keeps its answer: few are new from scene to scene."""


@lru_cache(_KEPT)
def clean(text: str) -> str:
    """Put a space in place of what no line of text can hold: line ends and control codes."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


@lru_cache(_KEPT)
def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in pixels, on the safe side."""
    units = sum(_NARROW.get(c, 556 if ord(c) < 0x2000 else 1000) for c in text)
    return units * size / 1000 * SLACK


@lru_cache(_KEPT)
def fit(text: str, size: float, room: float) -> str:
    """Shorten a text with an ellipsis until it fits into ``room`` pixels."""
    if len(text) * size * _NARROWEST <= room and text_width(text, size) <= room:
        return text
    # More characters than the narrowest ones that fit need not be looked at.
    low, high = 0, min(len(text), int(max(room, 0.0) / (_NARROWEST * size)) + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if text_width(text[:middle] + "…", size) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "…"


@lru_cache(_KEPT)
def wrap(text: str, size: float, rooms: tuple[float, ...]) -> tuple[str, ...]:
    """Break a text at spaces and hyphens into lines that fit into ``rooms``, one after another."""
    if not rooms:
        return ()
    found: list[str] = []
    for word in re.findall(r"[^\s-]+-?|-", text):
        joint = "" if found and found[-1].endswith("-") else " "
        if found and (
            len(found) == len(rooms)
            or text_width(f"{found[-1]}{joint}{word}", size) <= rooms[len(found) - 1]
        ):
            found[-1] += joint + word
        else:
            found.append(word)
    return tuple(fit(line, size, room) for line, room in zip(found, rooms, strict=False))


@lru_cache(_KEPT)
def short_name(name: str) -> str:
    """Leave out of a GPU's name what every name has, or what stands elsewhere.

    ``NVIDIA H200`` is ``H200``, ``NVIDIA A100-SXM4-80GB`` is ``A100-SXM4``.
    """
    name = clean(name)
    name = re.sub(r"[\s-]+\d+ ?GB\b| Generation\b| Laptop GPU\b", "", name)
    return re.sub(r"^(NVIDIA|Tesla|GeForce|\s)+(?=\S)", "", name) or name
