"""Energy is the counter's difference with its edges put right, or an estimate that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from fakes import GPU, START, fill, recording_of, ticks
from gpumagic.energy import energy_of, integrate
from gpumagic.figures import Energy
from gpumagic.recording import Recording, Series
from gpumagic.sample import HOST, Device, Gap, Span

LOST = "the GPU is lost (fallen off the bus, or reset)"
NO_ENDS = "the counter was not read at both ends of the cell"


def times(start: float, end: float, step: float = 0.1) -> list[float]:
    return ticks(START + start, START + end, step)


def power(
    recording: Recording, watts: float | Callable[[float], float], *stretch: float
) -> Recording:
    """Add readings of power; a function gets the seconds since START."""
    value = watts if isinstance(watts, float | int) else lambda t: watts(t - START)
    fill(recording, times(*(stretch or (0, 10))), gpu_power_watts=value)
    return recording


def count(recording: Recording, readings: Mapping[float, float]) -> Recording:
    """Add readings of the counter by the seconds since START."""
    for time, joules in readings.items():
        fill(recording, [START + time], source="nvml_slow", gpu_energy_joules=joules)
    return recording


def energy(recording: Recording, start: float, end: float, **reasons: str) -> Energy:
    (device, *_) = recording.devices
    return energy_of(recording, Span(1, START + start, START + end), device, reasons)


# -- the counter ---------------------------------------------------------------------------


def test_energy_is_the_counters_difference() -> None:
    """Readings at the very ends give the energy between them; they may be 0.1 s old."""
    recording = count(power(recording_of(), 300), {2.0: 1e6, 6.0: 1e6 + 1200})
    found = energy(recording, 2, 6)
    assert (found.joules, found.mean_watts) == (pytest.approx(1200), pytest.approx(300))
    assert found.bound_joules == pytest.approx(300 * 0.1)
    assert (found.method, found.reason) == ("counter", "")


@pytest.mark.parametrize(
    ("first", "last"), [(1.5, 6.0), (2.3, 5.5), (1.5, 5.5), (2.3, 6.4)],
    ids=["outside", "inside", "early", "late"],
)
def test_edges_are_power_over_time(first: float, last: float) -> None:
    """Readings beside the ends give the same joules: power between them and the ends counts."""
    def watts(t: float) -> float:
        return 100 + 50 * t

    def used(a: float, b: float) -> float:
        return 100 * (b - a) + 25 * (b * b - a * a)

    recording = power(recording_of(), watts)
    count(recording, {first: 5e5, last: 5e5 + used(first, last)})
    found = energy(recording, 2, 5.8)
    assert found.joules == pytest.approx(used(2, 5.8))
    assert found.mean_watts == pytest.approx(used(2, 5.8) / 3.8)
    assert found.bound_joules is not None
    # Power rises by 50 W a second: near an edge it varies by that over 2.2 s and the edge.
    for edge in (abs(first - 2), abs(last - 5.8)):
        assert found.bound_joules > edge * 50 * 2.2
    assert found.bound_joules < 200


def test_the_bound_holds_for_a_step_beside_the_end() -> None:
    """A load that starts in the edge, seen by a gauge that is a second late, is in the bound."""
    def late(t: float) -> float:
        return 100 + 400 * min(1.0, max(0.0, t - 1.8))  # the mean of the last second

    # The load starts at 1.8 and the counter was read at 1.5.
    truth = 500 * 4.0
    recording = count(power(recording_of(), late), {1.5: 0.0, 6.0: 100 * 0.3 + 500 * 4.2})
    found = energy(recording, 2, 6)
    assert found.joules is not None
    assert found.bound_joules is not None
    assert abs(found.joules - truth) > 50
    assert abs(found.joules - truth) <= found.bound_joules


def test_energy_without_power_is_bounded_by_itself() -> None:
    """Where power is not read, the mean power of the counter stands for the edges."""
    found = energy(count(recording_of(), {2.0: 200, 6.0: 600}), 2, 6)
    assert found.bound_joules == pytest.approx(10)
    found = energy(count(recording_of(), {1.5: 150, 6.0: 600}), 2, 6)
    assert found.joules == pytest.approx(400)
    assert found.bound_joules == pytest.approx(10 + 0.5 * 100)


def test_a_short_cell_takes_the_readings_around_it() -> None:
    """Where one reading is the nearest to both ends, the ones outside are taken."""
    recording = count(power(recording_of(), 200), {1.0: 200, 2.2: 440, 3.2: 640})
    found = energy(recording, 2, 2.4)
    assert found.method == "counter"
    assert found.joules == pytest.approx(80)


def test_a_reload_outside_does_not_matter() -> None:
    """A counter that went back before the readings that are used is none that went back."""
    recording = count(power(recording_of(), 100), {1.0: 9e9, 2.0: 10, 6.0: 410})
    assert energy(recording, 2, 6).joules == pytest.approx(400)


# -- an estimate ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ({}, "the device gave no value"),
        ({2.0: 500.0}, NO_ENDS),
        ({4.0: 500.0}, NO_ENDS),
        ({2.0: 500.0, 6.0: 100.0}, "the counter went back (the driver was reloaded)"),
    ],
)
def test_power_over_time_stands_in(readings: dict[float, float], reason: str) -> None:
    """Without a counter at both ends, power integrated is an estimate, and why it is one."""
    recording = count(recording_of(), readings)
    found = energy(recording, 2, 6)
    assert (found.joules, found.bound_joules, found.mean_watts) == (None, None, None)
    assert (found.method, found.reason) == ("", reason)
    power(recording, lambda t: 100 + 10 * t)
    found = energy(recording, 2, 6)
    assert found.joules == pytest.approx(400 + 5 * (36 - 4))
    assert (found.method, found.reason) == ("estimate", reason)
    # A reading is up to 1.1 s late, and power went from 115 to 165 W around the cell.
    assert found.bound_joules == pytest.approx(1.1 * 50, abs=3)


def test_an_old_gpu_has_an_estimate() -> None:
    """A GPU without the counter says so and has its energy by power."""
    device = Device(GPU.id, "gpu", "old", 0, absent={"gpu_energy_joules": "not supported"})
    recording = power(recording_of(device), 80)
    found = energy(recording, 2, 6)
    assert (found.joules, found.method, found.reason) == (
        pytest.approx(320), "estimate", "not supported"
    )


@pytest.mark.parametrize("stretches", [[(0, 3), (4, 10)], [(2.7, 10)], [(0, 5.2)]])
def test_power_with_a_hole_is_no_estimate(stretches: list[tuple[float, float]]) -> None:
    """Readings have to cover the span: a hole in it or at its ends leaves nothing."""
    recording = recording_of()
    for stretch in stretches:
        power(recording, 80, *stretch)
    found = energy(recording, 2, 6)
    assert (found.joules, found.method) == (None, "")
    assert found.reason


def test_a_cell_within_a_readings_window_is_no_estimate() -> None:
    """Power is a mean of a second: a cell of a second has no estimate of its own."""
    recording = power(recording_of(), 80)
    assert energy(recording, 2, 3).joules is None
    assert energy(recording, 2, 3.2).method == "estimate"


# -- nothing -------------------------------------------------------------------------------


def test_two_renewals_are_too_short() -> None:
    """A cell of 0.15 s says that the counter is renewed every 0.1 s."""
    recording = count(power(recording_of(), 300), {2.0: 1.0, 2.15: 9.0})
    found = energy(recording, 2, 2.15)
    assert found == Energy(reason="too short to say: the counter is renewed every 100 ms")


def test_what_cannot_be_read_says_why() -> None:
    """A source's reason and a lost GPU are told; the host has no energy here."""
    assert energy(recording_of(), 2, 6, nvml_slow="no driver").reason == "no driver"
    assert energy_of(recording_of(), Span(1, 1, 3), Device(HOST, "host", "Host"), {}).reason == (
        "not a GPU"
    )


def test_a_gpu_lost_before_the_end_has_no_energy() -> None:
    """A counter read shortly before the GPU was lost does not stand for the cell's end."""
    recording = count(power(recording_of(), 300, 0, 4.5), {2.0: 600, 3.0: 900, 4.0: 1200})
    recording.open_gap(Gap(START + 4.6, None, "nvml", GPU.id, LOST))
    assert energy(recording, 2, 6) == Energy(reason=LOST)
    # A loss inside, over before the end, takes nothing from a counter read at both ends.
    found = count(recording_of(), {2.0: 600, 6.0: 1800})
    found.add_gap(Gap(START + 3, START + 4, "nvml", GPU.id, LOST))
    assert energy(found, 2, 6).joules == pytest.approx(1200)


# -- the integral --------------------------------------------------------------------------


def test_an_integral_joins_and_holds() -> None:
    """Values are joined by lines, held beyond the ends, and negative backwards."""
    series = Series("gpu_power_watts", GPU.id, [1.0, 2.0, 4.0], [10.0, 20.0, 0.0])
    assert integrate(series, 1, 2) == pytest.approx(15)
    assert integrate(series, 1.5, 3) == pytest.approx(0.5 * 17.5 + 15)
    assert integrate(series, 0, 1) == pytest.approx(10)
    assert integrate(series, 4, 9) == pytest.approx(0)
    assert integrate(series, 2, 1) == pytest.approx(-15)
    assert integrate(series, 3, 3) == 0
    with pytest.raises(ValueError, match="empty"):
        integrate(Series("gpu_power_watts", GPU.id, [], []), 0, 1)
