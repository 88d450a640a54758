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

__all__ = ["DEMO", "Live", "Record", "Replay", "WatchOptions", "all_s"]

DEMO = Path(__file__).parent / "data" / "h200-training.jsonl.gz"
"""The recording that ``--replay demo`` shows: a training run on an H200."""

_STOP_CELL_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch shows and how; see ``%gpuwatch?``. ``None`` is as the settings say.

    ``window_s`` is infinite where all is shown.
    """

    gpus: tuple[str, ...] | None = None
    strips: tuple[str, ...] | None = None
    interval_s: float | None = None
    window_s: float | None = None
    renderer: str | None = None
    replay: str | None = None
    speed: float | None = None
    at_s: float | None = None
    sidecar: bool | None = None
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
    """What a watch of this machine shows: the session's recording up to now, or to a pause."""

    replays = False
    position: float | None = None

    def __init__(self, session: Session, options: WatchOptions) -> None:
        self.session = session
        self.recording = session.recording
        self._lease: Lease | None = session.lease(
            "watch", gpus=options.gpus, interval_s=options.interval_s
        )
        # What is claimed and what is shown is the same, also when the setting changes later.
        self._gpus = self._lease.gpus
        self._held: float | None = None

    @property
    def state(self) -> State:
        return "recording" if self._held is None else "paused"

    def pause(self, paused: bool) -> None:
        """Hold the picture at this moment; recording goes on."""
        if paused != (self._held is not None):
            self._held = self.session.clock() if paused else None

    def seek(self, position: float) -> None:
        """Do nothing: what has not happened yet cannot be shown."""

    def now(self) -> float:
        """Return the right end of the picture."""
        return self.session.clock() if self._held is None else self._held

    def present(self) -> float:
        """Return the time up to which things have happened, whatever is shown."""
        return self.session.clock()

    def begun(self) -> float:
        """Return the time from which on there is anything to show."""
        bounds = self.recording.bounds
        return self.now() if bounds is None else bounds[0]

    def caption(self, window: str) -> str:
        every = self.recording.periods.get("nvml", self.session.settings.interval_s)
        return f"{window}, every {every:g} s"

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

    def freeze(self, window: float) -> tuple[float, float]:
        """Return the ends of the picture that stays."""
        end = self.now()
        start = end - window
        cell = self.session.cell
        if cell is not None and end - cell.start < _STOP_CELL_S:
            end = cell.start - 1e-3  # the cell that stops the watch is no part of the picture
        # A watch that is younger than its window leaves no empty half of a picture.
        return max(start, min(self.begun(), end - 5.0)), end

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()


class Replay:
    """What a watch of a file shows: a recording, played from its start, paused, moved along."""

    replays = True
    reasons: Mapping[str, str] = {}

    def __init__(self, session: Session, options: WatchOptions) -> None:
        assert options.replay is not None
        path = DEMO if options.replay == "demo" else Path(options.replay)
        self.recording = codec.load(path)
        self._speed = 1.0 if options.speed is None else options.speed
        self._name = "a recorded H200" if options.replay == "demo" else path.name
        self._clock = session.clock
        bounds = self.recording.bounds
        assert bounds is not None  # load refuses a file without samples
        self._start, self._end = bounds
        self._paused = False
        self._place(self._start + max(1.0, options.at_s or 0.0))

    def _place(self, now: float) -> None:
        """Go on from a moment of the recording."""
        self._from = max(self._start, min(now, self._end))
        self._since = self._clock()

    @property
    def state(self) -> State:
        return "paused" if self._paused else "replay"

    def pause(self, paused: bool) -> None:
        """Hold the replay at this moment, or go on from it."""
        if paused != self._paused:
            now = self.now()
            self._paused = paused
            self._place(now)

    def seek(self, position: float) -> None:
        """Go on from a fraction of the recording."""
        self._place(self._start + min(1.0, max(0.0, position)) * (self._end - self._start))

    @property
    def position(self) -> float:
        """How far the replay has come, from 0 to 1."""
        length = self._end - self._start
        return (self.now() - self._start) / length if length > 0 else 1.0

    def now(self) -> float:
        """Return the right end of the picture."""
        if self._paused:
            return self._from
        return min(self._end, self._from + (self._clock() - self._since) * self._speed)

    def present(self) -> float:
        """Return the time up to which things have happened."""
        return self.now()

    def begun(self) -> float:
        """Return the start of the recording."""
        return self._start

    def caption(self, window: str) -> str:
        speed = self._speed
        fast = "" if speed == 1 or self.over() else f", {speed:g} times as fast"
        return f"{self._name}, {elapsed(self._end - self._start)}{fast}"

    def gpus(self) -> list[str] | None:
        return None

    def notice(self) -> str | None:
        return None

    def over(self) -> bool:
        return self.now() >= self._end

    def freeze(self, window: float) -> tuple[float, float]:
        """Return the ends of the picture that stays: the whole recording."""
        return self._start, self._end

    def close(self) -> None:
        pass


_NICE_S = (
    *(60.0 * m for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)),
    *(3600.0 * h for h in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 15, 18)),
    *(86400.0 * d for d in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 9, 11, 14, 18, 23, 30)),
)


def all_s(length: float) -> float:
    """Return the window that shows ``length`` seconds: a round length that stays for a while.

    A window that grew with each reading would move every column of the picture each time.
    """
    return next((nice for nice in _NICE_S if nice >= length), max(length, 60.0))
