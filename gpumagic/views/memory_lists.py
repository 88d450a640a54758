"""The largest tensors as a table, and the chains of references that keep one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..memory.live import DeviceMemory, LiveStorage, MemoryReport
from ..memory.naming import Name
from ..units import MIB, bytes_of, bytes_text
from .memory_model import Block, MemoryView, holder_sections, quiet_note
from .memory_words import (
    code,
    cut_note,
    device_label,
    is_empty,
    joined,
    release_of,
    shape_text,
    short,
    spent,
)
from .wording import clean

__all__ = ["Chain", "Chains", "TensorRow", "TensorTable", "build_chains", "build_tensors"]

_PINS = 0.9
_LEAST = MIB
_MOST_CHAINS = 10
_MOST_STEPS = 40
_LONGEST_STEP = 72


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One storage: code stands between backticks; ``asides`` are small print below its name."""

    name: str
    where: str
    shape: str
    dtype: str
    size: str
    device: str
    asides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorTable:
    """The largest storages; ``view`` has the title, the totals by holder and the small print.

    ``several`` is true where they are on more than one device.
    """

    view: MemoryView
    rows: tuple[TensorRow, ...]
    several: bool


def build_tensors(report: MemoryReport, count: int | None = None) -> TensorTable:
    """List the largest ``count`` storages of all devices (``None``: all that were named)."""
    found = [storage for device in report for storage in device.storages]
    found.sort(key=lambda storage: -storage.bytes)
    shown = found if count is None else found[: max(0, count)]
    devices = [device for device in report if not is_empty(device)]
    several = len({device.device for device in devices}) > 1
    quiet = [device_label(d.device, d.allocator) for d in report if is_empty(d)]
    blocks = tuple(
        Block(
            device_label(device.device, device.allocator),
            tuple(holder_sections(device, "All live tensors", "by holder")),
        )
        for device in devices
    )
    on_cpu = bool(devices) and all(device.device == "cpu" for device in devices)
    kind = "CPU memory of tensors" if on_cpu else "GPU memory of tensors"
    notes = [quiet_note(quiet) if devices else "", cut_note(report), *report.notes, spent(report)]
    view = MemoryView(
        kind,
        _shown(devices, shown),
        sentences=() if shown else (report.reason or "No tensor of this process was found there.",),
        blocks=blocks,
        notes=tuple(note for note in notes if note),
    )
    return TensorTable(view, tuple(map(_row, shown)), several)


def _shown(devices: Sequence[DeviceMemory], shown: Sequence[LiveStorage]) -> str:
    """Say how much of all there is is listed."""
    count = sum(max(device.storage_count, len(device.storages)) for device in devices)
    if not shown:
        return ""
    total = sum(device.reachable_bytes for device in devices)
    size = sum(storage.bytes for storage in shown)
    if len(shown) >= count:
        return f"{count:,} {'storage' if count == 1 else 'storages'}, {bytes_text(size)}"
    return f"the largest {len(shown):,} of {count:,} storages, {bytes_of(size, total)}"


def _row(storage: LiveStorage) -> TensorRow:
    asides = []
    unused = storage.bytes - storage.own_bytes
    if storage.own_bytes < _PINS * storage.bytes and unused >= _LEAST:
        used = "used" if storage.views <= 1 else "in the largest view"
        asides.append(f"{bytes_of(storage.own_bytes, storage.bytes)} {used}")
    if storage.also:
        asides.append(f"also {joined([code(short(name, 40)) for name in storage.also], 2)}")
    if storage.has_graph:
        asides.append("with its autograd graph")
    return TensorRow(
        code(storage.name),
        short(storage.where, 48),
        shape_text(storage.shape, storage.own_bytes),
        short(storage.dtype, 20),
        bytes_text(storage.bytes),
        clean(storage.device),
        tuple(asides),
    )


# -- who keeps one -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain: the expression, where it means something, its steps, and what would end it."""

    name: str
    where: str
    steps: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains that lead to one object, the shortest first; ``notes`` are small print."""

    name: str
    sentence: str
    chains: tuple[Chain, ...]
    notes: tuple[str, ...] = ()


def build_chains(
    name: str,
    chains: Sequence[Name],
    commands: Sequence[str] | None = None,
    *,
    reason: str = "",
    cut: str = "",
) -> Chains:
    """Order the chains that lead to a value; ``commands`` are what would release each.

    Where they are not given, they follow from what a chain begins with; ``reason`` says why
    there is no chain, ``cut`` what was left out.
    """
    told = commands or [release_of(chain) for chain in chains]
    found = [_chain(chain, command) for chain, command in zip(chains, told, strict=True)]
    found.sort(key=lambda chain: (len(chain.steps), len(chain.name)))
    notes = []
    if len(found) > _MOST_CHAINS:
        notes.append(f"{len(found) - _MOST_CHAINS} longer chains are not shown.")
    if cut:
        notes.append(f"Not complete: {clean(cut)}.")
    if not found:
        sentence = clean(reason) or f"No reference leads to {code(name)}."
    elif len(found) == 1:
        sentence = f"One chain of references keeps {code(name)}."
    else:
        sentence = f"{len(found):,} chains of references keep {code(name)}, the shortest first."
    return Chains(code(name), sentence, tuple(found[:_MOST_CHAINS]), tuple(notes))


def _chain(chain: Name, command: str) -> Chain:
    steps = [short(step, _LONGEST_STEP) for step in chain.steps or (chain.text,)]
    if len(steps) > _MOST_STEPS:
        half = _MOST_STEPS // 2
        steps = [*steps[:half], f"… {len(steps) - 2 * half} more steps …", *steps[-half:]]
    return Chain(code(short(chain.text, 72)), short(chain.where, 72), tuple(steps), clean(command))
