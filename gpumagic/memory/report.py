"""What holds device memory now: the search for tensors beside the allocator's own account."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..devices import cuda_module
from ..units import MIB
from .blocks import BlockMap, read_blocks
from .children import children_on
from .live import DeviceMemory, Holder, MemoryReport, Remainder
from .orphans import KEPT_OUTSIDE
from .roots import Notebook
from .scan import TIMEOUT_S, Scan, scan
from .stats import AllocatorReport, AllocatorStats, allocator_stats, why_no_cuda
from .tensors import NO_TORCH, TensorReader, torch_module

__all__ = ["Looked", "look", "memory_report", "running_shell"]

_UNREACHABLE = "not reachable from Python"
_ROUNDED = Remainder("rounding", 0, "blocks are larger than what was asked for")
_SMALLEST = MIB


def running_shell() -> Any | None:
    """Return the IPython shell of this process, or ``None`` outside of one."""
    ipython = sys.modules.get("IPython")
    get = getattr(ipython, "get_ipython", None)
    return None if get is None else get()


@dataclass(frozen=True, slots=True)
class Looked:
    """A report with what it was made from: the search, the allocator's blocks and its figures.

    Each is ``None`` where it was not asked.
    """

    report: MemoryReport
    found: Scan | None = None
    blocks: BlockMap | None = None
    stats: AllocatorReport | None = None

    def addresses_of(self, device: str, holders: Collection[Holder]) -> list[int]:
        """Return the first bytes of the storages that some holders have on a device."""
        known = {} if self.found is None else self.found.addresses.get(device, {})
        return [address for address, one in known.items() if one.holder in holders]


def memory_report(
    *, cpu: bool = False, count: int = 50, timeout_s: float = TIMEOUT_S
) -> MemoryReport:
    """Say what holds the memory of torch's GPUs, or with ``cpu`` that of tensors on the CPU.

    By storage: views of one storage are one entry, named by the shortest chain of references
    from a variable, a running function, a module, ``Out``, a traceback or a cycle. ``count``
    storages of each device are listed, the largest. Bytes are those of the storages; on a GPU
    also torch's allocator and the driver are asked (see :func:`gpumagic.allocator_stats`), and
    what they have beyond the tensors is a named remainder. The search looks at all of Python's
    objects for ``timeout_s`` seconds at most and says if it was cut short. It reads no
    attribute, runs no code of the user's, makes no CUDA context and holds nothing afterwards.
    Without torch or CUDA the report is empty and its ``reason`` says why.
    """
    return look(Notebook(running_shell()), cpu=cpu, count=count, timeout_s=timeout_s).report


def look(
    notebook: Notebook,
    *,
    cpu: bool = False,
    count: int = 50,
    last: Collection[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> Looked:
    """Search, and compare with the allocator; see :func:`memory_report` and ``scan``."""
    torch = torch_module()
    cuda = cuda_module()
    if torch is None or (cuda is None and not cpu):
        reason = NO_TORCH if cpu else why_no_cuda()
        return Looked(MemoryReport(reason=reason))
    reader = TensorReader(torch, "cpu" if cpu else "cuda")
    found = scan(notebook, reader, count=count, last=last, timeout_s=timeout_s)
    notes: tuple[str, ...] = ()
    blocks = stats = None
    if cpu:
        devices = [_device(name, found) for name in found.holders]
    else:
        blocks, why = read_blocks(cuda)
        notes = (why,) if why else ()
        stats = allocator_stats()
        devices = [_gpu(one, found, blocks) for one in _used(stats, found)]
    devices = [_explained(one, found.graphs.get(one.device, ())) for one in devices]
    reason = "" if devices else _nothing(cpu)
    report = MemoryReport(tuple(devices), reason, found.cut, found.objects, found.seconds, notes)
    return Looked(report, found, blocks, stats)


def _nothing(cpu: bool) -> str:
    if cpu:
        return "there is no tensor on the CPU"
    return "torch holds no GPU memory in this process"


def _used(stats: AllocatorReport, found: Scan) -> list[AllocatorStats]:
    return [one for one in stats if one.torch_reserved_bytes or one.label in found.holders]


def _device(name: str, found: Scan) -> DeviceMemory:
    return DeviceMemory(
        device=name,
        holders=found.holders.get(name, ()),
        storages=found.storages.get(name, ()),
        storage_count=len(found.addresses.get(name, ())),
    )


def _gpu(stats: AllocatorStats, found: Scan, blocks: BlockMap | None) -> DeviceMemory:
    device = _device(stats.label, found)
    known = found.addresses.get(stats.label, {})
    remainders: list[Remainder] = []
    pinned = None
    if blocks is not None:
        remainders += blocks.unexplained(stats.torch_index, known)
        pinned = blocks.pinned(stats.torch_index, {a: one.name for a, one in known.items()})
        sizes = [blocks.size_of(stats.torch_index, address) for address in known]
        rounded = sum(size or 0 for size in sizes) - device.reachable_bytes
        if rounded >= _SMALLEST:
            remainders.append(replace(_ROUNDED, bytes=rounded))
        # Storages and addresses are both in the order of size.
        pairs = zip(device.storages, sizes, strict=False)
        device = replace(device, storages=tuple(replace(s, block_bytes=b) for s, b in pairs))
    elif stats.torch_allocated_bytes is not None:
        left = stats.torch_allocated_bytes - device.reachable_bytes
        if left >= _SMALLEST:
            remainders.append(Remainder(_UNREACHABLE, left))
    return replace(
        device,
        allocator=stats,
        remainders=tuple(remainders),
        pinned=pinned,
        children=children_on(stats.uuid),
    )


def _kept_by(graphs: Sequence[str], device: str) -> str:
    """Say what may keep memory that no name leads to."""
    if not graphs and device == "cpu":
        return "C++: autograd's saved tensors, or an array of objects"
    if not graphs:
        return "C++: autograd's saved tensors, or work space of cuBLAS"
    shown = [f"`{name}`" for name in graphs[:3]]
    return f"autograd keeps what {' and '.join(shown)} came from, or C++"


def _explained(device: DeviceMemory, graphs: Sequence[str]) -> DeviceMemory:
    """Name the graphs that may keep what no name leads to."""
    why = _kept_by(graphs, device.device)
    holders = tuple(
        replace(one, detail=why) if one.kind == "unknown" and one.detail == KEPT_OUTSIDE else one
        for one in device.holders
    )
    remainders = tuple(
        replace(one, detail=why) if one.name == _UNREACHABLE else one for one in device.remainders
    )
    return replace(device, holders=holders, remainders=remainders)
