"""The chains of references that keep one object."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any

from ..errors import SettingError
from .graph import Walk
from .kinds import is_one_of, mro_of, name_of_type
from .labels import MODULE_PARTS, class_dict, instance_dict
from .naming import Name, Namer
from .phases import tensors_below, walk_all, without_collector
from .report import running_shell
from .roots import Notebook
from .scan import TIMEOUT_S
from .tensors import NO_TORCH, TensorReader, torch_module

__all__ = ["Holders", "holders_of", "resolve"]

_PART = re.compile(r"\.(\w+)|\[([^\[\]]*|'[^']*'|\"[^\"]*\")\]")
_MOST = 16


@dataclass(frozen=True, slots=True, repr=False)
class Holders:
    """Who keeps an object: ``chains`` lead to it, or to a tensor on the same storage.

    ``others`` lead to tensors inside it on ways that do not lead through it: those keep their
    memory when it goes. Shortest first. ``kind`` is its type's name, ``cut`` says what was not
    looked through. ``cpu`` says that its tensors are all on the CPU.
    """

    name: str
    kind: str
    chains: tuple[Name, ...]
    others: tuple[Name, ...] = ()
    cut: str = ""
    cpu: bool = False

    def _commands(self, names: Sequence[Name]) -> list[str]:
        from ..views.memory_words import release_of

        found = map(release_of, names)
        return [text.replace("%gpufree", "%gpufree --cpu", 1) if self.cpu else text
                for text in found]

    def __str__(self) -> str:
        from ..views.memory_text import holders_text

        text = holders_text(self.name, self.chains, self._commands(self.chains), cut=self.cut)
        if not self.others:
            return text
        inside = holders_text(self._inside, self.others, self._commands(self.others))
        return f"{text}\n\n{inside}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from ..views.memory_html import holders_html

        html = holders_html(self.name, self.chains, self._commands(self.chains), cut=self.cut)
        if self.others:
            html += holders_html(self._inside, self.others, self._commands(self.others))
        return html

    @property
    def _inside(self) -> str:
        return f"a tensor inside {self.name}"


def holders_of(
    expression: str, notebook: Notebook | None = None, *, timeout_s: float = TIMEOUT_S
) -> Holders:
    """Find all that leads to the object of an expression: ``model``, ``results[12]['x']``.

    Names, attributes and constant indices are followed without running any code. Raises
    :class:`~gpumagic.errors.SettingError` for an expression that leads nowhere. Nothing is
    held afterwards.
    """
    notebook = Notebook(running_shell()) if notebook is None else notebook
    torch = torch_module()
    if torch is None:
        raise SettingError(NO_TORCH)
    return _Holding(notebook, torch, expression, timeout_s).report()


class _Holding:
    def __init__(
        self, notebook: Notebook, torch: Any, expression: str, timeout_s: float
    ) -> None:
        self._notebook = notebook
        self._expression = expression
        self._readers = [TensorReader(torch, kind) for kind in ("cuda", "cpu")]
        self._value = resolve(notebook, expression)
        kind = type(self._value)
        reader = self._readers[0]
        self._walk = Walk(
            lambda one: one is kind or reader.is_tensor(one), reader.gradient, notebook.fences()
        )
        self._namer = Namer(self._walk, notebook.places)
        with without_collector(), reader.quiet():
            self._cut = walk_all(self._walk, notebook, timeout_s=timeout_s)

    def report(self) -> Holders:
        with self._readers[0].quiet():
            tensors = self._tensors()
            devices = {device for tensor in tensors for device, _ in self._places(tensor)}
            chains = self._sorted(self._same())
            others = self._sorted(self._inside(tensors)) if self._is_container() else []
        return Holders(
            self._expression,
            name_of_type(type(self._value)),
            tuple(chains),
            tuple(others),
            "; ".join(self._cut),
            devices == {"cpu"},
        )

    def _tensors(self) -> list[Any]:
        """Return the tensor itself, or those that the object leads to."""
        if not self._is_container():
            return [self._value]
        return tensors_below(self._value, self._notebook, self._readers[0])

    def _places(self, tensor: Any) -> set[tuple[str, int]]:
        if not self._readers[0].is_tensor(type(tensor)):
            return set()
        return {
            (place.device, place.address)
            for reader in self._readers
            for place in reader.places(tensor)
        }

    def _is_container(self) -> bool:
        return not self._readers[0].is_tensor(type(self._value))

    def _same(self) -> Iterator[Name]:
        """Yield the names of the object, and of other tensors on its storage."""
        yield from self._namer.names(self._value)
        own = self._places(self._value)
        if own:
            for tensor in self._walk.targets:
                if tensor is not self._value and self._places(tensor) & own:
                    yield from self._namer.names(tensor)

    def _inside(self, tensors: list[Any]) -> Iterator[Name]:
        """Yield for each other root one name of a tensor that the object leads to as well."""
        inside = {id(tensor) for tensor in tensors}
        seen = {self._walk.root(self._value)}
        for tensor in tensors:
            for holder in self._walk.holders(tensor):
                root = self._walk.root(holder)
                if root in seen or root is None or id(holder) in inside:
                    continue
                seen.add(root)
                names = [n for n in self._namer.names(tensor) if n.steps[0].startswith(root.name)]
                yield from names[:1]

    @staticmethod
    def _sorted(names: Iterator[Name]) -> list[Name]:
        return sorted(dict.fromkeys(names), key=lambda name: len(name.steps))[:_MOST]


# -- from an expression to its object ----------------------------------------------------------


def resolve(notebook: Notebook, expression: str) -> Any:
    """Return the object of a name with attributes and constant indices, without running code.

    Parts of an ``nn.Module`` are found as attributes, numbered ones too
    (``model.layers.3.weight``).
    """
    text = expression.strip()
    name = re.match(r"\w+", text)
    if name is None:
        raise SettingError(f"{expression!r} is not a name such as model or results[12]['x']")
    known = notebook.namespace if name[0] in notebook.namespace else notebook.hidden
    if name[0] not in known:
        raise SettingError(f"no variable {name[0]}")
    value = known[name[0]]
    place = name.end()
    while place < len(text):
        part = _PART.match(text, place)
        if part is None:
            raise SettingError(f"{text!r} cannot be read from {text[place:]!r} on: names,"
                               " attributes and constant indices are understood")
        try:
            value = _attribute(value, part[1]) if part[1] else _item(value, part[2])
        except (LookupError, ValueError, SyntaxError, TypeError):
            raise SettingError(f"{text[:place]} has no {part[0]}") from None
        place = part.end()
    return value


def _attribute(value: Any, name: str) -> Any:
    attributes = instance_dict(value) or {}
    if name in attributes:
        return attributes[name]
    for part in MODULE_PARTS:
        if type(attributes.get(part)) is dict and name in attributes[part]:
            return attributes[part][name]
    for base in mro_of(type(value)):
        slot = class_dict(base).get(name)
        if type(slot) is MemberDescriptorType:
            return slot.__get__(value)
    if name == "grad":
        torch = torch_module()
        reader = TensorReader(torch)
        if reader.is_tensor(type(value)):
            with reader.quiet():
                return reader.gradient(value)[0]
    raise LookupError(name)


def _item(value: Any, text: str) -> Any:
    key = ast.literal_eval(text)
    for base in (dict, list, tuple, deque):
        if is_one_of(type(value), (base,)):
            return base.__getitem__(value, key)
    raise LookupError(text)
