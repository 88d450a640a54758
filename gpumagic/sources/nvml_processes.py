"""Which processes use a GPU: the memory of this one and of others, and the others' load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .nvml_library import Nvml, reason_of

__all__ = ["OthersLoad", "process_memory", "split_memory"]

_MOST_PERCENT = 100
_NOTHING_NEW = reason_of(6)
_HIDDEN = "the driver gives no process of this PID namespace (a container, or WSL)"


def split_memory(
    processes: Sequence[tuple[int, int | None]], own_pid: int, visible: Sequence[int]
) -> dict[str, float]:
    """Split per-process device memory into this process's and the others', in bytes.

    ``processes`` are pairs of PID and bytes (``None`` where the driver hides them, as WSL and
    WDDM do); ``visible`` are the PIDs that this PID namespace has. In a container the driver
    can give the host's PIDs: then ours cannot be told from others' and both are absent.
    """
    if any(used is None for _, used in processes):
        return {}
    known = set(visible)
    if any(pid != own_pid and pid not in known for pid, _ in processes):
        return {}
    own = [used or 0 for pid, used in processes if pid == own_pid]
    others = [used or 0 for pid, used in processes if pid != own_pid]
    values = {"gpu_other_processes_memory_bytes": float(sum(others))}
    if own:
        values["gpu_process_memory_bytes"] = float(sum(own))
    return values


def _visible(pids: Sequence[int]) -> list[int]:
    """Return those of some PIDs that exist in this PID namespace, as far as /proc tells."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def process_memory(nvml: Nvml, handle: Any) -> tuple[dict[str, float], str]:
    """Return a GPU's memory of this process and of others in bytes, or nothing and a reason.

    From ``nvmlDeviceGetComputeRunningProcesses`` and the same for graphics (30 us each).
    """
    used: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        processes, reason = nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)
        if processes is None and kind == "Compute":
            return {}, reason
        used.update({p.pid: p.usedGpuMemory for p in processes or ()})
    return split_memory(list(used.items()), os.getpid(), _visible(list(used))), _HIDDEN


class OthersLoad:
    """The share of the time in which kernels of other processes ran on one GPU.

    From ``nvmlDeviceGetProcessUtilization`` (1.4 ms), the entries that are newer than those of
    the last reading; each is the mean since the entry before it.
    """

    def __init__(self) -> None:
        self._newest_us = 0

    def read(self, nvml: Nvml, handle: Any) -> tuple[float | None, str]:
        """Return the share in [0, 1] and "", or ``None`` and a reason."""
        entries, reason = nvml.ask("nvmlDeviceGetProcessUtilization", handle, self._newest_us)
        if entries is None:
            # Without a new entry no process has run anything since the last reading.
            return (0.0, "") if reason == _NOTHING_NEW and self._newest_us else (None, reason)
        fresh = [entry for entry in entries if entry.timeStamp > self._newest_us]
        first = self._newest_us == 0
        self._newest_us = max([self._newest_us, *(entry.timeStamp for entry in fresh)])
        if first:
            return None, "its first reading speaks of an unknown time"
        by_process: dict[int, list[int]] = {}
        for entry in fresh:
            # Drivers have been seen to give more than 100 here.
            if entry.pid != os.getpid() and entry.smUtil <= _MOST_PERCENT:
                by_process.setdefault(entry.pid, []).append(entry.smUtil)
        share = sum(sum(values) / len(values) for values in by_process.values()) / 100
        return min(1.0, share), ""
