"""What a scene says of a recording."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from gpumagic.coverage import merge
from gpumagic.errors import DeviceError, SettingError
from gpumagic.metrics import METRICS
from gpumagic.recording import Recording
from gpumagic.sample import Gap, Mark, Sample, Span
from gpumagic.views.bins import Grid, fill
from gpumagic.views.drawing import shapes
from gpumagic.views.scene import Row, Scene, build_scene
from gpumagic.views.shapes import Text
from gpumagic.views.strips import STRIPS
from gpumagic.views.wording import LABEL, LIMIT, SMALL, TITLE, fit, short_name, text_width, wrap
from scene_examples import (
    GIB,
    LENGTH,
    NOW,
    START,
    empty,
    feed,
    gpu,
    host,
    training,
    with_gap,
)


def scene(recording: Recording, **more: object) -> Scene:
    settings: dict[str, object] = {"start": START, "end": NOW, **more}
    return build_scene(recording, **settings)  # type: ignore[arg-type]


def row(drawn: Scene, name: str, device: str = "GPU-0") -> Row:
    return next(r for r in drawn.rows if (r.name, r.device) == (name, device))


# -- columns ------------------------------------------------------------------------------


def test_columns_keep_the_peak() -> None:
    """The highest reading of a column is the one that is drawn."""
    grid = Grid.over(0.0, 4.0, 4)
    points = [(0.2, 1.0), (0.5, 9.0), (0.8, 2.0), (1.5, 3.0)]
    assert fill(points, grid, reach=1.0, until=1.5) == (9.0, 3.0, None, None)


def test_columns_do_not_shimmer() -> None:
    """As the window moves, a column that stays in it keeps its value, whatever the offset."""
    rnd = random.Random(1)
    points = [(NOW + i / 10 + rnd.random() / 20, rnd.random()) for i in range(1200)]

    def look(end: float) -> dict[int, float | None]:
        grid = Grid.over(end - 60, end, 120)
        seen = [p for p in points if grid.start - 1 <= p[0] <= end]
        columns = fill(seen, grid, reach=0.25, until=end)
        return {grid.first + i: v for i, v in enumerate(columns)}

    before = look(NOW + 60)
    for shift in (0.1, 0.37, 0.5, 7.77, 30.0):
        after = look(NOW + 60 + shift)
        common = sorted(before.keys() & after.keys())[:-1]
        assert len(common) >= 118 - shift / 0.5
        assert [before[i] for i in common] == [after[i] for i in common]


def test_a_slow_source_is_joined_within_its_reach_only() -> None:
    """Columns between readings lie on the line between them, unless they are too far apart."""
    grid = Grid.over(0.0, 10.0, 10)
    points = [(0.5, 0.0), (2.5, 2.0), (8.5, 2.0)]
    assert fill(points, grid, reach=2.5, until=10.0) == (
        0.0, 1.0, 2.0, None, None, None, None, None, 2.0, 2.0,
    )


def test_a_hole_is_never_bridged() -> None:
    """A hole between two readings leaves all columns between them empty, however short it is."""
    grid = Grid.over(0.0, 5.0, 5)
    points = [(0.5, 1.0), (4.5, 1.0)]
    filled = fill(points, grid, reach=9.0, until=5.0, holes=[(1.9, 2.1)])
    assert filled == (1.0, None, None, None, 1.0)


def test_numbers_that_are_none_are_left_out() -> None:
    """NaN and infinity never reach a column."""
    grid = Grid.over(0.0, 3.0, 3)
    points = [(0.5, math.nan), (1.5, math.inf), (2.5, 1.0)]
    assert fill(points, grid, reach=0.5, until=3.0) == (None, None, 1.0)


def test_holes_that_touch_are_one() -> None:
    """Stretches that overlap or touch are joined, and those apart are kept apart."""
    assert merge([(5, 6), (0, 2), (1, 3), (3, 4)]) == ((0, 4), (5, 6))


# -- rows ---------------------------------------------------------------------------------


def test_a_row_says_all_of_its_strip() -> None:
    """Labels, limits, figures and details of a running GPU are those of the recording."""
    found = [
        (r.label, r.limit, r.value, [(d.style, d.label, d.text) for d in r.details])
        for r in scene(training()).rows
    ]
    assert found == [
        ("utilization", "%", "75", []),
        ("memory", "of 80 GiB", "40.0",
         [("middle", "reserved", "30.0"), ("inner", "allocated", "20.0")]),
        ("power", "cap 700 W", "350", []),
        ("temp", "slows at 87 °C", "60", []),
        ("CPU", "of 8 cores", "4.0", [("inner", "4 children", "3.0")]),
        ("RAM", "of 64 GiB", "32.0", []),
    ]


def test_heights_are_fractions_of_the_ceiling() -> None:
    """A height is the value over the row's ceiling, and nested parts are cumulative."""
    memory = row(scene(training()), "mem")
    assert memory.ceiling == 80 * GIB
    assert {t.style: t.heights[60] for t in memory.traces} == {
        "outer": 0.5, "middle": 0.375, "inner": 0.25,
    }


def test_heights_stay_within_the_strip() -> None:
    """No height leaves [0, 1], even where a reading passes the limit."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", gpu_power_watts=900.0, gpu_temperature_celsius=-5.0)
    drawn = scene(recording)
    for each in drawn.rows:
        for trace in each.traces:
            assert all(h is None or 0 <= h <= 1 for h in trace.heights)
    assert row(drawn, "power").value == "900"


def test_sm_active_lies_inside_utilization() -> None:
    """Where SM activity was recorded, it is the inner part of utilization and its detail."""
    recording = training()
    feed(recording, "GPU-0", "gpm", gpu_sm_active_ratio=0.5)
    util = row(scene(recording), "util")
    assert [t.style for t in util.traces] == ["outer", "inner"]
    assert [(d.label, d.text) for d in util.details] == [("SM active", "50")]


def test_a_gap_is_drawn_as_nothing() -> None:
    """Columns within a gap are empty, and the gap is listed with its reason."""
    recording = empty(gpu())
    values = {"gpu_utilization_ratio": 1.0}
    feed(recording, "GPU-0", "nvml", end=START + 20, **values)
    feed(recording, "GPU-0", "nvml", start=START + 30, **values)
    drawn = scene(with_gap(recording, START + 20, START + 30, "busy"))
    heights = row(drawn, "util").traces[0].heights
    assert set(heights[40:60]) == {None}
    assert None not in heights[:40] + heights[60:]
    (gap,) = drawn.gaps
    assert (gap.reason, gap.shown) == ("busy", True)
    assert (gap.x0, gap.x1) == pytest.approx((1 / 3, 1 / 2))


def test_missed_readings_are_a_gap_too() -> None:
    """Where readings stopped for more than two and a half periods, nothing is drawn."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", end=START + 20, gpu_utilization_ratio=1.0)
    feed(recording, "GPU-0", "nvml", start=START + 30, gpu_utilization_ratio=1.0)
    heights = row(scene(recording), "util").traces[0].heights
    assert [i for i, h in enumerate(heights) if h is None] == list(range(40, 60))


def test_a_stale_reading_is_not_the_present_one() -> None:
    """A live row whose source fell silent has no figure but says for how long."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", end=NOW - 12, gpu_utilization_ratio=1.0)
    util = row(scene(recording), "util")
    assert (util.value, util.missing) == ("", "no reading for 12 s")
    assert util.drawn


def test_a_reading_can_have_left_the_window() -> None:
    """A row that once had readings says for how long there were none, also when all are old."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", end=START + 10, gpu_utilization_ratio=1.0)
    util = row(scene(recording, start=NOW + 70, end=NOW + 130), "util")
    assert (util.missing, util.drawn) == ("no reading for 3 min 00 s", False)


def test_an_open_gap_gives_its_reason() -> None:
    """While a source fails, its reason stands where the figure was."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", end=NOW - 12, gpu_utilization_ratio=1.0)
    recording.open_gap(Gap(NOW - 12, None, "nvml", "GPU-0", "the GPU is lost"))
    assert row(scene(recording), "util").missing == "the GPU is lost"


def test_a_frozen_view_keeps_its_last_figures() -> None:
    """When nothing is live, the last reading in the window is the figure."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", end=NOW - 12, gpu_utilization_ratio=1.0)
    util = row(scene(recording, state="stopped"), "util")
    assert (util.value, util.missing) == ("100", None)


@pytest.mark.parametrize(
    ("absent", "reasons", "expected"),
    [
        ({"gpu_power_watts": "no sensor"}, {"nvml": "other"}, "no sensor"),
        ({}, {"gpu_power_watts": "asked not to"}, "asked not to"),
        ({}, {"nvml": "no driver"}, "no driver"),
        ({}, {}, "no reading yet"),
    ],
)
def test_what_is_missing_has_a_reason(
    absent: dict[str, str], reasons: dict[str, str], expected: str
) -> None:
    """A row without readings says why: the device's word first, then the caller's."""
    drawn = scene(empty(gpu(absent=absent)), reasons=reasons, strips=("power",))
    power = row(drawn, "power")
    assert (power.value, power.missing, power.drawn) == ("", expected, False)


def test_throttling_stands_on_the_ceiling() -> None:
    """A power cap thickens the power row's ceiling, and heat that of the temperature."""
    recording = empty(gpu())
    for start, bits in ((0, 0), (10, 4), (20, 0), (30, 0x20 | 1), (35, 0)):
        feed(
            recording, "GPU-0", "nvml", start=START + start,
            end=START + {0: 10, 10: 20, 20: 30, 30: 35, 35: 60}[start],
            gpu_power_watts=600.0, gpu_temperature_celsius=80.0,
            gpu_clock_event_reasons_state=bits,
        )
    drawn = scene(recording)
    power, temp = row(drawn, "power"), row(drawn, "temp")
    assert [(d.style, d.label, d.text) for d in power.details] == [("limit", "at the cap", "10 s")]
    assert [(d.style, d.label, d.text) for d in temp.details] == [("limit", "throttled", "5 s")]
    (stretch,) = power.limited
    assert (stretch.x0 * LENGTH, stretch.x1 * LENGTH) == pytest.approx((10.25, 20.25))
    assert row(drawn, "util").limited == ()


@pytest.mark.parametrize("layout", ["rows", "table"])
def test_throttling_that_comes_and_goes_is_few_shapes(layout: str) -> None:
    """Stretches that nobody could tell apart are one: no more than columns; words count each."""
    recording = empty(gpu())
    recording.periods["nvml"] = 2.0
    for step in range(3600):
        bits = 4.0 if step % 10 == 0 and not 1200 <= step < 2400 else 0.0
        feed(
            recording, "GPU-0", "nvml", start=NOW - 7200 + 2 * step, end=NOW - 7198 + 2 * step,
            every=2.0, gpu_power_watts=600.0, gpu_clock_event_reasons_state=bits,
        )
    drawn = scene(recording, start=NOW - 7200, layout=layout, strips=("power",))
    power = row(drawn, "power")
    (detail,) = power.details
    assert detail.label == "at the cap"
    assert detail.text.startswith("7 min 5")  # 240 readings, but for the oldest column's
    assert 1 < len(power.limited) <= drawn.columns
    # All of the two outer thirds, nothing between.
    assert sum(s.x1 - s.x0 for s in power.limited) == pytest.approx(2 / 3, abs=0.02)
    assert not any(0.35 < x < 0.65 for s in power.limited for x in (s.x0, s.x1))
    for window in (3600, 1200, 400, 100):
        near = row(scene(recording, start=NOW - window, layout=layout), "power").limited
        assert len(near) <= drawn.columns
    assert len(near) == 5


@pytest.mark.parametrize(
    ("used", "ceiling", "limit"),
    [
        (40.0, 80.0, "of 80 GiB"), (10.0, 80.0, "of 80 GiB"), (9.9, 10.0, "top 10 GiB"),
        (3.0, 5.0, "top 5 GiB"), (0.1, 1.25, "top 1.2 GiB"), (0.0, 80.0, "of 80 GiB"),
    ],
)
def test_memory_zooms_by_powers_of_two(used: float, ceiling: float, limit: str) -> None:
    """Below an eighth, the strip shows a power-of-two part of the memory and says its top."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", gpu_memory_used_bytes=used * GIB)
    memory = row(scene(recording), "mem")
    assert (memory.ceiling, memory.limit) == (ceiling * GIB, limit)


def test_all_gpus_share_the_zoom() -> None:
    """One GPU that uses much memory keeps all of them on the full scale."""
    recording = empty(gpu(0), gpu(1))
    feed(recording, "GPU-0", "nvml", gpu_memory_used_bytes=1.0 * GIB)
    feed(recording, "GPU-1", "nvml", gpu_memory_used_bytes=70.0 * GIB)
    drawn = scene(recording)
    assert {row(drawn, "mem", d).ceiling for d in ("GPU-0", "GPU-1")} == {80.0 * GIB}


def test_without_a_known_limit_the_top_is_a_round_number() -> None:
    """A device that gives no limit gets the next 1, 2 or 5 above its peak, and it is printed."""
    recording = empty(gpu(constants={}))
    feed(recording, "GPU-0", "nvml", gpu_power_watts=321.0)
    power = row(scene(recording), "power")
    assert (power.ceiling, power.limit, power.value) == (500.0, "top 500 W", "321")


def test_a_container_counts_before_its_machine() -> None:
    """Where the container's memory was read, RAM is that against the container's limit."""
    recording = empty(host())
    both = {"container_memory_used_bytes": 8.0 * GIB, "host_memory_used_bytes": 50.0 * GIB}
    feed(recording, "host", "host", every=1.0, **both)
    assert row(scene(recording), "ram", "host").value == "8.0"


def test_bold_is_what_the_notice_is_about() -> None:
    """Only the figures that the notice speaks of are bold."""
    drawn = scene(training(2), about=[("GPU-1", "power")])
    assert [(r.device, r.name) for r in drawn.rows if r.bold] == [("GPU-1", "power")]


# -- the time axis ------------------------------------------------------------------------


def test_cells_are_bands() -> None:
    """A finished cell has its number, a failed one a word, the running one its time."""
    bands = scene(training()).bands
    assert [(b.label, b.running, b.failed) for b in bands] == [
        ("[12]", False, False), ("[13] failed", False, True), ("[14] 22 s", True, False),
    ]
    edges = [x * 60 for b in bands for x in (b.x0, b.x1)]
    assert edges == pytest.approx([5, 15, 20, 35, 38, 60])


def test_labels_never_collide() -> None:
    """However many cells, marks and gaps there are, their labels keep apart and inside."""
    rnd = random.Random(2)
    for _ in range(50):
        recording = empty(gpu())
        for number in range(rnd.randrange(1, 60)):
            start = START + rnd.random() * 60
            recording.add_span(Span(number + 1, start, min(NOW, start + rnd.random() * 9), number))
        recording.begin_span(NOW - rnd.random() * 50, number=999)
        for index in range(rnd.randrange(12)):
            recording.add_mark(Mark(START + rnd.random() * 60, f"epoch {index}"))
        ooms = retries = 0.0
        for index in range(60):
            ooms += rnd.random() < 0.05
            retries += rnd.random() < 0.2
            recording.append(Sample(START + index, "GPU-0", "allocator", {
                "torch_ooms_count": ooms, "torch_alloc_retries_count": retries,
            }))
        with_gap(recording, START + 20, START + 20 + rnd.random() * 9, "busy")
        drawn = scene(recording)
        panel = drawn.panels[0]
        boxes = [
            (b.label_x, b.label_x + text_width(b.label, 11)) for b in drawn.bands if b.label
        ]
        for mark in drawn.marks:
            half = text_width(mark.label, 11) / 2
            boxes += [(mark.label_x - half, mark.label_x + half)] if mark.label else []
        for gap in drawn.gaps:
            middle, half = panel.x((gap.x0 + gap.x1) / 2), text_width("gap", 11) / 2
            boxes += [(middle - half, middle + half)] if gap.shown else []
        boxes += [
            (note.label_x, note.label_x + text_width(note.label, 11))
            for note in drawn.events if note.label
        ]
        boxes.sort()
        assert all(b[0] >= a[1] for a, b in pairwise(boxes))
        assert all(panel.x0 - 1e-6 <= a and b <= panel.x1 + 5 for a, b in boxes)
        assert any(b.label.startswith("[999]") for b in drawn.bands)


def test_many_short_cells_become_few_bands() -> None:
    """Thousands of cells on one axis are no more bands than it has pixels."""
    recording = empty(gpu())
    for index in range(5000):
        start = START + index * 0.01
        recording.add_span(Span(index + 1, start, start + 0.005, index, status="ok"))
    assert len(scene(recording).bands) <= 400


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (60, "−60 s"), (10, "−10 s"), (600, "−10 min"), (3600, "−1 h"), (90, "−90 s"),
        (12_000, "−3 h 20 min"), (93_600, "−26 h"), (185, "−3 min 05 s"),
    ],
)
def test_a_live_axis_counts_back_from_now(length: float, text: str) -> None:
    """The left end of a live axis says how long ago it was, the right end says now."""
    drawn = scene(training(), start=NOW - length)
    assert (drawn.start_text, drawn.end_text) == (text, "now")


def test_a_frozen_axis_can_count_from_its_start() -> None:
    """Without times of day, a view that moves no more counts from 0 s, and never says now."""
    drawn = scene(training(), state="stopped", clock_times=False)
    assert (drawn.start_text, drawn.end_text) == ("0 s", "60 s")


def test_a_frozen_axis_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that moves no more writes times of day at its ends."""
    if not hasattr(time, "tzset"):
        pytest.skip("no tzset on this platform")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    drawn = scene(training(), state="paused")
    monkeypatch.undo()
    time.tzset()
    assert (drawn.start_text, drawn.end_text) == ("00:53:20", "00:54:20")


# -- the whole ----------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 8, 16])
@pytest.mark.parametrize("strips", [("util",), ("util", "mem", "power", "temp"), tuple(STRIPS)])
def test_everything_lies_inside(gpus: int, strips: tuple[str, ...]) -> None:
    """Rows keep apart from each other and inside of the picture, for any number of GPUs."""
    drawn = scene(training(gpus), strips=strips)
    for each in drawn.rows:
        assert 0 <= each.panel.x0 < each.panel.x1 <= each.value_x <= drawn.width
        assert each.top >= 0
        assert each.top + each.height <= drawn.plot_bottom
        assert len(each.traces[0].heights) == drawn.columns
    assert drawn.plot_bottom < drawn.notice_y < drawn.height
    for panel in drawn.panels:
        column = [r for r in drawn.rows if r.panel == panel]
        assert all(
            a.top + a.height < b.top for a, b in pairwise(column)
        )
    # Bands of text: a title's lines end above the next title.
    tops = [b.top for b in drawn.blocks]
    for block, below in zip(drawn.blocks, tops[1:], strict=False):
        assert block.top + 14 * len(block.lines) + 10 <= below


def test_more_than_two_gpus_are_a_table() -> None:
    """From three GPUs on, GPUs are rows and strips are columns with one heading each."""
    drawn = scene(training(8))
    assert (drawn.layout, drawn.width) == ("table", 900)
    assert drawn.devices == "8 × H200, cuda:0 to cuda:7"
    assert [h.label for h in drawn.headings] == [
        "utilization", "memory", "power", "temp", "CPU", "RAM",
    ]
    assert [key.word for key in drawn.headings[1].key] == ["used", "reserved", "allocated"]
    assert len(drawn.panels) == 4
    assert scene(training(2)).layout == "rows"


def test_without_gpus_the_host_remains() -> None:
    """Without a GPU, the scene shows the host and the notice."""
    drawn = scene(training(0), notice="No GPU was found.")
    assert [b.title for b in drawn.blocks] == ["Host"]
    assert drawn.notice == "No GPU was found."


def test_an_empty_recording_is_a_scene() -> None:
    """A recording that holds nothing at all can be shown."""
    drawn = scene(Recording())
    assert (drawn.blocks, drawn.bands, drawn.rows) == ((), (), ())


def test_the_notice_keeps_its_place() -> None:
    """Nothing moves when a notice comes or goes."""
    without = scene(training())
    assert replace(scene(training(), notice="x"), notice=None) == without


def test_a_final_picture_keeps_no_empty_line() -> None:
    """What will not change ends below its last row, unless there is a notice to be read."""
    live, stopped = scene(training()), scene(training(), state="stopped")
    replayed = scene(training(), state="replay", final=True)
    assert live.height - stopped.height == live.height - replayed.height == 30
    assert scene(training(), state="replay").height == live.height
    assert scene(training(), state="stopped", notice="x").height == live.height


def test_a_reason_is_said_once() -> None:
    """A lost GPU gives its reason in its first row; the rows below have none to give."""
    recording = training(2)
    recording.open_gap(Gap(NOW, None, "nvml", "GPU-1", "the GPU is lost"))
    drawn = scene(recording, start=START + 3, end=NOW + 3)
    assert [r.missing for r in drawn.rows if r.device == "GPU-1"] == ["the GPU is lost", "", "", ""]
    written = [run.text for s in shapes(drawn) if isinstance(s, Text) for run in s.runs]
    assert written.count("the GPU is lost") == 1


def test_gpus_can_be_chosen() -> None:
    """Only the GPUs that were asked for are shown, and unknown ones are an error."""
    drawn = scene(training(3), gpus=["GPU-2"], host=False)
    assert [b.device for b in drawn.blocks] == ["GPU-2"]
    with pytest.raises(DeviceError, match="GPU-9"):
        scene(training(), gpus=["GPU-9"])


def test_unknown_strips_are_named() -> None:
    """The message for a wrong strip lists the right ones."""
    with pytest.raises(SettingError, match=r"'tmep'.*util, mem, power, temp"):
        scene(training(), strips=["tmep"])


@pytest.mark.parametrize("name", STRIPS)
def test_every_strip_rests_on_a_metric(name: str) -> None:
    """A strip's unit and ceiling come from a metric of METRICS that has a ceiling."""
    assert METRICS[STRIPS[name].metric].ceiling is not None


def test_names_are_shortened() -> None:
    """What every GPU's name holds, and what other figures say, is left out of it."""
    assert [short_name(n) for n in (
        "NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB", "Tesla T4",
        "NVIDIA RTX 6000 Ada Generation", "NVIDIA", "NVIDIA H100 80GB HBM3",
    )] == ["H200", "RTX 4090", "A100-SXM4", "T4", "RTX 6000 Ada", "NVIDIA", "H100 HBM3"]


def test_lines_break_at_words_and_fit() -> None:
    """A long name is broken where it may be, and cut where it must."""
    rooms = (50.0, 50.0, 60.0)
    lines = wrap("RTX PRO 6000 Blackwell Max-Q Workstation", SMALL, rooms)
    assert lines == ("RTX", "PRO", "6000 Bla…")
    assert all(text_width(x, SMALL) <= room for x, room in zip(lines, rooms, strict=True))


def test_control_characters_are_left_out() -> None:
    """No line end or escape code of a name reaches a renderer."""
    recording = empty(gpu(name="NVIDIA \x1b[31mH200\n"))
    recording.add_mark(Mark(START + 30, "epoch\x00\n3"))
    recording.append(Sample(NOW - 1, "GPU-0", "nvml", {"gpu_utilization_ratio": 1.0}))
    drawn = scene(recording, notice="a\nb", caption="c\td")
    texts = [
        *(m.label for m in drawn.marks), drawn.notice or "", drawn.caption,
        *(x for b in drawn.blocks for x in (b.title, b.name, *b.lines)),
    ]
    assert all(t.isprintable() for t in texts)


def _extent(text: Text) -> tuple[float, float, float, float]:
    width = sum(run.gap + text_width(run.text, run.size) for run in text.runs)
    left = text.x - {"start": 0.0, "middle": width / 2, "end": width}[text.anchor]
    # From the top of capitals to the baseline.
    return left, text.y - 0.72 * max(run.size for run in text.runs), left + width, text.y


@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("state", ["recording", "paused"])
@pytest.mark.parametrize("others", [0.0, 6.0])
@pytest.mark.parametrize("memory", [40.0, 1.0])
def test_no_text_covers_another(gpus: int, state: str, others: float, memory: float) -> None:
    """Even in a font 15 % wider than Arial, texts keep apart and inside of the picture."""
    recording = training(gpus)
    for index in range(gpus):
        feed(recording, f"GPU-{index}", "gpm", gpu_sm_active_ratio=0.9)
        feed(
            recording, f"GPU-{index}", "allocator", start=NOW, end=NOW + 60,
            torch_reserved_bytes=0.9 * memory * GIB, torch_allocated_bytes=0.5 * memory * GIB,
        )
        feed(
            recording, f"GPU-{index}", "nvml_slow", start=NOW, end=NOW + 60, every=1.0,
            gpu_other_processes_memory_bytes=others * GIB,
            gpu_other_processes_utilization_ratio=others / 10,
        )
        feed(
            recording, f"GPU-{index}", "nvml", start=NOW, end=NOW + 60,
            gpu_utilization_ratio=1.0, gpu_memory_used_bytes=memory * GIB,
            gpu_power_watts=650.0, gpu_temperature_celsius=87.0,
            gpu_clock_event_reasons_state=0x24,
        )
    drawn = scene(
        recording, start=NOW, end=NOW + 60, state=state, caption="last 60 s, every 0.1 s"
    )
    boxes = [_extent(s) for s in shapes(drawn) if isinstance(s, Text)]
    assert min((x0 for x0, _, _, _ in boxes), default=0) >= 0
    assert max((x1 for _, _, x1, _ in boxes), default=0) <= drawn.width
    for a, b in combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (a, b)


def test_a_pause_is_not_filled_after_the_interval_has_grown() -> None:
    """Where sampling paused nothing is drawn, also if it goes on at a longer interval."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", end=START + 20, gpu_utilization_ratio=1.0)
    recording.periods["nvml"] = 10.0
    feed(
        recording, "GPU-0", "nvml", every=10.0, start=START + 25, gpu_utilization_ratio=1.0,
        end=START + 55,
    )
    heights = row(scene(recording), "util").traces[0].heights
    assert [i for i, h in enumerate(heights) if h is None] == list(range(40, 59))


def test_slow_readings_stay_joined_after_the_interval_has_shrunk() -> None:
    """What was read at a long interval stays drawn when readings come more often."""
    recording = empty(gpu())
    recording.periods["nvml"] = 10.0
    feed(recording, "GPU-0", "nvml", every=10.0, end=START + 40, gpu_utilization_ratio=1.0)
    recording.periods["nvml"] = 0.5
    feed(recording, "GPU-0", "nvml", start=START + 40, gpu_utilization_ratio=1.0)
    heights = row(scene(recording), "util").traces[0].heights
    assert None not in heights[12:]


@pytest.mark.parametrize("index", [0, 12])
@pytest.mark.parametrize("strips", [["mem"], ["power"], ["temp"], ["util"]])
def test_a_title_is_never_cut_short(index: int, strips: list[str]) -> None:
    """Whatever strip comes first, a GPU keeps its number, and the label leaves it room."""
    recording = empty(gpu(index))
    feed(
        recording, f"GPU-{index}", "nvml", gpu_utilization_ratio=0.5,
        gpu_memory_used_bytes=40 * GIB, gpu_power_watts=350.0, gpu_temperature_celsius=60.0,
    )
    drawn = scene(recording, strips=strips)
    (block,) = drawn.blocks
    assert block.title == f"GPU {index}"
    first = block.rows[0]
    label = text_width(first.label, LABEL) + text_width(f" {first.limit}", LIMIT)
    assert text_width(block.title, TITLE) + label <= drawn.label_x


def test_a_very_long_word_is_fitted_at_once() -> None:
    """The time to fit a text does not grow with what is cut off, and the cut is the longest."""
    begin = time.perf_counter()
    for _ in range(100):
        fitted = fit("m" * 100_000, SMALL, 100)
    assert time.perf_counter() - begin < 1
    assert text_width(fitted, SMALL) <= 100 < text_width(f"m{fitted}", SMALL)
    assert fit("iiii", SMALL, 0) == "…"
    assert fit("short", SMALL, 100) == "short"
