"""What stands on the time axis of a scene: events, cells, and times in words."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from gpumagic.recording import MIN_BYTES, Recording
from gpumagic.sample import Gap, Mark, Sample, Span
from gpumagic.views import events
from gpumagic.views.axis import Axis
from gpumagic.views.bins import Grid
from gpumagic.views.drawing import fixed_shapes, moving_shapes
from gpumagic.views.events import events_of
from gpumagic.views.scene import Scene, build_scene
from gpumagic.views.sentences import sentences
from gpumagic.views.shapes import Box, Stroke
from gpumagic.views.wording import SMALL, text_width
from scene_examples import NOW, START, busy, empty, feed, gpu, training


def scene(recording: Recording, **more: object) -> Scene:
    settings: dict[str, object] = {"start": START, "end": NOW, **more}
    return build_scene(recording, **settings)  # type: ignore[arg-type]


def counted(
    *counts: tuple[float, float, float], device: str = "GPU-0",
    recording: Recording | None = None,
) -> Recording:
    """Return a recording in which OOMs and retries were counted at some seconds."""
    recording = empty(gpu(0), gpu(1), gpu(2)) if recording is None else recording
    for second, ooms, retries in counts:
        recording.append(Sample(START + second, device, "allocator", {
            "torch_ooms_count": ooms, "torch_alloc_retries_count": retries,
        }))
    return recording


def seen(
    recording: Recording, start: float = START, end: float = NOW
) -> list[tuple[float, str, int]]:
    """List the events of the first GPU, each in a column of its own."""
    grid = Grid.over(start, end, round((end - start) * 20))
    return [(e.time - START, e.kind, e.count) for e in events_of(recording, "GPU-0", grid, end)]


# -- events -------------------------------------------------------------------------------


def test_a_counter_that_grew_is_an_event() -> None:
    """It counts at the later reading's time, with what the counter grew by."""
    recording = counted((1, 5, 7), (2, 5, 7), (3, 5, 9), (4, 6, 9), (9, 6, 10))
    assert seen(recording) == [(3, "retry", 2), (4, "OOM", 1), (9, "retry", 1)]
    assert seen(recording, START + 3.5, START + 5) == [(4, "OOM", 1)]


def test_a_counter_that_fell_was_begun_anew() -> None:
    """A reset is no event, and what is counted after it is."""
    assert seen(counted((1, 3, 3), (2, 0, 0), (3, 1, 0), (4, 0, 2))) == [
        (3, "OOM", 1), (4, "retry", 2),
    ]


def test_each_reading_is_looked_at_once() -> None:
    """Events found bit by bit are those found at once, also where readings share a time."""
    rnd = random.Random(4)
    counts, ooms, retries = [], 0, 0
    for second in range(200):
        ooms = 0 if rnd.random() < 0.05 else ooms + (rnd.random() < 0.1)
        retries += rnd.random() < 0.1
        counts.append((second // 2 / 4, ooms, retries))
    recording = empty(gpu())
    for count in counts:
        counted(count, recording=recording)
        seen(recording)
    assert seen(recording) == seen(counted(*counts, recording=empty(gpu())))


def test_events_do_not_ask_for_old_readings() -> None:
    """Once looked through, an hour of counters costs no more than what came since."""
    recording = counted((1, 0, 0), (59, 1, 0))
    seen(recording)
    asked: list[float] = []
    series = recording.series

    def listening(metric: str, device: str, start: float = 0.0, end: float = 0.0) -> object:
        asked.append(start)
        return series(metric, device, start, end)

    recording.series = listening  # type: ignore[method-assign, assignment]
    assert seen(recording) == [(59, "OOM", 1)]
    assert asked == [START + 59] * 2


def test_a_column_has_one_event_of_a_kind() -> None:
    """It has the count of all in the column, from the first of them to the last."""
    recording = counted(*((t / 4, t, t // 2) for t in range(241)))
    grid = Grid.over(START, NOW, 30)
    found = events_of(recording, "GPU-0", grid, START + 50)
    ooms = [e for e in found if e.kind == "OOM"]
    assert [grid.column(e.time) for e in ooms] == list(range(25))
    assert [e.count for e in ooms] == [8] * 25
    assert {(e.time - START) % 2 for e in ooms} == {0.25}
    assert {e.last - e.time for e in ooms} == {1.75}
    assert sum(e.count for e in found if e.kind == "retry") == 100


def test_what_is_kept_of_events_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many events those that the recording has merged become one, and none is lost."""
    monkeypatch.setattr(events, "_MOST", 1000)
    recording = Recording(max_bytes=MIN_BYTES)
    recording.add_device(gpu())
    recording.periods["allocator"] = 0.01
    for second in range(60):
        counted(*(
            (second + t / 100, second * 100 + t, 0) for t in range(100)
        ), recording=recording)
        seen(recording)
    # Each merged reading has the time of its last one.
    found = seen(recording)
    assert sum(count for _, _, count in found) == 5999
    kept = max(len(trail.times) for trail in events._TRAILS[recording].values())
    assert kept < 4000


def test_thousands_of_ooms_are_few_ticks() -> None:
    """A search for a batch size in an hour has a tick a column, and words for what there is."""
    recording = counted(*(
        (100 + number * 0.17, number, 2 * number) for number in range(20_001)
    ))
    drawn = scene(recording, end=START + 3600, gpus=["GPU-0"])
    ticks = [tick for note in drawn.events for tick in note.ticks]
    assert sum(tick.count for tick in ticks if tick.kind == "OOM") == 20_000
    assert sum(tick.count for tick in ticks if tick.kind == "retry") == 40_000
    assert len(ticks) <= 2 * drawn.columns
    assert [note.label for note in drawn.events] == ["20000 OOMs"]
    assert len(sentences(drawn)) < 10


@pytest.mark.parametrize("seed", range(20))
def test_a_retry_goes_with_the_oom_beside_it(seed: int) -> None:
    """Each tick has one word, and a retry that stands as near as an OOM's word shares its."""
    rnd = random.Random(seed)
    counts, ooms, retries = [(0.0, 0, 0)], 0, 0
    for second in range(1, 60):
        ooms += rnd.random() < 0.06
        retries += rnd.random() < 0.3
        counts.append((float(second), ooms, retries))
    drawn = scene(counted(*counts), gpus=["GPU-0"])
    ticks = [tick for note in drawn.events for tick in note.ticks]
    assert sum(t.count for t in ticks) == ooms + retries
    panel, near = drawn.panels[0], text_width("OOM", 11)
    at = {panel.x(t.x) for t in ticks if t.kind == "OOM"}
    for note in drawn.events:
        failed = any(t.kind == "OOM" for t in note.ticks)
        for tick in note.ticks:
            beside = any(abs(panel.x(tick.x) - x) < near for x in at)
            assert beside is failed


def test_events_have_words() -> None:
    """An OOM is named with the retry before it, and retries that fall together share a word."""
    drawn = scene(counted(
        (1, 0, 0), (20, 0, 1), (20.1, 1, 1), (40, 1, 2), (42, 1, 3), (43, 1, 4), (56, 1, 5),
    ), gpus=["GPU-0"])
    assert [n.label for n in drawn.events] == ["OOM", "3 retries", "retry"]
    assert [len(n.ticks) for n in drawn.events] == [2, 3, 1]
    told = " ".join(sentences(drawn))
    assert "GPU 0 out of memory 40 s ago." in told
    assert "GPU 0 allocation retried (5 retries) first 40 s ago, last 4 s ago." in told
    drawn = scene(counted((0, 0, 0), (2, 2, 0), (8, 3, 0)), columns=6, gpus=["GPU-0"])
    assert len(drawn.events[0].ticks) == 1
    assert "GPU 0 out of memory (3 OOMs) first 58 s ago, last 52 s ago." in sentences(drawn)


def test_many_ooms_share_a_word() -> None:
    """OOMs whose words would collide are counted."""
    drawn = scene(counted((1, 0, 0), (20, 1, 0), (22, 3, 0), (23, 4, 0)))
    assert [n.label for n in drawn.events] == ["4 OOMs"]


@pytest.mark.parametrize("gpus", [["GPU-0", "GPU-1"], None])
def test_a_tick_stands_at_the_memory_of_its_gpu(gpus: list[str] | None) -> None:
    """The GPU on which it happened has the orange tick, the others have none."""
    drawn = scene(counted((1, 0, 0), (30, 1, 0), device="GPU-1"), gpus=gpus)
    memory = drawn.memory_row("GPU-1")
    assert memory is not None
    assert memory.name == "mem"
    ticks = [
        s for s in moving_shapes(drawn)
        if isinstance(s, Box) and s.paint == "limit" and s.y > drawn.band_top + 5
    ]
    assert [(t.x + 1, t.y + 3) for t in ticks] == [
        (pytest.approx(memory.panel.x(drawn.events[0].ticks[0].x)), memory.top)
    ]


def test_without_a_word_there_is_no_orange() -> None:
    """Where not even a moved word finds room, the tick has the colour of labels."""
    colours = set()
    for length in range(1, 30):
        recording = counted((1, 0, 0), (30, 1, 0))
        recording.begin_span(START, name="w" * length)
        drawn = scene(recording)
        orange = [s for s in moving_shapes(drawn) if getattr(s, "paint", "") == "limit"]
        assert bool(orange) is bool(drawn.events[0].label)
        colours.add(bool(orange))
    assert colours == {True, False}


def test_an_oom_comes_before_all_but_the_running_cell() -> None:
    """Its word has its room where cells, marks and a gap want it too."""
    recording = counted((1, 0, 0), (30, 1, 0))
    for number in range(60):
        start = START + number
        recording.add_span(Span(number + 1, start, start + 0.9, number, status="ok"))
        recording.add_mark(Mark(start, f"epoch {number}"))
    recording.add_gap(Gap(START + 29, START + 31, "nvml", None, "busy"))
    drawn = scene(recording, gpus=["GPU-0"])
    (note,) = drawn.events
    middle = note.label_x + text_width("OOM", 11) / 2
    assert middle == pytest.approx(drawn.panels[0].x(note.ticks[0].x))


def test_a_failed_cell_keeps_its_number_beside_an_oom() -> None:
    """A short cell that failed for want of memory reads as one: [7] OOM."""
    recording = counted((1, 0, 0), (30, 1, 0))
    recording.add_span(Span(1, START + 28, START + 30.1, 7, status="error"))
    drawn = scene(recording, gpus=["GPU-0"])
    assert [b.label for b in drawn.bands] == ["[7]"]
    assert drawn.events[0].label == "OOM"
    assert drawn.bands[0].label_x + text_width("[7]", 11) < drawn.events[0].label_x


@pytest.mark.parametrize("gpus", [2, 8])
def test_nothing_moves_when_something_happens(gpus: int) -> None:
    """Events, others, limits and a notice change neither the size nor what is fixed."""
    quiet = scene(busy(gpus), start=START, end=START + 25)
    eventful = scene(
        busy(gpus, hot=1), start=START, end=START + 60, notice="x", about=[("GPU-1", "temp")]
    )
    assert eventful.events
    assert (quiet.width, quiet.height) == (eventful.width, eventful.height)
    assert fixed_shapes(quiet) == fixed_shapes(eventful)


# -- cells --------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [3, 1, 10_000])
def test_thousands_of_cells_are_few_shapes(every: int) -> None:
    """However many of them failed, cells are no more bands than pixels, and few are edges."""
    recording = empty(gpu())
    for number in range(5000):
        start = NOW - 3600 + number * 0.7
        status = "error" if number % every == 0 else "ok"
        recording.add_span(Span(number + 1, start, start + 0.5, number, status=status))  # type: ignore[arg-type]
    drawn = scene(recording, start=NOW - 3600)
    assert len(drawn.bands) <= 720
    (hairs,) = [s for s in moving_shapes(drawn) if isinstance(s, Stroke) and s.paint == "hair"] or [
        Stroke((), "hair", 1)
    ]
    assert len(hairs.stretches) <= 48


def test_orange_names_a_cell() -> None:
    """Cells that failed get their names before others do, and are grey where there is no room."""
    recording = empty(gpu())
    for number in range(300):
        start = NOW - 3600 + number * 12
        status = "error" if number % 7 == 0 else "ok"
        recording.add_span(Span(number + 1, start, start + 11, number, status=status))  # type: ignore[arg-type]
    drawn = scene(recording, start=NOW - 3600)
    named = [b for b in drawn.bands if b.label]
    assert len(named) >= 5
    assert all(b.failed for b in named)
    ends = [s for s in moving_shapes(drawn) if isinstance(s, Box) and s.height == 5]
    assert sum(s.paint == "limit" for s in ends) == len(named)
    assert {s.paint for s in ends} == {"limit", "label"}


def test_a_block_inside_a_cell_takes_no_name_away() -> None:
    """A short block that ended within a cell leaves the cell its name."""
    recording = empty(gpu())
    recording.add_span(Span(1, START + 5, START + 30, 7, status="ok"))
    recording.add_span(Span(2, START + 10, START + 10.1, name="load", status="ok"))
    recording.add_span(Span(3, START + 35, None, 8))
    recording.add_span(Span(4, START + 36, START + 36.1, name="load", status="ok"))
    assert [b.label for b in scene(recording).bands] == ["[7]", "[8] 25 s"]


# -- times --------------------------------------------------------------------------------


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let local time be UTC."""
    if not hasattr(time, "tzset"):
        pytest.skip("no tzset on this platform")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("length", "ends"),
    [
        (5, ("00:54:15.0", "00:54:20.0")),
        (60, ("00:53:20", "00:54:20")),
        (600, ("00:44:20", "00:54:20")),
        (3600, ("23:54", "00:54")),
        (12_000, ("21:34", "00:54")),
        (93_600, ("Sat 22:54", "Mon 00:54")),
        (9 * 86_400, ("21 Nov", "30 Nov")),
    ],
)
def test_a_frozen_axis_is_as_exact_as_it_shows(length: float, ends: tuple[str, str]) -> None:
    """Its ends have seconds, minutes or days, and stay clear of what stands beside them."""
    assert Axis(NOW - length, NOW, "clock", 62.0).ends() == ends
    assert all(text_width(end, SMALL) <= 62 for end in ends)


@pytest.mark.parametrize("length", [0.5, 60, 100, 185, 599, 3600, 5000, 12_000, 35_999, 93_600])
def test_a_live_axis_fits_its_place(length: float) -> None:
    """However long it is, the words at its left end fit into the room that a table has."""
    start, end = Axis(NOW - length, NOW, "live", 62.0).ends()
    assert text_width(start, SMALL) <= 62
    assert end == "now"


@pytest.mark.usefixtures("utc")
def test_a_paused_view_stands_still() -> None:
    """Paused, the right end is a time of day, and no reading grows stale while time goes on."""
    recording = training(end=NOW)
    drawn = scene(recording, state="paused", start=START, end=NOW + 30)
    assert drawn.end_text == "00:54:50"
    assert [r.missing for r in drawn.rows] == [None] * len(drawn.rows)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("settings", "when"),
    [
        ({}, "epoch 3 (5 s ago)"),
        ({"state": "paused"}, "epoch 3 (at 00:54:15)"),
        ({"state": "stopped", "clock_times": False}, "epoch 3 (at 55 s)"),
    ],
)
def test_marks_are_told_with_their_times(settings: dict[str, object], when: str) -> None:
    """Whoever cannot see the axis hears when a mark was, in the words of the axis."""
    assert f"Marks: {when}." in sentences(scene(training(), **settings))


def test_a_strip_of_memory_may_be_missing() -> None:
    """Without a strip of memory, events stand at the GPU's first one."""
    recording = counted((1, 0, 0), (30, 1, 0))
    feed(recording, "GPU-0", "nvml", gpu_power_watts=300.0)
    drawn = scene(recording, gpus=["GPU-0"], strips=("power", "temp"))
    memory = drawn.memory_row("GPU-0")
    assert memory is not None
    assert memory.name == "power"
