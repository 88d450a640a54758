"""The figures of a scene as words that travel to the browser, in blocks of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .parts import Row, Scene
from .strips import STRIPS, scale_of

__all__ = ["BLOCK", "Layer", "Words", "first_column"]

BLOCK = 16
"""Columns of a block; a block is numbered as its columns are, from the epoch on."""


def first_column(scene: Scene) -> tuple[int, float]:
    """Return the number of a scene's oldest column and its width in seconds; see Grid."""
    width = round((scene.end - scene.start) / scene.columns, 6)
    return round(scene.start / width), width


@dataclass(frozen=True, slots=True)
class Layer:
    """A figure of each column: values in base units, as those of a trace of ``row``.

    ``unknown`` is the word for a column without one.
    """

    row: Row
    values: Sequence[float | None]
    unknown: str = "n/a"


class _Cells:
    """The columns of one layer in one block: values, and the words for them.

    A column that was never in view has no word; one that has left the view keeps its own, so
    that its block need not be sent again.
    """

    __slots__ = ("_begin", "_end", "_values", "_words")

    def __init__(self) -> None:
        self._values: list[float | None] = [None] * BLOCK
        self._words = [""] * BLOCK
        self._begin = self._end = BLOCK

    def take(self, layer: Layer, begin: int, end: int, offset: int) -> bool:
        """Take over a layer's columns ``begin`` to ``end``; return whether a word has changed."""
        new, until = list(layer.values[begin:end]), offset + end - begin
        words = self._words
        known = self._begin <= offset and until <= self._end
        if known and new == self._values[offset:until]:
            return False
        number = scale_of(STRIPS[layer.row.name].metric).number
        before = words.copy()
        for index, value in enumerate(new, offset):
            if not (value == self._values[index] and words[index]):
                words[index] = layer.unknown if value is None else number(value)
        self._values[offset:until] = new
        self._begin, self._end = min(self._begin, offset), until
        return words != before

    def text(self) -> str:
        """Write the words, one that repeats the one before it as nothing."""
        found, last = [], ""
        for word in self._words:
            found.append("" if word == last else word)
            last = word or last
        return ",".join(found).rstrip(",")


class Words:
    """The words of all columns in view, by the numbers of their blocks.

    In the text of a block, layers are parted by ``;`` and columns by ``,``. Nothing repeats the
    column before it. Only columns whose values have changed are written anew.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[_Cells]] = {}
        self._texts: dict[int, str] = {}
        self._first = 0
        self._layers: Sequence[Layer] = ()

    def clear(self) -> None:
        """Forget all columns, as their width or the layers have changed."""
        self._blocks.clear()
        self._texts.clear()
        self._layers = ()

    def take(self, scene: Scene, layers: Sequence[Layer]) -> dict[int, str]:
        """Take over a scene's layers and return the text of each block, the oldest first."""
        first, _ = first_column(scene)
        numbers = range(first // BLOCK, (first + scene.columns - 1) // BLOCK + 1)
        for number in self._blocks.keys() - set(numbers):
            del self._blocks[number], self._texts[number]
        begin = numbers[0]
        if self._holds(layers, first, numbers[-1] * BLOCK - BLOCK):
            begin = max(begin, numbers[-1] - 1)
        for number in range(begin, numbers[-1] + 1):
            self._fill(number, first, scene.columns, layers)
        self._first, self._layers = first, layers
        return {number: self._texts[number] for number in numbers}

    def _holds(self, layers: Sequence[Layer], first: int, end: int) -> bool:
        """Tell whether the columns from ``first`` to before ``end`` are as they were taken.

        Most of the time all but the newest are, and this is the fast way to see it.
        """
        left, right = first - self._first, end - self._first
        return 0 <= left < right and 0 < len(layers) == len(self._layers) and all(
            new.values[: end - first] == old.values[left:right]
            for new, old in zip(layers, self._layers, strict=True)
        )

    def _fill(self, number: int, first: int, count: int, layers: Sequence[Layer]) -> None:
        """Bring one block up to date."""
        cells = self._blocks.get(number)
        if cells is None:
            cells = self._blocks[number] = [_Cells() for _ in layers]
        begin = max(0, number * BLOCK - first)
        end = min(count, (number + 1) * BLOCK - first)
        offset = first + begin - number * BLOCK
        changed = [
            cell.take(layer, begin, end, offset)
            for cell, layer in zip(cells, layers, strict=True)
        ]
        if any(changed) or number not in self._texts:
            self._texts[number] = ";".join(cell.text() for cell in cells)
