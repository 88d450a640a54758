"""A psutil whose figures a test sets, and how a host source is read on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time as real_time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fakes import GIB, FakeClock
from gpumagic.sample import HOST, Sample
from gpumagic.sources.cgroup import Cgroup
from gpumagic.sources.host import HostSource

__all__ = ["Machine", "Process", "begin", "host_on", "read", "step"]


class Times(SimpleNamespace):
    """psutil's named tuple of times, as far as it is used."""

    def __iter__(self) -> Any:
        return iter(vars(self).values())


class Process:
    """A process whose figures a test sets."""

    def __init__(
        self, pid: int, cpu: float = 0.0, rss: int = GIB, *, name: str = "python", parent: int = 1
    ) -> None:
        self.pid, self.cpu, self.rss = pid, cpu, rss
        self.called, self.parent = name, parent
        self.reaped = 0.0
        self.kin: list[Process] = []
        self.gone = self.ended = False
        self.listed, self.listing_s = 0, 0.0

    def oneshot(self) -> Any:
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)
        return contextlib.nullcontext()

    def cpu_times(self) -> Any:
        return SimpleNamespace(
            user=self.cpu * 0.75, system=self.cpu * 0.25,
            children_user=self.reaped * 0.5, children_system=self.reaped * 0.5,
        )

    def memory_info(self) -> Any:
        return SimpleNamespace(rss=self.rss)

    def name(self) -> str:
        return self.called

    def ppid(self) -> int:
        return self.parent

    def status(self) -> str:
        return psutil.STATUS_ZOMBIE if self.ended else psutil.STATUS_SLEEPING

    def children(self, recursive: bool) -> list[Process]:
        assert recursive
        self.listed += 1
        real_time.sleep(self.listing_s)
        return [child for child in self.kin if not child.gone]


class Machine:
    """psutil of a machine with eight cores and one process of ours; no Linux until told so.

    ``newcomers`` are the children that the kernel lists for the main thread.
    """

    Error = psutil.Error
    STATUS_ZOMBIE = psutil.STATUS_ZOMBIE
    LINUX = False

    def __init__(self) -> None:
        self.own = Process(os.getpid())
        self.newcomers: list[Process] = []
        self.times = Times(user=100.0, nice=5.0, system=50.0, idle=1e6, iowait=1e5, irq=1.0,
                           softirq=1.0, steal=0.0, guest=5.0, guest_nice=0.0)

    def become_linux(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the source ask the kernel, whose answers come from here."""
        self.LINUX = True
        monkeypatch.setattr("gpumagic.sources.children._childless", lambda psutil: False)
        monkeypatch.setattr(
            "gpumagic.sources.children._started_by_main_thread",
            lambda: [process.pid for process in self.newcomers],
        )

    def Process(self, pid: int) -> Process:
        for process in (self.own, *self.newcomers):
            if process.pid == pid and not process.gone:
                return process
        raise psutil.NoSuchProcess(pid)

    def cpu_count(self) -> int:
        return 8

    def cpu_times(self) -> Times:
        return self.times

    def virtual_memory(self) -> Any:
        return SimpleNamespace(total=64 * GIB, available=48 * GIB)


def host_on(machine: Machine, monkeypatch: pytest.MonkeyPatch, cgroup: Cgroup) -> HostSource:
    """Open a host source that takes a machine for its psutil."""
    monkeypatch.setitem(sys.modules, "psutil", machine)
    source = HostSource(cgroup=cgroup)
    source.open()
    return source


def read(source: HostSource, now: Callable[[], float]) -> dict[str, float]:
    """Take one reading and return its values."""
    async def take() -> list[Any]:
        return [record async for record in source.read(now)]

    (sample,) = asyncio.run(take())
    assert isinstance(sample, Sample)
    assert (sample.device, sample.source) == (HOST, "host")
    return dict(sample.values)


def begin(machine: Machine, source: HostSource, *children: Process) -> FakeClock:
    """Give our process children, take the first reading and return its clock."""
    clock = FakeClock()
    machine.own.kin = list(children)
    read(source, clock)
    return clock


def step(source: HostSource, clock: FakeClock, seconds: float = 1.0) -> dict[str, float]:
    """Take a reading some seconds later."""
    clock.advance(seconds)
    return read(source, clock)
