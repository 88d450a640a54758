"""The host: this process, its children, the machine, and the container's limits (psutil)."""

from __future__ import annotations

import asyncio
import os
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

_LIST_CHILDREN_S = 2.0
# Processor times count in steps of 10 ms: a share over less than this would be noise.
_SHORTEST_SHARE_S = 0.25


class HostSource:
    """Read the host once a second.

    Beside a busy cell psutil waits for the GIL at each file it opens, so the children are
    listed every two seconds only and the reading lets quick sources in between its steps.
    The first reading has no processor shares: they are differences.
    """

    name = "host"

    def __init__(self, *, period_s: float = 1.0, cgroup: Cgroup | None = None) -> None:
        self.period_s = period_s
        self._cgroup = cgroup
        self._psutil: Any = None
        self._own: Any = None
        self._children: dict[int, Any] = {}
        self._listed = float("-inf")
        self._before: tuple[float, dict[str, float]] | None = None
        self._children_before: dict[int, float] = {}
        self._children_total = 0.0
        self._device: Device | None = None

    def open(self) -> None:
        """Read the limits, once."""
        import psutil

        self._psutil = psutil
        self._own = psutil.Process(os.getpid())
        self._before = None
        self._children = {}
        self._children_before = {}
        self._listed = float("-inf")
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
        if time - self._listed >= _LIST_CHILDREN_S:
            self._listed = time
            # A process object kept by PID would survive the reuse of its PID; psutil compares
            # creation times, so equal objects are the same process.
            children = [] if _childless(psutil) else self._own.children(recursive=True)
            listed = {child.pid: child for child in children}
            self._children = {
                pid: self._children[pid] if self._children.get(pid) == child else child
                for pid, child in listed.items()
            }
        count, rss, cpu = 0, 0, 0.0
        seconds: dict[int, float] = {}
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
            seconds[pid] = times.user + times.system
            # A child that is new here had no reading at the last tick: what it used before
            # is not of this interval.
            if pid in self._children_before:
                cpu += max(0.0, seconds[pid] - self._children_before[pid])
        self._children_total += cpu
        values["children_cpu_seconds"] = self._children_total
        self._children_before = seconds
        values["children_count"] = float(count)
        values["children_rss_bytes"] = float(rss)

    def close(self) -> None:
        """Forget the processes."""
        self._children = {}
        self._before = None


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
