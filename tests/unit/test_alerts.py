"""Alerts speak when they should, not a moment before, and once."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from traitlets import TraitError

import gpumagic
from fakes import GIB, START, fill, recording_of, ticks
from gpumagic.alerts import ALERTS, SEVERITIES, Alert, Alerts, AlertThresholds, on_alert
from gpumagic.alerts.words import about, count, elapsed
from gpumagic.codec import load
from gpumagic.metrics import METRICS
from gpumagic.recording import Recording
from gpumagic.sample import HOST, Device, Gap
from gpumagic.settings import GpuMagic
from gpumagic.views.strips import STRIPS

DATA = Path(__file__).parents[1] / "data" / "h200"
DEMO = Path(gpumagic.__file__).parent / "data" / "h200-training.jsonl.gz"
KINDS = [kind.name for kind in ALERTS]

Value = float | Callable[[float], float]

TOTAL, FREE = 140 * GIB, 139.4 * GIB
PERIODS = {"nvml": 0.1, "allocator": 0.1, "gpm": 0.2, "nvml_slow": 1.0}

BUSY: Mapping[str, Value] = {
    "gpu_utilization_ratio": 0.99,
    "gpu_memory_used_bytes": 20.0 * GIB,
    "gpu_power_watts": 690.0,
    "gpu_temperature_celsius": 62.0,
    "gpu_sm_clock_hertz": 1.5e9,
    "gpu_clock_event_reasons_state": 4.0,
    "gpu_sm_active_ratio": 0.84,
    "gpu_process_memory_bytes": 20.0 * GIB,
    "gpu_other_processes_memory_bytes": 0.0,
    "torch_allocated_bytes": 15.0 * GIB,
    "torch_reserved_bytes": 19.0 * GIB,
    "torch_ooms_count": 0.0,
    "torch_alloc_retries_count": 0.0,
}
"""What a healthy training on an H200 shows: busy, and at its power cap all the time."""


def gpu(index: int = 0, name: str = "NVIDIA H200", **constants: float) -> Device:
    """Make a GPU with the constants of an H200."""
    known = {
        "gpu_memory_total_bytes": TOTAL, "gpu_power_limit_watts": 700.0,
        "gpu_temperature_slowdown_celsius": 89.0, "gpu_sm_clock_max_hertz": 1.98e9,
    }
    return Device(f"GPU-{index}", "gpu", name, index, index, constants={**known, **constants})


def put(
    recording: Recording, device: Device, start: float, end: float, **values: Value | None
) -> None:
    """Record a busy GPU from one second to another, with other values for some metrics.

    A function gets the seconds since the start of all; ``None`` leaves a metric out. What is
    free follows from what is used.
    """
    told = {name: v for name, v in {**BUSY, **values}.items() if v is not None}
    if "gpu_memory_used_bytes" in told:
        used = told["gpu_memory_used_bytes"]
        told["gpu_memory_free_bytes"] = lambda t: FREE - (used(t) if callable(used) else used)
    for source, period in PERIODS.items():
        row = {
            name: (lambda t, v=v: v(t - START)) if callable(v) else v
            for name, v in told.items() if METRICS[name].source == source
        }
        if row:
            times = [t for t in ticks(START + start, START + end, period) if t < START + end - 1e-6]
            fill(recording, times, device, source, **row)


def one(until: float = 60.0, **values: Value | None) -> Recording:
    """Record one GPU."""
    recording = recording_of(gpu())
    put(recording, gpu(), 0, until, **values)
    return recording


def grows(rate: float, start: float = 10.0, end: float = math.inf, base: float = 15.0) -> Value:
    """Return memory that grows by some GiB a second from one second to another."""
    return lambda t: (base + rate * max(0.0, min(t, end) - start)) * GIB


def growing(rate: float, start: float = 10.0, end: float = math.inf) -> dict[str, Value]:
    """Return the metrics of tensors that grow by some GiB a second."""
    return {
        "torch_allocated_bytes": grows(rate, start, end),
        "torch_reserved_bytes": grows(rate, start, end, 19.0),
        "gpu_memory_used_bytes": grows(rate, start, end, 20.0),
        "gpu_process_memory_bytes": grows(rate, start, end, 20.0),
    }


def after(second: float, then: float, before: float) -> Value:
    """Return a value that changes at one second."""
    return lambda t: then if t >= second else before


def between(start: float, end: float, then: float, otherwise: float) -> Value:
    """Return a value that is another one for some seconds."""
    return lambda t: then if start <= t < end else otherwise


def look_on(
    recording: Recording,
    until: float = 60.0,
    *,
    start: float = 0.0,
    alerts: Alerts | None = None,
    each: Callable[[float, Alert | None, Alerts], object] = lambda *_: None,
) -> dict[str, tuple[float, float | None]]:
    """Judge a recording second by second; return when each kind was begun and over."""
    alerts = alerts or Alerts()
    times: dict[str, tuple[float, float | None]] = {}
    second = start
    while second <= until:
        shown = alerts.judge(recording, START + second)
        active = {alert.kind for alert in alerts.active}
        for kind in active - times.keys():
            times[kind] = (second, None)
        for kind, (begun, over) in times.items():
            if kind not in active and over is None:
                times[kind] = (begun, second)
        each(second, shown, alerts)
        second += 1.0
    return times


def shown_at(recording: Recording, second: float, start: float = 0.0) -> Alert | None:
    """Return what is shown at one second of a watch."""
    found: list[Alert | None] = []
    look_on(recording, second, start=start, each=lambda _s, shown, _a: found.append(shown))
    return found[-1]


@pytest.fixture
def told() -> Iterator[list[Alert]]:
    """Collect what callbacks get."""
    found: list[Alert] = []
    stop = gpumagic.on_alert(found.append)
    yield found
    stop()


# -- all kinds --------------------------------------------------------------------------------


def node(**odd: Value | None) -> Recording:
    """Record eight GPUs of which the sixth has other values."""
    gpus = [gpu(n) for n in range(8)]
    recording = recording_of(*gpus)
    for device in gpus:
        put(recording, device, 0, 60, **(odd if device.nvml_index == 5 else {}))
    return recording


def gone() -> Recording:
    """Record a GPU that falls off the bus after 20 s."""
    recording = one(20.0)
    recording.open_gap(
        Gap(START + 20, None, "nvml", gpu().id, "the GPU is lost (fallen off the bus, or reset)")
    )
    return recording


FIRES: Mapping[str, Callable[[], Recording]] = {
    "lost": gone,
    "out-of-memory": lambda: one(torch_ooms_count=after(20, 1, 0)),
    "filling": lambda: one(**growing(1.1)),
    "straggler": lambda: node(gpu_sm_clock_hertz=after(20, 1.1e9, 1.5e9)),
    "throttled": lambda: one(gpu_clock_event_reasons_state=after(20, 0x24, 4)),
    "hot": lambda: one(gpu_temperature_celsius=after(20, 88, 62)),
    "allocator-retries": lambda: one(torch_alloc_retries_count=after(20, 1, 0)),
    "near-full": lambda: one(
        torch_allocated_bytes=133 * GIB, torch_reserved_bytes=135 * GIB,
        gpu_memory_used_bytes=136 * GIB,
    ),
    "power-cap": lambda: one(gpu_sm_clock_hertz=0.8e9),
    "idle-held": lambda: one(200.0, gpu_utilization_ratio=after(20, 0, 0.5)),
}
"""A recording for each kind of alert in which it alone speaks."""

MINUTES = AlertThresholds(idle_minutes=2)


@pytest.mark.parametrize("kind", KINDS)
def test_each_alert_speaks_alone_in_its_case(kind: str, told: list[Alert]) -> None:
    """Each kind has a case, in which it begins, in one line that a view can show."""
    until = 180.0 if kind == "idle-held" else 45.0
    times = look_on(FIRES[kind](), until, alerts=Alerts(MINUTES))
    assert set(times) == {kind}
    (alert,) = (a for a in told if a.state == "begun")
    device = "GPU-5" if kind == "straggler" else "GPU-0"
    assert (alert.kind, alert.device) == (kind, device)
    assert alert.severity in SEVERITIES
    assert START <= alert.since <= START + times[kind][0]
    assert "GPU 5" in alert.text if kind == "straggler" else "GPU 0" in alert.text
    assert alert.text.endswith(".")
    assert len(alert.text) <= 170
    assert "\n" not in alert.text
    assert alert.text.count("`") % 2 == 0
    assert alert.strips
    assert {strip for _, strip in alert.strips} <= set(STRIPS)
    assert alert.evidence
    assert all(math.isfinite(value) for value in alert.evidence.values())


@pytest.mark.parametrize("kind", KINDS)
def test_each_alert_says_nothing_of_what_is_not_there(kind: str) -> None:
    """No value, no constant, no GPU: no alert."""
    (check,) = (k for k in ALERTS if k.name == kind)
    assert check.when.endswith(".")
    assert check.hides <= set(KINDS) - {kind}
    bare = replace(gpu(), constants={})
    recordings = [recording_of(), recording_of(gpu()), Recording()]
    some = recording_of(bare)
    put(some, bare, 0, 60, **{**dict.fromkeys(BUSY), "gpu_power_watts": 600.0})
    for recording in [*recordings, some]:
        assert look_on(recording, 30, alerts=Alerts(MINUTES)) == {}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"lost"}))
def test_each_alert_ends_when_readings_do(kind: str) -> None:
    """What was read some time ago begins no alert, and is over after 15 s of silence."""
    recording = FIRES[kind]()
    end = 200.0 if kind == "idle-held" else 60.0
    assert kind in look_on(recording, end - 1, alerts=Alerts(MINUTES))
    begun, over = look_on(recording, end + 60, alerts=Alerts(MINUTES))[kind]
    assert over is not None
    assert over <= max(end + 21, begun + 36)
    if kind not in ("out-of-memory", "allocator-retries"):
        assert look_on(recording, end + 90, start=end + 5, alerts=Alerts(MINUTES)) == {}


def test_each_case_is_named() -> None:
    """Names are used once, and each kind has a case above."""
    assert len(set(KINDS)) == len(KINDS)
    assert set(FIRES) == set(KINDS)


def test_a_healthy_node_is_silent() -> None:
    """Eight GPUs that train at their power cap, with clocks as they differ, give no alert."""
    gpus = [gpu(n) for n in range(8)]
    recording = recording_of(*gpus)
    for n, device in enumerate(gpus):
        put(
            recording, device, 0, 60,
            gpu_sm_clock_hertz=lambda t, n=n: (1.44 + 0.02 * n + 0.06 * math.sin(7 * t)) * 1e9,
            torch_allocated_bytes=lambda t: (15 + 4 * abs(math.sin(9 * t))) * GIB,
        )
    assert look_on(recording) == {}


def test_a_look_reads_little() -> None:
    """A look at eight busy GPUs reads seven short windows of each, every third one nine."""
    recording = node()
    alerts, counts = Alerts(), []
    read = recording.series
    seconds: list[float] = []

    def series(metric: str, device: str, start: float, end: float):  # type: ignore[no-untyped-def]
        seconds.append(end - start)
        return read(metric, device, start, end)

    recording.series = series  # type: ignore[method-assign]
    for second in range(30, 36):
        seconds.clear()
        alerts.judge(recording, START + second)
        counts.append(len(seconds))
        assert max(seconds) <= 31
    assert max(counts) <= 8 * 9
    assert sorted(counts)[3] <= 8 * 7


# -- recorded on a real H200 ------------------------------------------------------------------

RECORDED = {"near-oom": ["near-full"], "oom": ["out-of-memory"]}
"""Of the cells recorded on an H200, those that need an alert; the others are busy or slow."""


@pytest.mark.parametrize("name", sorted(p.name.partition(".")[0] for p in DATA.iterdir()))
@pytest.mark.parametrize("offset", [0.0, 0.3, 0.7])
def test_recorded_cells(name: str, offset: float, told: list[Alert]) -> None:
    """A cell of a real H200 gets the alert that a person would expect, and no other."""
    recording = load(DATA / f"{name}.jsonl.gz")
    assert recording.bounds is not None
    start, end = recording.bounds
    look_on(recording, end - START + 45, start=start + offset - START)
    assert [a.kind for a in told if a.state == "begun"] == RECORDED.get(name, [])
    assert [a.kind for a in told if a.state == "over"] == RECORDED.get(name, [])


def test_recorded_out_of_memory_says_where() -> None:
    """The recorded failure names its cell and what its tensors held."""
    recording = load(DATA / "oom.jsonl.gz")
    assert recording.bounds is not None
    alert = Alerts().judge(recording, recording.bounds[1])
    assert alert is not None
    assert alert.text == (
        "CUDA out of memory on GPU 0 in oom: tensors held 136.2 of 140.4 GiB."
        " `%gpumem` names what holds it."
    )


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.7])
def test_the_demo_climbs_once(offset: float, told: list[Alert]) -> None:
    """In the recorded training the last cell, and only that one, is told to fill the memory."""
    recording = load(DEMO)
    assert recording.bounds is not None
    start, end = recording.bounds
    (cell,) = (s for s in recording.spans() if s.number == 6)
    look_on(recording, end - START + 20, start=start + offset - START)
    begun, over = told
    assert (begun.kind, over.kind) == ("filling", "filling")
    assert re.fullmatch(
        r"GPU 0 memory grows 2\.\d GiB/s in \[6\]: full in about [34][05] s\."
        r" `%gpumem` names what holds it\.",
        begun.text,
    )
    assert cell.end is not None
    assert over.until is not None
    assert cell.start - 2 <= begun.since <= cell.start + 2
    assert over.until <= cell.end + 7


# -- memory -----------------------------------------------------------------------------------


def test_nearly_full_has_to_last() -> None:
    """Memory that is nearly full for 4 s is told; for 3 s it is not."""
    full = {
        "torch_allocated_bytes": 134 * GIB, "torch_reserved_bytes": 135 * GIB,
        "gpu_memory_used_bytes": 136 * GIB,
    }
    recording = recording_of(gpu())
    put(recording, gpu(), 0, 20)
    put(recording, gpu(), 20, 23, **full)
    put(recording, gpu(), 23, 30)
    assert look_on(recording, 29) == {}
    put(recording, gpu(), 30, 50, **full)
    put(recording, gpu(), 50, 70)
    begun, over = look_on(recording, 69)["near-full"]
    assert 34 <= begun <= 35
    assert over is not None
    assert 51 <= over <= 54
    alert = shown_at(recording, 40)
    assert alert is not None
    assert alert.text.startswith("GPU 0 memory is 97 % full: 135.0 of 139.4 GiB are needed.")
    assert alert.severity == "limit"


def test_the_cache_is_not_needed() -> None:
    """A device that is full of torch's cache is not nearly full."""
    recording = one(torch_reserved_bytes=138 * GIB, gpu_memory_used_bytes=139 * GIB)
    assert look_on(recording) == {}


def test_nearly_full_by_others() -> None:
    """Memory that others hold is said to be theirs, and is less grave."""
    recording = one(
        torch_allocated_bytes=2 * GIB, torch_reserved_bytes=2 * GIB,
        gpu_memory_used_bytes=137 * GIB, gpu_process_memory_bytes=3 * GIB,
        gpu_other_processes_memory_bytes=134 * GIB,
    )
    alert = shown_at(recording, 20)
    assert alert is not None
    assert alert.text == (
        "GPU 0 memory is 98 % full, 134.0 of 139.4 GiB held by other processes:"
        " `nvidia-smi` lists them."
    )
    assert alert.severity == "hint"


def test_nearly_full_is_left_with_a_margin() -> None:
    """An alert that has begun at 95 % stays at 94, and ends at 92."""
    used = lambda t: (0.96 if t < 20 else 0.94 if t < 40 else 0.92) * FREE  # noqa: E731
    alone = dict.fromkeys(("torch_allocated_bytes", "torch_reserved_bytes"))
    recording = one(gpu_memory_used_bytes=used, **alone)
    _, over = look_on(recording)["near-full"]
    assert over is not None
    assert 42 <= over <= 48


def test_growth_is_told_with_its_cell() -> None:
    """Growth is told once it has gone on for 10 s, with its rate, its cell and the time left."""
    recording = one(**growing(1.1))
    recording.begin_span(START + 8, number=14)
    begun, _ = look_on(recording)["filling"]
    assert 19 <= begun <= 22
    alert = shown_at(recording, 50)
    assert alert is not None
    assert alert.text == (
        "GPU 0 memory grows 1.1 GiB/s in [14] and none is released: full in about 70 s."
        " `%gpumem` names what holds it."
    )
    assert alert.strips == (("GPU-0", "mem"),)
    assert alert.evidence["bytes_per_second"] == pytest.approx(1.1 * GIB, rel=0.03)
    assert alert.evidence["seconds_to_full"] == pytest.approx(72, abs=1)


QUIET: Mapping[str, Mapping[str, Value | None]] = {
    "warm-up that levels off": {
        "torch_allocated_bytes": lambda t: (15 + 30 * (1 - math.exp(-max(0, t - 10) / 3))) * GIB,
        "torch_reserved_bytes": lambda t: (19 + 30 * (1 - math.exp(-max(0, t - 10) / 3))) * GIB,
        "gpu_memory_used_bytes": lambda t: (20 + 30 * (1 - math.exp(-max(0, t - 10) / 3))) * GIB,
    },
    "one large allocation": growing(60, 10, 11),
    "two large allocations": {
        name: (lambda t, v=v: v(min(t, 11)) if t < 17 else v(t - 6))  # type: ignore[operator,misc]
        for name, v in growing(20, 10, 12).items()
    },
    "a short climb": growing(3, 10, 16),
    "a climb that takes ten minutes more": growing(0.2),
    "a slow climb and one large allocation": {
        name: (lambda t, v=v: v(t) + 5 * GIB * (t >= 30))  # type: ignore[operator,misc]
        for name, v in growing(0.5).items()
    },
    "a model that is loaded": {
        **growing(3, 10, 40), "gpu_sm_active_ratio": 0.0, "gpu_utilization_ratio": 0.6,
    },
    "loading, where SM active is not counted": {
        **growing(3, 10, 40), "gpu_sm_active_ratio": None, "gpu_utilization_ratio": 0.2,
    },
    "a cache that grows and is used again": {
        "torch_allocated_bytes": lambda t: (15 + 20 * abs(math.sin(t / 3))) * GIB,
        "torch_reserved_bytes": grows(0.5, 10, 50, 40.0),
        "gpu_memory_used_bytes": grows(0.5, 10, 50, 41.0),
    },
    "a climb that is released in between": {
        name: (lambda t, v=v: v(10 + (t - 10) % 7))  # type: ignore[operator,misc]
        for name, v in growing(2).items()
    },
}


@pytest.mark.parametrize("case", QUIET)
def test_growth_that_is_none(case: str) -> None:
    """Memory that grows for a while, as it does in any training, gives no alert."""
    assert look_on(one(**QUIET[case])) == {}


def test_growth_below_activations() -> None:
    """What stays is judged, not what comes and goes with each step."""
    grown = growing(1.5)
    held = grown["torch_allocated_bytes"]
    assert callable(held)
    grown["torch_allocated_bytes"] = lambda t: held(t) + 3 * GIB * abs(math.sin(11 * t))
    assert 18 <= look_on(one(**grown))["filling"][0] <= 23


def test_growth_in_large_steps() -> None:
    """A step of 3 GiB every 3 s is a growth."""
    grown = {
        name: (lambda t, v=v: v(t - t % 3))  # type: ignore[operator,misc]
        for name, v in growing(1.0).items()
    }
    assert 18 <= look_on(one(**grown))["filling"][0] <= 32


def test_growth_of_which_something_is_released() -> None:
    """"None is released" is said only where the device's use has never fallen."""
    grown = growing(1.5)
    used = grown["gpu_memory_used_bytes"]
    assert callable(used)
    grown["gpu_memory_used_bytes"] = lambda t: used(t) + GIB * (t % 4 < 2)
    grown |= {"torch_allocated_bytes": None, "torch_reserved_bytes": None}
    alert = shown_at(one(**grown), 40)
    assert alert is not None
    assert alert.kind == "filling"
    assert "released" not in alert.text


def test_growth_of_others() -> None:
    """Growth of other processes' memory is said to be theirs."""
    recording = one(
        gpu_memory_used_bytes=grows(1.5, base=20), gpu_other_processes_memory_bytes=grows(1.5)
    )
    alert = shown_at(recording, 40)
    assert alert is not None
    assert re.fullmatch(
        r"Other processes' memory on GPU 0 grows 1\.5 GiB/s: full in about \d+ s\."
        r" `nvidia-smi` lists them\.", alert.text,
    )


def test_growth_ends() -> None:
    """The alert is over soon after the growth is, and nearly full does not follow unless it is."""
    _, over = look_on(one(**growing(2, 10, 35)))["filling"]
    assert over is not None
    assert 37 <= over <= 43


def test_running_out_stays_for_a_while() -> None:
    """A failed allocation is told at once, for 30 s, with its cell."""
    recording = one(
        90, torch_ooms_count=after(20.3, 1, 0), torch_alloc_retries_count=after(20, 1, 0)
    )
    span = recording.begin_span(START + 12, number=14)
    recording.end_span(span.id, START + 20.25, "error")
    recording.begin_span(START + 25, number=15)
    times = look_on(recording, 90)
    begun, over = times["out-of-memory"]
    assert begun == 21
    assert over is not None
    assert 50 <= over <= 55
    alert = shown_at(recording, 40)
    assert alert is not None
    assert alert.text == (
        "CUDA out of memory on GPU 0 in [14]: tensors held 15.0 of 140.0 GiB."
        " `%gpumem` names what holds it."
    )
    assert alert.severity == "failed"
    assert "allocator-retries" in times  # the cache was emptied before, and that was told
    assert "near-full" not in times


def test_counters_that_were_there_before() -> None:
    """Failures from before the watch are none that just happened."""
    recording = one(torch_ooms_count=3.0, torch_alloc_retries_count=2.0)
    assert look_on(recording) == {}
    assert look_on(recording, start=30) == {}


def test_a_counter_that_was_reset() -> None:
    """The user can set torch's counters back: that is no failure, and hides none."""
    recording = one(torch_ooms_count=lambda t: 2.0 if t < 20 else 0.0)
    assert look_on(recording) == {}
    recording = one(torch_ooms_count=lambda t: 1.0 if t < 20 or t > 40 else 0.0)
    begun, _ = look_on(recording)["out-of-memory"]
    assert begun in (40, 41)


def test_several_failures() -> None:
    """Failures within 30 s are counted together."""
    recording = one(torch_ooms_count=lambda t: float(t >= 20) + float(t >= 25))
    alert = shown_at(recording, 30)
    assert alert is not None
    assert "(2 times)" in alert.text


def test_an_emptied_cache() -> None:
    """How often torch emptied its cache is told in words."""
    recording = one(torch_alloc_retries_count=lambda t: float(t >= 20) + float(t >= 25))
    alert = shown_at(recording, 30)
    assert alert is not None
    assert alert.text.startswith(
        "GPU 0 memory is short: torch emptied its cache twice to go on, 20.0 GiB are used now."
    )


# -- what is not told, or otherwise -------------------------------------------------------------


def memory(held: Value, used: Value | None = None, cached: Value | None = None) -> Recording:
    """Record memory of tensors; what is used and cached follows them unless it is given."""
    assert callable(held)
    return one(
        100, torch_allocated_bytes=held,
        torch_reserved_bytes=cached or (lambda t: held(t) + 2 * GIB),
        gpu_memory_used_bytes=used or (lambda t: held(t) + 4 * GIB),
        gpu_process_memory_bytes=used or (lambda t: held(t) + 4 * GIB),
    )


@pytest.mark.parametrize(
    ("counter", "text"),
    [("torch_ooms_count", "CUDA out of memory on GPU 0 in [14] (and twice in [13])"),
     ("torch_alloc_retries_count",
      "memory is short in [14]: torch emptied its cache once to go on (and twice in [13])")],
)
def test_events_are_counted_for_each_cell(counter: str, text: str) -> None:
    """What happened in one cell is not told of another."""
    recording = one(**{counter: lambda t: float((t > 7.5) + (t > 7.8) + (t > 21.5))})
    for start, end, number in ((1, 8, 13), (15, 22, 14)):
        span = recording.begin_span(START + start, number=number)
        recording.end_span(span.id, START + end, "error")
    alert = shown_at(recording, 25)
    assert alert is not None
    assert text in alert.text


@pytest.mark.parametrize("kind", ["hot", "near-full"])
def test_silence_ends_nothing_at_once(kind: str) -> None:
    """Readings that stop for 2.2 s in each 6 s, or for 8 s, end no alert."""
    values: dict[str, Value | None] = {
        "gpu_temperature_celsius": 88.0, "torch_allocated_bytes": 134 * GIB,
        "torch_reserved_bytes": 135 * GIB, "gpu_memory_used_bytes": 136 * GIB,
    }
    recording = recording_of(gpu())
    put(recording, gpu(), 0, 20, **values)
    put(recording, gpu(), 28, 36, **values)
    for start in range(36, 72, 6):
        put(recording, gpu(), start + 2.2, start + 6, **values)
    begun, over = look_on(recording, 71)[kind]
    assert (begun < 8, over) == (True, None)


@pytest.mark.parametrize("period", [1.5, 5.0])
def test_memory_at_other_intervals(period: float) -> None:
    """Memory that is nearly full, or fills, is told where readings are rare."""
    for kind, held in (("near-full", lambda t: 134.0), ("filling", lambda t: 14 + 0.9 * t)):
        recording = recording_of(gpu())
        for source in ("nvml", "allocator", "gpm"):
            recording.periods[source] = period
        times = ticks(START, START + 100, period)
        fill(recording, times, gpu(), "nvml", gpu_utilization_ratio=0.9,
             gpu_memory_used_bytes=lambda t, h=held: (h(t - START) + 2) * GIB,
             gpu_memory_free_bytes=lambda t, h=held: FREE - (h(t - START) + 2) * GIB)
        fill(recording, times, gpu(), "allocator",
             torch_allocated_bytes=lambda t, h=held: h(t - START) * GIB,
             torch_reserved_bytes=lambda t, h=held: (h(t - START) + 1) * GIB)
        assert look_on(recording, 99)[kind][1] is None


@pytest.mark.parametrize("period", [12, 20, 45])
def test_tensors_inside_the_cache_fill_nothing(period: int) -> None:
    """What rises and falls in a cache that stays as it is takes no memory of the device."""
    saw = lambda t: (20 + 90 * (t % period) / period) * GIB  # noqa: E731
    recording = memory(saw, lambda t: 120 * GIB, lambda t: 115 * GIB)
    assert look_on(recording, 99) == {}


@pytest.mark.parametrize("tau", [8, 20, 40, 60])
def test_a_warm_up_levels_off(tau: int) -> None:
    """Growth that slows down is told only if it would pass what the device has."""
    assert look_on(memory(lambda t: 110 * (1 - math.exp(-t / tau)) * GIB), 99) == {}


def test_what_comes_and_goes_is_told_once() -> None:
    """Growth up to where the same cell has been before is none."""
    begun: list[float] = []
    look_on(memory(lambda t: (20 + 90 * (t % 25) / 25) * GIB), 99,
            each=lambda s, shown, _: begun.append(s) if shown else None)
    assert begun
    assert max(begun) < 40


@pytest.mark.parametrize(("every", "step"), [(5, 6), (7, 8)])
def test_a_leak_in_steps(every: int, step: int) -> None:
    """Steps that are up to 7 s apart are a growth."""
    times = look_on(memory(lambda t: (10 + step * (t // every)) * GIB), 80)
    assert times["filling"][1] is None


def test_released_inside_the_cache() -> None:
    """"None is released" is not said where tensors are."""
    alert = shown_at(memory(
        lambda t: (15 + 1.5 * t + 3 * (t % 2 < 1)) * GIB, grows(1.5, 0, base=25),
        grows(1.5, 0, base=22),
    ), 40)
    assert alert is not None
    assert alert.kind == "filling"
    assert "released" not in alert.text


def test_full_is_foretold_only_where_it_is_near() -> None:
    """In how long the memory is full is not said of a growth that takes longer than 90 s."""
    alert = shown_at(one(**growing(1.1)), 25)
    assert alert is not None
    assert "full in" not in alert.text


def test_growth_that_is_not_torchs() -> None:
    """Where no processes are listed and torch holds no more than before, no cell is blamed."""
    recording = one(
        gpu_memory_used_bytes=grows(1.5, base=20), gpu_process_memory_bytes=None,
        gpu_other_processes_memory_bytes=None,
    )
    recording.begin_span(START + 1, number=14)
    alert = shown_at(recording, 60)
    assert alert is not None
    assert alert.text == (
        "GPU 0 memory grows 1.5 GiB/s, outside this kernel's torch: full in about 35 s."
    )


def test_gpus_of_strangers_are_not_compared() -> None:
    """Where this process uses one GPU, the others' load is no concern of it."""
    gpus = [gpu(n) for n in range(4)]
    recording = recording_of(*gpus)
    for device in gpus:
        theirs: dict[str, Value | None] = {} if device.nvml_index == 0 else {
            "gpu_process_memory_bytes": 0.0, "torch_allocated_bytes": None,
            "torch_reserved_bytes": None, "gpu_utilization_ratio": 0.35,
        }
        put(recording, device, 0, 60, **theirs)
    assert look_on(recording) == {}


def test_heat_from_long_before() -> None:
    """Heat is told with its time up to ten minutes back, and as longer beyond."""
    recording = one(800, gpu_temperature_celsius=after(50, 88, 62))
    for second, long in ((350, "for 5 min"), (790, "for over 10 min")):
        alert = Alerts().judge(recording, START + second)
        assert alert is not None
        assert f"slows down {long} (88" in alert.text


# -- heat and clocks --------------------------------------------------------------------------


def test_heat_has_to_last() -> None:
    """Within 2 degrees of the slowdown temperature for 5 s is hot; 4 s or 86 °C is not."""
    assert look_on(one(gpu_temperature_celsius=between(20, 24, 88, 62))) == {}
    assert look_on(one(gpu_temperature_celsius=86.9)) == {}
    recording = one(gpu_temperature_celsius=between(20, 30, 87, 62))
    begun, over = look_on(recording)["hot"]
    assert 25 <= begun <= 26
    assert over is not None
    assert 31 <= over <= 34
    alert = shown_at(recording, 28)
    assert alert is not None
    assert alert.text == (
        "GPU 0 has been near the 89 °C at which it slows down for 8 s (87 °C now):"
        " see to its cooling."
    )


def test_heat_does_not_flicker() -> None:
    """A temperature that swings about the limit, or stays a degree below it, is one alert."""
    swing = lambda t: 87.0 if t < 28 or math.sin(2 * t) > 0 else 86.0  # noqa: E731
    for temperature in (swing, between(20, 30, 88, 86)):
        assert look_on(one(gpu_temperature_celsius=temperature))["hot"][1] is None


def test_a_hole_is_not_bridged() -> None:
    """Nobody knows whether it was hot while nothing was read."""
    recording = recording_of(gpu())
    put(recording, gpu(), 0, 20, gpu_temperature_celsius=62.0)
    put(recording, gpu(), 20, 20.6, gpu_temperature_celsius=88.0)
    put(recording, gpu(), 24, 60, gpu_temperature_celsius=88.0)
    assert look_on(recording)["hot"][0] >= 28


def test_heat_holds_clocks_back() -> None:
    """Heat that holds the clocks back for 20 % of 30 s is told, and hides that the GPU is hot."""
    recording = one(
        gpu_clock_event_reasons_state=after(20, 0x24, 4),
        gpu_temperature_celsius=after(22, 89, 62), gpu_sm_clock_hertz=after(20, 1.2e9, 1.5e9),
    )
    times = look_on(recording)
    assert list(times) == ["throttled"]
    assert 26 <= times["throttled"][0] <= 27
    alert = shown_at(recording, 32)
    assert alert is not None
    assert alert.text == (
        "Heat has held GPU 0 back for 12 of the last 30 s (SM clock 30 % below its highest):"
        " see to its cooling."
    )


@pytest.mark.parametrize(
    ("bit", "text"),
    [(0x80, "The machine's power brake has held GPU 0 back"), (0x10, "Sync boost has held GPU 0"),
     (0x40, "Heat has held GPU 0 back"), (0x08, "A hardware slowdown has held GPU 0 back")],
)
def test_other_reasons_hold_clocks_back(bit: int, text: str) -> None:
    """Each reason that is not normal is told by its name."""
    alert = shown_at(one(gpu_clock_event_reasons_state=float(bit)), 30)
    assert alert is not None
    assert alert.kind == "throttled"
    assert alert.text.startswith(text)


def test_counters_decide_whether_heat_holds_back() -> None:
    """Where the driver counts the seconds held back, bits that it does not confirm are no alert."""
    bits = after(20, 0x20, 0)
    still = one(gpu_clock_event_reasons_state=bits, gpu_thermal_limited_seconds=5.0)
    assert look_on(still) == {}
    counted = one(
        gpu_clock_event_reasons_state=bits,
        gpu_thermal_limited_seconds=lambda t: 5.0 + max(0.0, t - 20),
    )
    assert set(look_on(counted)) == {"throttled"}


def test_an_idle_gpu_is_not_held_back() -> None:
    """Where nothing runs, nothing is held back."""
    recording = one(gpu_clock_event_reasons_state=0x20, gpu_utilization_ratio=0.0)
    assert look_on(recording) == {}


def test_throttling_that_ended_is_over() -> None:
    """The alert ends soon after the reason does, not only once it has left the 30 s."""
    recording = one(gpu_clock_event_reasons_state=between(20, 32, 0x20, 0))
    _, over = look_on(recording)["throttled"]
    assert over is not None
    assert over <= 44


def test_the_power_cap_alone_is_normal() -> None:
    """A GPU at its cap all the time is no alert until its clock is below half of its highest."""
    assert look_on(one(gpu_sm_clock_hertz=1.25e9)) == {}
    recording = one(90, gpu_sm_clock_hertz=after(20, 0.8e9, 1.5e9))
    begun, _ = look_on(recording, 89)["power-cap"]
    assert begun >= 45
    alert = shown_at(recording, 80)
    assert alert is not None
    assert alert.text == (
        "The power cap of 700 W holds GPU 0 at 40 % of its highest SM clock (800 MHz)."
    )
    assert look_on(one(gpu_sm_clock_hertz=0.8e9, gpu_clock_event_reasons_state=0.0)) == {}
    assert look_on(one(gpu_sm_clock_hertz=0.8e9, gpu_utilization_ratio=0.3)) == {}


# -- one of several ---------------------------------------------------------------------------


def hot_one(**kinds: str) -> Recording:
    """Record GPUs of which the sixth gets hot after 20 s, while the others begin to wait."""
    gpus = [gpu(n, kinds.get(f"gpu{n}", "NVIDIA H200")) for n in range(8)]
    recording = recording_of(*gpus)
    for device in gpus:
        if device.nvml_index == 5:
            put(
                recording, device, 0, 80, gpu_temperature_celsius=after(20, 89, 62),
                gpu_sm_clock_hertz=after(20, 1.29e9, 1.5e9),
                gpu_clock_event_reasons_state=after(20, 0x24, 4),
            )
        else:
            put(recording, device, 0, 80, gpu_sm_active_ratio=after(20, 0.67, 0.84))
    return recording


def test_a_hot_straggler() -> None:
    """One hot GPU of eight is told with what the other seven lose, and hides its heat."""
    recording = hot_one()
    begun, over = look_on(recording, 79)["straggler"]
    assert 35 <= begun <= 40
    assert over is None
    texts: dict[float, str] = {}
    look_on(recording, 79, each=lambda s, shown, _: texts.update({s: shown.text if shown else ""}))
    assert re.fullmatch(
        r"GPU 5 has been at its slowdown temperature for (18|19|20) s \(clock −14 %\), and the"
        r" other seven wait for it: SM active fell from 84 to 67 %\.",
        texts[39],
    )
    assert "from 84 to 67 %" in texts[79]
    alert = shown_at(recording, 40)
    assert alert is not None
    assert alert.strips[0] == ("GPU-5", "temp")
    assert ("GPU-0", "util") in alert.strips
    assert alert.evidence["clock_loss_ratio"] == pytest.approx(0.14, abs=0.005)


def test_a_straggler_that_holds_nobody_up() -> None:
    """Where the others go on as before, nobody is said to wait."""
    alert = shown_at(
        node(
            gpu_temperature_celsius=after(20, 89, 62),
            gpu_sm_clock_hertz=after(20, 1.29e9, 1.5e9),
        ), 50,
    )
    assert alert is not None
    assert re.fullmatch(
        r"GPU 5 has been at its slowdown temperature for \d+ s \(clock −14 %\)\.", alert.text
    )


def test_a_slow_one_without_a_cause() -> None:
    """A clock 27 % below the others' is told as that; 10 % without heat is not told."""
    alert = shown_at(node(gpu_sm_clock_hertz=after(20, 1.1e9, 1.5e9)), 40)
    assert alert is not None
    assert re.fullmatch(
        r"GPU 5 has run at a clock 27 % below the other seven for \d+ s\.", alert.text
    )
    assert look_on(node(gpu_sm_clock_hertz=after(20, 1.35e9, 1.5e9))) == {}


def test_kinds_are_not_compared() -> None:
    """GPUs of another kind have other clocks and loads."""
    gpus = [gpu(n, "NVIDIA A100" if n < 4 else "NVIDIA H200") for n in range(8)]
    recording = recording_of(*gpus)
    for device in gpus:
        clock = 1.0e9 if "A100" in device.name else 1.5e9
        put(recording, device, 0, 60, gpu_sm_clock_hertz=clock)
    assert look_on(recording) == {}
    mixed = hot_one(**{f"gpu{n}": "NVIDIA A100" for n in range(4)})
    alert = shown_at(mixed, 60)
    assert alert is not None
    assert "the other three wait for it" in alert.text


def test_two_are_too_few() -> None:
    """Of two GPUs nobody can say which one differs."""
    recording = recording_of(gpu(0), gpu(1))
    put(recording, gpu(0), 0, 60)
    put(recording, gpu(1), 0, 60, gpu_utilization_ratio=0.3, gpu_sm_clock_hertz=1.0e9)
    assert look_on(recording) == {}


def test_all_alike_is_no_straggler() -> None:
    """Where all are hot, none of them differs."""
    gpus = [gpu(n) for n in range(8)]
    recording = recording_of(*gpus)
    for device in gpus:
        put(recording, device, 0, 60, gpu_temperature_celsius=88.0, gpu_sm_clock_hertz=1.2e9)
    assert set(look_on(recording)) == {"hot"}


def test_one_that_is_less_busy() -> None:
    """A GPU that runs far less than the others is told after 15 s, and with both figures."""
    recording = node(gpu_utilization_ratio=after(20, 0.31, 0.99))
    begun, _ = look_on(recording)["straggler"]
    assert 35 <= begun <= 40
    alert = shown_at(recording, 59)
    assert alert is not None
    assert re.fullmatch(
        r"GPU 5 differs from the other seven: GPU-Util 31 %, theirs 99 %, for \d+ s\.", alert.text
    )
    assert look_on(node(gpu_utilization_ratio=between(20, 32, 0.31, 0.99))) == {}


def test_one_that_does_more() -> None:
    """GPU-Util can be alike while one GPU does the work."""
    gpus = [gpu(n) for n in range(4)]
    recording = recording_of(*gpus)
    for device in gpus:
        active = 0.9 if device.nvml_index == 0 else 0.35
        put(recording, device, 0, 60, gpu_sm_active_ratio=active)
    alert = shown_at(recording, 30)
    assert alert is not None
    assert alert.text.startswith("GPU 0 differs from the other three: SM active 90 %, theirs 35 %")


def test_one_that_is_not_used_is_no_straggler() -> None:
    """A GPU on which nothing runs does not take part."""
    recording = node(gpu_utilization_ratio=0.0, gpu_sm_active_ratio=0.0, gpu_sm_clock_hertz=3.4e8)
    assert look_on(recording) == {}


def test_the_gpus_of_this_process_are_compared() -> None:
    """Where this process uses three or more GPUs, others' work does not count."""
    gpus = [gpu(n) for n in range(8)]
    recording = recording_of(*gpus)
    for device in gpus:
        theirs: dict[str, Value | None] = {}
        if device.nvml_index == 7:
            theirs = {
                "gpu_process_memory_bytes": 0.0, "torch_allocated_bytes": 0.0,
                "torch_reserved_bytes": 0.0, "gpu_utilization_ratio": 0.2,
            }
        put(recording, device, 0, 60, **theirs)
    assert look_on(recording) == {}


def test_others_that_differ_among_themselves() -> None:
    """Where all do different things, none of them is the odd one."""
    gpus = [gpu(n) for n in range(4)]
    recording = recording_of(*gpus)
    for n, device in enumerate(gpus):
        put(recording, device, 0, 60, gpu_utilization_ratio=0.2 + 0.25 * n)
    assert look_on(recording) == {}


# -- gone, or not used ------------------------------------------------------------------------


def test_a_lost_gpu_hides_the_rest(told: list[Alert]) -> None:
    """A lost GPU is told at once and alone, until it gives readings again."""
    recording = recording_of(gpu())
    put(recording, gpu(), 0, 30, gpu_temperature_celsius=88.0)
    recording.open_gap(
        Gap(START + 30, None, "nvml", gpu().id, "the GPU is lost (fallen off the bus, or reset)")
    )
    alert = shown_at(recording, 40)
    assert alert is not None
    assert alert.text == (
        "GPU 0 is lost (fallen off the bus, or reset): it has given no reading for 10 s."
        " `nvidia-smi` shows whether it comes back."
    )
    assert alert.since == START + 30
    put(recording, gpu(), 45, 60)
    begun, over = look_on(recording, 59)["lost"]
    assert 30 <= begun <= 32
    assert over is not None
    assert 46 <= over <= 49


def test_other_gaps_are_no_loss() -> None:
    """A source that fails for another reason, or another source, says nothing of a lost GPU."""
    for source, device, reason in (
        ("nvml", gpu().id, "no permission"), ("nvml", None, "the NVIDIA driver is not loaded"),
        ("gpm", gpu().id, "the GPU is lost (fallen off the bus, or reset)"),
    ):
        recording = one(20.0)
        recording.open_gap(Gap(START + 20, None, source, device, reason))
        assert look_on(recording) == {}


def test_held_and_idle() -> None:
    """Memory that is held while nothing runs is told only if asked for, and after that time."""
    recording = one(400, gpu_utilization_ratio=after(20, 0, 0.5))
    assert look_on(recording, 399) == {}
    begun, _ = look_on(recording, 399, alerts=Alerts(MINUTES))["idle-held"]
    assert 140 <= begun <= 142
    late, _ = look_on(recording, 399, start=300, alerts=Alerts(MINUTES))["idle-held"]
    assert late == 300
    alert = Alerts(MINUTES).judge(recording, START + 320)
    assert alert is not None
    assert alert.text.startswith("GPU 0 holds 20.0 GiB of this process, and nothing has run on it")
    assert alert.severity == "hint"


def test_work_in_between_is_not_idle() -> None:
    """One kernel begins the time anew, as does a hole in the readings."""
    recording = one(200, gpu_utilization_ratio=between(100, 100.3, 0.1, 0.0))
    alerts = Alerts(AlertThresholds(idle_minutes=1.5))
    begun, _ = look_on(recording, 199, alerts=alerts)["idle-held"]
    assert begun in (90, 91)
    assert look_on(recording, 199, start=101, alerts=Alerts(MINUTES)) == {}
    recording = one(100, gpu_utilization_ratio=0.0)
    put(recording, gpu(), 110, 200, gpu_utilization_ratio=0.0)
    assert look_on(recording, 199, alerts=Alerts(MINUTES)) == {}


def test_little_memory_is_not_worth_a_line() -> None:
    """A bare CUDA context is not told."""
    recording = one(200, gpu_utilization_ratio=0.0, gpu_process_memory_bytes=0.8 * GIB)
    assert look_on(recording, 199, alerts=Alerts(MINUTES)) == {}


# -- the judge --------------------------------------------------------------------------------


def test_an_alert_is_told_once(told: list[Alert], caplog: pytest.LogCaptureFixture) -> None:
    """Callbacks and the logger get an alert as it begins and as it is over, once each."""
    recording = recording_of(gpu())
    put(
        recording, gpu(), 0, 100,
        gpu_temperature_celsius=lambda t: 89.0 if 10 <= t < 40 or 60 <= t < 70 else 62.0,
    )
    with caplog.at_level("INFO", logger="gpumagic"):
        look_on(recording, 99)
    assert [(a.kind, a.state) for a in told] == [("hot", "begun"), ("hot", "over")] * 2
    begun, over = told[:2]
    assert over.since == begun.since
    assert over.until is not None
    assert START + 40 < over.until <= START + 44
    assert begun.until is None
    records = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    assert [(name, level) for name, level, _ in records] == [
        ("gpumagic", "WARNING"), ("gpumagic", "INFO"),
    ] * 2
    assert records[0][2] == begun.text
    assert records[1][2].startswith("over after 3")


def test_a_line_stays_for_five_seconds() -> None:
    """What ends at once is shown for 5 s."""
    recording = one(gpu_temperature_celsius=between(20, 26, 89, 62))
    begun, over = look_on(recording)["hot"]
    assert over is not None
    assert over - begun >= 5


def test_the_gravest_is_shown() -> None:
    """Of several alerts the gravest is shown, and all are active."""
    recording = one(
        gpu_temperature_celsius=89.0, torch_ooms_count=after(30, 1, 0), **growing(1.1)
    )
    seen: dict[float, str | None] = {}
    look_on(recording, each=lambda s, shown, _: seen.update({s: shown.kind if shown else None}))
    assert (seen[10], seen[25], seen[40]) == ("hot", "filling", "out-of-memory")
    alerts = Alerts()
    look_on(recording, 40, alerts=alerts)
    assert [a.kind for a in alerts.active] == ["out-of-memory", "filling", "hot"]


def test_text_changes_once_a_second() -> None:
    """A view that draws ten times a second gets the same line ten times."""
    recording = one(gpu_temperature_celsius=89.0)
    alerts = Alerts()
    texts = [alerts.judge(recording, START + 20 + n / 10) for n in range(50)]
    changes = sum(1 for a, b in pairwise(texts) if a != b)
    assert changes <= 5
    assert texts[0] is not None
    assert texts[9] is texts[0]


def test_the_future_is_not_read() -> None:
    """A recording of a file is judged at its time, not at its end."""
    recording = one(gpu_temperature_celsius=after(40, 89, 62))
    assert Alerts().judge(recording, START + 39.9) is None
    assert Alerts().judge(recording, START + 50) is not None


def test_going_back_begins_anew(told: list[Alert]) -> None:
    """A replay that starts again, or another recording, leaves nothing behind."""
    recording = one(gpu_temperature_celsius=after(30, 89, 62))
    alerts = Alerts()
    assert alerts.judge(recording, START + 50) is not None
    assert alerts.judge(recording, START + 20) is None
    assert alerts.active == ()
    assert [a.state for a in told] == ["begun", "over"]
    assert alerts.judge(recording, START + 50) is not None
    assert alerts.judge(one(), START + 50.1) is None


def test_only_shown_gpus_are_judged(told: list[Alert]) -> None:
    """A GPU that is not shown has no alert, and one that is no longer shown has none left."""
    recording = recording_of(gpu(0), gpu(1))
    put(recording, gpu(0), 0, 60)
    put(recording, gpu(1), 0, 60, gpu_temperature_celsius=89.0)
    assert Alerts().judge(recording, START + 20, ["GPU-0"]) is None
    alerts = Alerts()
    shown = alerts.judge(recording, START + 20)
    assert shown is not None
    assert shown.device == "GPU-1"
    assert alerts.judge(recording, START + 22, ["GPU-0"]) is None
    assert [a.state for a in told] == ["begun", "over"]


def test_the_host_is_no_gpu() -> None:
    """The host's device is left out."""
    recording = recording_of(Device(HOST, "host", "Host"))
    assert Alerts().judge(recording, START) is None


def test_the_end_of_a_view(told: list[Alert]) -> None:
    """What holds when a view stops is over for those who were told."""
    alerts = Alerts()
    alerts.judge(one(gpu_temperature_celsius=89.0), START + 20)
    alerts.end(START + 21)
    assert [(a.state, a.until) for a in told] == [("begun", None), ("over", START + 21)]
    alerts.end(START + 22)
    assert len(told) == 2


def test_a_replay_tells_nobody(told: list[Alert], caplog: pytest.LogCaptureFixture) -> None:
    """What happened in a file is shown and not announced."""
    alerts = Alerts(announces=False)
    assert alerts.judge(one(gpu_temperature_celsius=89.0), START + 20) is not None
    assert told == []
    assert caplog.records == []


def test_a_callback_that_raises(told: list[Alert], caplog: pytest.LogCaptureFixture) -> None:
    """What a callback raises is logged once a kind, and hinders neither the view nor others."""
    calls: list[str] = []

    def bad(alert: Alert) -> None:
        calls.append(alert.state)
        if len(calls) == 1:
            sys.exit(3)
        raise ValueError("mine")

    stop = on_alert(bad)
    later: list[Alert] = []
    stop_later = on_alert(later.append)
    try:
        recording = one(gpu_temperature_celsius=between(10, 20, 89, 62),
                        torch_ooms_count=after(40, 1, 0))
        look_on(recording)
    finally:
        stop()
        stop_later()
        stop()  # harmless a second time
    assert calls == ["begun", "over", "begun"]
    assert later == told
    failures = [r for r in caplog.records if r.exc_info]
    assert [r.getMessage() for r in failures] == [
        "a callback of on_alert failed for the alert 'hot'",
        "a callback of on_alert failed for the alert 'out-of-memory'",
    ]


def test_a_callback_can_end_itself() -> None:
    """A callback may unregister itself while it is called; one that did gets no more."""
    got: list[Alert] = []

    def once(alert: Alert) -> None:
        got.append(alert)
        stop()

    stop = on_alert(once)
    look_on(one(gpu_temperature_celsius=between(10, 20, 89, 62)))
    assert [a.state for a in got] == ["begun"]


def test_nothing_is_printed() -> None:
    """Without any logging set up, an alert writes nothing into a cell."""
    code = (
        "from gpumagic.alerts import Alert\n"
        "from gpumagic.alerts.callbacks import announce\n"
        "announce(Alert('hot', 'GPU-0', 'GPU 0 is hot.', 'limit', 1.0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        cwd=Path(gpumagic.__file__).parents[1],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("gpumagic").handlers)


@pytest.mark.parametrize("period", [0.02, 0.5, 1.0, 5.0])
def test_other_intervals(period: float) -> None:
    """Readings that come faster or more rarely are judged as well."""
    recording = recording_of(gpu())
    recording.periods["nvml"] = period
    fill(
        recording, ticks(START, START + 90, period), gpu(),
        gpu_temperature_celsius=lambda t: 89.0 if t >= START + 30 else 62.0,
    )
    begun, _ = look_on(recording, 89)["hot"]
    assert 35 <= begun <= 36 + 4 * period


# -- settings and words -----------------------------------------------------------------------


def test_thresholds_are_settings() -> None:
    """GpuMagic.alerts takes known names with numbers in their bounds, and says what is wrong."""
    settings = GpuMagic()
    assert settings.alerts == {}
    settings.alerts = {"idle_minutes": 10, "near_full_ratio": 0.9}
    for value, said in (
        ({"near_full": 0.9}, "no threshold of alerts is called 'near_full'; near it: near_full_"),
        ({"near_full_ratio": 95}, "near_full_ratio is a number from 0 to 2, not 95"),
        ({"hot_s": "5"}, "hot_s is a number from 0 on, not '5'"),
        ({"hot_s": True}, "hot_s is a number from 0 on, not True"),
        ({"hot_s": math.nan}, "hot_s is a number from 0 on, not nan"),
        ({"growth_s": 100}, "growth_s is a number from 0 to 60, not 100"),
    ):
        with pytest.raises(TraitError, match=re.escape(said)) as error:
            settings.alerts = value
        assert "\n" not in str(error.value)
    assert settings.alerts == {"idle_minutes": 10, "near_full_ratio": 0.9}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"near_full_ratio": 2.0}, "near-full"), ({"growth_ratio": 2.0}, "filling"),
        ({"throttled_ratio": 2.0}, "throttled"), ({"capped_clock_ratio": 0.0}, "power-cap"),
        ({"straggler_clock_ratio": 2.0}, "straggler"), ({"recent_s": 0.0}, "out-of-memory"),
        ({"growth_s": 0.0}, "filling"), ({"straggler_s": 0.0}, "straggler"),
    ],
)
def test_an_alert_can_be_silenced(changed: dict[str, float], kind: str) -> None:
    """A threshold that cannot be met silences its alert and fails nothing."""
    thresholds = replace(AlertThresholds(), **changed)
    assert look_on(FIRES[kind](), 45, alerts=Alerts(thresholds)) == {}


def test_words() -> None:
    """Times are written as a glance takes them in."""
    assert [elapsed(s) for s in (0.2, 18.6, 99.4, 100, 3000, 20000)] == [
        "1 s", "19 s", "99 s", "2 min", "50 min", "6 h",
    ]
    assert [about(s) for s in (3, 41, 58, 94, 96, 170)] == [
        "a few seconds", "about 40 s", "about 60 s", "about 90 s", "about 2 min", "about 3 min",
    ]
    assert [count(n) for n in (2, 7, 15)] == ["two", "seven", "15"]
