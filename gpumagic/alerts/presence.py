"""Alerts about GPUs that are gone, or held and not used."""

from __future__ import annotations

from collections.abc import Iterator

from ..sample import Device
from ..sources.nvml_library import reason_of
from ..units import bytes_text
from .alert import Alert
from .look import Look
from .words import elapsed

__all__ = ["idle_held", "lost"]

_TEMPERATURE = "gpu_temperature_celsius"
_UTIL = "gpu_utilization_ratio"
_OWN = "gpu_process_memory_bytes"
_RESERVED = "torch_reserved_bytes"
_LOST = frozenset({reason_of(15), reason_of(16)})
"""NVML's words for a GPU that is gone (GPU_IS_LOST) or has to be reset (RESET_REQUIRED)."""

_MORE_S = 5.0


def lost(look: Look) -> Iterator[Alert]:
    """The driver says that a GPU is lost, or needs a reset."""
    for device in look.gpus:
        # A GPU that answers is not lost; most looks end here.
        if look.present(_TEMPERATURE, device) is not None:
            continue
        for gap in look.recording.gaps(look.now, look.now):
            over = gap.end is not None and gap.end <= look.now
            if over or gap.source != "nvml" or gap.device != device.id or gap.reason not in _LOST:
                continue
            told = gap.reason.replace("the GPU", device.label, 1)
            yield Alert(
                "lost", device.id,
                f"{told[:1].upper()}{told[1:]}: it has given no reading for"
                f" {elapsed(look.now - gap.start)}. `nvidia-smi` shows whether it comes back.",
                "failed", gap.start,
                tuple((device.id, strip) for strip in ("util", "mem", "power", "temp")),
                {"lost_seconds": look.now - gap.start},
            )
            break


def _idle_since(look: Look, device: Device, wait: float) -> float | None:
    """Return since when nothing has run on a GPU, as far as readings show without a hole.

    The first look reads as far back as it has to, each later one what is new.
    """
    key = ("idle", device.id)
    known = key in look.notes
    seen, idle = look.notes.get(key, (look.now - wait - _MORE_S, 0.0))
    found = look.recording.series(_UTIL, device.id, seen, look.now)
    if not found.times:
        return None
    hole = max(3.0 * look.period(_UTIL), 2.0)
    if not known:
        idle = found.times[0]
    before = found.times[0] if not known else seen
    for time, value in found:
        if value > 0 or time - before > hole:
            idle = time
        before = time
    look.notes[key] = (before, idle)
    return idle


def idle_held(look: Look) -> Iterator[Alert]:
    """Nothing ran for `idle_minutes` on a GPU that this process holds memory of; off by default."""
    wait = 60.0 * look.limits.idle_minutes
    if wait <= 0:
        return
    for device in look.gpus:
        idle = _idle_since(look, device, wait)
        if idle is None or look.now - idle < wait or look.present(_UTIL, device) is None:
            continue
        held = look.present(_OWN, device)
        if held is None:
            held = look.present(_RESERVED, device)
        if held is None or held < look.limits.idle_bytes:
            continue
        yield Alert(
            "idle-held", device.id,
            f"{device.label} holds {bytes_text(held)} of this process, and nothing has run on it"
            f" for {elapsed(look.now - idle)}: `%gpufree` gives back what is not in use.",
            "hint", idle, ((device.id, "util"), (device.id, "mem")),
            {"held_bytes": held, "idle_seconds": look.now - idle},
        )
