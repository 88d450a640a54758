"""Alerts about heat and clocks that are held back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..coverage import length, merge
from ..metrics import THROTTLE_REASONS
from ..sample import Device
from ..throttling import held_back
from ..units import quantity
from .alert import Alert
from .look import Look
from .words import elapsed

__all__ = ["BITS", "CLOCK", "TEMPERATURE", "hot", "power_cap", "throttled"]

TEMPERATURE = "gpu_temperature_celsius"
CLOCK = "gpu_sm_clock_hertz"
BITS = "gpu_clock_event_reasons_state"
_UTIL = "gpu_utilization_ratio"

_POWER_CAP = 0x004
_GRAVE_BITS = sum(THROTTLE_REASONS - {_POWER_CAP})
"""The reasons that are never normal: heat, brake, sync boost and the hardware's slowdown."""

_SPAN_S = 30.0
_LATELY_S = 2.0
_LATELY_ON_S = 8.0
_MARGIN_ON_CELSIUS = 1.0
_BACK_S = 600.0
_LONGER = "longer_than_since_state"
_BUSY = 0.1
_CAPPED = 0.8
_CAPPED_UTIL = 0.5
_MARGIN_ON = 0.05

_HOLDS = {
    "hardware slowdown": "A hardware slowdown has held {} back",
    "sync boost": "Sync boost has held {} to the clock of a slower GPU",
    "thermal (software)": "Heat has held {} back",
    "thermal (hardware)": "Heat has held {} back",
    "power brake": "The machine's power brake has held {} back",
}
_SEE_TO = {
    "thermal (software)": "see to its cooling",
    "thermal (hardware)": "see to its cooling",
    "power brake": "see to its power supply",
}


def hot(look: Look) -> Iterator[Alert]:
    """A GPU is within 2 degrees of the temperature at which it slows down, for 5 s."""
    for device in look.gpus:
        limit = device.constants.get("gpu_temperature_slowdown_celsius")
        present = look.present(TEMPERATURE, device)
        if limit is None or present is None:
            continue
        least = limit - look.limits.hot_margin_celsius
        if look.on("hot", device):
            least -= _MARGIN_ON_CELSIUS
        if present < least:
            continue
        window = look.window(TEMPERATURE, device, look.limits.hot_s)
        known = look.active.get(("hot", device.id))
        lowest = present if window is None else min(window.values)
        evidence = {TEMPERATURE: present, "slowdown_celsius": limit}
        # A hole in the readings begins no alert, and ends none.
        if known is None:
            if window is None or lowest < least:
                continue
            since, longer = look.held_from(TEMPERATURE, device, least, _BACK_S)
        else:
            since, longer = known.since, _LONGER in known.evidence
        if longer:
            evidence[_LONGER] = 1.0
        where = "at" if lowest >= limit else "near"
        over = "over " if longer else ""
        yield Alert(
            "hot", device.id,
            f"{device.label} has been {where} the {quantity(limit, 'celsius')} at which it slows"
            f" down for {over}{elapsed(look.now - since)} ({quantity(present, 'celsius')} now):"
            " see to its cooling.",
            "limit", since, ((device.id, "temp"),),
            evidence,
        )


def _idle(look: Look, device: Device, seconds: float) -> bool:
    """Tell whether a GPU is known to do next to nothing: then nothing is held back."""
    util = look.mean(_UTIL, device, seconds)
    return util is not None and util < _BUSY


def throttled(look: Look) -> Iterator[Alert]:
    """Heat, power brake or sync boost held a busy GPU's clocks back for 20 % of the last 30 s.

    The power cap is not among them: an H200 that is used well meets its 700 W nearly all the
    time and works as fast as it was built to. See :func:`power_cap`.
    """
    for device in look.gpus:
        on = look.on("throttled", device)
        lately = look.series(BITS, device, _LATELY_ON_S if on else _LATELY_S).values
        if not _any(lately, _GRAVE_BITS) or look.present(BITS, device) is None:
            continue
        found = held_back(look.recording, device.id, look.now - _SPAN_S, look.now)
        found.pop("power cap", None)
        lengths = {name: length(stretches) for name, stretches in found.items()}
        together = merge([s for stretches in found.values() for s in stretches])
        share = length(together) / _SPAN_S
        if share < look.limits.throttled_ratio * (0.5 if on else 1.0):
            continue
        if not on and _idle(look, device, _LATELY_S):
            continue
        reason = max(lengths, key=lambda name: lengths[name])
        evidence = {"throttled_ratio": share}
        text = _HOLDS[reason].format(device.label)
        text += f" for {length(together):.0f} of the last {_SPAN_S:.0f} s"
        clock, most = look.mean(CLOCK, device, _SPAN_S), _highest(device)
        if clock is not None and most is not None and clock < most:
            evidence[CLOCK] = clock
            text += f" (SM clock {quantity(1 - clock / most, 'ratio')} below its highest)"
        text += f": {_SEE_TO[reason]}." if reason in _SEE_TO else "."
        strips = ((device.id, "temp" if "thermal" in reason else "sm-clock"),)
        yield Alert(
            "throttled", device.id, text, "limit",
            look.since("throttled", device, together[0][0]), strips, evidence,
        )


def power_cap(look: Look) -> Iterator[Alert]:
    """The power cap holds a busy GPU below half of its highest SM clock, for 30 s.

    The cap alone is no alert: in measurements, an H200 busy with matrix products was at its cap
    all the time, at 66 to 80 % of its highest clock. Below half, the cap has been set low, or
    the GPU draws more than it should.
    """
    for device in look.gpus:
        on = look.on("power-cap", device)
        share = look.limits.capped_clock_ratio + (_MARGIN_ON if on else 0.0)
        clock, most = look.present(CLOCK, device), _highest(device)
        # The clock swings by some percent from reading to reading; the mean decides.
        if clock is None or most is None or clock >= (share + 0.1) * most:
            continue
        bits, clocks = look.window(BITS, device, _SPAN_S), look.window(CLOCK, device, _SPAN_S)
        if bits is None or clocks is None:
            continue
        means = [sum(part) / len(part) for part in look.parts(clocks, _SPAN_S, 2) if part]
        if len(means) < 2 or max(means) >= share * most:
            continue
        mean, util = means[-1], look.mean(_UTIL, device, _SPAN_S)
        capped = sum(1 for v in bits.values if int(v) & _POWER_CAP) / len(bits)
        if capped < _CAPPED or (util is not None and util < _CAPPED_UTIL):
            continue
        cap = device.constants.get("gpu_power_limit_watts")
        its = f"of {quantity(cap, 'watts')} " if cap is not None else ""
        yield Alert(
            "power-cap", device.id,
            f"The power cap {its}holds {device.label} at {quantity(mean / most, 'ratio')} of its"
            f" highest SM clock ({quantity(mean, 'hertz')}).",
            "limit", look.since("power-cap", device, bits.times[0]),
            ((device.id, "power"), (device.id, "sm-clock")),
            {CLOCK: mean, "sm_clock_max_hertz": most, "capped_ratio": capped},
        )


def _highest(device: Device) -> float | None:
    return device.constants.get("gpu_sm_clock_max_hertz") or None


def _any(values: Sequence[float], mask: int) -> bool:
    return any(int(value) & mask for value in set(values))
