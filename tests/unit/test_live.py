"""The live view's life: its models, what it sends, and what it leaves behind."""

from __future__ import annotations

import base64
import builtins
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gpumagic.errors import SettingError
from gpumagic.recording import Recording
from gpumagic.views import live, png
from gpumagic.views.live_bqplot import _UNSETTLED, BqplotView, lines_of
from gpumagic.views.live_svg import SvgView
from gpumagic.views.live_widgets import WidgetView
from gpumagic.views.pages import COLUMNS, Due, Layout, Series, series_of
from gpumagic.views.parts import Scene
from gpumagic.views.scene import build_scene
from scene_examples import NOW, START, empty, gpu, host, training, with_gap
from widget_models import Widget, models

pytestmark = pytest.mark.usefixtures("no_models_left")


def scene_of(recording: Recording, later: float = 0.0, **more: Any) -> Scene:
    return build_scene(recording, start=START + later, end=NOW + later, **more)


def twin() -> dict[str, Any]:
    return {"image/png": base64.b64encode(b"png").decode(), "width": 776, "text/plain": 'a "b" <'}


@pytest.fixture
def make() -> Iterator[Any]:
    made = []

    def make_one(scene: Scene, renderer: str = "auto") -> Any:
        made.append(live.make_view(scene, renderer))
        return made[-1]

    yield make_one
    for view in made:
        view.close()


def settle(view: Any, scene: Scene) -> None:
    for _ in range(max(_UNSETTLED) + 1):
        view.update(scene)


def layer(view: Any, name: str) -> Any:
    """Return the layer with that class."""
    (found,) = (w for w in view.root.children if f"gpumagic-{name}" in w._dom_classes)
    return found


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
        assert view.root is root
        assert f"{scene.height:g}px" == layer(view, "moving").layout.height
        assert f"{scene.height:g}px" == layer(view, "pages").layout.height
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


class Remark:
    """An extra of one widget."""

    def __init__(self) -> None:
        self.seen: list[Scene] = []
        self.widget: Any = None

    def widgets(self) -> list[Any]:
        if self.widget is None:
            self.widget = registry_html("remark")
        return [self.widget]

    def update(self, scene: Scene) -> None:
        self.seen.append(scene)


def registry_html(value: str) -> Any:
    import ipywidgets

    return ipywidgets.HTML(value)


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_extras_lie_above(renderer: str) -> None:
    """An extra's widget is the last of the root's, also after a change of layout, follows each
    scene and is closed with the view."""
    extra = Remark()
    view = live.make_view(scene_of(training(1)), renderer, [extra])
    layers = [w for w in view.root.children if w is not extra.widget]
    assert view.root.children[-1] is extra.widget
    scene = scene_of(training(2))
    view.update(scene)
    assert view.root.children[-1] is extra.widget
    assert not set(layers) & set(view.root.children)
    assert extra.seen == [scene]
    view.close()
    assert models() == []


def test_lost(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view is lost once a page has opened a control channel that was not there before."""
    view = make(scene_of(training()))
    assert not view.lost()
    monkeypatch.setattr(Widget, "_control_comm", object())
    assert view.lost()
    assert not make(scene_of(training())).lost()


# -- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_the_layers(make: Any, renderer: str) -> None:
    """The layers lie above each other, each with its class: fixed, pages, moving, words."""
    scene = scene_of(training(), caption="last 60 s")
    view = make(scene, renderer)
    classes = [set(w._dom_classes) for w in view.root.children]
    assert classes == [
        {"gpumagic-fixed"}, {"gpumagic-pages"}, {"gpumagic-moving"}, {"gpumagic-words"}
    ]
    assert "gpumagic-live" in view.root._dom_classes
    fixed, moving = layer(view, "fixed").value, layer(view, "moving").value
    assert "last 60 s" in fixed
    assert "utilization" in fixed
    assert "[14]" in moving
    assert "utilization" not in moving
    assert fixed.count("#2f7fc1") <= 1, "the plots are drawn on pages"


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_an_update_is_one_message(make: Any, sent: list[Any], renderer: str) -> None:
    """A column later one widget is sent, the moving one; a page goes out every 16 columns."""
    recording = training(2)
    view = make(scene_of(recording, -32), renderer)
    settle(view, scene_of(recording, -32))
    counts = []
    pages = []
    for index in range(1, 65):
        sent.clear()
        view.update(scene_of(recording, -32 + index / 2))
        moved = [w for w, state in sent if w is layer(view, "moving")]
        assert len(moved) == 1
        others = [w for w, state in sent if w not in (layer(view, "moving"), layer(view, "words"))]
        counts.append(len(others))
        pages += others
    assert sum(count == 0 for count in counts) >= 50
    assert len(set(pages)) == 4
    assert len(layer(view, "moving").value) < 5000


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_unchanged_is_not_sent(make: Any, sent: list[Any], renderer: str) -> None:
    """A scene that has been drawn and laid out is not sent a second time."""
    scene = scene_of(training())
    view = make(scene, renderer)
    settle(view, scene)
    sent.clear()
    view.update(scene_of(training()))
    assert sent == []


def test_a_new_caption_sends_what_is_fixed(make: Any, sent: list[Any]) -> None:
    """What stands beside the plots is sent when it changes, and then alone."""
    scene = scene_of(training())
    view = make(scene)
    settle(view, scene)
    sent.clear()
    view.update(replace(scene, caption="other"))
    assert [w for w, _ in sent] == [layer(view, "fixed")]
    assert "other" in layer(view, "fixed").value


def test_words_are_told_every_five_seconds() -> None:
    """The scene in words follows within five seconds, and at once where the state changes."""
    now = [0.0]
    scene = scene_of(training())
    view = SvgView(scene, clock=lambda: now[0])
    try:
        words = layer(view, "words")
        assert 'role="img"' in words.value
        assert "utilization 75 %" in words.value
        first = words.value
        later = replace(scene, caption="later")
        now[0] = 4.9
        view.update(later)
        assert words.value == first
        now[0] = 5.1
        view.update(later)
        assert "later" in words.value
        view.update(replace(later, state="paused"))
        assert "paused" in words.value
        assert "aria-live" not in words.value
        assert layer(view, "moving").value.count("<svg") == layer(view, "moving").value.count(
            'aria-hidden="true"'
        )
    finally:
        view.close()


@pytest.mark.parametrize("gpus", [1, 8])
def test_pages_follow_the_style(make: Any, gpus: int) -> None:
    """The one message of an update also shifts the pages: by a column, and round after a page."""
    recording = training(gpus)
    view = make(scene_of(recording), "svg")
    pitch = Layout.of(scene_of(recording)).pitch
    key = next(c for c in view.root._dom_classes if c != "gpumagic-live")
    lefts = []
    for index in range(4 * COLUMNS):
        view.update(scene_of(recording, index * 60 / scene_of(recording).columns))
        style = layer(view, "moving").value.partition("</style>")[0]
        assert style.count(f".{key}>.gpumagic-pages>") == 2
        left, right = (float(x) for x in re.findall(r"calc\((-?[\d.]+)px", style))
        assert right - left == Layout.of(scene_of(recording)).pages * COLUMNS * pitch
        lefts.append(left)
    steps = {round(b - a, 3) for a, b in pairwise(lefts)}
    assert -pitch in steps
    assert min(lefts) > -4 * (right - left)


def test_scene_without_gpus(make: Any, sent: list[Any]) -> None:
    """Without GPUs, without a host and without samples there is a view all the same."""
    for recording in (empty(), empty(host()), empty(gpu()), training(0)):
        for renderer in ("bqplot", "svg"):
            scene = scene_of(recording, notice="no NVIDIA driver here")
            view = make(scene, renderer)
            view.update(scene_of(recording, 1.0, notice="no NVIDIA driver here"))
            assert "NVIDIA driver" in layer(view, "words").value
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
    assert "GPU 1" in layer(view, "fixed").value


def test_margin_is_that_of_the_picture(make: Any) -> None:
    """The view's margin is the PNG's, so that nothing moves when the picture takes its place."""
    scene = scene_of(training())
    width = int.from_bytes(png.render(scene, scale=1)[16:20], "big")
    assert make(scene).root.layout.padding == f"{(width - scene.width) / 2:g}px"


# -- pages by bqplot ------------------------------------------------------------------------------


def figures(view: Any) -> list[Any]:
    return list(layer(view, "pages").children)


def test_arrays_never_get_shorter(make: Any) -> None:
    """As the window moves over a gap, arrays are finite and none gets shorter, in the same
    figures."""
    recording = with_gap(training(2, end=NOW - 20), NOW - 20, None, "lost")
    view = make(scene_of(recording))
    before, count = figures(view), len(models())
    lengths = [len(figure.marks[0].x) for figure in before]
    for step in range(60):
        view.update(scene_of(recording, step * 0.5))
        now = []
        for figure in figures(view):
            (mark,) = figure.marks
            arrays = [getattr(mark, name) for name in ("x", "y", "width", "color")]
            assert all(np.isfinite(array).all() for array in arrays)
            assert len({len(array) for array in arrays}) == 1
            now.append(len(mark.x))
        assert all(a >= b >= 2 for a, b in zip(now, lengths, strict=True))
        lengths = now
    assert figures(view) == before
    assert len(models()) == count


def one_series(heights: tuple[float | None, ...], style: str = "line", **more: Any) -> Series:
    return Series(style, False, 0, 10.0, 20.0, heights, **more)


def lines(series: Series, low: int = 32) -> Any:
    layout = replace(Layout.of(scene_of(training(1))), columns=120)
    return lines_of((series,), layout, Due(0, low, low + COLUMNS), 2), layout


def drawn(found: Any) -> list[tuple[float, float, float, float]]:
    """Return the segments that are seen: where they begin and end."""
    return [
        (float(found.x[i]), float(found.y[i]) / 16, float(found.x[i + 1]),
         float(found.y[i + 1]) / 16)
        for i in range(len(found.x) - 1) if found.width[i] > 0
    ]


def test_columns_stand_in_their_places() -> None:
    """A column rises from the baseline to its height; equal ones are one, unknown ones none."""
    heights = [0.5] * 120
    heights[36:38] = [None, None]  # type: ignore[list-item]
    found, layout = lines(one_series(tuple(heights), "outer"))
    base = layout.height - 30
    assert drawn(found) == [(6.0, base, 6.0, base + 10), (33.0, base, 33.0, base + 10)]
    assert [w for w in found.width if w > 0] == [12.0, 30.0]


def test_columns_of_others_stand_on_ours() -> None:
    """The share of other processes begins where ours ends."""
    found, layout = lines(one_series((0.75,) * 120, "other", floor=(0.25,) * 120))
    base = layout.height - 30
    assert drawn(found) == [(24.0, base + 5, 24.0, base + 15)]


def test_lines_of_pages_join() -> None:
    """A line ends at a page's edge as high as the next page's begins."""
    heights = tuple((i * 37 % 101) / 100 for i in range(120))
    left, right = (drawn(lines(one_series(heights), low)[0]) for low in (32, 48))
    assert left[-1][2] == COLUMNS * 3
    assert right[0][0] == 0
    assert left[-1][3] == pytest.approx(right[0][1], abs=0.13)


def test_a_gap_in_a_line_stays_open() -> None:
    """A gap of one column stays open, from edge to edge."""
    heights = [0.5] * 120
    heights[40] = None  # type: ignore[call-overload]
    segments = drawn(lines(one_series(tuple(heights)))[0])
    left, right = 8 * 3, 9 * 3
    assert not any(a < right and b > left for a, _, b, _ in segments)
    assert {b for _, _, b, _ in segments} >= {left, COLUMNS * 3}
    assert {a for a, _, _, _ in segments} >= {0, right}


def test_a_page_is_drawn_twice(make: Any, sent: list[Any]) -> None:
    """The next update draws a page again by a point that is not seen: the browser may have
    missed the first, or may not draw new widths by themselves."""
    recording = training(1)
    view = make(scene_of(recording))
    settle(view, scene_of(recording))
    sent.clear()
    index = 0
    while not any(type(w).__name__ == "FlexLine" for w, _ in sent):
        sent.clear()
        index += 1
        view.update(scene_of(recording, index / 2))
    (first,) = (w for w, _ in sent if type(w).__name__ == "FlexLine")
    before = first.y.copy()
    sent.clear()
    view.update(scene_of(recording, index / 2))
    again = [(w, list(state)) for w, state in sent if type(w).__name__ == "FlexLine"]
    assert again == [(first, ["y"])]
    assert (before[:-1] == first.y[:-1]).all()
    assert before[-1] != first.y[-1]
    assert first.width[-1] == 0


def test_new_figures_are_drawn_again(make: Any, sent: list[Any]) -> None:
    """Every page of a new figure is drawn some times more, as it may be laid out late."""
    scene = scene_of(training())
    view = make(scene)
    sent.clear()
    settle(view, scene)
    marks = [w for w, _ in sent if type(w).__name__ == "FlexLine"]
    assert len(marks) >= len(_UNSETTLED) * len(figures(view))


def test_a_table_has_its_pages(make: Any) -> None:
    """Eight GPUs by bqplot: a figure reaches over all panels and takes the room of its columns."""
    scene = scene_of(training(8))
    view = make(scene, "bqplot")
    layout = Layout.of(scene)
    figure = figures(view)[0]
    width = COLUMNS * layout.pitch
    assert figure.layout.width == f"{layout.lefts[-1] + width:g}px"
    assert figure.layout.margin == f"0 {-layout.lefts[-1]:g}px 0 0"
    colours = {int(c) for f in figures(view) for c in f.marks[0].color}
    assert len(colours) >= 3
    assert len(series_of(scene)) > 8
