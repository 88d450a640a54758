"""The rule about live memory that only grows from run to run of the same cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..units import bytes_text
from .case import Case
from .finding import Finding

if TYPE_CHECKING:
    from ..memory.live import HolderKind

__all__ = ["GrownHolder", "RunGrowth", "run_growth"]

_ALLOCATED = "torch_allocated_bytes"
_MOST_HOLDERS = 3
_MOST_NAMES = 2
_MUCH = 0.5

_LIST = "`%gpumem --tensors`"
_DETACH = (
    "Keep numbers (`.item()`) or append `.detach()`: a tensor with a graph keeps all that it was"
    f" computed from. {_LIST} lists what is held."
)
_BY_KIND: dict[HolderKind, tuple[str, str]] = {
    "output": (
        "`%gpufree --out` lets displayed values go; `;` at the end of the cell's last line"
        " displays none.",
        "`%gpufree --out`",
    ),
    "cycle": ("`%gpufree` collects what only cycles of objects keep.", "`%gpufree`"),
}
"""The advice, and it in short."""

_CODE = ("variable", "module", "output")
_CLEAR = f"Clear it between the runs, or make it anew in the cell. {_LIST} lists what it holds."


@dataclass(frozen=True, slots=True)
class GrownHolder:
    """What one name holds more than at an earlier search.

    ``name`` is what a person calls it, ``kind`` what keeps it. ``bytes`` and ``tensors`` (its
    storages) are the difference; ``names`` are the new or larger ones of its largest tensors.
    ``has_graph``: autograd keeps for some of them what they were computed from.
    """

    name: str
    kind: HolderKind
    bytes: int
    tensors: int
    names: tuple[str, ...] = ()
    has_graph: bool = False


@dataclass(frozen=True, slots=True)
class RunGrowth:
    """How a GPU's live tensors grew in the last runs of one cell.

    In each of ``runs`` runs in a row the end was higher than the one before, by ``gained_bytes``
    in all. ``compared`` is over how many of these runs two searches for names were compared
    (0: none were), ``compared_bytes`` what was gained in these. ``holders`` are the names that
    grew, the most first; ``graphs`` those that can keep the rest through autograd, and ``cut``
    says that a search did not look through everything.
    """

    runs: int
    gained_bytes: float
    compared: int = 0
    compared_bytes: float = 0.0
    holders: tuple[GrownHolder, ...] = ()
    graphs: tuple[GrownHolder, ...] = ()
    cut: bool = False

    @property
    def unnamed_bytes(self) -> float:
        """What was gained between the searches and no name leads to."""
        return max(0.0, self.compared_bytes - sum(holder.bytes for holder in self.holders))

    @property
    def mostly_unnamed(self) -> bool:
        """Whether no name leads to most of what was gained between the searches."""
        return self.compared > 0 and self.unnamed_bytes > _MUCH * self.compared_bytes


def run_growth(case: Case) -> Finding | None:
    """Live tensors were higher at the end of each of the last three runs of the same cell or
    more, and each run itself took them up."""
    growth = case.growth
    if growth is None:
        return None
    gained = bytes_text(growth.gained_bytes)
    blamed = growth.graphs if growth.mostly_unnamed else growth.holders
    who = f" ({_code(blamed[0])})" if blamed else ""
    advice, tip = _advice(blamed[:_MOST_HOLDERS])
    return Finding(
        "run-growth", "limit",
        f"Live memory grew in each of the last {growth.runs} runs of this cell,"
        f" by {gained} in all.",
        " ".join(filter(None, (_named(growth), _unnamed(growth)))),
        advice,
        f"memory grew by {gained} in {growth.runs} runs of this cell{who}: {tip}",
        case.device, metrics=(_ALLOCATED,),
        figures={
            "gained_bytes": growth.gained_bytes, "runs_count": float(growth.runs),
            "bytes_per_run": growth.gained_bytes / growth.runs,
        },
    )


def _named(growth: RunGrowth) -> str:
    """Say which names grew, and since when."""
    holders = growth.holders[:_MOST_HOLDERS]
    if not holders:
        return ""
    since = "a run before" if growth.compared == 1 else f"{growth.compared} runs before"
    parts = [
        f"{_code(holder)} {bytes_text(holder.bytes)}{_examples(holder)}"
        for holder in holders
    ]
    return f"More than {since}: {', '.join(parts)}."


def _unnamed(growth: RunGrowth) -> str:
    """Say what may keep what no name leads to."""
    if not growth.mostly_unnamed:
        return ""
    left = "what grew" if not growth.holders else f"the other {bytes_text(growth.unnamed_bytes)}"
    if growth.cut:
        return f"The search for {left} was cut short."
    graphs = growth.graphs[:_MOST_HOLDERS]
    if not graphs:
        return f"No name leads to {left}: autograd or C++ keeps it."
    names = " and ".join(f"{_code(one)}{_examples(one)}" for one in graphs)
    # A holder with as many tensors as before can still have a longer graph: a running sum.
    sure = "" if any(one.tensors > 0 for one in graphs) else ", or C++ does"
    return f"No name leads to {left}: autograd keeps what {names} came from{sure}."


def _advice(blamed: Sequence[GrownHolder]) -> tuple[str, str]:
    """Return the advice, and it in short."""
    if not blamed:
        return f"{_LIST} lists what is held.", _LIST
    if blamed[0].kind in _BY_KIND:
        return _BY_KIND[blamed[0].kind]
    if any(holder.has_graph for holder in blamed):
        return _DETACH, "append `.item()` or `.detach()`"
    return _CLEAR, _LIST


def _code(holder: GrownHolder) -> str:
    name = _safe(holder.name)
    return f"`{name}`" if holder.kind in _CODE else name


def _examples(holder: GrownHolder) -> str:
    names = [name for name in holder.names if name != holder.name]
    if not names:
        return ""
    more = ", ..." if len(names) > _MOST_NAMES else ""
    return f" ({', '.join(f'`{_safe(name)}`' for name in names[:_MOST_NAMES])}{more})"


def _safe(name: str) -> str:
    """Leave out of a name what would end the code that it is set as."""
    return name.replace("`", "'")
