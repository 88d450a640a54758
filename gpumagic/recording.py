"""The recording: what the sampler writes and everything over time reads.

Bounded and append-only. One thread writes samples, any thread reads; readers get copies.
"""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, TypeAlias

from .sample import HOST, Device, Gap, Mark, Sample, Span, SpanStatus

if TYPE_CHECKING:
    import pandas

__all__ = ["MAX_SAMPLES", "REACH_PERIODS", "Record", "Recording", "Series"]

MAX_SAMPLES = 72_000
"""Samples kept of one source and device: two hours at ten a second."""

REACH_PERIODS = 2.5
"""Periods after a reading over which its value is carried on, or joined to the next one."""

_MAX_EVENTS = 10_000
_NAN = math.nan

Record: TypeAlias = Device | Sample | Gap | Span | Mark
"""Anything that a recording holds; subscribers get each of them once it is written."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one device over time, absent values left out.

    ``times`` (epoch seconds, ascending) and ``values`` (base units) have the same length.
    """

    metric: str
    device: str
    times: Sequence[float]
    values: Sequence[float]

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.times, self.values, strict=True)


class _Track:
    """The samples of one source and device in columns; NaN stands for an absent value."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.dropped_until: float | None = None
        # Periods change and sampling pauses: how far a reading reaches is known only while
        # the period that it was taken at is in force.
        self.reach = math.inf
        self.longest_period: float | None = None
        self.breaks: deque[tuple[float, float]] = deque(maxlen=_MAX_EVENTS)
        # A sample can hold a part of the metrics only (what the driver's rings kept of a stall):
        # it joins nothing for the others. Of those, when they were last there and how far that
        # reaches.
        self.lacking: dict[str, tuple[float, float]] = {}
        self.breaks_of: dict[str, deque[tuple[float, float]]] = {}
        self.times = array("d")
        self.columns: dict[str, array[float]] = {}

    def append(self, sample: Sample, period: float | None) -> None:
        # A stamp can be a hair older than the last one (another thread's reading); the order
        # of times is what bisection rests on.
        time = max(sample.time, self.times[-1]) if self.times else sample.time
        if self.times and time - self.times[-1] > self.reach:
            self.breaks.append((self.times[-1], time))
        values = sample.values
        if self.lacking or len(values) < len(self.columns):
            self._note_lacking(time, values)
        self.reach = math.inf if period is None else REACH_PERIODS * period
        if period is not None:
            self.longest_period = max(period, self.longest_period or 0.0)
        for name, column in self.columns.items():
            column.append(values.get(name, _NAN))
        if not self.columns.keys() >= values.keys():
            for name in [n for n in values if n not in self.columns]:
                column = array("d", [_NAN]) * len(self.times)
                column.append(values[name])
                self.columns[name] = column
        self.times.append(time)
        # Dropping an eighth at once keeps the mean cost of a sample constant.
        if len(self.times) > self._limit + (self._limit >> 3):
            surplus = len(self.times) - self._limit
            self.dropped_until = self.times[surplus - 1]
            del self.times[:surplus]
            for column in self.columns.values():
                del column[:surplus]

    def _note_lacking(self, time: float, values: Mapping[str, float]) -> None:
        """Note the break of each metric that samples in between have lacked for too long."""
        for name in self.columns:
            if name not in values:
                if self.times:
                    self.lacking.setdefault(name, (self.times[-1], self.reach))
            elif name in self.lacking:
                before, reach = self.lacking.pop(name)
                if time - before > reach:
                    own = self.breaks_of.setdefault(name, deque(maxlen=_MAX_EVENTS))
                    own.append((before, time))

    def slice(self, start: float, end: float) -> slice:
        return slice(bisect_left(self.times, start), bisect_right(self.times, end))


class Recording:
    """Hold samples, gaps, spans and marks of a number of devices, within a bound.

    ``max_samples`` bounds the samples of each source and device; the oldest go first, an
    eighth of the bound at once, so that up to an eighth more can be held.
    ``periods`` maps a source to the seconds between its readings from now on; what was in force
    when a sample came is remembered with it (see :meth:`breaks`).
    """

    def __init__(self, *, max_samples: int = MAX_SAMPLES) -> None:
        if max_samples < 2:
            raise ValueError(f"max_samples is {max_samples}; it has to be at least 2")
        self._lock = threading.Lock()
        self._max_samples = max_samples
        self._devices: dict[str, Device] = {}
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._gaps: deque[Gap] = deque(maxlen=_MAX_EVENTS)
        self._open_gaps: dict[tuple[str, str | None], Gap] = {}
        self._spans: dict[int, Span] = {}
        self._marks: deque[Mark] = deque(maxlen=_MAX_EVENTS)
        self._next_span = 1
        self._subscribers: tuple[Callable[[Record], None], ...] = ()
        self.periods: dict[str, float] = {}

    # -- writing ------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[Record], None]) -> Callable[[], None]:
        """Call ``callback`` with each record from now on; return the function that ends it.

        It is called on the thread that writes and must not raise.
        """
        with self._lock:
            self._subscribers = (*self._subscribers, callback)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(c for c in self._subscribers if c is not callback)

        return unsubscribe

    def _publish(self, record: Record) -> None:
        for callback in self._subscribers:
            callback(record)

    def add_device(self, device: Device) -> None:
        """Add a device, or replace what is known of it."""
        with self._lock:
            if self._devices.get(device.id) == device:
                return
            self._devices[device.id] = device
        self._publish(device)

    def append(self, sample: Sample) -> None:
        """Add a sample; a sample ends the open gap of its source and device."""
        with self._lock:
            key = (sample.device, sample.source)
            track = self._tracks.get(key)
            if track is None:
                track = self._tracks[key] = _Track(self._max_samples)
            track.append(sample, self.periods.get(sample.source))
            closed = self._close_gaps(sample) if self._open_gaps else []
        for gap in closed:
            self._publish(gap)
        self._publish(sample)

    def _close_gaps(self, sample: Sample) -> list[Gap]:
        closed = []
        for device in (sample.device, None):
            gap = self._open_gaps.pop((sample.source, device), None)
            if gap is not None:
                done = replace(gap, end=max(gap.start, sample.time))
                self._gaps.append(done)
                closed.append(done)
        return closed

    def open_gap(self, gap: Gap) -> None:
        """Note that a source gives nothing from ``gap.start`` on.

        A gap already open stays if its reason is the same, and ends here if it is another.
        """
        key = (gap.source, gap.device)
        ended = None
        with self._lock:
            known = self._open_gaps.get(key)
            if known is not None and known.reason == gap.reason:
                return
            if known is not None:
                ended = replace(known, end=max(known.start, gap.start))
                self._gaps.append(ended)
            self._open_gaps[key] = gap
        if ended is not None:
            self._publish(ended)
        self._publish(gap)

    def add_gap(self, gap: Gap) -> None:
        """Add a gap as a reader of a file does; one with an end ends the open one it was."""
        if gap.end is None:
            self.open_gap(gap)
            return
        key = (gap.source, gap.device)
        with self._lock:
            known = self._open_gaps.get(key)
            if known is not None and known.start == gap.start:
                del self._open_gaps[key]
            self._gaps.append(gap)
        self._publish(gap)

    def begin_span(self, time: float, *, number: int | None = None, name: str = "") -> Span:
        """Open a span at ``time`` and return it; of too many the oldest ended one goes."""
        with self._lock:
            span = Span(self._next_span, time, number=number, name=name)
            self._next_span += 1
            self._put_span(span)
        self._publish(span)
        return span

    def end_span(
        self, span_id: int, time: float, status: SpanStatus = "ok", *, number: int | None = None
    ) -> Span:
        """Close a span and return it; ``number`` replaces its execution count if given."""
        with self._lock:
            span = self._spans[span_id]
            span = replace(
                span, end=max(time, span.start), status=status,
                number=span.number if number is None else number,
            )
            self._spans[span_id] = span
        self._publish(span)
        return span

    def add_span(self, span: Span) -> None:
        """Add or replace a span under its own id, as a reader of a file does."""
        with self._lock:
            self._put_span(span)
            self._next_span = max(self._next_span, span.id + 1)
        self._publish(span)

    def _put_span(self, span: Span) -> None:
        self._spans[span.id] = span
        if len(self._spans) > _MAX_EVENTS:
            # One that runs has yet to be ended by whoever began it.
            ended = (s.id for s in self._spans.values() if s.end is not None)
            del self._spans[next(ended, next(iter(self._spans)))]

    def add_mark(self, mark: Mark) -> None:
        """Add a mark."""
        with self._lock:
            self._marks.append(mark)
        self._publish(mark)

    # -- reading ------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, GPUs in NVML's order and the host last."""
        with self._lock:
            found = list(self._devices.values())
        found.sort(key=lambda d: (d.id == HOST, d.nvml_index if d.nvml_index is not None else 0))
        return tuple(found)

    def device(self, device_id: str) -> Device | None:
        """Return a device by its id, or ``None``."""
        return self._devices.get(device_id)

    def spans(self, start: float = -math.inf, end: float = math.inf) -> tuple[Span, ...]:
        """List the spans that touch ``[start, end]``, oldest first."""
        with self._lock:
            spans = list(self._spans.values())
        return tuple(
            s for s in spans if s.start <= end and (s.end is None or s.end >= start)
        )

    def span(self, span_id: int) -> Span | None:
        """Return a span by its id, or ``None`` if it is not (or no longer) held."""
        return self._spans.get(span_id)

    def marks(self, start: float = -math.inf, end: float = math.inf) -> tuple[Mark, ...]:
        """List the marks in ``[start, end]``, oldest first."""
        with self._lock:
            return tuple(m for m in self._marks if start <= m.time <= end)

    def gaps(self, start: float = -math.inf, end: float = math.inf) -> tuple[Gap, ...]:
        """List the gaps that touch ``[start, end]``; open ones have ``end`` ``None``."""
        with self._lock:
            gaps = [*self._gaps, *self._open_gaps.values()]
        return tuple(
            g for g in gaps if g.start <= end and (g.end is None or g.end >= start)
        )

    def series(
        self, metric: str, device: str, start: float = -math.inf, end: float = math.inf
    ) -> Series:
        """Return one metric of one device in ``[start, end]``, empty if there is none."""
        times: Sequence[float] = ()
        values: Sequence[float] = ()
        with self._lock:
            for (owner, _), track in self._tracks.items():
                column = track.columns.get(metric)
                if owner != device or column is None:
                    continue
                part = track.slice(start, end)
                times, values = track.times[part].tolist(), column[part].tolist()
                break
        # Few metrics are ever absent, and one NaN makes the whole sum NaN.
        if math.isnan(sum(values)):
            there = [value == value for value in values]
            times, values = list(compress(times, there)), list(compress(values, there))
        return Series(metric, device, times, values)

    def times(
        self, source: str, device: str, start: float = -math.inf, end: float = math.inf
    ) -> Sequence[float]:
        """Return the stamps of one source's readings of one device in ``[start, end]``."""
        with self._lock:
            track = self._tracks.get((device, source))
            return track.times[track.slice(start, end)].tolist() if track else []

    def breaks(
        self,
        source: str,
        device: str,
        start: float = -math.inf,
        end: float = math.inf,
        *,
        metric: str | None = None,
    ) -> list[tuple[float, float]]:
        """List the pairs of readings around ``[start, end]`` that are too far apart to be joined.

        Too far is judged by the period in force at the earlier one. Infinity stands for the
        next reading where the newest one no longer reaches ``end``. With ``metric``, a sample
        that lacks it is no reading.
        """
        with self._lock:
            track = self._tracks.get((device, source))
            if track is None or not track.times:
                return []
            all_breaks = [*track.breaks, *track.breaks_of.get(metric or "", ())]
            found = sorted((a, b) for a, b in all_breaks if a <= end and b >= start)
            newest, reach = track.lacking.get(metric or "", (track.times[-1], track.reach))
            if end - newest > reach:
                found.append((newest, math.inf))
            return found

    def longest_period(self, source: str, device: str) -> float | None:
        """Return the longest period at which a source has read a device, or ``None``."""
        track = self._tracks.get((device, source))
        known = [p for p in (track and track.longest_period, self.periods.get(source)) if p]
        return max(known, default=None)

    def latest(self, metric: str, device: str) -> tuple[float, float] | None:
        """Return the time and value of the newest reading of a metric, or ``None``.

        A value that the last 64 samples of its source lack counts as gone.
        """
        with self._lock:
            for (owner, _), track in self._tracks.items():
                column = track.columns.get(metric)
                if owner != device or column is None:
                    continue
                for index in range(len(column) - 1, max(0, len(column) - 64) - 1, -1):
                    if column[index] == column[index]:
                        return track.times[index], column[index]
                return None
        return None

    def metrics(self, device: str) -> tuple[str, ...]:
        """List the metrics of which a device has had a value."""
        with self._lock:
            return tuple(
                name
                for (owner, _), track in self._tracks.items()
                if owner == device
                for name in track.columns
            )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """First and last time of all samples held, or ``None`` without samples."""
        with self._lock:
            tracks = [t for t in self._tracks.values() if t.times]
            if not tracks:
                return None
            return min(t.times[0] for t in tracks), max(t.times[-1] for t in tracks)

    def dropped_until(self, source: str, device: str) -> float | None:
        """Return up to which time a source's samples of a device had to go, or ``None``."""
        track = self._tracks.get((device, source))
        return track.dropped_until if track is not None else None

    def forget_threads(self) -> None:
        """Take a new lock: in a forked child the old one's holder no longer runs."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return sum(len(track.times) for track in self._tracks.values())

    def samples(
        self, start: float = -math.inf, end: float = math.inf
    ) -> Iterator[Sample]:
        """Yield the samples held in ``[start, end]`` in the order of their times."""
        found: list[Sample] = []
        with self._lock:
            for (device, source), track in self._tracks.items():
                part = track.slice(start, end)
                names = list(track.columns)
                columns = [track.columns[name][part] for name in names]
                for row, time in enumerate(track.times[part]):
                    values = {
                        name: column[row]
                        for name, column in zip(names, columns, strict=True)
                        if column[row] == column[row]
                    }
                    found.append(Sample(time, device, source, values))
        found.sort(key=lambda sample: sample.time)
        return iter(found)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the samples as a DataFrame: ``time`` (UTC), ``device``, ``source``, metrics.

        Raises :class:`ImportError` where pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas") from error

        rows = [
            {"time": s.time, "device": s.device, "source": s.source, **s.values}
            for s in self.samples()
        ]
        columns = None if rows else ["time", "device", "source"]
        frame: pandas.DataFrame = pandas.DataFrame(rows, columns=columns)
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame
