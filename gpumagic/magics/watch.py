"""``%gpuwatch``: the live view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from .arguments import MagicParser, interval, one_line_errors, window

if TYPE_CHECKING:
    from .extension import Extension

__all__ = ["line_magics"]

_DESCRIPTION = """Show the GPUs and the host live, also while a cell runs.

    %gpuwatch                 show, or move the view to this cell
    %gpuwatch stop            freeze: the output becomes a picture that stays in the file
    %gpuwatch status          say in text what runs and how it keeps its time
    %gpuwatch --replay demo   the same view of a recording (a file, or the one shipped)
"""


def _parser() -> MagicParser:
    parser = MagicParser("%gpuwatch", _DESCRIPTION)
    parser.add_argument("action", nargs="?", choices=["stop", "status"], help="instead of showing")
    parser.add_argument(
        "-i", "--interval", type=interval, metavar="SECONDS",
        help="seconds between two readings (0.1)",
    )
    parser.add_argument(
        "-w", "--window", type=window, metavar="SECONDS", help="seconds shown (60)"
    )
    parser.add_argument(
        "-g", "--gpus", help="GPUs: indices, UUIDs, cuda:N, all, or usable (the default)"
    )
    parser.add_argument(
        "-m", "--metrics", help="strips by short names, e.g. util,mem,power,temp,sm-clock"
    )
    parser.add_argument("--record", metavar="FILE", help="write JSON lines too (.gz compresses)")
    parser.add_argument("--replay", metavar="FILE", help="show a recording; demo is shipped")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="how fast a recording is replayed (1)"
    )
    parser.add_argument("--text", action="store_true", help="text instead of a widget")
    parser.add_argument(
        "--renderer", choices=["auto", "bqplot", "svg"], help="what draws the widget (auto)"
    )
    return parser


def line_magics(extension: Extension) -> dict[str, Callable[[str], Any]]:
    """Return the line magics of this module by name."""
    parser = _parser()

    def gpuwatch(line: str) -> None:
        options = parser.parse_line(line)
        with one_line_errors("%gpuwatch"):
            if options.action == "stop":
                _stop(extension)
            elif options.action == "status":
                _status(extension)
            else:
                _start(extension, options)

    gpuwatch.__doc__ = parser.format_help()
    return {"gpuwatch": gpuwatch}


def _start(extension: Extension, options: Any) -> None:
    from ..options import parse_gpus, parse_strips
    from ..watch import Watch, WatchOptions

    if options.replay and options.record:
        raise UsageError("%gpuwatch: --replay shows a recording; --record needs a live one")
    if not 0.01 <= options.speed <= 10_000:
        raise UsageError(f"%gpuwatch: --speed is {options.speed:g}; it goes from 0.01 to 10000")
    settings = extension.settings
    chosen = WatchOptions(
        gpus=parse_gpus(settings.gpus if options.gpus is None else options.gpus),
        strips=parse_strips(settings.metrics if options.metrics is None else options.metrics),
        interval_s=options.interval,
        window_s=options.window or settings.window_s,
        renderer=options.renderer or settings.renderer,
        record=options.record,
        replay=options.replay,
        speed=options.speed,
        text=options.text,
    )
    session = extension.session
    watch = Watch(session, chosen)  # raises before the old one goes
    session.stop_watch()
    session.watch = watch
    watch.show()


def _stop(extension: Extension) -> None:
    if not extension.session.stop_watch():
        print("No watch is running; %gpuwatch starts one.")


def _status(extension: Extension) -> None:
    from ..watch import status_text

    print(status_text(extension.session))
