"""The container's limits and how it runs into them: cgroup v2, v1, and the affinity mask.

psutil speaks of the machine; a container sees all cores and all memory there although it may
use a part. Limits count at each level of the hierarchy, so the smallest from this process's
group up to the root is the one in force.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

__all__ = ["Cgroup", "Throttling", "cores_allowed"]

_MEMORY_FILES = {
    "memory.current": "inactive_file", "memory.usage_in_bytes": "total_inactive_file",
}
"""Files that tell the memory in use, and the key of ``memory.stat`` that is taken off."""

# v1 writes "no limit" as the largest multiple of the page size that fits into 63 bits.
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Throttling:
    """How a group has run into its processor quota since it was made.

    ``periods`` counts the quota's periods in which something ran, ``throttled_periods`` those
    in which the quota was used up. ``throttled_s`` is the time that the group then waited,
    summed over processors: four that wait for a second are four seconds.
    """

    periods: int
    throttled_periods: int
    throttled_s: float


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The control groups of this process.

    ``root`` is where the hierarchy is mounted, ``membership`` the text of
    ``/proc/self/cgroup`` and ``machine_io_pressure`` the machine's own file of pressure; all
    are handed in by tests.
    """

    root: Path
    membership: str
    machine_io_pressure: Path = Path("/proc/pressure/io")
    _known: dict[str, tuple[Path, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_this_process(cls) -> Cgroup:
        """Find the groups of this process; without cgroups all answers are ``None``."""
        try:
            membership = Path("/proc/self/cgroup").read_text()
        except OSError:
            membership = ""
        return cls(Path("/sys/fs/cgroup"), membership)

    def _place(self, controller: str) -> tuple[Path, str] | None:
        """Return where a controller is mounted and this process's path there."""
        for line in self.membership.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(","):
                # v1 mounts "cpu,cpuacct" under both names; "cpu" is a link that can be missing.
                found = (self.root / name for name in (controller, controllers))
                return next((p for p in found if p.is_dir()), self.root / controller), path
        return None

    def _levels(self, controller: str) -> tuple[Path, ...]:
        """List the directories of a controller (``""`` for v2) from this group to the root."""
        # A group that holds a process cannot be removed.
        if controller not in self._known:
            self._known[controller] = tuple(self._find_levels(controller))
        return self._known[controller]

    def _find_levels(self, controller: str) -> Iterator[Path]:
        place = self._place(controller)
        if place is None:
            return
        base, path = place
        # Inside a container the mount shows the group itself as the root, while the path can
        # still be the host's: levels that are not there are passed over.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            level = base.joinpath(*parts[:depth])
            if level.is_dir():
                yield level

    @staticmethod
    def _read(file: Path) -> str | None:
        # Raw, as a file of text takes twice as long to open; the kernel's are whole in one read.
        try:
            with open(file, "rb", buffering=0) as raw:
                return raw.read().decode().strip()
        except (OSError, UnicodeDecodeError):
            return None

    def _number(self, file: Path) -> int | None:
        text = self._read(file)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None  # "max"

    def cpu_limit(self) -> float | None:
        """Return the processor quota in cores, or ``None`` without one.

        From ``cpu.max`` (v2), or ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us`` (v1).
        """
        return min((limit for limit, _ in self._cpu_limits()), default=None)

    def _cpu_limits(self) -> Iterator[tuple[float, Path]]:
        for level in self._levels(""):
            quota, _, period = (self._read(level / "cpu.max") or "max").partition(" ")
            if quota.isdigit() and period.isdigit() and int(period):
                yield int(quota) / int(period), level
        for level in self._levels("cpu"):
            quota_us = self._number(level / "cpu.cfs_quota_us")
            period_us = self._number(level / "cpu.cfs_period_us")
            if quota_us is not None and quota_us > 0 and period_us:
                yield quota_us / period_us, level

    def cpu_throttling(self) -> Throttling | None:
        """Return how the quota in force was run into, or ``None`` where nothing tells.

        From ``cpu.stat`` (``throttled_usec`` in v2, ``throttled_time`` in ns in v1) of the
        level whose quota was the smallest when first asked: a counter stays with one level.
        """
        if "quota" not in self._known:
            limits = sorted(self._cpu_limits(), key=lambda pair: pair[0])
            self._known["quota"] = tuple(level for _, level in limits[:1])
        for level in self._known["quota"]:
            stat = _keyed_numbers(self._read(level / "cpu.stat") or "")
            seconds = (
                stat["throttled_usec"] / 1e6 if "throttled_usec" in stat
                else stat["throttled_time"] / 1e9 if "throttled_time" in stat
                else None
            )
            if seconds is not None and {"nr_periods", "nr_throttled"} <= stat.keys():
                return Throttling(stat["nr_periods"], stat["nr_throttled"], seconds)
        return None

    def io_pressure(self) -> float | None:
        """Return the seconds in which at least one task waited for storage, or ``None``.

        From ``some total`` (microseconds) of this group's ``io.pressure``, or of the whole
        machine's ``/proc/pressure/io`` where the group has none when first asked.
        """
        if "pressure" not in self._known:
            own = [level / "io.pressure" for level in self._levels("")[:1]]
            files = (*own, self.machine_io_pressure)
            told = [file for file in files if _stalled_us(self._read(file)) is not None]
            self._known["pressure"] = tuple(told[:1])
        for file in self._known["pressure"]:
            total = _stalled_us(self._read(file))
            return None if total is None else total / 1e6
        return None

    def memory_limit(self) -> int | None:
        """Return the memory limit in bytes, or ``None`` without one.

        From ``memory.max`` (v2), or ``memory.limit_in_bytes`` (v1, huge means unlimited).
        """
        return min((limit for limit, _ in self._memory_limits()), default=None)

    def _memory_limits(self) -> Iterator[tuple[int, Path]]:
        for controller, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
            for level in self._levels(controller):
                limit = self._number(level / file)
                if limit is not None and limit < _UNLIMITED:
                    yield limit, level

    def memory_used(self) -> int | None:
        """Return the bytes that count against the limit, less inactive file pages.

        From ``memory.current`` (v2) or ``memory.usage_in_bytes`` (v1), and ``memory.stat``, of
        the level whose limit was the smallest when first asked; without a limit, of this
        process's own group. The kernel gives inactive file pages back before it kills anyone.
        """
        if "memory used" not in self._known:
            self._known["memory used"] = tuple(islice(self._memory_files(), 1))
        for file in self._known["memory used"]:
            used = self._number(file)
            if used is not None:
                stat = _keyed_numbers(self._read(file.with_name("memory.stat")) or "")
                return max(used - stat.get(_MEMORY_FILES[file.name], 0), 0)
        return None

    def _memory_files(self) -> Iterator[Path]:
        """Yield the files that tell the memory in use, the one to go by first."""
        limits = sorted(self._memory_limits(), key=lambda pair: pair[0])
        levels = [level for _, level in limits[:1]]
        levels += [*self._levels(""), *self._levels("memory")]
        for level in levels:
            files = (level / name for name in _MEMORY_FILES)
            yield from (file for file in files if self._number(file) is not None)


def _keyed_numbers(text: str) -> dict[str, int]:
    """Read lines of a name, a space and a number."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: int(value) for name, _, value in pairs if value.isdigit()}


def _stalled_us(text: str | None) -> int | None:
    """Read the microseconds out of the "some" line of a file of pressure."""
    for line in (text or "").splitlines():
        kind, _, figures = line.partition(" ")
        total = figures.rpartition("total=")[2]
        if kind == "some" and total.isdigit():
            return int(total)
    return None


def cores_allowed(cgroup: Cgroup, machine: int) -> float:
    """Return the cores that this process may use: quota, affinity and machine, the smallest."""
    limits = [float(machine)]
    quota = cgroup.cpu_limit()
    if quota is not None:
        limits.append(quota)
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    if affinity is not None:
        limits.append(float(len(affinity(0))))
    return min(limits)
