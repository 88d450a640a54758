"""The cell magic in real kernels of several versions and in a plain shell.

See ``matrix.py`` for the versions, how to build their environments, and the table of cells.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from kernel import cell_probe, matrix
from kernel.matrix import ROWS, Kernel, Reply, Row, normal

CLEAR = "from IPython.display import clear_output\nprint('a')\nclear_output(wait=True)\n"


@pytest.fixture(scope="module")
def kernel(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Start one kernel a version for the whole matrix."""
    running = Kernel(python, tmp_path_factory.mktemp("kernel"))
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Require after each test that a kernel's magic holds nothing of the cell."""
    yield
    if "kernel" in request.fixturenames:
        running: Kernel = request.getfixturevalue("kernel")
        state = "list(__import__('cell_probe').magics.values())[0]._state"
        assert running.evaluate(f"({state}.cells, {state}.measurement)") == ([], None)
        running.notes()


def one_end(notes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the only end among the notes, which follows the only begin."""
    assert [("begin" in note, "end" in note) for note in notes] == [(True, False), (False, True)]
    return notes[1]


def shown(row: Row, reply: Reply, after: Reply, *, plain: bool = False) -> list[Any]:
    """Return what both cells of a row show, to compare the plain run with the other."""
    return [normal(reply, plain if row.moved else None), normal(after)]


def expected_end(row: Row, reply: Reply) -> tuple[str, str | None]:
    """Return status and error as the outcome must have them."""
    if "%%time" in row.name and reply.status == "ok":
        return "ok", None  # IPython 8's %%time shows an error and lets the cell succeed
    return row.status, row.error


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_same_cell(kernel: Kernel, row: Row) -> None:
    """A cell under the magic shows what it shows without, and is measured exactly once."""
    for _ in range(2):  # twice, because Python shows some warnings only once
        plain = kernel.run(row.plain), kernel.run(row.after)
    assert kernel.notes() == []
    reply = kernel.run(row.magic)
    notes = kernel.notes()
    assert shown(row, reply, kernel.run(row.after)) == shown(row, *plain, plain=True)
    if row.measured:
        end = one_end(notes)
        assert (end["status"], end["error"]) == expected_end(row, reply)
        assert not end["clear_output_pending"]
        assert end["publisher"] == "ZMQDisplayPublisher"  # and not %%capture's
        assert end["execution_count"] == notes[0]["execution_count"] == reply.execution_count
        assert notes[0]["source"] == row.magic
    else:
        assert notes == []


def test_out(kernel: Kernel) -> None:
    """The value of a measured cell is in Out under the cell's own number."""
    reply = kernel.run("%%gpuprofile\n'the value'")
    assert kernel.evaluate(f"Out[{reply.execution_count}]") == "the value"
    quiet = kernel.run("%%gpuprofile\n'quiet';")
    assert not kernel.evaluate(f"{quiet.execution_count} in Out")


@pytest.mark.parametrize(
    "wait",
    ["__import__('time').sleep(60)", "await ticks()"],
    ids=["sleep", "await"],
)
def test_interrupt(kernel: Kernel, wait: str) -> None:
    """An interrupted cell fails as it does without the magic and its measurement is closed."""
    # On one line, because the interrupt may come before the wait has begun.
    body = f"x = 1\nprint('ready\\n', end='', flush=True); {wait}\nprint('never')"
    # An event loop that nothing wakes does not notice that the interrupt cancelled its task.
    kernel.run("import asyncio\nasync def ticks():\n    while True: await asyncio.sleep(0.01)")
    plain = normal(kernel.interrupt_when_ready("#\n" + body))
    reply = normal(kernel.interrupt_when_ready("%%gpuprofile\n" + body))
    assert cell_frames(reply) == cell_frames(plain)
    end = one_end(kernel.notes())
    assert end["status"] == "interrupted"
    assert end["error"] in ("KeyboardInterrupt", "CancelledError")
    assert normal(kernel.run("'alive'"))[2] == [("execute_result", "'alive'")]


def cell_frames(shown: matrix.Shown) -> list[Any]:
    """Drop the frames below the cell's: where the interrupt lands there is chance."""
    status, error, outputs = shown
    return [status, error, [(kind, text.split("\n\n")[0]) for kind, text in outputs]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ""),
        ("-o p --every 2", "-o p --every 2"),
        ("-o $name", "-o run7"),
        ("-o {name}_{1 + 1}", "-o run7_2"),
        ("{{name}} {nosuch}", "{{name}} {nosuch}"),
        ("$brace", "{name}"),
        ("'it''s' \\", "'it''s' \\"),
    ],
)
def test_arguments(kernel: Kernel, line: str, expected: str) -> None:
    """The arguments reach begin once expanded, as those of any other cell magic."""
    kernel.run("name = 'run7'; brace = '{name}'")
    kernel.run(f"%%gpuprofile {line}".rstrip() + "\n1")
    assert [note["begin"] for note in kernel.notes() if "begin" in note] == [expected]
    kernel.run(f"get_ipython().run_cell_magic('gpuprofile', {line!r}, '1')")
    assert [note["begin"] for note in kernel.notes() if "begin" in note] == [expected]


@pytest.mark.parametrize("above", ["", "%%time\n"], ids=["bare", "%%time"])
def test_usage_error(kernel: Kernel, above: str) -> None:
    """Bad arguments are one line on stderr, and nothing of the cell runs or stays open."""
    reply = kernel.run(above + "%%gpuprofile --bad\nprint('never')\nran = True")
    if not above:  # IPython 8's %%time lets the cell succeed
        assert (reply.status, reply.error) == ("error", "UsageError")
    assert "UsageError: unrecognized arguments: --bad\n" in [text for _, text in reply.outputs]
    assert "never" not in reply.text
    assert kernel.notes() == []
    assert not kernel.evaluate("'ran' in globals()")


@pytest.mark.parametrize("body", ["", "\n", "\n  \n"])
def test_empty_body(kernel: Kernel, body: str) -> None:
    """An empty body is a usage error and is not measured."""
    reply = kernel.run("%%gpuprofile -o p" + body)
    text = "UsageError: %%gpuprofile is a cell magic, but the cell body is empty.\n"
    assert (reply.status, reply.outputs, kernel.notes()) == ("error", [("stderr", text)], [])


@pytest.mark.parametrize(
    ("body", "pending"),
    [
        (CLEAR, True),
        (CLEAR + "print('b')", False),
        (CLEAR + "import sys\nprint('b', file=sys.stderr)", False),
        (CLEAR + "!echo b", False),
        (CLEAR + "display(1)", False),
        (CLEAR + "1", False),
        (CLEAR + "1;", True),
        (CLEAR + "None", True),
        (CLEAR + "clear_output()", False),
        (CLEAR + "print('b')\nclear_output(wait=True)", True),
        ("h = display(1, display_id='u')\n" + CLEAR + "h.update(2)", True),
        ("for i in range(3):\n    " + CLEAR.replace("\n", "\n    "), True),
        ("for i in range(3):\n    " + CLEAR.replace("\n", "\n    ") + "display(i)", False),
        (CLEAR + "1 / 0", False),
        ("%%capture\n" + CLEAR, False),
        (CLEAR + "await __import__('asyncio').sleep(0)", True),
        ("clear_output(wait=False)", False),
        ("print('a')", False),
    ],
)
def test_clear_output_pending(kernel: Kernel, body: str, pending: bool) -> None:
    """The outcome says whether a display after the cell would erase the cell's last output."""
    kernel.run("from IPython.display import clear_output")
    plain = normal(kernel.run("#\n" + body if not body.startswith("%%") else body))
    assert normal(kernel.run("%%gpuprofile\n" + body)) == plain
    assert one_end(kernel.notes())["clear_output_pending"] is pending


def test_hooks_come_off(kernel: Kernel) -> None:
    """No message hook outlives its cell, neither of the displays nor of the streams."""
    kernel.run("%%gpuprofile\n" + CLEAR)
    kernel.run("%%gpuprofile\n" + CLEAR + "1 / 0")
    kernel.run("%%gpuprofile --bad\n" + CLEAR)
    count = (
        "import sys, threading\nfound, done = [], threading.Event()\n"
        "def look():\n    found.extend([*sys.stdout._hooks, *sys.stderr._hooks])\n    done.set()\n"
        "sys.stdout.pub_thread.schedule(look)\ndone.wait(10)\n"
        "found.extend(get_ipython().display_pub._hooks)"
    )
    kernel.run(count)
    assert kernel.evaluate("found") == []


def test_rerun(kernel: Kernel) -> None:
    """A cell that runs again is measured again, under its new number."""
    cell = "%%gpuprofile\nruns = globals().get('runs', 0) + 1\nruns"
    replies = [kernel.run(cell), kernel.run(cell)]
    assert [reply.text for reply in replies] == ["1", "2"]
    ends = [note["execution_count"] for note in kernel.notes() if "end" in note]
    assert ends == [reply.execution_count for reply in replies]


def test_next_cell_is_not_measured(kernel: Kernel) -> None:
    """After a measured cell, however it ends, a plain cell has no begin and no end."""
    for body in ("1", "1 / 0", "a = = 1", "raise SystemExit", "raise KeyboardInterrupt"):
        kernel.run("%%gpuprofile\n" + body)
        kernel.notes()
        kernel.run("1")
        assert kernel.notes() == []


def test_nested_magic(kernel: Kernel) -> None:
    """The magic met again within a measured cell is run, counted, and not measured apart."""
    inner = "get_ipython().run_cell('%%gpuprofile -o b\\nprint(1)')"
    reply = kernel.run(f"%%gpuprofile -o a\n{inner}\n{inner};")
    notes = kernel.notes()
    assert (reply.text, notes[0]["begin"], one_end(notes)["ignored"]) == ("1\n1\n", "-o a", 2)
    kernel.run("%%gpuprofile -o a\n%%gpuprofile -o b\n1")
    assert one_end(kernel.notes())["ignored"] == 1


def test_missed_end(kernel: Kernel) -> None:
    """A measurement whose end was missed is abandoned when the next cell starts."""
    lose = "get_ipython().events.unregister('post_run_cell', list(probe.magics.values())[0]"
    kernel.run(f"import cell_probe as probe\n{lose}._on_post_run_cell)")
    kernel.run("%%gpuprofile\n1")
    (begin,) = kernel.notes()
    kernel.run(lose.replace("unregister", "register") + "._on_post_run_cell)")
    (end,) = kernel.notes()
    assert (end["status"], end["execution_count"]) == ("abandoned", begin["execution_count"])
    kernel.run("%%gpuprofile\n2")
    assert one_end(kernel.notes())["status"] == "ok"


def test_silent_cell(kernel: Kernel) -> None:
    """A silent request runs its cell and is not measured, for no event tells its end."""
    assert kernel.run("%%gpuprofile\nsilent = 7", silent=True).status == "ok"
    assert kernel.evaluate("silent") == 7
    assert kernel.notes() == []


def test_history(kernel: Kernel) -> None:
    """History keeps the user's own text; the translated one has the call on line 1."""
    reply = kernel.run("%%gpuprofile -o p\n1 + 1")
    kernel.run("1")
    assert kernel.evaluate(f"_i{reply.execution_count}") == "%%gpuprofile -o p\n1 + 1"
    translated = "get_ipython().run_cell_magic('gpuprofile', '-o p', None)\n1 + 1"
    assert kernel.evaluate(f"In[{reply.execution_count}]").rstrip() == translated
    assert "%%gpuprofile -o p\n1 + 1" in kernel.run(f"%history {reply.execution_count}").text
    kernel.notes()
    kernel.run(f"%rerun {reply.execution_count}")
    assert one_end(kernel.notes())["status"] == "ok"


def test_help(kernel: Kernel) -> None:
    """``%%gpuprofile?`` asks for help and measures nothing."""
    kernel.run("%%gpuprofile?")
    shown = kernel.evaluate("get_ipython().object_inspect_text('%%gpuprofile')")
    assert cell_probe.HELP in shown
    assert kernel.notes() == []


def test_exported_script(kernel: Kernel) -> None:
    """``run_cell_magic`` with the cell's text, as exports write it, runs and measures it."""
    call = "get_ipython().run_cell_magic('gpuprofile', '-o p', {!r})"
    reply = kernel.run(call.format("%%time\nx = 20\nx + 1") + "\nprint('after')")
    assert normal(reply)[2][-1][1].endswith("after\n")
    assert "21" in reply.text
    assert one_end(kernel.notes())["status"] == "ok"
    reply = kernel.run(call.format("1 / 0") + "\nwent_on = True")
    assert (reply.status, reply.error) == ("error", "ZeroDivisionError")
    assert not kernel.evaluate("'went_on' in globals()")
    assert one_end(kernel.notes())["status"] == "error"


def test_unload(kernel: Kernel) -> None:
    """Unloading restores the shell, and closes a measurement that is open."""
    parts = (
        "ip = get_ipython()\ndef parts():\n    return [len(ip.input_transformers_cleanup), "
        "len(ip.input_transformers_post), len(ip.events.callbacks['pre_run_cell']), "
        "len(ip.events.callbacks['post_run_cell']), "
        "len(ip.magics_manager.magics['cell']), len(ip.display_pub._hooks)]"
    )
    kernel.run(parts)
    loaded = kernel.evaluate("parts()")
    reply = kernel.run("%%gpuprofile\n%unload_ext cell_probe\n1")
    try:
        assert reply.text == "1"
        assert one_end(kernel.notes())["status"] == "abandoned"
        kernel.run("bare = parts()")
        assert kernel.run("%%gpuprofile\n1").error == "UsageError"
    finally:
        kernel.run("%load_ext cell_probe")
    assert kernel.evaluate("parts()") == loaded
    assert kernel.evaluate("[a - b for a, b in zip(parts(), bare)]") == [1, 1, 1, 1, 1, 0]


# -- a plain shell: no kernel, no messages ---------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Make a shell with the probe loaded."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    # A shell puts its own module in place of __main__, and the prompts' hooks in place of sys's.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(config=config)
    cell_probe.load_ipython_extension(made)
    cell_probe.notes.clear()
    yield made
    cell_probe.unload_ipython_extension(made)
    InteractiveShell.clear_instance()


def run_plain(shell: InteractiveShell, code: str) -> Reply:
    """Run a cell in the plain shell and collect what it shows."""
    out, err = io.StringIO(), io.StringIO()
    run: Any = shell.run_cell
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        result = run(code, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    printed = re.sub(r"Out\[\d+\]", "Out", out.getvalue())
    outputs = [("stdout", printed), ("stderr", err.getvalue())]
    outputs.append(("execute_result", repr(result.result)))
    return Reply("error" if error else "ok", error and type(error).__name__, 0, outputs)


@pytest.mark.filterwarnings("ignore:To exit")
@pytest.mark.parametrize("row", [row for row in ROWS if row.shell], ids=lambda row: row.name)
def test_same_cell_plain_shell(shell: InteractiveShell, row: Row) -> None:
    """In a plain shell, too, a cell shows what it shows without the magic."""
    for _ in range(2):
        plain = run_plain(shell, row.plain), run_plain(shell, row.after)
    reply = run_plain(shell, row.magic)
    notes = list(cell_probe.notes)
    assert shown(row, reply, run_plain(shell, row.after)) == shown(row, *plain, plain=True)
    if row.measured:
        end = one_end(notes)
        assert (end["status"], end["error"]) == expected_end(row, reply)
    else:
        assert notes == []


def test_script_outside_any_cell(shell: InteractiveShell) -> None:
    """An exported script that no cell runs has its cells measured one by one."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        shell.run_cell_magic("gpuprofile", "-o p", "x = 41\nprint(x + 1)\n")  # type: ignore[no-untyped-call]
    assert out.getvalue() == "42\n"
    assert one_end(cell_probe.notes)["status"] == "ok"


def test_missed_end_plain_shell(shell: InteractiveShell) -> None:
    """Without a kernel's message ids, too, a missed end is noticed at the next cell."""
    magic = cell_probe.magics[id(shell)]
    shell.events.unregister("post_run_cell", magic._on_post_run_cell)
    run_plain(shell, "%%gpuprofile\n1")
    shell.events.register("post_run_cell", magic._on_post_run_cell)
    cell_probe.notes.clear()
    run_plain(shell, "1")
    assert [note["end"] for note in cell_probe.notes] == ["abandoned"]


def test_interrupted_event_loop(shell: InteractiveShell) -> None:
    """An interrupt that stops the event loop itself, as in a terminal, closes the measurement."""
    body = (
        "import asyncio\ndef stop():\n    raise KeyboardInterrupt\n"
        "asyncio.get_running_loop().call_soon(stop)\nawait asyncio.sleep(0)\n"
        "await asyncio.sleep(0)"
    )
    assert run_plain(shell, "%%gpuprofile\n" + body).error == "KeyboardInterrupt"
    assert one_end(cell_probe.notes)["status"] == "interrupted"
    run_plain(shell, "await asyncio.sleep(0)\nawait asyncio.sleep(0)")  # lets the task finish
    assert cell_probe.magics[id(shell)]._state.cells == []


def test_typing_in_the_terminal(shell: InteractiveShell) -> None:
    """The terminal waits for the end of the cell as it does for any other cell magic."""
    check = shell.input_transformer_manager.check_complete
    for text in ("%%time", "%%time\nx = 1", "%%time\nx = 1\n", "%%time\nx = 1\n\n"):
        assert check(text.replace("%%time", "%%gpuprofile")) == check(text)


def test_transformer_is_pure(shell: InteractiveShell) -> None:
    """The transformer runs any number of times and gives the same text, with as many lines."""
    text = "%%gpuprofile -o p\n\n%time x = 1\ny = '''\n  \n'''\n"
    transform: Any = shell.transform_cell
    found = {transform(text) for _ in range(3)}
    assert len(found) == 1
    assert found.pop().count("\n") == text.count("\n")
    assert cell_probe.notes == []


def test_register_twice(shell: InteractiveShell) -> None:
    """A second register, or a second owner of the name, neither doubles nor breaks the first."""
    first = cell_probe.magics[id(shell)]
    first.register()
    module = cell_probe.load_cell_module()
    other = module.CellMagic(shell, begin=cell_probe.begin, end=cell_probe.end)
    other.register()
    run_plain(shell, "%%gpuprofile\n1")
    assert one_end(cell_probe.notes)["status"] == "ok"
    cell_probe.notes.clear()
    other.unregister()
    other.unregister()
    run_plain(shell, "%%gpuprofile\n1")
    assert one_end(cell_probe.notes)["status"] == "ok"


def test_every_cell(shell: InteractiveShell) -> None:
    """on_cell and after_cell come in pairs, once for each outermost cell, measured or not."""
    module = cell_probe.load_cell_module()
    seen: list[tuple[str, Any]] = []
    magic = module.CellMagic(
        shell,
        "other",
        begin=lambda line, context: seen.append(("begin", line)),
        end=lambda outcome: seen.append(("end", outcome.status)),
        on_cell=lambda context: seen.append(("on", context.source)),
        after_cell=lambda outcome: seen.append(("after", outcome.error)),
    )
    magic.register()
    cells = ["1", "get_ipython().run_cell('2')", "%%other\n1 / 0", "a = = 1", "%unregister"]
    shell.magics_manager.magics["line"]["unregister"] = lambda line: magic.unregister()
    for cell in cells:
        run_plain(shell, cell)
    ends: list[list[tuple[str, Any]]] = [
        [("after", None)],
        [("after", None)],
        [("begin", ""), ("after", "ZeroDivisionError"), ("end", "error")],
        [("after", "SyntaxError")],
        [("after", None)],
    ]
    assert seen == [e for cell, end in zip(cells, ends, strict=True) for e in [("on", cell), *end]]


def test_nothing_is_kept_alive(shell: InteractiveShell) -> None:
    """After the cell, the magic holds no exception, frame or object of it."""
    run_plain(shell, "%%gpuprofile\n1 / 0")
    magic = cell_probe.magics[id(shell)]
    assert vars(magic._state) == {
        "cells": [], "measurement": None, "watch": None, "expanded": False
    }
