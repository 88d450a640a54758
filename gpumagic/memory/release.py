"""What ``%gpufree`` did, or would do, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from .live import MemoryReport

__all__ = ["Freed", "Step", "StepKind"]

StepKind = Literal["name", "traceback", "cycle", "ipc", "output", "cache"]
"""In the order in which they are done: names that were asked for and their display copies;
tracebacks and the debugger; cycles; handles of other processes that are gone; displayed
values; torch's cached blocks."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing released: ``bytes`` of tensors (for "cache": returned to the driver) by device.

    In a dry run the bytes are those that the search found; otherwise they are measured, as the
    difference of torch's allocated (or reserved) bytes around the step. ``debug_gone`` says
    that ``%debug`` has nothing to look at any more.
    """

    kind: StepKind
    name: str
    detail: str
    bytes: dict[str, int]
    debug_gone: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Freed:
    """What was released and what stays.

    ``before`` and ``after`` are the memory by holder; in a dry run ``after`` is what would be
    left. ``asked`` are the names given; ``still`` says per name who holds its memory on.
    """

    steps: tuple[Step, ...]
    before: MemoryReport
    after: MemoryReport
    dry_run: bool = False
    asked: tuple[str, ...] = ()
    still: dict[str, tuple[str, ...]] | None = None
    reason: str = ""

    def released_bytes(self, device: str) -> int:
        """Bytes of tensors that went, or would go, on a device."""
        return sum(s.bytes.get(device, 0) for s in self.steps if s.kind != "cache")

    def returned_bytes(self, device: str) -> int:
        """Bytes that torch gave back, or would give back, to the driver."""
        return sum(s.bytes.get(device, 0) for s in self.steps if s.kind == "cache")

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists."""
        return asdict(self)

    def __str__(self) -> str:
        from ..views.memory_text import free_text

        return free_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from ..views.memory_html import free_html

        return free_html(self)
