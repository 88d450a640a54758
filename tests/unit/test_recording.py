"""The recording keeps what it is given, within its bounds, and hands out copies."""

from __future__ import annotations

import builtins
import math
import threading
from typing import Any

import pytest

from fakes import GPU, HOST_DEVICE, OTHER_GPU, START, fill, recording_of, ticks
from gpumagic import recording as module
from gpumagic.recording import MIN_BYTES, Recording, Series
from gpumagic.sample import HOST, Device, Gap, Mark, Sample, Span
from gpumagic.tracks import Merged


def sample(time: float, source: str = "nvml", device: str = GPU.id, **values: float) -> Sample:
    return Sample(time, device, source, values or {"gpu_power_watts": 1.0})


# -- samples ---------------------------------------------------------------------------------


def test_a_series_is_one_metric_of_one_device_in_a_window() -> None:
    """A series has the readings from start to end, both included, and no others."""
    recording = recording_of()
    fill(recording, ticks(0, 10, 1), gpu_power_watts=lambda t: t * 10)
    fill(recording, ticks(0, 10, 1), OTHER_GPU, gpu_power_watts=1)
    series = recording.series("gpu_power_watts", GPU.id, 2, 4)
    assert list(series) == [(2, 20), (3, 30), (4, 40)]
    assert len(series) == 3
    assert not recording.series("gpu_temperature_celsius", GPU.id)
    assert not recording.series("gpu_power_watts", "GPU-none")


def test_an_absent_value_is_left_out() -> None:
    """A reading that lacks a metric gives no point, neither zero nor NaN."""
    recording = recording_of()
    recording.append(sample(1, gpu_power_watts=100))
    recording.append(sample(2, gpu_temperature_celsius=50))
    recording.append(sample(3, gpu_power_watts=120))
    assert list(recording.series("gpu_power_watts", GPU.id)) == [(1, 100), (3, 120)]
    assert list(recording.series("gpu_temperature_celsius", GPU.id)) == [(2, 50)]
    assert [set(s.values) for s in recording.samples()] == [
        {"gpu_power_watts"}, {"gpu_temperature_celsius"}, {"gpu_power_watts"},
    ]
    assert recording.times("nvml", GPU.id) == [1, 2, 3]


def test_the_oldest_samples_are_merged() -> None:
    """Beyond the bound old readings are merged, the newest stay, and all of them count."""
    recording = recording_of(max_bytes=MIN_BYTES)
    recording.periods["nvml"] = 1.0
    fill(recording, ticks(0, 4000, 1), gpu_power_watts=lambda t: t)
    assert len(recording) == 4001
    assert recording.series("gpu_power_watts", GPU.id).merged is None
    fill(recording, ticks(4001, 10_000, 1), gpu_power_watts=lambda t: t)
    fill(recording, [0.0], HOST_DEVICE, "host", process_rss_bytes=1)
    series = recording.series("gpu_power_watts", GPU.id)
    assert recording.size <= MIN_BYTES + 1024
    assert (series.times[-1], series.values[-1]) == (10_000, 10_000)
    assert sum(series.counts) == 10_001
    assert recording.bounds == (0, 10_000)
    assert len(recording) == len(series) + 1 < 4000


def test_a_bound_too_small_to_work_with_is_refused() -> None:
    """A recording without room for a few blocks of samples is not made."""
    with pytest.raises(ValueError, match="at least 65536"):
        Recording(max_bytes=MIN_BYTES - 1)


def test_a_series_of_readings_is_its_own_peak() -> None:
    """Where nothing is merged, each row is one reading, with its own time, value and peak."""
    series = Series("gpu_power_watts", GPU.id, [1.0, 2.0, 3.0], [5.0, math.inf, 4.0])
    assert list(series.highs) == [5.0, math.inf, 4.0]
    assert list(series.starts) == [1.0, 2.0, 3.0]
    assert list(series.counts) == [1, 1, 1]
    assert series.finite() == Series("gpu_power_watts", GPU.id, [1.0, 3.0], [5.0, 4.0])
    assert list(series.within(1.5, 3)) == [(2.0, math.inf), (3.0, 4.0)]


def test_a_series_of_merged_readings_is_cut_with_what_they_stand_for() -> None:
    """Rows that are left out take their starts, counts and peaks with them."""
    merged = Merged([0.0, 4.0, 9.0], [4, 4, 1], [8.0, 9.0, 3.0])
    series = Series("gpu_power_watts", GPU.id, [3.0, 7.0, 9.0], [2.0, math.nan, 3.0], merged)
    assert series.finite() == Series(
        "gpu_power_watts", GPU.id, [3.0, 9.0], [2.0, 3.0], Merged([0.0, 9.0], [4, 1], [8.0, 3.0])
    )
    assert list(series.within(1, 9).times) == [7.0, 9.0]


def test_times_ascend() -> None:
    """A stamp older than the last one of its source is moved up to it."""
    recording = recording_of()
    for time in (5.0, 4.9, 6.0):
        recording.append(sample(time))
    assert recording.times("nvml", GPU.id) == [5.0, 5.0, 6.0]


def test_samples_come_in_the_order_of_time() -> None:
    """Samples of all sources and devices are merged by their times."""
    recording = recording_of()
    fill(recording, [1, 3, 5], gpu_power_watts=1)
    fill(recording, [2, 4], HOST_DEVICE, "host", process_rss_bytes=1)
    assert [s.time for s in recording.samples()] == [1, 2, 3, 4, 5]
    assert [s.source for s in recording.samples(2, 3)] == ["host", "nvml"]


def test_readers_get_copies() -> None:
    """What a reader holds does not change with the recording, nor the other way round."""
    recording = recording_of()
    fill(recording, [1, 2], gpu_power_watts=1)
    series, times, samples = (
        recording.series("gpu_power_watts", GPU.id),
        recording.times("nvml", GPU.id),
        recording.samples(),
    )
    fill(recording, [3], gpu_power_watts=1)
    assert (len(series), len(times), len(list(samples))) == (2, 2, 2)
    times.append(99)  # type: ignore[attr-defined]
    assert recording.times("nvml", GPU.id) == [1, 2, 3]


def test_the_latest_value_is_the_newest_present_one() -> None:
    """The newest reading that has the metric counts, unless 64 samples have come since."""
    recording = recording_of()
    assert recording.latest("gpu_power_watts", GPU.id) is None
    recording.append(sample(1, gpu_power_watts=100))
    fill(recording, ticks(2, 64, 1), gpu_temperature_celsius=50)
    assert recording.latest("gpu_power_watts", GPU.id) == (1, 100)
    fill(recording, [65], gpu_temperature_celsius=51)
    assert recording.latest("gpu_power_watts", GPU.id) is None
    assert recording.latest("gpu_temperature_celsius", GPU.id) == (65, 51)


def test_bounds_and_metrics_of_what_is_held() -> None:
    """Bounds span all sources, and metrics are listed in the order in which they came."""
    recording = recording_of()
    assert recording.bounds is None
    assert recording.metrics(GPU.id) == ()
    fill(recording, [3, 9], gpu_power_watts=1, gpu_temperature_celsius=1)
    fill(recording, [2], source="allocator", torch_allocated_bytes=0)
    assert recording.bounds == (2, 9)
    assert recording.metrics(GPU.id) == (
        "gpu_power_watts", "gpu_temperature_celsius", "torch_allocated_bytes",
    )


# -- devices ---------------------------------------------------------------------------------


def test_devices_are_in_order_and_the_host_is_last() -> None:
    """GPUs come by their NVML index whatever the order of their arrival."""
    recording = Recording()
    for device in (HOST_DEVICE, OTHER_GPU, GPU):
        recording.add_device(device)
    assert recording.devices == (GPU, OTHER_GPU, HOST_DEVICE)
    assert recording.device(HOST) == HOST_DEVICE
    assert recording.device("GPU-none") is None


def test_a_device_is_told_once() -> None:
    """Subscribers hear of a device when it is new or different, not each time it is seen."""
    recording = Recording()
    heard: list[Any] = []
    recording.subscribe(heard.append)
    recording.add_device(GPU)
    recording.add_device(Device(**{n: getattr(GPU, n) for n in Device.__slots__}))
    changed = Device(GPU.id, "gpu", "renamed", 0)
    recording.add_device(changed)
    assert heard == [GPU, changed]


# -- gaps ------------------------------------------------------------------------------------


def gap(start: float, end: float | None = None, reason: str = "lost", device: str | None = GPU.id,
        source: str = "nvml") -> Gap:
    return Gap(start, end, source, device, reason)


def test_a_sample_ends_the_gap_of_its_source_and_device() -> None:
    """An open gap lasts until its own source reads its own device again."""
    recording = recording_of()
    recording.open_gap(gap(10))
    recording.append(sample(11, device=OTHER_GPU.id))
    recording.append(sample(12, source="allocator", torch_allocated_bytes=1))
    assert recording.gaps() == (gap(10),)
    recording.append(sample(13))
    recording.append(sample(14))
    assert recording.gaps() == (gap(10, 13),)


def test_a_sources_gap_ends_with_its_first_sample() -> None:
    """A gap of a whole source ends when the source reads any device."""
    recording = recording_of()
    recording.open_gap(gap(10, device=None))
    recording.append(sample(12, device=OTHER_GPU.id))
    assert recording.gaps() == (gap(10, 12, device=None),)


def test_a_gap_goes_on_while_its_reason_stays() -> None:
    """The same failure again changes nothing; another reason ends the gap and begins one."""
    recording = recording_of()
    heard: list[Any] = []
    recording.subscribe(heard.append)
    for time in (10, 11, 12):
        recording.open_gap(gap(time))
    recording.open_gap(gap(15, reason="reset"))
    assert recording.gaps() == (gap(10, 15), gap(15, reason="reset"))
    assert heard == [gap(10), gap(10, 15), gap(15, reason="reset")]


def test_a_gap_never_ends_before_it_began() -> None:
    """A sample stamped a hair before the failure ends the gap at its own start."""
    recording = recording_of()
    recording.open_gap(gap(10))
    recording.append(sample(9.99))
    assert recording.gaps() == (gap(10, 10),)


def test_a_read_gap_replaces_the_open_one_it_was() -> None:
    """A file tells a gap at its begin and at its end; both are one gap."""
    recording = recording_of()
    recording.add_gap(gap(10))
    recording.add_gap(gap(10, 12))
    recording.append(sample(12))
    assert recording.gaps() == (gap(10, 12),)


def test_gaps_are_found_by_window() -> None:
    """A gap touches a window it overlaps, an open one all that follows."""
    recording = recording_of()
    recording.add_gap(gap(1, 2))
    recording.add_gap(gap(8))
    assert recording.gaps(3, 7) == ()
    assert recording.gaps(2, 7) == (gap(1, 2),)
    assert recording.gaps(20, 30) == (gap(8),)


# -- spans and marks -------------------------------------------------------------------------


def test_a_span_runs_and_ends() -> None:
    """A span is open until it is ended, with its number, its status and no negative length."""
    recording = Recording()
    heard: list[Any] = []
    recording.subscribe(heard.append)
    span = recording.begin_span(10, number=3, name="load")
    assert (span.end, span.status, span.label) == (None, "running", "[3]")
    ended = recording.end_span(span.id, 9, "error", number=4)
    assert (ended.start, ended.end, ended.status, ended.number) == (10, 10, "error", 4)
    assert recording.span(span.id) == ended
    assert recording.spans() == (ended,)
    assert heard == [span, ended]
    assert recording.span(99) is None


def test_spans_and_marks_are_found_by_window() -> None:
    """Spans that overlap a window are listed, a running one to the end of time."""
    recording = Recording()
    one = recording.end_span(recording.begin_span(1).id, 2)
    two = recording.begin_span(5, name="train")
    recording.add_mark(Mark(1, "a"))
    recording.add_mark(Mark(7, "b"))
    assert recording.spans(2, 4) == (one,)
    assert recording.spans(3, 4) == ()
    assert recording.spans(6, 99) == (two,)
    assert recording.marks(2, 9) == (Mark(7, "b"),)
    assert two.label == "train"
    assert recording.begin_span(6).label == "block"


def test_a_read_span_keeps_its_id_and_new_ones_go_on_after_it() -> None:
    """Ids read from a file are never given again."""
    recording = Recording()
    recording.add_span(Span(7, 1, 2))
    assert recording.begin_span(3).id == 8


def test_events_are_bounded_and_a_running_span_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans, marks and gaps are bounded; of the spans an ended one goes, not one that runs."""
    monkeypatch.setattr(module, "_MAX_EVENTS", 10)
    recording = Recording()
    outer = recording.begin_span(0)
    for n in range(50):
        recording.end_span(recording.begin_span(n).id, n)
        recording.add_mark(Mark(n, "x"))
        recording.add_gap(gap(n, n))
    assert len(recording.spans()) == 10
    assert len(recording.marks()) == 10
    assert len(recording.gaps()) == 10
    assert recording.end_span(outer.id, 99).end == 99


# -- subscribers, threads, pandas ------------------------------------------------------------


def test_a_subscriber_hears_until_it_leaves() -> None:
    """Each record reaches each subscriber once; a gap's end comes before the sample."""
    recording = recording_of()
    heard: list[Any] = []
    leave = recording.subscribe(heard.append)
    recording.open_gap(gap(1))
    recording.append(sample(2))
    leave()
    leave()
    recording.append(sample(3))
    assert heard == [gap(1), gap(1, 2), sample(2)]


def test_readers_and_writers_share_a_recording() -> None:
    """Threads that read while others write and merge see whole rows, in order and without loss."""
    recording = recording_of(max_bytes=MIN_BYTES)
    written = 6_000
    stop, wrong = threading.Event(), []

    def write(source: str) -> None:
        for n in range(written):
            recording.append(sample(n, source, gpu_power_watts=n, gpu_temperature_celsius=n))
            if n % 100 == 0:
                recording.open_gap(gap(n, source=source))
                recording.end_span(recording.begin_span(n).id, n)

    def read() -> None:
        while not stop.is_set():
            series = recording.series("gpu_power_watts", GPU.id)
            if series:
                # Each reading is in one row, whatever has been merged meanwhile.
                whole = sum(series.counts) == series.times[-1] + 1
                peaks = list(series.highs) == list(series.times)
                mean = sum(v * n for v, n in zip(series.values, series.counts, strict=True))
                right = mean == pytest.approx(series.times[-1] * (series.times[-1] + 1) / 2)
                if not (whole and peaks and right):
                    wrong.append(series)
            last = recording.samples(written - 5)
            wrong.extend(s for s in last if set(s.values.values()) != {s.time})
            recording.gaps()
            recording.spans()
            recording.latest("gpu_power_watts", GPU.id)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("nvml", "allocator")]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert wrong == []
    assert recording.times("nvml", GPU.id)[-1] == written - 1
    assert recording.series("gpu_power_watts", GPU.id).merged is not None
    assert len(recording.spans()) == 2 * written // 100


def test_a_new_lock_frees_a_forked_child() -> None:
    """After forget_threads a lock that somebody held is no obstacle."""
    recording = recording_of()
    recording._lock.acquire()
    recording.forget_threads()
    fill(recording, [1], gpu_power_watts=1)
    assert len(recording) == 1


def test_a_data_frame_has_a_row_a_sample() -> None:
    """to_pandas gives time in UTC, device, source and metrics; absent values are NaN there."""
    pandas = pytest.importorskip("pandas", reason="to_pandas needs pandas")
    recording = recording_of()
    recording.append(sample(START, gpu_power_watts=100))
    recording.append(sample(START + 0.5, "host", HOST, process_rss_bytes=5))
    frame = recording.to_pandas()
    assert list(frame.columns) == [
        "time", "device", "source", "gpu_power_watts", "process_rss_bytes",
    ]
    assert frame["time"][1] == pandas.Timestamp("2025-11-30 15:12:00.5", tz="UTC")
    assert frame["gpu_power_watts"][0] == 100
    assert math.isnan(frame["gpu_power_watts"][1])


def test_an_empty_data_frame_has_its_columns() -> None:
    """Without samples to_pandas still gives time, device and source."""
    pytest.importorskip("pandas", reason="to_pandas needs pandas")
    frame = Recording().to_pandas()
    assert list(frame.columns) == ["time", "device", "source"]
    assert str(frame["time"].dtype).startswith("datetime64[")


def test_without_pandas_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """to_pandas says what to install."""
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError("no pandas")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match="pip install pandas"):
        Recording().to_pandas()


def test_readings_are_joined_by_the_period_they_were_taken_at() -> None:
    """A pause stays one whatever the period is afterwards, and slow readings stay joined."""
    recording = recording_of()
    fill(recording, ticks(START, START + 3, 0.1), gpu_utilization_ratio=1)
    recording.periods["nvml"] = 10.0
    fill(recording, [START + 13, START + 23], gpu_utilization_ratio=1)
    ((before, after),) = recording.breaks("nvml", GPU.id, START, START + 30)
    assert (before, after) == (pytest.approx(START + 2.9), START + 13)
    recording.periods["nvml"] = 0.1
    fill(recording, [START + 33], gpu_utilization_ratio=1)
    assert len(recording.breaks("nvml", GPU.id, START, START + 33.1)) == 1
    assert recording.longest_period("nvml", GPU.id) == 10.0


def test_the_newest_reading_reaches_as_far_as_its_period() -> None:
    """A reading of a quick source is not carried on because the source has become slow."""
    recording = recording_of()
    fill(recording, [START], gpu_utilization_ratio=1)
    recording.periods["nvml"] = 10.0
    assert recording.breaks("nvml", GPU.id, START, START + 0.2) == []
    assert recording.breaks("nvml", GPU.id, START, START + 5) == [(START, math.inf)]


def test_samples_without_a_metric_do_not_join_it() -> None:
    """Power that bridges a stall does not make temperature continuous, whatever came before."""
    recording = recording_of()
    both = {"gpu_power_watts": 1.0, "gpu_temperature_celsius": 40.0}
    recording.periods["nvml"] = 5.0
    fill(recording, ticks(START, START + 20, 5), **both)
    recording.periods["nvml"] = 0.1
    fill(recording, ticks(START + 20.1, START + 30), **both)
    fill(recording, ticks(START + 30.1, START + 32.9), gpu_power_watts=1)
    fill(recording, ticks(START + 33, START + 40), **both)

    def breaks(metric: str | None, end: float = START + 40) -> list[tuple[float, float]]:
        return recording.breaks("nvml", GPU.id, START, end, metric=metric)

    assert breaks(None) == breaks("gpu_power_watts") == []
    ((before, after),) = breaks("gpu_temperature_celsius")
    assert before == pytest.approx(START + 30)
    assert after == pytest.approx(START + 33)
    fill(recording, ticks(START + 40.1, START + 42), gpu_power_watts=1)
    assert len(breaks("gpu_temperature_celsius", START + 42)) == 2
    assert breaks("gpu_power_watts", START + 42) == []
    assert len(breaks("gpu_power_watts", START + 45)) == 1
