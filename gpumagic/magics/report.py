"""``%gpureport``: show a measured cell's report again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from .arguments import MagicParser

if TYPE_CHECKING:
    from ..profiles import Profile
    from .extension import Extension

__all__ = ["line_magics"]

_DESCRIPTION = """Show the report of a measured cell again: the last one, or that of a cell's
number or a name. Examples:

    %gpureport
    %gpureport 12
    %gpureport "one epoch"
"""


def line_magics(extension: Extension) -> dict[str, Callable[[str], Any]]:
    """Return the line magics of this module by name."""
    parser = MagicParser("%gpureport", _DESCRIPTION)
    parser.add_argument("which", nargs="?", help="a cell's number, or a name")

    def gpureport(line: str) -> None:
        from IPython.display import display

        which = parser.parse_line(line).which
        display(_find(list(extension.session.profiles), which))  # type: ignore[no-untyped-call]

    gpureport.__doc__ = parser.format_help()
    return {"gpureport": gpureport}


def _find(profiles: list[Profile], which: str | None) -> Profile:
    if not profiles:
        raise UsageError("%gpureport: no cell has been measured; put %%gpuprofile above one")
    if which is None:
        return profiles[-1]
    number = which.strip("[]")
    for profile in reversed(profiles):
        if profile.name == which or str(profile.number) == number:
            return profile
    have = ", ".join(dict.fromkeys(profile.name for profile in profiles[-8:]))
    raise UsageError(f"%gpureport: no report of {which!r}; there are: {have}")
