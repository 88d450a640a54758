"""The command ``gpumagic``: record without a notebook, doctor, autoload.

A recorder runs beside jobs for hours, so ``record`` imports no IPython, no traitlets and no
torch; each command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any, NoReturn

from . import __version__
from .errors import DeviceError, GpuMagicError, SettingError, SourceUnavailable

if TYPE_CHECKING:
    from .sampler import Sampler

__all__ = ["main"]

_SOURCES = ("nvml", "nvml_slow", "host")
# What NVML answers slowly and psutil's walk through /proc are read once a second at most.
_SLOW_S = 1.0
_LOOK_S = 0.5

_RECORD = """\
Write what NVML and the host say as JSON lines until --duration is over, Ctrl-C or SIGTERM.

Each line is one flat object with a "kind"; pandas.read_json(FILE, lines=True) and
gpumagic.load(FILE) read it. A file that exists is written anew. process_* and children_* speak
of the recorder itself.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        _say(f"{self.prog}: {message} ({self.prog} --help shows all)")
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a failure, 2 for a wrong option."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is None:
        parser.error("say what to do: record, doctor or autoload")
    try:
        code: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except GpuMagicError as error:
        _say(f"gpumagic {options.command}: {error}")
        return 2
    except BrokenPipeError:
        _drop_stdout()
        return 0
    except OSError as error:
        if error.filename is not None:
            raise
        # Without a file's name it is standard output: its disk is full, for example.
        _drop_stdout()
        said = error.strerror or error
        _say(f"gpumagic {options.command}: standard output cannot be written: {said}")
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> _Parser:
    parser = _Parser("gpumagic", description="See what a program does with its GPU.")
    parser.add_argument("--version", action="version", version=f"gpumagic {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")

    record = commands.add_parser(
        "record", help="write samples as JSON lines", description=_RECORD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    record.add_argument(
        "--interval", type=float, default=5.0, metavar="SECONDS",
        help="time between two readings (default 5; 0.1 sees all that NVML renews)",
    )
    record.add_argument(
        "--duration", type=float, metavar="SECONDS", help="when to end (default: when stopped)",
    )
    record.add_argument(
        "--gpus", default="all", metavar="LIST",
        help="indices or UUIDs with commas between, all (the default), or usable: those that"
        " CUDA_VISIBLE_DEVICES leaves",
    )
    record.add_argument(
        "--out", default="-", metavar="FILE",
        help="where to write; a name in .gz is compressed, - (the default) is standard output",
    )
    record.set_defaults(run=_record)

    doctor = commands.add_parser(
        "doctor", help="say what is there, what is missing, and what helps",
        description="Look at all that gpumagic needs and name the remedy of what is missing.",
    )
    doctor.set_defaults(run=_doctor)

    autoload = commands.add_parser(
        "autoload", help="load gpumagic in each kernel, or no longer",
        description="Put a start-up file where IPython finds it, or take it away again.",
    )
    autoload.add_argument("what", choices=("on", "off", "status"))
    where = autoload.add_mutually_exclusive_group()
    where.add_argument(
        "--user", action="store_true", help="for your own default profile of IPython",
    )
    where.add_argument(
        "--sys-prefix", action="store_true",
        help="for all users of this Python environment (the default)",
    )
    autoload.set_defaults(run=_autoload)
    return parser


def _doctor(_: argparse.Namespace) -> int:
    from .doctor import report

    print(report())
    return 0


def _autoload(options: argparse.Namespace) -> int:
    from . import autoload

    match options.what:
        case "on":
            print(autoload.turn_on(user=options.user))
        case "off":
            print(autoload.turn_off(user=options.user))
        case _:
            print(autoload.status())
    return 0


# -- record --------------------------------------------------------------------------------


def _record(options: argparse.Namespace) -> int:
    from .clock import Clock
    from .options import check_interval
    from .recording import MIN_BYTES, Recording
    from .sampler import Sampler
    from .sinks.jsonl import JsonLines
    from .sources import make_sources

    ended: SimpleQueue[str] = SimpleQueue()
    with _signals(ended.put):
        interval = check_interval(options.interval)
        if not options.out.strip():
            raise SettingError("--out names no file: give one, or - for standard output")
        duration = _checked_duration(options.duration)
        gpus = _checked_gpus(options.gpus)
        recording = Recording(max_bytes=MIN_BYTES)
        sources = make_sources(gpus, names=_SOURCES)
        for source in sources:
            source.period_s = interval if source.name == "nvml" else max(_SLOW_S, interval)
        clock = Clock().now
        sampler = Sampler(recording, sources, clock)
        target = _stdout() if options.out == "-" else options.out
        sink = JsonLines(
            recording, target, on_error=lambda error: ended.put("error"),
            # Compressed blocks of one line each would hardly be smaller than the lines.
            flush_each=options.out == "-" or interval >= _SLOW_S,
        )
        start = clock()
        sampler.start()
        try:
            _wait(ended, clock, start + duration, sampler, target, sink)
        finally:
            sampler.stop()
            sink.close()
        seconds = clock() - start
    return _summary(sink, seconds, options.out)


def _wait(
    ended: SimpleQueue[str], clock: Callable[[], float], end: float, sampler: Sampler, target: Any,
    sink: Any,
) -> None:
    """Return when a signal or an error came, the time is over, or nobody reads any more."""
    while sampler.running:
        rest = end - clock()
        if rest <= 0:
            return
        try:
            ended.get(timeout=min(rest, _LOOK_S))
        except Empty:
            sink.flush()
            if not isinstance(target, str) and _reader_is_gone(target):
                return
        else:
            return


def _summary(sink: Any, seconds: float, out: str) -> int:
    from .units import duration

    name = "standard output" if out == "-" else out
    broken = isinstance(sink.error, BrokenPipeError)
    if out == "-" and sink.error is not None:
        _drop_stdout()
    if sink.error is not None and not broken:
        _say(
            f"gpumagic record: {name} cannot be written: {sink.error.strerror or sink.error};"
            f" {sink.lines} lines came before"
        )
        return 1
    _say(f"gpumagic record: {sink.lines} lines in {duration(seconds)} to {name}")
    return 0


def _checked_duration(value: float | None) -> float:
    if value is None:
        return math.inf
    if not value > 0:
        raise SettingError(
            f"--duration is {value:g}; give seconds above 0, or leave it out to record until"
            " Ctrl-C"
        )
    return value


def _checked_gpus(text: str) -> tuple[str, ...]:
    """Return the names of GPUs in a list, and raise at once for one that is not there.

    Without any GPU ``all`` records the host alone and says so.
    """
    from .options import parse_gpus
    from .sources.nvml import chosen_gpus
    from .sources.nvml_library import Nvml

    if not text.replace(",", " ").strip():
        raise SettingError("--gpus names no GPU: give indices, UUIDs, all or usable")
    names = parse_gpus(text)
    nvml = Nvml()
    try:
        nvml.open()
        chosen_gpus(nvml, names)
    except SourceUnavailable as error:
        if names != ("all",):
            known = "--gpus all" in str(error)
            remedy = "" if known else "; --gpus all records the host alone"
            raise DeviceError(f"{error}{remedy}") from None
        _say(f"gpumagic record: {error}; recording the host alone")
    finally:
        nvml.close()
    return names


@contextlib.contextmanager
def _signals(end: Callable[[str], None]) -> Iterator[None]:
    """Turn the signals that end a program into a call of ``end``, for the length of a block."""
    # A put into a SimpleQueue is safe in a signal's handler; an Event's lock is not.
    def handler(number: int, _: object) -> None:
        end(signal.Signals(number).name)

    before: dict[int, Any] = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup asks to outlive the terminal by ignoring SIGHUP.
        if number is None or (
            name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN
        ):
            continue
        before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


# -- standard streams ------------------------------------------------------------------------


def _say(text: str) -> None:
    # print(file=None) would write into standard output, among the lines.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def _stdout() -> IO[str]:
    if sys.stdout is None:
        raise SettingError("standard output is closed: give --out FILE")
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8")
    return sys.stdout


def _reader_is_gone(stream: IO[str]) -> bool:
    """Tell whether the other end of a pipe is closed, without writing to it."""
    poll = getattr(select, "poll", None)  # not on Windows: the next write finds out
    if poll is None:
        return False
    poller = poll()
    try:
        poller.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except (OSError, ValueError):
        return False


def _drop_stdout() -> None:
    """Let what is left in standard output's buffer go nowhere, so that exit is silent."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
