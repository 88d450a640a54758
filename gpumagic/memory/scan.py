"""Search for what holds device memory: one pass over Python's objects, bounded in time."""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from .graph import Root, Walk
from .grouping import Found, Key, by_size, holder_of, joined_variables, key_of, storage_of
from .kinds import name_of_type
from .labels import label
from .live import Holder, LiveStorage
from .naming import Name, Namer, name_of
from .orphans import is_plumbing, look_behind
from .phases import LEAST_S, walk_all, without_collector
from .roots import Notebook
from .tensors import TensorFacts, TensorReader, all_tensors

__all__ = ["TIMEOUT_S", "Held", "Scan", "scan"]

TIMEOUT_S = 0.5
"""How long a search may take, in seconds; it says when it was cut short."""

_AT_ONCE = 16
_ROUNDS = 64
# The walk's share of the time: what is left is for tensors that no name leads to.
_WALK_SHARE = 0.8
# Following those is given this at the least: a pass over all objects.
_FOLLOW_S = 0.05
# Reading the tensors themselves may take this much longer: without them nothing adds up.
_OVERTIME_S = 0.1
_CHECK_EVERY = 1024


class Held(NamedTuple):
    """A storage's name, who holds it, and its bytes."""

    name: str
    holder: Holder
    bytes: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What a search found, as plain values, by device: holders and storages, largest first.

    ``addresses`` tells of each storage, by its first byte, for comparing with the allocator's
    blocks and with a later search; those beyond ``count`` have an empty name. ``graphs``
    are the holders of tensors that autograd can keep others for. ``cut`` says what was left out.
    """

    holders: dict[str, tuple[Holder, ...]]
    storages: dict[str, tuple[LiveStorage, ...]]
    addresses: dict[str, dict[int, Held]]
    graphs: dict[str, tuple[str, ...]]
    cut: str
    objects: int
    seconds: float


def scan(
    notebook: Notebook,
    reader: TensorReader,
    *,
    count: int = 50,
    last: Collection[str] = (),
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] = time.perf_counter,
) -> Scan:
    """Find all live tensors of a type of device and say who holds them.

    ``count`` storages of each device are named, the largest. Variables in ``last`` come after
    everything else, so that they hold only what nobody else does. Nothing of the user's is
    called, no attribute is read, and no reference outlives the call. The collector does not
    run meanwhile. A search that is cut short still knows every tensor, but not who holds it.
    """
    search = _Search(notebook, reader, last, timeout_s, clock)
    try:
        with without_collector(), reader.quiet():
            search.run()
            return search.result(count)
    except BaseException as error:  # an interrupt by the user, above all
        # Its traceback would hold all that was met for as long as the notebook keeps it.
        traceback.clear_frames(error.__traceback__)
        search.drop()
        raise


class _Search:
    def __init__(
        self,
        notebook: Notebook,
        reader: TensorReader,
        last: Collection[str],
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._notebook = notebook
        self._reader = reader
        self._last = last
        self._clock = clock
        self._begun = clock()
        self._until = self._begun + timeout_s
        self._walk = Walk(reader.is_tensor, reader.gradient, notebook.fences(), clock)
        self._namer = Namer(self._walk, notebook.places)
        self._found: dict[tuple[str, int], Found] = {}
        self._cut: list[str] = []
        self._objects = 0
        self._tops: dict[int, str] = {}

    def drop(self) -> None:
        """Let go of all that was met."""
        vars(self._walk).clear()
        vars(self).clear()

    # -- the search ----------------------------------------------------------------------

    def run(self) -> None:
        """Walk from the roots in the order of HolderKind, then look at what is left."""
        self._cut += walk_all(
            self._walk,
            self._notebook,
            last=self._last,
            timeout_s=(self._until - self._begun) * _WALK_SHARE,
            clock=self._clock,
        )
        self._add(self._walk.targets)
        self._look_for_others()

    def _enter(self, roots: list[Root]) -> None:
        if not self._walk.walk(roots, max(self._until, self._clock() + LEAST_S)):
            self._cut.append(f"not all that a {roots[0].kind} holds was looked through")

    def _add(self, tensors: list[Any]) -> None:
        walk, found_by_place = self._walk, self._found
        for number, tensor in enumerate(tensors):
            for place in self._reader.places(tensor):
                found = found_by_place.get((place.device, place.address))
                if found is None:
                    found = found_by_place[place.device, place.address] = Found(place)
                found.tensors.append(tensor)
                for holder in walk.holders(tensor):
                    root = walk.root(holder)
                    if found.root is None:
                        found.root = root
                    elif root is not None and root is not found.root:
                        found.others.append(root)
            if number % _CHECK_EVERY == _CHECK_EVERY - 1 and self._is_late():
                self._cut.append(f"{len(tensors) - number} tensors were not looked at")
                return

    def _is_late(self) -> bool:
        return self._clock() > self._until + _OVERTIME_S

    def _look_for_others(self) -> None:
        """Find the tensors that no root led to, and what is behind them."""
        objects = gc.get_objects()
        self._objects = len(objects)
        orphans: dict[tuple[str, int], Found] = {}
        tensor = None
        for number, tensor in enumerate(all_tensors(self._reader, objects)):
            if not self._walk.has_met(tensor):
                for place in self._reader.places(tensor):
                    key = place.device, place.address
                    if key not in self._found:
                        orphans.setdefault(key, Found(place)).tensors.append(tensor)
            if number % _CHECK_EVERY == _CHECK_EVERY - 1 and self._is_late():
                self._cut.append("not all tensors were looked at")
                break
        objects.clear()
        del tensor
        self._found |= orphans
        known = len(self._walk.targets)
        self._until = max(self._until, self._clock() + _FOLLOW_S)
        everybody = sorted(orphans.values(), key=_size)
        left = everybody
        for _ in range(_ROUNDS):
            left = [found for found in left if found.root is None]
            if not left or not self._explain(left[:_AT_ONCE], everybody):
                break
            self._claim(everybody)
        self._add_gradients(known)
        if any(found.root is None for found in left):
            self._cut.append("not all tensors without a name were followed up")

    def _add_gradients(self, known: int) -> None:
        """Add those tensors of cycles that had no Python object before the walk met them."""
        listed = {id(tensor) for found in self._found.values() for tensor in found.tensors}
        self._add([one for one in self._walk.targets[known:] if id(one) not in listed])

    def _explain(self, group: list[Found], everybody: list[Found]) -> bool:
        """Look behind some orphans and note who holds them; return whether it was done."""
        # References are counted there: those of ours are told, or gone meanwhile.
        orphans: list[Any] = []
        keys = [id(found.tensors[0]) for found in group]
        for found in group:
            tensor = found.tensors.pop(0)
            if not any(tensor is one for one in orphans):
                orphans.append(tensor)
            del tensor
        count = len(orphans)
        behind = look_behind(
            self._walk,
            orphans,
            self._notebook.landmarks(),
            Counter(id(tensor) for found in everybody for tensor in found.tensors),
            {id(found.tensors) for found in everybody},
            self._until,
            self._clock,
        )
        by_id = {id(tensor): tensor for tensor in orphans[:count]}
        for found, key in zip(group, keys, strict=True):
            found.tensors.insert(0, by_id[key])
            chain = behind.chains.get(key)
            if chain is not None:
                found.root = chain[0]
                found.name = name_of(chain, self._notebook.places)
        # People know a cycle by its objects of a class; the rest is met from them.
        rank = {id(one): self._walk.is_target(one) * 2 + is_plumbing(one) for one in behind.garbage}
        for part in range(3):
            self._enter([
                Root("orphan", name_of_type(type(one)), one, behind.cycle)
                for one in behind.garbage
                if rank[id(one)] == part and not self._walk.has_met(one)
            ])
        for found, key in zip(group, keys, strict=True):
            if found.root is None and key in behind.held:
                found.root = Root("orphan", "", None, behind.held[key])
        return behind.done

    def _claim(self, orphans: list[Found]) -> None:
        """Note those orphans that the garbage found so far leads to."""
        for found in orphans:
            if found.root is None or (found.root.kind == "orphan" and found.root.value is None):
                met = [tensor for tensor in found.tensors if self._walk.has_met(tensor)]
                found.root = self._walk.root(met[0]) if met else found.root

    # -- the result ----------------------------------------------------------------------

    def result(self, count: int) -> Scan:
        """Turn what was found into plain values."""
        groups = joined_variables(
            self._walk, self._found.values(), list(self._notebook.namespace), self._last
        )
        devices: dict[str, dict[Key, list[Found]]] = {}
        for found in sorted(self._found.values(), key=_size):
            held = devices.setdefault(found.place.device, {})
            held.setdefault(key_of(found, groups, self._module_variable(found)), []).append(found)
        holders: dict[str, tuple[Holder, ...]] = {}
        storages: dict[str, tuple[LiveStorage, ...]] = {}
        addresses: dict[str, dict[int, Held]] = {}
        graphs: dict[str, tuple[str, ...]] = {}
        for device, held in sorted(devices.items()):
            option = "--cpu " if device == "cpu" else ""
            made = {key: holder_of(key, m, self._name, option) for key, m in held.items()}
            holders[device] = tuple(sorted(made.values(), key=by_size))
            owners = [(found, made[key]) for key, members in held.items() for found in members]
            owners.sort(key=lambda pair: _size(pair[0]))
            storages[device] = tuple(
                storage_of(found, self._facts(found), holder, self._names(found))
                for found, holder in owners[:count]
            )
            graphs[device] = self._graphs(held)
            named = [str(Name(s.name, s.where)) for s in storages[device]]
            named += [""] * (len(owners) - len(named))
            addresses[device] = {
                found.place.address: Held(name, holder, found.place.bytes)
                for (found, holder), name in zip(owners, named, strict=True)
            }
        return Scan(
            holders,
            storages,
            addresses,
            graphs,
            "; ".join(dict.fromkeys(self._cut)),
            self._objects or self._walk.count,
            self._clock() - self._begun,
        )

    def _graphs(self, held: dict[Key, list[Found]]) -> tuple[str, ...]:
        """Return who holds tensors with a graph, named by the roots themselves."""
        names: dict[str, None] = {}
        for key, members in held.items():
            if key.kind in ("unknown", "cycle"):
                continue
            for found in members:
                root = found.root
                name = "" if root is None else root.name
                if name in names:
                    continue
                if any(self._reader.has_graph(tensor) for tensor in found.tensors[:_AT_ONCE]):
                    names[name] = None
                if self._is_late():
                    return tuple(names)
        return tuple(names)

    def _facts(self, found: Found) -> list[TensorFacts]:
        return [self._reader.facts(tensor) for tensor in found.tensors[:_AT_ONCE]]

    def _module_variable(self, found: Found) -> str:
        """Return the variable of a module that leads to a storage, e.g. ``train.cache``."""
        root = found.root
        if root is None or root.kind != "module":
            return ""
        if found.name is not None:
            return "".join(found.name.steps[:2])
        top = self._walk.top(found.tensors[0])
        if id(top) not in self._tops:
            step = label((root, root.value, top), 1, self._notebook.places)
            self._tops[id(top)] = f"{root.name}{step.text}"
        return self._tops[id(top)]

    def _name(self, found: Found) -> Name:
        return self._names(found)[0]

    def _names(self, found: Found) -> list[Name]:
        """Return the names of a storage's tensors."""
        if found.name is not None:
            return [found.name]
        if self._is_late():
            root = found.root
            return [Name(f"{root.name} …" if root is not None and root.name else "a tensor")]
        names = [name for tensor in found.tensors[:_AT_ONCE] for name in self._namer.names(tensor)]
        return names or [Name("a tensor")]


def _size(found: Found) -> int:
    return -found.place.bytes
