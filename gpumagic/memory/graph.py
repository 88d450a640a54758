"""Walk the references between Python's objects and remember by whom each was met.

The walk asks the garbage collector (``gc.get_referents``): no attribute of an object is read,
no property, no ``__getattr__`` and no ``__eq__`` of anybody runs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import (
    ClassMethodDescriptorType,
    CodeType,
    FrameType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Literal

__all__ = ["Root", "RootKind", "Walk", "mro_of"]

RootKind = Literal["variable", "frame", "module", "output", "traceback", "orphan"]


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """Where a chain of references begins: a name, and the object that it stands for.

    ``where`` says more of the place, e.g. the function of a local variable; ``place`` is the
    number of a cell, or 0.
    """

    kind: RootKind
    name: str
    value: Any
    where: str = ""
    cell: int = 0


_mro = type.__dict__["__mro__"].__get__
_flags = type.__dict__["__flags__"].__get__
_module = type.__dict__["__module__"].__get__

_HAS_GC = 1 << 14
_LEAF, _INNER, _TARGET, _CLASS, _FRAME = range(5)
_NEVER = (
    ModuleType, CodeType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType,
    WrapperDescriptorType, ClassMethodDescriptorType,
)
# Containers of more objects than these are looked at after everything else, in chunks.
_MANY = 4096
_CHUNK = 256
_SIZED = (list, tuple, dict, set, frozenset)
_MOST_PARENTS = 8


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a type's base classes without asking its metaclass."""
    found: tuple[type, ...] = _mro(kind)
    return found


class _Kinds(dict[type, int]):
    """What the walk does with an object of a type, worked out once for each."""

    def __init__(self, is_target: Callable[[type], bool]) -> None:
        super().__init__()
        self._is_target = is_target

    def __missing__(self, kind: type) -> int:
        value = self[kind] = self._of(kind)
        return value

    def _of(self, kind: type) -> int:
        bases = mro_of(kind)
        if not _flags(kind) & _HAS_GC or any(base in _NEVER for base in bases):
            return _LEAF
        if self._is_target(kind):
            return _TARGET
        if type in bases:
            return _CLASS
        if kind is FrameType:
            return _FRAME
        home = _module(kind)
        ours = isinstance(home, str) and home.partition(".")[0] == __name__.partition(".")[0]
        return _LEAF if ours else _INNER


class Walk:
    """Walk from roots, nearest objects first; each object is met once, by its first holder.

    ``is_target`` names the types whose objects are looked for, ``more`` gives what such an
    object holds that the collector does not know, ``stop`` are objects that are never entered.
    Phases (``walk``) come one after another: what the first one met is no longer met by the
    next, so an object belongs to the first phase that leads to it.

    The walk holds references to what it met. Drop it as soon as the names are made.
    """

    def __init__(
        self,
        is_target: Callable[[type], bool],
        more: Callable[[Any], Iterable[Any]],
        stop: Iterable[Any] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._kinds = _Kinds(is_target)
        self._more = more
        self._clock = clock
        self._stopper = Root("module", "", None)
        self._parents: dict[int, Any] = {id(one): self._stopper for one in stop}
        self._holders: dict[int, list[Any]] = {}
        self._kept: list[Any] = []
        self.targets: list[Any] = []
        self.count = 0

    def is_target(self, value: Any) -> bool:
        """Tell whether an object is of a type that is looked for; its class is not asked."""
        return self._kinds[type(value)] == _TARGET

    def has_met(self, value: Any) -> bool:
        """Tell whether some root leads to an object."""
        return self._parents.get(id(value), self._stopper) is not self._stopper

    def walk(self, roots: Sequence[Root], until: float = float("inf")) -> bool:
        """Walk all that some roots lead to; return whether it was done before ``until``."""
        level: list[Any] = []
        for root in roots:
            value = root.value
            kind = self._kinds[type(value)]
            if kind == _LEAF:
                continue
            if self.has_met(value):
                self._note(value, root)
                continue
            self._parents[id(value)] = root
            self._holders[id(value)] = [root]
            self._kept.append(value)
            if kind == _TARGET:
                self.targets.append(value)
            level.append(value)
        return self._run(level, until)

    def _run(self, level: list[Any], until: float) -> bool:
        """Go on level by level; containers of many objects come after all others."""
        large: list[Any] = []
        while level or large:
            if not level:
                level = self._enter_large(large.pop(0), until)
            else:
                level = self._step(level, large, until)
            if self._clock() > until:
                return not level and not large
        return True

    def _note(self, value: Any, holder: Any) -> None:
        holders = self._holders.get(id(value))
        if holders is not None and len(holders) < _MOST_PARENTS:
            holders.append(holder)

    def _step(self, level: list[Any], large: list[Any], until: float) -> list[Any]:
        """Meet what the objects of one level hold; return the next level."""
        below: list[Any] = []
        for begin in range(0, len(level), _CHUNK):
            chunk = level[begin : begin + _CHUNK]
            self.count += len(chunk)
            for value in chunk:
                if type(value) in _SIZED and len(value) > _MANY:
                    large.append(value)
                else:
                    self._meet(gc.get_referents(value), value, below)
            if self._clock() > until:
                return below + level[begin + _CHUNK :]
        return below

    def _enter_large(self, value: Any, until: float) -> list[Any]:
        """Meet what a large container holds; return those objects in it that hold more."""
        below: list[Any] = []
        children = gc.get_referents(value)
        for begin in range(0, len(children), _CHUNK):
            chunk = children[begin : begin + _CHUNK]
            if self._leads_on(chunk):
                self._meet(chunk, value, below)
            if self._clock() > until:
                return [*below, value]
        return below

    def _leads_on(self, chunk: list[Any]) -> bool:
        """Tell whether any of some objects is looked for, or holds more than plain values."""
        kinds = self._kinds
        seen = {kinds[kind] for kind in set(map(type, chunk))}
        if seen == {_LEAF} or not seen:
            return False
        if seen <= {_LEAF, _INNER}:
            held = set(map(type, gc.get_referents(*chunk)))
            return any(kinds[kind] != _LEAF for kind in held)
        return True

    def _meet(self, children: list[Any], value: Any, below: list[Any]) -> None:
        kinds, parents = self._kinds, self._parents
        own = kinds[type(value)]
        if own == _TARGET:
            children += self._more(value)
        for child in children:
            kind = kinds[type(child)]
            if kind == _LEAF:
                continue
            key = id(child)
            if key in parents:
                if key in self._holders:
                    self._note(child, value)
                continue
            if kind == _TARGET:
                self._holders[key] = [value]
                self.targets.append(child)
            elif kind == _FRAME and own == _FRAME:
                continue  # the caller's frame, which is not this one's to hold
            elif kind == _CLASS and _module(child) != "__main__":
                continue
            parents[key] = value
            below.append(child)

    def holders(self, value: Any) -> list[Any]:
        """Return who holds a target or a root's value, nearest to a root first: objects, Roots."""
        return list(self._holders.get(id(value), ()))

    def chain(self, value: Any) -> list[Any]:
        """Return the objects from a Root down to an object that was met, with both ends.

        Empty for one that was not met.
        """
        chain = [value]
        while not isinstance(chain[-1], Root):
            parent = self._parents.get(id(chain[-1]), self._stopper)
            if parent is self._stopper:
                return []
            chain.append(parent)
        return chain[::-1]

    def root(self, value: Any) -> Root | None:
        """Return the Root that an object was met from, or ``None`` if it was not met."""
        while not isinstance(value, Root):
            value = self._parents.get(id(value), self._stopper)
        return None if value is self._stopper else value
