"""The allocator's history gives a cell's exact peak, or says why it does not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import gpumagic
from fakes import GPU, FakeSource, fill, recording_of, ticks
from fakes import START as T0
from fakes_torch import MIB, FakeAllocator, FakeDevice, FakeHistory, FakeTorch, OutOfMemory
from gpumagic import measurement, session
from gpumagic.errors import SettingError
from gpumagic.memory import history as module
from gpumagic.memory.history import EXACT, History, HistoryReading, with_history
from gpumagic.memory.replay import Peaks, Rounding
from gpumagic.sample import Span
from gpumagic.session import Session
from gpumagic.sources.allocator import AllocatorSource
from gpumagic.summary import summarise

UUID = GPU.id.removeprefix("GPU-")
OTHER = "bbbbbbbb-0000-4000-8000-000000000001"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTorch]:
    """Give a torch of two GPUs whose history is off, and check that nobody holds it after."""
    made = FakeTorch([FakeDevice(UUID), FakeDevice(OTHER)], history=FakeHistory(2))
    yield made.install(monkeypatch)
    assert module._holders == []


def history_of(fake: FakeTorch) -> FakeHistory:
    assert fake.history is not None
    return fake.history


def work(allocator: FakeAllocator, seed: int, steps: int = 400) -> None:
    """Allocate and free at random, as training with side streams and failures would."""
    rng = random.Random(seed)
    live: list[int] = []
    waiting: list[int] = []
    for _ in range(steps):
        choice = rng.random()
        if choice < 0.5 or not live:
            size = rng.choice([100, 3000, MIB, 3 * MIB, 9 * MIB, 19 * MIB, 70 * MIB])
            live.append(allocator.alloc(size + rng.randrange(MIB)))
        elif choice < 0.85:
            address = live.pop(rng.randrange(len(live)))
            waits = rng.random() < 0.2
            allocator.free(address, waits=waits)
            if waits:
                waiting.append(address)
        elif choice < 0.93 and waiting:
            allocator.complete(waiting.pop(0))
        elif choice < 0.97:
            allocator.empty_cache()
        else:
            with pytest.raises(OutOfMemory):
                allocator.fail(1 << 40)


def measured(history: FakeHistory, cell: Callable[[], object], **options: Any) -> HistoryReading:
    """Keep the history over a cell."""
    kept = History(**options)
    kept.begin()
    for allocator in history.allocators:
        allocator.levels, allocator.reserved_levels = [allocator.allocated], [allocator.reserved]
    cell()
    return kept.end()


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("divisions", [0, 4])
@pytest.mark.parametrize("seed", range(8))
def test_the_peak_is_exact_to_the_byte(
    fake: FakeTorch, seed: int, divisions: int, expandable: bool
) -> None:
    """Whatever was allocated and freed, on either GPU, the peaks are those of the allocator."""
    history = history_of(fake)
    history.expandable, history.divisions = expandable, divisions
    for allocator in history.allocators:
        work(allocator, seed, 100)
    reading = measured(
        history,
        lambda: [work(a, seed + 50 * n, 200 + n) for n, a in enumerate(history.allocators, 1)],
    )
    assert reading.reason == ""
    for index, allocator in enumerate(history.allocators):
        assert reading.peaks[index] == Peaks(
            max(allocator.levels), max(allocator.reserved_levels), True, True
        )
    assert history.switched == [True, False]


def test_a_block_can_be_larger_than_what_was_asked_for(fake: FakeTorch) -> None:
    """A rest of 1 MiB or less stays with its block, which torch's counter counts too."""
    history = history_of(fake)
    reading = measured(history, lambda: history.allocators[0].alloc(21 * MIB + MIB // 4))
    assert history.allocators[0].allocated == 22 * MIB
    assert reading.peaks[0].allocated == 22 * MIB


def test_a_reset_inside_the_cell_loses_nothing(fake: FakeTorch) -> None:
    """The user's own peak counter is as it would have been, and the peak is known all the same."""
    (one, _) = (history := history_of(fake)).allocators

    def cell() -> None:
        one.free(one.alloc(100 * MIB))
        one.reset_peaks()
        one.free(one.alloc(30 * MIB))

    reading = measured(history, cell)
    assert reading.peaks[0].allocated == 100 * MIB
    assert one.peak == 30 * MIB


def test_what_was_freed_on_request_counts_no_more(fake: FakeTorch) -> None:
    """allocated falls when a free is asked for, though a stream still uses the block."""
    (one, _) = (history := history_of(fake)).allocators

    def cell() -> None:
        waiting = one.alloc(40 * MIB)
        one.free(waiting, waits=True)
        one.alloc(50 * MIB)
        one.complete(waiting)

    reading = measured(history, cell)
    assert reading.peaks[0].allocated == 50 * MIB
    assert reading.peaks[0].reserved == 90 * MIB


@pytest.mark.parametrize("seed", range(6))
def test_of_too_many_events_a_bound_is_left(fake: FakeTorch, seed: int) -> None:
    """Where the ring has lost the oldest events, the newest tell what was reached at least."""
    history = history_of(fake)
    one = history.allocators[0]
    work(one, seed, 60)
    reading = measured(history, lambda: work(one, seed + 9), max_entries=100)
    peaks = reading.peaks[0]
    assert "more events than the 100 that are kept" in reading.reason
    assert not peaks.allocated_exact
    assert not peaks.reserved_exact
    assert one.allocated <= peaks.allocated <= max(one.levels)
    assert one.reserved <= peaks.reserved <= max(one.reserved_levels)
    last = max(one.levels[-20:])
    assert peaks.allocated >= last - 30 * MIB


def test_events_that_do_not_fit_give_a_bound(fake: FakeTorch) -> None:
    """Where an event is missing, no peak is called exact."""
    history = history_of(fake)
    one = history.allocators[0]

    def cell() -> None:
        kept = one.alloc(30 * MIB)
        one.free(one.alloc(64 * MIB))
        history._rings[0].remove(next(e for e in history._rings[0] if e["size"] == 30 * MIB))
        one.free(kept)

    reading = measured(history, cell)
    assert "does not lead to its blocks" in reading.reason
    assert not reading.peaks[0].allocated_exact
    assert reading.peaks[0].allocated <= max(one.levels)


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1, 0, 512), (512, 0, 512), (513, 0, 1024), (1200, 4, 1536), (5000, 4, 5120),
        (5 << 20, 4, 5 << 20), ((5 << 20) + 1, 4, 6 << 20), (8 << 20, 4, 8 << 20),
        ((5 << 20) + 1, 1, (5 << 20) + 512),
    ],
)
def test_requests_are_rounded_as_the_allocator_does(
    size: int, divisions: int, rounded: int
) -> None:
    """Blocks are multiples of 512 bytes, or of parts of a power of two where that is set."""
    settings = {"roundup_power2_divisions": {str(1 << n): divisions for n in range(16)}}
    assert Rounding.of(settings).rounded(size) == rounded


# -- the switch ------------------------------------------------------------------------------


def test_without_cuda_nothing_is_switched_on(
    monkeypatch: pytest.MonkeyPatch, fake: FakeTorch
) -> None:
    """A cell that initialises CUDA itself is not the first to make a context because of us."""
    fake.initialised = False
    history = History()
    history.begin()
    fake.initialised = True
    assert "had not initialised CUDA when the cell began" in history.end().reason
    assert history_of(fake).switched == []


def test_the_users_own_history_is_left_alone(fake: FakeTorch) -> None:
    """A history that is on stays on, with all its events."""
    kept = history_of(fake)
    kept.record()
    kept.allocators[0].alloc(5)
    reading = measured(kept, lambda: kept.allocators[0].alloc(7))
    assert reading.peaks == {}
    assert reading.reason.startswith("the user's own memory history is on")
    assert kept.switched == [True]
    assert [e["size"] for e in kept.snapshot()["device_traces"][0] if e["action"] == "alloc"] == [
        5, 7,
    ]


@pytest.mark.parametrize("again", [False, True])
def test_a_cell_may_switch_the_history_itself(fake: FakeTorch, again: bool) -> None:
    """What the cell switched is left as the cell left it, and the peak is not told by it."""
    kept = history_of(fake)

    def cell() -> None:
        kept.record(None)
        if again:
            kept.record()
        kept.allocators[0].alloc(7)

    reading = measured(kept, cell)
    assert reading.peaks == {}
    assert reading.reason.startswith("the cell switched the memory history itself")
    assert kept.on is again


def test_a_history_that_the_cell_takes_over_stays_on(fake: FakeTorch) -> None:
    """Events with stacks are the user's: the cell has switched on what was on."""
    kept = history_of(fake)

    def cell() -> None:
        kept.record()
        kept.allocators[0].alloc(7)

    assert measured(kept, cell).reason.startswith("the cell switched the memory history itself")
    assert kept.on


def test_a_restarted_history_without_stacks_is_noticed(fake: FakeTorch) -> None:
    """A history that was off in between lacks the entry of our snapshot."""
    kept = history_of(fake)

    def cell() -> None:
        kept.record(None)
        kept.record(context=None)
        kept.allocators[0].alloc(7)

    assert measured(kept, cell).peaks == {}


def test_the_cells_own_snapshots_are_in_nobodys_way(fake: FakeTorch) -> None:
    """A cell may take snapshots while the history is kept."""
    kept = history_of(fake)
    one = kept.allocators[0]
    one.alloc(3 * MIB)

    def cell() -> None:
        kept.snapshot()
        one.free(one.alloc(50 * MIB))
        kept.snapshot()

    assert measured(kept, cell).peaks[0] == Peaks(53 * MIB, 70 * MIB, True, True)


def test_measurements_nest(fake: FakeTorch) -> None:
    """A measurement inside another reads the same history, and the last one switches it off."""
    kept = history_of(fake)
    one = kept.allocators[0]
    outer, inner = History(), History()
    outer.begin()
    one.free(one.alloc(80 * MIB))
    inner.begin()
    one.free(one.alloc(30 * MIB))
    assert inner.end().peaks[0].allocated == 30 * MIB
    assert kept.on
    assert outer.end().peaks[0].allocated == 80 * MIB
    assert kept.switched == [True, False]


def test_the_asynchronous_allocator_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With cudaMallocAsync nothing is switched."""
    kept = FakeHistory()
    FakeTorch([FakeDevice(UUID)], backend="cudaMallocAsync", history=kept).install(monkeypatch)
    assert "cudaMallocAsync allocator keeps no history" in measured(kept, lambda: None).reason
    assert kept.switched == []


def test_an_old_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that cannot say whether its history is on is not switched."""
    fake = FakeTorch([FakeDevice(UUID)], history=FakeHistory())
    del fake.torch._C
    fake.install(monkeypatch)
    assert "cannot tell whether" in measured(history_of(fake), lambda: None).reason
    assert history_of(fake).switched == []


def test_a_failure_is_a_reason(fake: FakeTorch) -> None:
    """If torch fails to switch or to tell, the cell goes on and the history is off again."""
    kept = history_of(fake)

    def fail(*_: object) -> None:
        raise RuntimeError("no room\nat all")

    kept.on_snapshot = fail
    reason = measured(kept, lambda: None).reason
    assert "could not be read (no room)" in reason
    assert not kept.on
    kept.on_snapshot = lambda: None
    reading = measured(kept, lambda: setattr(kept, "on_snapshot", fail))
    assert "could not be read (no room)" in reading.reason
    assert not kept.on
    assert kept.switched == [True, False] * 2


@pytest.mark.parametrize("at", ["begin", "end"])
def test_an_interrupt_leaves_it_off(fake: FakeTorch, at: str) -> None:
    """Ctrl-C while a snapshot is taken comes through, and the history is off."""
    kept = history_of(fake)

    def interrupt() -> None:
        raise KeyboardInterrupt

    history = History()
    if at == "end":
        history.begin()
    kept.on_snapshot = interrupt
    with pytest.raises(KeyboardInterrupt):
        getattr(history, at)()
    assert kept.switched == [True, False]


def test_an_interrupted_switch_can_be_turned_again(fake: FakeTorch) -> None:
    """Ctrl-C before the history is off leaves it to the next drop, which the measurement makes."""
    kept = history_of(fake)
    history = History()
    history.begin()

    def interrupt(on: bool) -> None:
        raise KeyboardInterrupt

    kept.on_switch = interrupt
    with pytest.raises(KeyboardInterrupt):
        history.end()
    kept.on_switch = lambda on: None
    assert kept.on
    history.drop()
    assert not kept.on
    history.drop()
    assert kept.switched == [True, False]


# -- into the figures ------------------------------------------------------------------------


def figure_of(peaks: Peaks, *, before: int, after: int, reading: int = 10) -> Any:
    """Return allocated's figure, and the method, for counters before and after the cell."""
    recording = recording_of(GPU)
    times = ticks(T0, T0 + 10)
    fill(
        recording, times, GPU, "allocator", torch_allocated_bytes=reading,
        torch_reserved_bytes=100, torch_reserved_peak_bytes=100,
        torch_allocated_peak_bytes=lambda t: before if t < T0 + 4 else after,
    )
    span = Span(1, T0 + 2, T0 + 8, number=1, status="ok")
    summary, method = with_history(summarise(recording, span), HistoryReading({0: peaks}))
    return summary.gpus[0].figure("torch_allocated_bytes"), method


@pytest.mark.parametrize(
    ("before", "after", "peak"),
    [(40, 60, 60), (60, 60, 33), (60, 60, 60), (60, 20, 75), (40, 60, 75)],
)
def test_an_exact_peak_is_taken(before: int, after: int, peak: int) -> None:
    """It agrees with a counter that moved, lies below one that did not, or above a reset one."""
    figure, method = figure_of(Peaks(peak, 100, True, True), before=before, after=after)
    assert (figure.peak, figure.peak_low, figure.peak_exact) == (peak, None, True)
    assert method == EXACT


@pytest.mark.parametrize(("before", "after"), [(40, 60), (60, 60)])
def test_a_contradiction_makes_a_bound(before: int, after: int) -> None:
    """A history below what torch's counter proves, or below a reading, is not called exact."""
    figure, method = figure_of(Peaks(5, 100, True, True), before=before, after=after)
    assert (figure.peak, figure.peak_low, figure.peak_exact) == (60, 5, False)
    assert method.endswith("disagree: the peak is a bound")


def test_a_lower_bound_narrows_the_figure() -> None:
    """What was reached at least lifts the lower end, and settles it where both ends meet."""
    figure, _ = figure_of(Peaks(30, 100), before=60, after=60)
    assert (figure.peak_low, figure.peak, figure.peak_exact) == (30, 60, False)
    figure, _ = figure_of(Peaks(60, 100), before=60, after=60)
    assert (figure.peak_low, figure.peak, figure.peak_exact) == (None, 60, True)
    figure, _ = figure_of(Peaks(5, 100), before=40, after=60)
    assert (figure.peak_low, figure.peak, figure.peak_exact) == (None, 60, True)
    figure, _ = figure_of(Peaks(90, 100), before=60, after=60)
    assert (figure.peak_low, figure.peak, figure.peak_exact) == (None, 90, False)


def test_the_method_tells_a_bound_from_a_peak() -> None:
    """The reason says that the peak is a bound only where it is one."""
    recording = recording_of(GPU)
    fill(recording, ticks(T0, T0 + 10), GPU, "allocator", torch_allocated_bytes=1,
         torch_allocated_peak_bytes=1, torch_reserved_bytes=1, torch_reserved_peak_bytes=1)
    summary = summarise(recording, Span(1, T0 + 2, T0 + 8, number=1, status="ok"))
    full = HistoryReading({0: Peaks(1, 1)}, "too many")
    assert with_history(summary, full)[1] == "too many: peak by torch's counters"
    gpu = summary.gpus[0]
    loose = replace(gpu.figure("torch_allocated_bytes"), peak=9.0, peak_low=1.0, peak_exact=False)
    figures = dict(gpu.figures) | {"torch_allocated_bytes": loose}
    wide = replace(summary, devices=(replace(gpu, figures=figures),))
    assert with_history(wide, full)[1] == "too many: the peak is a bound"
    assert with_history(summary, HistoryReading(reason="none")) == (summary, "none")


# -- measured --------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, fake: FakeTorch) -> Iterator[Session]:
    made = Session(make=lambda names: [FakeSource("nvml"), AllocatorSource()])
    monkeypatch.setattr(session, "_current", made)
    yield made
    made.close()


def test_a_block_gets_its_exact_peak(made: Session, fake: FakeTorch) -> None:
    """profile(peak="exact") gives a peak that neither readings nor counters could tell."""
    one = history_of(fake).allocators[0]
    one.free(one.alloc(300 * MIB))
    with gpumagic.profile("x", peak="exact") as p:
        one.free(one.alloc(100 * MIB))
    assert p.result is not None
    figure = p.result.summary.gpus[0].figure("torch_allocated_bytes")
    assert (figure.peak, figure.peak_exact) == (100 * MIB, True)
    assert one.peak == 300 * MIB
    assert p.result.to_dict()["peak_method"] == EXACT
    assert history_of(fake).switched == [True, False]


def test_by_default_the_history_is_not_touched(made: Session, fake: FakeTorch) -> None:
    """Without the option nothing is switched and nothing is said."""
    with gpumagic.profile("x") as p:
        pass
    assert p.peak_method == ""
    assert history_of(fake).switched == []


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_a_failing_block_leaves_it_off(
    made: Session, fake: FakeTorch, error: BaseException
) -> None:
    """However the block ends, the history is off."""
    with pytest.raises(type(error)), gpumagic.profile("x", peak="exact"):
        raise error
    assert history_of(fake).switched == [True, False]
    assert made.leases == ()


def test_a_cancelled_measurement_leaves_it_off(made: Session, fake: FakeTorch) -> None:
    """A cell that nobody saw end, or whose report fails, leaves the history off."""
    measurement.Measurement(made, peak="exact").cancel()
    assert history_of(fake).switched == [True, False]
    assert made.leases == ()


def test_an_interrupted_end_leaves_it_off(made: Session, fake: FakeTorch) -> None:
    """Ctrl-C in the switch itself is made good when the measurement is cancelled."""
    kept = history_of(fake)
    measured = measurement.Measurement(made, peak="exact")
    interrupts = iter([True])

    def interrupt(on: bool) -> None:
        if next(interrupts, False):
            raise KeyboardInterrupt

    kept.on_switch = interrupt
    with pytest.raises(KeyboardInterrupt):
        measured.end()
    assert kept.switched == [True, False]
    assert made.leases == ()


def test_another_value_starts_nothing(made: Session, fake: FakeTorch) -> None:
    """A value that is none fails before the block runs and names the choices."""
    wrong: Any = "exactly"
    with pytest.raises(SettingError, match="auto, exact, not 'exactly'"):
        gpumagic.profile("x", peak=wrong).__enter__()
    assert made.leases == ()
