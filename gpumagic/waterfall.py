"""Where a GPU's memory is: parts that add up to the device's total."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .sample import Device

__all__ = ["PARTS", "MemoryState", "Moment", "Part", "Waterfall"]

Moment = Literal["before", "highest", "after"]

PARTS: tuple[str, ...] = (
    "live tensors",
    "cached",
    "context",
    "outside torch",
    "other processes",
    "driver",
    "not told apart",
    "free",
)
"""The names of all parts, in the order in which they are listed and drawn.

``context`` is the CUDA context and all other memory of this process that is not torch's;
``outside torch`` stands for it and other processes where the driver does not tell processes
apart; ``not told apart`` is the remainder, what the figures leave unexplained.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a GPU's memory in bytes; ``fragmented_bytes`` is the share of ``cached`` that
    lies in segments which live blocks pin, where the allocator tells it."""

    name: str
    bytes: float
    fragmented_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryState:
    """A GPU's memory at one moment; ``parts`` are in the order of PARTS and add up to its total."""

    moment: Moment
    time: float
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part | None:
        """Return a part by its name, or ``None``."""
        return next((part for part in self.parts if part.name == name), None)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A GPU's memory before a cell, at the reading with the highest use, and after it.

    A moment that was not read is left out; where none was, ``reason`` says why. ``notes`` say
    what a part stands for on this device.
    """

    device: Device
    total_bytes: float | None
    states: tuple[MemoryState, ...]
    reason: str = ""
    notes: tuple[str, ...] = ()

    def state(self, moment: Moment) -> MemoryState | None:
        """Return the state at one of the moments, or ``None``."""
        return next((state for state in self.states if state.moment == moment), None)
