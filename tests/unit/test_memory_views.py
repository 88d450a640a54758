"""What holds memory and what was released, as text and as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

import memory_examples as examples
from gpumagic.memory.graph import RootKind
from gpumagic.memory.live import DeviceMemory, Holder, MemoryReport, PinnedCache, Remainder
from gpumagic.memory.naming import Name
from gpumagic.memory.release import Freed, Step
from gpumagic.units import GIB, MIB
from gpumagic.views.memory_freed import build_free
from gpumagic.views.memory_html import free_html, holders_html, memory_html, tensors_html
from gpumagic.views.memory_lists import build_chains, build_tensors
from gpumagic.views.memory_model import Section, build_memory
from gpumagic.views.memory_parts import STYLES, parts_of
from gpumagic.views.memory_text import free_text, holders_text, memory_text, tensors_text
from gpumagic.views.memory_words import detail_of, release_of, shape_text, short
from gpumagic.waterfall import PARTS
from html_page import Page
from memory_examples import CUDA, gib

HOSTILE = "<script>alert('x')</script>\"&`\n\t\x1b" * 5


def hostile() -> MemoryReport:
    """Return a report in which every text is an attack and every shape is huge."""
    holder = Holder("variable", (HOSTILE,) * 9, HOSTILE, GIB, 1, (HOSTILE,), f"%gpufree {HOSTILE}")
    storage = replace(
        examples.storages()[0], name=HOSTILE, where=HOSTILE, dtype=HOSTILE, also=(HOSTILE,) * 9,
        shape=(2**62,) * 64,
    )
    stats = replace(examples.stats(), name=HOSTILE, outside_torch_text=HOSTILE)
    device = examples.device(
        holders=(holder, replace(holder, kind="traceback"), replace(holder, kind="cycle")),
        storages=(storage,), allocator=stats, remainders=(Remainder(HOSTILE, GIB, HOSTILE),),
        pinned=PinnedCache(GIB, 2, (HOSTILE,) * 9),
        children=(replace(examples.with_children()[0].children[0], command=HOSTILE),),
    )
    return examples.report(device, cut=HOSTILE, notes=(HOSTILE,))


def hostile_freed() -> Freed:
    report = hostile()
    steps = (Step("name", HOSTILE, HOSTILE, {CUDA: GIB}), Step("ipc", HOSTILE, HOSTILE, {CUDA: 1}))
    return Freed(steps, report, report, asked=(HOSTILE,), still={HOSTILE: (HOSTILE,)},
                 reason=HOSTILE)


def chains_of(write: Callable[..., str]) -> Callable[[], str]:
    return lambda: write("batch[3]", examples.chains())


NASTY = Name(HOSTILE, HOSTILE, (HOSTILE,) * 99)
VIEWS: dict[str, tuple[Callable[[], str], Callable[[], str]]] = {
    "dry run": (lambda: free_text(examples.dry_run()), lambda: free_html(examples.dry_run())),
    "released": (lambda: free_text(examples.released()), lambda: free_html(examples.released())),
    "asked": (lambda: free_text(examples.asked()), lambda: free_html(examples.asked())),
    "memory": (
        lambda: memory_text(examples.with_children(), examples.allocator()),
        lambda: memory_html(examples.with_children(), examples.allocator()),
    ),
    "eight gpus": (
        lambda: memory_text(examples.report(), examples.allocator(*map(examples.stats, range(8)))),
        lambda: memory_html(examples.report(), examples.allocator(*map(examples.stats, range(8)))),
    ),
    "many": (lambda: memory_text(examples.many()), lambda: memory_html(examples.many())),
    "cpu": (lambda: memory_text(examples.on_cpu()), lambda: memory_html(examples.on_cpu())),
    "tensors": (
        lambda: tensors_text(examples.report(), 4), lambda: tensors_html(examples.report(), 4),
    ),
    "chains": (chains_of(holders_text), chains_of(holders_html)),
    "empty": (lambda: memory_text(MemoryReport()), lambda: memory_html(MemoryReport())),
    "hostile": (lambda: memory_text(hostile()), lambda: memory_html(hostile())),
    "hostile tensors": (lambda: tensors_text(hostile()), lambda: tensors_html(hostile())),
    "hostile release": (lambda: free_text(hostile_freed()), lambda: free_html(hostile_freed())),
    "hostile chains": (
        lambda: holders_text(HOSTILE, [NASTY], cut=HOSTILE),
        lambda: holders_html(HOSTILE, [NASTY], cut=HOSTILE),
    ),
}


def sections(view: object) -> dict[str, Section]:
    return {s.title: s for block in view.blocks for s in block.sections}  # type: ignore[attr-defined]


# -- all views ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
def test_text_fits_and_holds_no_control_codes(name: str) -> None:
    """Text is at most 100 characters wide, has no stray spaces, marks of code or control codes."""
    text = VIEWS[name][0]()
    for line in text.split("\n"):
        assert len(line) <= 100, line
        assert line == line.rstrip()
        assert line.isprintable()
    assert "`" not in text or "hostile" in name
    assert "None" not in text


@pytest.mark.parametrize("name", VIEWS)
def test_html_is_one_closed_block_without_script(name: str) -> None:
    """HTML is well formed, loads nothing, runs nothing and names no class outside its own."""
    html = VIEWS[name][1]()
    page = Page(html)
    assert html.startswith('<div class="gph">')
    assert not page.tags & {"script", "img", "link", "iframe", "a"}
    assert not re.search(r"url\(|@import|\bNone\b|\bnan\b", html)
    assert len(html.encode()) < 26_000


@pytest.mark.parametrize("name", [n for n in VIEWS if "hostile" not in n])
def test_html_and_text_say_the_same(name: str) -> None:
    """Each figure of the text is in the HTML, and each of the HTML in the text."""
    text, html = (write() for write in VIEWS[name])
    figures = [set(re.findall(r"\d+\.\d+", shown)) for shown in (text, Page(html).text)]
    assert figures[0] == figures[1]


def test_styles_are_our_own() -> None:
    """Every rule of the style begins with the class of the block."""
    style = re.findall(r"<style>(.*)</style>", free_html(examples.dry_run()))[0]
    rules = [rule for rule in re.sub(r"\{[^}]*\}", "|", style).split("|") if rule]
    assert all(part.startswith(".gph") for rule in rules for part in rule.split(","))


def test_all_parts_of_memory_can_be_drawn() -> None:
    """Each part that a waterfall can have has a style."""
    assert set(PARTS) <= set(STYLES)


# -- %gpufree ----------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_go_and_what_stays() -> None:
    """Sections add up, the cache's row is what was cached before, and free memory follows."""
    view = build_free(examples.dry_run())
    found = sections(view)
    assert list(found) == ["Will be released", "Stays"]
    released = found["Will be released"]
    assert (released.number, released.unit) == ("61.0", "GiB")
    assert [(row.name, row.detail, row.number) for row in released.rows] == [
        ("traceback of [17]", "frame `train_step()`: `acts`, `loss`", "41.2"),
        ("`Out[7]`", "value shown by [7], also `_`", "7.6"),
        ("cycle", "`Trainer` ⇄ `LossLog`, unreachable", "6.4"),
        ("cached blocks", "torch, 5.8 of 7.0", "5.8"),
    ]
    stays = found["Stays"]
    assert stays.number == "63.7"
    assert [(row.name, row.detail, row.number, row.command) for row in stays.rows] == [
        ("`model`, `optimizer`", "your variables", "36.6", ""),
        ("`batch`", "your variable, list of 512", "24.8", "%gpufree batch"),
        ("cached block", "pinned by `batch[3]`", "1.2", ""),
        ("not reachable from Python", "autograd or C++", "1.1", ""),
    ]
    bars = view.blocks[0].bars
    assert bars is not None
    assert [(bar.label, bar.free) for bar in bars.bars] == [("before", "9.7"), ("after", "70.7")]
    assert [(key.name, key.number) for key in bars.keys] == [
        ("stays", "63.7"), ("to release", "61.0"), ("context", "0.7"),
        ("other processes", "4.1"), ("driver", "0.6"), ("free", ""),
    ]
    for bar in bars.bars:
        assert sum(piece.share for piece in bar.pieces) == pytest.approx(1, abs=1e-3)
    assert view.blocks[0].device == "GPU 0 · H200 · cuda:0"
    assert view.note == "dry run, nothing released"


def test_bars_of_both_sections_share_one_scale() -> None:
    """The longest bar is that of the largest row of all, the others follow from it."""
    found = sections(build_free(examples.dry_run()))
    assert found["Will be released"].rows[0].share == 1
    assert found["Stays"].rows[0].share == pytest.approx(36.6 / 41.2, abs=1e-3)


def test_displayed_values_that_stay_are_spoken_of() -> None:
    """Where displays hold memory on, it says why they were left and what releases them."""
    text = free_text(examples.released())
    assert "\nDisplayed values stay, since one can be the only copy: %gpufree --out rel" in text
    assert "Displayed values" not in free_text(examples.released(outputs=True))


def test_what_is_lost_for_the_debugger_is_said() -> None:
    """A released traceback takes %debug with it."""
    assert "\n%debug has nothing to look at any more." in free_text(examples.released())
    assert "Afterwards, %debug has" in free_text(examples.dry_run())
    assert "%debug" not in free_text(examples.asked())


def test_a_deleted_name_whose_memory_is_held_on() -> None:
    """It says who keeps the memory of a name and what would release that."""
    text = free_text(examples.asked())
    assert "Nothing was released.\nmodel deleted; still held by traceback of [17]: %gpufree" in text
    foreseen = replace(
        examples.asked(), dry_run=True, still={"model": ("model, optimizer",)},
        after=examples.report(examples.device(holders=(examples.MODEL,))),
    )
    assert "model would go, but is still held by optimizer" in free_text(foreseen)


def test_an_idle_device_has_one_line() -> None:
    """A GPU on which nothing is held is named, and has no block."""
    text = free_text(examples.asked())
    assert text.count("cuda:1") == 1
    assert "Nothing held on GPU 1 · H200 · cuda:1." in text


def test_a_search_that_was_cut_says_so_once() -> None:
    """What both searches left out stands once."""
    text = free_text(examples.asked())
    assert text.count("Not complete: not all that your variables hold was looked through.") == 1


def test_several_devices_have_a_block_each() -> None:
    """Of several GPUs each has its own heading, sections and bars."""
    other = DeviceMemory("cuda:1", (replace(examples.BATCH, bytes=GIB),),
                         allocator=examples.stats(1, allocated=1, cached=0, used=1.7, others=0))
    both = examples.report(examples.device(), other)
    text = free_text(Freed((), both, both, dry_run=True))
    assert [line for line in text.split("\n") if line.startswith("GPU ")] == [
        "GPU memory by holder  dry run, nothing released",
        "GPU 0 · H200 · cuda:0", "GPU 1 · H200 · cuda:1",
    ]
    assert text.count("\nbefore ") == 2


def test_what_torch_keeps_of_what_is_released() -> None:
    """Tensors can go while their memory stays in the cache: then no cached row is made up."""
    steps = (Step("cycle", "cycle", "", {CUDA: gib(6.4)}),
             Step("cache", "cached blocks", "", {CUDA: GIB}))
    freed = Freed(steps, examples.report(), examples.report(), dry_run=True)
    assert [row.name for row in sections(build_free(freed))["Will be released"].rows] == ["cycle"]
    assert "5.4 GiB of what is released will stay in torch's cache." in free_text(freed)


def test_what_cannot_be_foreseen_is_not_drawn() -> None:
    """Where torch does not tell its blocks, a dry run shows no bars and says why."""
    steps = (Step("cycle", "cycle", "", {CUDA: GIB}),)
    text = free_text(Freed(steps, examples.report(), examples.report(), dry_run=True))
    assert "What would go back to the driver is n/a" in text
    assert "\nbefore" not in text


def test_a_device_that_torch_has_left() -> None:
    """After all of it went there is no figure of the device, and the bars follow from before."""
    before = examples.report(examples.device(holders=(examples.CYCLE,), remainders=(), pinned=None))
    steps = (Step("cycle", "cycle", "", {CUDA: gib(117.7)}),
             Step("cache", "cached blocks", "", {CUDA: gib(124.7)}))
    text = free_text(Freed(steps, before, MemoryReport(reason="torch holds no GPU memory")))
    assert re.search(r"after .* 134\.4 GiB free", text)
    assert "Stays" not in text


def test_nothing_can_be_done_without_torch() -> None:
    """The reason stands alone."""
    reason = "torch is not imported in this process"
    text = free_text(Freed((), MemoryReport(reason=reason), MemoryReport(), reason=reason))
    assert text == f"GPU memory by holder\nNothing was released.\n{reason}"


def test_use_that_the_driver_does_not_tell_is_not_drawn() -> None:
    """Without the driver's figures there are no bars, and it says why."""
    stats = examples.stats(used=None, total=None, context=None, text="no NVIDIA GPU here")
    device = examples.device(allocator=stats)
    text = free_text(Freed((), examples.report(device), examples.report(device)))
    assert "\nbefore" not in text
    assert "The device's use and free memory are n/a: no NVIDIA GPU here." in text


def test_on_the_cpu_there_is_neither_cache_nor_driver() -> None:
    """Titles say what is counted; there are no bars of a device and no cached blocks."""
    report = examples.on_cpu()
    steps = (Step("traceback", "traceback of [17]", "", {"cpu": 300 * MIB}),)
    text = free_text(Freed(steps, report, report))
    assert text.startswith("CPU memory of tensors by holder")
    assert "%gpufree --cpu batch" in text
    assert "300.0  MiB" in text
    assert not re.search("cache|before|n/a", text)


# -- %gpumem -----------------------------------------------------------------------------------


def test_the_waterfall_adds_up_to_what_nvidia_smi_shows() -> None:
    """Each part lies where the one above it ends, from the driver's figure to live tensors."""
    used = sections(build_memory(examples.report(), None))["Used"]
    assert used.number == "129.5"
    assert [(row.name, row.number) for row in used.rows] == [
        ("other processes", "4.1"), ("context", "0.7"), ("cached", "7.0"),
        ("live tensors", "117.7"),
    ]
    assert sum(float(row.number) for row in used.rows) == pytest.approx(129.5)
    for above, below in zip(used.rows, used.rows[1:], strict=False):
        assert below.start + below.share == pytest.approx(above.start)
    assert used.rows[-1].start == pytest.approx(0)


def test_parts_add_up_to_the_device_whatever_is_told() -> None:
    """No figure that is missing or late makes a part negative or the sum wrong."""
    for more in ({}, {"context": None}, {"context": None, "others": None}, {"used": 3.0},
                 {"driver": None}, {"others": 90.0}):
        parts = parts_of(examples.stats(**more))  # type: ignore[arg-type]
        assert all(size > 0 for size in parts.values())
        assert sum(parts.values()) == pytest.approx(gib(139.8), abs=2 * MIB)
    assert parts_of(examples.stats(used=None)) == {}
    assert parts_of(None) == {}


def test_what_is_not_told_apart_is_named_so() -> None:
    """Where the driver does not list processes, one part stands for all outside torch."""
    stats = examples.stats(context=None, others=None, text="everything but torch")
    text = memory_text(examples.report(examples.device(allocator=stats)))
    assert re.search(r"\noutside torch +this process's context, and other.* 4\.8 ", text)
    assert "outside torch: everything but torch." in text
    assert "other processes  " not in text


def test_use_without_a_driver_has_no_figure() -> None:
    """Without the driver, used is n/a, and torch's own parts are still there."""
    stats = examples.stats(used=None, total=None, context=None, text="no NVIDIA GPU here")
    used = sections(build_memory(examples.report(examples.device(allocator=stats)), None))["Used"]
    assert used.number == "n/a"
    assert [row.name for row in used.rows] == ["cached", "live tensors"]


def test_many_small_holders_are_one_row() -> None:
    """The eight largest stand alone; the rest is counted and summed, and remainders stay."""
    rows = sections(build_memory(examples.many(), None))["Live tensors"].rows
    assert [row.name for row in rows[-2:]] == ["13 more", "not reachable from Python"]
    assert rows[-2].number == "2.4"
    assert len(rows) == 10


def test_one_of_many_is_not_a_hairline() -> None:
    """Of many holders those of next to nothing are counted, however few are large."""
    small = tuple(Holder("variable", (f"x{n}",), "", MIB, 1) for n in range(20))
    report = examples.report(
        examples.device(holders=(examples.MODEL, *small), allocator=None, remainders=())
    )
    rows = sections(build_memory(report, None))["Live tensors"].rows
    assert [(row.name, row.number) for row in rows] == [
        ("`model`, `optimizer`", "36.6"), ("20 more", "<0.1"),
    ]


def test_allocated_memory_that_nobody_explains_has_a_row() -> None:
    """What torch has allocated beyond all that was found is never left out."""
    device = examples.device(holders=(examples.MODEL,), remainders=())
    (row,) = [
        row for row in sections(build_memory(examples.report(device), None))["Live tensors"].rows
        if row.name == "no tensor found"
    ]
    assert row.number == "81.1"


def test_children_are_named_and_left_alone() -> None:
    """A child has its PID, its command and its bytes, which can be untold."""
    text = memory_text(examples.with_children())
    assert "Child processes, yours to end" in text
    assert re.search(r"PID 4242 +python -c from.* 2\.1 ", text)
    assert re.search(r"PID 4243 +not told by the driver: python.* n/a\n", text)


def test_the_allocators_figures_stand_below() -> None:
    """The allocator's table is there with all of its rows, in both forms."""
    report = examples.allocator()
    assert str(report) in memory_text(examples.report(), report)
    assert report._repr_html_() in memory_html(examples.report(), report)


def test_a_report_without_torch_is_its_reason() -> None:
    """Where there is nothing to tell, the reason is all."""
    text = memory_text(MemoryReport(reason="torch is not installed in this environment"))
    assert text == "GPU memory\ntorch is not installed in this environment"


# -- lists -------------------------------------------------------------------------------------


def test_the_largest_storages_are_listed() -> None:
    """As many as asked for are shown, with what pins more than it uses and other names."""
    table = build_tensors(examples.report(), 4)
    assert table.view.note == "the largest 4 of 1,420 storages, 15.0 of 116.6 GiB"
    assert [(row.name, row.shape, row.size) for row in table.rows] == [
        ("`batch[0]`", "512 × 2048 × 2048", "8.0 GiB"),
        ("`acts[0]`", "64 × 4096 × 4096", "4.0 GiB"),
        ("`model.layers[0].weight`", "16384 × 32768", "2.0 GiB"),
        ("`corner`", "32 × 32", "1.0 GiB"),
    ]
    assert [row.asides for row in table.rows] == [
        (), ("with its autograd graph",), ("also `optimizer.param_groups[0]['params'][0]`",),
        ("4.0 KiB of 1.0 GiB used",),
    ]
    assert not table.several


def test_devices_are_told_apart_where_there_are_several() -> None:
    """The table has a column for the device only if there are two."""
    other = DeviceMemory("cuda:1", (examples.BATCH,),
                         (replace(examples.storages()[0], device="cuda:1"),), 1)
    text = tensors_text(examples.report(examples.device(), other))
    assert re.search(r"bytes +device\n", text)
    assert re.search(r"8\.0 GiB +cuda:1\n", text)
    assert "device" not in tensors_text(examples.report())


@pytest.mark.parametrize(("shape", "own", "text"), [
    ((), 4, "scalar"), ((), 4096, "n/a"), ((2, 3), 24, "2 × 3"),
    ((1,) * 12, 4, "1 × 1 × 1 × 1 × … × 1"),
])
def test_shapes_in_words(shape: tuple[int, ...], own: int, text: str) -> None:
    """A scalar says so, a nested tensor has no shape, and a long one is cut in the middle."""
    assert shape_text(shape, own) == text


def test_chains_are_trees_with_what_would_release_them() -> None:
    """The shortest chain is first, each step below the other, then the command."""
    text = holders_text("batch[3]", examples.chains())
    assert text.split("\n")[:13] == [
        "3 chains of references keep batch[3], the shortest first.",
        "",
        "1  batch[3]",
        "   batch",
        "   └ [3]",
        "   to release it: %gpufree batch",
        "",
        "2  acts[0] in train_step(), [17] line 3",
        "   traceback of [17]",
        "   └ acts in train_step(), [17] line 3",
        "     └ [0]",
        "   to release it: %gpufree",
        "",
    ]
    page = Page(holders_html("batch[3]", examples.chains()))
    assert "traceback of [17]\n└ acts in train_step(), [17] line 3\n  └ [0]" in page.texts


def test_commands_for_chains_can_be_given() -> None:
    """Commands that are told go with their chains through the sorting."""
    built = build_chains("x", examples.chains(), ["", "%gpufree a", "%gpufree b"])
    assert [chain.command for chain in built.chains] == ["%gpufree b", "%gpufree a", ""]


def test_no_chain_has_its_reason() -> None:
    """Where nothing leads to a value, the sentence says so, or why."""
    assert holders_text("x", []) == "No reference leads to x."
    assert holders_text("x", [], reason="torch is not imported") == "torch is not imported"


@pytest.mark.parametrize(("root", "kind", "command"), [
    ("batch", "variable", "%gpufree batch"), ("Out[7]", "output", "%gpufree --out"),
    ("_", "output", "%gpufree --out"), ("traceback of [17]", "traceback", "%gpufree"),
    ("Trainer", "orphan", "%gpufree"), ("numpy", "module", ""),
    ("x in f(), [3] line 1", "frame", ""),
])
def test_what_would_release_a_root(root: str, kind: RootKind, command: str) -> None:
    """Only what is the notebook's or the user's has a command."""
    assert release_of(Name(root, "", (root,), kind=kind)) == command


@pytest.mark.parametrize(("kind", "detail", "marked"), [
    ("frame", "running; holds acts, x['a']", "running; holds `acts`, `x['a']`"),
    ("traceback", "frames f(): a; g(): b, c", "frames `f()`: `a`; `g()`: `b`, `c`"),
    ("variable", "your variable, list of 3", "your variable, list of 3"),
    ("unknown", "held by a Foo: a, b", "held by a Foo: a, b"),
    ("", "autograd keeps what `loss` came from", "autograd keeps what `loss` came from"),
])
def test_names_in_details_are_code(kind: str, detail: str, marked: str) -> None:
    """Functions and variables in a detail are marked, other words are not."""
    assert detail_of(kind, detail) == marked


def test_long_names_keep_both_ends() -> None:
    """A name that is too long is cut in its middle, and never longer than asked for."""
    name = short("model." + "block." * 30 + "weight", 40)
    assert len(name) <= 40
    assert name.startswith("model.")
    assert name.endswith("weight")
