"""When clocks were held back, and by what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import sub

from ..coverage import length, merge, reach_of
from ..metrics import CLOCK_EVENT_REASONS, METRICS
from ..recording import Recording
from .bits import BITS_OF, DEAD_SHARE, TOO_MUCH, holding
from .runs import Run, Runs

__all__ = ["held_back"]

Stretch = tuple[float, float]


def held_back(
    recording: Recording, device: str, start: float, end: float, runs: Runs | None = None
) -> dict[str, tuple[Stretch, ...]]:
    """Return when clocks were held back between two times, by the reasons of CLOCK_EVENT_REASONS.

    A stretch is where the readings show a reason; where the reason has a counter that is
    believed, only between such readings of it between which it grew. Before its first and after
    its newest reading the interval next to it decides. Of a merged row, the stretches have the
    right length, wherever in its time they were. Reasons that did not hold are absent.

    ``runs`` is what the last look at this device has found, for one that looks again and again.
    """
    seen = [
        (run, (max(run.start, start), min(run.until, end)))
        for run in (runs or Runs()).look(recording, device, start, end)
        if run.start < end and run.until > start
    ]
    found: dict[str, tuple[Stretch, ...]] = {}
    for bit in sorted({bit for run, _ in seen for bit in holding(run.bits)}):
        shown = [(run, stretch) for run, stretch in seen if bit in holding(run.bits)]
        grown = _grown(recording, device, bit, seen, start, end)
        held = merge(
            stretch for _, stretch in shown
        ) if grown is None else _where_grown(shown, grown)
        if held:
            found[CLOCK_EVENT_REASONS[bit]] = held
    return found


def _where_grown(
    shown: Sequence[tuple[Run, Stretch]], grown: Sequence[Stretch]
) -> tuple[Stretch, ...]:
    """Return the stretches in which a counter grew, those of a merged row as a whole."""
    exact = merge(stretch for run, stretch in shown if run.row is None)
    rows = [(run.row, stretch) for run, stretch in shown if run.row is not None]
    return merge([
        *_both(exact, grown),
        *(stretch for row, stretch in rows if any(_both([row], grown))),
    ])


def _grown(
    recording: Recording, device: str, bit: int, seen: Sequence[tuple[Run, Stretch]],
    start: float, end: float,
) -> list[Stretch] | None:
    """List where the counter of a reason grew; ``None`` without one that is believed."""
    name = next((n for n, mask in BITS_OF.items() if mask & bit), None)
    if name is None:
        return None
    metric = METRICS[name]
    margin = reach_of(recording, metric.source)
    series = recording.series(name, device, start - margin, end + margin)
    times, seconds = series.times, series.values
    if len(series) < 2:
        return None
    steps, waits = list(map(sub, seconds[1:], seconds)), list(map(sub, times[1:], times))
    if min(steps) < 0:
        return None
    # Most often none grew by more than the time that passed, which is seen faster.
    if max(map(sub, steps, waits)) > metric.refresh_s and any(
        step > TOO_MUCH * wait + metric.refresh_s
        for step, wait in zip(steps, waits, strict=True)
    ):
        return None
    if seconds[-1] == 0 and _share(seen, BITS_OF[name]) >= DEAD_SHARE:
        return None
    grown: list[Stretch] = []
    if steps[0] > 0:
        grown.append((min(start, times[0]), times[0]))
    for before, after, step in zip(times, times[1:], steps, strict=False):
        if step > 0:
            # The counter lags: what it shows in one interval can be of the one before.
            begin = before - metric.refresh_s
            if grown and begin <= grown[-1][1]:
                grown[-1] = grown[-1][0], after
            else:
                grown.append((begin, after))
    if steps[-1] > 0:
        grown[-1] = grown[-1][0], max(end, times[-1])
    return grown


def _share(seen: Sequence[tuple[Run, Stretch]], mask: int) -> float:
    """Return for what share of what was seen any of some bits was shown."""
    return length(s for run, s in seen if run.bits & mask) / length(s for _, s in seen)


def _both(ones: Sequence[Stretch], others: Sequence[Stretch]) -> Iterator[Stretch]:
    """Yield what two lists of stretches, oldest first, have in common."""
    index = 0
    for start, end in ones:
        while index < len(others) and others[index][1] <= start:
            index += 1
        for other in others[index:]:
            if other[0] >= end:
                break
            yield max(start, other[0]), min(end, other[1])
