"""What a live view remembers changes what a scene costs, and nothing of what it shows."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpumagic.recording import MAX_BYTES, MIN_BYTES, Recording, Series
from gpumagic.sample import HOST, Gap, Sample
from gpumagic.views.bins import Grid
from gpumagic.views.column_cache import ColumnCache, Columns
from gpumagic.views.scene import build_scene
from scene_examples import GIB, NOW, gpu, host


class Live:
    """A recording that goes on, with gaps, missing metrics, stalls and late readings."""

    def __init__(self, seed: int, max_bytes: int = MAX_BYTES) -> None:
        self.rnd = random.Random(seed)
        self.now = NOW
        self.recording = Recording(max_bytes=max_bytes)
        self.recording.periods.update(nvml=0.1, allocator=0.1, host=1.0, nvml_slow=1.0)
        for device in (gpu(0), gpu(1), host()):
            self.recording.add_device(device)
        self._ticks = 0
        self._silent = {"GPU-0": 0.0, "GPU-1": 0.0, HOST: 0.0}

    def play(self, seconds: float) -> None:
        """Go on for some seconds."""
        end = self.now + seconds
        while NOW + self._ticks * 0.1 < end:
            self.now = NOW + self._ticks * 0.1
            for device in ("GPU-0", "GPU-1"):
                self._read(device)
            if self._ticks % 10 == 0:
                self._read_host()
                self._read_others()
            self._ticks += 1
        self.now = end

    def _quiet(self, device: str, source: str) -> bool:
        rnd = self.rnd
        if self.now >= self._silent[device] and rnd.random() < 0.01:
            self._silent[device] = self.now + rnd.choice([0.15, 0.4, 1.0, 5.0])
            if rnd.random() < 0.6:
                whose = rnd.choice([device, None])
                self.recording.open_gap(Gap(self.now, None, source, whose, "the GPU is lost"))
        return self.now < self._silent[device]

    def _read(self, device: str) -> None:
        rnd = self.rnd
        if self._quiet(device, "nvml"):
            return
        values = {
            "gpu_utilization_ratio": rnd.random(), "gpu_memory_used_bytes": rnd.random() * 60 * GIB,
            "gpu_power_watts": rnd.random() * 800, "gpu_temperature_celsius": 40 + rnd.random(),
            "gpu_clock_event_reasons_state": float(rnd.choice([0, 0, 0, 4, 0x40, 4 | 0x40])),
        }
        if rnd.random() < 0.1:
            values["gpu_power_watts"] = rnd.choice([float("nan"), float("inf")])
        if rnd.random() < 0.1:
            del values["gpu_temperature_celsius"]
        self.recording.append(Sample(self.now + rnd.random() * 0.01, device, "nvml", values))
        if rnd.random() < 0.9:
            torch = {"torch_allocated_bytes": 4.0 * GIB, "torch_reserved_bytes": 8 * GIB}
            self.recording.append(Sample(self.now, device, "allocator", torch))

    def _read_others(self) -> None:
        # Other processes come and go on one GPU.
        there = self.now // 40 % 2
        self.recording.append(Sample(self.now, "GPU-1", "nvml_slow", {
            "gpu_other_processes_memory_bytes": there * 9 * GIB,
            "gpu_other_processes_utilization_ratio": there * 0.2,
        }))

    def _read_host(self) -> None:
        if self._quiet(HOST, "host"):
            return
        values = {"host_memory_used_bytes": 20.0 * GIB, "process_cpu_ratio": self.rnd.random()}
        if self.rnd.random() < 0.5:
            values["children_cpu_ratio"] = self.rnd.random()
        if self.rnd.random() < 0.1:
            values["container_memory_used_bytes"] = 3.0 * GIB
        self.recording.append(Sample(self.now, HOST, "host", values))


def check(live: Live, window: float, step: Callable[[], float], scenes: int) -> None:
    """Build each scene with a cache and without one."""
    cache = ColumnCache()
    for _ in range(scenes):
        live.play(step())
        options = {"start": live.now - window, "end": live.now}
        alike = build_scene(live.recording, **options, cache=cache)  # type: ignore[arg-type]
        assert alike == build_scene(live.recording, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("window", [5.0, 60.0, 600.0])
def test_scenes_are_the_same_with_a_cache(seed: int, window: float) -> None:
    """Whatever readings do, a scene is that of a view which remembers nothing."""
    live = Live(seed)
    check(live, window, lambda: live.rnd.choice([0.0, 0.05, 0.25, 1.0, 7.0]), 60)


def test_what_the_recording_merges_stays_drawn() -> None:
    """A view goes on with the columns that it made of readings which have been merged since."""
    live, cache = Live(1, max_bytes=MIN_BYTES), ColumnCache()
    live.play(400)
    assert live.recording.series("gpu_utilization_ratio", "GPU-0", live.now - 60).merged is not None

    def points(start: float) -> Series:
        return live.recording.series("gpu_utilization_ratio", "GPU-0", start).finite()

    def look(cache: ColumnCache) -> dict[int, float | None]:
        grid = Grid.over(live.now - 60, live.now, 120)
        columns, _ = cache.columns("util", points, grid, reach=0.25, until=live.now)
        return {grid.first + number: value for number, value in enumerate(columns)}

    before = look(cache)
    for _ in range(60):
        live.play(0.5)
        kept, anew = look(cache), look(ColumnCache())
        common = sorted(before.keys() & kept.keys())[:-1]
        assert [kept[i] for i in common] == [before[i] for i in common]
        # A merged row can reach into the columns beside its readings, and takes none away.
        assert all(anew[i] is not None and anew[i] >= kept[i]
                   for i in list(kept)[1:] if kept[i] is not None)
        before = kept


def test_a_view_may_jump_and_change_its_window() -> None:
    """Another window, an earlier time and a long silence begin anew."""
    live, cache = Live(2), ColumnCache()
    live.play(200)
    windows = ((50, 110), (51, 111), (20, 80), (20, 140), (21, 141), (130, 190), (131, 191))
    for start, end in windows:
        options = {"start": NOW + start, "end": NOW + end, "state": "replay"}
        alike = build_scene(live.recording, **options, cache=cache)  # type: ignore[arg-type]
        assert alike == build_scene(live.recording, **options)  # type: ignore[arg-type]


def test_only_the_newest_readings_are_asked_for() -> None:
    """The second scene of an hour takes the readings of its last columns."""
    live, cache = Live(3), ColumnCache()
    live.recording.append(Sample(NOW, HOST, "host", {"process_cpu_ratio": 1.0}))
    asked: list[float] = []
    for second in range(1, 200):
        live.recording.append(Sample(NOW + second, HOST, "host", {"process_cpu_ratio": 1.0}))

    def points(start: float) -> object:
        asked.append(start)
        return live.recording.series("process_cpu_ratio", HOST, start, end)

    for end in (NOW + 180, NOW + 181.5):
        cache.columns(  # type: ignore[arg-type]
            "cpu", points, Grid.over(end - 120, end, 120), reach=2.5, until=end
        )
    assert asked[0] < NOW + 60
    assert asked[1] >= NOW + 178


# -- what is made of columns ----------------------------------------------------------------------


class Shares:
    """Shares of a ceiling, and how many columns of them were made each time."""

    def __init__(self) -> None:
        self.cache = ColumnCache()
        self.made: list[int] = []

    def _make(self, setting: tuple[float, ...], *inputs: Columns) -> tuple[Columns, ...]:
        self.made.append(len(inputs[0]))
        return tuple(
            tuple(None if v is None else v / setting[0] for v in columns) for columns in inputs
        )

    def check(self, first: int, *inputs: Columns, ceiling: float = 2.0, width: float = 0.5) -> int:
        """Return how many columns were made anew; all are as without a cache."""
        grid = Grid(first, len(inputs[0]), width)
        found = self.cache.mapped("row", self._make, (ceiling,), grid, *inputs)
        made = self.made[-1]
        assert found == self._make((ceiling,), *inputs)
        return made


RAMP: Columns = tuple(float(i) for i in range(200))


def test_only_new_columns_are_made() -> None:
    """As a view moves on, its last columns are made anew, and of two layers as of one."""
    shares = Shares()
    assert shares.check(0, RAMP[:120]) == 120
    assert shares.check(0, RAMP[:120]) < 12
    assert shares.check(2, RAMP[2:122]) < 12
    assert shares.check(2, RAMP[2:122], RAMP[2:122]) == 120
    assert shares.check(3, RAMP[3:123], RAMP[3:123]) < 12


def test_another_ceiling_makes_all_columns() -> None:
    """Heights follow a ceiling that changes, and the width and number of columns."""
    shares = Shares()
    shares.check(0, RAMP[:120])
    assert shares.check(1, RAMP[1:121], ceiling=4.0) == 120
    assert shares.check(1, RAMP[1:121], ceiling=4.0, width=1.0) == 120
    assert shares.check(1, RAMP[1:151], ceiling=4.0, width=1.0) > 30
    assert shares.check(60, RAMP[60:120], ceiling=4.0, width=1.0) < 60
    assert shares.check(0, RAMP[:120], ceiling=4.0, width=1.0) == 120
    assert shares.check(190, RAMP[190:], ceiling=4.0, width=1.0) == 10


@pytest.mark.parametrize("column", [0, 1, 60, 100, 119])
def test_a_column_that_is_filled_in_is_made(column: int) -> None:
    """A gap that is filled in or torn open later is seen wherever it lies."""
    shares = Shares()
    torn = (*RAMP[:column], None, *RAMP[column + 1 : 120])
    for inputs in (torn, RAMP[:120], torn):
        shares.check(0, inputs)
        shares.check(0, RAMP[:120], inputs)


def test_other_strips_and_ceilings_in_a_scene() -> None:
    """A cache serves scenes with other strips, another layout, and a GPU with a new limit."""
    live, cache = Live(4), ColumnCache()
    live.play(100)
    for strips in (("util", "mem"), ("mem",), ("mem", "temp", "sm-clock"), ("util", "mem")):
        for limit in (800.0, 400.0):
            live.play(0.5)
            device = gpu(0, constants={"gpu_memory_total_bytes": limit * GIB})
            live.recording.add_device(device)
            for layout in ("rows", "table"):
                options = {"start": live.now - 60, "end": live.now, "strips": strips,
                           "layout": layout}
                alike = build_scene(live.recording, **options, cache=cache)  # type: ignore[arg-type]
                assert alike == build_scene(live.recording, **options)  # type: ignore[arg-type]
