"""What stands under a cell, what is kept of it, and the list of cells."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from fakes import (
    GIB,
    GPU,
    HOST_DEVICE,
    OTHER_GPU,
    START,
    FakeClock,
    FakeSource,
    fill,
    recording_of,
    ticks,
)
from fakes_torch import FakeDevice, FakeTorch, nested_stats
from gpumagic.allocator_look import AllocatorLook
from gpumagic.cell_profiles import Excerpt, profile_of
from gpumagic.diagnosis import Finding, Severity
from gpumagic.errors import DeviceError, SourceUnavailable
from gpumagic.figures import Energy
from gpumagic.footers import Footers, title_of
from gpumagic.magics.report import only_magics
from gpumagic.profiles import Profile
from gpumagic.recording import Recording
from gpumagic.sample import Device, Span, SpanStatus
from gpumagic.session import Session
from gpumagic.sources import Source
from gpumagic.views.footer import build_footer, footer_html, footer_text
from gpumagic.views.markup import code_html
from gpumagic.views.ranking import RankedCell, rank, ranked_cell
from report_examples import feed as feed_curve
from report_examples import (
    gpu,
    host,
    idle,
    losing,
    nvml,
    profile,
    recording,
    slices,
    training,
    working,
)

FINDING = Finding(
    "data_wait", "waste", "The GPU waited.", short="waited for data 5.9 s: try `num_workers=4`"
)


# -- one line -------------------------------------------------------------------------------


def test_a_busy_cell() -> None:
    """A busy cell's line has time, spark, use, peak, energy and its gravest finding."""
    found = training([gpu()])
    line = build_footer(replace(found, findings=(FINDING, FINDING)))
    text = footer_text(line)
    assert text.startswith("  12.4 s  ")
    for part in ("GPU  ", "peak 58.8 GiB", "6.7 kJ", "! waited for data 5.9 s: try num_workers=4"):
        assert part in text
    assert text.count("waited") == 1
    html = footer_html(line)
    assert "<code>num_workers=4</code>" in html
    assert html.count("<svg") == 2
    assert html.count("<i>! </i>") == 1


def test_columns_are_fixed() -> None:
    """Whatever the figures, each column of two lines stands at the same place."""
    long = footer_text(build_footer(training([gpu()])))
    rec = recording(gpu(), host())
    feed_curve(rec, "GPU-0", "nvml", idle, 3.2)
    short = footer_text(build_footer(profile(rec, 3.2)))
    assert long.index("GPU") == short.index("GPU")
    assert long.index("iB") == short.index("iB")
    assert long.index("J") == short.index("J")


def test_a_healthy_cell_has_no_mark() -> None:
    """A finding that says all is well is written without the orange square."""
    well = replace(FINDING, severity="well", short="busy throughout")
    line = build_footer(replace(training([gpu()]), findings=(well,)))
    assert footer_text(line).endswith("  busy throughout")
    assert "<i>! </i>" not in footer_html(line)


def ended(status: SpanStatus, *severities: Severity) -> Profile:
    """Return a cell that ended in some way, with findings."""
    found = replace(training([gpu()]), span=Span(1, START, START + 1, 3, "", status))
    return replace(found, findings=tuple(
        replace(FINDING, severity=severity, short=f"of {severity}") for severity in severities
    ))


def test_a_failed_cell() -> None:
    """A failed cell's line names the exception, escaped."""
    line = build_footer(ended("error"), error="<b>Error")
    assert footer_text(line).endswith("! failed: <b>Error")
    assert "failed: &lt;b&gt;Error" in footer_html(line)


@pytest.mark.parametrize(
    ("status", "severities", "words"),
    [
        ("error", ("failed", "limit"), "! of failed"),
        ("error", ("limit", "waste", "hint"), "! failed: ZeroDivisionError"),
        ("error", ("well",), "! failed: ZeroDivisionError"),
        ("interrupted", ("waste",), "interrupted"),
        ("interrupted", ("well", "hint"), "interrupted"),
        ("ok", ("waste", "well"), "! of waste"),
        ("ok", ("hint", "well"), "of well"),
    ],
)
def test_how_a_cell_ended_comes_first(
    status: SpanStatus, severities: tuple[Severity, ...], words: str
) -> None:
    """Footer and list say how a cell ended before what else was found, but for why it failed."""
    found = ended(status, *severities)
    error = "ZeroDivisionError" if status == "error" else None
    assert footer_text(build_footer(found, error=error)).endswith(f"  {words}")
    assert rank([ranked_cell(found, "", error)]).to_text().endswith(f"  {words}")


@pytest.mark.parametrize(
    ("gpus", "lost", "severities", "words"),
    [
        (1, 1, (), "! GPU 0 could not be read: the GPU is lost"),
        (2, 2, (), "! GPU 0, 1 could not be read: the GPU is lost"),
        (2, 1, ("hint", "well"), "! GPU 0 could not be read: the GPU is lost"),
        (2, 1, ("waste",), "! of waste"),
    ],
)
def test_a_lost_gpu(gpus: int, lost: int, severities: tuple[Severity, ...], words: str) -> None:
    """A GPU lost in the cell is told, with the reason, before what did not hold the cell back."""
    found = replace(losing(gpus, 2.0, 4.0, lost), findings=ended("ok", *severities).findings)
    assert footer_text(build_footer(found)).endswith(f"  {words}")
    assert rank([ranked_cell(found)]).to_text().endswith(f"  {words}")


def test_energy_by_estimate_is_marked() -> None:
    """Joules that rest on power bear a sign in footer and list, those of the counter none."""
    counted = training([gpu()])
    (one,) = counted.summary.gpus
    energy = Energy(762.0, 5.0, 61.0, "no counter", "estimate")
    summary = replace(counted.summary, devices=(replace(one, energy=energy),))
    estimated = replace(counted, summary=summary)
    for shown, sign in ((counted, False), (estimated, True)):
        for text in (
            footer_text(build_footer(shown)), footer_html(build_footer(shown)),
            rank([ranked_cell(shown)]).to_text(), rank([ranked_cell(shown)]).to_html(),
        ):
            assert ("≈" in text) is sign
    line = footer_text(build_footer(estimated))
    assert "≈ 762 J" in line
    assert line.index("J") == footer_text(build_footer(counted)).index("J")
    assert 'title="estimated from power"' in footer_html(build_footer(estimated))


def test_a_mig_slice() -> None:
    """Without GPU-Util, footer and list have SM active, and the busiest slice is found by it."""
    found = slices(0.1, 0.43)
    text = footer_text(build_footer(found))
    assert "▄  SM  43 %  " in text
    assert text.endswith("GPU 0 MIG 2a2b, the busiest of 2")
    assert "  SM 43 %  " in rank([ranked_cell(found)]).to_text()


def test_a_mark_shows_without_styles() -> None:
    """Where styles and classes are stripped, a mark is left as text; with styles it is hidden."""
    line = build_footer(replace(training([gpu()]), findings=(FINDING,)))
    for html in (footer_html(line), rank(CELLS).to_html()):
        style, _, body = html.partition("</style>")
        assert re.search(r" i\{[^}]*font-size:0;overflow:hidden\}", style)
        bare = re.sub(r"<svg.*?</svg>|<[^>]*>", "", body)
        assert re.search(r"! (waited|try)", bare)


def test_what_was_not_measured() -> None:
    """Energy not measured is n/a, and blank where the user has been told that there is none."""
    found = training([gpu()])
    gpus = tuple(replace(g, energy=Energy(reason="no counter")) for g in found.summary.gpus)
    hosts = (found.summary.host,) if found.summary.host is not None else ()
    found = replace(found, summary=replace(found.summary, devices=(*gpus, *hosts)))
    assert "n/a" in footer_text(build_footer(found))
    told = frozenset({"gpu_energy_joules"})
    assert "n/a" not in footer_text(build_footer(found, told=told))


def test_no_gpu() -> None:
    """Without a GPU the line has processor cores and peak RAM and no n/a for GPUs."""
    rec = recording(host())
    feed_curve(rec, "host", "host", working(1), 12.4)
    text = footer_text(build_footer(profile(rec, 12.4)))
    assert "CPU 1.6 cores" in text
    assert "RAM peak 9.5 GiB" in text
    assert "n/a" not in text
    assert "GPU" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0031, "3.1 ms"), (99.9, "99.9 s"), (185, "3:05 min"), (3599.6, "1:00 h"), (7440, "2:04 h")],
)
def test_times_fit_their_column(seconds: float, text: str) -> None:
    """A time is written in at most eight characters."""
    rec = recording(gpu())
    line = footer_text(build_footer(profile(rec, seconds, scene=False)))
    assert line.startswith(f"{text:>8}  ")


# -- which cells ----------------------------------------------------------------------------


class Kept(Footers):
    """Footers over sources that read nothing: the test fills the recording."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

        def make(names: Sequence[str]) -> list[Source]:
            return []

        super().__init__(Session(clock=clock, make=make))
        self.recording = self.session.recording
        self.recording.periods.update({"nvml": 0.1, "allocator": 0.1, "host": 1.0})
        for device in (GPU, HOST_DEVICE):
            self.recording.add_device(device)
        self.session.settings.gpus = "0"

    def run(self, seconds: float, number: int, source: str = "x", **more: object) -> str:
        """Let a cell pass and return its footer's text."""
        self.cell_began(number, source)
        self.clock.advance(seconds)
        line = self.cell_ended("ok", **more)  # type: ignore[arg-type]
        return footer_text(line) if line is not None else ""


@pytest.fixture
def footers() -> Iterator[Kept]:
    made = Kept(FakeClock())
    yield made
    made.session.close()


def test_quiet_cells(footers: Kept) -> None:
    """A cell under half a second that allocated nothing has no footer; it is seen all the same."""
    assert footers.run(1.0, 1) == ""
    footers.start()
    assert footers.run(0.49, 2) == ""
    assert "500 ms" in footers.run(0.5, 3)
    footers.stop()
    assert footers.run(1.0, 4) == ""
    assert [cell.span.number for cell in footers.seen] == [2, 3]
    assert footers.session.leases == ()


def test_short_cells_that_allocate(footers: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short cell gets a footer if torch has allocated in it, with the allocator's exact peak."""
    stats = nested_stats(allocated=1 << 30)
    device = FakeDevice(GPU.id.removeprefix("GPU-"), stats)
    FakeTorch([device]).install(monkeypatch)
    footers.start()
    assert footers.run(0.01, 1) == ""
    device.stats = nested_stats(allocated=2 << 30)
    device.stats["allocation"]["all"]["allocated"] = 7
    text = footers.run(0.01, 2)
    assert "10 ms" in text
    assert "peak 2.0 GiB" in text
    assert text.endswith("too short to say")
    assert footers.run(0.01, 3) == ""


def test_the_look_reads_few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look says whether a count has changed and before CUDA's initialisation touches nothing."""
    clock = FakeClock()
    look = AllocatorLook(recording_of(), clock)
    assert not look.changed()
    device = FakeDevice("x", nested_stats(allocated=5))
    torch = FakeTorch([device], initialised=False)
    torch.install(monkeypatch)
    assert not look.changed()
    torch.initialised = True
    device.stats["allocation"]["all"]["allocated"] = 1
    assert look.changed()
    assert not look.changed()
    assert torch.calls == []


def test_a_measured_cell_has_no_footer(footers: Kept) -> None:
    """A cell whose report is its own affair gets no footer and is not seen twice."""
    footers.start()
    assert footers.run(2.0, 1, kept=False) == ""
    assert not footers.seen


# -- one cell's numbers only ----------------------------------------------------------------


def test_a_short_cell_shows_nothing_of_its_neighbours(footers: Kept) -> None:
    """A 1 ms cell between two that fill the GPU reports neither their memory nor their use."""
    footers.start()
    heavy = {"gpu_memory_used_bytes": 90.0 * GIB, "gpu_utilization_ratio": 0.99}
    footers.run(1.0, 1)
    fill(footers.recording, ticks(START, START + 0.95, 0.05), **heavy)
    footers.run(0.001, 2)
    footers.run(1.0, 3)
    fill(footers.recording, ticks(START + 1.03, START + 2, 0.05), **heavy)
    found = footers.find("2")
    assert found is not None
    (only,) = found.summary.gpus
    assert not any(figure.measured for figure in only.figures.values())
    assert only.energy.joules is None
    assert all(row.device != GPU.id or not row.drawn for row in found.scene.rows)  # type: ignore[union-attr]
    assert "90.0" not in found.to_text()


def test_readings_between_cells_count(footers: Kept) -> None:
    """Readings between a cell and its neighbours are the state at its start and at its end."""
    footers.start()
    footers.run(1.0, 1)
    clock = footers.clock
    fill(footers.recording, [clock.now + 0.05], gpu_memory_used_bytes=3.0 * GIB)
    clock.advance(0.1)
    footers.run(0.001, 2)
    fill(footers.recording, [clock.now + 0.05], gpu_memory_used_bytes=4.0 * GIB)
    clock.advance(0.1)
    footers.run(1.0, 3)
    found = footers.find("2")
    assert found is not None
    figure = found.summary.gpus[0].figure("gpu_memory_used_bytes")
    assert (figure.start, figure.end) == (3.0 * GIB, 4.0 * GIB)


def test_an_excerpt_reads_all_that_a_recording_has() -> None:
    """Every method that reads is one of the excerpt's own; none reads its empty base."""
    writes = {
        "subscribe", "add_device", "append", "open_gap", "add_gap", "begin_span", "end_span",
        "add_span", "add_mark", "forget_threads", "to_pandas",
    }
    reads = {n for n in vars(Recording) if not n.startswith("_") and n not in writes}
    assert reads - set(vars(Excerpt)) == set()
    rec = recording_of()
    fill(rec, ticks(START, START + 1), gpu_power_watts=1.0)
    part = Excerpt(rec, START + 0.35, START + 0.65)
    inside = [pytest.approx(START + n / 10) for n in (4, 5, 6)]
    assert part.series("gpu_power_watts", GPU.id).times == inside
    assert [s.time for s in part.samples()] == inside
    assert part.times("nvml", GPU.id) == inside
    assert part.latest("gpu_power_watts", GPU.id) == (inside[-1], 1.0)
    assert part.bounds == (START + 0.35, START + 0.65)


# -- what is kept ---------------------------------------------------------------------------


def test_memory_is_bounded(footers: Kept) -> None:
    """500 cells and 200 of their profiles are kept; an older profile is made again on request."""
    footers.start()
    for number in range(1, 252):
        footers.run(0.6, number)
    kept = [cell for cell in footers.seen if cell.profile is not None]
    assert len(kept) == 200
    first = footers.find("1")
    assert first is not None
    assert first.number == 1
    for number in range(252, 802):
        footers.run(0.001, number)
    assert len(footers.seen) == 500
    assert footers.find("251") is None
    assert footers.find("801") is not None


def test_nothing_of_the_user_is_kept(footers: Kept) -> None:
    """What is seen of a cell keeps one line of its source and no more of it."""
    class Text(str):
        __slots__ = ("__weakref__",)

    source = Text("first\n" + "y" * 1000)
    gone = weakref.ref(source)
    footers.start()
    footers.run(0.6, 1, source)
    del source
    gc.collect()
    assert gone() is None
    assert footers.seen[0].title == "first"


def test_failed_cells_in_the_list(footers: Kept) -> None:
    """A cell that failed says so in the list: one without a footer, and one with a report too."""
    footers.start()
    footers.run(0.001, 1)
    footers.clock.advance(1)
    footers.cell_began(2, "1 / 0")
    assert footers.cell_ended("error", "ZeroDivisionError") is None
    for number, error in ((3, "KeyError"), (4, None)):
        start = footers.clock.now
        footers.cell_began(number, f"%%gpuprofile\ncell {number}")
        footers.note_measured(number, f"%%gpuprofile\ncell {number}")
        footers.clock.advance(1)
        footers.cell_ended("error" if error else "ok", error, kept=False)
        span = Span(0, start, footers.clock.now, number, "", "error" if error else "ok")
        footers.session.profiles.append(profile_of(footers.session, span, gpus=["0"]))
    words = {cell.label: (cell.words, cell.marked) for cell in footers.ranking().cells}
    assert words["[1]"] == ("", False)
    assert words["[2]"] == ("failed: ZeroDivisionError", True)
    assert words["[3]"] == ("failed: KeyError", True)
    assert not words["[4]"][0].startswith("failed")


def other_gpus(*devices: Device) -> Footers:
    """Return footers over these GPUs and none called 7."""
    def make(names: Sequence[str]) -> list[Source]:
        error = DeviceError("'7' is not a GPU of this machine") if "7" in names else None
        return [FakeSource("nvml", devices=devices, open_error=error)]

    return Footers(Session(make=make))


def test_a_second_start_takes_new_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """On again takes over the GPUs of the settings; a wrong one raises and the old ones stay."""
    footers = other_gpus(GPU, OTHER_GPU)
    session = footers.session
    try:
        session.settings.gpus = "0"
        footers.start()
        session.settings.gpus = "1"
        footers.start()
        assert session.leases == ("footers",)
        footers.cell_began(1, "x")
        footers.cell_ended("ok")
        assert footers.seen[-1].gpus == ("1",)
        session.settings.gpus = "7"
        with pytest.raises(DeviceError, match="'7'"):
            footers.start()
        assert footers.on
        assert session.leases == ("footers",)
        footers.cell_began(2, "x")
        footers.cell_ended("ok")
        assert footers.seen[-1].gpus == ("1",)
    finally:
        session.close()


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        (("gpu_energy_joules",), "; energy is estimated from power (no counter)"),
        (("gpu_energy_joules", "gpu_power_watts"), "n/a: energy (no counter)."),
        (("gpu_utilization_ratio",), "time, SM active, peak memory, energy. "),
        ((), "time, GPU-Util, peak memory, energy. "),
    ],
)
def test_what_footers_will_show(absent: tuple[str, ...], words: str) -> None:
    """The start tells what is n/a, and that energy is an estimate where only power is read."""
    footers = other_gpus(replace(GPU, absent=dict.fromkeys(absent, "no counter")))
    try:
        said = footers.start()
        assert words in said
        assert ("energy (" in said) == ("gpu_power_watts" in absent)
    finally:
        footers.session.close()


def test_find(footers: Kept) -> None:
    """A number or a name finds its newest report; a name that is a word is found as a name."""
    footers.start()
    footers.run(0.6, 1)
    footers.run(0.001, 2)
    # The second cell got no footer: it is asked for by its number.
    assert footers.find().number == 1  # type: ignore[union-attr]
    assert footers.find("2").number == 2  # type: ignore[union-attr]
    assert footers.find("[1]").number == 1  # type: ignore[union-attr]
    assert footers.find("7") is None
    for name, number in (("on", 3), ("step", None), ("step", None)):
        start = footers.clock.now
        footers.clock.advance(1)
        span = Span(0, start, footers.clock.now, number, name, "ok")
        footers.session.profiles.append(profile_of(footers.session, span, gpus=["0"]))
    last: Profile = footers.session.profiles[-1]
    assert footers.find() is last
    assert footers.find("step") is last
    assert footers.find(name="on").number == 3  # type: ignore[union-attr]
    assert footers.find(name="1") is None
    assert footers.names() == ["[1]", "[2]", "on", "step"]


def test_a_machine_without_gpus_is_told_of_once() -> None:
    """Without a GPU, what footers show and why there is no more is one line at their start."""
    class Nothing:
        name = "nvml"
        period_s = 0.1

        def open(self) -> None:
            raise SourceUnavailable("no NVIDIA GPU here")

        def devices(self) -> list[object]:
            return []

        def close(self) -> None: ...

    session = Session(make=lambda names: [Nothing()])  # type: ignore[list-item]
    footers = Footers(session)
    try:
        said = footers.start()
        assert "CPU cores, peak RAM" in said
        assert "no NVIDIA GPU here" in said
        assert "\n" not in said
    finally:
        session.close()


# -- the list -------------------------------------------------------------------------------

CELLS = [
    RankedCell("[1]", "import torch", 2.0),
    RankedCell("[2]", "x = '<b>'", 3.0, 0.5, 4.0 * GIB, 100.0),
    RankedCell("[3]", "train()", 1.0, 0.9, 9.0 * GIB, 300.0, "try `compile`", True),
    RankedCell("[4]", "pass", 0.001),
]


@pytest.mark.parametrize(
    ("by", "order"), [("time", "2134"), ("joules", "3241"), ("peak", "3241")]
)
def test_ranking(by: str, order: str) -> None:
    """Cells are listed from the largest figure down; what was not measured comes last."""
    assert [cell.label for cell in rank(CELLS, by).cells] == [f"[{n}]" for n in order]


def test_the_list_as_text() -> None:
    """The list is a table of aligned columns that says how many cells there are."""
    assert rank(CELLS, "joules", 3).to_text() == (
        "3 of 4 cells by energy\n"
        "cell               time  GPU-Util     peak  energy\n"
        "[3]   train()     1.0 s      90 %  9.0 GiB   300 J  ! try compile\n"
        "[2]   x = '<b>'   3.0 s      50 %  4.0 GiB   100 J\n"
        "[4]   pass       1.0 ms       n/a      n/a     n/a"
    )


def test_the_list_as_html() -> None:
    """The list's HTML escapes code, marks findings and cuts long lines."""
    html = rank([*CELLS, RankedCell("[5]", "y" * 60, 9.0)]).to_html()
    assert "x = &#x27;&lt;b&gt;&#x27;" in html
    assert "<i>! </i>try <code>compile</code>" in html
    assert f">{'y' * 39}…<" in html
    assert rank([]).to_text() == "No cell has been seen yet."
    assert "<table" not in rank([]).to_html()


def test_ranked_figures_come_from_the_profile(footers: Kept) -> None:
    """The list has the figures of the cell's own report."""
    footers.start()
    start = footers.clock.now
    feed = ticks(start + 0.02, start + 2.0)
    fill(footers.recording, feed, **{k: v for k, v in nvml(8.0).items() if "used" not in k})
    footers.run(2.0, 1, "%%time\ntrain()")
    (cell,) = footers.ranking().cells
    assert (cell.label, cell.title, cell.util) == ("[1]", "train()", pytest.approx(0.99))
    assert cell.peak is None


@pytest.mark.parametrize(
    ("source", "title"),
    [("\n\n  x = 1\ny", "x = 1"), ("%%time\nx", "x"), ("%%bash", "%%bash"), ("", "")],
)
def test_titles(source: str, title: str) -> None:
    """A cell is listed under its first line that is neither blank nor a cell magic."""
    assert title_of(source) == title


@pytest.mark.parametrize(
    ("source", "only"),
    [
        ("%gpureport on", True), ("# a\n\n%gpureport 3\n%gpumem", True), ("gpureport list", True),
        ("%gpureport on\nx = 1", False), ("gpumem = 3", False), ("gpumem(3)", False),
        ("%gpureporter", False), ("%time x", False), ("# a", False), ("", False),
        ("%%gpureport\nx", False),
    ],
)
def test_cells_with_nothing_but_our_magics(source: str, only: bool) -> None:
    """A cell is the extension's own if it has nothing but its line magics and comments."""
    assert only_magics(source, ["gpureport", "gpumem"]) is only


def test_a_lone_backtick_in_a_footer_stays_one() -> None:
    """Code needs two backticks; a single one in a name is shown as it is."""
    assert code_html("try `a` and b`c") == "try <code>a</code> and b`c"
    assert code_html("`<") == "`&lt;"
