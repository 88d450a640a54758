"""The live view's life: its models, what it sends, and what it leaves behind."""

from __future__ import annotations

import base64
import builtins
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ipywidgets.widgets import widget as registry

from gpumagic.errors import SettingError
from gpumagic.recording import Recording
from gpumagic.views import live, png
from gpumagic.views.live_bqplot import _UNSETTLED, BqplotView, lines_of
from gpumagic.views.live_svg import SvgView
from gpumagic.views.live_widgets import WidgetView
from gpumagic.views.parts import MarkLine, Scene, Stretch
from gpumagic.views.scene import build_scene
from scene_examples import NOW, START, empty, gpu, host, training, with_gap


def scene_of(recording: Recording, later: float = 0.0, **more: Any) -> Scene:
    return build_scene(recording, start=START + later, end=NOW + later, **more)


def models() -> list[Any]:
    found = getattr(registry, "_instances", None)
    if found is None:
        found = registry.Widget._active_widgets
    return list(found.values())


def twin() -> dict[str, Any]:
    return {"image/png": base64.b64encode(b"png").decode(), "width": 776, "text/plain": 'a "b" <'}


@pytest.fixture(autouse=True)
def no_models_left() -> Iterator[None]:
    assert models() == []
    yield
    left = models()
    for model in left:
        model.close()
    assert left == []


@pytest.fixture
def make() -> Iterator[Any]:
    made = []

    def make_one(scene: Scene, renderer: str = "auto") -> Any:
        made.append(live.make_view(scene, renderer))
        return made[-1]

    yield make_one
    for view in made:
        view.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Note what widgets send, once asked for."""
    found: list[tuple[Any, dict[str, Any]]] = []
    original = registry.Widget.send_state

    def send_state(self: Any, key: Any = None) -> None:
        names = [key] if isinstance(key, str) else sorted(self.keys if key is None else key)
        if names:
            found.append((self, {name: getattr(self, name) for name in names}))
        original(self, key)

    monkeypatch.setattr(registry.Widget, "send_state", send_state)
    return found


def settle(view: Any, scene: Scene) -> None:
    for _ in range(_UNSETTLED + 1):
        view.update(scene)


# -- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "renderer", "wanted"),
    [
        (0, "auto", BqplotView), (1, "auto", BqplotView), (2, "auto", BqplotView),
        (3, "auto", SvgView), (8, "auto", SvgView), (1, "svg", SvgView), (8, "bqplot", BqplotView),
    ],
)
def test_choice(make: Any, gpus: int, renderer: str, wanted: type) -> None:
    """Auto is bqplot for up to two GPUs and SVG above; a named renderer is taken."""
    assert type(make(scene_of(training(gpus)), renderer)) is wanted


def test_many_gpus_as_rows_are_svg(make: Any) -> None:
    """Three GPUs are too many for bqplot in the layout of few GPUs as well."""
    assert type(make(scene_of(training(3), layout="rows"))) is SvgView


def test_unknown_renderer() -> None:
    """An unknown renderer is refused with the names of those there are."""
    with pytest.raises(SettingError, match="auto, bqplot, svg"):
        live.make_view(scene_of(training()), "canvas")


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package one that cannot be imported."""
    real = builtins.__import__

    def import_it(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_it)
    for name in ("live_svg", "live_bqplot", "live_widgets"):
        monkeypatch.delitem(sys.modules, f"gpumagic.views.{name}", raising=False)


def test_without_bqplot(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """Without bqplot, auto draws SVG, and asking for bqplot names what to install."""
    hide(monkeypatch, "bqplot")
    assert type(make(scene_of(training()))).__name__ == "SvgView"
    with pytest.raises(SettingError, match="pip install bqplot"):
        make(scene_of(training()), "bqplot")


def test_without_ipywidgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ipywidgets there is no widget, and the error names what to install."""
    hide(monkeypatch, "ipywidgets")
    with pytest.raises(SettingError, match="pip install ipywidgets"):
        live.make_view(scene_of(training()))


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_close_leaves_no_model(make: Any, renderer: str) -> None:
    """Closing takes every model away, and closing or updating again does nothing."""
    scene = scene_of(training())
    view = make(scene, renderer)
    assert models()
    view.close()
    assert models() == []
    view.close()
    view.update(scene_of(training(), 1.0))
    view.replace(twin())
    assert models() == []


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_bundle_names_the_root(make: Any, renderer: str) -> None:
    """The bundle is a widget view of a model that is alive, without other types."""
    bundle = make(scene_of(training()), renderer).bundle()
    assert list(bundle) == ["application/vnd.jupyter.widget-view+json"]
    model = bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert model in {m.model_id for m in models()}


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_structure_changes_in_place(make: Any, renderer: str) -> None:
    """GPUs come and go inside the same root, and the number of models comes back."""
    one, two = scene_of(training(1)), scene_of(training(2))
    view = make(one, renderer)
    root, count = view.root, len(models())
    for scene in (two, one, scene_of(training(8)), scene_of(empty()), two, one):
        view.update(scene)
        assert len(models()) <= count
        assert view.root is root
        assert f"{scene.height:g}px" == root.children[-1].layout.height
    assert len(models()) == count


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_failure_leaves_no_model(monkeypatch: pytest.MonkeyPatch, renderer: str) -> None:
    """A view that cannot be made leaves no model behind."""
    def fail(self: Any, *children: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(WidgetView, "_put", fail)
    with pytest.raises(RuntimeError):
        live.make_view(scene_of(training()), renderer)


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_replace_leaves_one_picture(make: Any, renderer: str) -> None:
    """Replacing leaves the root with one HTML model: the picture, with its text as alt."""
    view = make(scene_of(training()), renderer)
    view.replace(twin())
    kinds = sorted(type(m).__name__ for m in models())
    assert kinds == ["GridBox", "HTML", "HTMLStyle", "Layout", "Layout"]
    picture = view.root.children[0].value
    assert 'src="data:image/png;base64,cG5n"' in picture
    assert 'alt="a &quot;b&quot; &lt;"' in picture
    view.update(scene_of(training(), 1.0))
    assert view.root.children[0].value == picture
    view.replace(twin())
    assert len(models()) == 5


def test_lost(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view is lost once a page has opened a control channel that was not there before."""
    view = make(scene_of(training()))
    assert not view.lost()
    monkeypatch.setattr(registry.Widget, "_control_comm", object())
    assert view.lost()
    assert not make(scene_of(training())).lost()


# -- what is sent ---------------------------------------------------------------------------------


def arrays(view: Any) -> dict[str, np.ndarray[Any, Any]]:
    figure = view.root.children[-1]
    return {
        f"{index}.{name}": getattr(mark, name)
        for index, mark in enumerate(figure.marks) for name in ("x", "y", "width")
    }


def test_arrays_keep_their_length(make: Any) -> None:
    """As the window moves over a gap, arrays are finite and as long as they were, in one figure."""
    recording = with_gap(training(2, end=NOW - 20), NOW - 20, None, "lost")
    view = make(scene_of(recording))
    figure, count = view.root.children[-1], len(models())
    lengths = {name: len(array) for name, array in arrays(view).items()}
    for step in range(30):
        view.update(scene_of(recording, step * 0.5))
        now = arrays(view)
        assert {name: len(array) for name, array in now.items()} == lengths
        assert all(len(array) >= 2 and np.isfinite(array).all() for array in now.values())
    assert view.root.children[-1] is figure
    assert len(models()) == count


def test_gap_columns_are_empty() -> None:
    """Where nothing is known no segment has a width, nor does a column rise."""
    scene = scene_of(training(1, with_host=False, end=NOW - 20))
    lines = lines_of(scene, {})
    unknown = scene.rows[0].traces[0].heights
    known = sum(h is not None for h in unknown)
    assert 0 < known < len(unknown)
    area, line = lines["middle over outer"], lines["line"]
    edge = scene.panels[0].x(known / len(unknown))
    beyond = area.x[:-1] > edge
    assert (area.width[:-1][beyond] == 0).all()
    assert len(set(area.y[:-1][beyond])) == 1
    drawn = line.width[:-1] > 0
    assert line.x[1:][drawn].max() == pytest.approx(edge)
    assert not lines["dot"].width.any()


def test_gap_is_not_bridged() -> None:
    """A gap of one column stays open in a line, from edge to edge."""
    scene = scene_of(training(1, with_host=False))
    row = next(r for r in scene.rows if r.name == "power")
    heights = list(row.traces[0].heights)
    heights[60] = None
    broken = replace(row, traces=(replace(row.traces[0], heights=tuple(heights)),))
    block = replace(scene.blocks[0], rows=(broken,))
    line = lines_of(replace(scene, blocks=(block,)), {})["line"]
    drawn = line.width[:-1] > 0
    pieces = list(zip(line.x[:-1][drawn], line.x[1:][drawn], strict=True))
    pitch = (row.panel.x1 - row.panel.x0) / len(heights)
    left, right = row.panel.x0 + 60 * pitch, row.panel.x0 + 61 * pitch
    assert not any(a < right and b > left for a, b in pieces)
    assert max(b for _, b in pieces) == pytest.approx(row.panel.x1)
    assert min(a for a, _ in pieces) == pytest.approx(row.panel.x0)


def test_places_are_those_of_the_scene() -> None:
    """A column ends at its row's height and a mark runs from the bands to the last row."""
    scene = scene_of(training(1))
    lines = lines_of(scene, {})
    row = scene.rows[0]
    wanted = row.top + row.height * (1 - (row.traces[0].heights[0] or 0))
    assert scene.height - lines["outer"].y[1] / 16 == pytest.approx(wanted, abs=1 / 16)
    mark = lines["mark"]
    assert mark.x[0] == pytest.approx(scene.panels[0].x(scene.marks[0].x))
    ends = [scene.height - y / 16 for y in mark.y[:2]]
    assert ends == pytest.approx([scene.band_top - 1, scene.plot_bottom], abs=1 / 16)


def test_throttled_stretches_are_drawn(make: Any) -> None:
    """Stretches at a limit fill slots, whose number grows when it must and never shrinks."""
    scene = scene_of(training(1))
    view = make(scene)
    figure = view.root.children[-1]
    rows = scene.rows

    def held(count: int) -> Scene:
        parts = tuple(Stretch(i / 10, i / 10 + 0.05) for i in range(count))
        first = replace(rows[0], limited=parts)
        block = replace(scene.blocks[0], rows=(first, *scene.blocks[0].rows[1:]))
        return replace(scene, blocks=(block, *scene.blocks[1:]))

    view.update(held(2))
    assert view.root.children[-1] is figure
    assert (lines_of(held(2), {})["limit"].width > 0).sum() == 2
    view.update(held(7))
    larger = view.root.children[-1]
    assert larger is not figure
    view.update(held(0))
    assert view.root.children[-1] is larger


def test_new_widths_come_with_new_heights(make: Any, sent: list[Any]) -> None:
    """FlexLine draws no widths by themselves, so that heights go with them."""
    scene = scene_of(training(1))
    view = make(scene)
    settle(view, scene)
    sent.clear()
    row = next(r for r in scene.rows if r.name == "util")
    heights = (None, *row.traces[0].heights[1:])
    low = (0.0, *heights[1:])
    for chosen in (low, heights):
        changed = replace(row, traces=(replace(row.traces[0], heights=chosen),))
        block = replace(scene.blocks[0], rows=(changed, *scene.blocks[0].rows[1:]))
        sent.clear()
        view.update(replace(scene, blocks=(block, *scene.blocks[1:])))
    states = [state for widget, state in sent if type(widget).__name__ == "FlexLine"]
    assert [sorted(state) for state in states] == [["width", "y"]]


def test_many_marks(make: Any) -> None:
    """Any number of marks is drawn."""
    scene = scene_of(training(1))
    marks = tuple(MarkLine(i / 50, "", 0.0) for i in range(50))
    view = make(scene)
    view.update(replace(scene, marks=marks))
    assert (lines_of(replace(scene, marks=marks), {})["mark"].width > 0).sum() == 50


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_unchanged_is_not_sent(make: Any, sent: list[Any], renderer: str) -> None:
    """A scene that has been drawn and laid out is not sent a second time."""
    scene = scene_of(training())
    view = make(scene, renderer)
    settle(view, scene)
    sent.clear()
    view.update(scene_of(training()))
    assert sent == []


def test_only_what_changed_is_sent(make: Any, sent: list[Any]) -> None:
    """A new caption sends the text and no array; an idle column sends no x and no width."""
    scene = scene_of(training())
    view = make(scene)
    settle(view, scene)
    sent.clear()
    view.update(replace(scene, caption="other"))
    assert [(type(w).__name__, list(state)) for w, state in sent] == [("HTML", ["value"])]
    sent.clear()
    rows = scene.blocks[0].rows
    heights = (*rows[0].traces[0].heights[:-1], 0.25)
    first = replace(rows[0], traces=(replace(rows[0].traces[0], heights=heights),))
    block = replace(scene.blocks[0], rows=(first, *rows[1:]))
    view.update(replace(scene, caption="other", blocks=(block, *scene.blocks[1:])))
    assert [(type(w).__name__, list(state)) for w, state in sent] == [("FlexLine", ["y"])]


def test_a_new_figure_is_drawn_again(make: Any, sent: list[Any]) -> None:
    """Every mark of a new figure is sent some times more, as a page may draw it too early."""
    scene = scene_of(training())
    view = make(scene)
    sent.clear()
    view.update(scene)
    view.update(scene)
    assert len(sent) == 2 * len(view.root.children[-1].marks)


def test_scene_without_gpus(make: Any, sent: list[Any]) -> None:
    """Without GPUs, without a host and without samples there is a view all the same."""
    for recording in (empty(), empty(host()), empty(gpu()), training(0)):
        for renderer in ("bqplot", "svg"):
            scene = scene_of(recording, notice="no NVIDIA driver here")
            view = make(scene, renderer)
            view.update(scene_of(recording, 1.0))
    for widget, state in sent:
        if type(widget).__name__ == "FlexLine":
            for name in {"x", "y", "width"} & set(state):
                assert len(state[name]) >= 2
                assert np.isfinite(state[name]).all()


def test_update_on_another_thread(make: Any) -> None:
    """A view made on one thread is updated on another, also when its rows change."""
    view = make(scene_of(training(1)))
    scenes = [scene_of(training(g), later) for g in (1, 2) for later in (0.5, 1.0)]
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for scene in scenes:
                view.update(scene)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert "GPU 1" in view.root.children[1].value


def test_text_lies_under_the_figure_and_has_no_traces(make: Any) -> None:
    """All words are in one HTML widget of the figure's size, which draws nothing of the plots."""
    scene = scene_of(training(), caption="last 60 s")
    sheet, text, figure = make(scene).root.children
    assert sheet.layout.display == "none"
    assert "last 60 s" in text.value
    assert "[14]" in text.value
    assert text.layout.width == figure.layout.width == f"{scene.width:g}px"
    assert text.layout.grid_area == figure.layout.grid_area


def test_margin_is_that_of_the_picture(make: Any) -> None:
    """The view's margin is the PNG's, so that nothing moves when the picture takes its place."""
    scene = scene_of(training())
    width = int.from_bytes(png.render(scene, scale=1)[16:20], "big")
    assert make(scene).root.layout.padding == f"{(width - scene.width) / 2:g}px"
