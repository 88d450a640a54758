"""A rule: a name, a function of a case, and the findings that it makes superfluous."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .case import Case
from .finding import Finding

__all__ = ["Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    ``check`` returns what it finds, or ``None``; its docstring says when it speaks. ``hides``
    names the rules that have nothing to add where this one speaks. A rule about what the cell
    does on the GPU is ``own``: it is asked only if this process uses the GPU.
    """

    name: str
    check: Callable[[Case], Finding | None]
    hides: frozenset[str] = frozenset()
    own: bool = True

    @property
    def when(self) -> str:
        """When the rule speaks, in words."""
        return " ".join((self.check.__doc__ or "").split())
