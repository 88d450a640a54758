"""A GPU's memory readings next to three moments of a span: before, highest, after."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..recording import REACH_PERIODS, Recording, Series
from ..sample import Device, Span

__all__ = ["MomentReadings", "Room", "TorchBytes"]

_MOST_TIES = 100


@dataclass(frozen=True, slots=True)
class Room:
    """What the driver says of the whole device in bytes: used and free and its own, of a total.

    ``driver`` is ``None`` where the driver counts its own memory as used.
    """

    total: float
    used: float
    free: float
    driver: float | None


@dataclass(frozen=True, slots=True)
class TorchBytes:
    """What torch's allocator held; ``split`` is ``None`` where it does not tell."""

    allocated: float
    reserved: float
    split: float | None = None


class MomentReadings:
    """The readings of one GPU around a closed span.

    ``moments`` maps "before", "highest" and "after" to the time of the reading of the driver's
    memory info that stands for it, or to ``None``. A reading stands for a time within two and
    a half periods of its source, and the slow ones within one and a half.
    """

    def __init__(self, recording: Recording, span: Span, device: Device) -> None:
        assert span.end is not None
        self.device = device
        self._span, self._end = span, span.end
        self._recording = recording
        self._series: dict[str, Series] = {}
        periods = recording.periods
        self.torch_period_s = periods.get("allocator", 0.1)
        self.slow_s = max(1.5 * periods.get("nvml_slow", 1.0), 1.5)
        self._quick_s = max(REACH_PERIODS * periods.get("nvml", 0.1), 0.5)
        self._torch_s = max(REACH_PERIODS * self.torch_period_s, 0.5)
        self.moments: Mapping[str, float | None] = self._find_moments()

    def _find_moments(self) -> dict[str, float | None]:
        start, end = self._span.start, self._end
        used = self._all("gpu_memory_used_bytes")
        before = [t for t in used.times if start - self._quick_s <= t <= start][-1:]
        after = [t for t in used.times if end <= t <= end + self._quick_s][:1]
        low, high = (before or [start])[0], (after or [end])[0]
        inside = [(t, value) for t, value in used if low <= t <= high]
        highest = None
        if inside:
            most = max(value for _, value in inside)
            ties = [t for t, value in inside if value == most]
            # Device use stands still while tensors come and go in torch's cache, and torch's
            # reading next to the first of them can still be of the time before.
            ties = ties[:: 1 + len(ties) // _MOST_TIES]
            highest = max(ties, key=lambda t: (*self._held(t), -t))
        return {
            "before": before[0] if before else None,
            "highest": highest,
            "after": after[0] if after else None,
        }

    def _held(self, time: float) -> tuple[float, float]:
        """Return torch's reserved and allocated bytes near a time, 0 where they are not known."""
        torch = self.torch(time)
        return (torch.reserved, torch.allocated) if torch is not None else (0.0, 0.0)

    def _all(self, metric: str) -> Series:
        """Return a metric's readings from somewhat before the span to somewhat after it.

        Of merged ones that is the highest: what is asked for is where memory went at its peak.
        """
        if metric not in self._series:
            margin = max(self._quick_s, self._torch_s, self.slow_s)
            found = self._recording.series(
                metric, self.device.id, self._span.start - margin, self._end + margin
            )
            self._series[metric] = replace(found, values=found.highs)
        return self._series[metric]

    def around(self, metric: str, time: float, reach: float) -> list[tuple[float, float]]:
        """Return the last reading up to a time and the first one after it, within a reach.

        A reading of that very moment stands alone.
        """
        series = self._all(metric)
        index = bisect_right(series.times, time)
        found = [
            (series.times[i], series.values[i])
            for i in (index - 1, index)
            if 0 <= i < len(series) and abs(series.times[i] - time) <= reach
        ]
        return found[:1] if found and found[0][0] == time else found

    def near(self, metric: str, time: float, reach: float) -> tuple[float, float] | None:
        """Return the reading nearest to a time, within a reach."""
        found = self.around(metric, time, reach)
        return min(found, key=lambda point: abs(point[0] - time), default=None)

    def room(self, time: float, total: float | None) -> Room | None:
        """Return the driver's figures of a moment, or ``None`` where they do not suffice."""
        used = self.near("gpu_memory_used_bytes", time, 0.0)
        free = self.near("gpu_memory_free_bytes", time, self._quick_s)
        driver = self.near("gpu_memory_reserved_bytes", time, self._quick_s)
        assert used is not None
        own = driver[1] if driver is not None else 0.0
        if total is None:
            if free is None:
                return None
            total = used[1] + free[1] + own
        taken = min(used[1], total)
        own = min(own, total - taken)
        rest = total - taken - own
        left = rest if free is None else min(free[1], rest)
        return Room(total, taken, left, None if driver is None else own)

    @property
    def has_torch(self) -> bool:
        """Whether torch's allocator was read at all."""
        return len(self._all("torch_reserved_bytes")) > 0

    def torch(self, time: float) -> TorchBytes | None:
        """Return what torch held near a time, ``None`` where it was not read.

        Before its first reading torch has not initialised CUDA and holds nothing.
        """
        first = next(iter(self._all("torch_reserved_bytes").times), None)
        if first is None or first > max(time, self._span.start):
            return TorchBytes(0.0, 0.0)
        reserved = self.near("torch_reserved_bytes", time, self._torch_s)
        if reserved is None:
            return None
        allocated = self.near("torch_allocated_bytes", reserved[0], 0.0)
        split = self.near("torch_inactive_split_bytes", reserved[0], 0.0)
        if allocated is None:
            return None
        return TorchBytes(
            min(allocated[1], reserved[1]), reserved[1], None if split is None else split[1]
        )

    def context(self, time: float) -> float:
        """Return the most that this process held outside torch next to a time."""
        found = [0.0]
        for at, value in self.around("gpu_process_memory_bytes", time, self.slow_s):
            torch = self.torch(at)
            if torch is not None:
                found.append(value - torch.reserved)
        return max(found)

    def gap_reasons(self) -> list[str]:
        """List why the driver gave nothing for this GPU in the span."""
        return [
            gap.reason for gap in self._recording.gaps(self._span.start, self._end)
            if gap.source == "nvml" and gap.device in (self.device.id, None)
        ]
