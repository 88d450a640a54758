"""What one reference from an object to another adds to a name, found by identity."""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count, islice, repeat
from operator import is_
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

from .arrays import index_of, is_array
from .frames import CodePlaces, frame_locals
from .graph import Root
from .kinds import is_one_of, mro_of, name_of_type

__all__ = [
    "HIDDEN", "LEFT_OUT", "MODULE_PARTS", "Step", "class_dict", "instance_dict", "label",
]

MODULE_PARTS = ("_modules", "_parameters", "_buffers")
"""The dicts in which an ``nn.Module`` keeps what people call its attributes."""

_LONGEST_KEY = 40
_PLAIN = tuple(map(id, (str, int, float, bool, bytes, type(None))))


@dataclass(frozen=True, slots=True)
class Step:
    """One reference: what it adds to an expression; ``scope`` begins a new expression."""

    text: str
    scope: str = ""
    is_python: bool = True


HIDDEN = Step("")
"""A reference that people do not speak of: from an object to its ``__dict__``."""
LEFT_OUT = Step("…", is_python=False)


def label(chain: Sequence[Any], position: int, places: CodePlaces) -> Step:
    """Label the reference from one object of a chain to the next."""
    parent, child = chain[position], chain[position + 1]
    below = chain[position + 2] if position + 2 < len(chain) else None
    above = chain[position - 1]
    kind = type(parent)
    try:
        if kind is tuple and type(above) is FunctionType:
            if above.__closure__ is parent:
                return HIDDEN
            if above.__defaults__ is parent:
                return _of_defaults(above, parent, child, places)
        if kind is dict and type(above) is FunctionType and above.__kwdefaults__ is parent:
            return _of_keyword_defaults(above, parent, child, places)
        if kind is dict and _is_locals_of(above, parent):
            return HIDDEN
        if is_one_of(kind, (dict,)):
            owned = type(above) is Root and above.kind == "module"
            return _of_dict(parent, child, owned or _is_dict_of(above, parent))
        if is_one_of(kind, (list, tuple, deque)):
            return _of_sequence(parent, child)
        if is_array(kind):
            place = index_of(parent, child)
            return Step(place) if place else _unsaid(kind)
        special = _SPECIAL.get(id(kind))
        if special is not None:
            found: Step = special(parent, child, below, places)
            return found
        return _of_instance(parent, child)
    except (RuntimeError, ValueError, LookupError, StopIteration):
        # The object has changed under our eyes, from another thread.
        return _unsaid(kind)


def _unsaid(kind: type) -> Step:
    return Step(f" → {name_of_type(kind)}", is_python=False)


def _place(values: Iterable[Any], wanted: Any) -> int | None:
    """Return where an object stands among others, by identity; a million take 10 ms."""
    return next(compress(count(), map(is_, values, repeat(wanted))), None)


def _is_dict_of(owner: Any, attributes: Any) -> bool:
    if type(owner) is Root:
        return False
    if is_one_of(type(owner), (type,)):
        return class_dict(owner) is attributes
    return instance_dict(owner) is attributes


def _of_dict(parent: Any, child: Any, of_instance: bool) -> Step:
    place = _place(dict.values(parent), child)
    if place is not None:
        key = next(islice(dict.keys(parent), place, None))
        if of_instance:
            return _attribute(key)
        return Step(f"[{_key(key)}]", is_python=_is_plain(key))
    if _place(dict.keys(parent), child) is not None:
        return Step(" (a key of it)", is_python=False)
    if type(parent) is not dict:
        return _of_instance(parent, child)
    raise KeyError


def _is_plain(value: Any) -> bool:
    return id(type(value)) in _PLAIN


def _key(key: Any) -> str:
    """Write a plain key; others stand as ``...``, since their repr may be anybody's code."""
    if _is_plain(key):
        if isinstance(key, (str, bytes)):
            long = len(key) > _LONGEST_KEY
            return repr(key[:_LONGEST_KEY])[:-1] + "…" + repr(key)[-1] if long else repr(key)
        return _short(repr(key))
    if type(key) is tuple and len(key) <= _LONGEST_KEY and all(map(_is_plain, key)):
        return _short(f"({', '.join(map(_key, key))}{',' * (len(key) == 1)})")
    return "..."


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_KEY else "..."


def _of_sequence(parent: Any, child: Any) -> Step:
    kind = type(parent)
    base: Any = next(base for base in (list, tuple, deque) if is_one_of(kind, (base,)))
    place = _place(base.__iter__(parent), child)
    if place is None:
        return _of_instance(parent, child)
    fields = _fields(kind) if base is tuple and kind is not tuple else ()
    return Step(f".{fields[place]}" if place < len(fields) else f"[{place}]")


def _fields(kind: type) -> tuple[str, ...]:
    """Return the names of a named tuple's fields, or none."""
    for base in mro_of(kind):
        fields = class_dict(base).get("_fields")
        if type(fields) is tuple and all(type(field) is str for field in fields):
            return fields
    return ()


def class_dict(kind: type) -> dict[str, Any]:
    """Return a class's own attributes without asking its metaclass; to be read only."""
    found: dict[str, Any] = gc.get_referents(_class_dict(kind))[0]
    return found


_class_dict = type.__dict__["__dict__"].__get__
_exception: Any = vars(BaseException)


# Of a type's own making: what a class defines as a property is not run.
_SLOTS = (GetSetDescriptorType, MemberDescriptorType)


def instance_dict(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__`` without running a property of that name, or ``None``."""
    for base in mro_of(type(value)):
        slot = class_dict(base).get("__dict__")
        if slot is not None:
            if not any(type(slot) is kind for kind in _SLOTS):
                return None
            try:
                found = slot.__get__(value)
            except Exception:  # a library's own getter
                return None
            return found if is_one_of(type(found), (dict,)) else None
    return None


def _of_instance(parent: Any, child: Any) -> Step:
    kind = type(parent)
    if child is kind:
        return HIDDEN
    if is_one_of(kind, (BaseException,)):
        for name in ("args", "__cause__", "__context__", "__traceback__"):
            if _exception[name].__get__(parent) is child:
                return HIDDEN if name == "__traceback__" else _attribute(name)
    attributes = instance_dict(parent)
    if is_one_of(kind, (type,)):
        attributes = class_dict(parent)
    if attributes is not None:
        if attributes is child:
            return HIDDEN
        place = _place(dict.values(attributes), child)
        if place is not None:
            return _attribute(next(islice(dict.keys(attributes), place, None)))
    for base in mro_of(kind):
        for name, slot in class_dict(base).items():
            if type(slot) is MemberDescriptorType:
                try:
                    if slot.__get__(parent) is child:
                        return _attribute(name)
                except AttributeError:
                    continue
    if any(name_of_type(base) == "Tensor" for base in mro_of(kind)):
        is_tensor = any(name_of_type(base) == "Tensor" for base in mro_of(type(child)))
        return Step(".grad") if is_tensor else _unsaid(kind)
    return _unsaid(kind)


def _attribute(name: Any) -> Step:
    text = name if type(name) is str else "..."
    return Step(f".{text}", is_python=text.isidentifier())


# -- types that hold things in ways of their own ---------------------------------------------


def _of_function(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    if child is parent.__closure__ and child is not None:
        for name, cell in zip(parent.__code__.co_freevars, child, strict=False):
            if cell is below:
                return Step(name, scope=f"the closure of {places.code(parent.__code__)}")
    if child is not None and (child is parent.__defaults__ or child is parent.__kwdefaults__):
        return HIDDEN
    return _of_instance(parent, child)


def _of_defaults(function: Any, parent: Any, child: Any, places: CodePlaces) -> Step:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount][-len(parent) :]
    name = names[_place(parent, child) or 0]
    return Step(name, scope=f"the defaults of {places.code(code)}")


def _of_keyword_defaults(function: Any, parent: Any, child: Any, places: CodePlaces) -> Step:
    name: str = next(name for name, value in parent.items() if value is child)
    return Step(name, scope=f"the defaults of {places.code(function.__code__)}")


def _of_cell(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    return HIDDEN


def _of_method(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    if child is parent.__self__:
        return Step(".__self__")
    return Step(".__func__")


def _of_partial(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    for name in ("func", "args", "keywords"):
        if getattr(parent, name) is child:
            return Step(f".{name}")
    return _of_instance(parent, child)


def _of_traceback(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    return HIDDEN


def _variable(frame: Any, child: Any, below: Any) -> str | None:
    for name, value in frame_locals(frame).items():
        if value is (below if type(child) is CellType else child):
            return name
    if type(child) is dict:  # the variables of a class body, or what locals() has made
        key = next((key for key, value in list(child.items()) if value is below), None)
        return key if type(key) is str else None
    return None


def _is_locals_of(owner: Any, values: dict[Any, Any]) -> bool:
    """Tell whether a dict is the one in which a frame keeps its variables."""
    frame = _frame_of(owner) if type(owner) is not FrameType else owner
    return frame is not None and all(one is not values for one in frame_locals(frame).values())


_GENERATORS = {id(GeneratorType): "gi", id(CoroutineType): "cr", id(AsyncGeneratorType): "ag"}


def _frame_of(generator: Any) -> FrameType | None:
    prefix = _GENERATORS.get(id(type(generator)))
    frame: FrameType | None = None if prefix is None else getattr(generator, f"{prefix}_frame")
    return frame


def _of_frame(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    name = _variable(parent, child, below)
    scope = places.code(parent.f_code)
    return Step("a temporary value" if name is None else name, scope=scope)


def _of_generator(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    prefix = _GENERATORS[id(type(parent))]
    frame = _frame_of(parent)
    if child is frame:
        return HIDDEN  # up to Python 3.10 a generator's variables are those of its frame
    name = None if frame is None else _variable(frame, child, below)
    code = getattr(parent, f"{prefix}_code")
    what = "coroutine" if prefix == "cr" else "generator"
    scope = f"the {what} {places.code(code)}"
    return Step("a temporary value" if name is None else name, scope=scope)


def _of_lru_cache(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    step = _of_instance(parent, child)
    if step.is_python or step is HIDDEN:
        return step
    return Step(" (its lru_cache)", is_python=False)


def _of_set(parent: Any, child: Any, below: Any, places: CodePlaces) -> Step:
    return Step(" (an element of it)", is_python=False)


# By the ids of the types: a metaclass may have a ``__hash__`` of its own.
_SPECIAL: dict[int, Any] = {
    id(kind): label
    for kind, label in (
        (FunctionType, _of_function),
        (CellType, _of_cell),
        (MethodType, _of_method),
        (functools.partial, _of_partial),
        (type(functools.lru_cache(int)), _of_lru_cache),
        (TracebackType, _of_traceback),
        (FrameType, _of_frame),
        (GeneratorType, _of_generator),
        (CoroutineType, _of_generator),
        (AsyncGeneratorType, _of_generator),
        (set, _of_set),
        (frozenset, _of_set),
    )
}
