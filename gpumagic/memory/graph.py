"""Walk the references between Python's objects and remember by whom each was met.

The walk asks the garbage collector (``gc.get_referents``): no attribute of an object is read,
no property, no ``__getattr__`` and no ``__eq__`` of anybody runs.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .arrays import elements, is_array
from .kinds import ARRAY, CLASS, FRAME, INNER, LEAF, TARGET, Kinds, home_of

__all__ = ["Root", "RootKind", "Walk"]

RootKind = Literal["variable", "frame", "module", "output", "traceback", "orphan"]


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """Where a chain of references begins: a name, and the object that it stands for.

    ``where`` says more of the place, e.g. the function of a local variable; ``cell`` is the
    number of a cell, or 0.
    """

    kind: RootKind
    name: str
    value: Any
    where: str = ""
    cell: int = 0


_CHUNK = 256
# Containers of more objects than these are entered after everything else, the smallest first:
# data sets are long, models are not.
_MANY = 512
# Where a chunk has more references for each object, it is worth a look at who has them.
_USUAL = 8
# How far, and through how many objects, a chunk is looked through before its objects are noted.
_LOOK_DEEP = 3
_LOOK_WIDE = 16 * _CHUNK
_MOST_PARENTS = 8


class Walk:
    """Walk from roots, nearest objects first; each object is met once, by its first holder.

    ``is_target`` names the types whose objects are looked for, ``more`` gives what such an
    object holds that the collector does not know, ``stop`` are objects that are never entered.
    Phases (``walk``) come one after another: what the first one met is no longer met by the
    next, so an object belongs to the first phase that leads to it. Objects that lead to nothing
    within a few steps are passed over by the hundred and not noted.

    The walk holds references to what it met. Drop it as soon as the names are made.
    """

    def __init__(
        self,
        is_target: Callable[[type], bool],
        more: Callable[[Any], Iterable[Any]],
        stop: Iterable[Any] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._kinds = Kinds(is_target, is_array)
        self._more = more
        self._clock = clock
        self._stopper = Root("module", "", None)
        self._parents: dict[int, Any] = {id(one): self._stopper for one in stop}
        self._holders: dict[int, list[Any]] = {}
        self._roots: dict[int, Root] = {}
        self._tops: dict[int, Any] = {}
        self._homes = {"__main__"}
        self._kept: list[Any] = []
        self.targets: list[Any] = []
        self.count = 0

    def is_target(self, value: Any) -> bool:
        """Tell whether an object is of a type that is looked for; its class is not asked."""
        return self._kinds.of(value) == TARGET

    def has_met(self, value: Any) -> bool:
        """Tell whether some root leads to an object."""
        return self._parents.get(id(value), self._stopper) is not self._stopper

    def could_enter(self, value: Any) -> bool:
        """Tell whether a walk would go on through an object that it has not met."""
        return self._kinds.of(value) in (INNER, TARGET) and id(value) not in self._parents

    def walk(self, roots: Sequence[Root], until: float = float("inf")) -> bool:
        """Walk all that some roots lead to; return whether it was done before ``until``.

        An object of ``stop`` is entered only as a root of kind "module".
        """
        level: list[Any] = []
        for root in roots:
            value = root.value
            kind = self._kinds.of(value)
            if kind == LEAF:
                continue
            if root.kind == "module":
                self._homes.add(root.name)
            elif self._parents.get(id(value)) is self._stopper:
                continue
            if self.has_met(value):
                self._note(value, root)
                continue
            self._parents[id(value)] = root
            self._holders[id(value)] = [root]
            self._kept.append(value)
            if kind == TARGET:
                self.targets.append(value)
            if kind == ARRAY:
                self._meet(elements(value), value, level)
            else:
                level.append(value)
        return self._run(level, until)

    def _run(self, level: list[Any], until: float) -> bool:
        """Go on level by level; containers of many objects come after all others."""
        large: list[tuple[int, int, Any]] = []
        while level or large:
            if not level:
                level = self._enter_large(heapq.heappop(large)[-1], until)
            else:
                level = self._step(level, large, until)
            if self._clock() > until:
                return not level and not large
        return True

    def _note(self, value: Any, holder: Any) -> None:
        holders = self._holders.get(id(value))
        if holders is not None and len(holders) < _MOST_PARENTS:
            holders.append(holder)

    def _step(
        self, level: list[Any], large: list[tuple[int, int, Any]], until: float
    ) -> list[Any]:
        """Meet what the objects of one level hold; return the next level."""
        below: list[Any] = []
        for begin in range(0, len(level), _CHUNK):
            chunk = level[begin : begin + _CHUNK]
            self.count += len(chunk)
            children = gc.get_referents(*chunk)
            if len(children) > _MANY + _USUAL * len(chunk):
                chunk = self._without_large(chunk, large)
                children = gc.get_referents(*chunk)
            if self._leads_on(chunk, children):
                for value in chunk:
                    self._meet(gc.get_referents(value), value, below)
            if self._clock() > until:
                return below + level[begin + _CHUNK :]
        return below

    def _without_large(
        self, chunk: list[Any], large: list[tuple[int, int, Any]]
    ) -> list[Any]:
        """Put the containers of many objects aside; return the others."""
        left = []
        for value in chunk:
            count = len(gc.get_referents(value))
            if count > _MANY:
                heapq.heappush(large, (count, len(self._kept), value))
                self._kept.append(value)  # makes the second entry different each time
            else:
                left.append(value)
        return left

    def _enter_large(self, value: Any, until: float) -> list[Any]:
        """Meet what a large container holds; return those objects in it that hold more."""
        below: list[Any] = []
        children = gc.get_referents(value)
        if self._kinds.of(value) == TARGET:
            children += self._more(value)
        for begin in range(0, len(children), _CHUNK):
            chunk = children[begin : begin + _CHUNK]
            self.count += len(chunk)
            if self._leads_on([], chunk):
                self._meet(chunk, value, below, also_more=False)
            if self._clock() > until:
                return [*below, value]
        return below

    def _leads_on(self, chunk: list[Any], children: list[Any]) -> bool:
        """Tell whether to note what some objects hold: unless it ends soon, in plain values.

        ``chunk`` are objects whose references ``children`` are, as far as they are met.
        """
        kinds, parents = self._kinds, self._parents
        if not kinds.of_types(chunk) <= kinds.passed:
            return True
        for depth in range(_LOOK_DEEP + 1):
            inner = kinds.inner(children)
            if not inner:
                return False
            # Each once: a hundred instances have one class.
            ahead = dict(zip(map(id, inner), inner, strict=True))
            special = kinds.of_types(ahead.values()) - kinds.passed
            if special:
                some = [one for one in ahead.values() if id(type(one)) in special]
                if any(map(self._counts, some)):
                    return True
                for one in some:
                    del ahead[id(one)]
            if not self._holders.keys().isdisjoint(ahead.keys()):
                return True
            if not parents.keys().isdisjoint(ahead.keys()):
                ahead = {key: one for key, one in ahead.items() if key not in parents}
            if not ahead:
                return False
            if depth == _LOOK_DEEP or len(ahead) > _LOOK_WIDE:
                return True
            children = gc.get_referents(*ahead.values())
            self.count += len(ahead)
        return True

    def _counts(self, value: Any) -> bool:
        """Tell whether a target, a class or a frame has to be noted."""
        kind = self._kinds.of(value)
        if kind == CLASS:
            return id(value) not in self._parents and home_of(value) in self._homes
        return kind == TARGET or id(value) not in self._parents

    def _meet(
        self, children: list[Any], value: Any, below: list[Any], also_more: bool = True
    ) -> None:
        kinds, parents, holders = self._kinds.by_id, self._parents, self._holders
        own = self._kinds.of(value)
        if own == TARGET and also_more:
            children += self._more(value)
        for child in children:
            kind = kinds.get(id(type(child)))
            if kind is None:
                kind = self._kinds.of(child)
            if kind == LEAF:
                continue
            key = id(child)
            if key in parents:
                if key in holders:
                    self._note(child, value)
                continue
            if kind == TARGET:
                holders[key] = [value]
                self.targets.append(child)
            elif kind == FRAME and own == FRAME:
                continue  # the caller's frame, which is not this one's to hold
            elif kind == CLASS and home_of(child) not in self._homes:
                continue
            parents[key] = value
            if kind == ARRAY:
                self._meet(elements(child), child, below)
            else:
                below.append(child)

    def holders(self, value: Any) -> list[Any]:
        """Return who holds a target or a root's value, nearest to a root first: objects, Roots."""
        return list(self._holders.get(id(value), ()))

    def chain(self, value: Any) -> list[Any]:
        """Return the objects from a Root down to an object that was met, with both ends.

        Empty for one that was not met.
        """
        chain = [value]
        while type(chain[-1]) is not Root:
            parent = self._parents.get(id(chain[-1]), self._stopper)
            if parent is self._stopper:
                return []
            chain.append(parent)
        return chain[::-1]

    def root(self, value: Any) -> Root | None:
        """Return the Root that an object was met from, or ``None`` if it was not met."""
        passed = []
        while type(value) is not Root:
            key = id(value)
            passed.append(key)
            value = self._roots.get(key) or self._parents.get(key, self._stopper)
        if value is self._stopper:
            return None
        self._roots.update(dict.fromkeys(passed, value))
        return value

    def top(self, value: Any) -> Any:
        """Return the object on the way to one that was met which the root's value holds itself."""
        passed = []
        while id(value) not in self._tops:
            passed.append(id(value))
            above = self._parents[id(value)]
            if type(above) is Root or type(self._parents[id(above)]) is Root:
                self._tops[id(value)] = value
            else:
                value = above
        top = self._tops[id(value)]
        self._tops.update(dict.fromkeys(passed, top))
        return top
