"""``%gpureport``: a line under each cell, a cell's report again, and the list of cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from .arguments import MagicParser, one_line_errors
from .showing import show, show_as

if TYPE_CHECKING:
    from ..profiles import Profile
    from ..views.footer import FooterLine
    from .extension import Extension

__all__ = ["line_magics", "only_magics", "show_footer"]

_DESCRIPTION = """Show one line under each cell, a cell's report again, or all cells in a list.

    %gpureport on              a line under each cell from now on; off ends it
    %gpureport                 the full report of the last cell with a line or a report
    %gpureport 12              that of cell [12], the newest of that number
    %gpureport "one epoch"     that of a name; -n takes on, off and list as names too
    %gpureport list            the cells seen, the longest first
    %gpureport list --by joules -k 5
"""
_WORDS = ("on", "off", "list")
_ORDERS = ("time", "joules", "peak")


def _parser() -> MagicParser:
    parser = MagicParser("%gpureport", _DESCRIPTION)
    parser.add_argument("which", nargs="?", help="on, off, list, a cell's number, or a name")
    parser.add_argument("-n", "--name", help="the name of a measured cell")
    parser.add_argument("--by", choices=_ORDERS, help="what list ranks by (time)")
    parser.add_argument("-k", type=int, metavar="COUNT", help="how many cells list shows (10)")
    return parser


def line_magics(extension: Extension) -> dict[str, Callable[[str], Any]]:
    """Return the line magics of this module by name."""
    parser = _parser()

    def gpureport(line: str) -> None:
        options = parser.parse_line(line)
        _check(options)
        with one_line_errors("%gpureport"):
            if options.name is None and options.which in _WORDS:
                _command(extension, options)
            else:
                show(_found(extension, options.which, options.name))

    gpureport.__doc__ = parser.format_help()
    return {"gpureport": gpureport}


def _check(options: Any) -> None:
    if options.name is not None and options.which is not None:
        raise UsageError("%gpureport: give a number or a name once, with -n or without")
    if options.which == "list":
        if options.k is not None and options.k < 1:
            raise UsageError(f"%gpureport: -k is {options.k}; it has to be at least 1")
    elif options.by is not None or options.k is not None:
        raise UsageError("%gpureport: --by and -k belong to %gpureport list")


def _command(extension: Extension, options: Any) -> None:
    if options.which == "on":
        print(extension.footers_on())
    elif options.which == "off":
        print(extension.footers_off())
    else:
        show(extension.footers.ranking(options.by or "time", options.k or 10))


def _found(extension: Extension, which: str | None, name: str | None) -> Profile:
    footers = extension.footers
    found = footers.find(which, name=name)
    if found is not None:
        return found
    have = ", ".join(footers.names())
    if not have:
        raise UsageError(
            "%gpureport: no cell has been measured; put %%gpuprofile above one, or"
            " %gpureport on before it"
        )
    raise UsageError(f"%gpureport: no report of {name or which!r}; there are: {have}")


def show_footer(line: FooterLine) -> None:
    """Display a footer in the output of the cell that has just ended."""
    from ..views.footer import footer_html, footer_text

    show_as(footer_html(line), footer_text(line))


def only_magics(source: str, names: Collection[str]) -> bool:
    """Tell whether a cell has nothing but some line magics, comments and blank lines."""
    lines = [line for line in map(str.strip, source.splitlines()) if line and line[0] != "#"]
    if not lines or lines[0][0] not in "%g":
        return False
    # Without its %, a magic is one if no assignment or call follows.
    call = re.compile(rf"(%(?:{'|'.join(names)})(?!\w).*)|(?:{'|'.join(names)})(\s+[^=\s].*)?")
    return all(call.fullmatch(line) for line in lines)
