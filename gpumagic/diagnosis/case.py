"""The case that rules judge: one cell and one of its GPUs, with figures over time.

The cell is cut into slots of about half a second. A rule asks for a metric's value in each slot
and names the slots to which its cause applies, so that it speaks of a stretch of the cell and
not only of its mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..figures import DeviceSummary, Figure, Summary
from ..metrics import METRICS
from ..recording import Recording, Series
from ..sample import HOST, Span
from ..waterfall import Waterfall
from .thresholds import Thresholds

if TYPE_CHECKING:
    from .growing import RunGrowth

__all__ = ["Case", "Value", "at_least", "at_most", "mean_of"]

Value = float | None
Readings = list[tuple[float, float]]

_SLOT_S = 0.5
_MOST_SLOTS = 240
_NEAR_S = 1.5
_ABSENT = Figure("", reason="no GPU")


def mean_of(values: Iterable[Value]) -> Value:
    """Return the mean of the values that are there, or ``None``."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def at_most(value: Value, limit: float) -> bool:
    """Tell whether a value is there and not above a limit."""
    return value is not None and value <= limit


def at_least(value: Value, limit: float) -> bool:
    """Tell whether a value is there and not below a limit."""
    return value is not None and value >= limit


@dataclass(frozen=True)
class Case:
    """One cell and one of its GPUs (``None`` where there is none), for the rules.

    ``growth`` says how live memory grew on it from run to run, if it only did. ``subject`` names
    the GPU at the beginning of a sentence.
    """

    recording: Recording
    summary: Summary
    gpu: DeviceSummary | None
    thresholds: Thresholds = field(default_factory=Thresholds)
    waterfall: Waterfall | None = None
    growth: RunGrowth | None = None
    _read: dict[str, Series] = field(default_factory=dict, repr=False, compare=False)
    _made: dict[tuple[str | int, ...], list[Value]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def span(self) -> Span:
        """The cell."""
        return self.summary.span

    @property
    def wall_s(self) -> float:
        """The length of the cell in seconds."""
        return self.summary.wall_s

    @property
    def host(self) -> DeviceSummary | None:
        """The host."""
        return self.summary.host

    @property
    def subject(self) -> str:
        """What a sentence calls the GPU."""
        if self.gpu is None:
            return "The GPU"
        if len(self.summary.gpus) == 1 and not self.gpu.device.is_slice:
            return "The GPU"
        return self.gpu.device.label

    @property
    def device(self) -> str:
        """The id of the GPU, or of the host."""
        return self.gpu.device.id if self.gpu is not None else HOST

    # -- figures over the cell --------------------------------------------------------------

    def figure(self, metric: str) -> Figure:
        """Return a figure of the GPU or, for a metric of the host, of the host."""
        owner = self.host if METRICS[metric].source in ("host", "cell") else self.gpu
        return owner.figure(metric) if owner is not None else _ABSENT

    def mean(self, metric: str) -> Value:
        """Return a metric's mean over the cell."""
        return self.figure(metric).mean

    def grown(self, counter: str) -> Value:
        """Return by how much a counter grew in the cell."""
        figure = self.figure(counter)
        if figure.start is None or figure.end is None or figure.end < figure.start:
            return None
        return figure.end - figure.start

    def constant(self, name: str) -> Value:
        """Return a constant of the GPU or of the host."""
        for owner in (self.gpu, self.host):
            if owner is not None and name in owner.device.constants:
                return owner.device.constants[name]
        return None

    @property
    def own(self) -> bool:
        """Whether this process is known to use the GPU: torch has tensors on it, or the driver
        lists the process. What others do on a GPU is not the cell's."""
        return any(
            (self.figure(metric).peak or 0.0) > 0
            for metric in ("torch_allocated_bytes", "gpu_process_memory_bytes")
        )

    @property
    def total_bytes(self) -> Value:
        """The GPU's memory in all."""
        return self.constant("gpu_memory_total_bytes")

    @property
    def cores(self) -> Value:
        """The processor cores that this process may use."""
        return self.constant("host_cpu_limit_ratio")

    # -- figures over time ------------------------------------------------------------------

    @cached_property
    def slots(self) -> tuple[tuple[float, float], ...]:
        """The slots of the cell: pairs of epoch seconds."""
        assert self.span.end is not None
        count = max(1, min(_MOST_SLOTS, int(self.wall_s / _SLOT_S)))
        width = self.wall_s / count
        start = self.span.start
        return tuple((start + i * width, start + (i + 1) * width) for i in range(count))

    def readings(self, metric: str) -> Readings:
        """Return the readings of a metric that count in the cell: times and values."""
        return list(self._rows(metric))

    def _rows(self, metric: str) -> Series:
        """Return the readings that count in the cell, with what merged ones stand for."""
        if metric not in self._read:
            assert self.span.end is not None
            row = METRICS[metric]
            owner = HOST if row.source in ("host", "cell") else self.device
            start, end = self.span.start + row.reach_s, self.span.end
            series = self.recording.series(metric, owner, start, end)
            self._read[metric] = series.within(start, end)
        return self._read[metric]

    def over_time(self, metric: str) -> list[Value]:
        """Return a metric's mean in each slot; a reading speaks of the time before its stamp.

        A slot without a reading takes the next one, if that still speaks of the slot.
        """
        return self._once(("mean", metric), lambda: self._means(metric))

    def _means(self, metric: str) -> list[Value]:
        reach, rows = METRICS[metric].reach_s, self._rows(metric)
        found = self._binned(rows, rows.values, reach / 2)
        for index, (start, end) in enumerate(self.slots):
            if found[index] is None:
                after = bisect_left(rows.times, end)
                if after < len(rows) and rows.starts[after] - reach <= start:
                    found[index] = rows.values[after]
        return found

    def _binned(self, rows: Series, values: Iterable[float], back: float) -> list[Value]:
        """Return the mean of the values of rows in each slot, so many seconds further back."""
        start, width = self.span.start + back, self.wall_s / len(self.slots)
        sums, weights = [0.0] * len(self.slots), [0.0] * len(self.slots)
        for begin, time, count, value in zip(
            rows.starts, rows.times, rows.counts, values, strict=True
        ):
            first = int((begin - start) / width) if width else 0
            last = int((time - start) / width) if width else 0
            for index in range(max(0, first), min(last, len(sums) - 1) + 1):
                weight = float(count)
                if last > first:
                    low, high = start + index * width, start + (index + 1) * width
                    weight *= (min(time, high) - max(begin, low)) / (time - begin)
                sums[index] += value * weight
                weights[index] += weight
        return [
            total / weight if weight else None for total, weight in zip(sums, weights, strict=True)
        ]

    def near(self, metric: str) -> list[Value]:
        """Return for each slot the reading of a state that is nearest to its middle."""
        return self._once(("near", metric), lambda: self._nearest(metric))

    def _nearest(self, metric: str) -> list[Value]:
        rows = self._rows(metric)
        found: list[Value] = []
        for start, end in self.slots:
            middle = (start + end) / 2
            after = bisect_left(rows.times, middle)
            away = {
                index: max(rows.starts[index] - middle, middle - rows.times[index], 0.0)
                for index in (after - 1, after) if 0 <= index < len(rows)
            }
            nearest = min(away, key=away.__getitem__, default=None)
            there = nearest is not None and away[nearest] <= _NEAR_S
            found.append(rows.values[nearest] if nearest is not None and there else None)
        return found

    def throughout(self, metric: str) -> list[Value]:
        """Return a metric's mean in each slot, or over the cell where a slot has no reading."""
        whole = self.mean(metric)
        return [whole if value is None else value for value in self.over_time(metric)]

    def places(self, *codes: int) -> list[Value]:
        """Return in which share of each slot's readings the cell was at some of CELL_PLACES."""
        return self._once(("places", *codes), lambda: self._shares("cell_place_state", codes))

    def _shares(self, metric: str, codes: Sequence[int]) -> list[Value]:
        rows = self._rows(metric)
        return self._binned(rows, (float(int(value) in codes) for value in rows.values), 0.0)

    def _once(self, key: tuple[str | int, ...], make: Callable[[], list[Value]]) -> list[Value]:
        """Make what several rules ask for only once."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def where(self, holds: Callable[[int], bool]) -> list[int]:
        """List the slots for which a condition holds; a single slot between two is taken along."""
        flags = [holds(index) for index in range(len(self.slots))]
        for index in range(1, len(flags) - 1):
            if flags[index - 1] and flags[index + 1]:
                flags[index] = True
        return [index for index, flag in enumerate(flags) if flag]

    def enough(self, slots: Sequence[int]) -> bool:
        """Tell whether some slots are enough of the cell for a cause to be named."""
        seconds = self.seconds(slots)
        limits = self.thresholds
        least = max(limits.shortest_s, limits.stretch_ratio * self.wall_s)
        return bool(slots) and seconds >= least

    def seconds(self, slots: Sequence[int]) -> float:
        """Return the length of some slots together."""
        return sum(self.slots[i][1] - self.slots[i][0] for i in slots)

    def stretches(self, slots: Sequence[int]) -> tuple[tuple[float, float], ...]:
        """Join slots that touch into stretches of epoch seconds."""
        found: list[tuple[float, float]] = []
        last = -2
        for index in slots:
            start, end = self.slots[index]
            if index == last + 1:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
            last = index
        return tuple(found)

    def mean_in(self, metric: str, slots: Sequence[int]) -> Value:
        """Return a metric's mean in some slots, or over the cell where these have no reading."""
        values = self.over_time(metric)
        found = mean_of(values[i] for i in slots)
        return found if found is not None else self.mean(metric)
