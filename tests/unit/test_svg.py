"""A scene as SVG."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET

import pytest

from gpumagic.sample import Mark, Sample, Span
from gpumagic.views import svg
from gpumagic.views.scene import Scene, build_scene
from scene_examples import GIB, NOW, START, empty, feed, gpu, training, with_gap

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\"'&"


def minute(gpus: int = 1, **more: object) -> Scene:
    return build_scene(training(gpus), start=START, end=NOW, **more)  # type: ignore[arg-type]


def words(text: str) -> list[str]:
    return ["".join(e.itertext()) for e in ET.fromstring(text).iter(f"{SVG}text")]


@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_it_is_one_element(gpus: int, theme: svg.Theme) -> None:
    """The SVG is well-formed, has no script or style element and holds only numbers."""
    text = svg.render(minute(gpus), theme)
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {
        "svg", "title", "desc", "g", "path", "circle", "text", "tspan",
    }
    assert not re.search(r"nan|inf\b|None|e-\d", "".join(re.findall(r' d="([^"]*)"', text)))


def test_it_speaks() -> None:
    """Its title and description say in words what the picture shows."""
    root = ET.fromstring(svg.render(minute(notice="Look at `%gpumem`.")))
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "GPU use: recording"
    assert root.findtext(f"{SVG}desc") == (
        "From −60 s to now. GPU 0 cuda:0 H200: utilization 75 %; memory 40.0 GiB (of 80 GiB),"
        " reserved 30.0 GiB, allocated 20.0 GiB; power 350 W (cap 700 W); temp 60 °C (slows at"
        " 87 °C). Host: CPU 4.0 cores (of 8 cores), 4 children 3.0 cores; RAM 32.0 GiB"
        " (of 64 GiB). Cells: [12], [13] failed, [14] 22 s is running. Marks: epoch 3"
        " (5 s ago). Look at %gpumem."
    )


def test_it_writes_all_figures() -> None:
    """Every label, figure and detail of the scene is in the SVG."""
    found = words(svg.render(minute()))
    assert {"75", "40.0", "350", "60", "4.0", "32.0", "reserved", "30.0", "now"} <= set(found)
    assert {"memoryof 80 GiB", "powercap 700 W", "GPU 0cuda:0", "H200"} <= set(found)


def test_hostile_names_stay_text() -> None:
    """Names of cells, marks, devices, reasons and notices cannot break out of their text."""
    recording = empty(gpu(name=HOSTILE, absent={"gpu_power_watts": HOSTILE}))
    recording.append(Sample(NOW - 1, "GPU-0", "nvml", {"gpu_utilization_ratio": 1.0}))
    recording.add_span(Span(1, START, NOW - 30, name=HOSTILE))
    recording.add_mark(Mark(NOW - 9, HOSTILE))
    scene = build_scene(
        with_gap(recording, NOW - 20, NOW - 10, HOSTILE), start=START, end=NOW,
        notice=HOSTILE + "`" + HOSTILE, caption=HOSTILE,
    )
    text = svg.render(scene)
    assert "<script" not in text
    assert HOSTILE in "".join(ET.fromstring(text).itertext())


def test_it_is_small() -> None:
    """One GPU with a busy minute takes less than 8 kB."""
    rnd = random.Random(5)
    recording = empty(gpu())
    for index in range(600):
        recording.append(Sample(START + index / 10, "GPU-0", "nvml", {
            "gpu_utilization_ratio": rnd.random(), "gpu_power_watts": 700 * rnd.random(),
            "gpu_memory_used_bytes": 70 * GIB + rnd.random() * GIB,
            "gpu_temperature_celsius": 60 + rnd.random(),
        }))
    assert len(svg.render(build_scene(recording, start=START, end=NOW))) < 8_000


def test_a_gap_parts_the_path() -> None:
    """A trace with a gap is one path of two stretches that end at the gap."""
    recording = empty(gpu())
    feed(recording, "GPU-0", "nvml", gpu_utilization_ratio=1.0)
    whole = build_scene(recording, start=START, end=NOW, host=False)
    parted = build_scene(
        with_gap(recording, START + 20, START + 30, "busy"), start=START, end=NOW, host=False
    )
    one, two = (re.findall(r'd="([^"]*)" opacity="0.42"', svg.render(s)) for s in (whole, parted))
    panel = whole.panels[0]
    assert [p.count("M") for p in one + two] == [1, 2]
    assert f"h{(panel.x1 - panel.x0) / 3:.0f}V" in two[0]


def test_themes_differ_in_ink_only() -> None:
    """Marks of use and limits have the same colour in both themes; ink and page do not."""
    light, dark = svg.COLOURS["light"], svg.COLOURS["dark"]
    assert {k for k in light if light[k] == dark[k]} == {"use", "line", "limit"}
    scene = minute()
    assert "var(--jp-ui-font-color1,#212121)" in svg.render(scene)
    assert dark["page"] in svg.render(scene, "dark")
    for theme in ("light", "dark"):
        assert "var(--jp-ui-font-color" not in svg.render(scene, theme)


def test_the_frame_can_be_had_alone() -> None:
    """Without traces, labels and figures are drawn and nothing inside the plots is."""
    frame = svg.render(minute(), traces=False)
    assert words(frame) == words(svg.render(minute()))
    assert 'opacity="0.42"' not in frame


def test_paused_is_a_hollow_dot() -> None:
    """The dot beside "paused" is hollow, the one beside "recording" is full."""
    assert 'fill="none" stroke="#8c8c8c" stroke-width="1.6"' in svg.render(minute(state="paused"))
    assert 'stroke-width="1.6"' not in svg.render(minute())
