"""The layers of strips as columns: what a recording knows of a metric in a view."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import NamedTuple

from ..coverage import merge
from ..metrics import METRICS
from ..recording import REACH_PERIODS, Recording, Series
from ..sample import Gap
from .bins import Grid, Hole, finite
from .column_cache import ColumnCache
from .strips import Layer

__all__ = ["Feed", "LayerReading", "View", "read_layer", "source_of"]

_STALE = 3.0
"""Periods after which a reading is no longer the present one."""

_STALE_FLOOR_S = 1.0
"""A tick or two that came late behind a busy cell is no news."""


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a recording is looked at.

    ``until`` is the newest time that counts: now, while ``live``. ``reasons`` says for a metric
    or a source why it is missing, where neither its device nor a gap does. ``cache`` is that of
    the last view of this recording, if there was one. ``shares`` tells other processes and
    workers apart from the rest. ``gaps`` are the recording's gaps in the view. ``feeds`` and
    ``held`` keep what several strips ask for: what is known of each source of a device, and
    what limits did to it.
    """

    recording: Recording
    grid: Grid
    until: float
    live: bool
    reasons: Mapping[str, str]
    cache: ColumnCache = field(default_factory=ColumnCache)
    shares: bool = True
    gaps: Sequence[Gap] = ()
    feeds: dict[tuple[str, str], Feed] = field(default_factory=dict)
    held: dict[str, Mapping[str, tuple[Hole, ...]]] = field(default_factory=dict)

    def feed(self, source: str, device: str) -> Feed:
        """Return what is known of a source of a device."""
        found = self.feeds.get((source, device))
        if found is None:
            period = self.recording.periods.get(source)
            longest = self.recording.longest_period(source, device)
            holes = _holes(self, source, device)
            found = self.feeds[source, device] = Feed(period, longest or period, holes)
        return found


class Feed(NamedTuple):
    """One source of one device: its period, the longest that it has had, and its gaps.

    Periods are seconds, ``None`` where they are not known.
    """

    period: float | None
    longest: float | None
    holes: tuple[Hole, ...]


class LayerReading(NamedTuple):
    """One layer: the metric that was read, its columns, and its present value if it has one."""

    layer: Layer
    metric: str
    columns: tuple[float | None, ...]
    present: float | None


def source_of(metric: str) -> str:
    """Name the source of a metric, or nothing if METRICS does not know it."""
    row = METRICS.get(metric)
    return row.source if row is not None else ""


def _holes(view: View, source: str, device: str) -> tuple[Hole, ...]:
    """List the gaps of a source as seen by one device, joined, open ones without an end."""
    return merge(
        (gap.start, math.inf if gap.end is None else gap.end)
        for gap in view.gaps
        if gap.source == source and gap.device in (None, device)
    )


def _unjoined(view: View, source: str, device: str, metric: str) -> Iterator[Hole]:
    """Yield the columns between readings that were too far apart when they were taken.

    The columns of the readings themselves are left out: what was read stays.
    """
    grid = view.grid
    for before, after in view.recording.breaks(
        source, device, grid.start, view.until, metric=metric
    ):
        start = (grid.first + grid.column(before) + 1) * grid.width
        end = math.inf
        if math.isfinite(after):
            end = (grid.first + grid.column(after)) * grid.width
        if start < end:
            yield start, end


def _period(view: View, metric: str, device: str) -> float:
    """Estimate the period of a source of which none is known."""
    series = view.recording.series(metric, device, view.grid.start, view.until)
    # Between the last reading of one row and the first of the next.
    between = zip(series.times, series.starts[1:], strict=False)
    return median(b - a for a, b in between) if len(series) > 2 else 1.0


def _sum(view: View, metrics: Sequence[str], device: str, start: float) -> Series:
    """Return the numbers that some metrics, read together, add up to; the first has to be there.

    Of merged readings, the highest sum is given as the sum of the highest: it is not above that.
    """
    found = finite(view.recording.series(metrics[0], device, start, view.until))
    for other in metrics[1:]:
        # Metrics that are added up come from one sample and share its time.
        added = view.recording.series(other, device, start, view.until)
        more = dict(added)
        merged = found.merged
        if merged is not None:
            most = dict(zip(added.times, added.highs, strict=True))
            merged = replace(merged, highs=[
                high + most.get(time, 0.0)
                for time, high in zip(found.times, merged.highs, strict=True)
            ])
        values = [
            value + more.get(time, 0.0)
            for time, value in zip(found.times, found.values, strict=True)
        ]
        found = finite(replace(found, values=values, merged=merged))
    return found


def read_layer(view: View, layer: Layer, device: str) -> tuple[LayerReading, float | None]:
    """Read a layer; return it and the time of its newest reading."""
    alternatives = [layer.metrics] if layer.combine == "sum" else [(m,) for m in layer.metrics]
    for metrics in alternatives:
        metric = metrics[0]
        source = source_of(metric)
        feed = view.feed(source, device)
        period = _period(view, metric, device) if feed.period is None else feed.period
        # How far a reading can reach at most; breaks say where it does not.
        reach = REACH_PERIODS * (feed.longest or period)
        holes = feed.holes
        breaks = tuple(_unjoined(view, source, device, metric))
        if breaks:
            holes = merge([*holes, *breaks])
        columns, newest = view.cache.columns(
            (device, metrics), partial(_sum, view, metrics, device), view.grid,
            reach=reach, until=view.until, holes=holes, source=(device, source),
        )
        if newest is not None:
            break
    if newest is None:
        return LayerReading(layer, metric, columns, None), None
    time, value = newest
    stale = view.live and view.until - time > max(_STALE * period, _STALE_FLOOR_S)
    return LayerReading(layer, metric, columns, None if stale else value), time
