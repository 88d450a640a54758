"""A watch that is paused, given another window, moved along, and what it says and in which form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError

import gpumagic
from fakes import GIB, GPU, HOST_DEVICE, FakeClock, FakeSource
from gpumagic.errors import SettingError
from gpumagic.magics.watch import line_magics
from gpumagic.options import parse_window
from gpumagic.sample import Sample
from gpumagic.session import Session
from gpumagic.views import live
from gpumagic.views.live_display import DisplayView, PictureView
from gpumagic.watch import Watch
from gpumagic.watch_content import DEMO, WatchOptions, all_s


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock()


@pytest.fixture
def session(clock: FakeClock) -> Iterator[Session]:
    """Give a session with one GPU and the host, of which nothing is read by itself."""
    made = Session(clock=clock, make=lambda names: [
        FakeSource("nvml", devices=[GPU]), FakeSource("host", period_s=1.0, devices=[HOST_DEVICE]),
    ])
    yield made
    made.close()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Give the watches that are made a page, and return what is displayed there."""
    bundles: list[Any] = []
    monkeypatch.setattr(
        Watch, "_display", lambda self, bundle, update=False: bundles.append((update, bundle))
    )
    monkeypatch.setattr(live, "make_view", lambda scene, renderer, extras: Widget(renderer))
    return bundles


class Widget:
    """A view in a page that does nothing."""

    behind = False
    error = None

    def __init__(self, renderer: str) -> None:
        self.renderer = renderer

    def bundle(self) -> dict[str, Any]:
        return {"widget": True}

    def update(self, scene: Any) -> None:
        pass

    def lost(self) -> bool:
        return False

    def close(self) -> None:
        pass


def feed(session: Session, seconds: float, **values: float) -> None:
    """Let time go on while the GPU is read ten times a second."""
    clock: Any = session.clock
    for _ in range(round(seconds * 10)):
        clock.advance(0.1)
        session.recording.append(Sample(clock(), GPU.id, "nvml", values))


def replay(session: Session, **options: Any) -> Watch:
    """Return a watch of the recording that comes along."""
    return Watch(session, WatchOptions(replay="demo", **options))


def test_a_pause_holds_the_picture_while_recording_goes_on(session: Session) -> None:
    """A paused watch shows the same stretch; what came meanwhile is there once it goes on."""
    watch = Watch(session, WatchOptions())
    feed(session, 10, gpu_utilization_ratio=0.5)
    watch.pause()
    held = watch.scene()
    assert (held.state, watch.status().paused) == ("paused", True)
    feed(session, 5, gpu_utilization_ratio=1.0)
    assert (watch.scene().end, watch.scene().rows[0].value) == (held.end, "50")
    watch.pause(False)
    assert (watch.scene().state, watch.scene().rows[0].value) == ("recording", "100")
    assert len(session.recording.series("gpu_utilization_ratio", GPU.id)) >= 150
    watch.stop()


def test_a_second_pause_holds_the_first_moment(session: Session, clock: FakeClock) -> None:
    """Pausing what is paused does not move it on."""
    watch = Watch(session, WatchOptions())
    watch.pause()
    end = watch.scene().end
    clock.advance(30)
    watch.pause()
    assert watch.scene().end == end
    watch.stop()


def test_a_window_is_shown_at_once(session: Session) -> None:
    """Another window is that of the next scene, and what the controls are told."""
    watch = Watch(session, WatchOptions())
    feed(session, 1, gpu_utilization_ratio=0.5)
    watch.show_window(600)
    scene = watch.scene()
    assert scene.end - scene.start == pytest.approx(600, rel=0.01)
    assert watch.status().window_s == 600
    watch.show_window(None)
    assert watch.status().window_s is None
    assert watch.scene().caption.startswith("all,")
    watch.stop()


def test_all_reaches_back_to_the_first_reading(session: Session) -> None:
    """The window "all" holds the whole recording in a round length that stays for a while."""
    watch = Watch(session, WatchOptions(window_s=math.inf))
    feed(session, 100, gpu_utilization_ratio=0.5)
    lengths = set()
    for _ in range(10):
        feed(session, 1, gpu_utilization_ratio=0.5)
        scene = watch.scene()
        lengths.add(round(scene.end - scene.start, 3))
        assert scene.start <= session.recording.bounds[0]  # type: ignore[index]
    assert lengths == {120.0}
    watch.stop()


def test_round_lengths_leave_little_empty() -> None:
    """A window of all is never shorter than what there is, and at most a third is empty."""
    for seconds in (61, 100, 1000, 5000, 20_000, 100_000, 500_000, 2_000_000):
        assert seconds <= all_s(seconds) <= 1.5 * seconds
    assert all_s(3) == 60


@pytest.mark.parametrize(("text", "seconds"), [
    ("90", 90), ("10min", 600), ("1h", 3600), ("1.5 h", 5400), ("2d", 172_800), ("45s", 45),
    ("ALL", math.inf),
])
def test_windows_have_units(text: str, seconds: float) -> None:
    """A window is seconds, or a number with its unit, or all."""
    assert parse_window(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-5", "0", "1e9h", "1.2.3", "nan"])
def test_what_is_no_window_is_refused(text: str) -> None:
    """Anything else is a one-line error."""
    with pytest.raises(SettingError) as error:
        parse_window(text)
    assert "\n" not in str(error.value)


def test_a_replay_is_paused_and_moved_along(session: Session, clock: FakeClock) -> None:
    """A replay goes at its speed, stands while it is paused, and goes on from where it is put."""
    watch = replay(session, speed=2.0)
    first = watch.scene().end
    clock.advance(5)
    assert watch.scene().end - first == pytest.approx(10, abs=0.6)
    watch.pause()
    clock.advance(60)
    assert watch.scene().end - first == pytest.approx(10, abs=0.6)
    assert watch.scene().state == "paused"
    watch.seek(0.5)
    assert watch.status().position == pytest.approx(0.5)
    watch.pause(False)
    clock.advance(1)
    assert watch.status().position > 0.5  # type: ignore[operator]
    clock.advance(1000)
    assert watch.status().position == 1
    watch.seek(0.0)
    clock.advance(1)
    assert watch.status().position < 0.2, "one that is over goes on from where it is put"
    watch.seek(7.0)
    assert watch.status().position == 1
    watch.stop()


def test_a_replay_begins_where_it_is_told(session: Session) -> None:
    """--at SECONDS is counted from the start of the recording."""
    start, end = gpumagic.load(DEMO).bounds  # type: ignore[misc]
    watch = replay(session, at_s=40.0)
    assert watch.status().position == pytest.approx(40 / (end - start), abs=0.01)
    watch.stop()


def test_an_alert_is_the_line_below(session: Session) -> None:
    """What goes wrong stands in the notice with its figure in bold, is told once, and is over."""
    told: list[Any] = []
    forget = gpumagic.on_alert(told.append)
    watch = Watch(session, WatchOptions())
    quiet = {"gpu_utilization_ratio": 0.9, "gpu_memory_used_bytes": 60 * GIB}
    full = quiet | {"gpu_memory_used_bytes": 138.5 * GIB}
    for values in (quiet, full):
        for _ in range(20):
            feed(session, 1, **values)
            watch._judge()
    scene = watch.scene()
    assert scene.notice is not None
    assert "GPU 0" in scene.notice
    assert [row.name for row in scene.rows if row.bold] == ["mem"]
    assert [(alert.kind, alert.state) for alert in told] == [("near-full", "begun")]
    watch.stop()
    forget()
    assert [alert.state for alert in told] == ["begun", "over"]


def test_a_replay_tells_nobody(session: Session, clock: FakeClock) -> None:
    """An alert of a recording is shown, and is no news for on_alert."""
    told: list[Any] = []
    forget = gpumagic.on_alert(told.append)
    watch = replay(session)
    notices = set()
    for _ in range(90):
        clock.advance(1)
        watch._judge()
        notices.add(watch.scene().notice)
    watch.stop()
    forget()
    assert any("memory grows" in notice for notice in notices if notice)
    assert told == []


@pytest.mark.parametrize(("front", "view"), [("headless", PictureView), ("colab", DisplayView)])
def test_no_widget_where_none_moves(
    session: Session, shown: list[Any], front: str, view: type
) -> None:
    """A notebook that nobody looks at has a picture, and Colab an output that is replaced."""
    session.settings.front_end = front
    watch = Watch(session, WatchOptions())
    watch.show()
    assert isinstance(watch._view, view)
    watch.stop()
    assert set(shown[-1][1]) >= {"image/png", "text/plain"}


@pytest.mark.parametrize(("front", "asked", "renderer"), [
    ("vscode", None, "svg"), ("vscode", "bqplot", "bqplot"), ("page", None, "auto"),
    ("page", "svg", "svg"),
])
def test_the_renderer_goes_by_the_front_end(
    session: Session, shown: list[Any], front: str, asked: str | None, renderer: str
) -> None:
    """Where bqplot's front end has to be fetched, SVG is drawn, unless another is named."""
    session.settings.front_end = front
    watch = Watch(session, WatchOptions(renderer=asked))
    watch.prepare()
    assert watch._view.renderer == renderer
    watch.stop()


def test_a_cell_that_ends_refreshes_the_picture(session: Session, shown: list[Any]) -> None:
    """In a notebook that nobody looks at, each end of a cell brings the picture up to date."""
    session.settings.front_end = "headless"
    session.watch = watch = Watch(session, WatchOptions())
    watch.show()
    before = len(shown)
    session.cell_began(7)
    feed(session, 3, gpu_utilization_ratio=0.5)
    session.cell_ended("error")
    assert len(shown) > before
    assert "[7]" in shown[-1][1]["text/plain"]


@pytest.mark.parametrize(("line", "part"), [
    ("--at 5", "--at is for a recording; give --replay FILE too"),
    ("--speed 5", "--speed is for a recording; give --replay FILE too"),
    ("--replay demo --at -1", "--at is -1"),
    ("--replay demo --at nan", "--at is nan"),
    ("--sidecar --text", "leave out --text"),
    ("-w soon", "'soon' is no window"),
    ("pause -w 5", "pause takes no options"),
])
def test_what_means_nothing_is_refused(session: Session, line: str, part: str) -> None:
    """Options without a meaning are usage errors in one line."""
    extension: Any = SimpleNamespace(settings=session.settings, session=session)
    with pytest.raises(UsageError, match=part) as error:
        line_magics(extension)["gpuwatch"](line)
    assert "\n" not in str(error.value)


def test_pause_and_resume_are_magics(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """%gpuwatch pause and resume do what the control does, and say when there is no watch."""
    extension: Any = SimpleNamespace(settings=session.settings, session=session)
    gpuwatch = line_magics(extension)["gpuwatch"]
    gpuwatch("pause")
    assert "No watch is running" in capsys.readouterr().out
    gpuwatch("")
    gpuwatch("pause")
    assert session.watch.status().paused
    gpuwatch("resume")
    assert not session.watch.status().paused


def test_a_moved_view_keeps_its_alerts(
    session: Session, shown: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second %gpuwatch tells no alert as over that still holds."""
    told: list[Any] = []
    forget = gpumagic.on_alert(told.append)
    session.settings.front_end = "page"
    monkeypatch.setattr("gpumagic.watch.Refresher.start", lambda self: None)
    extension: Any = SimpleNamespace(settings=session.settings, session=session)
    gpuwatch = line_magics(extension)["gpuwatch"]
    gpuwatch("")
    for _ in range(20):
        feed(session, 1, gpu_utilization_ratio=0.9, gpu_memory_used_bytes=138.5 * GIB)
        session.watch._judge()
    gpuwatch("-w 10min")
    for _ in range(5):
        feed(session, 1, gpu_utilization_ratio=0.9, gpu_memory_used_bytes=138.5 * GIB)
        session.watch._judge()
    assert session.watch.scene().notice is not None
    assert [(alert.kind, alert.state) for alert in told] == [("near-full", "begun")]
    gpuwatch("stop")
    forget()


def test_only_functions_are_told() -> None:
    """What cannot be called is refused at once."""
    with pytest.raises(TypeError, match="on_alert takes a function"):
        gpumagic.on_alert(5)  # type: ignore[arg-type]


def test_status_says_what_is_shown(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """%gpuwatch status tells the window and the interval."""
    extension: Any = SimpleNamespace(settings=session.settings, session=session)
    gpuwatch = line_magics(extension)["gpuwatch"]
    gpuwatch("-w 10min")
    capsys.readouterr()
    gpuwatch("status")
    assert "watch: last 10 min 00 s, every 0.2 s" in capsys.readouterr().out
