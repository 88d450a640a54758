"""The rule about memory that climbs step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median

from ..units import MIB, bytes_text, duration
from .case import Case, at_least, at_most
from .finding import Finding
from .memory import free_bytes

__all__ = ["staircase"]

_ALLOCATED = "torch_allocated_bytes"
_SMALLEST_CLIMB = 256 * MIB
_FLOOR_READINGS = (10, 20, 40)
_READINGS_PER_FLOOR = 4
_FEWEST_READINGS = 30
_WARM_UP = 0.25
_LARGEST_JUMP = 0.4
_WORKING_SM, _WORKING_UTIL = 0.1, 0.5
_FALLS = 0.1
_FEWEST_JUMPS = 5


@dataclass(frozen=True, slots=True)
class _Climb:
    start: float
    end: float
    gained: float
    changes: tuple[float, ...]


def _floor(values: Sequence[float], count: int) -> list[float]:
    """Return the least of each reading and those after it: what stays allocated."""
    return [min(values[i : i + count]) for i in range(len(values) - count + 1)]


def _climb(case: Case) -> _Climb | None:
    """Find memory that climbs step by step to the end of the cell, after the warm-up."""
    total = case.total_bytes
    points = case.readings(_ALLOCATED)
    if total is None or case.wall_s < case.thresholds.growth_shortest_s:
        return None
    points = [p for p in points if p[0] >= case.span.start + _WARM_UP * case.wall_s]
    if len(points) < _FEWEST_READINGS:
        return None
    least = max(_SMALLEST_CLIMB, case.thresholds.growth_ratio * total)
    # A step, whose activations come and go, can be shorter or longer than a second.
    for count in _FLOOR_READINGS:
        if count == _FLOOR_READINGS[0] or len(points) >= _READINGS_PER_FLOOR * count:
            climb = _climb_of(points, count, least)
            if climb is not None:
                return climb
    return None


def _climb_of(
    points: Sequence[tuple[float, float]], count: int, least: float
) -> _Climb | None:
    """Find a climb of at least so many bytes in the floor over ``count`` readings."""
    floor = _floor([value for _, value in points], count)
    gained = floor[-1] - floor[0]
    if gained < least:
        return None
    changes = [after - before for before, after in pairwise(floor)]
    if min(changes) < -0.02 * gained:
        return None  # it comes down again
    third = len(floor) // 3
    levels = (floor[0], floor[third], floor[-1 - third], floor[-1])
    if min(after - before for before, after in pairwise(levels)) < 0.15 * gained:
        return None  # warm-up, or one large allocation
    if max(changes) > _LARGEST_JUMP * gained:
        return None
    return _Climb(points[0][0], points[len(floor) - 1][0], gained, tuple(changes))


def _step_of(climb: _Climb) -> float | None:
    """Return the bytes of one step where steps can be told apart and are alike."""
    rises = [change > 0.002 * climb.gained for change in climb.changes]
    jumps: list[float] = []
    for rising, run in groupby(zip(rises, climb.changes, strict=True), key=itemgetter(0)):
        if not rising:
            continue
        changes = [change for _, change in run]
        if len(changes) > 2:
            return None  # steps that come as fast as readings
        jumps.append(sum(changes))  # one that falls between two readings is still one
    if len(jumps) < _FEWEST_JUMPS:
        return None
    size = median(jumps)
    alike = [jump for jump in jumps if abs(jump - size) <= 0.25 * size]
    return size if len(alike) >= 0.7 * len(jumps) else None


def _working(case: Case) -> bool:
    """Tell whether the GPU works on what it holds: filling memory without work is loading.

    Steps free activations now and then; loading only takes.
    """
    util, active = case.mean("gpu_utilization_ratio"), case.mean("gpu_sm_active_ratio")
    if at_least(active, _WORKING_SM) or (active is None and at_least(util, _WORKING_UTIL)):
        return True
    values = [value for _, value in case.readings(_ALLOCATED)]
    falls = sum(1 for before, after in pairwise(values) if after < before)
    return falls >= _FALLS * len(values) and not at_most(util, 0.0)


def staircase(case: Case) -> Finding | None:
    """Tensors add up step by step, while the GPU works, until the end of the cell."""
    climb, total = _climb(case), case.total_bytes
    if climb is None or total is None:
        return None
    if not _working(case):
        return None
    rate = climb.gained / (climb.end - climb.start)
    figures = {"gained_bytes": climb.gained, "bytes_per_second": rate}
    step = _step_of(climb)
    each = ""
    if step is not None:
        each = f"{bytes_text(step)} a step, "
        figures["bytes_per_step"] = step
    lead = f"Memory climbs: {each}{bytes_text(rate)} a second."
    free = free_bytes(case)
    evidence, tip = "", ""
    if free is not None:
        seconds = free / rate
        steps = f"{free / step:.0f} more steps" if step is not None else ""
        evidence = f"{bytes_text(free)} are left"
        evidence += f": {steps} ({duration(seconds)})." if steps else f": {duration(seconds)}."
        tip = f", full in {duration(seconds)}"
        figures["seconds_to_full"] = seconds
    return Finding(
        "staircase", "limit", lead, evidence,
        "Something keeps each step's tensors: keep numbers (`loss.item()`) or"
        " `.detach().cpu()`, and clear lists of outputs. In generation it is the KV cache:"
        " `max_new_tokens` bounds it.",
        f"memory climbs{tip}: keep `loss.item()`, not `loss`",
        case.device, "memory climbs", ((climb.start, climb.end),), (_ALLOCATED,), figures,
    )
