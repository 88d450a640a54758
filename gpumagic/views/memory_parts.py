"""A device's memory as parts that add up to it: now, and before and after a release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..memory.stats import AllocatorStats
from ..units import MIB
from ..waterfall import PARTS
from .memory_words import number_of
from .report_memory import PART_STYLES
from .report_rows import scale_for
from .strips import Scale

__all__ = ["BYTES", "STYLES", "Bar", "Bars", "Key", "Piece", "build_bars", "part_notes", "parts_of",
           "room_note"]

BYTES = "gpu_memory_used_bytes"
"""The metric by whose rules bytes are written."""

STYLES: Mapping[str, str] = {
    "stays": "use middle",
    "to release": "use",
    "released": "use",
    **PART_STYLES,
}
"""How each part is drawn, and what stays and goes: as in a report's memory."""

_TORCH = ("live tensors", "cached")


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a bar; ``start`` and ``share`` are fractions of the device's memory."""

    name: str
    start: float
    share: float

    @property
    def style(self) -> str:
        """How it is drawn."""
        return STYLES[self.name]


@dataclass(frozen=True, slots=True)
class Bar:
    """A device's memory at one moment; ``free`` is what is left, without the unit."""

    label: str
    pieces: tuple[Piece, ...]
    free: str


@dataclass(frozen=True, slots=True)
class Key:
    """What a part of the bars is, and its bytes without the unit (empty for what is free)."""

    name: str
    number: str

    @property
    def style(self) -> str:
        """How the part is drawn."""
        return STYLES[self.name]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars on one scale with their key; ``unit`` is that of all figures."""

    bars: tuple[Bar, ...]
    keys: tuple[Key, ...]
    unit: str


def parts_of(stats: AllocatorStats | None) -> dict[str, int]:
    """Share a device's total out among PARTS, in bytes; empty where the driver tells too little.

    No part is negative: figures are read one after another, and the driver's counts.
    """
    known = {} if stats is None else stats.to_dict()
    total, used = known.get("gpu_memory_total_bytes"), known.get("gpu_memory_used_bytes")
    if total is None or used is None:
        return {}
    left = used = min(used, total)
    found: dict[str, int] = {}

    def take(name: str, size: int) -> None:
        nonlocal left
        found[name] = max(0, min(size, left))
        left -= found[name]

    allocated, reserved = known.get("torch_allocated_bytes"), known.get("torch_reserved_bytes")
    if reserved is not None:
        take("live tensors", reserved if allocated is None else allocated)
        take("cached", reserved - found["live tensors"])
    own, others = (
        known.get(f"gpu_{name}_memory_bytes") for name in ("process", "other_processes")
    )
    if others is not None:
        take("other processes", others)
    if own is not None and reserved is not None:
        take("context", own - reserved)
    elif others is None and reserved is not None:
        take("outside torch", left)
    driver = min(known.get("gpu_memory_reserved_bytes", 0), total - used)
    rest = total - used - driver
    free = min(known.get("gpu_memory_free_bytes", rest), rest)
    found |= {"driver": driver, "free": free, "remainder": left + rest - free}
    if found["remainder"] < MIB:
        del found["remainder"]
    return {name: found[name] for name in PARTS if found.get(name)}


# A smaller share of the device is nothing to wonder about.
_WORTH_A_WORD = 0.005


def part_notes(stats: AllocatorStats | None) -> Iterator[str]:
    """Say what parts stand for where that is not what they usually do, or why there are none."""
    parts = parts_of(stats)
    if stats is None:
        return
    if not parts:
        reason = stats.outside_torch_text or "NVML tells no memory of this GPU"
        yield f"The device's use and free memory are n/a: {reason}."
    elif "outside torch" in parts:
        yield f"outside torch: {stats.outside_torch_text}."
    elif parts.get("remainder", 0) > sum(parts.values()) * _WORTH_A_WORD:
        yield "remainder: what these figures leave unexplained; they are read one after another."


def room_note(stats: AllocatorStats | None) -> str:
    """Say how much of the device is free, and what the driver keeps."""
    parts = parts_of(stats)
    total = None if stats is None else stats.gpu_memory_total_bytes
    if not parts or total is None:
        return ""
    scale = scale_for(BYTES, [total])
    free = f"{number_of(scale, parts.get('free', 0))} of {scale.limit(total)} free"
    if "driver" in parts:
        return f"{free}, {number_of(scale, parts['driver'])} kept by the driver."
    return f"{free}; what the driver keeps is not told and can be in it."


def build_bars(
    before: AllocatorStats | None, after: AllocatorStats | None, returned: int, *, dry_run: bool
) -> Bars | None:
    """Draw a device before and after torch gave ``returned`` bytes back, or would give them.

    ``None`` where the driver tells too little of either moment. In a dry run, and where there
    are no figures ``after``, the second bar follows from the first.
    """
    first = parts_of(before)
    total = None if before is None else before.gpu_memory_total_bytes
    if not first or not total:
        return None
    held = sum(first.get(name, 0) for name in _TORCH)
    back = max(0, min(returned, held))
    verb = "to release" if dry_run else "released"
    if dry_run or after is None:
        second = first | {"free": first.get("free", 0) + back}
        stays = held - back
    else:
        second = parts_of(after)
        stays = sum(second.get(name, 0) for name in _TORCH)
    if not second:
        return None
    scale = scale_for(BYTES, [total])
    bars = (
        _bar("before", {"stays": held - back, verb: back}, first, total, scale),
        _bar("after", {"stays": stays}, second, total, scale),
    )
    figures = {"stays": stays, verb: back, **_rest(second)}
    keys = [Key(name, number_of(scale, size)) for name, size in figures.items() if size]
    return Bars(bars, (*keys, Key("free", "")), scale.unit)


def _rest(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in parts.items() if name not in (*_TORCH, "free")}


def _bar(
    label: str, torch: Mapping[str, int], parts: Mapping[str, int], total: int, scale: Scale
) -> Bar:
    sizes = {**torch, **_rest(parts), "free": parts.get("free", 0)}
    pieces, left = [], 0.0
    for name, size in sizes.items():
        if size:
            pieces.append(Piece(name, left, size / total))
            left += size / total
    return Bar(label, tuple(pieces), number_of(scale, sizes["free"]))
