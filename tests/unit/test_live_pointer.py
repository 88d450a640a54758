"""What the live view has in the browser for the pointer: figures, their places, and messages."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from gpumagic.recording import Recording
from gpumagic.sample import Mark
from gpumagic.views import live
from gpumagic.views.drawing import moving_shapes
from gpumagic.views.live_pointer import Pointer
from gpumagic.views.parts import Scene
from gpumagic.views.pointer_overlay import figures_of
from gpumagic.views.pointer_words import BLOCK
from gpumagic.views.scene import build_scene
from gpumagic.views.shapes import Text
from gpumagic.views.strips import scale_of
from scene_examples import GIB, NOW, START, empty, feed, gpu, host, training, with_gap
from widget_models import models

pytestmark = pytest.mark.usefixtures("closed_models")

WIDTH = 0.5


def scene_of(recording: Recording, later: float = 0.0, length: float = 60.0, **more: Any) -> Scene:
    end = NOW + later
    return build_scene(recording, start=end - length, end=end, **more)


def wavy(gpus: int = 2, end: float = NOW) -> Recording:
    """Return a recording in which no two neighbouring readings are alike."""
    recording = empty(*(gpu(index) for index in range(gpus)), host())
    for device in range(gpus):
        for step in range(round((end - START) / WIDTH)):
            moment = START + step * WIDTH
            share = (step * 7 + device) % 97 / 100
            feed(
                recording, f"GPU-{device}", "nvml", start=moment, end=moment + WIDTH,
                gpu_utilization_ratio=share, gpu_sm_active_ratio=share / 2,
                gpu_memory_used_bytes=(30 + 40 * share) * GIB,
                gpu_power_watts=100 + 400 * share, gpu_temperature_celsius=30 + 40 * share,
            )
            feed(
                recording, f"GPU-{device}", "allocator", start=moment, end=moment + WIDTH,
                torch_reserved_bytes=(20 + 40 * share) * GIB,
                torch_allocated_bytes=(10 + 40 * share) * GIB,
            )
    feed(
        recording, "host", "host", every=1.0, end=end, process_cpu_ratio=1.0,
        children_cpu_ratio=3.0, children_count=4, host_memory_used_bytes=32 * GIB,
    )
    return recording


class Rig:
    """A pointer with a clock that is set by hand."""

    def __init__(self, scene: Scene | None = None) -> None:
        self.now = 100.0
        self.pointer = Pointer(clock=lambda: self.now)
        (self.box,) = self.pointer.widgets()
        if scene is not None:
            self.pointer.update(scene)

    def update(self, scene: Scene, seconds: float = 1.0) -> None:
        self.now += seconds
        self.pointer.update(scene)

    @property
    def overlay(self) -> str:
        value: str = self.box.children[0].value
        return value

    @property
    def parts(self) -> dict[str, str]:
        """The texts of the hidden widgets by their keys; the first of a key counts."""
        found: dict[str, str] = {}
        for child in self.box.children[1:]:
            for key, text in re.findall(r'<i data-gpumagic="([^"]*)">([^<]*)</i>', child.value):
                found.setdefault(key, html.unescape(text))
        return found

    @property
    def head(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.parts["head"])
        return found

    def words(self, layer: int) -> list[str]:
        """Read a layer as the script does, one word for each column in view."""
        head, parts = self.head, self.parts
        found = []
        for index in range(head["count"]):
            column = head["first"] + index
            block = parts[f"{head['key']} {column // BLOCK}"].split(";")
            words = [w for w in block[layer].split(",")[: column % BLOCK + 1] if w]
            found.append(words[-1] if words else "")
        return found


def number_of(scene: Scene, device: str, row: str, style: str = "") -> int:
    keys = [(f.device, f.row, f.style) for f, _ in figures_of(scene)]
    return keys.index((device, row, style))


# -- what is told ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize(
    ("row", "style", "metric"),
    [
        ("util", "", "gpu_utilization_ratio"), ("util", "inner", "gpu_sm_active_ratio"),
        ("mem", "", "gpu_memory_used_bytes"), ("power", "", "gpu_power_watts"),
        ("temp", "", "gpu_temperature_celsius"),
    ],
)
def test_values_are_those_recorded(gpus: int, row: str, style: str, metric: str) -> None:
    """Each column's word is the highest reading in it, written as the present figure is."""
    recording = wavy(gpus)
    scene = scene_of(recording)
    rig = Rig(scene)
    found = rig.words(number_of(scene, "GPU-1", row, style))
    head = rig.head
    columns: dict[int, list[float]] = {}
    for moment, value in recording.series(metric, "GPU-1", START, NOW):
        columns.setdefault(math.ceil(moment / head["width"]) - 1 - head["first"], []).append(value)
    wanted = {i: scale_of(metric).number(max(v)) for i, v in columns.items() if i >= 0}
    assert len(wanted) >= 50
    assert {index: found[index] for index in wanted} == wanted


def test_moving_on_tells_the_same() -> None:
    """After many moves, of any number of columns, the words are those of a fresh pointer."""
    recording = wavy()
    rig = Rig(scene_of(recording, -30.0))
    for later in (-29.5, -29.0, -21.0, -20.5, -8.0, -0.5, 0.0, -25.0, -3.5):
        rig.update(scene_of(recording, later))
        fresh = Rig(scene_of(recording, later))
        assert [rig.words(n) for n in range(10)] == [fresh.words(n) for n in range(10)]


def test_another_window_and_back() -> None:
    """A window of another length, and the first one again, tell their own columns."""
    recording = wavy()
    rig = Rig()
    for length in (60.0, 600.0, 60.0, 30.0, 600.0, 60.0):
        scene = scene_of(recording, 0.0, length)
        rig.update(scene, 0.01)
        assert rig.words(0) == Rig(scene).words(0)
        assert rig.head["width"] == length / 120


def test_gap_is_not_available() -> None:
    """Columns of a gap say n/a, and its reason is among the names."""
    recording = with_gap(training(1, end=NOW - 20), NOW - 20, None, "lost")
    scene = scene_of(recording)
    rig = Rig(scene)
    words = rig.words(number_of(scene, "GPU-0", "power"))
    assert words[-30:] == ["n/a"] * 30
    assert words[10] == "350"
    gap = next(label for label in rig.head["labels"] if label[2] == "gap: lost")
    assert gap[:2] == [80.0, 120.0]


def test_share_of_others() -> None:
    """With a share of other processes, the figure is the total and the detail the difference."""
    scene = scene_of(training(1))
    (row,) = [row for row in scene.rows if row.name == "mem"]
    used = (20.0 * GIB,) * 60 + (60.0 * GIB,) * 60
    ours = replace(row.traces[0], heights=(0.25,) * 60 + (0.5,) * 60, values=used)
    whole = replace(
        row.traces[0], style="other", heights=(None,) * 60 + (0.75,) * 60,
        values=(None,) * 60 + (20.0 * GIB,) * 60,
    )
    detail = replace(row.details[0], style="other", label="others")
    shared = replace(row, traces=(whole, ours, *row.traces[1:]), details=(detail,))
    block = replace(scene.blocks[0], rows=(shared,))
    scene = replace(scene, blocks=(block,))
    rig = Rig(scene)
    assert rig.words(0) == ["20.0"] * 60 + ["60.0"] * 60
    assert rig.words(number_of(scene, "GPU-0", "mem", "other")) == ["–"] * 60 + ["20.0"] * 60


def test_names_on_the_axis() -> None:
    """Cells and marks are named with their places in columns."""
    labels = Rig(scene_of(training(1))).head["labels"]
    assert [10.0, 30.0, "[12]"] in labels
    assert [109.0, 111.0, "epoch 3"] in labels


def test_names_are_escaped() -> None:
    """A mark's name cannot become markup, and reads as it was given."""
    recording = training(1)
    name = '<b onclick="x()">&amp;\'</i>'
    recording.add_mark(Mark(NOW - 1, name))
    rig = Rig(scene_of(recording))
    assert "<b" not in rig.box.children[1].value
    assert any(label[2] == name for label in rig.head["labels"])


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_figures_stand_where_the_present_ones_do(gpus: int) -> None:
    """Each figure has the place, size and end of a present figure that is drawn."""
    scene = scene_of(training(gpus))
    drawn = {
        (round(s.x, 3), round(s.y, 3), s.runs[0].size)
        for s in moving_shapes(scene) if isinstance(s, Text) and s.anchor == "end"
    }
    places = {(round(f.x, 3), round(f.y, 3), f.size) for f, _ in figures_of(scene)}
    assert places <= drawn
    assert len(places) >= len(scene.rows)
    path = re.search(r"data-clip=\"([^\"]*)\"", Rig(scene).overlay)
    assert path is not None
    assert path[1].count("M") == 1 + len(places) + len(scene.panels)


def test_every_panel_takes_the_pointer() -> None:
    """Each panel of a table has its hairline and its place to point at; one takes the keyboard."""
    scene = scene_of(training(8))
    overlay = Rig(scene).overlay
    assert overlay.count('class="gpumagic-hit"') == len(scene.panels) == 4
    assert overlay.count("data-w=") == 4
    assert overlay.count('tabindex="0"') == 1


def test_times_of_day_where_now_is_not_the_end() -> None:
    """A stopped view counts no time back from now."""
    assert Rig(scene_of(training(1))).head["live"] is True
    assert Rig(scene_of(training(1), state="stopped")).head["live"] is False


def test_scenes_without_figures() -> None:
    """Without readings, GPUs or a header there is an overlay all the same."""
    for recording in (empty(), empty(host()), empty(gpu()), training(0)):
        for header in (True, False):
            assert "<svg" in Rig(scene_of(recording, header=header)).overlay


# -- what is sent ---------------------------------------------------------------------------------


def test_unchanged_is_not_sent(sent: list[Any]) -> None:
    """The same readings are sent once, however often the view is drawn."""
    recording = wavy()
    rig = Rig(scene_of(recording))
    sent.clear()
    for _ in range(5):
        rig.update(scene_of(recording))
    assert sent == []


def test_at_most_once_a_second(sent: list[Any]) -> None:
    """While the picture only moves, four updates a second send as much as one."""
    recording = wavy()
    rig = Rig(scene_of(recording, -20.0))
    sent.clear()
    for step in range(1, 17):
        rig.update(scene_of(recording, -20.0 + step * 0.25), 0.25)
    assert [w for w, _ in sent].count(rig.box.children[1]) == 4
    assert len(sent) <= 5
    assert rig.words(0) == Rig(scene_of(recording, -16.0)).words(0)


def test_finished_blocks_are_sent_once(sent: list[Any]) -> None:
    """In half a minute of new columns, each finished block travels once, the overlay never."""
    recording = wavy()
    rig = Rig(scene_of(recording, -40.0))
    count = len(models())
    sent.clear()
    for step in range(1, 33):
        rig.update(scene_of(recording, -40.0 + step))
    head, overlay = rig.box.children[1], rig.box.children[0]
    blocks = [w for w, _ in sent if w not in (head, overlay)]
    assert len(blocks) == 32 / WIDTH / BLOCK
    assert overlay not in [w for w, _ in sent]
    assert len(models()) == count


@pytest.mark.parametrize(("gpus", "most"), [(2, 1600), (8, 4000)])
def test_bytes_a_second(sent: list[Any], gpus: int, most: int) -> None:
    """What travels in a second, with each reading unlike the last, stays small."""
    recording = wavy(gpus)
    rig = Rig(scene_of(recording, -40.0))
    sent.clear()
    for step in range(1, 33):
        rig.update(scene_of(recording, -40.0 + step))
    size = sum(len(state["value"]) for _, state in sent) / 32
    assert 200 < size < most


def test_a_held_picture_is_complete_at_once() -> None:
    """A view that is paused or stopped does not wait for its second."""
    recording = wavy()
    for state in ("paused", "stopped"):
        rig = Rig(scene_of(recording, -2.0))
        scene = scene_of(recording, 0.0, state=state)
        rig.update(scene, 0.1)
        assert rig.words(0) == Rig(scene).words(0)


def test_growing_window_is_sent_seldom(sent: list[Any]) -> None:
    """A window that grows with the recording, so that all columns are new, travels seldom."""
    recording = wavy()
    rig = Rig(scene_of(recording, -1.0, 59.0))
    sent.clear()
    for step in range(1, 21):
        rig.update(scene_of(recording, -1 + step / 100, 59 + step / 100))
    assert [w for w, _ in sent].count(rig.box.children[1]) <= 6


def test_layout_changes(sent: list[Any]) -> None:
    """Another GPU sends the overlay again and makes the old columns unreadable for it."""
    one, two = scene_of(training(1)), scene_of(training(2))
    rig = Rig(one)
    version, first = rig.head["version"], rig.overlay
    sent.clear()
    rig.update(two, 0.01)
    assert rig.head["version"] == version + 1
    assert f'data-version="{version + 1}"' in rig.overlay
    assert rig.words(number_of(two, "GPU-1", "power")) == Rig(two).words(
        number_of(two, "GPU-1", "power")
    )
    assert rig.box.layout.height == f"{two.height:g}px"
    rig.update(one, 0.01)
    assert rig.overlay.replace(f'version="{version + 2}"', f'version="{version}"') == first


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_closing_the_view_leaves_no_model(renderer: str) -> None:
    """All of the pointer's models go with the view, also those of blocks and when replaced."""
    recording = wavy()
    for end in ("close", "replace"):
        pointer = Pointer()
        view = live.make_view(scene_of(recording, -1.0), renderer, [pointer])
        view.update(scene_of(recording))
        (box,) = pointer.widgets()
        assert box in view.root.children  # type: ignore[attr-defined]
        if end == "replace":
            view.replace({"image/png": "", "width": 1, "text/plain": ""})
            assert len(models()) < 8
        view.close()
        assert models() == []


def test_few_models() -> None:
    """Blocks share their layout and style: two minutes of columns need few models."""
    Rig(scene_of(wavy()))
    assert len(models()) <= 15


def test_values_above_the_ceiling() -> None:
    """A reading above its ceiling is drawn at the ceiling and told as it was read."""
    recording = empty(gpu(), host())
    feed(recording, "GPU-0", "nvml", gpu_power_watts=720.0)
    scene = scene_of(recording)
    (row,) = [row for row in scene.rows if row.name == "power"]
    assert (row.traces[0].heights[-1], row.traces[0].values[-1]) == (1.0, 720.0)
    (layer,) = [layer for figure, layer in figures_of(scene) if figure.row == "power"]
    assert layer.values[-1] == 720.0
