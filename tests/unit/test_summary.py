"""A span's figures are those that its readings can prove, and what is missing says why."""

from __future__ import annotations

import pytest

from fakes import GIB, GPU, HOST_DEVICE, OTHER_GPU, START, fill, recording_of, ticks
from gpumagic.metrics import METRICS
from gpumagic.recording import MIN_BYTES, Recording
from gpumagic.sample import Device, Gap, Span
from gpumagic.summary import DeviceSummary, Figure, Summary, peak_text, summarise


def span(start: float, end: float) -> Span:
    return Span(1, START + start, START + end, number=1, status="ok")


def times(start: float, end: float, step: float = 0.1) -> list[float]:
    return ticks(START + start, START + end, step)


def gpu(recording: Recording, start: float, end: float, **options: object) -> DeviceSummary:
    """Summarise the only GPU from start to end."""
    summary: Summary = summarise(recording, span(start, end), **options)  # type: ignore[arg-type]
    (found,) = summary.gpus
    return found


def host(recording: Recording, start: float, end: float) -> DeviceSummary:
    found = summarise(recording, span(start, end)).host
    assert found is not None
    return found


# -- gauges ----------------------------------------------------------------------------------


def test_a_gauge_has_mean_peak_start_and_end() -> None:
    """Start and end are the readings next to the ends, mean and peak those that lie inside."""
    recording = recording_of()
    fill(recording, times(0, 20), gpu_temperature_celsius=lambda t: 40 + (t - START))
    figure = gpu(recording, 5.05, 10.05).figure("gpu_temperature_celsius")
    assert figure.start == pytest.approx(45.0)
    assert figure.end == pytest.approx(50.1)
    # A temperature is up to 0.1 s old: the reading at 5.1 may be older than the span.
    assert figure.samples == 49
    assert figure.mean == pytest.approx(47.6)
    assert figure.peak == pytest.approx(50.0)
    assert figure.reason == ""
    assert figure.measured


AVERAGING = [
    row.name for row in METRICS.values()
    if row.reach_s and row.kind == "gauge" and row.rate_of is None and row.source != "host"
]


@pytest.mark.parametrize("name", AVERAGING)
def test_a_reading_counts_only_if_all_that_it_speaks_of_lies_inside(name: str) -> None:
    """A busy neighbour before the span does not leak in: the first reach_s are left out."""
    recording = recording_of()
    reach = METRICS[name].reach_s
    value = {name: lambda t: 99.0 if t < START + 10 + reach - 0.01 else 1.0}
    fill(recording, times(0, 20), **value)
    figure = gpu(recording, 10, 10 + 5).figure(name)
    assert figure.peak == 1.0
    assert figure.mean == 1.0
    assert figure.samples == pytest.approx((5 - reach) * 10 + 1, abs=1)


def test_a_span_shorter_than_the_window_is_too_short_to_say() -> None:
    """A cell of 0.3 s has no utilization of its own, and says how far a reading looks back."""
    recording = recording_of()
    fill(recording, times(0, 3), gpu_utilization_ratio=0.9, gpu_memory_used_bytes=GIB)
    summary = gpu(recording, 1.02, 1.32)
    figure = summary.figure("gpu_utilization_ratio")
    assert (figure.mean, figure.peak, figure.samples) == (None, None, 0)
    assert (figure.start, figure.end) == (0.9, 0.9)
    assert figure.reason == "too short to say: a reading speaks of 400 ms"
    assert summary.figure("gpu_memory_used_bytes").samples == 3


def test_a_state_at_the_ends_belongs_to_the_span() -> None:
    """Memory held when the cell begins or ends is part of its peak, also of a very short one."""
    recording = recording_of()
    used = {1.0: 5 * GIB, 1.1: 2 * GIB, 1.2: 3 * GIB}
    for time, value in used.items():
        fill(recording, [START + time], gpu_memory_used_bytes=value)
    figure = gpu(recording, 1.05, 1.15).figure("gpu_memory_used_bytes")
    assert (figure.start, figure.mean, figure.end) == (5 * GIB, 2 * GIB, 3 * GIB)
    assert figure.peak == 5 * GIB
    short = gpu(recording, 1.02, 1.08).figure("gpu_memory_used_bytes")
    assert (short.start, short.mean, short.end, short.peak) == (5 * GIB, None, 2 * GIB, 5 * GIB)
    assert short.reason == "too short to say: no reading fell into the cell"


def test_old_readings_are_no_start() -> None:
    """A reading long before the span does not stand for its start."""
    recording = recording_of()
    fill(recording, [START + 1], gpu_temperature_celsius=80)
    fill(recording, times(5, 9), gpu_temperature_celsius=50)
    assert gpu(recording, 4, 8).figure("gpu_temperature_celsius").start is None


# -- rates -----------------------------------------------------------------------------------


def test_a_share_is_the_counters_growth_over_the_time() -> None:
    """The mean is the counter's difference over the time between its two readings."""
    recording = recording_of()
    fill(recording, times(0, 20, 1), HOST_DEVICE, "host",
         process_cpu_seconds=lambda t: 2 * (t - START), process_cpu_ratio=2)
    figure = host(recording, 5, 15).figure("process_cpu_ratio")
    assert figure.mean == pytest.approx(2.0)
    assert figure.peak == pytest.approx(2.0)


def test_a_short_cell_has_a_share_by_its_ends() -> None:
    """With readings at both ends a cell of 0.2 s has a processor share, which is its peak too."""
    recording = recording_of()
    for time, seconds in ((1.0, 10.0), (1.2, 10.6)):
        fill(recording, [START + time], HOST_DEVICE, "host", process_cpu_seconds=seconds,
             process_cpu_ratio=0.1)
    figure = host(recording, 1.0, 1.2).figure("process_cpu_ratio")
    assert figure.mean == pytest.approx(3.0)
    assert figure.peak == pytest.approx(3.0)
    assert figure.samples >= 2


def test_a_counter_that_went_back_gives_no_share() -> None:
    """A counter counted anew makes no negative share; the readings of the share stay."""
    recording = recording_of()
    fill(recording, times(0, 9, 1), HOST_DEVICE, "host", children_cpu_seconds=50,
         children_cpu_ratio=1.5)
    fill(recording, times(10, 20, 1), HOST_DEVICE, "host", children_cpu_seconds=1,
         children_cpu_ratio=0.5)
    figure = host(recording, 5, 15).figure("children_cpu_ratio")
    assert figure.mean is not None
    assert 0.5 <= figure.mean <= 1.5
    bare = recording_of()
    fill(bare, times(0, 4, 1), HOST_DEVICE, "host", children_cpu_seconds=50)
    fill(bare, times(5, 9, 1), HOST_DEVICE, "host", children_cpu_seconds=1)
    assert not host(bare, 1, 8).figure("children_cpu_ratio").measured


def test_a_counter_has_its_readings_at_the_ends() -> None:
    """A counter such as the allocator's retries is told at start and end, without mean."""
    recording = recording_of()
    fill(recording, times(0, 9), source="allocator",
         torch_ooms_count=lambda t: 0 if t < START + 5 else 2)
    figure = gpu(recording, 1, 8).figure("torch_ooms_count")
    assert (figure.start, figure.end, figure.mean, figure.peak) == (0, 2, None, None)


# -- peaks of the allocator ------------------------------------------------------------------


def allocator(*rows: tuple[float, float, float]) -> Recording:
    """Make a recording of allocated bytes and their peak counter: time, bytes, peak."""
    recording = recording_of()
    for time, allocated, peak in rows:
        fill(recording, [START + time], source="allocator",
             torch_allocated_bytes=allocated, torch_allocated_peak_bytes=peak)
    return recording


def peak(recording: Recording, **options: object) -> tuple[float | None, float | None, bool]:
    figure = gpu(recording, 1, 2, **options).figure("torch_allocated_bytes")
    return figure.peak, figure.peak_low, figure.peak_exact


def test_a_peak_above_the_old_one_is_exact() -> None:
    """p1 > p0: the counter's p1 is the cell's peak, also where no reading saw it."""
    recording = allocator((1.0, 10, 50), (1.5, 20, 50), (2.0, 10, 80))
    assert peak(recording) == (80, None, True)


def test_a_peak_under_the_old_one_is_bounded() -> None:
    """p1 = p0: the peak lies between the highest reading and p0."""
    recording = allocator((1.0, 10, 50), (1.5, 20, 50), (2.0, 10, 50))
    assert peak(recording) == (50, 20, False)


def test_a_reading_at_the_old_peak_makes_it_exact() -> None:
    """p1 = p0 and a reading that reached it: nothing is left to guess."""
    recording = allocator((1.0, 10, 50), (1.5, 50, 50), (2.0, 10, 50))
    assert peak(recording) == (50, None, True)


def test_a_peak_that_the_cell_reset_is_a_lower_bound() -> None:
    """p1 < p0: the peak is at least the larger of p1 and the readings."""
    assert peak(allocator((1.0, 10, 50), (1.5, 20, 30), (2.0, 10, 30))) == (30, None, False)
    assert peak(allocator((1.0, 10, 50), (1.5, 40, 50), (2.0, 10, 30))) == (40, None, False)


def test_a_reset_is_seen_though_the_peak_rose_again() -> None:
    """p1 > p0, but a reading or the counter was higher in between: p1 is not the peak."""
    assert peak(allocator((1.0, 10, 20), (1.5, 90, 90), (2.0, 10, 30))) == (90, None, False)
    assert peak(allocator((1.0, 10, 20), (1.5, 10, 90), (2.0, 10, 30))) == (90, None, False)
    assert peak(allocator((1.0, 10, 20), (1.5, 70, 70), (2.0, 10, 30))) == (70, None, False)


def test_cuda_that_came_up_inside_counted_from_nothing() -> None:
    """When CUDA was initialised in the cell, the whole counter is the cell's, and exact."""
    recording = allocator((1.5, 20, 40), (2.0, 10, 60))
    assert peak(recording, cuda_at_start=False) == (60, None, True)
    figure = gpu(recording, 1, 2, cuda_at_start=False).figure("torch_allocated_bytes")
    assert (figure.start, figure.end) == (0, 10)
    # With CUDA up before but no reading then, the old peak is unknown.
    assert peak(recording) == (60, 20, False)


def test_without_a_counter_the_readings_stand() -> None:
    """An allocator that keeps no peak leaves the highest reading, not exact."""
    recording = recording_of()
    fill(recording, times(0, 3), source="allocator", torch_reserved_bytes=7)
    figure = gpu(recording, 1, 2).figure("torch_reserved_bytes")
    assert (figure.peak, figure.peak_low, figure.peak_exact) == (7, None, False)


def test_a_peak_is_written_as_sure_as_it_is() -> None:
    """An exact peak is one amount, a bounded one two, an absent one n/a."""
    name = "torch_allocated_bytes"
    assert peak_text(Figure(name, peak=2 * GIB, peak_exact=True)) == "2.0 GiB"
    assert peak_text(Figure(name, peak=2 * GIB, peak_low=GIB)) == "1.0 GiB to 2.0 GiB"
    assert peak_text(Figure(name)) == "n/a"


# -- absence ---------------------------------------------------------------------------------


def test_each_absent_figure_says_why() -> None:
    """What the device lacks, what its source says, and torch's absence are told apart."""
    device = Device(GPU.id, "gpu", "old", 0, absent={"gpu_energy_joules": "not supported",
                                                     "gpu_power_watts": "no permission"})
    recording = recording_of(device, HOST_DEVICE)
    summary = summarise(recording, span(1, 2), reasons={"nvml": "no driver", "host": "no psutil"})
    (found,) = summary.gpus
    assert found.energy.reason == "not supported"
    assert found.figure("gpu_power_watts").reason == "no permission"
    assert found.figure("gpu_temperature_celsius").reason == "no driver"
    assert found.figure("torch_allocated_bytes").reason.startswith("torch has not initialised")
    assert found.figure("no_such_ratio").reason == "not read"
    assert found.throttling.reason == "no driver"
    assert summary.host is not None
    assert summary.host.figure("process_rss_bytes").reason == "no psutil"
    for each in summary.devices:
        assert all(f.reason or f.measured for f in each.figures.values())
        assert not any(f.measured for f in each.figures.values())


def test_a_lost_gpu_is_the_reason() -> None:
    """Where a gap of the source covers the cell, its reason stands for the figures."""
    recording = recording_of()
    fill(recording, times(0, 2), gpu_power_watts=1)
    recording.open_gap(Gap(START + 2.1, None, "nvml", GPU.id, "the GPU is lost"))
    assert gpu(recording, 10, 12).figure("gpu_power_watts").reason == "the GPU is lost"
    fill(recording, times(20, 22), gpu_power_watts=1)
    assert "lost" not in gpu(recording, 30, 30.05).figure("gpu_power_watts").reason


def test_figures_belong_to_their_kind_of_device() -> None:
    """A GPU has no host figures and the host no GPU's; energy is a thing of its own."""
    summary = summarise(recording_of(), span(1, 2))
    for device in summary.devices:
        sources = {METRICS[name].source for name in device.figures}
        assert sources == ({"host"} if device.device.kind == "host"
                           else {"nvml", "nvml_slow", "gpm", "allocator"})
        assert "gpu_energy_joules" not in device.figures
        assert all(METRICS[name].kind != "constant" for name in device.figures)
    assert summary.host is not None
    assert summary.host.energy.reason == summary.host.throttling.reason == "not a GPU"


def test_devices_can_be_chosen() -> None:
    """Only the devices named are summarised, in the recording's order."""
    recording = recording_of(OTHER_GPU, GPU, HOST_DEVICE)
    found = summarise(recording, span(1, 2), devices=[OTHER_GPU.id, "host"])
    assert [d.device.id for d in found.devices] == [OTHER_GPU.id, "host"]
    assert [d.device.id for d in summarise(recording, span(1, 2)).gpus] == [GPU.id, OTHER_GPU.id]


# -- coverage --------------------------------------------------------------------------------


def test_coverage_tells_the_longest_stretch_without_a_reading() -> None:
    """Readings are counted, and the longest gap reaches from the ends of the span, too."""
    recording = recording_of()
    fill(recording, [START + t for t in (1.2, 1.3, 1.9, 2.0)], gpu_power_watts=1)
    coverage = gpu(recording, 1, 2.1).coverage
    assert coverage is not None
    assert (coverage.source, coverage.samples, coverage.period_s) == ("nvml", 4, 0.1)
    assert coverage.longest_gap_s == pytest.approx(0.6)
    empty = gpu(recording, 5, 7).coverage
    assert empty is not None
    assert (empty.samples, empty.longest_gap_s) == (0, 2)


def test_what_the_rings_filled_in_is_no_reading() -> None:
    """A stall that the driver's rings bridge for power stays a stretch without a reading."""
    recording = recording_of()
    fill(recording, times(0, 3), gpu_power_watts=1, gpu_temperature_celsius=40)
    fill(recording, times(3.1, 4.9), gpu_power_watts=1)
    fill(recording, times(5, 8), gpu_power_watts=1, gpu_temperature_celsius=40)
    found = gpu(recording, 2, 7)
    assert found.coverage is not None
    assert found.coverage.samples == 32
    assert found.coverage.longest_gap_s == pytest.approx(2.0)
    assert found.figure("gpu_power_watts").samples > 32


def test_a_cell_longer_than_the_recording_is_whole() -> None:
    """Where the readings of a long cell had to be merged, all count, and the gaps have a bound."""
    recording = recording_of(GPU, HOST_DEVICE, max_bytes=MIN_BYTES)
    fill(recording, times(0, 600), gpu_power_watts=1, gpu_temperature_celsius=40)
    summary = summarise(recording, span(0, 600))
    assert len(recording) < 4000
    coverage = summary.gpus[0].coverage
    assert coverage is not None
    assert coverage.samples == 6001
    assert coverage.merged_s == pytest.approx(1.5)
    assert coverage.longest_gap_s == pytest.approx(0.25)


@pytest.mark.parametrize("rings", [False, True])
def test_no_gap_exceeds_what_is_told_of_merged_readings(rings: bool) -> None:
    """Breaks too thick to be kept apart still count, also where the rings bridge them."""
    recording = recording_of(GPU, HOST_DEVICE, max_bytes=MIN_BYTES)
    for begin in range(0, 4000, 2):
        fill(recording, times(begin, begin + 0.2), gpu_power_watts=1, gpu_temperature_celsius=40)
        if rings:
            fill(recording, times(begin + 0.3, begin + 1.9), gpu_power_watts=1)
    coverage = summarise(recording, span(0, 3998.2)).gpus[0].coverage
    assert coverage is not None
    assert coverage.merged_s > 2
    assert coverage.longest_gap_s == pytest.approx(1.8)


def test_readings_of_a_short_cell_are_not_merged() -> None:
    """What rests on single readings says so."""
    recording = recording_of()
    fill(recording, times(0, 3), gpu_power_watts=1)
    coverage = gpu(recording, 1, 2).coverage
    assert coverage is not None
    assert coverage.merged_s == 0


def test_a_running_span_is_refused() -> None:
    """Only a span that has ended has a summary."""
    with pytest.raises(ValueError, match="after its end"):
        summarise(recording_of(), Span(1, START))


def test_a_span_may_be_empty_or_end_at_zero() -> None:
    """A span without length gives reasons and no division by zero."""
    recording = recording_of()
    fill(recording, times(0, 3), gpu_power_watts=1)
    fill(recording, times(0, 3), source="nvml_slow", gpu_energy_joules=1)
    summary = summarise(recording, span(1, 1))
    assert summary.wall_s == 0
    assert summary.gpus[0].energy.joules is None
    assert summarise(recording, Span(1, -2.0, 0.0)).wall_s == 2


# -- a GPU that is lost --------------------------------------------------------------------

LOST = "the GPU is lost (fallen off the bus, or reset)"


def losing(at: float, until: float | None = None) -> Recording:
    """Return a recording of a GPU that is lost at a time, for good or for a while."""
    recording = recording_of()
    values = {
        "gpu_utilization_ratio": 0.7, "gpu_memory_used_bytes": 20 * GIB,
        "gpu_clock_event_reasons_state": 0.0,
    }
    read = times(0, at) if until is None else [*times(0, at), *times(until, 20)]
    for time in read:
        if until is not None and START + at <= time < START + until:
            continue
        fill(recording, [time], **values)
    ended = None if until is None else START + until
    recording.add_gap(Gap(START + at, ended, "nvml", GPU.id, LOST))
    return recording


def test_a_gap_is_why_a_figure_is_absent() -> None:
    """Where a GPU was lost early in a long cell, its figures say so and not "too short"."""
    assert gpu(losing(5.35), 5, 10).figure("gpu_utilization_ratio").reason == LOST


@pytest.mark.parametrize("metric", ["gpu_utilization_ratio", "gpu_memory_used_bytes"])
def test_a_gpu_lost_just_before_the_cell_has_no_figure(metric: str) -> None:
    """Readings from before a loss stand for nothing in a cell that began after it."""
    figure = gpu(losing(4.8), 5, 8).figure(metric)
    assert not figure.measured
    assert figure.reason == LOST
    assert gpu(losing(4.8), 5, 8).throttling.reason == LOST


def test_a_reading_from_before_a_loss_is_no_end() -> None:
    """The last reading before a gap does not stand for the end of the cell, its peak counts."""
    figure = gpu(losing(7), 5, 9).figure("gpu_memory_used_bytes")
    assert (figure.start, figure.peak, figure.end) == (20 * GIB, 20 * GIB, None)


def test_an_old_reading_is_no_end() -> None:
    """Without a gap too, a reading long before the cell's end does not stand for it."""
    recording = recording_of()
    fill(recording, times(0, 7), gpu_memory_used_bytes=GIB)
    assert gpu(recording, 5, 9).figure("gpu_memory_used_bytes").end is None
    assert gpu(recording, 5, 7.1).figure("gpu_memory_used_bytes").end == GIB


def test_a_summary_tells_what_could_not_be_read() -> None:
    """A device says for how many seconds of the span it could not be read, and why."""
    found = gpu(losing(7), 5, 9)
    assert (found.lost_s, found.gap_reason) == (pytest.approx(2.0), LOST)
    found = gpu(losing(6, 6.5), 5, 9)
    assert (found.lost_s, found.gap_reason) == (pytest.approx(0.5), LOST)
    assert gpu(losing(6, 6.5), 7, 9).lost_s == 0


def test_energy_of_a_lost_gpu_has_the_reason_of_the_loss() -> None:
    """A slow source that has not noticed a loss yet takes its reason from the quick one."""
    assert gpu(losing(4.8), 5, 8).energy.reason == LOST


def test_a_large_interval_is_why_a_cell_is_too_short() -> None:
    """Where readings are far apart it is their distance that makes a cell too short."""
    recording = recording_of()
    recording.periods["nvml"] = 10.0
    fill(recording, times(0, 40, 10), gpu_utilization_ratio=0.5)
    figure = gpu(recording, 11, 15).figure("gpu_utilization_ratio")
    assert figure.reason == "too short to say: a reading every 10.0 s"
