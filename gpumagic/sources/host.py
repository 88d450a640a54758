"""The host: this process, its children, the machine, and the container's limits (psutil)."""

from __future__ import annotations

import asyncio
import os
import threading
import time as real_time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from ..sample import HOST, Device, Gap, Sample
from . import Clock
from .cgroup import Cgroup, cores_allowed
from .children import Children, workers_absent

__all__ = ["HostSource"]

_SHARES = {
    "process_cpu_ratio": "process_cpu_seconds",
    "children_cpu_ratio": "children_cpu_seconds",
    "host_cpu_ratio": "host_cpu_seconds",
    "main_thread_cpu_ratio": "main_thread_cpu_seconds",
}
_MAIN_THREAD = ("main_thread_cpu_seconds", "main_thread_cpu_ratio")
_WORKERS = (
    "workers_count", "workers_cpu_ratio", "workers_busiest_cpu_ratio", "workers_idlest_cpu_ratio",
)
_THROTTLING = (
    "container_cpu_throttled_seconds",
    "container_cpu_periods_count",
    "container_cpu_throttled_periods_count",
)
# Processor times count in steps of 10 ms: a share over less than this would be noise.
_SHORTEST_SHARE_S = 0.25


class HostSource:
    """Read the host once a second.

    Beside a busy cell psutil waits for the GIL at each file it opens, so the children are
    listed less often where that takes long, and the reading lets quick sources in between its
    steps. The first reading has no processor shares: they are differences.
    """

    name = "host"
    looking = False

    def __init__(self, *, period_s: float = 1.0, cgroup: Cgroup | None = None) -> None:
        self.period_s = period_s
        self._cgroup = cgroup
        self._psutil: Any = None
        self._own: Any = None
        self._children = Children()
        self._before: tuple[float, dict[str, float]] | None = None
        self._main_clock: int | None = None
        self._device: Device | None = None

    def open(self) -> None:
        """Read the limits, once."""
        import psutil

        self._psutil = psutil
        self._own = psutil.Process(os.getpid())
        self._before = None
        self._children.begin(psutil, self._own)
        self._main_clock = _main_thread_clock()
        if self._cgroup is None:
            self._cgroup = Cgroup.of_this_process()
        machine = psutil.cpu_count() or 1
        total = psutil.virtual_memory().total
        limit = self._cgroup.memory_limit()
        self._device = Device(
            HOST, "host", "Host",
            constants={
                "host_cpu_count": float(machine),
                "host_cpu_limit_ratio": cores_allowed(self._cgroup, machine),
                "host_memory_total_bytes": float(total),
                "host_memory_limit_bytes": float(min(total, limit or total)),
            },
            absent=self._find_absent(self._cgroup),
        )

    def _find_absent(self, cgroup: Cgroup) -> dict[str, str]:
        absent = {}
        if self._main_clock is None:
            reason = "this system has no processor clock of a single thread"
            absent.update(dict.fromkeys(_MAIN_THREAD, reason))
        if reason := workers_absent(self._psutil):
            absent.update(dict.fromkeys(_WORKERS, reason))
        if cgroup.memory_used() is None:
            absent["container_memory_used_bytes"] = "no cgroup tells the memory in use"
        if cgroup.cpu_limit() is None:
            absent.update(dict.fromkeys(_THROTTLING, "no processor quota is set"))
        elif cgroup.cpu_throttling() is None:
            reason = "cpu.stat of the group with the processor quota cannot be read"
            absent.update(dict.fromkeys(_THROTTLING, reason))
        if cgroup.io_pressure() is None:
            absent["io_pressure_seconds"] = "the kernel tells no pressure on storage"
        return absent

    def devices(self) -> Sequence[Device]:
        """Return the host."""
        return [self._device] if self._device is not None else []

    async def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield one sample of the host."""
        psutil, own = self._psutil, self._own
        time = now()
        values = {}
        if self._main_clock is not None:
            values["main_thread_cpu_seconds"] = real_time.clock_gettime(self._main_clock)
        with own.oneshot():
            cpu = own.cpu_times()
            values["process_rss_bytes"] = float(own.memory_info().rss)
        values["process_cpu_seconds"] = cpu.user + cpu.system
        await asyncio.sleep(0)
        values["host_cpu_seconds"] = _busy_seconds(psutil.cpu_times())
        memory = psutil.virtual_memory()
        values["host_memory_used_bytes"] = float(memory.total - memory.available)
        await asyncio.sleep(0)
        if self._cgroup is not None:
            _read_container(self._cgroup, values)
        await asyncio.sleep(0)
        values.update(await self._children.read(now, shortest_s=self._shortest_share_s))
        self._add_shares(time, values)
        self._note_unnamed_workers()
        yield Sample(time, HOST, self.name, values)

    @property
    def _shortest_share_s(self) -> float:
        return min(_SHORTEST_SHARE_S, self.period_s / 2)

    def _note_unnamed_workers(self) -> None:
        """Say so once where torch, imported since, turns out to be too old."""
        device, reason = self._device, workers_absent(self._psutil)
        if reason and device is not None and _WORKERS[0] not in device.absent:
            absent = {**device.absent, **dict.fromkeys(_WORKERS, reason)}
            self._device = replace(device, absent=absent)

    def _add_shares(self, time: float, values: dict[str, float]) -> None:
        counters = {name: values[name] for name in _SHARES.values() if name in values}
        if self._before is None:
            self._before = (time, counters)
            return
        start, before = self._before
        elapsed = time - start
        if elapsed < self._shortest_share_s:
            return
        for share, counter in _SHARES.items():
            if counter in counters and counter in before:
                values[share] = max(0.0, counters[counter] - before[counter]) / elapsed
        if "main_thread_cpu_ratio" in values:
            # The stamp is taken a moment before the clock is read; a thread has one core.
            values["main_thread_cpu_ratio"] = min(1.0, values["main_thread_cpu_ratio"])
        self._before = (time, counters)

    def close(self) -> None:
        """Forget the processes."""
        self._children.forget()
        self._before = None


def _main_thread_clock() -> int | None:
    """Return the main thread's processor clock for ``time.clock_gettime``; macOS has none."""
    clock_of = getattr(real_time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return None
    try:
        clock: int = clock_of(threading.main_thread().ident)
    except OSError:
        return None
    return clock


def _read_container(cgroup: Cgroup, values: dict[str, float]) -> None:
    """Add what the container tells of its memory, its processor quota and its storage."""
    used, throttling, stalled = (
        cgroup.memory_used(), cgroup.cpu_throttling(), cgroup.io_pressure()
    )
    if used is not None:
        values["container_memory_used_bytes"] = float(used)
    if throttling is not None:
        values["container_cpu_throttled_seconds"] = throttling.throttled_s
        values["container_cpu_periods_count"] = float(throttling.periods)
        values["container_cpu_throttled_periods_count"] = float(throttling.throttled_periods)
    if stalled is not None:
        values["io_pressure_seconds"] = stalled


def _busy_seconds(times: Any) -> float:
    """Sum the processor seconds in which something ran, over all cores."""
    idle: float = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guest time in user time as well.
    guest: float = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    total: float = sum(times)
    return total - idle - guest
