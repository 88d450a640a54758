"""The children of this process, and the DataLoader workers among them (psutil is handed in)."""

from __future__ import annotations

import asyncio
import os
import sys
import time as real_time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import Clock

__all__ = ["WORKER_NAME", "Children", "Rising", "workers_absent"]

WORKER_NAME = "pt_data_worker"
"""What torch's DataLoader calls the main thread of a worker, fork, spawn and forkserver alike."""

# Listing the children may take this part of the time at most.
_LISTING_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class _Child:
    """One child in one reading; ``seconds`` is the processor time of its own threads."""

    process: Any
    time: float
    seconds: float
    parent: int
    worker: bool


class Children:
    """Count the children's time and memory, and compare the workers with one another.

    All children are listed as often as that takes a tenth of the time at most. Those of the
    main thread, which starts the workers, are found in each reading where the kernel lists them.
    """

    def __init__(self) -> None:
        self._psutil: Any = None
        self._own: Any = None
        self._known: dict[int, Any] = {}
        self._list_from = float("-inf")
        self._cpu = Rising()
        self._before: tuple[float, dict[int, _Child]] | None = None

    def begin(self, psutil: Any, own: Any) -> None:
        """Count from the next reading on; ``own`` is psutil's object of this process."""
        self._psutil, self._own = psutil, own
        self._cpu.begin()
        self._list_from = float("-inf")
        self.forget()

    def forget(self) -> None:
        """Let go of the processes."""
        self._known = {}
        self._before = None

    async def read(self, now: Clock, *, shortest_s: float) -> dict[str, float]:
        """Return the figures of the children and, on Linux, of the workers.

        The workers' shares are over the time since the reading that last had some, if that is
        ``shortest_s`` ago at least; a worker counts in them if it has lived all that time.
        """
        time = now()
        # The kernel adds the time of a child to its parent's when the parent waits for it.
        # Parents are read first: a child that is waited for in between is missed until the
        # next reading, and never counted twice.
        seconds = _reaped_seconds(self._own.cpu_times())
        self._list(time)
        rss = 0
        found: list[_Child] = []
        for pid, process in list(self._known.items()):
            await asyncio.sleep(0)
            try:
                with process.oneshot():
                    begun = now()
                    times, resident = process.cpu_times(), process.memory_info().rss
                    child = self._child(process, begun, times)
            except self._psutil.Error:
                del self._known[pid]
                continue
            found.append(child)
            rss += resident
            seconds += child.seconds + _reaped_seconds(times)
        values = {
            "children_cpu_seconds": self._cpu.add(seconds),
            "children_count": float(len(found)),
            "children_rss_bytes": float(rss),
        }
        if not workers_absent(self._psutil):
            values.update(self._read_workers(time, found, shortest_s))
        return values

    def _child(self, process: Any, time: float, times: Any) -> _Child:
        seconds = times.user + times.system
        if not _on_linux(self._psutil):
            return _Child(process, time, seconds, parent=0, worker=False)
        # All three come from the file that has the times; it is read once.
        ended = process.status() == self._psutil.STATUS_ZOMBIE
        named = process.name() == WORKER_NAME
        return _Child(process, time, seconds, process.ppid(), named and not ended)

    def _read_workers(
        self, time: float, found: Sequence[_Child], shortest_s: float
    ) -> dict[str, float]:
        named = {child.process.pid: child for child in found if child.worker}
        # What a worker forks has its name until it takes another one.
        workers = {pid: child for pid, child in named.items() if child.parent not in named}
        values = {"workers_count": float(len(workers))}
        if self._before is None:
            self._before = (time, workers)
            return values
        start, before = self._before
        if time - start < shortest_s:
            return values
        self._before = (time, workers)
        shares = list(_shares(before, workers))
        if shares:
            values["workers_cpu_ratio"] = sum(shares)
            values["workers_busiest_cpu_ratio"] = max(shares)
            values["workers_idlest_cpu_ratio"] = min(shares)
        return values

    def _list(self, time: float) -> None:
        if _childless(self._psutil):
            self._known = {}
            return
        if time < self._list_from:
            self._add_newcomers()
            return
        begun = real_time.perf_counter()
        listed = {child.pid: child for child in self._own.children(recursive=True)}
        self._list_from = time + (real_time.perf_counter() - begun) / _LISTING_SHARE
        # A process object kept by PID would survive the reuse of its PID; psutil compares
        # creation times, so equal objects are the same process.
        self._known = {
            pid: self._known[pid] if self._known.get(pid) == child else child
            for pid, child in listed.items()
        }

    def _add_newcomers(self) -> None:
        """Add what the main thread has started since the last listing, for one file opened."""
        if not _on_linux(self._psutil):
            return
        for pid in _started_by_main_thread():
            if pid not in self._known:
                try:
                    self._known[pid] = self._psutil.Process(pid)
                except self._psutil.Error:
                    continue  # it has ended


class Rising:
    """A counter of what a sum gains, where parts of the sum can be missed or go for good.

    A sum that falls holds the counter. If it is still as low at the next reading, the part was
    not just missed between two steps of a reading: the counter goes on from the lower sum.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._highest: float | None = None
        self._fallen: float | None = None

    def begin(self) -> None:
        """Take the next sum as the one to count from."""
        self._highest = self._fallen = None

    def add(self, value: float) -> float:
        """Take a sum in and return the counter."""
        if self._highest is None or value >= self._highest:
            self.total += 0.0 if self._highest is None else value - self._highest
            self._highest, self._fallen = value, None
        elif self._fallen is None:
            self._fallen = value
        else:
            self.total += max(0.0, value - self._fallen)
            self._highest, self._fallen = value, None
        return self.total


def workers_absent(psutil: Any) -> str:
    """Return why workers cannot be told from other children here, or nothing where they can."""
    if not _on_linux(psutil):
        return "DataLoader workers are told by their names on Linux only"
    module = sys.modules.get("torch.multiprocessing")
    # While torch is being imported the module is not whole, and there are no workers.
    whole = module is not None and hasattr(module, "get_sharing_strategy")
    if whole and not hasattr(module, "_set_thread_name"):
        return "DataLoader workers have no names in this torch; 2.5 and newer name them"
    return ""


def _shares(before: dict[int, _Child], after: dict[int, _Child]) -> Iterator[float]:
    for pid, child in after.items():
        first = before.get(pid)
        if first is not None and first.process == child.process and child.time > first.time:
            yield max(0.0, child.seconds - first.seconds) / (child.time - first.time)


def _on_linux(psutil: Any) -> bool:
    return bool(getattr(psutil, "LINUX", False))


def _started_by_main_thread() -> list[int]:
    """List the PIDs of the main thread's children; empty where the kernel does not list them."""
    pid = os.getpid()
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _reaped_seconds(times: Any) -> float:
    """Return the processor seconds of the children that a process has waited for."""
    reaped: float = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return reaped


def _childless(psutil: Any) -> bool:
    """Tell whether this process surely has no children, by one system call.

    psutil reads the parent of each process of the machine, which takes milliseconds on a large
    one. The call takes no notice away from whoever waits for a child.
    """
    if not _on_linux(psutil):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    except OSError:
        pass
    return False
