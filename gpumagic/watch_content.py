"""What a watch shows: this machine as it runs, or a recording; and what it writes to a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from . import codec
from .session import Lease, Session
from .sinks.jsonl import JsonLines
from .views.parts import State
from .views.readings import elapsed

__all__ = ["DEMO", "Live", "Record", "Replay", "WatchOptions", "window_s"]

DEMO = Path(__file__).parent / "data" / "h200-training.jsonl.gz"
"""The recording that ``--replay demo`` shows: a training run on an H200."""

_STOP_CELL_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch shows and how; see ``%gpuwatch?``. ``None`` is as the settings say."""

    gpus: tuple[str, ...] | None = None
    strips: tuple[str, ...] | None = None
    interval_s: float | None = None
    window_s: float | None = None
    renderer: str | None = None
    replay: str | None = None
    speed: float | None = None
    text: bool | None = None

    def over(self, other: WatchOptions) -> WatchOptions:
        """Return these options, and those of ``other`` where none is given here."""
        given = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        if self.renderer is not None and self.text is None:
            given["text"] = None  # who names what draws the widget wants the widget
        return replace(other, **given)


class Record:
    """The session's recording into a file: it goes on from watch to watch until it is stopped.

    A file that is there is replaced. Raises :class:`~gpumagic.errors.RecordingError` where it
    cannot be written; nothing is left running then.
    """

    def __init__(self, session: Session, path: str, options: WatchOptions) -> None:
        self.path = path
        self._session = session
        self._lease = self._claim(options)
        try:
            self._sink = JsonLines(session.recording, path)
        except BaseException:
            self._lease.release()
            raise

    def _claim(self, options: WatchOptions) -> Lease:
        return self._session.lease("record", gpus=options.gpus, interval_s=options.interval_s)

    def follow(self, options: WatchOptions) -> None:
        """Record from now on what a new watch reads."""
        before, self._lease = self._lease, self._claim(options)
        before.release()

    def writes_to(self, path: str) -> bool:
        """Tell whether a path is that of the file, by whatever name."""
        ours, other = Path(self.path).expanduser(), Path(path).expanduser()
        try:
            return ours.resolve() == other.resolve() or ours.samefile(other)
        except OSError:
            return False

    @property
    def lines(self) -> int:
        """The number of lines written so far."""
        return self._sink.lines

    @property
    def error(self) -> OSError | None:
        """Why the file cannot be written any more."""
        return self._sink.error

    def close(self) -> None:
        """End the recording; harmless a second time."""
        self._sink.close()
        self._lease.release()


class Live:
    """What a watch of this machine shows: the session's recording up to now."""

    state: State = "recording"

    def __init__(self, session: Session, options: WatchOptions) -> None:
        self.session = session
        self.recording = session.recording
        self._options = options
        self._lease: Lease | None = session.lease(
            "watch", gpus=options.gpus, interval_s=options.interval_s
        )
        # What is claimed and what is shown is the same, also when the setting changes later.
        self._gpus = self._lease.gpus

    def span(self) -> tuple[float, float]:
        now = self.session.clock()
        return now - window_s(self.session, self._options), now

    @property
    def caption(self) -> str:
        every = self.recording.periods.get("nvml", self.session.settings.interval_s)
        window = elapsed(window_s(self.session, self._options))
        return f"last {window}, every {every:g} s"

    def gpus(self) -> list[str] | None:
        # By name each time: a GPU can come, and torch's index is known only after CUDA is up.
        return self.session.named_gpus(self._gpus)

    def notice(self) -> str | None:
        """Say why there is no GPU and what would bring it, or that the file cannot be written."""
        record = self.session.record
        if record is not None and record.error is not None:
            return f"{record.path} cannot be written any more: {record.error}"
        if self.gpus():
            return None
        reason = self.reasons.get("nvml", "")
        if not reason:
            return None
        said = reason[:1].upper() + reason[1:]
        return f"{said}. `%gpuwatch --replay demo` shows a recorded H200."

    @property
    def reasons(self) -> Mapping[str, str]:
        return self.session.reasons()

    def over(self) -> bool:
        return False

    def freeze(self) -> tuple[float, float]:
        bounds = self.recording.bounds
        start, end = self.span()
        cell = self.session.cell
        if cell is not None and end - cell.start < _STOP_CELL_S:
            end = cell.start - 1e-3  # the cell that stops the watch is no part of the picture
        # A watch that is younger than its window leaves no empty half of a picture.
        if bounds is not None:
            start = max(start, min(bounds[0], end - 5.0))
        return start, end

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()


class Replay:
    """What a watch of a file shows: a recording, played from its start."""

    state: State = "replay"
    reasons: Mapping[str, str] = {}

    def __init__(self, session: Session, options: WatchOptions) -> None:
        assert options.replay is not None
        path = DEMO if options.replay == "demo" else Path(options.replay)
        self.recording = codec.load(path)
        self._session = session
        self._options = options
        self._speed = 1.0 if options.speed is None else options.speed
        self._name = "a recorded H200" if options.replay == "demo" else path.name
        self._clock = session.clock
        self._begun = session.clock()
        bounds = self.recording.bounds
        assert bounds is not None  # load refuses a file without samples
        self._start, self._end = bounds

    def span(self) -> tuple[float, float]:
        played = (self._clock() - self._begun) * self._speed
        now = min(self._end, self._start + 1.0 + played)
        return now - window_s(self._session, self._options), now

    @property
    def caption(self) -> str:
        speed = self._speed
        fast = "" if speed == 1 or self.over() else f", {speed:g} times as fast"
        return f"{self._name}, {elapsed(self._end - self._start)}{fast}"

    def gpus(self) -> list[str] | None:
        return None

    def notice(self) -> str | None:
        return None

    def over(self) -> bool:
        return self.span()[1] >= self._end

    def freeze(self) -> tuple[float, float]:
        return self._start, self._end

    def close(self) -> None:
        pass


def window_s(session: Session, options: WatchOptions) -> float:
    return session.settings.window_s if options.window_s is None else options.window_s
