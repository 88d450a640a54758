"""Name an object as a person would: by the chain of references that leads to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .frames import CodePlaces
from .graph import Root, RootKind, Walk
from .labels import HIDDEN, LEFT_OUT, MODULE_PARTS, label

__all__ = ["Name", "Namer", "name_of"]

# Of a longer chain the middle is left out.
_MOST_STEPS = 16
_ENDS = 6
# Tensors that hold tensors: so many of them are followed for the best name.
_DEEPEST = 16
_SHARD = "._local_tensor"


@dataclass(frozen=True, slots=True)
class Name:
    """An expression, and the place where it means something (empty: in the notebook).

    ``batch[3]``; ``acts`` in ``train_step(), [5] line 3``. ``steps`` are the chain's parts from
    the root on, for showing them one below the other. ``can_evaluate`` says that the text is
    Python which gives the object in the notebook. ``kind`` is that of the root.
    """

    text: str
    where: str = ""
    steps: tuple[str, ...] = ()
    can_evaluate: bool = False
    kind: RootKind = "variable"

    def __str__(self) -> str:
        return f"{self.text} in {self.where}" if self.where else self.text


class Namer:
    """Name what a walk has met, by the best of the chains that lead to it."""

    def __init__(self, walk: Walk, places: CodePlaces) -> None:
        self._walk = walk
        self._places = places
        self._best: dict[int, list[Any]] = {}
        self._depth = 0

    def names(self, value: Any) -> list[Name]:
        """Return one name for each known holder of a target or a root's value, best first."""
        named = [(name_of(chain, self._places), chain) for chain in self._chains(value)]
        named.sort(key=lambda pair: _rank(pair[0]))
        if named:
            self._best[id(value)] = named[0][1]
        return list(dict.fromkeys(name for name, _ in named))

    def _chains(self, value: Any) -> Iterator[list[Any]]:
        for holder in self._walk.holders(value):
            if type(holder) is Root:
                yield [holder, value]
            elif self._walk.is_target(holder):
                # A gradient is named after its parameter, by the parameter's best name.
                yield [*self._best_chain(holder), value]
            elif above := self._walk.chain(holder):
                yield [*above, value]

    def _best_chain(self, value: Any) -> list[Any]:
        known = self._best.get(id(value))
        if known is None:
            self._best[id(value)] = self._walk.chain(value)  # ends a circle
            if self._depth < _DEEPEST:
                self._depth += 1
                self.names(value)
                self._depth -= 1
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
    text, where = root.name, root.where if root.kind == "frame" else ""
    python = root.kind in ("variable", "output")
    steps = [f"{text} in {where}" if where else text]
    parts = [text]  # of the expression, joined at the end
    part = ""
    scopes = 0
    positions: Sequence[int] = range(1, len(chain) - 1)
    if len(chain) > _MOST_STEPS * 4:
        positions = (*positions[: _ENDS * 2], 0, *positions[-_ENDS * 2 :])
    for position in positions:
        step = label(chain, position, places) if position else LEFT_OUT
        if step is HIDDEN:
            continue
        if step.scope:
            scopes += 1
            parts, where, part, python = [step.text], step.scope, "", False
            steps.append(f"{step.text} in {step.scope}")
            continue
        said = step.text
        if part and said.startswith("['"):
            # What is model._modules['3'] by its place is model.3 to everybody.
            parts.pop()
            steps.pop()
            said = f".{said[2:-2]}"
            python = python and said[1:].isidentifier()
        part = said if said[:1] == "." and said[1:] in MODULE_PARTS else ""
        parts.append(said)
        steps.append(said)
        python = python and step.is_python
    if scopes and root.kind in ("variable", "output"):
        where = f"{where}, held by {root.name}"
    if len(parts) > _MOST_STEPS:
        parts[_ENDS:-_ENDS] = [LEFT_OUT.text]
        python = False
    if len(steps) > _MOST_STEPS:
        steps[_ENDS:-_ENDS] = [LEFT_OUT.text]
    return Name("".join(parts).removesuffix(_SHARD), where, tuple(steps), python, root.kind)
