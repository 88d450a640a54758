"""``%gpuwatch``: the live view."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from .arguments import MagicParser, interval, one_line_errors, window

if TYPE_CHECKING:
    from ..session import Session
    from ..watch import WatchOptions
    from .extension import Extension

__all__ = ["line_magics"]

_DESCRIPTION = """Show the GPUs and the host live, also while a cell runs.

    %gpuwatch                 show, or move the view to this cell with its options
    %gpuwatch stop            freeze: the output becomes a picture that stays in the file
    %gpuwatch pause           hold the picture still; recording goes on; %gpuwatch resume ends it
    %gpuwatch status          say in text what runs and how it keeps its time
    %gpuwatch --replay demo   the same view of a recording (a file, or the one shipped)

Options given to a second %gpuwatch replace those of the first. A recording goes on, whatever
is shown, until %gpuwatch stop or a --record of another file.
"""


def _parser() -> MagicParser:
    parser = MagicParser("%gpuwatch", _DESCRIPTION)
    parser.add_argument("action", nargs="?", choices=["stop", "pause", "resume", "status"],
                        help="instead of showing")
    parser.add_argument(
        "-i", "--interval", type=interval, metavar="SECONDS",
        help="seconds between two readings (0.1)",
    )
    parser.add_argument(
        "-w", "--window", type=window, metavar="TIME",
        help="what is shown: seconds, or such as 10min, 1h, all (60)",
    )
    parser.add_argument(
        "-g", "--gpus", help="GPUs: indices, UUIDs, cuda:N, all, or usable (the default)"
    )
    parser.add_argument(
        "-m", "--metrics", help="strips by short names, e.g. util,mem,power,temp,sm-clock"
    )
    parser.add_argument(
        "--record", metavar="FILE",
        help="write JSON lines too (.gz compresses); a FILE that is there is replaced",
    )
    parser.add_argument("--replay", metavar="FILE", help="show a recording; demo is shipped")
    parser.add_argument(
        "--speed", type=float, help="how fast a recording is replayed (1)"
    )
    parser.add_argument(
        "--at", type=float, metavar="SECONDS", help="where in the recording a replay begins (0)"
    )
    parser.add_argument(
        "--sidecar", action="store_true", default=None,
        help="beside the notebook, in a panel of JupyterLab (needs the package sidecar)",
    )
    parser.add_argument(
        "--text", action="store_true", default=None, help="text instead of a widget"
    )
    parser.add_argument(
        "--renderer", choices=["auto", "bqplot", "svg", "html"],
        help="what draws the view (auto); html is no widget but an output that is replaced",
    )
    return parser


def line_magics(extension: Extension) -> dict[str, Callable[[str], Any]]:
    """Return the line magics of this module by name."""
    parser = _parser()

    def gpuwatch(line: str) -> None:
        options = parser.parse_line(line)
        with one_line_errors("%gpuwatch"):
            if options.action is not None:
                _no_options(options)
            if options.action == "stop":
                _stop(extension)
            elif options.action == "status":
                _status(extension)
            elif options.action is not None:
                _pause(extension, paused=options.action == "pause")
            else:
                _start(extension, options)

    gpuwatch.__doc__ = parser.format_help()
    return {"gpuwatch": gpuwatch}


def _no_options(options: Any) -> None:
    given = [name for name, value in vars(options).items() if value is not None]
    given.remove("action")
    if given:
        raise UsageError(
            f"%gpuwatch: {options.action} takes no options; leave out"
            f" {', '.join('--' + name for name in given)}"
        )


def _check(options: Any) -> None:
    for name in ("record", "replay"):
        path = getattr(options, name)
        if path is not None and not path.strip():
            raise UsageError(
                f"%gpuwatch: --{name} names no file; if it stands for a $variable, set that first"
            )
    if options.replay and options.record:
        raise UsageError("%gpuwatch: --replay shows a recording; --record needs a live one")
    for name, shown in (("gpus", "the GPUs"), ("interval", "the readings")):
        if getattr(options, name) is not None and options.replay:
            raise UsageError(
                f"%gpuwatch: --replay shows {shown} of its recording; leave out --{name}"
            )
    for name in ("speed", "at"):
        if getattr(options, name) is not None and not options.replay:
            raise UsageError(f"%gpuwatch: --{name} is for a recording; give --replay FILE too")
    if options.at is not None and not 0 <= options.at < math.inf:
        raise UsageError(f"%gpuwatch: --at is {options.at:g}; it is in seconds from the start, 0")
    if options.sidecar and options.text:
        raise UsageError("%gpuwatch: --sidecar shows the widget; leave out --text")
    if options.speed is not None and not 0.01 <= options.speed <= 10_000:
        raise UsageError(f"%gpuwatch: --speed is {options.speed:g}; it goes from 0.01 to 10000")


def _start(extension: Extension, options: Any) -> None:
    from ..options import parse_gpus, parse_strips
    from ..watch import Watch, WatchOptions

    _check(options)
    chosen = WatchOptions(
        gpus=None if options.gpus is None else parse_gpus(options.gpus),
        strips=None if options.metrics is None else parse_strips(options.metrics),
        interval_s=options.interval,
        window_s=options.window,
        renderer=options.renderer,
        replay=options.replay,
        speed=options.speed,
        at_s=options.at,
        sidecar=options.sidecar,
        text=options.text,
    )
    session = extension.session
    before = session.watch
    # A replay and the view of this machine take nothing over from each other.
    if before is not None and not (chosen.replay or before.options.replay):
        # Where the view stands is said each time: a plain %gpuwatch brings it back to its cell.
        chosen = replace(chosen.over(before.options), sidecar=options.sidecar)
    watch = Watch(session, chosen)
    try:  # what raises here leaves the old watch and its recording as they are
        watch.prepare()
        if options.record:
            _record(session, options.record, chosen)
        elif session.record is not None and not chosen.replay:
            session.record.follow(chosen)
    except BaseException:
        watch.stop()
        raise
    if watch.over_at_once:
        watch.show()
        watch.stop()
        return
    if before is not None:
        watch.go_on_from(before)
    try:
        session.stop_watch()
    except BaseException:  # an interrupt while the old picture is drawn
        watch.stop()
        raise
    session.watch = watch
    watch.show()


def _record(session: Session, path: str, options: WatchOptions) -> None:
    """Record into a file; the recording before this one ends."""
    from ..watch import Record
    from ..watch_status import record_text

    # Two streams into one file would mix their lines, so the old one ends first.
    if session.record is not None and session.record.writes_to(path):
        session.stop_record()
    record = Record(session, path, options)
    before = session.stop_record()
    session.record = record
    if before is not None:
        print(f"recorded: {record_text(before)}")


def _pause(extension: Extension, *, paused: bool) -> None:
    watch = extension.session.watch
    if watch is None:
        print("No watch is running; %gpuwatch starts one.")
        return
    watch.pause(paused)


def _stop(extension: Extension) -> None:
    from ..watch_status import record_text

    session = extension.session
    stopped = False
    try:
        stopped = session.stop_watch()
    finally:
        record = session.stop_record()
        if record is not None:
            print(f"recorded: {record_text(record)}")
    if not stopped and record is None:
        print("No watch is running; %gpuwatch starts one.")


def _status(extension: Extension) -> None:
    from ..watch_status import status_text

    print(status_text(extension.session))
