"""What a walk does with an object, by its type; no class and no metaclass is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from typing import Any

__all__ = [
    "ARRAY", "CLASS", "FRAME", "INNER", "LEAF", "OURS", "TARGET", "Kinds", "home_of", "is_one_of",
    "mro_of", "name_of_type",
]

_mro = type.__dict__["__mro__"].__get__
_flags = type.__dict__["__flags__"].__get__
_module = type.__dict__["__module__"].__get__
_name = type.__dict__["__name__"].__get__

_HAS_GC = 1 << 14
LEAF, INNER, TARGET, CLASS, FRAME, ARRAY = range(6)
"""Leads nowhere; leads on; is looked for; a class; a frame; numpy's array of objects."""

_LOOPS = "asyncio.events"
_NEVER = (
    ModuleType, CodeType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType,
    WrapperDescriptorType, ClassMethodDescriptorType,
)
OURS = __name__.partition(".")[0]
"""The package that this is: its objects and frames are passed by."""


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a type's base classes without asking its metaclass."""
    found: tuple[type, ...] = _mro(kind)
    return found


def name_of_type(kind: type) -> str:
    """Return a type's name without asking its metaclass."""
    return str(_name(kind))


def is_one_of(kind: type, bases: Iterable[type]) -> bool:
    """Tell whether a type is, or derives from, one of some types, by identity.

    ``in`` would ask the ``__eq__`` of a metaclass.
    """
    return any(own is base for own in _mro(kind) for base in bases)


def home_of(kind: type) -> str:
    """Return the name of the module that a class says it is of, or an empty text."""
    try:
        name = _module(kind)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


class Kinds:
    """What the walk does with objects of a type, worked out once for each.

    Types are known by their ids: a metaclass may have a ``__hash__`` or ``__eq__`` of its own.
    """

    def __init__(
        self, is_target: Callable[[type], bool], is_array: Callable[[type], bool]
    ) -> None:
        self._is_target = is_target
        self._is_array = is_array
        self._types: list[type] = []  # kept, so that no id is used twice
        self.by_id: dict[int, int] = {}
        self.leaves: set[int] = set()
        self.passed: set[int] = set()  # neither leaves, nor anything that has to be noted

    def of(self, value: Any) -> int:
        """Return what to do with an object."""
        kind = type(value)
        found = self.by_id.get(id(kind))
        if found is None:
            self._types.append(kind)
            found = self.by_id[id(kind)] = self._of(kind)
            if found == LEAF:
                self.leaves.add(id(kind))
            elif found == INNER:
                self.passed.add(id(kind))
        return found

    def of_types(self, values: Iterable[Any]) -> set[int]:
        """Return the ids of the types of some objects."""
        return set(map(id, map(type, values)))

    def inner(self, values: list[Any]) -> list[Any]:
        """Return those of some objects that can lead further, or are looked for."""
        leaves = self.leaves
        kinds = self.of_types(values)
        if kinds <= leaves:
            return []
        if not kinds <= self.by_id.keys():
            for value in values:
                self.of(value)
            kinds = self.of_types(values)
        if leaves.isdisjoint(kinds):
            return values
        return [value for value in values if id(type(value)) not in leaves]

    def _of(self, kind: type) -> int:
        if self._is_array(kind):
            return ARRAY
        if not _flags(kind) & _HAS_GC or is_one_of(kind, _NEVER):
            return LEAF
        if any(_name(b) == "AbstractEventLoop" and home_of(b) == _LOOPS for b in _mro(kind)):
            return LEAF  # what waits in it are roots of their own
        if self._is_target(kind):
            return TARGET
        if is_one_of(kind, (type,)):
            return CLASS
        if kind is FrameType:
            return FRAME
        return LEAF if home_of(kind).partition(".")[0] == OURS else INNER
