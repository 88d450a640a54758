"""The memory magics in real kernels with torch's CPU build, for tensors on the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel import matrix
from kernel.matrix import Kernel, Reply
from memory_player import Checks, Player, play
from memory_scenarios import SCENARIOS, Scenario, for_device
from needs import cannot

_VERSIONS = [
    pytest.param(name, marks=[pytest.mark.kernel, *([pytest.mark.matrix] if pins else [])])
    for name, pins in matrix.PINS.items()
    if pins is None or set(matrix.TORCH) <= set(pins)
]
pytestmark = pytest.mark.parametrize("python", _VERSIONS, indirect=True, scope="module")

UNIT = 1 << 20
FAIL = """\
import os, time, weakref
def fail():
    acts = big(3)
    global seen
    seen = weakref.ref(acts)
    out_of_memory()
def cell_hooks():
    return len(get_ipython().events.callbacks['post_run_cell'])"""
LET_GO = """\
from gpumagic.memory.errors_kept import let_errors_go
from gpumagic.memory.roots import Notebook
def let_go():
    let_errors_go(Notebook(get_ipython()))
    return seen() is None"""
INTERRUPT = """\
import signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
def interrupted(line, seconds):
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        get_ipython().run_line_magic('gpufree', line)
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False"""


@pytest.fixture(scope="module")
def kernel(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Start a kernel of a version for all of these tests, with torch and what they use."""
    made = Kernel(python, tmp_path_factory.mktemp("memory"), extension="gpumagic")
    try:
        if made.evaluate("__import__('importlib.util').util.find_spec('torch') is None"):
            cannot("torch is not installed; its build for the CPU will do")
        for line in ("%gpumem --cpu", "%gpufree --cpu", "%gpumem --tensors --cpu"):
            said = made.run(line)
            assert said.status == "ok"
            assert "torch is not imported" in said.text
            assert said.text.count("\n") < 4
        assert made.evaluate("'torch' not in __import__('sys').modules")
        Player(made.client, "cpu", UNIT).begin()
        assert made.run(FAIL).status == "ok"
        (made.folder / "fails.py").write_text("fail()\n")
        yield made
    finally:
        made.stop()


@pytest.fixture
def clean(kernel: Kernel) -> Kernel:
    """Give the kernel with no cycle, no error and no display that holds a tensor."""
    kernel.run("gc.disable()")
    run(kernel, "%gpufree --out")
    return kernel


def run(kernel: Kernel, cell: str) -> Reply:
    """Run a cell whose magics are for the CPU."""
    return kernel.run(for_device(cell, "cpu"))


def panels(reply: Reply) -> list[str]:
    """Return the panels that a cell shows, each on one line."""
    shown = [" ".join(text.split()) for kind, text in reply.outputs if kind == "display_data"]
    return [text for text in shown if re.match(r"! .*(asked for|Out of memory)", text)]


def usage_error(kernel: Kernel, cell: str) -> str:
    """Return the one line of a usage error, which has no traceback."""
    reply = kernel.run(cell)
    assert (reply.status, reply.error) == ("error", "UsageError")
    assert [kind for kind, _ in reply.outputs] == ["stderr"]
    text = reply.text.strip()
    assert "\n" not in text
    return text


# -- who holds it, and what comes back --------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(kernel: Kernel, scenario: Scenario) -> None:
    """The true holder is named with its bytes, and what %gpufree promises goes and stays."""
    kernel.run("gc.disable()")
    checks = Checks()
    play(Player(kernel.client, "cpu", UNIT), scenario, checks)
    assert checks.wrong == []
    assert checks.done > 6


def test_the_python_api(clean: Kernel) -> None:
    """memory_report and free_memory give as data what the magics show, and delete by name."""
    clean.run("x = big(2)")
    clean.run("report = gpumagic.memory_report(cpu=True)\n"
               "found = [(h.kind, h.name, h.bytes) for d in report for h in d.holders]")
    assert clean.evaluate("found") == [("variable", "x", 2 * UNIT)]
    clean.run("freed = gpumagic.free_memory('x', cpu=True)\n"
               "steps = [(s.kind, s.name, s.bytes) for s in freed.steps]")
    assert clean.evaluate("steps") == [("name", "x", {"cpu": 2 * UNIT})]
    assert clean.evaluate("'x' in globals(), freed.after.devices") == (False, ())


def test_tensors_and_holders(clean: Kernel) -> None:
    """--tensors lists the storages by size and --holders the chains, the shortest first."""
    run(clean, "first = big(2)\nbox = {'same': first, 'other': big(1)}")
    lines = run(clean, "%gpumem --tensors 1").text.splitlines()
    assert "the largest 1 of 2 storages" in lines[0]
    assert lines[3].startswith("first")
    said = run(clean, "%gpumem --holders first").text
    assert said.startswith("2 chains of references keep first, the shortest first.")
    assert said.index("1  first") < said.index("2  box['same']")
    assert "to release it: %gpufree --cpu first\n" in said
    run(clean, "%gpufree first box")


# -- the panel ----------------------------------------------------------------------------------


def test_panel(clean: Kernel) -> None:
    """After an out-of-memory error one panel says what was asked for, what was free, and who."""
    clean.run("old = big(4)")
    reply = run(clean, "fail()")
    assert reply.error == "OutOfMemoryError"
    assert [kind for kind, _ in reply.outputs] == ["error", "display_data"]
    (text,) = panels(reply)
    assert "4.0 TiB asked for, 9.7 GiB free" in text
    assert re.search(r"holders are old \(4.0 MiB\), the traceback of \[\d+\] \(3.0 MiB\)", text)
    shown = [m for m in reply.messages if m["msg_type"] == "display_data"][-1]
    assert set(shown["content"]["data"]) == {"text/html", "text/plain"}
    run(clean, "%gpufree old")


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        ("1 / 0", 0),
        ("raise RuntimeError('CUDA error: an illegal memory access')", 0),
        ("raise torch.OutOfMemoryError", 1),
        ("raise RuntimeError('CUDA error: out of memory')", 1),
        ("get_ipython().run_cell('fail()') and None", 1),
        ("get_ipython().run_cell('fail()').raise_error()", 1),
        ("try:\n    fail()\nexcept torch.OutOfMemoryError:\n    pass", 0),
        ("%%time\nfail()", 1),
        ("%run -i fails.py", 1),
        ("%%capture out\nfail()", 1),
    ],
)
def test_one_panel_for_an_error(kernel: Kernel, cell: str, count: int) -> None:
    """There is one panel for each out-of-memory error that a cell ends with, and no other."""
    assert len(panels(kernel.run(cell))) == count
    assert panels(kernel.run("1 + 1")) == []


def test_capture_has_no_panel_in_it(kernel: Kernel) -> None:
    """What %%capture hands over is the cell's own output: the panel stands with the traceback."""
    reply = kernel.run("%%capture out\nprint('mine')\nfail()")
    assert [kind for kind, _ in reply.outputs] == ["error", "display_data"]
    assert kernel.evaluate("out.stdout, len(out.outputs)") == ("mine\n", 0)


def test_panel_above_a_footer_and_a_report(kernel: Kernel) -> None:
    """The panel stands between the traceback and the footer, or the report."""
    kernel.run("%gpureport on")
    reply = kernel.run("time.sleep(0.7)\nfail()")
    kernel.run("%gpureport off")
    kinds = [kind for kind, _ in reply.outputs]
    assert kinds == ["error", "display_data", "display_data"]
    assert "asked for" in reply.outputs[1][1]
    assert "failed: OutOfMemoryError" in reply.outputs[2][1]
    reply = kernel.run("%%gpuprofile\nfail()")
    assert ["asked for" in text for kind, text in reply.outputs if kind == "display_data"] == [
        True, False,
    ]


def test_nothing_of_ours_keeps_the_frames(clean: Kernel) -> None:
    """What remains of a failed frame once IPython and Python let go of the error is not ours.

    The collector is off: what we left in a cycle would stay, as some of IPython 8.12's does.
    """
    clean.run(LET_GO)
    clean.run("%unload_ext gpumagic")
    clean.run("fail()")
    alone = clean.evaluate("let_go()")
    clean.run("%load_ext gpumagic\nn = gc.collect()")
    assert panels(clean.run("fail()"))
    run(clean, "%gpumem --tensors")
    run(clean, "%gpufree --dry-run")
    assert clean.evaluate("seen() is None") is False
    assert clean.evaluate("let_go()") == alone
    clean.run("n = gc.collect()")
    assert clean.evaluate("seen() is None") is True
    assert panels(clean.run("fail()"))
    clean.run("1 / 0")  # from now on nobody has the first error, but those who keep errors
    clean.run("n = gc.collect()")
    assert clean.evaluate("seen() is None") is True


def test_unloading_takes_the_panel_out(kernel: Kernel) -> None:
    """%unload_ext removes the hook and the magics; loading again gives one panel."""
    before = kernel.evaluate("cell_hooks()")
    kernel.run("%unload_ext gpumagic")
    assert kernel.evaluate("cell_hooks()") == before - 2
    reply = kernel.run("fail()")
    assert [kind for kind, _ in reply.outputs] == ["error"]
    kernel.run("%load_ext gpumagic")
    assert kernel.evaluate("cell_hooks()") == before
    assert len(panels(kernel.run("fail()"))) == 1


# -- what cannot be done ------------------------------------------------------------------------


BAD = {
    "%gpumem --tensors 0": "'0' is not a number from 1 to 10,000",
    "%gpumem --tensors 3 --holders x": "give one of --tensors and --holders",
    "%gpumem --snapshot mem.pickle": "CPU build",
    "%gpumem --snapshot mem.pickle --cpu": "leave --cpu out",
    "%gpumem --holders nosuch": "no variable nosuch",
    "%gpumem --holders x.nosuch": "x has no .nosuch",
    "%gpumem x": "unrecognized arguments: x",
    "%gpufree nosuch": "no variable nosuch",
    "%gpufree x nosuch --cpu": "no variable nosuch",
    "%gpufree 1x": "give the name of a variable",
    "%gpufree x[0]": "give the name of a variable",
    "%gpufree In": "In is IPython's, not a variable of yours",
    "%gpufree Out": "--out lets go of displayed values",
    "%gpufree torch": "torch is a module, not a variable",
    "%gpufree 'x": "no closing quotation",
}
"""What cannot be done, and what is said."""


def test_bad_input(kernel: Kernel) -> None:
    """What cannot be done is one line of a usage error, and nothing is deleted or held for it."""
    kernel.run("x = big(1)\nref = weakref.ref(x)\ngc.disable()")
    for line, said in BAD.items():
        assert said in usage_error(kernel, line)
        assert kernel.evaluate("'x' in globals()")
    kernel.run("del x")
    assert kernel.evaluate("ref() is None")


def test_without_cuda(kernel: Kernel) -> None:
    """Without --cpu the magics say in a sentence why there is no GPU memory, and delete nothing."""
    kernel.run("x = big(1)")
    for line in ("%gpumem", "%gpumem --tensors 3", "%gpufree x", "%gpufree --dry-run"):
        reply = kernel.run(line)
        assert reply.status == "ok"
        assert "CPU build" in reply.text
    assert kernel.evaluate("'x' in globals()")
    run(kernel, "%gpufree x")


def test_interrupted(clean: Kernel) -> None:
    """%gpufree that is interrupted anywhere leaves all usable, and the next one ends its work."""
    clean.run(f"{INTERRUPT}\nx = big(3)\nloop = []\nloop += [loop, big(2)]\ndel loop")
    clean.run("cut = [interrupted('--cpu', t / 1000) for t in (1, 10, 30, 60, 120)]")
    assert True in clean.evaluate("cut")
    assert clean.evaluate("gc.isenabled(), 'x' in globals()") == (False, True)
    reply = run(clean, "%gpufree --out")
    assert reply.status == "ok"
    run(clean, "%gpufree x")
    said = run(clean, "%gpumem").text
    assert "there is no tensor" in said
