"""``%gpumem`` and ``%gpufree``: what holds device memory, and memory given back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from .arguments import MagicParser, one_line_errors
from .showing import show, show_as

if TYPE_CHECKING:
    from .extension import Extension

__all__ = ["line_magics"]

_MEM = """Say where device memory is and who holds it.

    %gpumem                     each GPU, from nvidia-smi's number down to live tensors
    %gpumem --tensors 30        the largest tensors by name
    %gpumem --holders batch     who keeps batch: the chains of references, shortest first
    %gpumem --snapshot mem.pickle   torch's blocks, for https://pytorch.org/memory_viz
"""
_FREE = """Give device memory back that the notebook keeps and no variable of yours holds.

    %gpufree                 tracebacks of the last errors, cycles, then torch's cached blocks
    %gpufree --out           displayed values (Out, _) that hold device memory, too
    %gpufree model batch     these variables, and displayed copies of the same objects
    %gpufree --dry-run       say what would be released, and do nothing

Without names no variable of yours is deleted. Says what came back, what stays and who holds it.
After an out-of-memory error begin with %gpufree --dry-run.
"""
_TENSORS = 20
_MOST_TENSORS = 10_000


def line_magics(extension: Extension) -> dict[str, Callable[[str], Any]]:
    """Return the line magics of this module by name."""
    mem, free = _mem_parser(), _free_parser()

    def gpumem(line: str) -> None:
        line, expression = _without_expression(line)
        options = mem.parse_line(line)
        if expression:
            options.holders = expression
        _check(options)
        with one_line_errors("%gpumem"):
            _mem(extension, options)

    def gpufree(line: str) -> None:
        options = free.parse_line(line)
        with one_line_errors("%gpufree"):
            from ..memory.free import free as release
            from ..memory.roots import Notebook

            show(release(
                Notebook(extension.shell), options.names, outputs=options.out,
                dry_run=options.dry_run, cpu=options.cpu,
            ))

    gpumem.__doc__ = mem.format_help()
    gpufree.__doc__ = free.format_help()
    return {"gpumem": gpumem, "gpufree": gpufree}


_HOLDERS = re.compile(r"(?<!\S)--holders(?:=|\s+)(?!-)(\S.*?)(?=\s+--[a-z]|\s*$)")


def _without_expression(line: str) -> tuple[str, str]:
    """Take the expression of ``--holders`` out, whose quotes a shell's rules would strip."""
    found = _HOLDERS.search(line)
    if found is None:
        return line, ""
    text = found[1]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]:
        text = text[1:-1]
    return f"{line[: found.start(1)]}NAME{line[found.end(1) :]}", text


def _mem_parser() -> MagicParser:
    parser = MagicParser("%gpumem", _MEM)
    parser.add_argument(
        "--tensors", nargs="?", type=_count, const=_TENSORS, metavar="N",
        help=f"the N largest tensors by storage ({_TENSORS})",
    )
    parser.add_argument(
        "--holders", metavar="NAME", help="who keeps an object, e.g. results[12]['x']"
    )
    parser.add_argument("--snapshot", metavar="FILE", help="write the allocator's snapshot")
    parser.add_argument("--cpu", action="store_true", help="tensors on the CPU, not on GPUs")
    return parser


def _free_parser() -> MagicParser:
    parser = MagicParser("%gpufree", _FREE)
    parser.add_argument("names", nargs="*", metavar="NAME", help="variables to delete")
    parser.add_argument("--out", action="store_true", help="displayed values too")
    parser.add_argument("--dry-run", action="store_true", help="say it, and do nothing")
    parser.add_argument("--cpu", action="store_true", help="tensors on the CPU, not on GPUs")
    return parser


def _count(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= _MOST_TENSORS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MOST_TENSORS:,}")
    return int(text)


def _check(options: Any) -> None:
    chosen = [
        f"--{name}"
        for name in ("tensors", "holders", "snapshot")
        if getattr(options, name) is not None
    ]
    if len(chosen) > 1:
        raise UsageError(f"%gpumem: give one of {' and '.join(chosen)}")
    if options.snapshot is not None and options.cpu:
        raise UsageError("%gpumem: --snapshot is of the GPUs; leave --cpu out")


def _mem(extension: Extension, options: Any) -> None:
    from ..memory.roots import Notebook

    notebook = Notebook(extension.shell)
    if options.holders is not None:
        from ..memory.holders import holders_of

        show(holders_of(options.holders, notebook))
    elif options.snapshot is not None:
        from ..memory.blocks import write_snapshot

        print(write_snapshot(options.snapshot))
    else:
        from ..memory.report import look
        from ..views import memory_html, memory_text

        count = options.tensors
        looked = look(notebook, cpu=options.cpu, count=count or _TENSORS)
        report, stats = looked.report, looked.stats
        if count is not None:
            show_as(
                memory_html.tensors_html(report, count), memory_text.tensors_text(report, count)
            )
            return
        show_as(memory_html.memory_html(report, stats), memory_text.memory_text(report, stats))

