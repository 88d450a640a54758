"""The host source counts this process, its main thread and the machine, by differences."""

from __future__ import annotations

import threading
import time as real_time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes import GIB, FakeClock
from fakes_psutil import Machine, host_on, read, step
from gpumagic.metrics import of_source
from gpumagic.sample import HOST
from gpumagic.sources.cgroup import Cgroup
from gpumagic.sources.host import HostSource

MAIN_THREAD = ("main_thread_cpu_seconds", "main_thread_cpu_ratio")
THROTTLING = (
    "container_cpu_throttled_seconds",
    "container_cpu_periods_count",
    "container_cpu_throttled_periods_count",
)
needs_clock = pytest.mark.skipif(
    not hasattr(real_time, "pthread_getcpuclockid"),
    reason="this system has no processor clock of a single thread",
)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def source(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> HostSource:
    return host_on(machine, monkeypatch, Cgroup(tmp_path, "", tmp_path / "no pressure"))


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


def test_the_host_tells_its_limits(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Constants have the machine's size and what a container may use of it."""
    (tmp_path / "cpu.max").write_text("200000 100000")
    (tmp_path / "memory.max").write_text(str(8 * GIB))
    (tmp_path / "memory.current").write_text(str(3 * GIB))
    (tmp_path / "cpu.stat").write_text("nr_periods 10\nnr_throttled 4\nthrottled_usec 2500000")
    (tmp_path / "io.pressure").write_text("some avg10=0.00 total=1500000\nfull total=7")
    assert HostSource().devices() == []
    machine.become_linux(monkeypatch)
    source = host_on(machine, monkeypatch, Cgroup(tmp_path, "0::/\n"))
    (host,) = source.devices()
    assert (host.id, host.kind) == (HOST, "host")
    assert host.constants["host_cpu_count"] == 8
    assert host.constants["host_cpu_limit_ratio"] <= 2
    assert host.constants["host_memory_total_bytes"] == 64 * GIB
    assert host.constants["host_memory_limit_bytes"] == 8 * GIB
    has_clock = hasattr(real_time, "pthread_getcpuclockid")
    assert set(host.absent) == (set() if has_clock else set(MAIN_THREAD))
    values = read(source, FakeClock())
    assert values["container_memory_used_bytes"] == 3 * GIB
    assert values["container_cpu_periods_count"] == 10
    assert values["container_cpu_throttled_periods_count"] == 4
    assert values["container_cpu_throttled_seconds"] == 2.5
    assert values["io_pressure_seconds"] == 1.5


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


def test_what_no_container_tells_is_absent_with_the_reason(source: HostSource) -> None:
    """Without a quota and without figures of pressure their metrics are absent, and not 0."""
    (host,) = source.devices()
    assert {host.absent[name] for name in THROTTLING} == {"no processor quota is set"}
    assert "pressure" in host.absent["io_pressure_seconds"]
    assert not {*THROTTLING, "io_pressure_seconds"} & set(read(source, FakeClock()))


def test_a_quota_whose_figures_cannot_be_read_is_told_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A quota without a readable cpu.stat has another reason than no quota."""
    (tmp_path / "cpu.max").write_text("200000 100000")
    (host,) = host_on(machine, monkeypatch, Cgroup(tmp_path, "0::/\n")).devices()
    assert {host.absent[name] for name in THROTTLING} == {
        "cpu.stat of the group with the processor quota cannot be read"
    }


def in_a_thread(work: Callable[[], None]) -> None:
    """Run something in another thread, as the sampler does, and wait for it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@needs_clock
def test_the_main_thread_is_read_from_another_thread(source: HostSource) -> None:
    """The clock is that of the main thread and not that of the thread that reads."""
    found: list[dict[str, float]] = []
    clock = FakeClock()

    def look() -> None:
        found.append(step(source, clock))

    def busy() -> None:
        begun = real_time.thread_time()
        while real_time.thread_time() < begun + 0.2:
            pass

    in_a_thread(source.open)
    in_a_thread(look)
    in_a_thread(busy)
    in_a_thread(look)
    own = real_time.thread_time()
    busy()
    own = real_time.thread_time() - own
    in_a_thread(look)
    first, idle, worked = (values["main_thread_cpu_seconds"] for values in found)
    assert idle - first < 0.1
    assert own <= worked - idle < own + 0.1
    assert found[2]["main_thread_cpu_ratio"] == pytest.approx(worked - idle)
    assert "main_thread_cpu_ratio" not in found[0]


@needs_clock
def test_a_thread_uses_no_more_than_one_core(
    source: HostSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read a moment after the stamp; the share stays at one core at most."""
    clock = FakeClock()
    monkeypatch.setattr(real_time, "clock_gettime", lambda clock_id: clock.now * 1.01)
    read(source, clock)
    assert step(source, clock)["main_thread_cpu_ratio"] == 1.0


def test_without_a_clock_of_threads_the_main_thread_is_absent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the system has no such clock (macOS, Windows) the reason stands in its place."""
    monkeypatch.delattr(real_time, "pthread_getcpuclockid", raising=False)
    source = host_on(machine, monkeypatch, Cgroup(tmp_path, ""))
    clock = FakeClock()
    read(source, clock)
    values = step(source, clock)
    (host,) = source.devices()
    for name in MAIN_THREAD:
        assert name not in values
        assert "single thread" in host.absent[name]
    assert "process_cpu_ratio" in values
