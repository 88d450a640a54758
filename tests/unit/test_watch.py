"""``%gpuwatch``: what a second one takes over, what is recorded, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError
from traitlets import TraitError
from traitlets.config import Config, DeferredConfigString

from fakes import GPU, HOST_DEVICE, FakeSource
from gpumagic import codec
from gpumagic.errors import SettingError
from gpumagic.magics.watch import line_magics
from gpumagic.sample import Mark
from gpumagic.session import Session
from gpumagic.settings import GpuMagic
from gpumagic.sinks import jsonl
from gpumagic.views import live
from gpumagic.watch import Watch

Magic = Callable[[str], None]


@pytest.fixture
def session() -> Iterator[Session]:
    """Give a session with one GPU and the host."""
    made = Session(make=lambda names: [
        FakeSource("nvml", devices=[GPU]),
        FakeSource("host", period_s=1.0, devices=[HOST_DEVICE]),
    ])
    yield made
    made.close()


@pytest.fixture
def gpuwatch(session: Session) -> Magic:
    """Give the magic as it is in a terminal."""
    extension: Any = SimpleNamespace(settings=session.settings, session=session)
    return line_magics(extension)["gpuwatch"]


class View:
    """A live view that notes what it shows."""

    behind = False
    error = None

    def __init__(self, scene: Any) -> None:
        self.scenes = [scene]
        self.closed = False

    def bundle(self) -> dict[str, Any]:
        return {}

    def update(self, scene: Any) -> None:
        self.scenes.append(scene)

    def lost(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[View]:
    """Make the magic believe in a notebook, and give the views that it makes."""
    made: list[View] = []

    def make_view(scene: Any, renderer: str, extras: Any) -> View:
        if renderer == "bqplot":
            raise SettingError("bqplot cannot be imported")
        made.append(View(scene))
        return made[-1]

    monkeypatch.setattr(live, "make_view", make_view)
    monkeypatch.setattr(Watch, "_in_notebook", lambda self: True)
    monkeypatch.setattr(Watch, "_display", lambda self, bundle, update=False: None)
    return made


def texts(path: Path) -> list[str]:
    """Return the marks in a file, each line of which reads as one of a recording."""
    with path.open(encoding="utf-8") as lines:
        return [record.text for _, record in codec.decode(lines) if isinstance(record, Mark)]


def test_a_plain_second_watch_keeps_recording(
    session: Session, gpuwatch: Magic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second %gpuwatch moves the view only: the recording goes on until %gpuwatch stop."""
    path = tmp_path / "run.jsonl"
    gpuwatch(f"--record {path}")
    session.mark("one")
    gpuwatch("")
    session.mark("two")
    gpuwatch("-w 30")
    session.mark("three")
    gpuwatch("--replay demo")
    session.mark("four")
    assert session.sampler is not None
    capsys.readouterr()
    gpuwatch("stop")
    assert texts(path) == ["one", "two", "three", "four"]
    lines = len(path.read_text().splitlines())
    assert capsys.readouterr().out == f"recorded: {path}, {lines} lines\n"
    assert (session.record, session.sampler) == (None, None)


def test_a_replay_in_the_notebook_keeps_recording(
    session: Session, gpuwatch: Magic, views: list[View], tmp_path: Path
) -> None:
    """The recording goes on while another recording is shown in place of this machine."""
    path = tmp_path / "run.jsonl"
    gpuwatch(f"--record {path}")
    gpuwatch("--replay demo")
    assert session.leases == ("record",)
    assert session.sampler is not None
    session.mark("one")
    gpuwatch("")
    assert sorted(session.leases) == ["record", "watch"]
    gpuwatch("stop")
    assert texts(path) == ["one"]


def test_the_same_file_again_is_one_recording(
    session: Session, gpuwatch: Magic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell with --record that runs again begins its file anew, by whatever name."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.jsonl"
    gpuwatch("--record run.jsonl")
    session.mark("one" * 50_000)  # more than a file's buffer holds
    gpuwatch(f"--record {path}")
    session.mark("two")
    gpuwatch("stop")
    assert texts(path) == ["two"]


def test_another_file_ends_the_recording(
    session: Session, gpuwatch: Magic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A --record of another file ends the first, which is told, and begins the second."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    gpuwatch(f"--record {one}")
    session.mark("one")
    gpuwatch(f"--record {two}")
    assert f"recorded: {one}, " in capsys.readouterr().out
    session.mark("two")
    gpuwatch("stop")
    assert (texts(one), texts(two)) == (["one"], ["two"])


@pytest.mark.parametrize("line", [
    "--record /no/such/folder/x.jsonl", "--replay /no/such/file", "-m nope", "--record ''",
    "--renderer bqplot", "stop --text",
])
def test_a_bad_second_watch_leaves_the_first_and_its_recording(
    session: Session, gpuwatch: Magic, views: list[View], tmp_path: Path, line: str
) -> None:
    """A usage error in a second %gpuwatch leaves the first one and its recording running."""
    path = tmp_path / "run.jsonl"
    gpuwatch(f"--record {path} --renderer svg")
    first, held = session.watch, session.leases
    with pytest.raises(UsageError):
        gpuwatch(line)
    assert (session.watch, session.leases) == (first, held)
    session.mark("after")
    gpuwatch("stop")
    assert texts(path) == ["after"]


def test_options_that_are_not_given_anew_are_kept(
    session: Session, gpuwatch: Magic, views: list[View]
) -> None:
    """A second %gpuwatch keeps the options of the first, but for those that it gives."""
    gpuwatch("-w 30 -m util,mem -i 0.5 --text")
    gpuwatch("")
    kept = session.watch.options
    assert (kept.window_s, kept.strips, kept.interval_s) == (30, ("util", "mem"), 0.5)
    assert kept.text
    gpuwatch("-w 20 --renderer svg")
    now = session.watch.options
    assert (now.window_s, now.strips, now.interval_s) == (20, ("util", "mem"), 0.5)
    assert not now.text
    assert session.recording.periods["nvml"] == 0.5
    gpuwatch("stop")
    gpuwatch("")
    assert session.watch.options.strips is None, "a stop forgets the options"


def test_a_replay_hands_nothing_on(
    session: Session, gpuwatch: Magic, views: list[View]
) -> None:
    """A plain %gpuwatch after a replay shows this machine again."""
    gpuwatch("--replay demo -w 500")
    gpuwatch("")
    assert (session.watch.options.replay, session.watch.options.window_s) == (None, None)


def test_status_names_the_recording(
    session: Session, gpuwatch: Magic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """%gpuwatch status names the file of the recording and its lines."""
    path = tmp_path / "run.jsonl"
    gpuwatch(f"--record {path}")
    session.mark("one")
    capsys.readouterr()
    gpuwatch("status")
    assert f"recording: {path}, " in capsys.readouterr().out


class FullDisk:
    """A file that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        pass

    close = flush


def test_a_recording_that_fails_is_told(
    session: Session, gpuwatch: Magic, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """When the file cannot be written any more, the view, status and stop say so."""
    monkeypatch.setattr(jsonl, "open_for_writing", lambda path: FullDisk())
    gpuwatch("--record full.jsonl")
    assert "full.jsonl cannot be written any more" in (session.watch.scene().notice or "")
    for line in ("status", "stop"):
        capsys.readouterr()
        gpuwatch(line)
        assert "No space left on device" in capsys.readouterr().out


def test_a_replay_in_a_terminal_is_printed_whole(
    session: Session, gpuwatch: Magic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a notebook a recording is printed from its start to its end, and that is all."""
    gpuwatch("--replay demo")
    out = capsys.readouterr().out
    bounds = codec.load(Path(codec.__file__).parent / "data" / "h200-training.jsonl.gz").bounds
    assert bounds is not None
    assert "a recorded H200" in out
    assert "shows it again" not in out
    assert session.watch is None
    gpuwatch("")
    running = session.watch
    gpuwatch("--replay demo")
    assert session.watch is running


@pytest.mark.parametrize(("line", "part"), [
    ("--replay demo -g 0", "--replay shows the GPUs of its recording; leave out --gpus"),
    ("--replay demo -i 1", "--replay shows the readings of its recording; leave out --interval"),
    ("--record ''", r"--record names no file; .*\$variable"),
    ("--replay ' '", r"--replay names no file; .*\$variable"),
    ("stop --record x", "stop takes no options; leave out --record"),
    ("status -w 5", "status takes no options; leave out --window"),
    ("stop --text --speed 2", "leave out --speed, --text"),
])
def test_what_means_nothing_is_refused(gpuwatch: Magic, line: str, part: str) -> None:
    """An empty file name, and an option where nothing is shown, are usage errors."""
    with pytest.raises(UsageError, match=part) as error:
        gpuwatch(line)
    assert "\n" not in str(error.value)


def test_stop_with_nothing_to_stop(gpuwatch: Magic, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a watch %gpuwatch stop says so."""
    gpuwatch("stop")
    assert "No watch is running" in capsys.readouterr().out


def test_closing_the_session_ends_the_recording(
    session: Session, gpuwatch: Magic, tmp_path: Path
) -> None:
    """When the extension goes, the file is complete."""
    path = tmp_path / "run.jsonl"
    gpuwatch(f"--record {path}")
    session.recording.add_mark(Mark(session.clock(), "last"))
    session.close()
    assert texts(path) == ["last"]


def test_settings_reach_the_running_view(
    session: Session, gpuwatch: Magic, views: list[View]
) -> None:
    """window_s and updates_per_s take effect on the view that runs, unless -w was given."""
    session.settings.window_s = 30
    gpuwatch("")
    assert session.watch.scene().caption.startswith("last 30 s")
    session.settings.window_s = 10
    session.settings.updates_per_s = 20
    watch = session.watch
    assert watch.scene().caption.startswith("last 10 s")
    watch._tick()
    assert watch._refresher.period_s == pytest.approx(0.05, abs=0.02)
    gpuwatch("-w 40")
    session.settings.window_s = 20
    assert session.watch.scene().caption.startswith("last 40 s")


@pytest.mark.parametrize(("given", "seconds", "said"), [
    ("all", math.inf, "all"), ("10min", 600.0, "last 10 min"), ("90", 90.0, "last 90 s"),
])
def test_the_setting_of_the_window_is_that_of_the_option(
    session: Session, gpuwatch: Magic, views: list[View], given: str, seconds: float, said: str
) -> None:
    """GpuMagic.window_s takes what -w takes, from %config as from the command line."""
    session.settings.window_s = given
    assert session.settings.window_s == seconds
    gpuwatch("")
    assert session.watch.scene().caption.startswith(said)
    config = Config({"GpuMagic": {"window_s": DeferredConfigString(given)}})
    assert GpuMagic(config=config).window_s == seconds


@pytest.mark.parametrize("given", ["soon", "1", 1, "30d", None])
def test_a_setting_that_is_no_window_is_refused(given: object) -> None:
    """What is no window, and what is out of bounds, is an error, and the setting stays."""
    settings = GpuMagic()
    with pytest.raises(TraitError):
        settings.window_s = given
    assert settings.window_s == 60
