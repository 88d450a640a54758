"""torch's allocator on each GPU, beside what the driver says of the same memory.

torch is taken from ``sys.modules`` once CUDA is initialised; nothing is imported, initialised,
synchronised or reset. The driver's figures come from NVML.
"""

from __future__ import annotations

import html
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..devices import Gpu, cuda_module, pair
from ..errors import DeviceError, SourceUnavailable
from ..sources.allocator import allocator_values, is_native, torch_devices
from ..sources.nvml_library import Nvml
from ..sources.nvml_processes import process_memory
from ..units import quantity

__all__ = [
    "CUDA_BUILD",
    "AllocatorReport",
    "AllocatorStats",
    "allocator_stats",
    "is_cpu_build",
    "torch_version",
    "why_no_cuda",
]

CUDA_BUILD = "install a CUDA build of torch: https://pytorch.org/get-started/locally"


_OWN = "CUDA context and other non-torch memory of this process"
_NOT_TORCH = "memory that neither torch nor another process holds by the driver's account"
_ALL_ELSE = "everything but torch: contexts, other libraries, and other processes"


# -- torch, as far as it is there -----------------------------------------------------------


def torch_version() -> str | None:
    """Return torch's version, from the imported module or else the installed distribution."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def is_cpu_build() -> bool:
    """Tell whether torch was built without CUDA, as far as it can be known without an import."""
    torch = sys.modules.get("torch")
    version: Any = getattr(torch, "version", None)
    if hasattr(version, "cuda"):
        return version.cuda is None and getattr(version, "hip", None) is None
    return "+cpu" in (torch_version() or "")


def why_no_cuda() -> str:
    """Say why torch holds no GPU memory in this process, and what would help.

    Speaks of a process in which :func:`gpumagic.devices.cuda_module` gives ``None``.
    """
    torch = sys.modules.get("torch")
    version = torch_version()
    if torch is None and version is None:
        return "torch is not installed in this environment: pip install torch"
    if is_cpu_build():
        return f"torch {version} is a CPU build and puts nothing on a GPU: {CUDA_BUILD}"
    if torch is None:
        return f"torch {version} is not imported in this process, so it holds no GPU memory here"
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return "torch is being imported right now: ask again when it is done"
    return (
        f"torch {version or ''} has not initialised CUDA in this process: nothing has been put"
        " on a GPU yet"
    ).replace("  ", " ")


# -- the figures ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """One GPU's memory as torch and as the driver see it; bytes, and ``None`` where not told.

    ``torch_*`` are the figures of METRICS, from ``torch.cuda.memory_stats_as_nested_dict``.
    ``torch_cached_bytes``: reserved - allocated, what torch holds and no live tensor uses.
    ``torch_returnable_bytes``: reserved - active - inactive split, the cached bytes in segments
    without a block in use, which ``empty_cache`` gives back. With expandable segments torch
    counts no inactive split, and this is the most that can come back.
    ``torch_fragmentation_ratio``: inactive split / reserved, the share of torch's memory that
    is free and pinned by live blocks.
    With the backend cudaMallocAsync torch keeps neither requested nor inactive split bytes.
    ``gpu_*`` come from NVML: ``nvmlDeviceGetMemoryInfo_v2`` and the lists of processes.
    ``gpu_memory_reserved_bytes`` is what the driver keeps for itself, which only version 2 of
    that call tells apart from what is used.
    ``outside_torch_bytes``: this process's bytes - reserved; where the driver does not tell
    this process's, used - reserved - others'. ``outside_torch_text`` says which of them it is,
    or why there is none.
    """

    torch_index: int
    uuid: str
    name: str
    nvml_index: int | None = None
    torch_allocated_bytes: int | None = None
    torch_requested_bytes: int | None = None
    torch_active_bytes: int | None = None
    torch_reserved_bytes: int | None = None
    torch_cached_bytes: int | None = None
    torch_returnable_bytes: int | None = None
    torch_inactive_split_bytes: int | None = None
    torch_fragmentation_ratio: float | None = None
    torch_alloc_retries_count: int | None = None
    torch_ooms_count: int | None = None
    gpu_memory_total_bytes: int | None = None
    gpu_memory_used_bytes: int | None = None
    gpu_memory_free_bytes: int | None = None
    gpu_memory_reserved_bytes: int | None = None
    gpu_process_memory_bytes: int | None = None
    gpu_other_processes_memory_bytes: int | None = None
    outside_torch_bytes: int | None = None
    outside_torch_text: str = ""

    @property
    def label(self) -> str:
        """``cuda:0``."""
        return f"cuda:{self.torch_index}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name; what is not known is an absent key."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, "")}


_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("allocated", "torch_allocated_bytes", "bytes", "in live tensors"),
    ("requested", "torch_requested_bytes", "bytes", "what tensors asked for, before rounding"),
    ("active", "torch_active_bytes", "bytes", "allocated, and freed but awaited by a stream"),
    ("reserved", "torch_reserved_bytes", "bytes", "all that torch holds"),
    ("free in cache", "torch_cached_bytes", "bytes", "reserved - allocated"),
    ("  returnable", "torch_returnable_bytes", "bytes", "what %gpufree can give back"),
    ("  inactive split", "torch_inactive_split_bytes", "bytes", "pinned by live blocks"),
    ("fragmentation", "torch_fragmentation_ratio", "ratio", "inactive split / reserved"),
    ("retries", "torch_alloc_retries_count", "count", "cache emptied to make room"),
    ("out of memory", "torch_ooms_count", "count", "allocations that failed"),
    ("device used", "gpu_memory_used_bytes", "bytes", "NVML, all processes"),
    ("device total", "gpu_memory_total_bytes", "bytes", "NVML"),
    ("this process", "gpu_process_memory_bytes", "bytes", "NVML"),
    ("other processes", "gpu_other_processes_memory_bytes", "bytes", "NVML"),
    ("outside torch", "outside_torch_bytes", "bytes", "see below"),
)


@dataclass(frozen=True, slots=True, repr=False)
class AllocatorReport:
    """The figures of torch's GPUs, in torch's order: a sequence that prints as a table.

    ``reason`` is a sentence where there is no figure at all.
    """

    devices: tuple[AllocatorStats, ...] = ()
    reason: str = ""

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[AllocatorStats]:
        return iter(self.devices)

    def __getitem__(self, position: int) -> AllocatorStats:
        return self.devices[position]

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"devices": [...]}`` and, if there is one, ``"reason"``."""
        known: dict[str, Any] = {"devices": [device.to_dict() for device in self.devices]}
        if self.reason:
            known["reason"] = self.reason
        return known

    def _table(self) -> list[tuple[str, list[str], str]]:
        return [
            (title, [quantity(getattr(d, name), unit) for d in self.devices], help)
            for title, name, unit, help in _ROWS
        ]

    def _notes(self) -> list[str]:
        texts: dict[str, list[str]] = {}
        for device in self.devices:
            known = device.outside_torch_bytes is not None
            text = device.outside_torch_text if known else f"n/a, {device.outside_torch_text}"
            texts.setdefault(text, []).append(device.label)
        if len(texts) == 1:
            return [f"outside torch: {text}" for text in texts]
        return [f"outside torch on {', '.join(who)}: {text}" for text, who in texts.items()]

    def _heads(self) -> list[str]:
        return [
            f"{d.label} is {d.name}"
            + (f", NVML's GPU {d.nvml_index}" if d.nvml_index is not None else "")
            + f" ({d.uuid})"
            for d in self.devices
        ]

    def __str__(self) -> str:
        if not self.devices:
            return self.reason
        table = [("", [d.label for d in self.devices], ""), *self._table()]
        width = max(len(value) for _, values, _ in table for value in values)
        lines = [
            f"{title:<17}" + "".join(f"  {value:>{width}}" for value in values) + f"  {help}"
            for title, values, help in table
        ]
        return "\n".join([*self._heads(), *(line.rstrip() for line in lines), *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.devices:
            return f"<p>{html.escape(self.reason)}</p>"
        head = "".join(f"<th>{html.escape(d.label)}</th>" for d in self.devices)
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(title.strip())}</th>"
            + "".join(f"<td>{html.escape(value)}</td>" for value in values)
            + f"<td style='text-align:left'>{html.escape(help)}</td></tr>"
            for title, values, help in self._table()
        )
        below = "<br>".join(html.escape(text) for text in [*self._heads(), *self._notes()])
        return f"<table><tr><th></th>{head}<th></th></tr>{rows}</table><p>{below}</p>"


def allocator_stats(device: int | None = None) -> AllocatorReport:
    """Return the memory of each of torch's GPUs, or of ``cuda:device`` alone.

    Always one report: ``report[0].torch_reserved_bytes`` reads a figure, ``print(report)``
    shows the table. Where torch is missing, not imported, a CPU build, or has not initialised
    CUDA, the report is empty and its text says so; no context is made. Bytes are from the
    moments of reading, torch's first. Raises :class:`~gpumagic.errors.DeviceError` for a GPU
    that torch does not have.
    """
    cuda = cuda_module()
    if cuda is None:
        return AllocatorReport(reason=why_no_cuda())
    found = torch_devices(cuda)
    if device is not None:
        if not 0 <= device < len(found):
            count = "1 GPU" if len(found) == 1 else f"{len(found)} GPUs"
            raise DeviceError(f"no cuda:{device}: torch has {count}, from cuda:0 on")
        found = [found[device]]
    figures = {index: _torch_figures(cuda, index) for index, _, _ in found}
    driver, order, reason = _driver_figures({index for index, _, _ in found})
    stats = []
    for index, uuid, name in found:
        values: dict[str, Any] = {**figures[index], **driver.get(index, {})}
        values["uuid"] = order[index] if index < len(order) else uuid
        values |= _outside_torch(values, reason)
        stats.append(AllocatorStats(index, name=name, **values))
    return AllocatorReport(tuple(stats))


def _torch_figures(cuda: Any, index: int) -> dict[str, Any]:
    stats = cuda.memory_stats_as_nested_dict(index)
    known = allocator_values(stats, native=is_native(cuda))
    names = {field.name for field in fields(AllocatorStats)}
    values: dict[str, Any] = {k: int(v) for k, v in known.items() if k in names}
    reserved, allocated, active, split = (
        values.get(f"torch_{name}_bytes")
        for name in ("reserved", "allocated", "active", "inactive_split")
    )
    if reserved is None or allocated is None:
        return values
    values["torch_cached_bytes"] = reserved - allocated
    in_use = allocated if active is None else active
    values["torch_returnable_bytes"] = max(0, reserved - in_use - (split or 0))
    if split is not None and reserved:
        values["torch_fragmentation_ratio"] = split / reserved
    return values


def _driver_figures(
    wanted: set[int],
) -> tuple[dict[int, dict[str, Any]], tuple[str, ...], str]:
    """Return NVML's figures by torch index, torch's order of UUIDs, and a reason for gaps."""
    nvml = Nvml()
    try:
        nvml.open()
        cards = nvml.gpus()
    except SourceUnavailable as error:
        nvml.close()
        return {}, pair((), os.environ).order, str(error)
    try:
        order = pair([gpu for gpu, _ in cards], os.environ).order
        found = {
            order.index(gpu.uuid): _card_figures(nvml, gpu, handle)
            for gpu, handle in cards
            if gpu.uuid in order and order.index(gpu.uuid) in wanted
        }
        return found, order, "NVML does not list this GPU"
    finally:
        nvml.close()


def _card_figures(nvml: Nvml, gpu: Gpu, handle: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"nvml_index": gpu.index}
    # Version 2 leaves out what the driver reserves; a driver before R510 has version 1 only.
    version = getattr(nvml.py, "nvmlMemory_v2", None)
    info = nvml.ask("nvmlDeviceGetMemoryInfo", handle, version)[0] if version else None
    if info is not None and info.total:
        values["gpu_memory_reserved_bytes"] = int(info.reserved)
    else:
        info = nvml.ask("nvmlDeviceGetMemoryInfo", handle)[0]
    if info is not None and info.total:
        values["gpu_memory_total_bytes"] = int(info.total)
        values["gpu_memory_used_bytes"] = int(info.used)
        values["gpu_memory_free_bytes"] = int(info.free)
    values |= {name: int(value) for name, value in process_memory(nvml, handle)[0].items()}
    return values


def _outside_torch(values: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Name and measure the memory that torch does not account for, or say why it cannot be."""
    get: Callable[[str], int | None] = values.get
    reserved = get("torch_reserved_bytes")
    used, own = get("gpu_memory_used_bytes"), get("gpu_process_memory_bytes")
    others = get("gpu_other_processes_memory_bytes")
    if reserved is None:
        return {"outside_torch_text": "torch does not tell what it has reserved"}
    if own is not None:
        left, text = own - reserved, _OWN
    elif used is None:
        told = "nvml_index" in values
        return {"outside_torch_text": "NVML tells no memory of this GPU" if told else reason}
    elif others is not None:
        left, text = used - reserved - others, _NOT_TORCH
    else:
        left, text = used - reserved, _ALL_ELSE
    if left < 0:
        return {"outside_torch_text": "the driver's figure is smaller than what torch holds"}
    return {"outside_torch_bytes": left, "outside_torch_text": text}
