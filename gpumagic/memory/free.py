"""Give device memory back, and say what came back and what stays.

Only garbage and torch's cached blocks can go: a tensor that a name or another object holds is
the user's, and the CUDA context lives as long as the process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..devices import cuda_module
from ..units import bytes_text, quantity
from .stats import AllocatorReport, AllocatorStats, allocator_stats

__all__ = ["FreeReport", "FreedDevice", "free_memory"]


@dataclass(frozen=True, slots=True)
class FreedDevice:
    """One GPU before and after; all properties are bytes, ``None`` where not told."""

    before: AllocatorStats
    after: AllocatorStats

    @property
    def collected_bytes(self) -> int | None:
        """Bytes of tensors that were garbage: allocated before - after."""
        return _less(self.before.torch_allocated_bytes, self.after.torch_allocated_bytes)

    @property
    def returned_bytes(self) -> int | None:
        """Bytes that torch gave back to the device: reserved before - after."""
        return _less(self.before.torch_reserved_bytes, self.after.torch_reserved_bytes)

    def sentences(self) -> Iterator[str]:
        """Say what came back and what stays."""
        collected, returned = self.collected_bytes, self.returned_bytes
        if returned is None:
            yield "torch does not tell what it holds here."
        elif returned > 0:
            yield f"{bytes_text(returned)} came back to the device."
        else:
            yield "Nothing came back to the device."
        if collected is not None and collected > 0:
            yield f"{bytes_text(collected)} of tensors were garbage."
        stays = list(self._stays())
        if stays:
            yield f"What stays: {', '.join(stays)}."
        if self.after.torch_allocated_bytes:
            yield "Live tensors go once nothing holds them: del their names, then free again."

    def _stays(self) -> Iterator[str]:
        after = self.after
        if after.torch_allocated_bytes:
            yield f"{bytes_text(after.torch_allocated_bytes)} in live tensors"
        cached = after.torch_cached_bytes
        if cached and after.torch_allocated_bytes:
            yield f"{bytes_text(cached)} cached in segments that live blocks pin"
        elif cached:
            yield f"{bytes_text(cached)} cached, which torch keeps"
        outside = after.outside_torch_bytes
        if outside is not None:
            yield f"{bytes_text(outside)} outside torch ({after.outside_torch_text})"


def _less(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else before - after


_ROWS = (
    ("allocated", "torch_allocated_bytes"),
    ("reserved", "torch_reserved_bytes"),
    ("device used", "gpu_memory_used_bytes"),
)


@dataclass(frozen=True, slots=True, repr=False)
class FreeReport:
    """What :func:`free_memory` did; prints as sentences and a small table for each GPU.

    ``collected`` is the number of objects that the garbage collector found (``None`` if it was
    not asked), ``reason`` why torch could give nothing back. GPUs of which torch holds nothing
    are left out.
    """

    devices: tuple[FreedDevice, ...] = ()
    collected: int | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return before and after of each GPU, and the number of objects collected."""
        known: dict[str, Any] = {
            "devices": [
                {"before": d.before.to_dict(), "after": d.after.to_dict()} for d in self.devices
            ]
        }
        if self.collected is not None:
            known["collected"] = self.collected
        if self.reason:
            known["reason"] = self.reason
        return known

    def __str__(self) -> str:
        lines = [self.reason] if self.reason else []
        for device in self.devices:
            lines.append(f"{device.after.label} ({device.after.name}): "
                         + " ".join(device.sentences()))
            lines.append(f"  {'':<12} {'before':>11} {'after':>11} {'came back':>11}")
            for title, name in _ROWS:
                before, after = getattr(device.before, name), getattr(device.after, name)
                texts = [quantity(v, "bytes") for v in (before, after, _less(before, after))]
                lines.append(f"  {title:<12} " + " ".join(f"{text:>11}" for text in texts))
        return "\n".join(lines)

    __repr__ = __str__


def free_memory(collect: bool = True) -> FreeReport:
    """Collect garbage, release torch's cached blocks, and report what came of it.

    Calls ``gc.collect`` (unless ``collect`` is false), ``torch.cuda.empty_cache`` and
    ``torch.cuda.ipc_collect``; the latter two only where torch holds GPU memory, so no context
    is made. Names and objects of the user are left alone. Bytes are from torch's allocator
    and, for the device's use by all processes, from NVML. Raises nothing of torch's: a refusal
    is the report's ``reason``.
    """
    before = allocator_stats()
    collected = gc.collect() if collect else None
    cuda = cuda_module()
    used = [device for device in before if device.torch_reserved_bytes]
    if cuda is None or not used:
        reason = before.reason or "torch holds no GPU memory in this process"
        return FreeReport((), collected, f"Nothing to give back: {reason}")
    reason = _release(cuda)
    return FreeReport(_paired(used, allocator_stats()), collected, reason)


def _release(cuda: Any) -> str:
    try:
        cuda.empty_cache()
        ipc_collect = getattr(cuda, "ipc_collect", None)
        if ipc_collect is not None:
            ipc_collect()
    except RuntimeError as error:
        # E.g. in the middle of a CUDA graph's capture, or after a kernel has failed.
        text = (str(error).strip().splitlines() or ["no reason given"])[0]
        return f"torch refused to release its cache: {text}"
    return ""


def _paired(used: list[AllocatorStats], after: AllocatorReport) -> tuple[FreedDevice, ...]:
    now = {device.torch_index: device for device in after}
    return tuple(
        FreedDevice(device, now[device.torch_index])
        for device in used
        if device.torch_index in now
    )
