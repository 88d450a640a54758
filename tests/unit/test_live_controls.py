"""The controls of the live view: what they ask of their watch, and what they say of it."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from gpumagic.options import parse_window
from gpumagic.views import live
from gpumagic.views.actions import WINDOWS, Status
from gpumagic.views.live_controls import Controls
from gpumagic.views.parts import Scene
from gpumagic.views.scene import build_scene
from scene_examples import NOW, START, training
from widget_models import models

pytestmark = pytest.mark.usefixtures("closed_models")


def scene_of(gpus: int = 1, **more: Any) -> Scene:
    return build_scene(training(gpus), start=START, end=NOW, **more)


class Watch:
    """Actions that note what is asked, and do it when told to."""

    def __init__(self, **status: Any) -> None:
        self.shown = Status(**{"paused": False, "window_s": 60.0, **status})
        self.asked: list[tuple[Any, ...]] = []

    def status(self) -> Status:
        return self.shown

    def pause(self, paused: bool = True) -> None:
        self.asked.append(("pause", paused))

    def show_window(self, seconds: float | None) -> None:
        self.asked.append(("window", seconds))

    def seek(self, position: float) -> None:
        self.asked.append(("seek", position))


class Rig:
    """Controls of a watch, with a clock that is set by hand."""

    def __init__(self, **status: Any) -> None:
        self.now = 100.0
        self.watch = Watch(**status)
        self.controls = Controls(self.watch, lambda: self.now)
        (self.box,) = self.controls.widgets()
        self.scene = scene_of()
        self.update()

    def update(self, **status: Any) -> None:
        if status:
            shown = self.watch.shown
            known = {name: getattr(shown, name) for name in ("paused", "window_s", "position")}
            self.watch.shown = Status(**{**known, **status})
        self.controls.update(self.scene)

    @property
    def words(self) -> dict[str, Any]:
        return {c.description: c for c in self.box.children if type(c).__name__ == "Button"}

    @property
    def shown(self) -> list[str]:
        return [w for w, b in self.words.items() if "gpumagic-shown" in b._dom_classes]

    @property
    def slider(self) -> Any:
        found = [c for c in self.box.children if type(c).__name__ == "FloatSlider"]
        return found[0] if found else None

    def drag(self, value: float) -> None:
        """Do what a message of the browser does."""
        self.slider.set_state({"value": value})


def test_words_and_windows() -> None:
    """There is a word for pause and one for each window, and the one shown is marked."""
    rig = Rig()
    assert list(rig.words) == ["pause", *(word for word, _ in WINDOWS)]
    assert rig.shown == ["1 min"]
    assert rig.slider is None


@pytest.mark.parametrize(("word", "seconds"), WINDOWS)
def test_a_word_asks_for_its_window(word: str, seconds: float | None, sent: list[Any]) -> None:
    """A click asks for the word's window, and says nothing until the watch shows it."""
    rig = Rig(window_s=90.0)
    sent.clear()
    rig.words[word].click()
    assert rig.watch.asked == [("window", seconds)]
    rig.update()
    assert rig.shown == []
    assert sent == []
    rig.update(window_s=seconds)
    assert rig.shown == [word]


def test_a_window_of_its_own_marks_no_word() -> None:
    """A window that no word stands for leaves all of them plain."""
    rig = Rig()
    rig.update(window_s=90.0)
    assert rig.shown == []


def test_pause_and_resume(sent: list[Any]) -> None:
    """The word says what a click does, which is the opposite of what the watch does then."""
    rig = Rig()
    sent.clear()
    rig.words["pause"].click()
    assert rig.watch.asked == [("pause", True)]
    assert sent == []
    rig.update(paused=True)
    rig.words["resume"].click()
    assert rig.watch.asked[1:] == [("pause", False)]
    rig.update(paused=False)
    assert "pause" in rig.words


def test_unchanged_is_not_sent(sent: list[Any]) -> None:
    """An update after which the watch shows the same sends nothing, a change one word or two."""
    rig = Rig(position=0.5)
    sent.clear()
    for _ in range(5):
        rig.now += 10
        rig.update()
        rig.update(position=0.5004)
    assert sent == []
    rig.update(window_s=600.0)
    assert len(sent) == 2


def test_tooltips_name_a_command_that_does_the_same() -> None:
    """The command in a window's tooltip is read as that window."""
    for (_, seconds), button in zip(WINDOWS, list(Rig().words.values())[1:], strict=True):
        text = button.tooltip.partition("%gpuwatch -w ")[2].split()[0]
        assert parse_window(text) == (math.inf if seconds is None else seconds)


def test_slider_of_a_replay() -> None:
    """A replay has a slider left of the words, which follows its place."""
    rig = Rig(position=0.25)
    assert rig.slider.value == 0.25
    assert rig.box.children.index(rig.slider) < rig.box.children.index(rig.words["pause"])
    rig.update(position=0.6)
    assert rig.slider.value == pytest.approx(0.6)
    rig.update(position=1.2)
    assert rig.slider.value == 1.0
    assert rig.watch.asked == []


def test_slider_in_a_hand(sent: list[Any]) -> None:
    """A movement by hand seeks, and the slider is left alone for two seconds."""
    rig = Rig(position=0.25)
    sent.clear()
    rig.drag(0.7)
    rig.now += 0.25
    rig.update(position=0.3)
    assert rig.slider.value == 0.7
    rig.drag(0.8)
    assert rig.watch.asked == [("seek", 0.7), ("seek", 0.8)]
    rig.now += 1.9
    rig.update()
    assert rig.slider.value == 0.8
    rig.now += 0.2
    rig.update(position=0.82)
    assert rig.slider.value == pytest.approx(0.82)
    assert len(rig.watch.asked) == 2


def test_back_to_where_the_view_had_put_it() -> None:
    """A movement by hand to the place last written by the view is a movement all the same."""
    rig = Rig(position=0.25)
    rig.update(position=0.5)
    rig.drag(0.7)
    rig.drag(0.5)
    assert rig.watch.asked == [("seek", 0.7), ("seek", 0.5)]


def test_words_end_where_the_scene_ends() -> None:
    """The controls are as wide as the scene and hidden where there is no header."""
    rig = Rig()
    assert rig.box.layout.width == f"{rig.scene.width:g}px"
    assert rig.box.layout.visibility == "visible"
    rig.scene = scene_of(8)
    rig.update()
    assert rig.box.layout.width == "900px"
    rig.scene = scene_of(header=False)
    rig.update()
    assert rig.box.layout.visibility == "hidden"


def test_update_on_another_thread() -> None:
    """The view's thread updates what the main thread has made."""
    rig = Rig()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for window in (600.0, None, 60.0, 3600.0):
                rig.update(window_s=window)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert rig.shown == ["1 h"]


@pytest.mark.parametrize("position", [None, 0.5])
def test_closing_the_view_leaves_no_model(position: float | None) -> None:
    """All models of the controls go with the view."""
    controls = Controls(Watch(position=position))
    view = live.make_view(scene_of(), "svg", [controls])
    view.update(scene_of())
    assert controls.widgets()[0] in view.root.children  # type: ignore[attr-defined]
    view.close()
    assert models() == []
