"""From what a search has met to who holds how much."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .graph import Root, Walk
from .kinds import name_of_type
from .live import Holder, HolderKind, LiveStorage
from .naming import Name
from .tensors import Place, TensorFacts

__all__ = ["Found", "holder_of", "joined_variables", "key_of", "storage_of"]

_MOST_NAMES = 5
_ORDER: tuple[HolderKind, ...] = (
    "variable", "frame", "module", "output", "traceback", "cycle", "unknown",
)
_COUNTED = tuple(map(id, (list, tuple, dict, set, frozenset)))


@dataclass(slots=True, eq=False)
class Found:
    """A storage while the search runs: where it is, its tensors, who holds them.

    ``root`` is ``None`` while nobody is known; ``name`` overrides what the walk would call it.
    """

    place: Place
    tensors: list[Any] = field(default_factory=list)
    root: Root | None = None
    others: list[Root] = field(default_factory=list)
    name: Name | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """What makes two storages one holder's."""

    kind: HolderKind
    roots: tuple[str, ...]
    where: str = ""
    cell: int = 0


def key_of(found: Found, groups: dict[str, tuple[str, ...]], variable: str) -> Key:
    """Return whose a storage is: its variables together, its function, its module's variable.

    ``variable`` is that module's variable, for those that a module holds.
    """
    root = found.root
    if root is None:
        return Key("unknown", ("not followed up",), "the search was cut short")
    if root.kind == "variable":
        return Key("variable", groups.get(root.name, (root.name,)))
    if root.kind == "frame":
        return Key("frame", (root.where,))
    if root.kind == "module":
        return Key("module", (variable,), "a module's variable")
    if root.kind == "orphan":
        if root.value is None:
            return Key("unknown", ("not reachable by a name",), root.where)
        return Key("cycle", ("cycle",), f"{root.where}, unreachable")
    return Key("output" if root.kind == "output" else "traceback", (root.name,), root.where,
               root.cell)


def joined_variables(
    walk: Walk, found: Iterable[Found], order: Sequence[str], last: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return for each variable those that hold the same tensors, itself included.

    An optimizer holds its model's parameters; two names can be of one object. They stand as in
    ``order``, in which they came to be. Variables in ``last`` are not joined with others: the
    question is what they hold alone.
    """
    joined: dict[str, list[str]] = {}
    for one in found:
        if one.root is None or one.root.kind != "variable":
            continue
        roots = (one.root, *one.others)
        holders = [walk.root(h) for root in roots for h in walk.holders(root.value)]
        for other in (*one.others, *holders):
            if other is None or other.kind != "variable" or other.name == one.root.name:
                continue
            if (other.name in last) is not (one.root.name in last):
                continue
            first = joined.setdefault(one.root.name, [one.root.name])
            second = joined.setdefault(other.name, [other.name])
            if first is not second:
                first += second
                joined.update(dict.fromkeys(second, first))
    position = {name: number for number, name in enumerate(order)}
    for names in joined.values():
        names.sort(key=lambda name: position.get(name, 0))
    return {name: tuple(names) for name, names in joined.items()}


def holder_of(
    key: Key, members: Sequence[Found], name: Callable[[Found], Name], option: str
) -> Holder:
    """Make the holder of some storages, the largest first; ``option`` goes with the command."""
    names = list(dict.fromkeys(str(name(one).text) for one in members[:_MOST_NAMES]))
    detail = key.where
    if key.kind == "variable":
        detail = _variable(members, key.roots)
    elif key.kind == "frame":
        detail = f"running; holds {', '.join(names[:3])}"
    elif key.kind == "traceback" and not detail:
        detail = _frames([name(one) for one in members[:_MOST_NAMES]])
    command = {
        "variable": f"%gpufree {option}{' '.join(key.roots)}",
        "output": f"%gpufree {option}--out",
        "traceback": f"%gpufree {option}",
        "cycle": f"%gpufree {option}",
    }.get(key.kind, "").strip()
    total = sum(one.place.bytes for one in members)
    return Holder(key.kind, key.roots, detail, total, len(members), tuple(names), command, key.cell)


def _frames(names: Sequence[Name]) -> str:
    """Write the variables of a traceback by the function that they are of."""
    frames: dict[str, list[str]] = {}
    for name in names:
        variable = re.split(r"[.\[]", name.text, maxsplit=1)[0]
        frames.setdefault(name.where.split(", ")[0], []).append(variable)
    parts = [f"{where}: {', '.join(dict.fromkeys(texts))}" for where, texts in frames.items()]
    return f"frame{'s' if len(parts) > 1 else ''} {'; '.join(parts)}"


def _variable(members: Sequence[Found], roots: tuple[str, ...]) -> str:
    if len(roots) > 1:
        return "your variables"
    root = members[0].root
    value: Any = None if root is None else root.value
    kind = type(value)
    if id(kind) in _COUNTED:
        return f"your variable, {kind.__name__} of {len(value)}"
    return f"your variable, {name_of_type(kind)}"


def by_size(holder: Holder) -> tuple[int, int]:
    """Order holders: the largest first."""
    return -holder.bytes, _ORDER.index(holder.kind)


def storage_of(
    found: Found, facts: Sequence[TensorFacts], holder: Holder, names: Sequence[Name]
) -> LiveStorage:
    """Describe one storage by its tensors; the first of its names is the one that says most."""
    largest = max(facts, key=lambda one: one.bytes)
    also = dict.fromkeys(str(name) for name in names[1:])
    return LiveStorage(
        name=names[0].text,
        where=names[0].where,
        device=found.place.device,
        bytes=found.place.bytes,
        own_bytes=min(found.place.bytes, largest.bytes),
        shape=largest.shape,
        dtype=largest.dtype,
        views=len(found.tensors),
        holder=holder.name,
        also=tuple(also)[:_MOST_NAMES],
        has_graph=any(one.has_graph for one in facts),
    )
