"""``%%gpuprofile`` and ``%gpuprofile``: measure a cell, or one statement."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal

from IPython.core.error import UsageError

from .arguments import MagicParser, interval, one_line_errors
from .cell import CellOutcome

if TYPE_CHECKING:
    from ..measurement import Measurement
    from ..profiles import Profile
    from ..sample import SpanStatus
    from ..session import Session
    from .extension import Extension

__all__ = ["CELL_HELP", "Options", "begin", "end", "line_magics", "parse_cell"]

_DESCRIPTION = """Measure this cell and report: GPU, memory, energy, host.

The cell runs as it would without this line. Nothing is reset, emptied or waited for, unless
--sync is given. Examples:

    %%gpuprofile
    %%gpuprofile --name "one epoch" -o p
"""


def _parser(prog: str) -> MagicParser:
    parser = MagicParser(prog, _DESCRIPTION)
    parser.add_argument("-n", "--name", default="", help="name of the cell in reports")
    parser.add_argument(
        "-o", "--output", metavar="VAR", default="", help="put the Profile into this variable"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no report")
    parser.add_argument(
        "-i", "--interval", type=interval, metavar="SECONDS",
        help="seconds between two readings (0.1)",
    )
    parser.add_argument(
        "-g", "--gpus", help="GPUs: indices, UUIDs, cuda:N, all, or usable (the default)"
    )
    parser.add_argument(
        "--sync", action="store_true",
        help="wait for the GPU at the end (torch.cuda.synchronize) before the time is taken",
    )
    parser.add_argument(
        "--peak", choices=("auto", "exact"), default="auto",
        help="exact: keep the history of torch's allocator while the cell runs (under 10 %% of a"
        " launch-bound cell's time; 150 bytes an event, of 200,000 at most), for the exact peak"
        " of its memory",
    )
    return parser


CELL_HELP = _parser("%%gpuprofile").format_help()


@dataclass(frozen=True, slots=True)
class Options:
    """What stands behind the magic's name."""

    name: str
    output: str
    quiet: bool
    interval_s: float | None
    gpus: str | None
    sync: bool
    peak: Literal["auto", "exact"] = "auto"


def _options(found: Any) -> Options:
    output = found.output
    if output and not output.isidentifier():
        raise UsageError(f"-o takes the name of a variable; {output!r} is none")
    if keyword.iskeyword(output) or hasattr(builtins, output):
        # A keyword could never be read back; a builtin's name would hide the builtin.
        raise UsageError(
            f"-o takes the name of a variable; {output!r} is a name of Python's own: take"
            " another, such as -o p"
        )
    return Options(
        found.name, found.output, found.quiet, found.interval, found.gpus, found.sync, found.peak
    )


def parse_cell(line: str) -> Options:
    """Read the arguments of ``%%gpuprofile``."""
    return _options(_parser("%%gpuprofile").parse_line(line))


def begin(session: Session, options: Options, number: int | None) -> Measurement:
    """Begin to measure; a GPU that is not there is a usage error."""
    from ..measurement import Measurement

    with one_line_errors("%%gpuprofile"):
        return Measurement(
            session, name=options.name, number=number, gpus=options.gpus,
            interval_s=options.interval_s, sync=options.sync, peak=options.peak,
        )


def end(shell: Any, measurement: Measurement, options: Options, outcome: CellOutcome) -> None:
    """End a cell's measurement and show its report where that erases nothing."""
    if outcome.status == "abandoned":
        measurement.cancel()
        return
    result = measurement.end(outcome.status)
    _deliver(shell, result, options, hold=outcome.clear_output_pending)
    if outcome.ignored and not outcome.clear_output_pending:
        print(
            "gpumagic: a %%gpuprofile inside a measured cell is not measured apart",
            file=sys.stderr,
        )


def _deliver(shell: Any, result: Profile, options: Options, *, hold: bool) -> None:
    if options.output:
        shell.user_ns[options.output] = result
    if options.quiet:
        return
    if hold:
        # A display now would carry out the clear_output(wait=True) that the cell left pending
        # and erase what the user wants to keep.
        return
    from IPython.display import display

    display(result)  # type: ignore[no-untyped-call]


def line_magics(extension: Extension) -> dict[str, Callable[[str], Any]]:
    """Return the line magics of this module by name."""

    def gpuprofile(line: str) -> Any:
        __tracebackhide__ = True  # IPython leaves such frames out of what it shows
        return _run_statement(extension, line)

    gpuprofile.__doc__ = """Measure one statement: ``%gpuprofile [options] STATEMENT``.

        %gpuprofile train_step(model, batch)
        %gpuprofile --name step -o p train_step(model, batch)

    The options are those of %%gpuprofile; -- ends them, before a statement such as -x.
    """
    return {"gpuprofile": gpuprofile}


def _split(line: str) -> tuple[str, str]:
    """Split the options from the statement, which stays as it was typed."""
    takes_value = {"-n", "--name", "-o", "--output", "-i", "--interval", "-g", "--gpus", "--peak"}
    rest = line.lstrip()
    options: list[str] = []
    while rest.startswith("-"):
        word, after = _word(rest)
        if word == "--":
            rest = after
            break
        option = word.partition("=")[0]
        known = word in takes_value or word in ("-q", "--quiet", "--sync")
        if not known and not (option.startswith("--") and option in takes_value):
            _refuse_option(word, rest)
            break  # a statement such as -1 or -f(x)
        options.append(word)
        rest = after
        if word in takes_value:
            word, rest = _word(rest)
            options.append(word)
    return " ".join(options), rest


def _refuse_option(word: str, rest: str) -> None:
    """Raise for a word that reads as an option, though it could be a negated variable."""
    if re.fullmatch(r"-[A-Za-z]\w*|--[A-Za-z][\w-]*(=.*)?", word, re.DOTALL) is None:
        return
    why = f"there is no option {word}"
    if word[:2] in ("-n", "-o", "-i", "-g"):
        why = f"{word[:2]} takes its value apart, as in {word[:2]} {word[2:]}"
    raise UsageError(
        f"%gpuprofile: {why} (%gpuprofile? shows the options); -- ends the options, as in"
        f" %gpuprofile -- {rest}"
    )


def _word(text: str) -> tuple[str, str]:
    """Take the first word, quotes and all, off a text."""
    quote = ""
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter.isspace():
            return text[:index], text[index:].lstrip()
    return text, ""


def _compiled(statement: str) -> CodeType:
    try:
        return compile(statement, "<gpuprofile>", "eval")
    except (SyntaxError, ValueError):  # ValueError: a null character, before Python 3.12
        pass  # outside of the except, so that an error below is not chained to this one
    try:
        return compile(statement, "<gpuprofile>", "exec")
    except (SyntaxError, ValueError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
    # IPython shows a SyntaxError that a magic raises with all frames, ours among them.
    raise UsageError(
        f"%gpuprofile: SyntaxError: {why}: {statement.strip()} (a cell with ! or % lines or await"
        " is measured by %%gpuprofile)"
    )


def _run_statement(extension: Extension, line: str) -> Any:
    __tracebackhide__ = True
    head, statement = _split(line)
    # A word taken for an option's value is told as such before a statement is missed.
    options = _options(_parser("%gpuprofile").parse_line(head))
    if not statement.strip():
        raise UsageError("%gpuprofile takes a statement; for a whole cell use %%gpuprofile")
    shell = extension.shell
    code = _compiled(statement)
    from ..measurement import status_of

    measurement = begin(extension.session, options, None)
    status: SpanStatus = "ok"
    try:
        return eval(code, shell.user_global_ns, shell.user_ns)
    except BaseException as error:
        status = status_of(error)
        raise
    finally:
        result = measurement.end(status)
        # Shown from a finally, so an error of ours must not hide the user's.
        try:
            _deliver(shell, result, options, hold=False)
        except Exception as error:
            print(f"gpumagic could not show the report: {error}", file=sys.stderr)
