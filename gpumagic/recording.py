"""The recording: what the sampler writes and everything over time reads.

Bounded in bytes and append-only: as it fills up, old readings are merged, and none goes for its
age. One thread writes samples, any thread reads; readers get copies.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from .sample import HOST, Device, Gap, Mark, Sample, Span, SpanStatus
from .series import Series
from .tracks import REACH_PERIODS, Edge, MergedSample, Track

if TYPE_CHECKING:
    import pandas

__all__ = [
    "MAX_BYTES",
    "MIN_BYTES",
    "REACH_PERIODS",
    "Record",
    "Recording",
    "Series",
    "period_changes",
]

MAX_BYTES = 48 << 20
"""Bytes of samples: what else a recording holds of eight GPUs fits below 64 MiB with them."""

MIN_BYTES = 1 << 16

_MAX_EVENTS = 10_000

Record: TypeAlias = Device | Sample | Gap | Span | Mark
"""Anything that a recording holds; subscribers get each of them once it is written."""


class Recording:
    """Hold samples, gaps, spans and marks of a number of devices, within a bound.

    ``max_bytes`` bounds what the samples take. When it is reached, the oldest part of whatever
    takes the most is merged, four rows to one (see :class:`~gpumagic.tracks.Track`), so that the
    past gets the coarser the longer ago it is and nothing goes for its age. The bound is passed
    only where it is too tight for the newest few hundred rows of each source, device and level.
    ``periods`` maps a source to the seconds between its readings from now on; what was in force
    when a sample came is remembered with it (see :meth:`breaks`).
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        if max_bytes < MIN_BYTES:
            raise ValueError(f"max_bytes is {max_bytes}; it has to be at least {MIN_BYTES}")
        self._lock = threading.Lock()
        self._max_bytes = self._thin_at = max_bytes
        self._bytes = 0
        self._known_edges: list[Edge] | None = None
        self._devices: dict[str, Device] = {}
        self._tracks: dict[tuple[str, str], Track] = {}
        self._track_by_metric: dict[tuple[str, str], Track] = {}
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
                track = self._tracks[key] = Track()
            period = self.periods.get(sample.source)
            if isinstance(sample, MergedSample):
                self._bytes += track.append_merged(sample, period)
            else:
                self._bytes += track.append(sample, period)
            if self._bytes > self._thin_at:
                self._thin()
            closed = self._close_gaps(sample) if self._open_gaps else []
        for gap in closed:
            self._publish(gap)
        self._publish(sample)

    def _thin(self) -> None:
        """Merge the oldest rows of the level that takes the most, a block at a time."""
        size, level, thickest = 0, 0, None
        for track in self._tracks.values():
            found = track.thickest
            if found[0] > size:
                (size, level), thickest = found, track
        if thickest is None:
            # Until there is more, looking again would find nothing either.
            self._thin_at = self._bytes + MIN_BYTES
            return
        self._bytes += thickest.thin(level, self._edges())
        self._thin_at = self._max_bytes

    def _edges(self) -> list[Edge]:
        """List the ends of all spans: what is said of a cell rests on the readings there."""
        if self._known_edges is None:
            edges = []
            for span in self._spans.values():
                if span.end is None:
                    edges.append((span.start, math.inf))
                else:
                    length = span.end - span.start
                    edges += [(span.start, length), (span.end, length)]
            self._known_edges = sorted(edges)
        return self._known_edges

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
            self._known_edges = None
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
        self._known_edges = None
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
        """Return one metric of one device in ``[start, end]``, empty if there is none.

        A row of merged readings is in it if any of them can be: it may begin or end outside.
        """
        with self._lock:
            track = self._track_of(metric, device)
            if track is not None:
                return Series(metric, device, *track.read(metric, start, end))
        return Series(metric, device, (), ())

    def _track_of(self, metric: str, device: str) -> Track | None:
        """Return the track that holds a metric of a device; the lock is held.

        A track never loses a metric, so what was found once is not looked for again.
        """
        known = self._track_by_metric.get((metric, device))
        if known is None:
            for (owner, _), track in self._tracks.items():
                if owner == device and metric in track:
                    known = self._track_by_metric[metric, device] = track
                    break
        return known

    def times(
        self, source: str, device: str, start: float = -math.inf, end: float = math.inf
    ) -> Sequence[float]:
        """Return the stamps of one source's rows of one device in ``[start, end]``.

        A row of merged readings has the last one's and, as in :meth:`series`, may reach over
        the ends.
        """
        with self._lock:
            track = self._tracks.get((device, source))
            return track.times(start, end) if track is not None else []

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
        that lacks it is no reading. Merging keeps to breaks; of too many the shortest of long
        ago are forgotten.
        """
        with self._lock:
            track = self._tracks.get((device, source))
            if track is None:
                return []
            found = track.breaks.touching(start, end)
            own = track.breaks_of.get(metric or "")
            if own is not None:
                found = sorted(found + own.touching(start, end))
            newest, reach = track.lacking.get(metric or "", (track.end, track.reach))
            if end - newest > reach:
                found.append((newest, math.inf))
            return found

    def longest_period(self, source: str, device: str) -> float | None:
        """Return the longest period at which a source has read a device, or ``None``."""
        track = self._tracks.get((device, source))
        past = track.longest_period if track is not None else None
        present = self.periods.get(source)
        if not past or not present:
            return past or present or None
        return max(past, present)

    def latest(self, metric: str, device: str) -> tuple[float, float] | None:
        """Return the time and value of the newest reading of a metric, or ``None``.

        A value that the last 64 samples of its source lack counts as gone.
        """
        with self._lock:
            track = self._track_of(metric, device)
            return None if track is None else track.latest(metric)

    def metrics(self, device: str) -> tuple[str, ...]:
        """List the metrics of which a device has had a value."""
        with self._lock:
            return tuple(
                name
                for (owner, _), track in self._tracks.items()
                if owner == device
                for name in track.metrics
            )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """First and last time of all readings, merged ones too; ``None`` without samples."""
        with self._lock:
            tracks = list(self._tracks.values())
            if not tracks:
                return None
            return min(t.start for t in tracks), max(t.end for t in tracks)

    @property
    def size(self) -> int:
        """The bytes that the samples take."""
        return self._bytes

    def forget_threads(self) -> None:
        """Take a new lock: in a forked child the old one's holder no longer runs."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Count the rows held; one of merged readings counts once."""
        with self._lock:
            return sum(len(track) for track in self._tracks.values())

    def samples(
        self, start: float = -math.inf, end: float = math.inf
    ) -> Iterator[Sample]:
        """Yield the samples held in ``[start, end]`` in the order of their times.

        Merged readings come as one :class:`~gpumagic.tracks.MergedSample`.
        """
        with self._lock:
            found = [
                sample
                for (device, source), track in self._tracks.items()
                for sample in track.samples(device, source, start, end)
            ]
        found.sort(key=lambda sample: sample.time)
        return iter(found)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the samples as a DataFrame: ``time`` (UTC), ``device``, ``source``, metrics.

        Merged readings are one row, as in :meth:`samples`.
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


def period_changes(recording: Recording) -> list[tuple[float, str, float]]:
    """List since when (epoch seconds) which source was read every how many seconds.

    Known is what was in force as samples came: the first time of each source is that of its
    oldest sample.
    """
    with recording._lock:
        known = sorted(
            (time, source, period)
            for (_, source), track in recording._tracks.items() for time, period in track.periods
        )
    found: list[tuple[float, str, float]] = []
    present: dict[str, float] = {}
    for time, source, period in known:
        if present.get(source) != period:
            present[source] = period
            found.append((time, source, period))
    return found
