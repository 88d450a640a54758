"""``%gpumem`` and ``%gpufree``: the allocator's figures, and memory given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .arguments import MagicParser

if TYPE_CHECKING:
    from .extension import Extension

__all__ = ["line_magics"]

_MEM = """Show torch's allocator on each GPU, and how it adds up to what nvidia-smi shows."""
_FREE = """Give GPU memory back: collect garbage, then release torch's cached blocks.

Your variables are left alone. Says what came back and what stays.
"""


def line_magics(extension: Extension) -> dict[str, Callable[[str], Any]]:
    """Return the line magics of this module by name."""
    mem = MagicParser("%gpumem", _MEM)
    free = MagicParser("%gpufree", _FREE)

    def gpumem(line: str) -> None:
        from ..memory.stats import allocator_stats

        mem.parse_line(line)
        print(allocator_stats())

    def gpufree(line: str) -> None:
        from ..memory.free import free_memory

        free.parse_line(line)
        print(free_memory())

    gpumem.__doc__ = mem.format_help()
    gpufree.__doc__ = free.format_help()
    return {"gpumem": gpumem, "gpufree": gpufree}
