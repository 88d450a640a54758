"""Views without widgets: what they send, when, and what they leave out."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest

from fakes import FakeClock
from gpumagic.views import live_display, png
from gpumagic.views.live_display import DisplayView, PictureView, picture
from gpumagic.views.parts import Scene
from gpumagic.views.scene import build_scene
from scene_examples import NOW, START, training

RECORDING = training(2)


def scene(later: float = 0.0) -> Scene:
    return build_scene(RECORDING, start=START + later, end=NOW + later)


class Shown(list[dict[str, Any]]):
    """What a view has sent to replace its output."""

    def __call__(self, bundle: dict[str, Any]) -> None:
        self.append(bundle)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(0.0)


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> list[Scene]:
    """Draw pictures at no cost, and keep the scenes that were drawn."""
    drawn: list[Scene] = []

    def draw(of: Scene) -> dict[str, Any]:
        drawn.append(of)
        return {"image/png": f"{len(drawn)}", "width": 776, "text/plain": of.caption}

    monkeypatch.setattr(live_display, "picture", draw)
    return drawn


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """Let each picture take 300 ms."""

    def draw(of: Scene) -> dict[str, Any]:
        clock.advance(0.3)
        return {"image/png": "", "width": 776, "text/plain": ""}

    monkeypatch.setattr(live_display, "picture", draw)


# -- the picture ----------------------------------------------------------------------------


def test_picture() -> None:
    """The bundle that stays is a PNG of two pixels a CSS pixel, its width, and the text."""
    found = picture(scene())
    drawn = base64.b64decode(found["image/png"])
    assert drawn == png.render(scene(), scale=2)
    assert 2 * found["width"] == int.from_bytes(drawn[16:20], "big")
    assert "GPU 1" in found["text/plain"]


# -- HTML -----------------------------------------------------------------------------------


def test_html_is_shown_and_replaced(clock: FakeClock, shown: Shown) -> None:
    """The view is shown as inline SVG, and another scene replaces it with its text."""
    view = DisplayView(scene(), shown, clock=clock)
    first = view.bundle()
    assert set(first) == {"text/html"}
    assert "<svg" in first["text/html"]
    assert "<script" not in first["text/html"]
    clock.advance(1)
    view.update(scene(10))
    (update,) = shown
    assert set(update) == {"text/html", "text/plain"}
    assert update["text/html"] != first["text/html"]
    assert view.bundle()["text/html"] == update["text/html"]


def test_html_is_sent_twice_a_second_at_most(clock: FakeClock, shown: Shown) -> None:
    """Of twenty scenes a second two are sent."""
    view = DisplayView(scene(), shown, clock=clock)
    for tick in range(1, 101):
        clock.advance(0.05)
        view.update(scene(tick))
    assert 8 <= len(shown) <= 10


def test_html_that_is_left_out_is_known(clock: FakeClock, shown: Shown) -> None:
    """After a scene that came too early the view is behind, until one is taken."""
    view = DisplayView(scene(), shown, clock=clock)
    clock.advance(0.25)
    view.update(scene(5))
    assert (view.behind, shown) == (True, [])
    clock.advance(0.25)
    view.update(scene(5))
    assert (view.behind, len(shown)) == (False, 1)


def test_html_that_looks_the_same_is_not_sent(clock: FakeClock, shown: Shown) -> None:
    """A scene that looks like the one shown sends nothing."""
    view = DisplayView(scene(), shown, clock=clock)
    clock.advance(10)
    view.update(scene())
    assert shown == []


@pytest.mark.parametrize("end", ["close", "replace"])
def test_html_ends(clock: FakeClock, shown: Shown, end: str) -> None:
    """A view that is closed or replaced by its picture sends nothing any more."""
    view = DisplayView(scene(), shown, clock=clock)
    getattr(view, end)(*([{}] if end == "replace" else []))
    clock.advance(10)
    view.update(scene(10))
    assert shown == []
    assert not view.lost()


# -- pictures -------------------------------------------------------------------------------


def test_a_picture_is_there_at_once(shown: Shown) -> None:
    """The first bundle is the whole picture, and nothing is sent beside it."""
    assert PictureView(scene(), shown).bundle() == picture(scene())
    assert shown == []


def test_a_thread_refreshes_the_picture(
    clock: FakeClock, shown: Shown, cheap: list[Scene]
) -> None:
    """Another scene replaces the picture; the same scene is not even drawn."""
    view = PictureView(scene(), shown, clock=clock)
    clock.advance(5)
    view.update(scene())
    assert (len(cheap), shown) == (1, [])
    view.update(scene(5))
    assert shown == [{"image/png": "2", "width": 776, "text/plain": scene(5).caption}]


def test_the_end_of_a_cell_sends_what_a_thread_may_have_lost(
    clock: FakeClock, shown: Shown, cheap: list[Scene]
) -> None:
    """What a thread sent is sent again when the cell ends, and what an end sent is not."""
    view = PictureView(scene(), shown, clock=clock)
    clock.advance(5)
    view.update(scene(5))
    view.cell_ended(lambda: scene(5), failed=False)
    assert len(shown) == 2
    view.cell_ended(lambda: scene(5), failed=True)
    assert len(shown) == 2


def test_many_short_cells_cost_a_twentieth(clock: FakeClock, shown: Shown, dear: None) -> None:
    """Drawing takes a twentieth of the time beside cells that end all the time."""
    view = PictureView(scene(), shown, clock=clock, used=clock)
    for cell in range(1, 1001):
        clock.advance(0.1)
        view.cell_ended(lambda later=cell: scene(later), failed=False)  # type: ignore[misc]
    spent = 0.3 * (len(shown) + 1)
    assert 0.04 * clock.now <= spent <= 0.05 * clock.now + 1.3


def test_the_first_cells_and_those_that_fail_get_their_picture(
    clock: FakeClock, shown: Shown, dear: None
) -> None:
    """A few cells in a row are drawn, then none without a pause, but always one that fails."""
    view = PictureView(scene(), shown, clock=clock, used=clock)
    for cell in range(1, 11):
        view.cell_ended(lambda later=cell: scene(later), failed=False)  # type: ignore[misc]
    assert 2 <= len(shown) <= 4
    before = len(shown)
    view.cell_ended(lambda: scene(11), failed=True)
    assert len(shown) == before + 1
    clock.advance(60)
    view.cell_ended(lambda: scene(12), failed=False)
    assert len(shown) == before + 2


def test_a_thread_draws_every_five_seconds(
    clock: FakeClock, shown: Shown, cheap: list[Scene]
) -> None:
    """Of four scenes a second, one in five seconds is made and drawn; an end counts as well."""
    view = PictureView(scene(), shown, clock=clock)
    made = []

    def make() -> Scene:
        made.append(clock.now)
        return scene(clock.now)

    for _ in range(50):
        clock.advance(0.25)
        view.refresh(make)
    assert made == [5, 10]
    view.cell_ended(make, failed=False)
    for _ in range(20):
        clock.advance(0.25)
        view.refresh(make)
    assert made == [5, 10, 12.5, 17.5]
    assert len(shown) == 4


@pytest.mark.usefixtures("dear")
def test_a_dear_picture_is_drawn_less_often(clock: FakeClock, shown: Shown) -> None:
    """A thread draws less often than every five seconds if a picture takes long."""
    assert PictureView(scene(), shown, clock=clock, used=clock).period_s == pytest.approx(6.0)


@pytest.mark.usefixtures("dear")
def test_waiting_costs_nothing(clock: FakeClock, shown: Shown) -> None:
    """Where a picture takes long and little processor time, each cell gets one."""
    view = PictureView(scene(), shown, clock=clock, used=lambda: 0.0)
    assert view.period_s == 5.0
    for cell in range(1, 31):
        view.cell_ended(lambda later=cell: scene(later), failed=False)  # type: ignore[misc]
    assert len(shown) == 30


def test_no_older_picture_comes_after_that_of_the_end(
    clock: FakeClock, shown: Shown, cheap: list[Scene]
) -> None:
    """A thread that draws while a cell ends is waited for, so the end's picture is the last."""
    view = PictureView(scene(), shown, clock=clock)
    clock.advance(5)
    drawing, go_on = threading.Event(), threading.Event()

    def slowly() -> Scene:
        drawing.set()
        assert go_on.wait(10)
        return scene(5)

    thread = threading.Thread(target=view.refresh, args=(slowly,))
    thread.start()
    assert drawing.wait(10)
    ending = threading.Thread(
        target=view.cell_ended, args=(lambda: scene(6),), kwargs={"failed": False}
    )
    ending.start()
    go_on.set()
    thread.join(10)
    ending.join(10)
    assert cheap[1:] == [scene(5), scene(6)]
    assert [one["image/png"] for one in shown] == ["2", "3"]


def test_what_fails_at_the_end_of_a_cell_is_kept_from_it(
    clock: FakeClock, shown: Shown, cheap: list[Scene]
) -> None:
    """A drawing that fails does not fail the cell; it is noted, and none is tried again."""
    view = PictureView(scene(), shown, clock=clock)

    def fail() -> Scene:
        raise ValueError("no picture")

    view.cell_ended(fail, failed=False)
    assert repr(view.error) == "ValueError('no picture')"
    view.cell_ended(lambda: scene(5), failed=True)
    assert shown == []


@pytest.mark.parametrize("end", ["close", "replace"])
def test_pictures_end(clock: FakeClock, shown: Shown, cheap: list[Scene], end: str) -> None:
    """A view that is closed or replaced sends nothing any more, neither way."""
    view = PictureView(scene(), shown, clock=clock)
    getattr(view, end)(*([{}] if end == "replace" else []))
    clock.advance(5)
    view.update(scene(5))
    view.cell_ended(lambda: scene(6), failed=True)
    assert shown == []
    assert not view.lost()
