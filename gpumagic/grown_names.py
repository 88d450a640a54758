"""Which names hold more GPU memory than at an earlier search: two searches, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .diagnosis.growing import GrownHolder

if TYPE_CHECKING:
    from .memory.live import Holder, HolderKind, LiveStorage
    from .memory.scan import Scan

__all__ = ["Held", "Names", "held_of", "names_grown"]

_MOST_HOLDERS = 1000
_LEAST_RATIO = 0.05
_MOST_RATIO, _MOST_MORE = 1.25, 1 << 20
"""Names that took less than the first part of what was gained are left out, and those that took
more than the second part, and so many bytes: they grew in other cells."""
_POOLED: dict[HolderKind, str] = {"output": "Out", "cycle": "cycles of garbage"}
"""Holders of which each run makes others, by the name that they have together."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One holder, or those of a kind together."""

    kind: HolderKind
    roots: tuple[str, ...]
    bytes: int
    storages: int

    @property
    def name(self) -> str:
        return ", ".join(self.roots)


@dataclass(frozen=True, slots=True)
class Held:
    """Who held how much of one GPU at a search: strings and numbers, no reference.

    ``tensors`` are the bytes of the largest storages by their names, with the holder's;
    ``graphs`` are the roots of tensors for which autograd keeps others; ``cut`` says that the
    search did not look through everything.
    """

    holders: tuple[_Entry, ...]
    tensors: dict[str, tuple[str, int]]
    graphs: frozenset[str]
    cut: bool


@dataclass(frozen=True, slots=True)
class Names:
    """The names that grew, the most first, and those that can keep the rest by their graphs."""

    holders: tuple[GrownHolder, ...]
    graphs: tuple[GrownHolder, ...]
    cut: bool


def held_of(scan: Scan, device: str) -> Held:
    """Take from a search what is compared later, of one of torch's GPUs (``cuda:0``)."""
    pooled: dict[str, _Entry] = {}
    entries: list[_Entry] = []
    names: dict[str, str] = {}
    for holder in scan.holders.get(device, ()):
        together = _POOLED.get(holder.kind)
        names[holder.name] = together or holder.name
        if together is None:
            entries.append(_Entry(holder.kind, holder.roots, holder.bytes, holder.storages))
        else:
            pooled[together] = _together(together, holder, pooled.get(together))
    entries = [*pooled.values(), *entries][:_MOST_HOLDERS]
    tensors = {
        _name(storage): (names.get(storage.holder, storage.holder), storage.bytes)
        for storage in scan.storages.get(device, ())
    }
    return Held(tuple(entries), tensors, frozenset(scan.graphs.get(device, ())), bool(scan.cut))


def _together(name: str, holder: Holder, before: _Entry | None) -> _Entry:
    size, count = (before.bytes, before.storages) if before is not None else (0, 0)
    return _Entry(holder.kind, (name,), size + holder.bytes, count + holder.storages)


def _name(storage: LiveStorage) -> str:
    return f"{storage.name} in {storage.where}" if storage.where else storage.name


def names_grown(before: Held, after: Held, gained_bytes: float) -> Names:
    """Compare two searches between which a cell's runs gained so many bytes on a GPU."""
    compared = [
        (entry, _grown(entry, before, after))
        for entry in after.holders if entry.kind != "unknown"
    ]
    least = max(1.0, _LEAST_RATIO * gained_bytes)
    most = _MOST_RATIO * gained_bytes + _MOST_MORE
    holders = sorted((g for _, g in compared if least <= g.bytes <= most), key=lambda g: -g.bytes)
    graphs = [grown for entry, grown in compared if after.graphs.intersection(entry.roots)]
    # A list that got longer says more than what has a graph anyway.
    longer = [grown for grown in graphs if grown.tensors > 0]
    return Names(tuple(holders), tuple(longer or graphs), before.cut or after.cut)


def _grown(entry: _Entry, before: Held, after: Held) -> GrownHolder:
    """Return by how much a holder grew since a search, under whichever of its names."""
    # Variables are joined and parted as they come to hold the same tensors.
    same = _of(before.holders, entry)
    names = [
        name for name, (holder, size) in after.tensors.items()
        if holder == entry.name and size > before.tensors.get(name, ("", 0))[1]
    ]
    return GrownHolder(
        name=entry.name,
        kind=entry.kind,
        bytes=entry.bytes - sum(one.bytes for one in same),
        tensors=entry.storages - sum(one.storages for one in same),
        names=tuple(names),
        has_graph=bool(after.graphs.intersection(entry.roots)),
    )


def _of(entries: Sequence[_Entry], wanted: _Entry) -> list[_Entry]:
    roots = set(wanted.roots)
    return [one for one in entries if one.kind == wanted.kind and roots.intersection(one.roots)]
