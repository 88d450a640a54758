"""For how long clocks were held back: by the driver's counters where they are believed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from fakes import GPU, START, fill, recording_of, ticks
from gpumagic.figures import Throttling
from gpumagic.recording import MAX_BYTES, MIN_BYTES, Recording
from gpumagic.sample import Gap, Span
from gpumagic.throttling import Runs, held_back, throttling_of
from gpumagic.tracks import MergedSample

POWER, SYNC, SOFT, HARD, BRAKE, SLOWDOWN = 0x004, 0x010, 0x020, 0x040, 0x080, 0x008


def times(start: float, end: float, step: float = 0.1) -> list[float]:
    return ticks(START + start, START + end, step)


def show(recording: Recording, *rows: tuple[float, float, int]) -> Recording:
    """Add readings of bits: from, until (left out), bits."""
    for start, end, bits in rows:
        fill(recording, times(start, end - 0.1), gpu_clock_event_reasons_state=bits)
    return recording


def count(
    recording: Recording, readings: list[float], **seconds: float | Callable[[float], float]
) -> Recording:
    """Add readings of counters (``power=...``) at some times; functions get seconds since START."""
    for time in readings:
        fill(recording, [START + time], source="nvml_slow", **{
            f"gpu_{name}_limited_seconds": float(v) if isinstance(v, float | int) else v(time)
            for name, v in seconds.items()
        })
    return recording


def held(recording: Recording, start: float, end: float, **reasons: str) -> Throttling:
    return throttling_of(recording, Span(1, START + start, START + end), GPU, reasons)


# -- readings ------------------------------------------------------------------------------


def test_throttling_is_a_share_of_readings_by_reason() -> None:
    """Each reason's share and the share of any of them are told; idle and display do not count."""
    recording = recording_of()
    bits = [0x001, 0x002, 0x100, POWER, POWER, POWER | SOFT, HARD, 0x000, 0x000, 0x000]
    fill(recording, times(1.2, 2.1), gpu_clock_event_reasons_state=lambda t: bits[
        round((t - START - 1.2) * 10)])
    found = held(recording, 1, 2.15)
    assert (found.samples, found.method, found.sampled) == (10, "samples", ())
    assert found.ratio == pytest.approx(0.4)
    assert found.by_reason == {
        "power cap": pytest.approx(0.3),
        "thermal (software)": pytest.approx(0.1),
        "thermal (hardware)": pytest.approx(0.1),
    }
    assert found.seconds == {}


def test_a_free_gpu_is_not_throttled() -> None:
    """Without any reason the share is zero, which is not the same as not read."""
    recording = show(recording_of(), (0, 5, 1))
    found = held(recording, 1, 4)
    assert (found.ratio, found.by_reason, found.reason) == (0, {}, "")
    unread = held(recording_of(), 1, 4, nvml="no driver")
    assert (unread.ratio, unread.reason, unread.method) == (None, "no driver", "")
    assert held(recording, 1.01, 1.05).reason.startswith("too short to say")


# -- counters ------------------------------------------------------------------------------


def test_counters_tell_the_time() -> None:
    """The share is what the counter grew by over the time between its readings at the ends."""
    recording = show(recording_of(), (0, 10, POWER))
    count(recording, [2.0, 3.0, 6.0], power=lambda t: 100 + 0.3 * t, thermal=7)
    found = held(recording, 2, 6)
    assert found.method == "counters"
    assert found.by_reason == {"power cap": pytest.approx(0.3)}
    assert found.seconds == {"power cap": pytest.approx(1.2), "thermal": 0}
    assert found.ratio == pytest.approx(0.3)
    assert found.sampled == ("hardware slowdown", "sync boost", "power brake")


def test_readings_just_outside_will_do() -> None:
    """Counters read a little before and after the cell are taken, over the time between them."""
    recording = count(recording_of(), [1.9, 6.1], power=lambda t: 0.5 * t)
    assert held(recording, 2, 6).by_reason == {"power cap": pytest.approx(0.5)}


@pytest.mark.parametrize(
    "readings", [[2.0], [3.0, 5.0], [1.0, 6.8], [2.0, 5.0]],
    ids=["one", "inside", "far", "no end"],
)
def test_counters_not_read_at_both_ends_are_left(readings: list[float]) -> None:
    """Then the readings of bits stand, as without counters."""
    recording = show(recording_of(), (0, 4, POWER), (4, 10, 0))
    count(recording, readings, power=lambda t: 0.9 * t)
    found = held(recording, 2, 6)
    assert found.method == "samples"
    assert found.by_reason == {"power cap": pytest.approx(0.5, abs=0.03)}


def test_reasons_without_a_counter_come_from_the_bits() -> None:
    """Sync boost has no counter here: its share is that of the readings, and it is named."""
    recording = show(recording_of(), (0, 4, POWER | SYNC), (4, 10, 0))
    count(recording, [2.0, 6.0], power=lambda t: min(t, 4.0))
    found = held(recording, 2, 6)
    assert found.by_reason == {
        "power cap": pytest.approx(0.5), "sync boost": pytest.approx(0.5, abs=0.03),
    }
    assert "sync boost" in found.sampled
    assert "thermal (software)" in found.sampled
    assert "power cap" not in found.sampled
    # Both at the same time: the readings say that it was half of the time in all.
    assert found.ratio == pytest.approx(0.5, abs=0.03)


def test_the_hardwares_bit_is_counted_once() -> None:
    """A hardware slowdown whose cause has a counter is not told a second time."""
    recording = show(recording_of(), (0, 10, SLOWDOWN | HARD))
    count(recording, [2.0, 6.0], thermal=lambda t: t)
    assert held(recording, 2, 6).by_reason == {"thermal": pytest.approx(1.0)}
    alone = count(show(recording_of(), (0, 10, SLOWDOWN)), [2.0, 6.0], thermal=1.0)
    assert held(alone, 2, 6).by_reason == {"hardware slowdown": 1.0}


@pytest.mark.parametrize(
    ("bits", "ratio"),
    [
        ((POWER, BRAKE), 1.0),        # in the readings one follows the other: 1 of the time
        ((POWER | BRAKE, 0), 0.6),    # together: no more than half, so the largest share
        (None, 0.6),                  # no reading of bits: the largest share
    ],
)
def test_the_share_of_any_reason_lies_between_largest_and_sum(
    bits: tuple[int, int] | None, ratio: float
) -> None:
    """What the readings say of any reason is held between the largest share and the sum."""
    recording = recording_of()
    if bits is not None:
        show(recording, (0, 4, bits[0]), (4, 10, bits[1]))
    count(recording, [2.0, 6.0], power=lambda t: 0.6 * t, power_brake=lambda t: 0.45 * t)
    found = held(recording, 2, 6)
    assert found.by_reason == {
        "power cap": pytest.approx(0.6), "power brake": pytest.approx(0.45)
    }
    assert found.ratio == pytest.approx(ratio)


def test_the_sum_limits_the_share_of_any_reason() -> None:
    """Bits that are set in all readings do not make more of it than the counters count."""
    recording = show(recording_of(), (0, 10, POWER))
    count(recording, [2.0, 6.0], power=lambda t: 0.1 * t)
    assert held(recording, 2, 6).ratio == pytest.approx(0.1)


def test_a_share_is_at_most_one() -> None:
    """A counter that grew by a little more than the time gives 1."""
    recording = count(recording_of(), [2.0, 6.0], power=lambda t: 1.02 * t)
    found = held(recording, 2, 6)
    assert (found.by_reason["power cap"], found.ratio) == (1.0, 1.0)


# -- counters that are not believed ----------------------------------------------------------


def test_a_dead_counter_is_not_believed() -> None:
    """Exactly 0 since the driver was loaded, though most readings show the reason: the bits win."""
    recording = show(recording_of(), (0, 10, POWER))
    count(recording, [2.0, 6.0], power=0, thermal=3)
    found = held(recording, 2, 6)
    assert found.by_reason == {"power cap": 1.0}
    assert found.seconds == {"thermal": 0}
    assert "power cap" in found.sampled
    assert found.ratio == 1.0


@pytest.mark.parametrize("value", [0.0, 0.001])
def test_a_counter_that_stands_still_is_believed_otherwise(value: float) -> None:
    """One that has moved before, or that few readings contradict, says that nothing was held."""
    share = 10 if value else 3
    recording = show(recording_of(), (0, share, POWER), (share, 10, 0))
    count(recording, [2.0, 6.0], power=value)
    found = held(recording, 2, 6)
    assert (found.method, found.by_reason, found.ratio) == ("counters", {}, 0.0)


@pytest.mark.parametrize("seconds", [lambda t: 100 - t, lambda t: 1000 * t])
def test_a_counter_that_cannot_be_is_not_believed(seconds: Callable[[float], float]) -> None:
    """One that went back, or grew faster than time, leaves the readings of bits."""
    recording = show(recording_of(), (0, 10, 0))
    count(recording, [2.0, 6.0], power=seconds)
    found = held(recording, 2, 6)
    assert (found.method, found.ratio) == ("samples", 0.0)


def test_a_short_cell_has_no_counter() -> None:
    """Counters are renewed every 0.1 s: a cell of two renewals is left to the bits."""
    recording = count(recording_of(), [2.0, 2.15], power=lambda t: t)
    assert held(recording, 2, 2.15).ratio is None


# -- when ----------------------------------------------------------------------------------


def stretches(
    recording: Recording, start: float, end: float
) -> dict[str, list[tuple[float, float]]]:
    found = held_back(recording, GPU.id, START + start, START + end)
    return {
        name: [(pytest.approx(a - START, abs=1e-3), pytest.approx(b - START, abs=1e-3))
               for a, b in each]
        for name, each in found.items()
    }


def test_stretches_are_where_the_bits_are_set() -> None:
    """Without counters a reason holds from a reading that shows it to the next that does not."""
    recording = show(recording_of(), (0, 2, 0), (2, 3, POWER), (3, 4, POWER | SOFT), (4, 6, 0))
    assert stretches(recording, 0, 6) == {
        "power cap": [(2, 4)], "thermal (software)": [(3, 4)],
    }
    assert stretches(recording, 2.5, 3.5) == {
        "power cap": [(2.5, 3.5)], "thermal (software)": [(3, 3.5)],
    }
    assert stretches(recording, 4.5, 6) == {}


def test_stretches_end_where_readings_do() -> None:
    """A reading before a stall holds for one period, and the newest one no further than reach."""
    recording = show(recording_of(), (0, 2, POWER), (5, 6, POWER))
    assert stretches(recording, 0, 9) == {"power cap": [(0, 2), (5, 6)]}
    assert stretches(recording, 0, 6.1) == {"power cap": [(0, 2), (5, 6.1)]}


def test_stretches_lie_where_the_counter_grew() -> None:
    """Bits set while the counter stood still are none; it can lag by 0.1 s."""
    recording = show(recording_of(), (0, 10, POWER))
    count(recording, [1, 2, 3, 4, 5, 6, 7, 8, 9],
          power=lambda t: 5.0 if t < 3.5 else min(t, 6.0) + 2)
    assert stretches(recording, 0, 10) == {"power cap": [(2.9, 6)]}


def test_the_newest_interval_decides_what_comes_after() -> None:
    """Before the first and after the newest reading of a counter its next interval decides."""
    recording = show(recording_of(), (0, 6, POWER))
    assert stretches(count(recording, [2, 3, 4], power=lambda t: t), 0, 6) == {
        "power cap": [(0, 6)]
    }
    recording = show(recording_of(), (0, 6, POWER))
    assert stretches(count(recording, [2, 3, 4], power=1.0), 0, 6) == {}


def test_stretches_of_a_counter_that_is_not_believed_are_the_bits() -> None:
    """A dead counter, one that went back, and a single reading change nothing."""
    for power in (0.0, lambda t: 9 - t):
        recording = show(recording_of(), (0, 6, POWER))
        count(recording, [1, 2, 3, 4, 5], power=power)
        assert stretches(recording, 1, 5) == {"power cap": [(1, 5)]}
    recording = count(show(recording_of(), (0, 6, POWER)), [3], power=5.0)
    assert stretches(recording, 1, 5) == {"power cap": [(1, 5)]}


def test_a_lost_gpu_was_held_back_by_nothing() -> None:
    """Where a GPU could not be read there is no stretch."""
    recording = show(recording_of(), (0, 2, POWER), (4, 6, 0))
    recording.add_gap(Gap(START + 2, START + 4, "nvml", GPU.id, "lost"))
    assert stretches(recording, 0, 6) == {"power cap": [(0, 2)]}


# -- merged readings -------------------------------------------------------------------------


def flickering(*, max_bytes: int = MAX_BYTES, counter: bool = False) -> Recording:
    """Return an hour in which the cap held for 1 s of each 10, and heat for a half of that."""
    recording = recording_of(max_bytes=max_bytes)

    def bits(time: float) -> float:
        tenth = round((time - START) * 10) % 100
        return float((POWER if tenth < 10 else 0) | (SOFT if tenth < 5 else 0))

    for second in range(3600):
        fill(recording, times(second, second + 0.9), gpu_clock_event_reasons_state=bits,
             gpu_utilization_ratio=0.5, gpu_power_watts=600)
        if counter:
            count(recording, [second], power=lambda t: t / 10)
    return recording


def seconds(stretches: Iterable[tuple[float, float]]) -> float:
    return sum(b - a for a, b in stretches)


@pytest.mark.parametrize("counter", [False, True])
@pytest.mark.parametrize("start", [0, 1234.5])
def test_merged_readings_say_for_how_long_a_reason_held(counter: bool, start: float) -> None:
    """The time is that of the readings before they were merged, and rows are not many stretches."""
    merged = flickering(max_bytes=MIN_BYTES, counter=counter)
    whole = flickering(counter=counter)
    assert merged.series("gpu_clock_event_reasons_state", GPU.id).merged is not None
    rows = len(merged.series("gpu_clock_event_reasons_state", GPU.id, START + start))
    there, truth = (
        held_back(recording, GPU.id, START + start, START + 3600) for recording in (merged, whole)
    )
    assert there.keys() == truth.keys() == {"power cap", "thermal (software)"}
    for reason, stretches in there.items():
        assert seconds(stretches) == pytest.approx(seconds(truth[reason]), rel=0.02)
        assert len(stretches) <= rows


def test_reasons_of_a_merged_row_lie_as_they_did() -> None:
    """What held together is drawn together, and what the last reading shows ends the row."""
    merged, bits = recording_of(), ((0, 6), (POWER, 3), (POWER | SOFT, 1))
    merged.append(MergedSample(
        START + 0.9, GPU.id, "nvml", {"gpu_clock_event_reasons_state": float(POWER)}, START, 10,
        {"gpu_clock_event_reasons_state": float(POWER | SOFT)}, bits,
    ))
    assert stretches(merged, 0, 1) == {"power cap": [(0.6, 1)], "thermal (software)": [(0.6, 0.7)]}


def test_a_merged_row_is_believed_if_the_counter_grew_in_it() -> None:
    """When in the row the reason was is not known, so the counter decides on all of it."""
    for power, held in ((lambda t: max(t, 0.5), [(0.7, 1.2)]), (lambda t: 7.0, None)):
        merged = recording_of()
        merged.append(MergedSample(
            START + 1.1, GPU.id, "nvml", {"gpu_clock_event_reasons_state": float(POWER)}, START,
            12, {}, ((0, 7), (POWER, 5)),
        ))
        count(merged, [0, 0.25, 0.5, 0.6, 0.75, 1.0], power=power)
        assert stretches(merged, 0, 1.2).get("power cap") == held


# -- looking again and again -----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_who_looks_again_sees_the_same(seed: int) -> None:
    """Whatever readings do, and wherever the window goes, runs are as those of a first look."""
    rnd, recording, runs, now = random.Random(seed), recording_of(), Runs(), 0.0
    for _ in range(300):
        for _ in range(rnd.randrange(6)):
            now += rnd.choice([0.0, 0.1, 0.1, 0.1, 0.3, 2.0])
            fill(recording, [START + now], **rnd.choice([
                {"gpu_power_watts": 1.0},
                {"gpu_clock_event_reasons_state": float(rnd.choice([0, 1, POWER, POWER | HARD]))},
            ]))
        back = rnd.choice([0.0, 0.0, 0.0, 3.0])
        end = START + now - back + rnd.random() * 0.3
        window = rnd.choice([10.0, 10.0, 10.0, 20.0])
        again = held_back(recording, GPU.id, end - window, end, runs)
        assert again == held_back(recording, GPU.id, end - window, end)
