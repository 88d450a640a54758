"""What a recording knows of one strip of one device, in base units and in columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from ..coverage import merge
from ..metrics import METRICS
from ..recording import REACH_PERIODS, Recording, Series
from ..sample import Device, Gap
from ..throttling import held_back
from .bins import Grid, Hole, finite
from .column_cache import ColumnCache
from .strips import Layer, Strip

__all__ = ["LayerReading", "Reading", "View", "elapsed", "holes_of", "read", "source_of"]

_STALE = 3.0
"""Periods after which a reading is no longer the present one."""

_NEAR_S = 30.0

_STALE_FLOOR_S = 1.0
"""A tick or two that came late behind a busy cell is no news."""


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a recording is looked at.

    ``until`` is the newest time that counts: now, while ``live``. ``reasons`` says for a metric
    or a source why it is missing, where neither its device nor a gap does. ``cache`` is that of
    the last view of this recording, if there was one. ``shares`` tells other processes and
    workers apart from the rest. ``gaps`` are the recording's gaps in the view. ``held`` keeps
    what limits did to each device: power and temperature both ask for it.
    """

    recording: Recording
    grid: Grid
    until: float
    live: bool
    reasons: Mapping[str, str]
    cache: ColumnCache = field(default_factory=ColumnCache)
    shares: bool = True
    gaps: Sequence[Gap] = ()
    held: dict[str, Mapping[str, tuple[Hole, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayerReading:
    """One layer: the metric that was read, its columns, and its present value if it has one."""

    layer: Layer
    metric: str
    columns: tuple[float | None, ...]
    present: float | None


@dataclass(frozen=True, slots=True)
class Reading:
    """A strip's layers, what is missing, and where a limit held work back (in epoch seconds).

    ``top`` is the ceiling that the device gives, or ``None``. ``counted`` is the word for the
    inner part where it depends on how many there are ("4 workers"), empty for none of them.
    """

    strip: Strip
    device: Device
    layers: tuple[LayerReading, ...]
    missing: str | None
    top: float | None
    limited: tuple[Hole, ...]
    limit_words: tuple[str, str] | None
    counted: str | None

    @property
    def peak(self) -> float:
        """The highest value in any column, 0 if there is none."""
        parts = [x.columns for x in self.layers if x.layer.style != "other"]
        # Neither a zero nor what is not known can be higher than the rest.
        return max((max(filter(None, columns), default=0.0) for columns in parts), default=0.0)


def elapsed(seconds: float) -> str:
    """Write a length of time as briefly as a label needs: ``0.4 s``, ``22 s``, ``3 min 05 s``."""
    if seconds < 0.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def source_of(metric: str) -> str:
    """Name the source of a metric, or nothing if METRICS does not know it."""
    row = METRICS.get(metric)
    return row.source if row is not None else ""


def holes_of(view: View, source: str, device: str) -> tuple[Hole, ...]:
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


def _reach(view: View, source: str, device: str, period: float) -> float:
    """Return how far a reading can reach at most; breaks say where it does not."""
    return REACH_PERIODS * (view.recording.longest_period(source, device) or period)


def _period(view: View, metric: str, device: str) -> float:
    known = view.recording.periods.get(source_of(metric))
    if known is not None:
        return known
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


def _read_layer(view: View, layer: Layer, device: str) -> tuple[LayerReading, float | None]:
    """Read a layer; return it and the time of its newest reading."""
    alternatives = [layer.metrics] if layer.combine == "sum" else [(m,) for m in layer.metrics]
    for metrics in alternatives:
        metric = metrics[0]
        source = source_of(metric)
        period = _period(view, metric, device)
        reach = _reach(view, source, device, period)
        columns, newest = view.cache.columns(
            (device, metrics), partial(_sum, view, metrics, device), view.grid,
            reach=reach, until=view.until,
            holes=merge(
                [*holes_of(view, source, device), *_unjoined(view, source, device, metric)]
            ),
        )
        if newest is not None:
            break
    if newest is None:
        return LayerReading(layer, metric, columns, None), None
    time, value = newest
    stale = view.live and view.until - time > max(_STALE * period, _STALE_FLOOR_S)
    return LayerReading(layer, metric, columns, None if stale else value), time


def _missing(view: View, device: Device, reading: LayerReading, newest: float | None) -> str:
    """Say why a layer has no present value."""
    for metric in reversed(reading.layer.metrics):
        if metric in device.absent:
            return device.absent[metric]
    source = source_of(reading.metric)
    for gap in view.recording.gaps(view.until, math.inf):
        if gap.end is None and gap.source == source and gap.device in (None, device.id):
            return gap.reason
    told = view.reasons.get(reading.metric) or view.reasons.get(source)
    if told:
        return told
    if newest is None and view.live:
        # The last reading can have left the window.
        last = view.recording.latest(reading.metric, device.id)
        newest = last[0] if last is not None else None
    if newest is not None:
        return f"no reading for {elapsed(view.until - newest)}"
    return "no reading yet" if view.live else "not recorded"


def _limits(
    view: View, device: str, kind: str
) -> tuple[tuple[Hole, ...], tuple[str, str] | None]:
    """Find where limits of a kind held work back; return that and the words for it."""
    if device not in view.held:
        view.held[device] = held_back(view.recording, device, view.grid.start, view.until)
    held = {
        name: stretches
        for name, stretches in view.held[device].items()
        if name.startswith("thermal") == (kind == "thermal")
    }
    if not held:
        return (), None
    stretches = merge([stretch for found in held.values() for stretch in found])
    total = sum(end - start for start, end in stretches)
    word = "at the cap" if "power cap" in held else next(iter(held))
    if kind == "thermal":
        word = "throttled"
    return stretches, (word, elapsed(total))


def _newest(view: View, metric: str, device: str) -> float | None:
    """Return the newest value of a metric in the view, or ``None``."""
    # Most often the newest one is near; a frozen view can end long after its last reading.
    for start in (max(view.grid.start, view.until - _NEAR_S), view.grid.start):
        values: Sequence[float] = view.recording.series(metric, device, start, view.until).values
        if values:
            return values[-1]
    return None


def _processes(view: View, device: str, inner: Layer) -> tuple[Layer, str | None]:
    """Return the inner layer of processor time and the word for it: workers, else children."""
    workers = _newest(view, "workers_count", device) if view.shares else None
    if workers and _newest(view, "workers_cpu_ratio", device) is not None:
        word = "1 worker" if workers == 1 else f"{workers:.0f} workers"
        return Layer(inner.style, ("workers_cpu_ratio",)), word
    children = _newest(view, "children_count", device)
    if children is None:
        return inner, None
    if children == 0:
        return inner, ""
    return inner, "1 child" if children == 1 else f"{children:.0f} children"


def _top(device: Device, metric: str) -> float | None:
    row = METRICS.get(metric)
    top = row.ceiling if row is not None else None
    if isinstance(top, str):
        top = device.constants.get(top)
    return top if top is not None and math.isfinite(top) and top > 0 else None


def read(view: View, device: Device, strip: Strip) -> Reading:
    """Read what the recording knows of one strip of one device in a view."""
    layers: list[LayerReading] = []
    missing: str | None = None
    parts = [layer for layer in strip.layers if view.shares or layer.style != "other"]
    counted = None
    if strip.name == "cpu":
        parts[-1], counted = _processes(view, device.id, parts[-1])
    for index, layer in enumerate(parts):
        reading, newest = _read_layer(view, layer, device.id)
        if index == 0:
            if reading.present is None:
                missing = _missing(view, device, reading, newest)
            layers.append(reading)
        elif newest is not None:
            layers.append(reading)
    limited: tuple[Hole, ...] = ()
    words = None
    if strip.held_by is not None:
        limited, words = _limits(view, device.id, strip.held_by)
    return Reading(
        strip, device, tuple(layers), missing, _top(device, layers[0].metric), limited, words,
        counted,
    )
