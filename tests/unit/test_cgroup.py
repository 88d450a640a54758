"""A container's limits are found in both versions of cgroups, at any depth."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpumagic.sources.cgroup import Cgroup, Throttling, cores_allowed

GIB = 1 << 30
V1_UNLIMITED = "9223372036854771712"


def tree(root: Path, membership: str, files: Mapping[str, str | int]) -> Cgroup:
    """Make a hierarchy out of its files' paths and contents."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return Cgroup(root, membership)


V2 = "0::/kube/pod/box\n"
V1 = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc\n"


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        (V2, {"kube/pod/box/cpu.max": "150000 100000"}, 1.5),
        (V2, {"kube/pod/box/cpu.max": "max 100000"}, None),
        (V2, {"kube/pod/box/cpu.max": "max 100000", "kube/cpu.max": "400000 100000"}, 4.0),
        (V2, {"kube/pod/box/cpu.max": "800000 100000", "kube/pod/cpu.max": "200000 100000"}, 2.0),
        (V2, {"cpu.max": "50000 100000"}, 0.5),
        (V2, {"kube/pod/box/cpu.max": ""}, None),
        (V2, {"kube/pod/box/cpu.max": "100000 0"}, None),
        (V2, {"kube/pod/box/memory.max": "1"}, None),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": 250_000,
              "cpu/docker/abc/cpu.cfs_period_us": 100_000}, 2.5),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": -1,
              "cpu/docker/abc/cpu.cfs_period_us": 100_000}, None),
        (V1, {"cpu/cpu.cfs_quota_us": 300_000, "cpu/cpu.cfs_period_us": 100_000}, 3.0),
        (V1, {"cpu,cpuacct/docker/abc/cpu.cfs_quota_us": 100_000,
              "cpu,cpuacct/docker/abc/cpu.cfs_period_us": 100_000}, 1.0),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": 100_000}, None),
        ("", {"cpu.max": "100000 100000"}, None),
        ("nonsense\n::\n", {}, None),
    ],
)
def test_the_smallest_quota_counts(
    tmp_path: Path, membership: str, files: Mapping[str, str | int], cores: float | None
) -> None:
    """The processor limit is the smallest from the own group to the root, None without one."""
    assert tree(tmp_path, membership, files).cpu_limit() == cores


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        (V2, {"kube/pod/box/memory.max": 4 * GIB}, 4 * GIB),
        (V2, {"kube/pod/box/memory.max": "max"}, None),
        (V2, {"kube/pod/box/memory.max": "max", "kube/pod/memory.max": 2 * GIB}, 2 * GIB),
        (V2, {"kube/pod/box/memory.max": 8 * GIB, "kube/memory.max": 3 * GIB}, 3 * GIB),
        (V2, {"memory.max": 6 * GIB}, 6 * GIB),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": GIB}, GIB),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": V1_UNLIMITED}, None),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": V1_UNLIMITED,
              "memory/docker/memory.limit_in_bytes": 5 * GIB}, 5 * GIB),
        (V1, {"memory/memory.limit_in_bytes": 7 * GIB}, 7 * GIB),
        ("0::/../../other\n", {"memory.max": 6 * GIB}, 6 * GIB),
        ("", {"memory.max": GIB}, None),
    ],
)
def test_the_smallest_memory_limit_counts(
    tmp_path: Path, membership: str, files: Mapping[str, str | int], limit: int | None
) -> None:
    """The memory limit is the smallest of all levels; a huge number or "max" is none.

    The host's path in /proc/self/cgroup need not be visible: the mount's root stands for it.
    """
    root = tmp_path / "a" / "cgroup"
    assert tree(root, membership, files).memory_limit() == limit


def test_used_memory_leaves_out_what_the_kernel_gives_back(tmp_path: Path) -> None:
    """Inactive file pages are subtracted, and never to less than nothing."""
    files: dict[str, str | int] = {
        "kube/pod/box/memory.current": 10 * GIB,
        "kube/pod/box/memory.stat": f"anon 5\ninactive_file {3 * GIB}\nactive_file 7",
    }
    assert tree(tmp_path, V2, files).memory_used() == 7 * GIB
    files["kube/pod/box/memory.stat"] = f"inactive_file {30 * GIB}"
    assert tree(tmp_path, V2, files).memory_used() == 0


def test_used_memory_of_version_one(tmp_path: Path) -> None:
    """Version 1 counts usage_in_bytes less the inactive files of the whole subtree."""
    assert tree(tmp_path, V1, {
        "memory/docker/abc/memory.usage_in_bytes": 4 * GIB,
        "memory/docker/abc/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
    }).memory_used() == 3 * GIB


def test_used_memory_stays_with_one_level(tmp_path: Path) -> None:
    """A limit that is set later does not move the gauge to another group."""
    files: dict[str, str | int] = {
        "kube/pod/box/memory.current": 1 * GIB, "kube/pod/memory.current": 6 * GIB,
    }
    cgroup = tree(tmp_path, V2, files)
    assert cgroup.memory_used() == 1 * GIB
    tree(tmp_path, V2, {**files, "kube/pod/memory.max": 8 * GIB,
                        "kube/pod/box/memory.current": 2 * GIB})
    assert cgroup.memory_used() == 2 * GIB


def test_used_memory_is_that_of_the_level_with_the_limit(tmp_path: Path) -> None:
    """Where an ancestor's limit is in force, what its whole subtree uses counts against it."""
    files: dict[str, str | int] = {
        "kube/pod/box/memory.current": 1 * GIB,
        "kube/pod/box/memory.max": "max",
        "kube/pod/memory.current": 6 * GIB,
        "kube/pod/memory.max": 8 * GIB,
    }
    cgroup = tree(tmp_path, V2, files)
    assert (cgroup.memory_limit(), cgroup.memory_used()) == (8 * GIB, 6 * GIB)
    files["kube/pod/memory.max"] = "max"
    cgroup = tree(tmp_path, V2, files)
    assert (cgroup.memory_limit(), cgroup.memory_used()) == (None, 1 * GIB)


STAT = "usage_usec 9\nnr_periods 500\nnr_throttled 125\nthrottled_usec 31250000\nnr_bursts 0"
V1_STAT = "nr_periods 40\nnr_throttled 10\nthrottled_time 2500000000"


@pytest.mark.parametrize(
    ("membership", "files", "found"),
    [
        (V2, {"kube/pod/box/cpu.max": "150000 100000", "kube/pod/box/cpu.stat": STAT},
         Throttling(500, 125, 31.25)),
        (V2, {"kube/pod/box/cpu.max": "800000 100000", "kube/pod/box/cpu.stat": "nr_periods 1",
              "kube/pod/cpu.max": "200000 100000", "kube/pod/cpu.stat": STAT},
         Throttling(500, 125, 31.25)),
        (V2, {"kube/pod/box/cpu.max": "max 100000", "kube/pod/box/cpu.stat": STAT}, None),
        (V2, {"kube/pod/box/cpu.max": "150000 100000"}, None),
        (V2, {"kube/pod/box/cpu.max": "150000 100000",
              "kube/pod/box/cpu.stat": "usage_usec 9\nthrottled_usec 5"}, None),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": 250_000,
              "cpu/docker/abc/cpu.cfs_period_us": 100_000,
              "cpu/docker/abc/cpu.stat": V1_STAT}, Throttling(40, 10, 2.5)),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": -1,
              "cpu/docker/abc/cpu.cfs_period_us": 100_000,
              "cpu/docker/abc/cpu.stat": V1_STAT}, None),
    ],
)
def test_throttling_is_that_of_the_quota_in_force(
    tmp_path: Path, membership: str, files: Mapping[str, str | int], found: Throttling | None
) -> None:
    """Periods and waits come from the level with the smallest quota, None without one."""
    assert tree(tmp_path, membership, files).cpu_throttling() == found


def test_throttling_stays_with_one_level(tmp_path: Path) -> None:
    """A quota that is set later elsewhere does not make the counters jump to another group's."""
    files: dict[str, str | int] = {
        "kube/pod/box/cpu.max": "200000 100000", "kube/pod/box/cpu.stat": STAT,
    }
    cgroup = tree(tmp_path, V2, files)
    assert cgroup.cpu_throttling() == Throttling(500, 125, 31.25)
    tree(tmp_path, V2, {"kube/pod/cpu.max": "100000 100000", "kube/pod/cpu.stat":
                        "nr_periods 7\nnr_throttled 7\nthrottled_usec 7"})
    assert cgroup.cpu_limit() == 1.0
    assert cgroup.cpu_throttling() == Throttling(500, 125, 31.25)


def pressure(total: int | str) -> str:
    """Write a file of pressure as the kernel does."""
    return (
        f"some avg10=1.00 avg60=0.50 avg300=0.10 total={total}\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=11"
    )


@pytest.mark.parametrize(
    ("own", "machine", "seconds"),
    [
        (pressure(2_500_000), pressure(90_000_000), 2.5),
        (pressure(0), pressure(90_000_000), 0.0),
        (None, pressure(90_000_000), 90.0),
        ("", pressure(90_000_000), 90.0),
        (pressure("?"), None, None),
        ("full avg10=0.00 total=5", None, None),
        (None, None, None),
    ],
)
def test_pressure_on_storage_is_the_groups_or_else_the_machines(
    tmp_path: Path, own: str | None, machine: str | None, seconds: float | None
) -> None:
    """Microseconds of "some" become seconds; 0 is a figure, and nothing readable is None."""
    base = tree(tmp_path, V2, {} if own is None else {"kube/pod/box/io.pressure": own})
    file = tmp_path / "machine"
    if machine is not None:
        file.write_text(machine)
    assert Cgroup(base.root, V2, file).io_pressure() == seconds


def test_pressure_stays_with_one_file(tmp_path: Path) -> None:
    """A group's file that cannot be read for once is not replaced by the machine's figures."""
    tree(tmp_path, V2, {"kube/pod/box/io.pressure": pressure(5_000_000)})
    (tmp_path / "machine").write_text(pressure(90_000_000))
    cgroup = Cgroup(tmp_path, V2, tmp_path / "machine")
    assert cgroup.io_pressure() == 5.0
    (tmp_path / "kube/pod/box/io.pressure").unlink()
    assert cgroup.io_pressure() is None


def test_without_cgroups_nothing_is_known(tmp_path: Path) -> None:
    """Without membership, or without the files, every answer is None."""
    for cgroup in (Cgroup(tmp_path, ""), Cgroup(tmp_path / "none", V2), Cgroup(tmp_path, V1)):
        assert cgroup.cpu_limit() is None
        assert cgroup.memory_limit() is None
        assert cgroup.memory_used() is None
        assert cgroup.cpu_throttling() is None


def test_both_versions_side_by_side(tmp_path: Path) -> None:
    """On a hybrid system the controllers of version 1 count though version 2 is there too."""
    cgroup = tree(tmp_path, V1 + "0::/docker/abc\n", {
        "memory/docker/abc/memory.limit_in_bytes": GIB,
        "unified/docker/abc/cgroup.procs": "1",
    })
    assert cgroup.memory_limit() == GIB


def test_cores_are_limited_by_quota_affinity_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest of the three counts; systems without affinity do without it."""
    quota = tree(tmp_path, "0::/\n", {"cpu.max": "350000 100000"})
    free = Cgroup(tmp_path / "none", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert cores_allowed(quota, 64) == 3.5
    assert cores_allowed(free, 64) == 6
    assert cores_allowed(free, 4) == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores_allowed(free, 64) == 64


def test_this_process_can_be_asked() -> None:
    """On the machine that runs the tests the answers are positive, or None."""
    cgroup = Cgroup.of_this_process()
    for answer in (cgroup.cpu_limit(), cgroup.memory_limit(), cgroup.memory_used()):
        assert answer is None or answer > 0
    stalled, throttling = cgroup.io_pressure(), cgroup.cpu_throttling()
    assert stalled is None or stalled >= 0
    assert throttling is None or throttling.throttled_periods <= throttling.periods
    assert 0 < cores_allowed(cgroup, os.cpu_count() or 1) <= (os.cpu_count() or 1)
