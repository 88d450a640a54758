"""Rules about a GPU that waits for data: three causes, by who loads it and how busy they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..units import duration, part_of
from .case import Case, Value, at_least, at_most, mean_of
from .finding import Finding
from .signals import (
    CPU,
    SM,
    UTIL,
    cores_gone,
    cores_idle,
    idle_seconds,
    main_thread,
    part_of_stretch,
    percent,
)

__all__ = ["input_bound_no_workers", "input_bound_storage", "input_bound_workers"]

_COUNT = "workers_count"
_WORKERS = "workers_cpu_ratio"
_WITH_WORKERS, _ALONE = 1, 2
"""The places, of CELL_PLACES, in which a cell waits for workers, and loads by itself."""

_SPARE = 1.5
_MOST_WORKERS = 16
_MOST_WAITING_WORKERS = 64
_RESTARTS = 0.3
_PRESSURE = 0.1


def _waiting(case: Case, place: int) -> list[int]:
    """List the slots in which the cell was in a loader while the GPU had time to spare."""
    limits = case.thresholds
    util, loader = case.over_time(UTIL), case.places(place)
    return case.where(
        lambda i: at_least(loader[i], limits.loader_ratio)
        and at_most(util[i], limits.idle_util_ratio)
    )


def _contrast(case: Case, slots: Sequence[int]) -> str:
    """Say how busy the GPU was in some slots and, if that differs, in the others."""
    metric, name = (SM, "SM active") if case.mean(SM) is not None else (UTIL, "GPU-Util")
    here = case.mean_in(metric, slots)
    if here is None:
        return ""
    text = f"{name} was {percent(here)} there"
    others = [i for i in range(len(case.slots)) if i not in set(slots)]
    if case.seconds(others) >= max(1.0, 0.1 * case.wall_s):
        outside = case.mean_in(metric, others)
        if outside is not None and outside > 1.3 * here + 0.05:
            text += f" and {percent(outside)} in the rest"
    return text


def _found(
    case: Case, rule: str, slots: Sequence[int], cause: str, advice: str, tip: str,
    **figures: Value,
) -> Finding:
    waited = idle_seconds(case, slots)
    contrast = _contrast(case, slots)
    known = {
        "waited_s": waited, UTIL: case.mean_in(UTIL, slots), SM: case.mean_in(SM, slots),
        **figures,
    }
    return Finding(
        rule, "waste",
        f"{case.subject} waited for data for {part_of(waited, case.wall_s)}.",
        f"{contrast}; {cause}." if contrast else f"{cause[0].upper()}{cause[1:]}.",
        advice,
        f"waited for data {duration(waited)}: {tip}",
        case.device, f"waits for data, {part_of_stretch(case, waited, slots)}",
        case.stretches(slots),
        (UTIL, SM, _WORKERS), {name: v for name, v in known.items() if v is not None},
    )


# -- workers --------------------------------------------------------------------------------


def _per_worker(case: Case, slots: Sequence[int]) -> tuple[int, Value]:
    """Return how many DataLoader workers there were, and how full each was on average.

    Of the slots in which there were any: a loader can start its workers anew for each epoch.
    """
    counts, busy = case.near(_COUNT), case.over_time(_WORKERS)
    alive = [i for i in slots if counts[i]]
    if not alive:
        return round(case.mean_in(_COUNT, slots) or 0), None
    most = max(counts[i] or 0.0 for i in alive)
    each = mean_of(
        None if busy[i] is None else (busy[i] or 0.0) / (counts[i] or 1.0) for i in alive
    )
    whole = case.mean(_WORKERS)
    if each is None and whole is not None:
        each = whole / most
    return round(most), each


def _loads_itself(case: Case, slots: Sequence[int]) -> bool:
    """Tell whether the main thread works while it is in the loader: it unpacks what comes."""
    busy = case.mean_in("main_thread_cpu_ratio", slots)
    loader = mean_of(case.places(_WITH_WORKERS)[i] for i in slots)
    return busy is not None and loader is not None and busy - (1 - loader) > 0.5 * loader


def _more_workers(case: Case, count: int, waited: float) -> int | None:
    """Return the workers that would keep the GPU fed, as far as there are cores."""
    wanted = math.ceil(count / max(0.05, 1 - waited))
    most = int(case.cores) if case.cores is not None else wanted
    more = min(wanted, most, max(_MOST_WORKERS, 2 * count))
    return more if more > count else None


def _restarts(case: Case, slots: Sequence[int]) -> bool:
    """Tell whether there were no workers for a good part of the waiting."""
    counts = case.near(_COUNT)
    known = [count for i in slots if (count := counts[i]) is not None]
    none = sum(1 for count in known if count < 1)
    return 0 < none < len(known) and none >= _RESTARTS * len(known)


def input_bound_workers(case: Case) -> Finding | None:
    """The cell waits for the workers of a DataLoader, and they are at work."""
    slots = _waiting(case, _WITH_WORKERS)
    if not case.enough(slots) or _loads_itself(case, slots):
        return None
    count, each = _per_worker(case, slots)
    gone = cores_gone(case, slots)
    counted = case.figure(_COUNT).measured
    if counted and each is None:
        return None  # workers that come and go, or a cell too short to tell
    if at_most(each, case.thresholds.idle_worker_ratio) and not gone:
        return None
    waited = mean_of(case.places(_WITH_WORKERS)[i] for i in slots) or 0.0
    cause = _at_work(case, count, each) + cores_idle(case, slots)
    more = None if gone or not count else _more_workers(case, count, waited)
    if not counted:
        advice, tip = "Try more workers (`num_workers`), or cheaper transforms.", "more workers"
    elif more is None:
        advice = (
            "Make the transforms cheaper, do them once and keep the result, or do them on the GPU."
        )
        tip = "cheaper transforms"
    else:
        advice, tip = f"Try `DataLoader(..., num_workers={more})`", f"try `num_workers={more}`"
        if more < count / max(0.05, 1 - waited):
            advice += " and cheaper transforms"
        advice += "."
    if _restarts(case, slots):
        advice += " `persistent_workers=True` keeps them from one epoch to the next."
    return _found(
        case, "input-bound-workers", slots, cause, advice, tip,
        workers=float(count), worker_cpu_ratio=each, waiting_ratio=waited,
    )


def _at_work(case: Case, count: int, each: Value) -> str:
    if not count:
        return "the cell was waiting for the workers of its DataLoader"
    one = count == 1
    subject = "the one worker" if one else f"the {count} workers"
    assert each is not None
    if each < case.thresholds.full_worker_ratio:
        were = "was" if one else "were"
        return f"{subject} of the DataLoader {were} at work {percent(each)} of the time"
    own = f"its core ({each:.2f})" if one else f"their cores ({each:.2f} each)"
    return f"{subject} of the DataLoader filled {own}"


# -- storage --------------------------------------------------------------------------------


def input_bound_storage(case: Case) -> Finding | None:
    """The cell waits for data, and whoever loads it is idle: storage or network is slow."""
    idle = case.thresholds.idle_worker_ratio
    slots = _waiting(case, _WITH_WORKERS)
    if case.enough(slots):
        count, each = _per_worker(case, slots)
        if not count or each is None or each > idle:
            return None
        if cores_gone(case, slots) or _loads_itself(case, slots):
            return None
        workers = "the one worker" if count == 1 else f"the {count} workers"
        cause = f"{workers} waited too ({each:.2f} of a core each): for storage or the network"
        more = min(_MOST_WAITING_WORKERS, 4 * count)
        advice, tip = "Keep the data on a local disk or in memory.", "its workers wait for storage"
        if more > count:
            advice = (
                f"More can be under way at once: try `DataLoader(..., num_workers={more},"
                " prefetch_factor=4)`; or keep the data on a local disk or in memory."
            )
    else:
        slots = _waiting(case, _ALONE)
        each, count = main_thread(case, slots), 0
        if not case.enough(slots) or each is None or each > idle:
            return None
        cause = (
            f"this process loads its data itself and waited too ({each:.2f} of a core): for"
            " storage or the network"
        )
        advice = (
            "Try `DataLoader(..., num_workers=8)`, so that much is read at once; or keep the data"
            " on a local disk or in memory."
        )
        tip = "try `num_workers=8`"
    pressure = case.grown("io_pressure_seconds")
    if pressure is not None and pressure >= _PRESSURE * case.wall_s:
        cause += f" (tasks waited for storage in {part_of(pressure, case.wall_s)})"
    return _found(
        case, "input-bound-storage", slots, cause, advice, tip,
        workers=float(count), worker_cpu_ratio=each, io_pressure_seconds=pressure,
    )


# -- without workers ------------------------------------------------------------------------


def input_bound_no_workers(case: Case) -> Finding | None:
    """A DataLoader without workers loads in this process, and the GPU waits meanwhile."""
    slots = _waiting(case, _ALONE)
    busy = main_thread(case, slots)
    if not case.enough(slots) or at_most(busy, case.thresholds.idle_worker_ratio):
        return None
    cause = "this process loaded its data itself, without workers"
    if busy is not None:
        cause += f", on one core ({min(busy, 1.0):.2f})"
    cause += cores_idle(case, slots)
    share = mean_of(case.places(_ALONE)[i] for i in slots) or 0.0
    most = min(_MOST_WORKERS, max(1, int(case.cores or _MOST_WORKERS) - 1))
    workers = min(most, max(2, math.ceil(_SPARE * share / max(0.02, 1 - share))))
    if case.cores is not None and case.cores < 2:
        advice = "Make the data once and keep it, or make it on the GPU: there is one core."
        tip = "make the data once, or on the GPU"
    else:
        advice = (
            f"Try `DataLoader(..., num_workers={workers})`, or make the data on the GPU; what"
            " lies there already needs no loader."
        )
        tip = f"try `num_workers={workers}`"
    return _found(
        case, "input-bound-no-workers", slots, cause, advice, tip,
        process_cpu_ratio=case.mean_in(CPU, slots), main_thread_cpu_ratio=busy,
        loading_ratio=share,
    )
