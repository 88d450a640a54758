"""A scene as PNG."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from gpumagic.views import png
from gpumagic.views.scene import Scene, build_scene
from gpumagic.views.svg import COLOURS
from scene_examples import NOW, START, busy, training


def minute(gpus: int = 1, **more: object) -> Scene:
    return build_scene(training(gpus), start=START, end=NOW, **more)  # type: ignore[arg-type]


def image(data: bytes) -> Image.Image:
    found = Image.open(io.BytesIO(data))
    found.load()
    return found.convert("RGB")


def at(picture: Image.Image, x: float, y: float) -> tuple[int, ...]:
    """Return the colour at a place of the scene, in a PNG of scale 2 with its margin of 8."""
    pixel = picture.getpixel((round((x + 8) * 2), round((y + 8) * 2)))
    assert isinstance(pixel, tuple)
    return pixel


def near(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(abs(x - y) <= 12 for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
def test_it_has_the_size_of_its_scene(gpus: int) -> None:
    """A PNG has ``scale`` pixels for each CSS pixel, and a margin."""
    scene = minute(gpus)
    for scale in (1, 2):
        picture = image(png.render(scene, scale=scale))
        assert picture.width == (scene.width + 16) * scale
        assert picture.height == round((scene.height + 16) * scale)


def test_it_is_small() -> None:
    """Two GPUs take less than 40 kB."""
    assert len(png.render(minute(2))) < 40_000


@pytest.mark.parametrize(("theme", "page"), [("light", (255, 255, 255)), ("dark", (17, 17, 17))])
def test_it_brings_its_page(theme: str, page: tuple[int, ...]) -> None:
    """It is opaque, so that it can be read on any page."""
    picture = image(png.render(minute(), theme=theme))  # type: ignore[arg-type]
    assert picture.getpixel((0, 0)) == page
    assert COLOURS[theme]["page"] == "#{:02x}{:02x}{:02x}".format(*page)


def test_parts_have_the_tone_of_their_key() -> None:
    """Outer, middle and inner parts are drawn in the mixed colours that the rules give."""
    scene = minute()
    memory = next(r for r in scene.rows if r.name == "mem")
    picture = image(png.render(scene))
    x = memory.panel.x(0.3)
    for height, opacity in ((0.44, 0.42), (0.31, 0.68), (0.1, 1.0)):
        blue = tuple(round(255 + (c - 255) * opacity) for c in (0x2F, 0x7F, 0xC1))
        assert near(at(picture, x, memory.top + memory.height * (1 - height)), blue)
    assert near(at(picture, x, memory.top + memory.height * 0.2), (255, 255, 255))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_others_are_grey(theme: str) -> None:
    """The share of others is full grey, and what is ours below it keeps its tone."""
    scene = build_scene(busy(2), start=START, end=NOW)
    memory = next(r for r in scene.rows if r.name == "mem")
    picture = image(png.render(scene, theme=theme))  # type: ignore[arg-type]
    heights = {t.style: t.heights[110] or 0.0 for t in memory.traces}
    x = memory.panel.x(110.5 / 120)

    def between(low: str, high: str) -> tuple[int, ...]:
        height = (heights[low] + heights[high]) / 2
        return at(picture, x, memory.top + memory.height * (1 - height))

    page = int(COLOURS[theme]["page"][1:3], 16)
    assert near(between("outer", "other"), (0x8C, 0x8C, 0x8C))
    blue = tuple(round(page + (c - page) * 0.68) for c in (0x2F, 0x7F, 0xC1))
    assert near(between("inner", "middle"), blue)


def test_an_event_is_orange() -> None:
    """An OOM is an orange tick through the strip of its GPU's memory."""
    scene = build_scene(busy(2), start=START, end=NOW)
    memory = next(r for r in scene.rows if r.name == "mem")
    picture = image(png.render(scene))
    x = memory.panel.x(scene.events[0].ticks[-1].x)
    for y in (memory.top - 1.5, memory.top + memory.height / 2):
        assert near(at(picture, x, y), (0xD9, 0x73, 0x0D))


def test_a_failed_cell_ends_in_orange() -> None:
    """The end of a failed cell's band is orange, and the rest of it is not."""
    scene = minute()
    failed = next(b for b in scene.bands if b.failed)
    picture = image(png.render(scene))
    end = scene.panels[0].x(failed.x1)
    assert near(at(picture, end - 2, scene.band_top + 1.5), (0xD9, 0x73, 0x0D))
    assert not near(at(picture, end - 9, scene.band_top + 1.5), (0xD9, 0x73, 0x0D))


def test_a_missing_letter_is_replaced() -> None:
    """What Pillow's own font lacks is written as what comes nearest, never as a box."""
    assert png.writable("−60 s, 4 × é: 87 °C…") == "-60 s, 4 x e: 87 °C…"
    assert png.writable("你好 GPU") == "?? GPU"


def test_labels_of_scenes_need_few_replacements() -> None:
    """Only the minus and the times sign of our own words are not in Pillow's font."""
    words = {
        text
        for scene in (minute(), minute(8))
        for row in scene.rows
        for text in (row.label, row.limit, row.value, *(d.label for d in row.details))
    }
    assert all(png.writable(text) == text for text in words)


def test_a_cell_that_began_just_now_is_drawn() -> None:
    """A running cell of no width at the right edge of the axis is drawn like any other."""
    recording = training()
    recording.begin_span(NOW - 1e-4, number=99)
    for late in (0.0, 0.003, 0.007):
        scene = build_scene(recording, start=NOW - 60 + late, end=NOW + late)
        assert any(band.running for band in scene.bands)
        assert image(png.render(scene)).width > 0
