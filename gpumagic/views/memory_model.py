"""What memory views say: sections of holders with their figures, from plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..memory.live import DeviceMemory, MemoryReport
from ..memory.stats import AllocatorReport, AllocatorStats
from ..units import MIB
from .memory_parts import BYTES, STYLES, Bars, part_notes, parts_of, room_note
from .memory_words import (
    code,
    cut_note,
    detail_of,
    device_label,
    holder_name,
    is_empty,
    number_of,
    spent,
)
from .report_rows import scale_for
from .wording import clean

__all__ = [
    "Block", "Item", "MemoryView", "Row", "Section", "build_memory", "child_sections",
    "holder_items", "holder_sections", "longest_of", "quiet_note", "remainder_items",
    "section_of", "title_of",
]

_MOST_ROWS = 8
_SMALLEST_GAP = 0.01
_SMALLEST_SHARE = 0.002


@dataclass(frozen=True, slots=True)
class Row:
    """Who holds how much: code stands between backticks, ``number`` has no unit.

    ``share`` is the length of its bar and ``start`` where that begins, as fractions of the
    longest; ``command`` is what would release it.
    """

    name: str
    detail: str
    number: str
    share: float
    style: str = "use"
    start: float = 0.0
    command: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that add up to ``number`` of ``unit``."""

    title: str
    note: str
    number: str
    unit: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """All of one device; ``notes`` are small print."""

    device: str
    sections: tuple[Section, ...] = ()
    bars: Bars | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryView:
    """A title, sentences, a block for each device that has something to say, and small print."""

    title: str
    note: str = ""
    sentences: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """A row before its unit and scale are known; ``last`` ones stay at the end, unjoined."""

    name: str
    detail: str
    bytes: int | None
    command: str = ""
    last: bool = False


# -- sections --------------------------------------------------------------------------------


def _few(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items from the largest to the smallest, the small ones of many as one."""
    items = [item for item in items if item.bytes is None or item.bytes > 0]
    first = sorted((item for item in items if not item.last), key=lambda item: -(item.bytes or 0))
    if len(first) > _MOST_ROWS + 1:
        large = [item for item in first[:_MOST_ROWS] if (item.bytes or 0) >= _least(first)]
        rest = first[len(large) :]
        total = sum(item.bytes or 0 for item in rest)
        first = [*large, Item(f"{len(rest)} more", "", total)]
    yield from first
    yield from sorted((item for item in items if item.last), key=lambda item: -(item.bytes or 0))


def _least(items: Sequence[Item]) -> float:
    """Return the bytes below which one of many rows would be no more than a hairline."""
    return _SMALLEST_SHARE * max(item.bytes or 0 for item in items)


def section_of(
    title: str, note: str, items: Sequence[Item], style: str, longest: int
) -> list[Section]:
    """Make a section of some items, with one unit; none if there are none."""
    shown = list(_few(items))
    known = [item.bytes for item in shown if item.bytes is not None]
    if not shown:
        return []
    total = sum(known) if known else None
    scale = scale_for(BYTES, [total])
    rows = tuple(
        Row(item.name, item.detail, number_of(scale, item.bytes), (item.bytes or 0) / longest,
            style, command=item.command)
        for item in shown
    )
    return [Section(title, note, number_of(scale, total), scale.unit, rows)]


def longest_of(*groups: Sequence[Item]) -> int:
    """Return the bytes of the longest bar that some items make."""
    return max((item.bytes or 0 for items in groups for item in _few(items)), default=0) or 1


def holder_items(device: DeviceMemory) -> list[Item]:
    """List the holders of a device's live tensors."""
    return [
        Item(holder_name(h), detail_of(h.kind, h.detail), h.bytes, clean(h.command))
        for h in device.holders
    ]


def remainder_items(device: DeviceMemory, allocated: int | None) -> list[Item]:
    """List what torch has allocated and no holder explains."""
    found = [
        Item(detail_of("", r.name), detail_of("", r.detail), r.bytes, last=True)
        for r in device.remainders
    ]
    told = device.reachable_bytes + sum(r.bytes for r in device.remainders)
    if allocated is not None and not found:
        left = allocated - told
        if left >= MIB and left > _SMALLEST_GAP * allocated:
            found.append(Item("no tensor found", "allocated by torch", left, last=True))
    return found


def child_sections(device: DeviceMemory, longest: int) -> list[Section]:
    """Name the child processes that hold memory of the GPU."""
    untold = "not told by the driver: "
    items = [
        Item(f"PID {child.pid}", (untold if child.bytes is None else "") + code(child.command),
             child.bytes)
        for child in device.children
    ]
    style = STYLES["other processes"]
    return section_of("Child processes", "yours to end", items, style, longest)


def holder_sections(device: DeviceMemory, title: str, note: str = "") -> list[Section]:
    """Return who holds a device's live tensors, and its child processes."""
    allocated = device.allocator.torch_allocated_bytes if device.allocator else None
    items = [*holder_items(device), *remainder_items(device, allocated)]
    longest = longest_of(items)
    return [*section_of(title, note, items, "use", longest), *child_sections(device, longest)]


def title_of(devices: Iterable[str], title: str) -> str:
    """Return the title of a view, which for the CPU says what it counts."""
    return "CPU memory of tensors by holder" if "cpu" in devices else title


def quiet_note(labels: Sequence[str]) -> str:
    """Name the devices of which there is nothing to say."""
    return f"Nothing held on {', '.join(labels)}." if labels else ""


# -- %gpumem -------------------------------------------------------------------------------


def build_memory(report: MemoryReport, allocator: AllocatorReport | None) -> MemoryView:
    """Say where each device's memory is, and who holds the live tensors."""
    figures = {stats.label: stats for stats in allocator or ()}
    blocks, quiet = [], []
    for device in report:
        stats = device.allocator or figures.get(device.device)
        device = replace(device, allocator=stats)
        if is_empty(device) and not parts_of(stats):
            quiet.append(device_label(device.device, stats))
            continue
        notes = [room_note(stats), *part_notes(stats)]
        blocks.append(Block(
            device_label(device.device, stats),
            (*_waterfall(stats), *holder_sections(device, "Live tensors", "by holder")),
            notes=tuple(note for note in notes if note),
        ))
    reason = report.reason or ("" if allocator is None else allocator.reason)
    nothing = "" if blocks else "No tensor of this process holds memory there."
    notes = [quiet_note(quiet), cut_note(report), *report.notes, spent(report)]
    return MemoryView(
        title_of([device.device for device in report], "GPU memory"),
        sentences=tuple(text for text in [reason or nothing] if text),
        blocks=tuple(blocks),
        notes=tuple(note for note in notes if note),
    )


_DETAILS = {
    "other processes": "",
    "outside torch": "this process's context, and other processes",
    "remainder": "not explained by these figures",
    "context": "CUDA context and other libraries",
    "live tensors": "",
}
_DOWNWARDS = ("other processes", "outside torch", "remainder", "context", "cached", "live tensors")


def _waterfall(stats: AllocatorStats | None) -> list[Section]:
    """Step from what nvidia-smi shows down to live tensors."""
    parts = parts_of(stats)
    if stats is None:
        return []
    used = stats.gpu_memory_used_bytes if parts else None
    if not parts:
        known = {"live tensors": stats.torch_allocated_bytes, "cached": stats.torch_cached_bytes}
        parts = {name: size for name, size in known.items() if size}
    total = (stats.gpu_memory_total_bytes if used is not None else sum(parts.values())) or 1
    scale = scale_for(BYTES, [used if used is not None else total])
    rows, top = [], sum(parts.get(name, 0) for name in _DOWNWARDS)
    for name in _DOWNWARDS:
        size = parts.get(name, 0)
        top -= size
        if size:
            detail = _cached(stats) if name == "cached" else _DETAILS[name]
            rows.append(Row(name, detail, number_of(scale, size), size / total, STYLES[name],
                            top / total))
    note = "all processes, as nvidia-smi shows it"
    return [Section("Used", note, number_of(scale, used), scale.unit, tuple(rows))]


def _cached(stats: AllocatorStats) -> str:
    back = stats.torch_returnable_bytes
    if back is None:
        return "kept by torch for reuse"
    scale = scale_for(BYTES, [back])
    return f"kept by torch, {number_of(scale, back)} {scale.unit} can go back"
