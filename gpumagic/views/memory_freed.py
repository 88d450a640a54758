"""What ``%gpufree`` did, or would do, in sections: what is released, and what stays."""

from __future__ import annotations

from collections.abc import Iterator

from ..memory.live import DeviceMemory
from ..memory.release import Freed
from ..memory.stats import AllocatorStats
from ..units import MIB
from .memory_model import (
    Block,
    Item,
    MemoryView,
    child_sections,
    holder_items,
    longest_of,
    quiet_note,
    remainder_items,
    section_of,
    title_of,
)
from .memory_parts import BYTES, STYLES, build_bars, part_notes
from .memory_words import (
    cut_note,
    detail_of,
    device_label,
    free_sentences,
    is_empty,
    number_of,
    pinned_by,
    step_name,
)
from .report_rows import scale_for

__all__ = ["build_free"]


def build_free(freed: Freed) -> MemoryView:
    """Say what was released, or would be, and what stays, for each device."""
    before = {device.device: device for device in freed.before}
    after = {device.device: device for device in freed.after}
    names = list(dict.fromkeys([*before, *after, *(name for s in freed.steps for name in s.bytes)]))
    blocks, quiet = [], []
    for name in names:
        first = before.get(name, DeviceMemory(name))
        second = after.get(name, DeviceMemory(name))
        if is_empty(first) and is_empty(second) and not freed.released_bytes(name):
            quiet.append(device_label(name, second.allocator or first.allocator))
        else:
            blocks.append(_free_block(freed, first, second))
    sentences = []
    titles = ("Will be released", "Released")
    if not any(section.title in titles for block in blocks for section in block.sections):
        sentences.append("Nothing to release." if freed.dry_run else "Nothing was released.")
    sentences += [reason] if (reason := freed.reason or freed.before.reason) else []
    notes = [quiet_note(quiet), cut_note(freed.before, freed.after), *freed.after.notes]
    return MemoryView(
        title_of(names, "GPU memory by holder"),
        "dry run, nothing released" if freed.dry_run else "",
        (*sentences, *free_sentences(freed)),
        tuple(blocks),
        tuple(note for note in notes if note),
    )


def _returned(freed: Freed, device: DeviceMemory, after: AllocatorStats | None) -> int | None:
    """Return the bytes that go from torch to the driver; ``None`` where that is not foreseen."""
    before = device.allocator
    if before is None:
        return 0
    told = any(step.kind == "cache" and device.device in step.bytes for step in freed.steps)
    if not told and freed.dry_run and freed.released_bytes(device.device):
        same = after is None or after.torch_allocated_bytes == before.torch_allocated_bytes
        return None if same else 0
    first, second = (stats.torch_reserved_bytes if stats else None for stats in (before, after))
    if not told and not freed.dry_run and first is not None and second is not None:
        return max(0, first - second)
    return max(0, freed.returned_bytes(device.device))


def _free_block(freed: Freed, before: DeviceMemory, after: DeviceMemory) -> Block:
    name = before.device
    first, second = before.allocator, after.allocator
    released = [
        Item(step_name(step), detail_of(step.kind, step.detail), step.bytes.get(name, 0))
        for step in freed.steps if step.kind != "cache"
    ]
    tensors = freed.released_bytes(name)
    returned = _returned(freed, before, second)
    from_cache = max(0, (returned or 0) - tensors)
    if from_cache:
        scale = scale_for(BYTES, [tensors + from_cache])
        cached = None if first is None else first.torch_cached_bytes
        of = ""
        if cached is not None and cached >= from_cache:
            of = f", {number_of(scale, from_cache)} of {number_of(scale, cached)}"
        released.append(Item("cached blocks", f"torch{of}", from_cache, last=True))
    allocated, cached = _left(freed, first, second, tensors, returned)
    stays = [*holder_items(after), *remainder_items(after, allocated),
             *_cache_that_stays(after, cached)]
    longest = longest_of(released, stays)
    asked = any(step.kind == "name" and step.bytes.get(name, 0) > 0 for step in freed.steps)
    title = "Will be released" if freed.dry_run else "Released"
    note = "" if asked else "held by the notebook, not by your names"
    bars = None
    if returned is not None:
        bars = build_bars(first, second, returned, dry_run=freed.dry_run)
    return Block(
        device_label(name, first or second),
        (
            *section_of(title, note, released, STYLES["released"], longest),
            *section_of("Stays", "", stays, STYLES["stays"], longest),
            *child_sections(after, longest),
        ),
        bars,
        (*_cache_notes(freed, tensors, returned), *part_notes(first or second)),
    )


def _cache_notes(freed: Freed, tensors: int, returned: int | None) -> Iterator[str]:
    """Say where what is released does not go back to the driver."""
    if returned is None:
        yield "What would go back to the driver is n/a: torch does not tell where its blocks lie."
    elif freed.before.devices and tensors - returned >= MIB and not _on_cpu(freed):
        scale = scale_for(BYTES, [tensors])
        will = "will stay" if freed.dry_run else "stay"
        kept = number_of(scale, tensors - returned)
        yield f"{kept} {scale.unit} of what is released {will} in torch's cache."


def _on_cpu(freed: Freed) -> bool:
    return any(device.device == "cpu" for device in freed.before)


def _left(
    freed: Freed, before: AllocatorStats | None, after: AllocatorStats | None,
    tensors: int, returned: int | None,
) -> tuple[int | None, int | None]:
    """Return the bytes that torch has allocated, and cached, afterwards."""
    if not freed.dry_run:
        if after is None:
            return None, None
        return after.torch_allocated_bytes, after.torch_cached_bytes
    if before is None or before.torch_allocated_bytes is None:
        return None, None
    allocated = max(0, before.torch_allocated_bytes - tensors)
    if returned is None or before.torch_reserved_bytes is None:
        return allocated, None
    return allocated, max(0, before.torch_reserved_bytes - returned - allocated)


def _cache_that_stays(device: DeviceMemory, cached: int | None) -> Iterator[Item]:
    pinned = device.pinned
    held = 0
    if pinned is not None:
        # In a dry run it is what is pinned before.
        held = pinned.bytes if cached is None else min(pinned.bytes, cached)
        blocks = "cached block" if pinned.segments == 1 else "cached blocks"
        yield Item(blocks, pinned_by(pinned), held, last=True)
    if cached is not None and cached - held >= MIB:
        yield Item("cached blocks", "kept by torch", cached - held, last=True)
