"""What alerts look at: the last seconds of a recording, read in short windows and only once."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import sub

from ..metrics import METRICS
from ..recording import Recording, Series
from ..sample import Device, Span
from .alert import Alert
from .thresholds import AlertThresholds

__all__ = ["Look"]

_STALE_PERIODS = 3.0
_STALE_FLOOR_S = 1.0
_HOLE_FLOOR_S = 2.0
"""Readings beside a busy cell come late: up to here a window counts as covered."""

_FEWEST_PERIODS = 4.0


@dataclass(slots=True)
class Look:
    """One look at the GPUs of a recording at the time ``now`` (epoch seconds).

    Nothing after ``now`` is read, so that a recording of a file is judged like one that grows.
    ``active`` holds the alerts that have begun, by kind and device. ``unseen_s`` are the seconds
    that no look before this one has seen. ``notes`` lets a check keep a number from look to look.
    """

    recording: Recording
    now: float
    gpus: Sequence[Device]
    limits: AlertThresholds
    active: Mapping[tuple[str, str], Alert] = field(default_factory=dict)
    unseen_s: float = math.inf
    notes: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    kind: str = ""
    missing: set[tuple[str, str]] = field(default_factory=set)
    """Kind and device of what could not be judged since readings have stopped or had a hole."""
    _read: dict[tuple[str, str], tuple[float, Series]] = field(default_factory=dict)

    def on(self, kind: str, device: Device) -> bool:
        """Tell whether an alert has begun and is not over."""
        return (kind, device.id) in self.active

    def period(self, metric: str) -> float:
        """Return the seconds between readings of a metric."""
        return self.recording.periods.get(METRICS[metric].source, 0.1)

    def series(self, metric: str, device: Device, seconds: float) -> Series:
        """Return the readings of the last seconds, as far as there are any."""
        long, found = self._longest(metric, device, seconds)
        if long == seconds:
            return found
        first = bisect_left(found.times, self.now - seconds)
        return Series(metric, device.id, found.times[first:], found.values[first:])

    def _longest(self, metric: str, device: Device, seconds: float) -> tuple[float, Series]:
        """Return the longest window read so far, which has at least the last seconds."""
        key = (metric, device.id)
        known = self._read.get(key)
        if known is None or known[0] < seconds:
            # Reading is what costs: it is done once for all checks that ask for less.
            found = self.recording.series(metric, device.id, self.now - seconds, self.now)
            known = self._read[key] = (seconds, found)
        return known

    def present(self, metric: str, device: Device) -> float | None:
        """Return the present value, ``None`` where the newest reading is not of the present."""
        stale = max(_STALE_PERIODS * self.period(metric), _STALE_FLOOR_S)
        _, found = self._longest(metric, device, stale)
        if found.times and self.now - found.times[-1] <= stale:
            return found.values[-1]
        if (self.kind, device.id) in self.active and metric in self.recording.metrics(device.id):
            self.missing.add((self.kind, device.id))
        return None

    def window(self, metric: str, device: Device, seconds: float) -> Series | None:
        """Return the readings of the last seconds if they cover them: no hole, none at its ends.

        Where readings are rare, the window is as long as four of them take.
        """
        period = self.period(metric)
        seconds = max(seconds, _FEWEST_PERIODS * period)
        stale = max(_STALE_PERIODS * period, _STALE_FLOOR_S)
        hole = max(stale, _HOLE_FLOOR_S)
        found = self.series(metric, device, seconds)
        times = found.times
        if (
            len(times) < 2
            or times[0] - (self.now - seconds) > min(stale, seconds / 4)
            or self.now - times[-1] > stale
            or max(map(sub, times[1:], times)) > hole
        ):
            if times:
                self.missing.add((self.kind, device.id))
            return None
        return found

    def mean(self, metric: str, device: Device, seconds: float) -> float | None:
        """Return the mean of a covered window, or ``None``."""
        found = self.window(metric, device, seconds)
        return None if found is None else sum(found.values) / len(found)

    def parts(self, series: Series, seconds: float, count: int) -> list[Sequence[float]]:
        """Split the values of the last seconds into stretches of the same length."""
        start, width = self.now - seconds, seconds / count
        edges = [bisect_left(series.times, start + width * n) for n in range(count)]
        edges.append(len(series))
        return [series.values[a:b] for a, b in pairwise(edges)]

    def held_since(self, metric: str, device: Device, least: float, seconds: float) -> float:
        """Return from when on all readings were at ``least``, looking back so many seconds."""
        since = self.now
        found = self.series(metric, device, seconds)
        for time, value in zip(reversed(found.times), reversed(found.values), strict=True):
            if value < least:
                break
            since = time
        return since

    def held_from(
        self, metric: str, device: Device, least: float, seconds: float
    ) -> tuple[float, bool]:
        """Return the same, and whether it can have been so before what was looked at."""
        since = self.held_since(metric, device, least, seconds)
        times = self.series(metric, device, seconds).times
        whole = bool(times) and since <= times[0]
        edge = self.now - seconds + max(_STALE_PERIODS * self.period(metric), _STALE_FLOOR_S)
        return since, whole and since <= edge

    def since(self, kind: str, device: Device, otherwise: float) -> float:
        """Return from when on an alert holds: as it was when it began."""
        known = self.active.get((kind, device.id))
        return known.since if known is not None else otherwise

    def cell_in(self, start: float, end: float) -> str:
        """Say in which cell something happened between two times: `` in [14]``, or nothing."""
        cells = self.recording.spans(start, end)
        return f" in {max(cells, key=lambda s: s.start).label}" if cells else ""

    def cells_of(self, events: Sequence[tuple[float, float]], slack: float) -> dict[str, float]:
        """Count events, each a time and how many, for each cell, in the order of the last."""
        found: dict[str, float] = {}
        for time, times in events:
            where = self.cell_in(time - slack, time)
            found[where] = found.pop(where, 0.0) + times
        return found

    def running(self) -> list[Span]:
        """Return the cells that run now."""
        cells = self.recording.spans(self.now, self.now)
        return [s for s in cells if s.end is None or s.end > self.now]

    def in_cell(self) -> str:
        """Say which cell runs now, the last begun of several: `` in [14]``, or nothing."""
        running = self.running()
        return f" in {max(running, key=lambda s: s.start).label}" if running else ""
