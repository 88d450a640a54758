"""The children's time is counted by differences, and workers are compared with one another."""

from __future__ import annotations

import os
import subprocess
import sys
import time as real_time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fakes import GIB, FakeClock
from fakes_psutil import Machine, Process, begin, host_on, read, step
from gpumagic.metrics import METRICS
from gpumagic.sources.cgroup import Cgroup
from gpumagic.sources.host import HostSource

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="names of processes on Linux only")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def source(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> HostSource:
    return host_on(machine, monkeypatch, Cgroup(tmp_path, ""))


def test_children_are_counted_from_the_first_reading(
    machine: Machine, source: HostSource
) -> None:
    """What children used before the first reading is left out; a later child counts wholly."""
    child = Process(101, cpu=50, rss=2 * GIB)
    machine.own.kin = [child]
    clock = FakeClock()
    first = read(source, clock)
    assert (first["children_count"], first["children_rss_bytes"]) == (1, 2 * GIB)
    assert first["children_cpu_seconds"] == 0
    child.cpu = 51
    second = step(source, clock)
    assert second["children_cpu_ratio"] == pytest.approx(1.0)
    late = Process(102, cpu=7)
    machine.own.kin.append(late)
    child.cpu, late.cpu = 52, 9
    third = step(source, clock)
    assert third["children_count"] == 2
    assert third["children_cpu_ratio"] == pytest.approx(1.0 + 9.0)
    assert third["children_cpu_seconds"] == pytest.approx(2.0 + 9.0)


def test_a_child_that_ends_unseen_counts(machine: Machine, source: HostSource) -> None:
    """A child that began and ended between two readings counts once it is waited for."""
    clock = FakeClock()
    machine.own.reaped = 30
    assert read(source, clock)["children_cpu_seconds"] == 0
    machine.own.reaped = 31.5
    assert step(source, clock, 2)["children_cpu_ratio"] == pytest.approx(0.75)


def test_a_child_counts_once_when_it_is_waited_for(machine: Machine, source: HostSource) -> None:
    """A child's time and that of its own children pass to its parent and are not counted twice."""
    child = Process(101, cpu=1)
    clock = begin(machine, source, child)
    child.cpu, child.reaped = 2, 4
    assert step(source, clock)["children_cpu_seconds"] == pytest.approx(5)
    machine.own.kin, machine.own.reaped = [], 2.5 + 4
    assert step(source, clock)["children_cpu_seconds"] == pytest.approx(5.5)


def test_a_child_missed_in_one_reading_is_made_up_in_the_next(
    machine: Machine, source: HostSource
) -> None:
    """A child waited for between two steps of a reading holds the counter for that reading."""
    child = Process(101)
    clock = begin(machine, source, child)
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
    child = Process(101)
    clock = begin(machine, source, child)
    child.cpu = 100
    assert read(source, clock)["children_cpu_seconds"] == 100
    machine.own.kin = []
    for _ in range(2):
        assert step(source, clock)["children_cpu_seconds"] == 100
    machine.own.kin = [Process(102, cpu=3)]
    assert step(source, clock)["children_cpu_seconds"] == 103


def test_a_child_that_goes_takes_nothing_back(machine: Machine, source: HostSource) -> None:
    """A child that ends between listings is left out, and the counter does not fall."""
    one, two = Process(101), Process(102)
    clock = begin(machine, source, one, two)
    one.cpu = two.cpu = 3
    total = step(source, clock)["children_cpu_seconds"]
    assert total == 6
    one.gone = True
    values = step(source, clock, 0.5)
    assert values["children_count"] == 1
    assert values["children_cpu_seconds"] == 6


def test_a_reused_pid_is_another_process(machine: Machine, source: HostSource) -> None:
    """A new child under an old PID does not make the counter fall or jump."""
    clock = begin(machine, source, Process(101, cpu=100))
    machine.own.kin = [Process(101, cpu=1)]
    assert step(source, clock, 3)["children_cpu_seconds"] == 0


def test_children_are_listed_less_often_where_that_is_slow(
    machine: Machine, source: HostSource
) -> None:
    """Listing the children takes a tenth of the time at most: a slow list is kept meanwhile."""
    child = Process(101)
    machine.own.listing_s = 0.06
    clock = begin(machine, source, child)
    child.cpu = 2
    assert step(source, clock, 0.5)["children_cpu_seconds"] == 2
    assert machine.own.listed == 1
    step(source, clock, 60)
    assert machine.own.listed == 2


WORKERS = ("workers_cpu_ratio", "workers_busiest_cpu_ratio", "workers_idlest_cpu_ratio")


def worker(pid: int, cpu: float = 0.0, parent: int | None = None) -> Process:
    """Make a worker of a DataLoader in our process."""
    return Process(pid, cpu, name="pt_data_worker", parent=parent or os.getpid())


@pytest.fixture
def linux(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> HostSource:
    machine.become_linux(monkeypatch)
    monkeypatch.delitem(sys.modules, "torch.multiprocessing", raising=False)
    return host_on(machine, monkeypatch, Cgroup(tmp_path, ""))


def test_workers_are_told_by_their_name(machine: Machine, linux: HostSource) -> None:
    """Children with the name of workers count; their shares need two readings of the same ones."""
    one, two, other = worker(101, cpu=5), worker(102, cpu=7), Process(103)
    machine.own.kin = [one, two, other]
    clock = FakeClock()
    first = read(linux, clock)
    assert (first["workers_count"], first["children_count"]) == (2, 3)
    assert not set(WORKERS) & set(first)
    one.cpu, two.cpu, other.cpu = 5.5, 8.5, 3
    second = step(linux, clock, 2)
    assert [second[name] for name in WORKERS] == pytest.approx([1.0, 0.75, 0.25])


def test_without_workers_their_number_is_0_and_shares_are_absent(
    machine: Machine, linux: HostSource
) -> None:
    """No worker is a fact that is told; the shares of none are not 0."""
    clock = begin(machine, linux, Process(101))
    values = step(linux, clock)
    assert values["workers_count"] == 0
    assert not set(WORKERS) & set(values)


def test_a_worker_counts_in_the_shares_if_it_lived_through_the_interval(
    machine: Machine, linux: HostSource
) -> None:
    """A worker that begins or ends between two readings is in no share of theirs."""
    stays, ends = worker(101), worker(102)
    clock = begin(machine, linux, stays, ends)
    ends.gone, stays.cpu = True, 0.5
    machine.own.kin.append(worker(103, cpu=9))
    values = step(linux, clock)
    assert values["workers_count"] == 2
    assert [values[name] for name in WORKERS] == pytest.approx([0.5, 0.5, 0.5])
    stays.gone = True
    machine.own.kin = [worker(104)]
    values = step(linux, clock)
    assert values["workers_count"] == 1
    assert not set(WORKERS) & set(values)


def test_a_worker_under_a_reused_pid_is_another(machine: Machine, linux: HostSource) -> None:
    """What the old worker had used is not taken for the new one's."""
    clock = begin(machine, linux, worker(101, cpu=0.2))
    machine.own.kin = [worker(101, cpu=0.9)]
    assert not set(WORKERS) & set(step(linux, clock))


def test_a_reading_in_between_does_not_shorten_the_workers_interval(
    machine: Machine, linux: HostSource
) -> None:
    """Over a moment there is no share, and the next one is whole."""
    one = worker(101)
    clock = begin(machine, linux, one)
    one.cpu = 0.01
    assert not set(WORKERS) & set(step(linux, clock, 0.01))
    one.cpu = 0.5
    assert step(linux, clock, 0.99)["workers_cpu_ratio"] == pytest.approx(0.5)


def test_what_a_worker_forks_is_no_worker(machine: Machine, linux: HostSource) -> None:
    """A forked process has its parent's name, and one that has ended does no work."""
    one, dead = worker(101), worker(103)
    dead.ended = True
    clock = begin(machine, linux, one, worker(102, parent=101), dead)
    assert step(linux, clock)["workers_count"] == 1


def test_a_worker_can_get_its_name_late(machine: Machine, linux: HostSource) -> None:
    """A spawned worker imports torch first; its shares begin once it has its name."""
    late = Process(101, parent=os.getpid())
    clock = begin(machine, linux, late)
    late.called, late.cpu = "pt_data_worker", 4
    values = step(linux, clock)
    assert values["workers_count"] == 1
    assert "workers_cpu_ratio" not in values
    late.cpu = 4.5
    assert step(linux, clock)["workers_cpu_ratio"] == pytest.approx(0.5)


def test_new_workers_are_seen_while_the_list_is_kept(
    machine: Machine, linux: HostSource
) -> None:
    """What the main thread starts is in the next reading though listing all is not due."""
    machine.own.listing_s = 0.06
    clock = begin(machine, linux, Process(101))
    one, gone = worker(102), worker(103)
    gone.gone = True
    machine.newcomers = [one, gone]
    assert step(linux, clock, 0.3)["workers_count"] == 1
    one.cpu = 0.1
    assert step(linux, clock, 0.25)["workers_busiest_cpu_ratio"] == pytest.approx(0.4)
    assert machine.own.listed == 1


def test_elsewhere_workers_are_absent(machine: Machine, source: HostSource) -> None:
    """Where names of processes are not read, the number of workers is absent and not 0."""
    values = step(source, begin(machine, source, worker(101)))
    (host,) = source.devices()
    for name in ("workers_count", *WORKERS):
        assert name not in values
        assert "Linux only" in host.absent[name]


def test_an_old_torch_names_no_workers(
    machine: Machine, linux: HostSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a torch before 2.5 is imported, the workers are absent with that reason."""
    clock = begin(machine, linux, worker(101))
    (host,) = linux.devices()
    assert "workers_count" not in host.absent
    old = SimpleNamespace(get_sharing_strategy=lambda: "file_descriptor")
    monkeypatch.setitem(sys.modules, "torch.multiprocessing", old)
    assert "workers_count" not in step(linux, clock)
    (host,) = linux.devices()
    assert "2.5" in host.absent["workers_count"]
    assert host.constants["host_cpu_count"] == 8


NAMED = """
import sys, time
with open("/proc/self/comm", "w") as comm:
    comm.write("pt_data_worker")
print("named", flush=True)
spin = float(sys.argv[1])
while spin and time.process_time() < spin: pass
print("done", flush=True)
sys.stdin.read()
"""


def start_named(spin_s: float) -> subprocess.Popen[str]:
    """Start a child that names itself a worker, computes for a time and then waits."""
    child = subprocess.Popen(
        [sys.executable, "-c", NAMED, str(spin_s)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "named\n"
    return child


@linux_only
def test_real_processes_with_the_name_of_workers_are_seen() -> None:
    """With the real psutil the busiest worker is the one that computes."""
    source = HostSource()
    children = [start_named(0.0), start_named(1.0)]
    try:
        source.open()
        begun = read(source, real_time.time)
        start = real_time.time()
        assert children[1].stdout is not None
        assert children[1].stdout.readline() == "done\n"
        real_time.sleep(max(0.0, start + 0.3 - real_time.time()))
        values = read(source, real_time.time)
        elapsed = real_time.time() - start
    finally:
        for child in children:
            child.communicate()
        source.close()
    assert begun["workers_count"] == values["workers_count"] == 2
    assert values["workers_busiest_cpu_ratio"] * elapsed > 0.5
    assert values["workers_idlest_cpu_ratio"] * elapsed < 0.2
    assert values["workers_cpu_ratio"] == pytest.approx(
        values["workers_busiest_cpu_ratio"] + values["workers_idlest_cpu_ratio"]
    )


@linux_only
def test_the_kernel_lists_what_the_main_thread_started() -> None:
    """A child is among the main thread's, where the kernel keeps such a list."""
    from gpumagic.sources.children import _started_by_main_thread

    child = start_named(0.0)
    try:
        listed = _started_by_main_thread()
        kept = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists()
        assert (child.pid in listed) == kept
    finally:
        child.communicate()


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
