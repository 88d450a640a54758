"""Old readings are merged, and what is told of them stays true."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import pytest

from fakes import GPU, HOST_DEVICE, START, fill, recording_of, ticks
from gpumagic.cell_profiles import Excerpt
from gpumagic.diagnosis.case import Case
from gpumagic.energy import integrate
from gpumagic.memory.moments import MomentReadings
from gpumagic.metrics import METRICS, of_source
from gpumagic.recording import MIN_BYTES, Recording, Series
from gpumagic.sample import HOST, Device, Sample, Span
from gpumagic.summary import summarise
from gpumagic.throttling import held_back, throttling_of
from gpumagic.tracks import REACH_PERIODS, Breaks, Track
from gpumagic.views.scene import Scene, build_scene

PERIOD = 0.1
BITS = "gpu_clock_event_reasons_state"
HOUR = 3600.0


def readings(seconds: float, seed: int = 1) -> list[Sample]:
    """Make up readings at an even pace: a gauge, a counter, a state, and bits."""
    rnd = random.Random(seed)
    found = []
    for number in range(round(seconds / PERIOD)):
        values = {
            "gpu_power_watts": 300 + 100 * rnd.random(),
            "gpu_memory_used_bytes": float(2**33 + number * 512),
            "gpu_performance_state": float(rnd.choice([0, 8])),
            BITS: float(rnd.choice([0, 0, 4, 0x20, 4 | 0x40])),
        }
        found.append(Sample(START + number * PERIOD, GPU.id, "nvml", values))
    return found


def pair(samples: Iterable[Sample], max_bytes: int = MIN_BYTES) -> tuple[Recording, Recording]:
    """Put samples into a recording that has to merge them and into one that has not."""
    merged, whole = recording_of(max_bytes=max_bytes), recording_of()
    for sample in samples:
        merged.append(sample)
        whole.append(sample)
    return merged, whole


def rows(series: Series, whole: Recording) -> Iterable[tuple[float, float, list[float]]]:
    """Yield each row's value and peak, and the readings that it stands for."""
    for start, time, count, value, high in zip(
        series.starts, series.times, series.counts, series.values, series.highs, strict=True
    ):
        found = whole.series(series.metric, series.device, start, time).values
        assert len(found) == count
        yield value, high, list(found)


# -- values ----------------------------------------------------------------------------------


def test_old_readings_are_merged_and_new_ones_are_not() -> None:
    """Rows get wider with age, stand for all readings in turn, and the newest are readings."""
    merged, whole = pair(readings(1000))
    series = merged.series("gpu_power_watts", GPU.id)
    assert len(series) < 0.2 * len(whole)
    assert len(series) == len(merged)
    assert sum(series.counts) == len(whole)
    assert list(series.counts[-256:]) == [1] * 256
    assert max(series.counts) >= 64
    wide = [time - start for start, time in zip(series.starts, series.times, strict=True)]
    assert sum(wide[:50]) > 5 * sum(wide[-500:-450])
    for before, start in zip(series.times, series.starts[1:], strict=False):
        assert start - before == pytest.approx(PERIOD, abs=1e-6)
    assert merged.bounds == whole.bounds
    assert merged.latest("gpu_power_watts", GPU.id) == whole.latest("gpu_power_watts", GPU.id)
    assert list(merged.times("nvml", GPU.id)) == list(series.times)


def test_peaks_survive_every_merging() -> None:
    """At any time a row's peak is the highest of its readings, and one spike stays what it was."""
    merged, whole = recording_of(max_bytes=MIN_BYTES), recording_of()
    for number, sample in enumerate(readings(600)):
        if number == 1234:
            sample = Sample(sample.time, GPU.id, "nvml", {**sample.values, "gpu_power_watts": 9e3})
        merged.append(sample)
        whole.append(sample)
        if number % 1000 == 999:
            series = merged.series("gpu_power_watts", GPU.id)
            assert all(high == max(values) for _, high, values in rows(series, whole))
    assert max(series.highs) == 9e3
    assert max(series.values) < 9e3


def test_means_and_integrals_agree() -> None:
    """A row is the mean of its readings; the integral is out by one pace of the outermost rows."""
    merged, whole = pair(readings(600))
    series, raw = (r.series("gpu_power_watts", GPU.id) for r in (merged, whole))
    for value, _, values in rows(series, whole):
        assert value == pytest.approx(math.fsum(values) / len(values), rel=1e-12)
    start, end = raw.times[0], raw.times[-1]
    assert integrate(series, start, end) == pytest.approx(
        integrate(raw, start, end), abs=PERIOD * 100
    )
    assert abs(integrate(raw, start, end)) > 1000 * PERIOD * 100


def test_counters_are_exact_at_the_times_of_rows() -> None:
    """Whatever two rows are taken, the counter's difference between their times is the true one."""
    merged, whole = recording_of(max_bytes=MIN_BYTES), recording_of()
    for recording in (merged, whole):
        fill(recording, ticks(START, START + 2000, 0.2), source="nvml_slow",
             gpu_energy_joules=lambda t: 1e9 + (t - START) ** 2 / 3)
    truth = dict(whole.series("gpu_energy_joules", GPU.id))
    series = merged.series("gpu_energy_joules", GPU.id)
    assert len(series) < 0.7 * len(truth)
    assert all(truth[time] == value for time, value in series)
    assert list(series.highs) == list(series.values)


def test_states_are_not_averaged() -> None:
    """A state is one that was read, the last of its row; of bits all that were set are kept too."""
    merged, whole = pair(readings(600))
    for metric in ("gpu_performance_state", BITS):
        series = merged.series(metric, GPU.id)
        assert all(value == values[-1] for value, _, values in rows(series, whole))
    for _, high, values in rows(series, whole):
        every = 0
        for value in values:
            every |= int(value)
        assert high == every


def test_absent_values_stay_absent() -> None:
    """What no reading of a row had is not there, and what is no number spoils no mean."""
    def samples() -> Iterable[Sample]:
        for number, sample in enumerate(readings(600)):
            values = dict(sample.values)
            if 1000 <= number < 3000:
                del values["gpu_memory_used_bytes"]
            if number % 7 == 0:
                values["gpu_power_watts"] = math.nan if number % 2 else math.inf
            yield Sample(sample.time, GPU.id, "nvml", values)

    merged, whole = pair(samples())
    series = merged.series("gpu_memory_used_bytes", GPU.id)
    low, high = START + 1000 * PERIOD, START + 3000 * PERIOD
    assert not any(start < high and time > low + 1e-6
                   for start, time in zip(series.starts, series.times, strict=True))
    assert merged.breaks("nvml", GPU.id, metric="gpu_memory_used_bytes")[:1] == whole.breaks(
        "nvml", GPU.id, metric="gpu_memory_used_bytes")[:1]
    power = merged.series("gpu_power_watts", GPU.id).finite()
    raw = whole.series("gpu_power_watts", GPU.id).finite()
    assert max(power.highs) == max(raw.values)
    for row, start, time in zip(power.values, power.starts, power.times, strict=True):
        inside = [value for at, value in raw if start <= at <= time]
        # Rows are weighted by all their readings, the few without a number among them.
        assert row == pytest.approx(sum(inside) / len(inside), rel=0.02)


def test_a_metric_that_comes_later_is_absent_before() -> None:
    """Rows from before a metric was first read have no value of it, merged or not."""
    merged, _ = pair([])
    fill(merged, ticks(START, START + 300), gpu_power_watts=1)
    fill(merged, ticks(START + 300.1, START + 900), gpu_power_watts=1, gpu_temperature_celsius=40)
    series = merged.series("gpu_temperature_celsius", GPU.id)
    assert series.starts[0] == pytest.approx(START + 300.1)
    assert set(series.values) == {40.0}
    assert merged.metrics(GPU.id) == ("gpu_power_watts", "gpu_temperature_celsius")


# -- joining ---------------------------------------------------------------------------------


def with_pauses(seconds: float) -> list[Sample]:
    """Leave out a second in each hundred, and half a minute once."""
    return [
        s for s in readings(seconds)
        if (s.time - START) % 100 < 99 and not 240 < s.time - START < 270
    ]


def test_breaks_survive_and_no_row_lies_across_one() -> None:
    """A pause is told as in a recording that merges nothing, and no row bridges it."""
    merged, whole = pair(with_pauses(900))
    breaks = merged.breaks("nvml", GPU.id, end=START + 899)
    assert breaks == whole.breaks("nvml", GPU.id, end=START + 899)
    assert len(breaks) == 9
    series = merged.series("gpu_power_watts", GPU.id)
    for start, time in zip(series.starts, series.times, strict=True):
        assert not any(start < after and time > before for before, after in breaks)


def test_thick_breaks_do_not_undo_the_bound() -> None:
    """Where every third reading comes late, the recording stays within its bound all the same."""
    late = [s for n, s in enumerate(readings(1500)) if n % 6 < 3]
    merged, _ = pair(late)
    assert merged.size <= MIN_BYTES + 8192
    assert sum(merged.series("gpu_power_watts", GPU.id).counts) == len(late)
    # A long silence among them stays one.
    late = [s for s in late if not 500 < s.time - START < 600]
    merged, _ = pair(late)
    series = merged.series("gpu_power_watts", GPU.id)
    assert max(b - a for a, b in zip(series.times, series.starts[1:], strict=False)) > 99


def test_of_too_many_breaks_the_long_ones_are_kept() -> None:
    """Breaks are bounded; long ones of long ago outlast short ones, and the newest all stay."""
    breaks = Breaks()
    for number in range(10 * Breaks.limit):
        breaks.add(number * 10.0, number * 10 + (9.0 if number % 500 == 0 else 1.0))
    found = breaks.touching(-math.inf, math.inf)
    assert len(found) <= Breaks.limit
    assert sum(after - before > 5 for before, after in found) == 10 * Breaks.limit // 500 + 1
    assert found[-100:] == [
        (n * 10.0, n * 10 + (9.0 if n % 500 == 0 else 1.0))
        for n in range(10 * Breaks.limit - 100, 10 * Breaks.limit)
    ]
    assert found == sorted(found)


def scene(recording: Recording, start: float, end: float) -> Scene:
    return build_scene(
        recording, start=START + start, end=START + end, state="replay", layout="rows"
    )


def heights(drawn: Scene, name: str) -> tuple[float | None, ...]:
    row = next(r for r in drawn.rows if r.name == name)
    return row.traces[-1].heights


@pytest.mark.parametrize("window", [HOUR, 3 * HOUR])
def test_a_long_scene_has_no_false_holes_and_keeps_a_spike(window: float) -> None:
    """An hour and all of it are drawn without a hole, with the one high reading, and a real gap."""
    merged = recording_of(max_bytes=MIN_BYTES)
    spike, silence = 3 * HOUR - 0.8 * window, 3 * HOUR - 0.5 * window
    for number in range(round(3 * HOUR)):
        # Once a second, so that it is quick.
        merged.periods["nvml"] = 1.0
        if silence < number < silence + window / 10:
            continue
        util = 1.0 if number == round(spike) else 0.25
        fill(merged, [START + number], gpu_utilization_ratio=util, gpu_power_watts=100.0,
             gpu_temperature_celsius=40.0, gpu_memory_used_bytes=1e9, gpu_sm_clock_hertz=1e9)
    assert max(merged.series("gpu_power_watts", GPU.id).counts) >= 16
    columns = heights(scene(merged, 3 * HOUR - window, 3 * HOUR - 1), "util")
    holes = [i for i, height in enumerate(columns) if height is None]
    count = len(columns)
    assert 0.08 * count < len(holes) < 0.12 * count
    assert holes == list(range(holes[0], holes[-1] + 1))
    assert holes[0] == pytest.approx(0.5 * count, abs=2)
    high = [i for i, height in enumerate(columns) if height == 1.0]
    assert 1 <= len(high) <= 3
    assert high[0] - 1 <= 0.2 * count <= high[-1] + 1


def test_a_window_within_one_row_shows_it() -> None:
    """A view of a few seconds long ago shows the row that they were merged into."""
    merged, _ = pair(readings(1500))
    series = merged.series("gpu_power_watts", GPU.id)
    index = max(range(len(series)), key=lambda i: series.times[i] - series.starts[i])
    middle = (series.starts[index] + series.times[index]) / 2 - START
    columns = heights(scene(merged, middle - 0.5, middle + 0.5), "power")
    assert None not in columns
    assert len(set(columns)) == 1


# -- what is made of it ----------------------------------------------------------------------


def test_a_cell_is_summarised_as_if_nothing_were_merged() -> None:
    """Means, peaks, counters, energy, coverage and the ends of a long cell are what they were."""
    merged, whole = recording_of(max_bytes=MIN_BYTES), recording_of()
    found = []
    for recording in (merged, whole):
        span = recording.begin_span(START + 100.03)
        for number, sample in enumerate(readings(1500)):
            recording.append(sample)
            if number == 14_010:
                span = recording.end_span(span.id, START + 1400.03)
            if round((sample.time - START) * 10) % 10 == 0:
                joules = {"gpu_energy_joules": 350 * (sample.time - START)}
                recording.append(Sample(sample.time, GPU.id, "nvml_slow", joules))
        found.append(summarise(recording, span).gpus[0])
    one, other = found
    for metric in ("gpu_power_watts", "gpu_memory_used_bytes"):
        a, b = one.figure(metric), other.figure(metric)
        assert (a.start, a.end, a.peak) == (b.start, b.end, b.peak)
        assert a.mean == pytest.approx(b.mean, rel=1e-3)
        # The first row speaks in part of the time before the cell.
        assert a.samples == pytest.approx(b.samples, rel=0.005)
    assert one.energy.joules == pytest.approx(other.energy.joules, rel=1e-6)
    assert one.energy.method == "counter"
    assert one.coverage is not None
    assert other.coverage is not None
    assert one.coverage.samples == pytest.approx(other.coverage.samples, abs=4)
    # Between merged readings only a bound is known.
    assert one.coverage.longest_gap_s == pytest.approx(REACH_PERIODS * PERIOD)
    assert one.throttling.ratio == pytest.approx(other.throttling.ratio, abs=0.05)
    assert one.throttling.samples == pytest.approx(other.throttling.samples, abs=4)


def test_power_alone_still_gives_an_estimate() -> None:
    """Rows of merged readings cover a cell for the integral of power; a pause in them does not."""
    for samples, covered in ((readings(1500), True), (with_pauses(1500), False)):
        merged, whole = pair(samples)
        spans = [r.add_span(Span(1, START + 10, START + 1400)) for r in (merged, whole)]
        assert spans == [None, None]
        a, b = (summarise(r, Span(1, START + 10, START + 1400)).gpus[0].energy
                for r in (merged, whole))
        if covered:
            assert a.joules == pytest.approx(b.joules, rel=1e-3)
        else:
            assert a.joules is b.joules is None


def test_a_short_cell_of_long_ago_says_why_it_has_no_figures() -> None:
    """Where rows are wider than the cell, that is the reason."""
    merged, _ = pair(readings(1500))
    figure = summarise(merged, Span(1, START + 50.05, START + 52)).gpus[0].figure("gpu_power_watts")
    assert figure.mean is None
    assert "merged" in figure.reason


def test_readings_at_the_ends_of_cells_stay_as_they_came() -> None:
    """Beside a span's ends there are readings however old it is; others there are merged."""
    merged = recording_of(max_bytes=MIN_BYTES)
    merged.add_span(Span(1, START + 33.33, START + 66.66))
    for sample in readings(1500):
        merged.append(sample)
    series = merged.series("gpu_power_watts", GPU.id)
    alone = [t for t, n in zip(series.times, series.counts, strict=True) if n == 1 and
             t < START + 200]
    assert alone == pytest.approx([START + t for t in (33.3, 33.4, 66.6, 66.7)])


def test_an_excerpt_leaves_out_rows_that_reach_over_its_bounds() -> None:
    """No row of an excerpt speaks of readings outside of it."""
    merged, _ = pair(readings(1500))
    low, high = START + 111.1, START + 222.2
    series = Excerpt(merged, low, high).series("gpu_power_watts", GPU.id)
    assert len(series) > 0
    assert series.starts[0] >= low
    assert series.times[-1] <= high
    assert len(merged.series("gpu_power_watts", GPU.id, low, high)) > len(series)


def test_memory_at_its_highest_is_the_peak_of_a_row() -> None:
    """The moment of most memory in use is found in merged readings, with what was used then."""
    merged = recording_of(max_bytes=MIN_BYTES)
    used: Callable[[float], float] = lambda t: 9e9 if abs(t - START - 50) < 0.01 else 1e9  # noqa: E731
    fill(merged, ticks(START, START + 1000), gpu_memory_used_bytes=used,
         gpu_memory_free_bytes=lambda t: 10e9 - used(t), gpu_power_watts=1)
    found = MomentReadings(merged, Span(1, START + 10, START + 990), GPU)
    moment = found.moments["highest"]
    assert moment is not None
    room = found.room(moment, 10e9)
    assert room is not None
    assert (room.used, room.free) == (9e9, 1e9)


def test_rules_see_a_long_cell_slot_by_slot() -> None:
    """Slots of a cell get the same means and shares from merged readings, within a few percent."""
    merged, whole = recording_of(max_bytes=MIN_BYTES), recording_of()
    cases = []
    for recording in (merged, whole):
        recording.periods.update(nvml=0.5, cell=0.5)
        fill(recording, ticks(START, START + 3000, 0.5), gpu_utilization_ratio=lambda t: (
            t - START) / 3000, gpu_power_watts=1, gpu_temperature_celsius=1)
        fill(recording, ticks(START, START + 3000, 0.5), HOST_DEVICE, "cell",
             cell_place_state=lambda t: float((t - START) % 300 > 100))
        summary = summarise(recording, Span(1, START, START + 3000))
        cases.append(Case(recording, summary, summary.gpus[0]))
    one, other = cases
    util = "gpu_utilization_ratio"
    assert len(merged) < 0.5 * len(whole)
    pairs = list(zip(one.over_time(util), other.over_time(util), strict=True))
    # The first row speaks in part of the time before the cell.
    for a, b in pairs[3:]:
        assert a == pytest.approx(b, abs=0.01)
    shares = [sum(v for v in case.places(1) if v is not None) for case in cases]
    assert shares[0] == pytest.approx(shares[1], rel=0.02)


def test_a_moment_of_throttling_long_ago_is_still_told() -> None:
    """Bits that one merged reading showed hold for one reading, those of the last for its row."""
    merged = recording_of(max_bytes=MIN_BYTES)
    fill(merged, ticks(START, START + 1500), gpu_power_watts=1, **{
        BITS: lambda t: 0x20 if abs(t - START - 50) < 0.01 else 4.0 if t > START + 750 else 0.0})
    found = held_back(merged, GPU.id, START, START + 1500)
    ((start, end),) = found["thermal (software)"]
    assert end - start == pytest.approx(PERIOD)
    assert abs(start - START - 50) < 15
    ((start, end),) = found["power cap"]
    assert start == pytest.approx(START + 750, abs=15)
    assert end == START + 1500
    share = throttling_of(merged, Span(1, START, START + 1500), GPU, {}).by_reason
    assert share["power cap"] == pytest.approx(0.5, abs=0.01)
    assert 0 < share["thermal (software)"] < 0.001


# -- bound -----------------------------------------------------------------------------------


def test_a_long_time_stays_within_the_bound() -> None:
    """Five hours of all sources of a GPU and the host take no more than they may."""
    bound = 1 << 19
    recording = recording_of(max_bytes=bound)
    periods = {"nvml": 1.0, "allocator": 1.0, "gpm": 2.0, "nvml_slow": 10.0, "host": 10.0}
    recording.periods.update(periods)
    largest = 0
    for second in range(18_000):
        for source, period in periods.items():
            if second % period == 0:
                device = HOST if source == "host" else GPU.id
                values = {metric.name: float(second) for metric in of_source(source)}
                if BITS in values:
                    values[BITS] = float(second % 3 * 4)  # a GPU shows few combinations
                recording.append(Sample(START + second, device, source, values))
        largest = max(largest, recording.size)
    assert 0.9 * bound < largest <= bound + 4096
    assert recording.bounds == (START, START + 17_999)
    held = sum(
        sum(recording.series(of_source(source)[0].name, device, START).counts)
        for source, device in [(s, GPU.id) for s in periods if s != "host"] + [("host", HOST)]
    )
    assert held == 18_000 * 2 + 9_000 + 1_800 * 2


def test_what_a_recording_says_it_takes_is_what_its_arrays_take() -> None:
    """The size that the bound is held against is the sum of all rows' numbers."""
    merged, _ = pair(readings(600))
    track = next(iter(merged._tracks.values()))
    held = 0
    for blocks in track._levels:
        for block in blocks:
            columns = [block.times, block.values, block.starts or (), block.highs]
            held += 8 * sum(len(column) for column in columns) + 4 * len(block.counts)
            tallies = block.tallies
            held += len(tallies.bits) + 4 * (len(tallies.counts) + len(tallies.ends))
    assert merged.size == track.size == held
    assert held <= MIN_BYTES + 4096


def test_one_block_at_a_time_is_merged() -> None:
    """No sample has to wait for the merging of more than 256 rows."""
    sizes: list[int] = []
    recording = recording_of(max_bytes=MIN_BYTES)
    thin = Track.thin

    def count(track: Track, level: int, edges: Sequence[tuple[float, float]]) -> int:
        before = len(track)
        grown = thin(track, level, edges)
        sizes.append(before - len(track))
        return grown

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Track, "thin", count)
        for sample in readings(600):
            before = len(sizes)
            recording.append(sample)
            assert len(sizes) - before <= 1
    assert 128 <= max(sizes) <= 192
    assert len(sizes) > 10


def test_many_devices_with_little_room_keep_what_is_newest() -> None:
    """A bound that is too tight for the newest block of each device gives way, and nothing goes."""
    recording = Recording(max_bytes=MIN_BYTES)
    for number in range(40):
        recording.add_device(Device(f"GPU-{number}", "gpu", "x", number))
    for tick in range(300):
        for number in range(40):
            values = {"gpu_power_watts": float(tick)}
            recording.append(Sample(START + tick, f"GPU-{number}", "nvml", values))
    for number in range(40):
        series = recording.series("gpu_power_watts", f"GPU-{number}")
        assert sum(series.counts) == 300
        assert list(series.values[-44:]) == [float(n) for n in range(256, 300)]


def test_rows_follow_one_another() -> None:
    """Whatever window is read, rows come in order, and those that touch it and no others."""
    merged, _ = pair(with_pauses(1200))
    every = merged.series("gpu_power_watts", GPU.id)
    assert all(a <= b for a, b in pairwise(every.times))
    rnd = random.Random(4)
    for _ in range(100):
        start = START + rnd.random() * 1200
        end = start + rnd.choice([0.0, 0.5, 10.0, 500.0])
        found = merged.series("gpu_power_watts", GPU.id, start, end)
        touching = [b >= start and a <= end
                    for a, b in zip(every.starts, every.times, strict=True)]
        expected = every.where(touching)
        assert list(found) == list(expected)
        assert list(found.highs) == list(expected.highs)
        assert list(found.counts) == list(expected.counts)


# -- bits and the starts of cells --------------------------------------------------------------


@pytest.mark.parametrize("every", [4, 7, 16])
@pytest.mark.parametrize("rhythm", ["even", "random"])
def test_shares_of_bits_do_not_depend_on_merging(every: int, rhythm: str) -> None:
    """Each reason, and any of them, has the share of the readings that it had in them."""
    rnd = random.Random(every)
    bits = [
        float((4 if (rnd.randrange(every) if rhythm == "random" else n % every) == every - 1 else 0)
              | (0x48 if n % 11 == 0 else 0) | n % 2)
        for n in range(14_000)
    ]
    merged, whole = pair(
        (Sample(START + PERIOD * n, GPU.id, "nvml", {"gpu_power_watts": 1.0, BITS: value})
         for n, value in enumerate(bits)), 1 << 17,
    )
    span = Span(1, START + 1.05, START + 1390.03)
    for recording in (merged, whole):
        recording.add_span(span)
    series = merged.series(BITS, GPU.id, START + 200, START + 600)
    assert max(series.counts) >= 16
    start, end = series.starts[0], series.times[-1]
    inside = Span(2, start - METRICS[BITS].reach_s - 0.01, end + 0.01)
    one, other = (throttling_of(r, inside, GPU, {}) for r in (merged, whole))
    assert one == other
    assert one.ratio is not None
    assert 0.05 < one.ratio < 0.9


def test_many_values_of_bits_stay_within_a_byte_bound() -> None:
    """Of readings that show every combination of bits a row keeps the 16 commonest."""
    merged, _ = pair(
        Sample(START + PERIOD * n, GPU.id, "nvml", {BITS: float(n * 37 % 256)})
        for n in range(20_000)
    )
    series = merged.series(BITS, GPU.id)
    assert series.merged is not None
    assert max(map(len, series.merged.tallies)) == 16


@pytest.mark.parametrize("max_bytes", [MIN_BYTES, 1 << 17, 1 << 18])
def test_a_peak_at_the_start_of_a_merged_cell_is_kept(max_bytes: int) -> None:
    """What is high only in a long cell's first seconds is its peak, as without merging."""
    found = []
    for recording in (recording_of(max_bytes=max_bytes), recording_of()):
        for number in range(14_000):
            time = PERIOD * number
            if number == 100:
                recording.begin_span(START + 10.05)
            if number == 13_000:
                span = recording.end_span(1, START + 1299.97)
            high = 10.05 < time < 12.05
            recording.append(Sample(START + time, GPU.id, "nvml", {
                "gpu_power_watts": 690.0 if high else 300.0,
                "gpu_utilization_ratio": 1.0 if high else 0.3,
                "gpu_memory_used_bytes": 2e10 if high else 1e10,
            }))
        found.append(summarise(recording, span).gpus[0])
    one, other = found
    assert one.coverage is not None
    assert one.coverage.merged_s > 1
    for metric in ("gpu_power_watts", "gpu_utilization_ratio", "gpu_memory_used_bytes"):
        a, b = one.figure(metric), other.figure(metric)
        assert (a.peak, a.peak_low, a.samples) == (b.peak, None, b.samples)
        assert a.mean == pytest.approx(b.mean)


def test_a_peak_that_may_lie_outside_of_a_cell_is_a_bound() -> None:
    """Where a row reaches over an end of a cell, its highest bounds the peak from above."""
    recording = recording_of(max_bytes=MIN_BYTES)
    for number in range(14_000):
        watts = 690.0 if number in range(100, 104) else 300.0 + number % 3
        recording.append(
            Sample(START + PERIOD * number, GPU.id, "nvml", {"gpu_power_watts": watts})
        )
    series = recording.series("gpu_power_watts", GPU.id)
    row = max(range(len(series)), key=lambda index: series.highs[index])
    middle = (series.starts[row] + series.times[row]) / 2
    figure = summarise(recording, Span(1, middle, START + 300)).gpus[0].figure("gpu_power_watts")
    assert (figure.peak, figure.peak_low) == (690.0, 302.0)
