"""What the notebook keeps is let go of, what the user's names hold is not."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpumagic.errors import SettingError
from gpumagic.memory.free import free
from gpumagic.memory.release import Freed
from notebook_cells import Cells, cells

pytest.importorskip("torch")

BIG = (
    "probes = []\n"
    "def big(n):\n    t = torch.zeros(n)\n    probes.append(weakref.ref(t))\n    return t\n"
)
ERRORS = (
    "def inner():\n    acts = [big(777)]\n    raise ValueError('x')\n"
    "def outer():\n    loc = big(555)\n"
    "    try: inner()\n    except ValueError as e: raise RuntimeError('y') from e\n"
)


@pytest.fixture
def cell() -> Iterator[Cells]:
    with cells() as made:
        made.run("gc.disable()", BIG, ERRORS)
        yield made


def release(cell: Cells, *names: str, **options: Any) -> Freed:
    """Free without hurry; a dry run before it has to leave everything as it is."""
    before = [probe() is not None for probe in cell.space["probes"]]
    foreseen = free(cell.notebook(), names, cpu=True, dry_run=True, timeout_s=60.0, **options)
    assert foreseen.dry_run
    assert [probe() is not None for probe in cell.space["probes"]] == before
    done = free(cell.notebook(), names, cpu=True, timeout_s=60.0, **options)
    assert foreseen.released_bytes("cpu") == done.released_bytes("cpu")
    return done


def alive(cell: Cells) -> list[bool]:
    """Tell which tensors that cells made are alive, in their order."""
    return [probe() is not None for probe in cell.space["probes"]]


@pytest.mark.parametrize(
    "code",
    [
        "outer()",
        "try: outer()\nexcept RuntimeError: raise KeyError('while handling')",
        "for n in range(3):\n    try: outer()\n    except RuntimeError as e: first = e\n"
        "    finally: del first\nouter()",
    ],
)
def test_errors_go_with_those_that_led_to_them(cell: Cells, code: str) -> None:
    """The frames of an error and of its causes and contexts let go of their tensors."""
    cell.run(code)
    assert any(alive(cell))
    done = release(cell)
    assert not any(alive(cell))
    assert next(step.kind for step in done.steps if step.bytes) == "traceback"
    assert any(step.debug_gone for step in done.steps)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups are new in Python 3.11")
def test_groups_of_errors(cell: Cells) -> None:
    """The members of an exception group let go as well."""
    cell.run("try: outer()\nexcept RuntimeError as e: raise ExceptionGroup('all', [e])")
    assert alive(cell) == [True, True]
    release(cell)
    assert alive(cell) == [False, False]


def test_an_error_in_a_variable_stays_whole(cell: Cells) -> None:
    """An error that the user holds keeps its traceback; another one of the same code goes."""
    cell.run("try: outer()\nexcept RuntimeError as e: err = e", "outer()")
    assert alive(cell) == [True] * 4
    done = release(cell)
    assert alive(cell) == [True, True, False, False]
    assert cell.space["err"].__traceback__ is not None
    assert cell.space["err"].__cause__.__traceback__ is not None
    assert [holder.name for holder in done.after[0].of("variable")] == ["err"]


def test_the_last_errors_of_python_are_gone(cell: Cells) -> None:
    """``sys.last_*`` are deleted; the last result keeps its error, without the frames."""
    cell.run("outer()")
    error = id(cell.shell.last_execution_result.error_in_exec)  # a variable would hold it
    assert sys.last_traceback is not None
    release(cell)
    assert not hasattr(sys, "last_value")
    assert not hasattr(sys, "last_traceback")
    left = cell.shell.last_execution_result.error_in_exec
    assert id(left) == error
    assert left.__traceback__ is None


def test_the_debuggers_last_session(cell: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``%debug`` has looked at is let go of, and the debugger with it."""
    cell.run("outer()")
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    handler = cell.shell.InteractiveTB
    pdb = handler.debugger_cls()
    pdb.reset()
    pdb.botframe = None
    pdb.setup(None, sys.last_traceback)
    handler.pdb = pdb
    del pdb
    release(cell)
    assert handler.pdb is None
    assert alive(cell) == [False, False]


def test_an_interrupt_in_a_loop(cell: Cells) -> None:
    """A loop that was interrupted keeps its function's tensors until they are freed."""
    cell.run(
        "def train():\n    for step in range(9):\n        batch = big(777)\n"
        "        if step == 3: raise KeyboardInterrupt\ntrain()"
    )
    assert alive(cell) == [False, False, False, True]
    release(cell)
    assert not any(alive(cell))


def test_displayed_values_stay_unless_asked_for(cell: Cells) -> None:
    """A value that only displays keep is named, and goes with ``outputs`` alone."""
    cell.run("x = big(777)\nx", "'text'", "[1, 2]", "del x")
    done = release(cell)
    assert alive(cell) == [True]
    assert [holder.kind for holder in done.after[0].holders if holder.bytes == 3108] == ["output"]
    release(cell, outputs=True)
    assert alive(cell) == [False]
    # What holds no tensor is not touched.
    assert list(cell.space["Out"].values()) == ["text", [1, 2]]


def test_a_value_shown_by_the_last_cell(cell: Cells) -> None:
    """The result of the very last cell is let go of, too."""
    cell.run("big(777)")
    release(cell, outputs=True)
    assert alive(cell) == [False]


def test_what_reset_out_leaves(cell: Cells) -> None:
    """Copies that ``%reset -f out`` leaves behind go with ``outputs``."""
    cell.run("x = big(777)\nx", "del x", "%reset -f out")
    release(cell, outputs=True)
    assert alive(cell) == [False]


def test_the_users_underscore_is_not_touched(cell: Cells) -> None:
    """A ``_`` that the user has bound is a variable like others."""
    cell.run("_ = big(777)", "a = 1")
    release(cell, outputs=True)
    assert alive(cell) == [True]
    assert cell.space["_"] is cell.space["probes"][0]()


def test_names_go_with_their_displayed_copies(cell: Cells) -> None:
    """A variable is deleted with the displayed copies of the same object; errors stay."""
    cell.run("x = big(777)\nx", "outer()")
    done = release(cell, "x")
    assert alive(cell) == [False, True, True]
    assert done.still == {"x": ()}
    assert "x" not in cell.space
    assert hasattr(sys, "last_traceback")


def test_who_still_holds_a_names_memory(cell: Cells) -> None:
    """A model that its optimizer holds is not freed, and it is said who holds it."""
    cell.run(
        "model = torch.nn.Linear(30, 30)\noptimizer = torch.optim.Adam(model.parameters())",
    )
    done = release(cell, "model")
    assert done.still == {"model": ("optimizer",)}
    assert done.released_bytes("cpu") == 0
    done = release(cell, "optimizer")
    assert done.released_bytes("cpu") == (30 * 30 + 30) * 4


def test_names_that_are_none(cell: Cells) -> None:
    """A name that is no variable is refused before anything is released."""
    cell.run("x = big(777)", "nothing = None")
    for name in ("y", "x.data", "Out", "_oh"):
        with pytest.raises(SettingError):
            free(cell.notebook(), ["x", name], cpu=True)
    assert alive(cell) == [True]
    free(cell.notebook(), ["nothing"], cpu=True)
    assert "nothing" not in cell.space


def test_cycles_go(cell: Cells) -> None:
    """A cycle is collected and named by its types."""
    cell.run("class T: pass\nclass L: pass\n"
             "def f():\n    t = T()\n    t.l = L()\n    t.l.t, t.l.x = t, big(777)\nf()")
    done = release(cell)
    assert alive(cell) == [False]
    (step,) = [step for step in done.steps if step.bytes]
    assert (step.kind, step.bytes) == ("cycle", {"cpu": 3108})
    assert "T" in step.detail
    assert "L" in step.detail


def test_no_report_holds_what_it_describes(cell: Cells) -> None:
    """The results of a dry run and of a release keep no tensor."""
    cell.run("x = [big(777)]")
    kept = [free(cell.notebook(), cpu=True, dry_run=True), cell.report()]
    kept.append(free(cell.notebook(), cpu=True))
    cell.run("del x")
    assert alive(cell) == [False]
    assert len(kept) == 3
