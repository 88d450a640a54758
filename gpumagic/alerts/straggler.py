"""The alert about one GPU that differs from the others it works with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from ..sample import Device
from .alert import Alert
from .clocks import BITS, CLOCK, TEMPERATURE
from .look import Look
from .words import count, elapsed

__all__ = ["straggler"]

_KIND = "straggler"
_UTIL = "gpu_utilization_ratio"
_SM = "gpu_sm_active_ratio"
_OWN = "gpu_process_memory_bytes"
_ALLOCATED = "torch_allocated_bytes"

_FEWEST = 3
_BUSY, _WORKING = 0.05, 0.3
_PARTS = 3
_ON = 0.6
_NOT_HOT = 2.0
_SM_SHARE = 0.75
_ALIKE = 0.5
_MOSTLY = 0.8
_BACK_S = 60.0
_FELL = 0.08
_BEFORE = "others_sm_active_before_ratio"

_HELD_BY = (
    (0x020 | 0x040, "heat"), (0x080, "the power brake"), (0x008, "its hardware"),
)
"""The bits of clock event reasons that explain a lower clock than the others have."""

Parts = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Busy:
    """One busy GPU: its means in each part of the window, ``None`` where there is none."""

    device: Device
    util: Parts
    sm: Parts | None
    clock: Parts | None


def _window_s(look: Look) -> float:
    """Return the seconds that are read: one part more, since a GPU can begin to differ in it."""
    return look.limits.straggler_s * (_PARTS + 1) / _PARTS


def _means(look: Look, metric: str, device: Device) -> Parts | None:
    seconds = _window_s(look)
    found = look.window(metric, device, seconds)
    if found is None:
        return None
    parts = look.parts(found, seconds, _PARTS + 1)
    return tuple(sum(p) / len(p) for p in parts) if all(parts) else None


def _runs(look: Look, device: Device) -> bool:
    return any(_lately(look, _UTIL, device))


def _lately(look: Look, metric: str, device: Device) -> Sequence[float]:
    """Return the readings of the last part."""
    return look.series(metric, device, look.limits.straggler_s / _PARTS).values


def _can_differ(look: Look, devices: Sequence[Device]) -> bool:
    """Tell from the last part alone, which is read soon, whether any GPU can differ enough."""
    if any(look.on(_KIND, device) for device in devices):
        return True
    limits = look.limits
    for metric, share in ((_UTIL, 1.0), (_SM, _SM_SHARE)):
        means = [_mean(values) for d in devices if (values := _lately(look, metric, d))]
        if means and max(means) - min(means) >= share * limits.straggler_util_ratio:
            return True
    clocks = [(d, _mean(values)) for d in devices if (values := _lately(look, CLOCK, d))]
    highest = max((clock for _, clock in clocks), default=0.0)
    for device, clock in clocks:
        loss = 1 - clock / highest if highest > 0 else 0.0
        if loss >= limits.straggler_clock_ratio and (
            loss >= _NOT_HOT * limits.straggler_clock_ratio or _cause(look, device)[0]
        ):
            return True
    return False


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _stated(parts: Parts) -> float:
    """Return the mean that is told: in the first part a GPU may not have differed throughout."""
    return _mean(parts[1:])


def _groups(look: Look) -> Iterator[list[_Busy]]:
    """Yield the busy GPUs of one kind that this process works on."""
    kinds: dict[str, list[Device]] = {}
    for device in look.gpus:
        kinds.setdefault(device.name, []).append(device)
    for devices in kinds.values():
        if len(devices) < _FEWEST:
            continue
        own = [
            device for device in devices
            if look.present(_ALLOCATED, device) or look.present(_OWN, device)
        ]
        runs = partial(_runs, look)
        # Most looks end here.
        if sum(map(runs, own)) < _FEWEST or not _can_differ(look, own):
            continue
        busy = [
            _Busy(d, util, _means(look, _SM, d), _means(look, CLOCK, d))
            for d in own
            if (util := _means(look, _UTIL, d)) is not None and _mean(util) >= _BUSY
        ]
        if len(busy) >= _FEWEST:
            yield busy


def straggler(look: Look) -> Iterator[Alert]:
    """Of three or more busy GPUs of a kind in this process, one differs from the others for 15 s.

    It runs hot or held back at a clock 8 % below theirs (16 % if neither), or its GPU-Util is 40
    points away from theirs, or its SM active 30.
    """
    for busy in _groups(look):
        # One that has been told stays the one; then the one that differs most.
        found = [
            (look.on(_KIND, one.device), by, alert)
            for one in busy
            for by, alert in _judge(look, one, [other for other in busy if other is not one])
        ]
        if found:
            yield max(found, key=lambda entry: entry[:2])[2]


def _judge(look: Look, one: _Busy, others: Sequence[_Busy]) -> Iterator[tuple[float, Alert]]:
    """Yield by how much one GPU differs, in units of what is told, and the alert about it."""
    limits = look.limits
    eased = _ON if look.on(_KIND, one.device) else 1.0
    slow = _slow(look, one, others, limits.straggler_clock_ratio * eased)
    if slow is not None:
        yield slow
        return
    least = limits.straggler_util_ratio * eased
    for metric, share in ((_UTIL, 1.0), (_SM, _SM_SHARE)):
        mine, theirs = _of(one, metric), [_of(other, metric) for other in others]
        by = _apart(mine, theirs, least * share)
        if by is not None and mine is not None:
            yield by, _uneven(look, one, metric, mine, [t for t in theirs if t is not None])
            return


def _of(busy: _Busy, metric: str) -> Parts | None:
    return busy.util if metric == _UTIL else busy.sm


def _apart(mine: Parts | None, theirs: Sequence[Parts | None], least: float) -> float | None:
    """Return how far a GPU is from the others in units of ``least``, if in each part far enough.

    The others have to be alike among themselves.
    """
    known = [t for t in theirs if t is not None]
    if mine is None or least <= 0 or len(known) < _FEWEST - 1:
        return None
    means = [_mean(t) for t in known]
    if max(means) - min(means) > _ALIKE * least:
        return None
    apart = [m - median(t[part] for t in known) for part, m in enumerate(mine)]
    if min(apart) >= least or max(apart) <= -least:
        return min(map(abs, apart)) / least
    return None


def _all(number: int) -> str:
    return f"the other {count(number)}"


def _uneven(
    look: Look, one: _Busy, metric: str, mine: Parts, theirs: Sequence[Parts]
) -> Alert:
    device, limits = one.device, look.limits
    here, there = _stated(mine), median(_stated(t) for t in theirs)
    since = look.since(_KIND, device, look.now - limits.straggler_s)
    what = "GPU-Util" if metric == _UTIL else "SM active"
    text = (
        f"{device.label} differs from {_all(len(theirs))}: {what} {here * 100:.0f} %, theirs"
        f" {there * 100:.0f} %, for {elapsed(look.now - since)}."
    )
    return Alert(
        _KIND, device.id, text, "limit", since, ((device.id, "util"),),
        {metric: here, f"others_{metric.removeprefix('gpu_')}": there},
    )


# -- slower than the others -------------------------------------------------------------------


def _slow(
    look: Look, one: _Busy, others: Sequence[_Busy], least: float
) -> tuple[float, Alert] | None:
    """Tell whether a GPU runs at a lower clock than the others, with what explains it."""
    clocks = [other.clock for other in others if other.clock is not None]
    if one.clock is None or least <= 0 or len(clocks) < _FEWEST - 1:
        return None
    if min(map(_mean, [one.util, *(other.util for other in others)])) < _WORKING:
        return None
    loss = [
        1 - mine / typical if (typical := median(c[part] for c in clocks)) > 0 else 0.0
        for part, mine in enumerate(one.clock)
    ]
    if min(loss) < least:
        return None
    cause, since = _cause(look, one.device)
    if not cause and min(loss) < _NOT_HOT * least:
        return None
    by = min(loss) / (least if cause else _NOT_HOT * least)
    return by, _slower(look, one, others, cause, since, _mean(loss[1:]))


def _cause(look: Look, device: Device) -> tuple[str, float]:
    """Say what holds a GPU's clock back, and since when; nothing where readings show nothing."""
    seconds = look.limits.straggler_s
    limit = device.constants.get("gpu_temperature_slowdown_celsius")
    degrees = look.window(TEMPERATURE, device, seconds)
    if limit is not None and degrees is not None:
        least = limit - look.limits.hot_margin_celsius
        if min(degrees.values) >= least:
            since = look.held_since(TEMPERATURE, device, least, _BACK_S)
            near = min(degrees.values) < limit - 1.0
            return ("near its slowdown temperature" if near else "at its slowdown temperature",
                    since)
    bits = look.window(BITS, device, seconds)
    if bits is not None:
        for mask, by in _HELD_BY:
            held = sum(1 for value in bits.values if int(value) & mask)
            if held >= _MOSTLY * len(bits):
                return f"held back by {by}", look.now - seconds
    return "", look.now - seconds


def _slower(
    look: Look, one: _Busy, others: Sequence[_Busy], cause: str, since: float, loss: float
) -> Alert:
    device, rest = one.device, _all(len(others))
    since = look.since(_KIND, device, since)
    long, clock = elapsed(look.now - since), f"{loss * 100:.0f} %"
    evidence = {"clock_loss_ratio": loss}
    if cause:
        text = f"{device.label} has been {cause} for {long} (clock −{clock})"
    else:
        text = f"{device.label} has run at a clock {clock} below {rest} for {long}"
    present = look.present(TEMPERATURE, device)
    if present is not None:
        evidence[TEMPERATURE] = present
    strips = [(device.id, "temp" if "temperature" in cause else "sm-clock")]
    fell = _fell(look, one, others, since)
    if fell is not None:
        before, now = fell
        evidence |= {_BEFORE: before, "others_sm_active_ratio": now}
        text += (
            f", and {rest} wait for it: SM active fell from {before * 100:.0f}"
            f" to {now * 100:.0f} %"
        )
        strips += [(other.device.id, "util") for other in others]
    return Alert(_KIND, device.id, f"{text}.", "limit", since, tuple(strips), evidence)


def _fell(
    look: Look, one: _Busy, others: Sequence[_Busy], since: float
) -> tuple[float, float] | None:
    """Return the others' SM active before a GPU became slow and now, if it fell.

    They wait for it only if it does no less than they do.
    """
    theirs = [_stated(other.sm) for other in others if other.sm is not None]
    if one.sm is None or len(theirs) < len(others) or _stated(one.sm) < median(theirs):
        return None
    active = look.active.get((_KIND, one.device.id))
    before = active.evidence.get(_BEFORE) if active is not None else None
    if active is None:
        before = _before(look, others, since)
    if before is None or before - median(theirs) < _FELL:
        return None
    return before, median(theirs)


def _before(look: Look, others: Sequence[_Busy], since: float) -> float | None:
    """Return the median of the others' mean SM active in the window before a time."""
    found = []
    for other in others:
        series = look.recording.series(
            _SM, other.device.id, since - look.limits.straggler_s, since
        )
        if len(series) < _PARTS:
            return None
        found.append(_mean(series.values))
    return median(found)
