"""Name an object as a person would: by the chain of references that leads to it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    TracebackType,
)
from typing import Any

from .frames import CodePlaces, frame_locals
from .graph import Root, Walk, mro_of

__all__ = ["Name", "Namer", "instance_dict", "name_of"]

_LONGEST_KEY = 40
_PLAIN = (str, int, float, bool, bytes, type(None))
_MODULE_PARTS = ("._modules", "._parameters", "._buffers")
_SHARD = "._local_tensor"


@dataclass(frozen=True, slots=True)
class Name:
    """An expression, and the place where it means something (empty: in the notebook).

    ``batch[3]``; ``acts`` in ``train_step(), [5] line 3``. ``steps`` are the chain's parts from
    the root on, for showing them one below the other. ``can_evaluate`` says that the text is
    Python which gives the object in the notebook.
    """

    text: str
    where: str = ""
    steps: tuple[str, ...] = ()
    can_evaluate: bool = False

    def __str__(self) -> str:
        return f"{self.text} in {self.where}" if self.where else self.text


@dataclass(frozen=True, slots=True)
class _Step:
    """One reference: what it adds to an expression; ``scope`` begins a new expression."""

    text: str
    scope: str = ""
    is_python: bool = True


_HIDDEN = _Step("")


class Namer:
    """Name what a walk has met, by the best of the chains that lead to it."""

    def __init__(self, walk: Walk, places: CodePlaces) -> None:
        self._walk = walk
        self._places = places
        self._best: dict[int, list[Any]] = {}

    def names(self, value: Any) -> list[Name]:
        """Return one name for each known holder of a target or a root's value, best first."""
        named = [(name_of(chain, self._places), chain) for chain in self._chains(value)]
        named.sort(key=lambda pair: _rank(pair[0]))
        if named:
            self._best[id(value)] = named[0][1]
        return list(dict.fromkeys(name for name, _ in named))

    def _chains(self, value: Any) -> Iterator[list[Any]]:
        for holder in self._walk.holders(value):
            if isinstance(holder, Root):
                yield [holder, value]
            elif self._walk.is_target(holder):
                # A gradient is named after its parameter, by the parameter's best name.
                yield [*self._best_chain(holder), value]
            elif above := self._walk.chain(holder):
                yield [*above, value]

    def _best_chain(self, value: Any) -> list[Any]:
        known = self._best.get(id(value))
        if known is None:
            known = self._best[id(value)] = self._walk.chain(value)  # ends a circle
            self.names(value)
        return self._best[id(value)]


def _rank(name: Name) -> tuple[int, int, int]:
    unsaid = sum(not step.startswith((".", "[")) for step in name.steps[1:])
    return unsaid, len(name.steps), len(name.text)


def name_of(chain: Sequence[Any], places: CodePlaces) -> Name:
    """Name the last object of a chain that begins with a Root.

    The label of each reference is found by identity, in dicts, sequences, slots, closures and
    frames; where none is found, the type of the holder stands for it.
    """
    root = chain[0]
    assert isinstance(root, Root)
    text, where = root.name, root.where
    python = root.kind in ("variable", "output")
    where = where if root.kind == "frame" else ""
    steps = [f"{text} in {where}" if where else text]
    part = ""
    scopes = 0
    for position in range(1, len(chain) - 1):
        step = _step(chain, position, places)
        if step is _HIDDEN:
            continue
        if step.scope:
            scopes += 1
            text, where, part, python = step.text, step.scope, "", False
            steps.append(f"{step.text} in {step.scope}")
            continue
        if part and step.text.startswith("['"):
            # What is model._modules['3'] by its place is model.3 to everybody.
            text = f"{text.removesuffix(part)}.{step.text[2:-2]}"
            python = False
            steps[-1] = f".{step.text[2:-2]}"
            part = ""
            continue
        text += step.text
        part = step.text if step.text in _MODULE_PARTS else ""
        python = python and step.is_python
        steps.append(step.text)
    if scopes and root.kind in ("variable", "output"):
        where = f"{where}, held by {root.name}"
    return Name(text.removesuffix(_SHARD), where, tuple(steps), python)


def _step(chain: Sequence[Any], position: int, places: CodePlaces) -> _Step:
    """Label the reference from one object of a chain to the next."""
    parent, child = chain[position], chain[position + 1]
    below = chain[position + 2] if position + 2 < len(chain) else None
    above = chain[position - 1]
    kind = type(parent)
    try:
        if kind is tuple and type(above) is FunctionType and above.__closure__ is parent:
            return _HIDDEN
        if issubclass_of(kind, dict):
            owned = isinstance(above, Root) and above.kind == "module"
            return _of_dict(parent, child, owned or _is_dict_of(above, parent))
        if issubclass_of(kind, list) or issubclass_of(kind, tuple) or kind is deque:
            return _of_sequence(parent, child)
        special = _SPECIAL.get(kind)
        if special is not None:
            found: _Step = special(parent, child, below, places)
            return found
        return _of_instance(parent, child)
    except (RuntimeError, ValueError, KeyError):
        # The object has changed under our eyes, from another thread.
        return _Step(f" → {kind.__name__}", is_python=False)


def _is_dict_of(owner: Any, attributes: Any) -> bool:
    if isinstance(owner, Root):
        return False
    return instance_dict(owner) is attributes


def issubclass_of(kind: type, base: type) -> bool:
    """Tell whether a type derives from another; no metaclass is asked."""
    return base in mro_of(kind)


def _of_dict(parent: Any, child: Any, of_instance: bool) -> _Step:
    for key, value in dict.items(parent):
        if value is child:
            if of_instance:
                return _attribute(key)
            return _Step(f"[{_key(key)}]", is_python=type(key) in _PLAIN)
        if key is child:
            return _Step(" (a key of it)", is_python=False)
    if type(parent) is not dict:
        return _of_instance(parent, child)
    raise KeyError


def _key(key: Any) -> str:
    """Write a plain key; others stand as ``...``, since their repr may be anybody's code."""
    if type(key) in _PLAIN:
        text = repr(key)
        return text if len(text) <= _LONGEST_KEY else text[: _LONGEST_KEY - 2] + "…" + text[-1]
    if type(key) is tuple and all(type(part) in _PLAIN for part in key):
        return repr(key) if len(repr(key)) <= _LONGEST_KEY else "..."
    return "..."


def _of_sequence(parent: Any, child: Any) -> _Step:
    fields = None
    if issubclass_of(type(parent), tuple):
        fields = type.__getattribute__(type(parent), "__dict__").get("_fields")
    base = deque if type(parent) is deque else (list if fields is None else tuple)
    values: Any = parent
    if base is not deque:
        values = (list if issubclass_of(type(parent), list) else tuple).__iter__(parent)
    for index, value in enumerate(values):
        if value is child:
            if fields is not None and index < len(fields):
                return _Step(f".{fields[index]}")
            return _Step(f"[{index}]")
    return _of_instance(parent, child)


def instance_dict(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__`` without running a property of that name, or ``None``."""
    for base in mro_of(type(value)):
        slot = type.__getattribute__(base, "__dict__").get("__dict__")
        if slot is not None:
            if type(slot) is not GetSetDescriptorType:
                return None
            found = slot.__get__(value)
            return found if isinstance(found, dict) else None
    return None


def _of_instance(parent: Any, child: Any) -> _Step:
    attributes = instance_dict(parent)
    if attributes is not None:
        if attributes is child:
            return _HIDDEN
        for name, value in dict.items(attributes):
            if value is child:
                return _attribute(name)
    for base in mro_of(type(parent)):
        for name, slot in type.__getattribute__(base, "__dict__").items():
            if type(slot) is MemberDescriptorType:
                try:
                    if slot.__get__(parent) is child:
                        return _attribute(name)
                except AttributeError:
                    continue
    if any(base.__name__ == "Tensor" for base in mro_of(type(parent))):
        return _Step(".grad")
    return _Step(f" → {type(parent).__name__}", is_python=False)


def _attribute(name: Any) -> _Step:
    text = name if type(name) is str else "..."
    return _Step(f".{text}", is_python=text.isidentifier())


# -- types that hold things in ways of their own ---------------------------------------------


def _of_function(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    if child is parent.__closure__ and child is not None:
        for name, cell in zip(parent.__code__.co_freevars, child, strict=False):
            if cell is below:
                return _Step(name, scope=f"the closure of {places.code(parent.__code__)}")
    if child is parent.__defaults__:
        return _Step(".__defaults__")
    if child is parent.__kwdefaults__:
        return _Step(".__kwdefaults__")
    return _of_instance(parent, child)


def _of_cell(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    return _HIDDEN


def _of_method(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    if child is parent.__self__:
        return _Step(".__self__")
    return _Step(".__func__")


def _of_partial(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    for name in ("func", "args", "keywords"):
        if getattr(parent, name) is child:
            return _Step(f".{name}")
    return _of_instance(parent, child)


def _of_traceback(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    return _HIDDEN


def _variable(frame: Any, child: Any, below: Any) -> str | None:
    values = frame_locals(frame)
    wanted = below if type(child) is CellType else child
    for name, value in values.items():
        if value is wanted:
            return name
    return None


def _of_frame(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    name = _variable(parent, child, below)
    scope = places.code(parent.f_code)
    return _Step("a temporary value" if name is None else name, scope=scope)


def _of_generator(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    prefix = {GeneratorType: "gi", CoroutineType: "cr", AsyncGeneratorType: "ag"}[type(parent)]
    frame = getattr(parent, f"{prefix}_frame")
    if child is frame:
        return _HIDDEN
    name = None if frame is None else _variable(frame, child, below)
    code = getattr(parent, f"{prefix}_code")
    what = "coroutine" if prefix == "cr" else "generator"
    scope = f"the {what} {places.code(code)}"
    return _Step("a temporary value" if name is None else name, scope=scope)


def _of_set(parent: Any, child: Any, below: Any, places: CodePlaces) -> _Step:
    return _Step(" (an element of it)", is_python=False)


_SPECIAL: dict[type, Any] = {
    FunctionType: _of_function,
    CellType: _of_cell,
    MethodType: _of_method,
    functools.partial: _of_partial,
    TracebackType: _of_traceback,
    FrameType: _of_frame,
    GeneratorType: _of_generator,
    CoroutineType: _of_generator,
    AsyncGeneratorType: _of_generator,
    set: _of_set,
    frozenset: _of_set,
}
