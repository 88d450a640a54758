"""Why a tensor is alive that no name leads to: a cycle, a library, or something outside Python.

From the tensor backwards, by ``gc.get_referrers``. A group of objects is garbage if every
reference to each of them comes from the group itself: that is how the garbage collector sees
it, asked here without collecting anything.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
)
from typing import Any

from .graph import Root, Walk
from .kinds import OURS, is_one_of, name_of_type

__all__ = ["KEPT_OUTSIDE", "Orphans", "is_plumbing", "look_behind"]

KEPT_OUTSIDE = "kept outside Python's objects"
"""What is said of a tensor that nothing of Python's leads to."""

_DEEPEST = 16
_MOST_OBJECTS = 20_000
_PLUMBING = (
    dict, list, tuple, set, frozenset, CellType, FunctionType, MethodType, FrameType,
    BuiltinFunctionType, GeneratorType, CoroutineType,
)


@dataclass(frozen=True, slots=True)
class Orphans:
    """What lies behind some tensors that no root led to, by the tensors' ids.

    ``chains`` lead from a Root to a tensor. ``garbage`` are the objects that the collector
    would free, tensors and those behind them; ``cycle`` says which types hold each other there.
    ``held`` says of other tensors what keeps them. ``done`` is false if the time was up: then
    nothing is known of the rest.
    """

    chains: dict[int, list[Any]]
    garbage: tuple[Any, ...]
    cycle: str
    held: dict[int, str]
    done: bool


def look_behind(
    walk: Walk,
    orphans: list[Any],
    landmarks: Mapping[int, Root],
    ours: Mapping[int, int],
    lists: Collection[int],
    until: float = float("inf"),
    clock: Callable[[], float] = time.perf_counter,
) -> Orphans:
    """Follow the references to some objects backwards.

    ``landmarks`` are objects by id at which the search ends: that is who holds the orphan.
    References are counted: besides the list ``orphans`` the caller may have as many to an
    object as ``ours`` tells by id, all from lists whose ids are ``lists``. ``orphans`` grows by
    the objects that were found behind. A few dozen at most: the cost is one pass over all
    objects for each step back, times their number.
    """
    group = _Group(walk, orphans, landmarks, ours, lists)
    done = group.grow(until, clock)
    chains = group.chains()
    if not done:
        return Orphans(chains, (), "", {}, False)
    alive = group.alive()
    garbage = group.garbage(alive)
    keeper = group.keeper(alive)
    held = {key: keeper for key in group.targets if key in alive and key not in chains}
    return Orphans(chains, garbage, group.words(garbage), held, True)


class _Group:
    """Some objects and all that leads to them, as far as no root is met.

    ``objects`` is the one place that refers to them; notes are by id.
    """

    def __init__(
        self,
        walk: Walk,
        objects: list[Any],
        landmarks: Mapping[int, Root],
        ours: Mapping[int, int],
        lists: Collection[int],
    ) -> None:
        self.targets = tuple(map(id, objects))
        self._objects = objects
        self._walk = walk
        # id of an object -> id of the object of the group to which it leads (0: a target).
        self._towards = dict.fromkeys(self.targets, 0)
        # Where something that is known leads into the group.
        self._entries: list[tuple[list[Any], int]] = []
        self._landmarks = landmarks
        self._ours = ours
        self._lists = lists
        # Ids of what targets lead to, but what leads to none of them.
        self._ahead: set[int] = set()

    def grow(self, until: float, clock: Callable[[], float]) -> bool:
        """Go back until all references are explained; return whether that was reached in time."""
        pending = set(self.targets)
        for _ in range(_DEEPEST):
            if clock() > until or len(self._objects) > _MOST_OBJECTS:
                return False
            pending |= self._look_ahead(pending)
            level = self._unexplained(pending)
            if not level:
                return True
            found = gc.get_referrers(*level)
            wanted = set(map(id, level))
            new = [one for one in found if self._take(one, wanted, (level, found))]
            pending = set(map(id, new))
            self._objects += new
            del level, found, new
        return False

    def _look_ahead(self, pending: set[int]) -> set[int]:
        """Take what some objects lead to; return those of it that lead back to a target.

        Most of a cycle is found so, without the passes over all objects that going back takes.
        """
        known = self._towards.keys() | self._ahead
        level = [one for one in self._objects if id(one) in pending]
        while level and len(self._objects) < _MOST_OBJECTS:
            below = {id(one): one for one in gc.get_referents(*level) if id(one) not in known}
            level = [
                one
                for key, one in below.items()
                if key not in self._landmarks and self._walk.could_enter(one)
            ]
            del below
            known |= set(map(id, level))
            self._ahead |= set(map(id, level))
            self._objects += level
        above: dict[int, list[int]] = {}
        for one in self._objects:
            if id(one) in self._ahead:
                for child in gc.get_referents(one):
                    above.setdefault(id(child), []).append(id(one))
        back = set()
        waiting = list(self._towards)
        while waiting:
            child_key = waiting.pop()
            for key in above.pop(child_key, ()):
                if key not in self._towards:
                    self._towards[key] = child_key
                    back.add(key)
                    waiting.append(key)
        self._ahead -= back
        return back

    def _unexplained(self, pending: set[int]) -> list[Any]:
        """Return those of some objects that more refers to than what is in the group."""
        inside = self._inside()
        return [
            one
            for one in self._objects
            if id(one) in pending and sys.getrefcount(one) > inside[id(one)]
        ]

    def _inside(self) -> Counter[int]:
        """Count by id the references that the group and we ourselves have to its objects."""
        inside: Counter[int] = Counter()
        for one in self._objects:
            inside.update(map(id, gc.get_referents(one)))
            del one  # it would count as a reference from outside
        for key, number in self._ours.items():
            inside[key] += number
        extra = _extra_references()
        for key in (*self._towards, *self._ahead):
            inside[key] += extra
        return inside

    def _take(self, one: Any, wanted: set[int], own: tuple[Any, ...]) -> bool:
        """Take a referrer into the group, unless it is known: then it is a way in, or ours."""
        key = id(one)
        if key in self._towards or one is self._objects or any(one is mine for mine in own):
            return False
        if type(one) is tuple and _are_same(one, own[0]):
            return False  # the arguments of get_referrers itself, from Python 3.13 on
        if key in self._lists or key in self._ahead:
            return False
        if type(one) is FrameType and _is_ours(one):
            return False
        child = next((id(c) for c in gc.get_referents(one) if id(c) in wanted), 0)
        root = self._landmarks.get(key)
        if root is not None:
            self._entries.append(([root, one], child))
            return False
        if self._walk.has_met(one):
            self._entries.append((self._walk.chain(one), child))
            return False
        self._towards[key] = child
        return True

    def chains(self) -> dict[int, list[Any]]:
        """Return the chains that lead from a root to targets: of each the first found."""
        by_id = {id(one): one for one in self._objects}
        found: dict[int, list[Any]] = {}
        for above, key in self._entries:
            chain = list(above)
            while key:
                chain.append(by_id[key])
                last, key = key, self._towards[key]
            if len(chain) > len(above):
                found.setdefault(last, chain)
        return found

    def alive(self) -> set[int]:
        """Return the ids of those objects that something outside the group leads to."""
        inside = self._inside()
        known = self._towards.keys() | self._ahead
        level = [one for one in self._objects if sys.getrefcount(one) > inside[id(one)]]
        alive = set(map(id, level))
        while level:
            level = [
                child
                for child in gc.get_referents(*level)
                if id(child) in known and id(child) not in alive
            ]
            alive.update(map(id, level))
        return alive

    def garbage(self, alive: set[int]) -> tuple[Any, ...]:
        """Return the objects that nothing outside leads to; containers of a type of its own first.

        Those are what people know the others by.
        """
        dead = [one for one in self._objects if id(one) not in alive]
        return tuple(sorted(dead, key=is_plumbing))

    def words(self, garbage: Sequence[Any]) -> str:
        """Name the types of a cycle, those that say most."""
        behind = [one for one in garbage if id(one) not in self.targets]
        names = [name_of_type(type(one)) for one in behind if not is_plumbing(one)]
        if not names:
            names = [_function_name(one) for one in behind if type(one) is FunctionType]
        if not names:
            names = [name_of_type(type(one)) for one in behind]
        shown = list(dict.fromkeys(names))[:3]
        return " ⇄ ".join(shown if len(shown) > 1 else [*shown, "itself"])

    def keeper(self, alive: set[int]) -> str:
        """Say what kind of object is kept by something that is no object of Python's."""
        for one in self._objects[len(self.targets) :]:
            if id(one) in alive:
                return f"held by a {name_of_type(type(one))} that is kept outside Python's objects"
        return KEPT_OUTSIDE


def _are_same(some: tuple[Any, ...], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def is_plumbing(one: Any) -> bool:
    """Tell whether an object is of a type that everybody's references run through."""
    return is_one_of(type(one), _PLUMBING)


def _function_name(function: Any) -> str:
    name: str = function.__qualname__
    return f"{name.split('<locals>.')[-1]}()"


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return type(name) is str and name.partition(".")[0] == OURS


def _extra_references() -> int:
    """Return what ``getrefcount`` tells of an object that one list and a loop refer to."""
    objects = [object()]
    return max(sys.getrefcount(one) for one in objects)
