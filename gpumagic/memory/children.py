"""The children of this process that hold memory of a GPU, by the driver's lists."""

from __future__ import annotations

from typing import Any

from ..errors import SourceUnavailable
from ..sources.host_children import descendants
from ..sources.nvml_library import Nvml
from .live import ChildProcess

__all__ = ["children_of_card", "children_on"]

_LONGEST_COMMAND = 60
_WORKER = "DataLoader worker"


def children_on(uuid: str) -> tuple[ChildProcess, ...]:
    """Return the children of this process, and theirs, that hold memory of a GPU.

    ``uuid`` is the GPU's or a MIG slice's by NVML. The most memory first. Empty where NVML is
    missing or does not list the GPU, and in a container where the driver gives the host's PIDs
    or none.
    """
    nvml = Nvml()
    try:
        nvml.open()
        cards = nvml.gpus()
        handle = next((handle for gpu, handle in cards if gpu.uuid == uuid), None)
        return () if handle is None else children_of_card(nvml, handle)
    except SourceUnavailable:
        return ()
    finally:
        nvml.close()


def children_of_card(nvml: Nvml, handle: Any) -> tuple[ChildProcess, ...]:
    """Return the same for a handle of NVML's.

    From ``nvmlDeviceGetComputeRunningProcesses`` and the same for graphics (30 us each); bytes
    are ``None`` where the driver hides them.
    """
    used: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        processes, _ = nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)
        used.update({p.pid: p.usedGpuMemory for p in processes or ()})
    found = [
        ChildProcess(child.pid, _WORKER if child.worker else _short(child.command), used[child.pid])
        for child in descendants(used)
    ]
    return tuple(sorted(found, key=lambda child: -(child.bytes or 0)))


def _short(command: str) -> str:
    line = " ".join(command.split())
    if len(line) <= _LONGEST_COMMAND:
        return line
    return line[: _LONGEST_COMMAND - 1].rstrip() + "…"
