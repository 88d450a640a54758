"""The host: this process, its children, the machine, and the container's limits (psutil)."""

from __future__ import annotations

import asyncio
import os
import time as real_time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ..sample import HOST, Device, Gap, Sample
from . import Clock
from .cgroup import Cgroup, cores_allowed

__all__ = ["HostSource"]

_SHARES = {
    "process_cpu_ratio": "process_cpu_seconds",
    "children_cpu_ratio": "children_cpu_seconds",
    "host_cpu_ratio": "host_cpu_seconds",
}

# Listing the children may take this part of the time at most.
_LISTING_SHARE = 0.1
# Processor times count in steps of 10 ms: a share over less than this would be noise.
_SHORTEST_SHARE_S = 0.25


class HostSource:
    """Read the host once a second.

    Beside a busy cell psutil waits for the GIL at each file it opens, so the children are
    listed less often where that takes long, and the reading lets quick sources in between its
    steps. The first reading has no processor shares: they are differences.
    """

    name = "host"

    def __init__(self, *, period_s: float = 1.0, cgroup: Cgroup | None = None) -> None:
        self.period_s = period_s
        self._cgroup = cgroup
        self._psutil: Any = None
        self._own: Any = None
        self._children: dict[int, Any] = {}
        self._list_from = float("-inf")
        self._before: tuple[float, dict[str, float]] | None = None
        self._children_cpu = Rising()
        self._device: Device | None = None

    def open(self) -> None:
        """Read the limits, once."""
        import psutil

        self._psutil = psutil
        self._own = psutil.Process(os.getpid())
        self._before = None
        self._children = {}
        self._children_cpu.begin()
        self._list_from = float("-inf")
        if self._cgroup is None:
            self._cgroup = Cgroup.of_this_process()
        machine = psutil.cpu_count() or 1
        total = psutil.virtual_memory().total
        limit = self._cgroup.memory_limit()
        absent = {}
        if self._cgroup.memory_used() is None:
            absent["container_memory_used_bytes"] = "no cgroup tells the memory in use"
        self._device = Device(
            HOST, "host", "Host",
            constants={
                "host_cpu_count": float(machine),
                "host_cpu_limit_ratio": cores_allowed(self._cgroup, machine),
                "host_memory_total_bytes": float(total),
                "host_memory_limit_bytes": float(min(total, limit or total)),
            },
            absent=absent,
        )

    def devices(self) -> Sequence[Device]:
        """Return the host."""
        return [self._device] if self._device is not None else []

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield one sample of the host."""
        psutil, own = self._psutil, self._own
        time = now()
        with own.oneshot():
            cpu = own.cpu_times()
            values = {"process_rss_bytes": float(own.memory_info().rss)}
        busy = cpu.user + cpu.system
        await asyncio.sleep(0)
        machine = _busy_seconds(psutil.cpu_times())
        memory = psutil.virtual_memory()
        values["host_memory_used_bytes"] = float(memory.total - memory.available)
        await asyncio.sleep(0)
        used = self._cgroup.memory_used() if self._cgroup is not None else None
        if used is not None:
            values["container_memory_used_bytes"] = float(used)
        values["process_cpu_seconds"] = busy
        values["host_cpu_seconds"] = machine
        await self._read_children(time, values)
        self._add_shares(time, values)
        yield Sample(time, HOST, self.name, values)

    def _add_shares(self, time: float, values: dict[str, float]) -> None:
        counters = {name: values[name] for name in _SHARES.values()}
        if self._before is None:
            self._before = (time, counters)
            return
        elapsed = time - self._before[0]
        if elapsed < min(_SHORTEST_SHARE_S, self.period_s / 2):
            return
        for share, counter in _SHARES.items():
            values[share] = max(0.0, counters[counter] - self._before[1][counter]) / elapsed
        self._before = (time, counters)

    async def _read_children(self, time: float, values: dict[str, float]) -> None:
        psutil = self._psutil
        # The kernel adds the time of a child to its parent's when the parent waits for it.
        # Parents are read first: a child that is waited for in between is missed until the
        # next reading, and never counted twice.
        seconds = _reaped_seconds(self._own.cpu_times())
        self._list_children(time)
        count, rss = 0, 0
        for pid, child in list(self._children.items()):
            await asyncio.sleep(0)
            try:
                with child.oneshot():
                    times, resident = child.cpu_times(), child.memory_info().rss
            except psutil.Error:
                del self._children[pid]
                continue
            count += 1
            rss += resident
            seconds += times.user + times.system + _reaped_seconds(times)
        values["children_cpu_seconds"] = self._children_cpu.add(seconds)
        values["children_count"] = float(count)
        values["children_rss_bytes"] = float(rss)

    def _list_children(self, time: float) -> None:
        if _childless(self._psutil):
            self._children = {}
            return
        if time < self._list_from:
            return
        begun = real_time.perf_counter()
        listed = {child.pid: child for child in self._own.children(recursive=True)}
        self._list_from = time + (real_time.perf_counter() - begun) / _LISTING_SHARE
        # A process object kept by PID would survive the reuse of its PID; psutil compares
        # creation times, so equal objects are the same process.
        self._children = {
            pid: self._children[pid] if self._children.get(pid) == child else child
            for pid, child in listed.items()
        }

    def close(self) -> None:
        """Forget the processes."""
        self._children = {}
        self._before = None


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


def _reaped_seconds(times: Any) -> float:
    """Return the processor seconds of the children that a process has waited for."""
    reaped: float = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return reaped


def _childless(psutil: Any) -> bool:
    """Tell whether this process surely has no children, by one system call.

    psutil reads the parent of each process of the machine, which takes milliseconds on a large
    one. The call takes no notice away from whoever waits for a child.
    """
    if not getattr(psutil, "LINUX", False):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    except OSError:
        pass
    return False


def _busy_seconds(times: Any) -> float:
    """Sum the processor seconds in which something ran, over all cores."""
    idle: float = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guest time in user time as well.
    guest: float = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    total: float = sum(times)
    return total - idle - guest
