"""Where a GPU's memory is: parts that add up to the device's total."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from .memory.moments import MomentReadings, Room
from .recording import Recording
from .sample import Device, Span
from .units import quantity

__all__ = ["PARTS", "MemoryState", "Moment", "Part", "Waterfall", "build_waterfall"]

Moment = Literal["before", "highest", "after"]

PARTS: tuple[str, ...] = (
    "live tensors",
    "cached",
    "context",
    "outside torch",
    "other processes",
    "driver",
    "remainder",
    "free",
)
"""The names of all parts, in the order in which they are listed and drawn.

``context`` is the CUDA context and all other memory of this process that is not torch's;
``outside torch`` stands for it and other processes where the driver does not tell processes
apart; ``remainder`` is what the figures leave unexplained.
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
    """A GPU's memory at one moment; ``parts`` are in the order of PARTS and add up to its total.

    Parts of no byte are left out, and so is a remainder of less than 1 MiB.
    """

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


_MOMENTS: tuple[Moment, ...] = ("before", "highest", "after")
_SMALLEST_REMAINDER = 1 << 20

_NO_TORCH = "context: this process's memory; torch holds nothing on this GPU"
_DRIVER_INSIDE = "remainder: the driver's own memory is in it; this driver counts it as used"
_UNFIT = (
    "cached: cut to what the driver counted; its figures and torch's were read up to {} apart"
)
_OUTSIDE = (
    "outside torch: this process's CUDA context and other libraries, {}other processes in one"
    " figure: {}"
)
_NOT_READ = "the GPU's memory was not read near the cell"
_NO_ALLOCATOR = "remainder: torch's memory is in it; its allocator was not read near then"


def build_waterfall(
    recording: Recording, span: Span, device: Device, reasons: Mapping[str, str]
) -> Waterfall:
    """Say where a GPU's memory was before a closed span, at its highest use, and after it.

    In bytes, from readings next to those moments: the driver's memory info and torch's
    allocator (0.1 s apart) and the driver's list of processes (1 s apart, and at a cell's
    ends), so the parts of the highest moment can be of slightly different times. ``reasons``
    says per source why it gives nothing. Raises :class:`ValueError` for a span that runs.
    """
    if span.end is None:
        raise ValueError("the memory of a span is told after its end")
    readings = MomentReadings(recording, span, device)
    total = device.constants.get("gpu_memory_total_bytes")
    notes: dict[str, None] = {}
    states = []
    for moment in _MOMENTS:
        time = readings.moments[moment]
        room = readings.room(time, total) if time is not None else None
        if time is None or room is None:
            continue
        total = room.total if total is None else total
        parts = _parts(readings, time, room, reasons, notes)
        states.append(MemoryState(moment, time, tuple(_listed(parts))))
    reason = "" if states else _why_none(readings, reasons)
    return Waterfall(device, total, tuple(states), reason, tuple(notes))


def _parts(
    readings: MomentReadings,
    time: float,
    room: Room,
    reasons: Mapping[str, str],
    notes: dict[str, None],
) -> dict[str, float | Part]:
    """Share a moment's memory out among the parts; none is negative, and what is left is said."""
    left = room.used
    found: dict[str, float | Part] = {}

    def take(name: str, size: float) -> float:
        nonlocal left
        taken = max(0.0, min(size, left))
        left -= taken
        found[name] = taken
        return taken

    others = readings.near("gpu_other_processes_memory_bytes", time, readings.slow_s)
    unread = "allocator" in reasons and not readings.has_torch
    torch = None if unread else readings.torch(time)
    if torch is None:
        notes[_NO_ALLOCATOR] = None
    else:
        live, unused = torch.allocated, torch.reserved - torch.allocated
        held = take("live tensors", live) + take("cached", unused)
        if torch.split is not None:
            cached = held - min(held, live)
            found["cached"] = Part("cached", cached, min(torch.split, cached))
        if torch.reserved - held > _SMALLEST_REMAINDER:
            notes[_UNFIT.format(quantity(readings.torch_period_s, "seconds"))] = None
    if others is not None:
        take("other processes", others[1])
        if torch is not None and take("context", readings.context(time)):
            notes.update({} if readings.has_torch else {_NO_TORCH: None})
    elif torch is not None:
        take("outside torch", left)
        driver = "the driver's own memory, and " if room.driver is None else "and "
        notes[_OUTSIDE.format(driver, _why_hidden(readings.device, reasons))] = None
    if room.driver is not None:
        found["driver"] = room.driver
    elif left > _SMALLEST_REMAINDER:
        notes[_DRIVER_INSIDE] = None
    found["remainder"] = left + room.total - room.used - room.free - (room.driver or 0.0)
    found["free"] = room.free
    return found


def _listed(parts: Mapping[str, float | Part]) -> Iterator[Part]:
    """Yield the parts in the order of PARTS, without those of no size."""
    for name in PARTS:
        part = parts.get(name, 0.0)
        part = part if isinstance(part, Part) else Part(name, part)
        least = _SMALLEST_REMAINDER if name == "remainder" else 0.0
        if part.bytes > least:
            yield part


def _why_hidden(device: Device, reasons: Mapping[str, str]) -> str:
    metric = "gpu_other_processes_memory_bytes"
    return (
        device.absent.get(metric)
        or reasons.get("nvml_slow")
        or "the driver's list of processes was not read near then"
    )


def _why_none(readings: MomentReadings, reasons: Mapping[str, str]) -> str:
    device = readings.device
    for metric in ("gpu_memory_used_bytes", "gpu_memory_total_bytes"):
        if metric in device.absent:
            return device.absent[metric]
    found = [*readings.gap_reasons(), reasons.get("nvml", ""), _NOT_READ]
    return next(reason for reason in found if reason)
