"""The host source counts this process, its children and the machine, by differences."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time as real_time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import FakeClock
from gpumagic.metrics import METRICS, of_source
from gpumagic.sample import HOST, Sample
from gpumagic.sources.cgroup import Cgroup
from gpumagic.sources.host import HostSource

psutil = pytest.importorskip("psutil")
GIB = 1 << 30


def read(source: HostSource, now: Any) -> dict[str, float]:
    """Take one reading and return its values."""
    async def take() -> list[Any]:
        return [record async for record in source.read(now)]

    (sample,) = asyncio.run(take())
    assert isinstance(sample, Sample)
    assert (sample.device, sample.source) == (HOST, "host")
    return dict(sample.values)


class Times(SimpleNamespace):
    """psutil's named tuple of times, as far as it is used."""

    def __iter__(self) -> Any:
        return iter(vars(self).values())


class Process:
    """A process whose figures a test sets."""

    def __init__(self, pid: int, cpu: float = 0.0, rss: int = GIB) -> None:
        self.pid, self.cpu, self.rss = pid, cpu, rss
        self.reaped = 0.0
        self.kin: list[Process] = []
        self.gone = False
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

    def children(self, recursive: bool) -> list[Process]:
        assert recursive
        self.listed += 1
        real_time.sleep(self.listing_s)
        return [child for child in self.kin if not child.gone]


class Machine:
    """psutil of a machine with eight cores and one process of ours."""

    Error = psutil.Error

    def __init__(self) -> None:
        self.own = Process(os.getpid())
        self.times = Times(user=100.0, nice=5.0, system=50.0, idle=1e6, iowait=1e5, irq=1.0,
                           softirq=1.0, steal=0.0, guest=5.0, guest_nice=0.0)

    def Process(self, pid: int) -> Process:
        assert pid == os.getpid()
        return self.own

    def cpu_count(self) -> int:
        return 8

    def cpu_times(self) -> Times:
        return self.times

    def virtual_memory(self) -> Any:
        return SimpleNamespace(total=64 * GIB, available=48 * GIB)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setitem(sys.modules, "psutil", made)
    return made


@pytest.fixture
def source(machine: Machine, tmp_path: Path) -> HostSource:
    made = HostSource(cgroup=Cgroup(tmp_path, ""))
    made.open()
    return made


def test_shares_are_differences_over_the_time(machine: Machine, source: HostSource) -> None:
    """The first reading has no processor shares; the next have time used over time passed."""
    clock = FakeClock()
    machine.own.cpu = 10
    first = read(source, clock)
    assert not {name for name in first if name.endswith("_ratio")}
    assert first["process_cpu_seconds"] == 10
    assert first["process_rss_bytes"] == GIB
    assert first["host_memory_used_bytes"] == 16 * GIB
    assert "container_memory_used_bytes" not in first
    clock.advance(2)
    machine.own.cpu = 13
    machine.times.user += 8.0
    machine.times.idle += 4.0
    machine.times.iowait += 4.0
    second = read(source, clock)
    assert second["process_cpu_ratio"] == pytest.approx(1.5)
    assert second["host_cpu_ratio"] == pytest.approx(4.0)
    assert second["children_cpu_ratio"] == 0


def test_guest_time_counts_once(machine: Machine, source: HostSource) -> None:
    """Linux has a guest's time in user time as well."""
    clock = FakeClock()
    before = read(source, clock)["host_cpu_seconds"]
    machine.times.user += 3.0
    machine.times.guest += 3.0
    clock.advance(1)
    assert read(source, clock)["host_cpu_ratio"] == pytest.approx(3.0)
    assert before == pytest.approx(100 + 5 + 50 + 1 + 1)


def test_a_second_reading_in_a_moment_has_no_shares(machine: Machine, source: HostSource) -> None:
    """Times count in steps of 10 ms: over a moment there is no share, and the next one is whole."""
    clock = FakeClock()
    read(source, clock)
    clock.advance(0.01)
    machine.own.cpu = 0.01
    assert "process_cpu_ratio" not in read(source, clock)
    clock.advance(0.99)
    machine.own.cpu = 0.5
    assert read(source, clock)["process_cpu_ratio"] == pytest.approx(0.5)


def test_children_are_counted_from_the_first_reading(
    machine: Machine, source: HostSource
) -> None:
    """What children used before the first reading is left out; a later child counts wholly."""
    clock = FakeClock()
    child = Process(101, cpu=50, rss=2 * GIB)
    machine.own.kin = [child]
    first = read(source, clock)
    assert (first["children_count"], first["children_rss_bytes"]) == (1, 2 * GIB)
    assert first["children_cpu_seconds"] == 0
    clock.advance(1)
    child.cpu = 51
    second = read(source, clock)
    assert second["children_cpu_ratio"] == pytest.approx(1.0)
    late = Process(102, cpu=7)
    machine.own.kin.append(late)
    clock.advance(1)
    child.cpu, late.cpu = 52, 9
    third = read(source, clock)
    assert third["children_count"] == 2
    assert third["children_cpu_ratio"] == pytest.approx(1.0 + 9.0)
    assert third["children_cpu_seconds"] == pytest.approx(2.0 + 9.0)


def test_a_child_that_ends_unseen_counts(machine: Machine, source: HostSource) -> None:
    """A child that began and ended between two readings counts once it is waited for."""
    clock = FakeClock()
    machine.own.reaped = 30
    assert read(source, clock)["children_cpu_seconds"] == 0
    clock.advance(2)
    machine.own.reaped = 31.5
    assert read(source, clock)["children_cpu_ratio"] == pytest.approx(0.75)


def test_a_child_counts_once_when_it_is_waited_for(machine: Machine, source: HostSource) -> None:
    """A child's time and that of its own children pass to its parent and are not counted twice."""
    clock = FakeClock()
    child = Process(101, cpu=1)
    machine.own.kin = [child]
    read(source, clock)
    clock.advance(1)
    child.cpu, child.reaped = 2, 4
    assert read(source, clock)["children_cpu_seconds"] == pytest.approx(5)
    clock.advance(1)
    machine.own.kin, machine.own.reaped = [], 2.5 + 4
    assert read(source, clock)["children_cpu_seconds"] == pytest.approx(5.5)


def test_a_child_missed_in_one_reading_is_made_up_in_the_next(
    machine: Machine, source: HostSource
) -> None:
    """A child waited for between two steps of a reading holds the counter for that reading."""
    clock = FakeClock()
    child = Process(101)
    machine.own.kin = [child]
    read(source, clock)
    child.cpu = 7
    assert read(source, clock)["children_cpu_seconds"] == 7
    child.gone = True
    assert read(source, clock)["children_cpu_seconds"] == 7
    machine.own.reaped = 8
    assert read(source, clock)["children_cpu_seconds"] == 8


def test_time_lost_for_good_does_not_hide_what_follows(
    machine: Machine, source: HostSource
) -> None:
    """Where nobody waits for a child its last moments are lost, and later children count."""
    clock = FakeClock()
    child = Process(101)
    machine.own.kin = [child]
    read(source, clock)
    child.cpu = 100
    assert read(source, clock)["children_cpu_seconds"] == 100
    machine.own.kin = []
    for _ in range(2):
        clock.advance(1)
        assert read(source, clock)["children_cpu_seconds"] == 100
    machine.own.kin = [Process(102, cpu=3)]
    clock.advance(1)
    assert read(source, clock)["children_cpu_seconds"] == 103


def test_a_child_that_goes_takes_nothing_back(machine: Machine, source: HostSource) -> None:
    """A child that ends between listings is left out, and the counter does not fall."""
    clock = FakeClock()
    one, two = Process(101), Process(102)
    machine.own.kin = [one, two]
    read(source, clock)
    clock.advance(1)
    one.cpu = two.cpu = 3
    total = read(source, clock)["children_cpu_seconds"]
    assert total == 6
    one.gone = True
    clock.advance(0.5)
    values = read(source, clock)
    assert values["children_count"] == 1
    assert values["children_cpu_seconds"] == 6


def test_a_reused_pid_is_another_process(machine: Machine, source: HostSource) -> None:
    """A new child under an old PID does not make the counter fall or jump."""
    clock = FakeClock()
    machine.own.kin = [Process(101, cpu=100)]
    read(source, clock)
    machine.own.kin = [Process(101, cpu=1)]
    clock.advance(3)
    assert read(source, clock)["children_cpu_seconds"] == 0


def test_children_are_listed_less_often_where_that_is_slow(
    machine: Machine, source: HostSource
) -> None:
    """Listing the children takes a tenth of the time at most: a slow list is kept meanwhile."""
    clock = FakeClock()
    child = Process(101)
    machine.own.kin = [child]
    machine.own.listing_s = 0.06
    read(source, clock)
    clock.advance(0.5)
    child.cpu = 2
    assert read(source, clock)["children_cpu_seconds"] == 2
    assert machine.own.listed == 1
    clock.advance(60)
    read(source, clock)
    assert machine.own.listed == 2


def test_the_host_tells_its_limits(machine: Machine, tmp_path: Path) -> None:
    """Constants have the machine's size and what a container may use of it."""
    (tmp_path / "cpu.max").write_text("200000 100000")
    (tmp_path / "memory.max").write_text(str(8 * GIB))
    (tmp_path / "memory.current").write_text(str(3 * GIB))
    source = HostSource(cgroup=Cgroup(tmp_path, "0::/\n"))
    assert source.devices() == []
    source.open()
    (host,) = source.devices()
    assert (host.id, host.kind) == (HOST, "host")
    assert host.constants["host_cpu_count"] == 8
    assert host.constants["host_cpu_limit_ratio"] <= 2
    assert host.constants["host_memory_total_bytes"] == 64 * GIB
    assert host.constants["host_memory_limit_bytes"] == 8 * GIB
    assert host.absent == {}
    assert read(source, FakeClock())["container_memory_used_bytes"] == 3 * GIB


def test_without_a_limit_the_machine_is_the_limit(source: HostSource) -> None:
    """Where no cgroup limits anything, the limit is the machine's memory, and used is absent."""
    (host,) = source.devices()
    assert host.constants["host_memory_limit_bytes"] == 64 * GIB
    assert "container_memory_used_bytes" in host.absent
    assert set(host.constants) == {m.name for m in of_source("host", kinds=["constant"])}


def test_closing_forgets_and_opening_begins_anew(machine: Machine, source: HostSource) -> None:
    """After a close and an open the first reading has no shares again."""
    clock = FakeClock()
    read(source, clock)
    source.close()
    source.close()
    source.open()
    clock.advance(5)
    assert "process_cpu_ratio" not in read(source, clock)


def test_a_busy_child_is_seen() -> None:
    """With the real psutil a child that computes uses a core, and idle time is no use."""
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    source = HostSource()
    try:
        source.open()
        start = real_time.monotonic()
        before = read(source, real_time.monotonic)
        child = psutil.Process(spin.pid)
        used = sum(child.cpu_times()[:2])
        # On a loaded machine the child gets its time slowly.
        while sum(child.cpu_times()[:2]) < used + 0.3 and real_time.monotonic() < start + 20:
            real_time.sleep(0.02)
        values = read(source, real_time.monotonic)
        elapsed = real_time.monotonic() - start
    finally:
        spin.kill()
        spin.wait()
        source.close()
    assert values["children_count"] >= 1
    assert values["children_cpu_seconds"] - before["children_cpu_seconds"] > 0.25
    assert values["children_cpu_ratio"] * elapsed == pytest.approx(
        values["children_cpu_seconds"], rel=0.2
    )
    assert values["process_cpu_ratio"] < 0.9
    assert 0 < values["process_rss_bytes"] < values["host_memory_used_bytes"] * 10
    assert values["host_cpu_ratio"] <= (os.cpu_count() or 1) * 1.05
    assert set(values) <= set(METRICS)
    assert {METRICS[name].source for name in values} == {"host"}


@pytest.mark.skipif(sys.platform != "linux", reason="psutil tells of ended children on Linux only")
@pytest.mark.parametrize(("spin_s", "times"), [(0.5, 1), (1.5, 1), (0.3, 4)])
def test_commands_that_have_ended_count(spin_s: float, times: int) -> None:
    """A command that computes counts about as much time as the machine has given it."""
    spin = (
        "import time; t = time.process_time()\n"
        f"while time.process_time() - t < {spin_s}: pass"
    )
    source = HostSource()
    source.open()
    read(source, real_time.monotonic)
    for _ in range(times):
        subprocess.run([sys.executable, "-c", spin], check=True)
    used = read(source, real_time.monotonic)["children_cpu_seconds"]
    source.close()
    assert spin_s * times * 0.95 < used < spin_s * times + 0.5 * times
