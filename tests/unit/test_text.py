"""A scene as text."""

from __future__ import annotations

import pytest

from gpumagic.recording import Recording
from gpumagic.sample import Device, Gap, Sample, Span
from gpumagic.views import text
from gpumagic.views.scene import Scene, build_scene
from scene_examples import NOW, START, busy, empty, feed, gpu, training, with_gap

NOTICE = "GPU 0 has been idle for 20 s; `%gpumem` names what holds its memory."


def minute(recording: Recording, **more: object) -> Scene:
    return build_scene(recording, start=START, end=NOW, **more)  # type: ignore[arg-type]


def test_one_gpu_is_a_table() -> None:
    """State, cells, one line a row, figures and details stand in columns."""
    drawn = minute(training(), caption="last 60 s", notice=NOTICE)
    assert text.render(drawn) == """\
recording  last 60 s
                                     [12]   [13]    [14] 22 s
                            −60 s    ─────  ──────x  ═══════┊══   now
GPU 0 cuda:0  utilization %        ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇    75
              memory of 80 GiB     ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅  40.0  reserved 30.0, allocated 20.0
              power cap 700 W      ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅   350
              temp slows at 87 °C  ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆    60
Host          CPU of 8 cores       ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅   4.0  4 children 3.0
              RAM of 64 GiB        ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅  32.0
! GPU 0 has been idle for 20 s; %gpumem names what holds its memory."""


def test_ascii_says_the_same() -> None:
    """In ASCII, each line is as long and holds the same figures."""
    drawn = minute(training(), caption="last 60 s", notice=NOTICE)
    plain, full = text.render(drawn, ascii=True), text.render(drawn)
    assert plain.isascii()
    assert [len(x) for x in plain.splitlines()] == [len(x) for x in full.splitlines()]
    assert "memory of 80 GiB" in plain
    assert "-60 s" in plain


def test_a_gap_is_spaces() -> None:
    """Nothing is printed where nothing is known, and the gap is named."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", gpu_utilization_ratio=1.0)
    with_gap(recording, START + 20, START + 30, "busy")
    drawn = minute(recording, strips=("util",), host=False)
    assert text.render(drawn, 90) == """\
recording
                                                   gap
                      −60 s                                                            now
GPU 0 cuda:0  utilization %  ███████████████████         ████████████████████████████  100"""


def test_a_hole_narrower_than_a_cell_shows() -> None:
    """One empty column between readings leaves its cell empty, though the cell is wider."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", gpu_utilization_ratio=1.0)
    with_gap(recording, START + 20.1, START + 20.4, "busy")
    drawn = minute(recording, strips=("util",), host=False)
    line = text.render(drawn, 60).splitlines()[-1]
    assert "█ █" in line


def test_what_is_missing_has_a_reason() -> None:
    """A row without readings prints n/a and why, and a stale one for how long."""
    recording = empty(gpu(absent={"gpu_power_watts": "no sensor"}))
    feed(recording, "GPU-0", "nvml", end=NOW - 12, gpu_utilization_ratio=1.0)
    lines = text.render(minute(recording, strips=("util", "power"), host=False)).splitlines()
    assert lines[-2].endswith("n/a  no reading for 12 s")
    assert lines[-1].endswith("n/a: no sensor")


@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
@pytest.mark.parametrize("width", [70, 80, 100, 140])
def test_lines_keep_to_the_width(gpus: int, width: int) -> None:
    """No line is longer than the width, and each row has one line."""
    drawn = minute(training(gpus), notice=NOTICE)
    lines = text.render(drawn, width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("utilization %" in line for line in lines) == gpus


def test_a_scene_without_anything_is_a_header() -> None:
    """An empty recording prints its state and its axis."""
    lines = text.render(minute(Recording(), caption="last 60 s")).splitlines()
    assert lines[0] == "recording  last 60 s"
    assert lines[1].split() == ["−60", "s", "now"]


def test_escape_codes_do_not_reach_the_terminal() -> None:
    """A name with control codes prints as plain text."""
    recording = empty(gpu(name="\x1b[2JH200"))
    recording.append(Sample(NOW - 1, "GPU-0", "nvml", {"gpu_utilization_ratio": 1.0}))
    recording.add_span(Span(1, START, NOW - 30, name="a\x1b[31m\r\nb"))
    printed = text.render(minute(recording, notice="x\x1by"))
    assert all(c.isprintable() for c in printed.replace("\n", ""))


def test_events_and_others_are_words() -> None:
    """OOMs and retries stand above the cells and beside their GPU's memory, others as a figure."""
    drawn = minute(busy(2), caption="last 60 s", strips=("util", "mem"))
    lines = text.render(drawn, 110).splitlines()
    assert lines[1].split() == ["[11]", "failed", "[13]", "OOM", "3", "retries"]
    assert lines[2].count("!") >= 2
    memory = next(i for i, line in enumerate(lines) if "memory of" in line)
    assert lines[memory].endswith("76.2  reserved 68.0, allocated 41.2,")
    assert lines[memory + 1].strip() == "others 6.2, OOM, 3 retries"
    assert lines[-3].endswith("26.0  reserved 24.0, allocated 14.5")
    assert lines[-2].endswith("4 workers 4.0")


def test_a_reason_is_said_once() -> None:
    """The rows of a lost GPU say n/a, and its first one says why."""
    recording = empty(gpu())
    recording.open_gap(Gap(START, None, "nvml", "GPU-0", "the GPU is lost"))
    lines = text.render(minute(recording, host=False)).splitlines()
    assert lines[-4].endswith("n/a: the GPU is lost")
    assert all(line.split()[-1] == "n/a" for line in lines[-3:])


def test_slices_have_their_full_names() -> None:
    """A slice's line names its GPU too, as nothing stands above it."""
    recording = empty(gpu(0))
    recording.add_device(Device("MIG-1a2b3c-4", "gpu", "H200 MIG 1g.18gb", nvml_index=0))
    lines = text.render(minute(recording, strips=("mem",), host=False)).splitlines()
    assert lines[-1].startswith("GPU 0 MIG 1a2b  memory")
