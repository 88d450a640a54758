"""From a span of the recording to its Profile: the one way for every cell, measured or seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .cell_growth import growth_of
from .diagnosis import RunGrowth, Thresholds, diagnose, parse_thresholds
from .errors import SettingError
from .memory.history import HistoryReading, with_history
from .profiles import Profile
from .recording import Recording, Series
from .sample import HOST, Device, Gap, Mark, Sample, Span
from .session import Session
from .summary import Summary, summarise
from .tracks import MergedSample
from .views.scene import Scene, build_scene
from .waterfall import build_waterfall

if TYPE_CHECKING:
    from .memory.streams import StreamState

__all__ = ["Excerpt", "profile_of"]

_SHORTEST_SCENE_S = 0.01


def profile_of(
    session: Session,
    span: Span,
    *,
    gpus: Sequence[str],
    streams: StreamState = "unknown",
    synchronised: bool = False,
    watch_cpu_s: float | None = None,
    cuda_at_start: bool = True,
    history: HistoryReading | None = None,
    earliest: float = -math.inf,
    latest: float = math.inf,
    compare: Callable[[Summary, Thresholds], Mapping[str, RunGrowth]] | None = None,
) -> Profile:
    """Return what the session's recording holds of a closed span.

    ``gpus`` are names as in :meth:`~gpumagic.session.Session.named_gpus`. ``earliest`` and
    ``latest`` (epoch seconds) bound the readings that may speak of the span's ends: those of
    the cells beside it never do. ``history`` is what the allocator's history told of the
    span, if it was kept. ``compare`` says how live memory grew in the last runs of the cell;
    without it, a cell that :class:`~gpumagic.cell_growth.CellGrowth` expects is compared with its
    earlier runs. The other arguments are those of
    :func:`~gpumagic.summary.summarise` and of :class:`~gpumagic.profiles.Profile`.
    """
    recording: Recording = session.recording
    if math.isfinite(earliest) or math.isfinite(latest):
        recording = Excerpt(recording, earliest, latest)
    reasons = session.reasons()
    summary, peak_method = with_history(
        summarise(
            recording,
            span,
            devices=[*session.named_gpus(gpus), HOST],
            reasons=reasons,
            watch_cpu_s=watch_cpu_s,
            cuda_at_start=cuda_at_start,
        ),
        history or HistoryReading(),
    )
    waterfalls = tuple(
        build_waterfall(recording, span, gpu.device, reasons) for gpu in summary.gpus
    )
    limits = _thresholds(session)
    findings = diagnose(
        recording, summary, waterfalls=waterfalls, thresholds=limits,
        growth=(compare or growth_of(session).measured)(summary, limits),
    )
    return Profile(
        span, summary, streams, synchronised, reasons,
        scene=_scene(recording, summary, reasons),
        findings=findings, waterfalls=waterfalls, peak_method=peak_method,
    )


def _thresholds(session: Session) -> Thresholds:
    """Return the thresholds of the settings; what was put into the dict unchecked counts not."""
    try:
        return parse_thresholds(session.settings.thresholds)
    except SettingError:
        return Thresholds()


def _scene(recording: Recording, summary: Summary, reasons: Mapping[str, str]) -> Scene:
    """Build the picture of a span's time axis, from its begin to its end."""
    span = summary.span
    assert span.end is not None
    return build_scene(
        recording,
        start=span.start,
        end=max(span.end, span.start + _SHORTEST_SCENE_S),
        gpus=[gpu.device.id for gpu in summary.gpus],
        state="stopped",
        header=False,
        clock_times=False,
        layout="rows",
        reasons=reasons,
    )


class Excerpt(Recording):
    """The part of a recording between two times, for reading only; nothing is copied.

    Readings outside of ``[earliest, latest]`` (epoch seconds) are not there for whoever reads.
    """

    def __init__(self, whole: Recording, earliest: float, latest: float) -> None:
        super().__init__()
        self._whole = whole
        self._earliest = earliest
        self._latest = latest
        self.periods = whole.periods

    def _clip(self, start: float, end: float) -> tuple[float, float]:
        return max(start, self._earliest), min(end, self._latest)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the whole recording."""
        return self._whole.devices

    def device(self, device_id: str) -> Device | None:
        """Return a device by its id, or ``None``."""
        return self._whole.device(device_id)

    def spans(self, start: float = -math.inf, end: float = math.inf) -> tuple[Span, ...]:
        """List the spans that touch ``[start, end]`` within the bounds."""
        return self._whole.spans(*self._clip(start, end))

    def span(self, span_id: int) -> Span | None:
        """Return a span by its id, or ``None``."""
        return self._whole.span(span_id)

    def marks(self, start: float = -math.inf, end: float = math.inf) -> tuple[Mark, ...]:
        """List the marks in ``[start, end]`` within the bounds."""
        return self._whole.marks(*self._clip(start, end))

    def gaps(self, start: float = -math.inf, end: float = math.inf) -> tuple[Gap, ...]:
        """List the gaps that touch ``[start, end]`` within the bounds."""
        return self._whole.gaps(*self._clip(start, end))

    def series(
        self, metric: str, device: str, start: float = -math.inf, end: float = math.inf
    ) -> Series:
        """Return one metric of one device in ``[start, end]`` within the bounds.

        Merged readings are left out if one of them lies outside of the bounds.
        """
        series = self._whole.series(metric, device, *self._clip(start, end))
        return series.within(self._earliest, self._latest)

    def times(
        self, source: str, device: str, start: float = -math.inf, end: float = math.inf
    ) -> Sequence[float]:
        """Return the stamps of one source's readings of one device within the bounds."""
        return self._whole.times(source, device, *self._clip(start, end))

    def breaks(
        self, source: str, device: str, start: float = -math.inf, end: float = math.inf,
        *, metric: str | None = None,
    ) -> list[tuple[float, float]]:
        """List the pairs of readings around ``[start, end]`` that are too far apart."""
        return self._whole.breaks(source, device, *self._clip(start, end), metric=metric)

    def longest_period(self, source: str, device: str) -> float | None:
        """Return the longest period at which a source has read a device, or ``None``."""
        return self._whole.longest_period(source, device)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """First and last time of the samples within the bounds, or ``None`` without any."""
        whole = self._whole.bounds
        if whole is None:
            return None
        start, end = self._clip(*whole)
        return (start, end) if start <= end else None

    @property
    def size(self) -> int:
        """The bytes that the samples of the whole recording take."""
        return self._whole.size

    def samples(self, start: float = -math.inf, end: float = math.inf) -> Iterator[Sample]:
        """Yield the samples held in ``[start, end]`` within the bounds, in order of time."""
        start, end = self._clip(start, end)
        return (
            sample for sample in self._whole.samples(start, end)
            if sample.time <= self._latest
            and not (isinstance(sample, MergedSample) and sample.start < self._earliest)
        )

    def metrics(self, device: str) -> tuple[str, ...]:
        """List the metrics of which a device has had a value."""
        return self._whole.metrics(device)

    def latest(self, metric: str, device: str) -> tuple[float, float] | None:
        """Return the time and value of the newest reading within the bounds, or ``None``."""
        series = self.series(metric, device)
        return (series.times[-1], series.values[-1]) if len(series) else None
