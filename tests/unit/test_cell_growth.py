"""Live memory from run to run of the same cell: when it is told, with which names, at what cost."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from cell_examples import Value, cell, memory
from fakes import GIB, GPU, OTHER_GPU, START, FakeClock
from fakes_torch import MIB, FakeDevice, FakeTorch, nested_stats
from fresh_shell import fresh_shell
from gpumagic.cell_growth import CellGrowth, growth_of, key_of
from gpumagic.diagnosis import Finding, RunGrowth, Thresholds, diagnose
from gpumagic.diagnosis.growing import GrownHolder
from gpumagic.figures import DeviceSummary, Energy, Figure, Summary, Throttling
from gpumagic.grown_names import held_of, names_grown
from gpumagic.memory.live import Holder, HolderKind, LiveStorage
from gpumagic.memory.scan import Scan
from gpumagic.sample import Device, Span, SpanStatus
from gpumagic.session import current

LIMITS = Thresholds()


def run_of(
    start: float | None, end: float | None, *, status: SpanStatus = "ok", number: int = 1,
    devices: Sequence[Device] = (GPU,),
) -> Summary:
    """Return the summary of a run with live bytes at its start and end, on some GPUs."""
    figure = Figure("torch_allocated_bytes", start=start, end=end)
    return Summary(Span(0, START, START + 1, number, "", status), tuple(
        DeviceSummary(device, {figure.metric: figure}, Energy(), Throttling(), None)
        for device in devices
    ))


def holder(
    name: str, size: int, storages: int = 1, kind: HolderKind = "variable"
) -> Holder:
    return Holder(kind, tuple(name.split(", ")), "", size, storages)


def found(
    *holders: Holder, tensors: Sequence[tuple[str, str, int]] = (), graphs: Sequence[str] = (),
    cut: str = "",
) -> Scan:
    """Return a search of one GPU; ``tensors`` are names, holders and bytes."""
    storages = tuple(
        LiveStorage(name, "", "cuda:0", size, size, (), "float32", 1, of)
        for name, of, size in tensors
    )
    return Scan(
        {"cuda:0": holders}, {"cuda:0": storages}, {}, {"cuda:0": tuple(graphs)}, cut, 0, 0.0
    )


class Cells:
    """Runs of cells over live bytes of one GPU, with searches that are told."""

    def __init__(self, *scans: Scan, seconds: float = 0.1) -> None:
        self.clock = FakeClock()
        self.seconds = seconds
        self.scans = list(scans)
        self.searches: list[int] = []
        self.live = 0.0
        self.runs = 0
        self.kept = CellGrowth(self._search, self.clock)

    def _search(self) -> Scan | None:
        self.searches.append(self.runs)
        self.clock.advance(self.seconds)
        return self.scans.pop(0) if len(self.scans) > 1 else next(iter(self.scans), None)

    def run(self, *gains: float, source: str = "x", status: SpanStatus = "ok") -> RunGrowth | None:
        """Run a cell once for each gain in MiB; return what is said after the last run."""
        said: dict[str, RunGrowth] = {}
        for gain in gains:
            self.runs += 1
            start, self.live = self.live, self.live + gain * MIB
            said = self.kept.note(source, run_of(start, self.live, status=status), LIMITS)
        return said.get(GPU.id)


# -- which runs are told --------------------------------------------------------------------


def test_three_growths_in_a_row_are_told() -> None:
    """From the third growth on it is told over how many runs live memory grew, and by how much."""
    cells = Cells()
    assert cells.run(10) is None  # the first run: there is nothing to compare it with
    assert cells.run(10) is None
    assert cells.run(10) is None
    assert cells.run(10) == RunGrowth(3, 30 * MIB)
    assert cells.run(10) == RunGrowth(4, 40 * MIB)


@pytest.mark.parametrize(
    "gains",
    [
        (10, 0, 0, 0, 0),
        (10, 10, 10, 0, 10, 10),
        (10, 10, 10, -1, 10, 10),
        (10, 0.9, 0.9, 0.9, 0.9),
        (4000, 3.9, 3.9, 3.9, 3.9),
    ],
    ids=["a constant", "a run without", "a fall", "under 1 MiB", "under 0.1 %"],
)
def test_what_does_not_only_grow_is_not_told(gains: tuple[float, ...]) -> None:
    """A run that takes nothing or too little, or gives back, ends the growths in a row."""
    assert Cells().run(*gains) is None


def test_how_much_counts_is_a_threshold() -> None:
    """Where a threshold is lower, a smaller growth is told; no growth is never told."""
    low = Thresholds(run_growth_bytes=0.0, run_growth_ratio=0.0)
    kept = Cells().kept
    for live in (1.0, 2.0, 3.0):
        kept.note("x", run_of(live - 1, live), low)
    assert kept.note("x", run_of(3.0, 4.0), low)
    assert not kept.note("x", run_of(4.0, 4.0), low)


def test_a_variable_that_is_made_anew_is_not_told() -> None:
    """A cell that takes again what was deleted before it ends where it did."""
    cells = Cells()
    for _ in range(5):
        assert cells.run(100) is None
        cells.live -= 100 * MIB


def test_what_other_cells_took_is_not_this_ones() -> None:
    """Where memory grew between the runs, and not in them, nothing is told of the cell."""
    cells = Cells()
    for _ in range(6):
        assert cells.run(0) is None
        cells.live += 100 * MIB


def test_only_what_the_runs_took_up_is_counted() -> None:
    """Of a growth between two ends, the cell's is what it rose by above its start and that end."""
    cells = Cells()
    for _ in range(4):
        said = cells.run(10)
        cells.live += 100 * MIB
    assert said == RunGrowth(3, 30 * MIB)


def test_a_fall_between_runs_is_not_growth() -> None:
    """What was released since the last run and is taken again is no growth, whoever took more."""
    cells = Cells()
    for _ in range(6):
        assert cells.run(10) is None  # makes anew what is released below
        cells.live -= 10 * MIB
        cells.run(0, source="seen in between")
        cells.live += 20 * MIB
    # What is released and taken again with 10 MiB more is growth, by that much.
    cells = Cells()
    for _ in range(4):
        said = cells.run(30)
        cells.live -= 20 * MIB
        cells.run(0, source="seen in between")
    assert said == RunGrowth(3, 30 * MIB)


def test_another_text_is_another_cell() -> None:
    """Cells are told apart by their text, wherever they stand among others."""
    cells = Cells()
    for _ in range(3):
        cells.run(10, source="a")
        cells.run(10, source="b")
    assert cells.run(10, source="a") is not None
    assert cells.run(10, source="c") is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("step()", "step()\n  \n", True),
        ("step()", "%%gpuprofile -n 'a b'\nstep()", True),
        ("step()", "%%gpuprofile\n\nstep()", True),
        ("step()", "step(2)", False),
        ("if a:\n    b", "if a:\n  b", False),
        ("step()", "%%gpuprofiler\nstep()", False),
        ("step()", "%%time\nstep()", False),
    ],
)
def test_which_texts_are_the_same_cell(one: str, other: str, same: bool) -> None:
    """White space at the end and the line that measures a cell do not make it another one."""
    assert (key_of(one) == key_of(other)) is same


def test_runs_that_fail_are_left_out() -> None:
    """A run that failed or was interrupted neither counts nor ends what was seen."""
    cells = Cells()
    cells.run(10, 10)
    assert cells.run(10, status="error") is None
    cells.run(10)
    assert cells.run(10, status="interrupted") is None
    assert cells.run(10) == RunGrowth(3, 30 * MIB)


def test_runs_that_were_not_read_are_left_out() -> None:
    """Without live bytes at both ends of a run, and without a GPU, nothing is compared."""
    cells = Cells()
    cells.run(10, 10, 10)
    for start, end in ((None, 90.0 * MIB), (30.0 * MIB, None), (None, None)):
        assert cells.kept.note("x", run_of(start, end), LIMITS) == {}
    assert cells.kept.note("x", run_of(0.0, 1.0, devices=()), LIMITS) == {}
    assert cells.run(10) == RunGrowth(3, 30 * MIB)


def test_each_gpu_is_compared_with_itself() -> None:
    """What grows on one GPU is told of that one only."""
    kept = CellGrowth(lambda: None)
    said: dict[str, RunGrowth] = {}
    for n in range(4):
        one = run_of(n * GIB, (n + 1) * GIB)
        other = run_of(GIB, GIB, devices=(OTHER_GPU,))
        said = kept.note("x", Summary(one.span, (*one.devices, *other.devices)), LIMITS)
    assert list(said) == [GPU.id]


def test_a_run_that_allocates_nothing_ends_the_growths() -> None:
    """A short run in which nothing was allocated is a run that did not grow."""
    cells = Cells()
    cells.run(10, 10, 10)
    cells.kept.still("x")
    cells.kept.still("unseen")
    assert cells.run(10, 10, 10) is None
    assert cells.run(10) == RunGrowth(3, 30 * MIB)
    assert len(cells.kept) == 1


def test_what_is_kept_is_bounded() -> None:
    """The 200 cells that ran last are kept; one that ran before them begins anew."""
    cells = Cells()
    cells.run(10, 10, 10, source="old")
    for number in range(200):
        cells.run(1, source=str(number))
    assert len(cells.kept) == 200
    assert cells.run(10, source="old") is None


def test_a_measured_cell_is_compared_once() -> None:
    """The cell that was expected in this thread is compared when it ends, another one is not."""
    cells = Cells()
    for number in range(1, 5):
        cells.kept.expect(number, "%%gpuprofile\nx")
        for other in (99, number, number):
            run = run_of((number - 1) * GIB, number * GIB, number=other)
            said = cells.kept.measured(run, LIMITS)
            if other == number == 4 and said:
                assert said[GPU.id].runs == 3
                return
            assert not said
    pytest.fail("nothing was told")


# -- names ----------------------------------------------------------------------------------


def test_names_are_searched_for_at_growths_only() -> None:
    """The first search is at the second growth in a row, the next at each later growth."""
    cells = Cells(found())
    cells.run(10, 10)
    assert cells.searches == []
    cells.run(10, 10, 10)
    assert cells.searches == [3, 4, 5]
    cells.run(0, 0)
    assert cells.searches == [3, 4, 5]


def test_a_slow_search_is_not_repeated_soon() -> None:
    """After a search of more than 0.5 s there is none for ten runs; the names found stay."""
    cells = Cells(
        found(holder("a", 10 * MIB)), found(holder("a", 110 * MIB)), seconds=0.51
    )
    said = cells.run(*[10] * 12)
    assert cells.searches == [3]
    assert said is not None
    assert said.compared == 0
    said = cells.run(10)
    assert cells.searches == [3, 13]
    assert said is not None
    assert (said.compared, said.compared_bytes) == (10, 100 * MIB)
    later = cells.run(10)
    assert later is not None
    assert later.holders == said.holders
    assert len(cells.searches) == 2


def test_the_names_that_grew() -> None:
    """Two searches compared give the holders that grew, the most first, with new tensors."""
    cells = Cells(
        found(
            holder("model, optimizer", 900 * MIB, 9), holder("losses", 30 * MIB, 3),
            tensors=[(f"losses[{n}]", "losses", 10 * MIB) for n in range(3)],
        ),
        found(
            holder("model", 600 * MIB, 6), holder("optimizer", 300 * MIB, 3),
            holder("losses", 40 * MIB, 4), holder("step", 1 * MIB),
            tensors=[(f"losses[{n}]", "losses", 10 * MIB) for n in range(4)],
        ),
    )
    said = cells.run(11, 11, 11, 11)
    assert said is not None
    assert (said.compared, said.compared_bytes) == (1, 11 * MIB)
    assert said.holders == (
        GrownHolder("losses", "variable", 10 * MIB, 1, ("losses[3]",)),
        GrownHolder("step", "variable", MIB, 1),
    )
    assert not said.mostly_unnamed


def test_what_grew_elsewhere_is_not_named() -> None:
    """A name that took more than the cell's runs did has grown in other cells."""
    names = names_grown(
        held_of(found(holder("losses", 10 * MIB)), "cuda:0"),
        held_of(found(holder("others", GIB), holder("losses", 20 * MIB)), "cuda:0"),
        10 * MIB,
    )
    assert [one.name for one in names.holders] == ["losses"]


def test_displayed_values_are_one_name() -> None:
    """Each run that displays a value adds to Out, which is one name; so are cycles."""
    before, after = (
        held_of(found(
            *[holder(f"Out[{n}]", 10, 1, "output") for n in range(count)],
            *[holder("cycle", 10, 1, "cycle") for _ in range(count)],
            holder("not reachable by a name", 1000 * count, 1, "unknown"),
            tensors=[(f"Out[{n}]", f"Out[{n}]", 10) for n in range(count)],
        ), "cuda:0")
        for count in (2, 5)
    )
    names = names_grown(before, after, 60)
    assert [(one.name, one.bytes) for one in names.holders] == [
        ("Out", 30), ("cycles of garbage", 30)
    ]
    assert names.holders[0].names == ("Out[2]", "Out[3]", "Out[4]")


def test_a_graph_that_gets_longer_names_its_holder() -> None:
    """Where autograd keeps what grew, the holder whose tensors with a graph got more is named."""
    before = held_of(found(holder("losses", 12, 3), holder("out", 8), graphs=["losses", "out"]),
                     "cuda:0")
    after = held_of(
        found(holder("losses", 16, 4), holder("out", 8), graphs=["losses", "out"],
              tensors=[("losses[3]", "losses", 4)]),
        "cuda:0",
    )
    names = names_grown(before, after, 100 * MIB)
    assert names.holders == ()
    assert names.graphs == (GrownHolder("losses", "variable", 4, 1, ("losses[3]",), True),)
    same = names_grown(after, after, 100 * MIB)
    assert [one.name for one in same.graphs] == ["losses", "out"]


def test_a_search_that_fails_costs_no_report() -> None:
    """Without a search, or with one that raises, the growth is told without names."""
    cells = Cells()

    def fail() -> Scan:
        raise RuntimeError("no")

    cells.kept.search = fail
    assert cells.run(10, 10, 10, 10) == RunGrowth(3, 30 * MIB)


def test_a_search_holds_nothing() -> None:
    """What is kept of a search is strings and numbers: the tensors go when their names do."""
    torch = pytest.importorskip("torch")
    from gpumagic.memory.scan import scan
    from gpumagic.memory.tensors import TensorReader
    from notebook_cells import cells

    with cells() as made:
        made.run("losses = [torch.ones(3000, requires_grad=True) * 2 for _ in range(3)]")
        watched = weakref.ref(made.space["losses"][0])
        reader = TensorReader(torch, "cpu")
        before = held_of(scan(made.notebook(), reader, timeout_s=60.0), "cpu")
        made.run("losses += [torch.ones(3000, requires_grad=True) * 2]")
        after = held_of(scan(made.notebook(), reader, timeout_s=60.0), "cpu")
        made.run("del losses; gc.collect()")
        assert watched() is None
    (grown,) = names_grown(before, after, 12000).holders
    assert grown == GrownHolder("losses", "variable", 12000, 1, ("losses[3]",), True)


# -- what is said ---------------------------------------------------------------------------


def finding_of(growth: RunGrowth, **figures: Value) -> Finding:
    made = cell(12.0, allocated=20 * GIB, **figures)
    return next(
        f for f in diagnose(made.recording, made.summary, growth={GPU.id: growth})
        if f.rule == "run-growth"
    )


def grew(size: str, runs: int) -> str:
    """Return how a footer says it."""
    return f"memory grew by {size} in {runs} runs of this cell"


NAMED = RunGrowth(
    3, 1230 * MIB, 1, 410 * MIB,
    (GrownHolder("outputs", "variable", 410 * MIB, 1, ("outputs[41]",)),),
)
GRAPH = RunGrowth(
    5, 500 * MIB, 3, 300 * MIB,
    graphs=(GrownHolder("losses", "variable", 12, 3, ("losses[2]", "losses[3]", "losses[4]"),
                        True),),
)


def test_a_growth_with_a_name() -> None:
    """The finding says how much in how many runs, who has it, and what to do."""
    finding = finding_of(NAMED)
    assert finding.lead == (
        "Live memory grew in each of the last 3 runs of this cell, by 1.2 GiB in all."
    )
    assert finding.evidence == "More than a run before: `outputs` 410.0 MiB (`outputs[41]`)."
    assert finding.advice.startswith("Clear it between the runs")
    assert "`%gpumem --tensors`" in finding.advice
    assert finding.short == f"{grew('1.2 GiB', 3)} (`outputs`): `%gpumem --tensors`"
    assert finding.severity == "limit"
    assert finding.figures["bytes_per_run"] == 410 * MIB


def test_a_growth_by_a_graph() -> None:
    """Where autograd keeps what grew, that is said with the holder, and .item() advised."""
    finding = finding_of(GRAPH)
    assert finding.evidence == (
        "No name leads to what grew: autograd keeps what `losses` (`losses[2]`, `losses[3]`, ...)"
        " came from."
    )
    assert "`.item()`" in finding.advice
    assert finding.short == (
        f"{grew('500.0 MiB', 5)} (`losses`): append `.item()` or `.detach()`"
    )


@pytest.mark.parametrize(
    ("growth", "evidence", "short"),
    [
        (RunGrowth(3, GIB), "", f"{grew('1.0 GiB', 3)}: `%gpumem --tensors`"),
        (
            RunGrowth(3, GIB, 1, GIB),
            "No name leads to what grew: autograd or C++ keeps it.",
            f"{grew('1.0 GiB', 3)}: `%gpumem --tensors`",
        ),
        (
            RunGrowth(3, GIB, 1, GIB, cut=True), "The search for what grew was cut short.",
            f"{grew('1.0 GiB', 3)}: `%gpumem --tensors`",
        ),
        (
            RunGrowth(
                4, GIB, 2, GIB, graphs=(GrownHolder("total", "variable", 0, 0, (), True),)
            ),
            "No name leads to what grew: autograd keeps what `total` came from, or C++ does.",
            f"{grew('1.0 GiB', 4)} (`total`): append `.item()` or `.detach()`",
        ),
        (
            RunGrowth(
                4, GIB, 2, GIB, (GrownHolder("Out", "output", GIB, 2, ("Out[3]", "Out[4]")),)
            ),
            "More than 2 runs before: `Out` 1.0 GiB (`Out[3]`, `Out[4]`).",
            f"{grew('1.0 GiB', 4)} (`Out`): `%gpufree --out`",
        ),
        (
            RunGrowth(3, GIB, 1, GIB, (GrownHolder("cycles of garbage", "cycle", GIB, 2),)),
            "More than a run before: cycles of garbage 1.0 GiB.",
            f"{grew('1.0 GiB', 3)} (cycles of garbage): `%gpufree`",
        ),
        (
            RunGrowth(
                3, GIB, 1, GIB, (GrownHolder("d['`']", "variable", 256 * MIB, 1),),
            ),
            "More than a run before: `d[''']` 256.0 MiB."
            " No name leads to the other 768.0 MiB: autograd or C++ keeps it.",
            f"{grew('1.0 GiB', 3)}: `%gpumem --tensors`",
        ),
    ],
    ids=["not searched", "no name", "cut short", "a running sum", "Out", "cycles", "a part"],
)
def test_what_is_said_of_a_growth(growth: RunGrowth, evidence: str, short: str) -> None:
    """Each way to keep memory is said as what it is, with code between pairs of backticks."""
    finding = finding_of(growth)
    assert finding.evidence == evidence
    assert finding.short == short
    assert finding.message.count("`") % 2 == 0
    assert finding.lead.endswith(".")


def test_a_growth_speaks_for_a_staircase() -> None:
    """A cell that climbs in itself and from run to run gets one finding of the two."""
    def climbing(t: float) -> float:
        return (20 + int(max(0.0, t) / 0.5) + (6 if t % 0.5 > 0.25 else 0)) * GIB

    made = cell(allocated=climbing, util=0.98, sm=0.94, waterfall=memory(44), used=45 * GIB)
    assert "staircase" in made.rules
    assert "run-growth" not in made.rules
    findings = diagnose(
        made.recording, made.summary, waterfalls=made.waterfalls, growth={GPU.id: NAMED}
    )
    rules = [finding.rule for finding in findings]
    assert rules[0] == "run-growth"
    assert "staircase" not in rules
    assert "healthy" not in rules


# -- in a shell -----------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """Give a GPU of torch's whose live bytes a test sets."""
    device = FakeDevice(GPU.id.removeprefix("GPU-"), nested_stats(allocated=GIB))
    FakeTorch([device]).install(monkeypatch)
    return device


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Give a fresh shell with the extension, without history on the disk."""
    with fresh_shell(tmp_path, monkeypatch) as made:
        yield made
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)


def give(shell: InteractiveShell, device: FakeDevice) -> None:
    """Give the shell ``take(mib)``, after which torch has so much more."""
    def take(mib: float) -> None:
        stats = device.stats
        more = nested_stats(allocated=stats["allocated_bytes"]["all"]["current"] + int(mib * MIB))
        more["allocation"]["all"]["allocated"] = stats["allocation"]["all"]["allocated"] + 1
        device.stats = more

    shell.user_ns["take"] = take


def rules_of(profile: Any) -> list[str]:
    return [finding.rule for finding in profile.findings]


def test_measured_cells_without_footers(shell: InteractiveShell, fake: FakeDevice) -> None:
    """Where footers are off, the runs of a measured cell are compared, and unloading drops all."""
    give(shell, fake)
    told = []
    for mib in (10, 10, 10, 10, 0):
        shell.user_ns["mib"] = mib
        shell.run_cell("%%gpuprofile -q -o p\ntake(mib)", store_history=True)
        told.append("run-growth" in rules_of(shell.user_ns["p"]))
        # Not measured: it is not compared.
        shell.run_cell("take(0)", store_history=True)
    assert told == [False, False, False, True, False]
    kept = weakref.ref(growth_of(current()))
    assert len(kept()) == 1  # type: ignore[arg-type]
    shell.run_line_magic("unload_ext", "gpumagic")
    gc.collect()
    assert kept() is None


def test_a_footer_names_what_grew(
    shell: InteractiveShell, fake: FakeDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    """With footers on, the fourth run says what grew, its report too, and others say nothing."""
    give(shell, fake)
    shell.run_line_magic("gpureport", "on")
    growth_of(current()).search = Cells(
        found(holder("losses", 30 * MIB, 3)),
        found(holder("losses", 40 * MIB, 4), tensors=[("losses[3]", "losses", 10 * MIB)]),
    ).kept.search
    shell.run_cell("pass", store_history=True)
    capsys.readouterr()
    for _ in range(3):
        shell.run_cell("take(10)", store_history=True)
        shell.run_cell("take(5); take(-5)", store_history=True)
    assert "memory grew" not in capsys.readouterr().out
    number = shell.execution_count
    shell.run_cell("take(10)", store_history=True)
    shown = capsys.readouterr().out
    assert "! memory grew by 30.0 MiB in 3 runs of this cell (losses): " in shown
    shell.run_cell("take(5); take(-5)", store_history=True)
    assert "memory grew" not in capsys.readouterr().out
    shell.run_line_magic("gpureport", str(number))
    report = capsys.readouterr().out
    assert "Live memory grew in each of the last 3 runs of this cell" in report
    assert "losses[3]" in report
