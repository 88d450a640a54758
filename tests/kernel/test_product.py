"""The whole extension in real kernels of several versions, with two GPUs that the stub gives.

See ``matrix.py`` for the versions and how to build their environments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from kernel.matrix import Kernel, Manager, Reply, kernel_environment, normal
from needs import cannot
from nvml_stub import NvmlStub, compiler

VIEW = "application/vnd.jupyter.widget-view+json"
BUSY = {
    "wave": True, "wave_period_s": 4, "utilization": 80, "memory_used": 60 << 30,
    "power_mw": 610_000, "temperature": 71, "sm_clock_mhz": 1755,
}
BLOCKING = {
    "sleep": "import time\ntime.sleep(3)",
    "python": "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end:\n    3 * 7",
}
CLEAR = "from IPython.display import clear_output\nprint('kept')\nclear_output(wait=True)"
STATE = (
    "import sys, threading\ndef state():\n"
    "    ip = get_ipython()\n"
    "    instances = getattr(sys.modules.get('ipywidgets.widgets.widget'), '_instances', {})\n"
    "    return {\n"
    "        'threads': [t.name for t in threading.enumerate() if t.name.startswith('gpumagic')],\n"
    "        'widgets': len(instances),\n"
    "        'hooks': [len(ip.input_transformers_cleanup), len(ip.input_transformers_post),\n"
    "                  *(len(found) for found in ip.events.callbacks.values()),\n"
    "                  len(ip.display_pub._hooks)],\n"
    "        'magics': sorted(n for kind in ip.magics_manager.magics.values() for n in kind\n"
    "                         if n.startswith('gpu')),\n"
    "        'configurables': [n for c in ip.configurables\n"
    "                          if (n := type(c).__name__) == 'GpuMagic'],\n"
    "    }"
)
SETTLE = (
    "from gpumagic.session import current\nimport time\n"
    "while current().watch._refresher.ticks < 8:\n    time.sleep(0.05)"
)
SHOWN = (
    "import ipywidgets, sys\n"
    "views = [w for w in list(sys.modules['ipywidgets.widgets.widget']._instances.values())\n"
    "         if isinstance(w, ipywidgets.HTML)]\n"
    "print({w.model_id: w.value for w in views})"
)


Start = Callable[[], Kernel]


@pytest.fixture(scope="module")
def stub(python: Path, tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    """Give a driver with two busy GPUs to the kernels of a version."""
    if compiler() is None:
        cannot("the stub NVML is built with gcc")
    libraries = tmp_path_factory.getbasetemp() / "nvml"
    made = NvmlStub(tmp_path_factory.mktemp("stub"), gpus=2, libraries=libraries)
    for index in range(2):
        made.gpu(index, **BUSY)
    return made


@pytest.fixture(scope="module")
def start(
    python: Path, stub: NvmlStub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """Give what starts a kernel with gpumagic loaded."""
    started: list[Kernel] = []

    def new() -> Kernel:
        folder = tmp_path_factory.mktemp("kernel")
        started.append(Kernel(python, folder, extension="gpumagic", **stub.variables()))
        return started[-1]

    yield new
    for running in started:
        running.stop()


@pytest.fixture(scope="module")
def kernel(start: Start) -> Kernel:
    """Start one kernel a version for most of the tests."""
    running = start()
    running.run(STATE)
    return running


@pytest.fixture
def watched(kernel: Kernel) -> Iterator[Kernel]:
    """Give the kernel with a watch that runs, and stop it afterwards."""
    begin_watch(kernel)
    yield kernel
    status = kernel.run("%gpuwatch status").text
    assert ", stopped:" not in status
    stopped = kernel.run("%gpuwatch stop")
    assert [kind for kind, _ in stopped.outputs] == ["update_display_data"], stopped.outputs
    left = kernel.evaluate("state()")
    assert (left["threads"], left["widgets"]) == ([], 0)


def begin_watch(kernel: Kernel) -> dict[str, Any]:
    """Start a watch and return what it displays; its cell shows nothing else."""
    reply = kernel.run("%gpuwatch")
    assert [kind for kind, _ in reply.outputs] == ["display_data"], reply.outputs
    (shown,) = own(reply, "display_data")
    return shown


def own(reply: Reply, *kinds: str) -> list[dict[str, Any]]:
    """Return the contents of a cell's own messages of some kinds."""
    return [
        message["content"]
        for message in reply.messages
        if message["msg_type"] in kinds and message["parent_header"].get("msg_id") == reply.msg_id
    ]


def report_of(reply: Reply) -> str:
    """Return the text of a cell's one report, which is its last output."""
    (data,) = [found["data"] for found in own(reply, "display_data")[-1:]]
    assert set(data) == {"text/html", "text/plain"}
    assert "GPU 0" in data["text/plain"]
    assert "GPU 1" in data["text/plain"]
    assert reply.outputs[-1] == ("display_data", data["text/plain"])
    return str(data["text/plain"])


def without_report(reply: Reply) -> Reply:
    """Return a reply without its report."""
    report_of(reply)
    return Reply(reply.status, reply.error, reply.execution_count, reply.outputs[:-1])


def updates(reply: Reply) -> list[dict[str, Any]]:
    """Return the messages that changed a widget while the cell ran, whoever they belong to."""
    return [
        message
        for message in reply.messages
        if message["msg_type"] == "comm_msg" and message["content"]["data"]["method"] == "update"
    ]


def moments(messages: list[dict[str, Any]]) -> list[datetime]:
    """Return when messages were sent; those of one update count once."""
    found: list[datetime] = []
    for message in messages:
        when = message["header"]["date"]
        if not found or (when - found[-1]).total_seconds() > 0.1:
            found.append(when)
    return found


# -- the watch --------------------------------------------------------------------------------


def test_watch_shows_a_widget(kernel: Kernel) -> None:
    """%gpuwatch displays a widget with a text twin of both GPUs; a second one takes its place."""
    shown = begin_watch(kernel)
    assert set(shown["data"]) == {VIEW, "text/plain"}
    assert "GPU 0" in shown["data"]["text/plain"]
    assert "GPU 1" in shown["data"]["text/plain"]
    moved = kernel.run("%gpuwatch")
    assert [kind for kind, _ in moved.outputs] == ["update_display_data", "display_data"]
    (twin,) = own(moved, "update_display_data")
    assert twin["transient"]["display_id"] == shown["transient"]["display_id"]
    kernel.run("%gpuwatch stop")
    assert kernel.evaluate("state()['widgets']") == 0


@pytest.mark.parametrize("body", BLOCKING.values(), ids=BLOCKING)
def test_updates_while_a_cell_blocks(watched: Kernel, body: str) -> None:
    """While a cell blocks, at least two updates a second are sent, as messages of that cell."""
    reply = watched.run(body)
    assert (reply.status, reply.outputs) == ("ok", [])
    sent = updates(reply)
    assert len(moments(sent)) >= 6, moments(sent)
    own = [m["parent_header"].get("msg_id") == reply.msg_id for m in sent]
    # What was being sent when the cell began may still belong to the cell before.
    wrong = own[own.index(True) :].count(False)
    assert not wrong, f"{wrong} of {len(own)} updates belong to another cell"
    assert own.count(True) > len(own) / 2


def test_text_updates_while_a_cell_blocks(kernel: Kernel) -> None:
    """The text view, too, is updated in its own place while a cell blocks."""
    begun = kernel.run("%gpuwatch --text")
    (shown,) = own(begun, "display_data")
    assert set(shown["data"]) == {"text/plain"}
    reply = kernel.run(BLOCKING["sleep"])
    updated = own(reply, "update_display_data")
    assert len(updated) >= 2
    assert {u["transient"]["display_id"] for u in updated} == {shown["transient"]["display_id"]}
    assert reply.outputs == [("update_display_data", u["data"]["text/plain"]) for u in updated]
    kernel.run("%gpuwatch stop")


def test_status(watched: Kernel) -> None:
    """%gpuwatch status says in text what runs, and that nothing of it has failed."""
    text = watched.run("%gpuwatch status").text
    assert re.search(r"watch: last 60 s, every 0.2 s, \d+ updates\n", text)
    assert "nvml: every 0.2 s" in text
    assert "GPU 0" in text
    assert "n/a" not in text.replace("allocator: n/a", "")


def test_stop(kernel: Kernel) -> None:
    """%gpuwatch stop puts a picture in the view's place and leaves no model and no thread."""
    shown = begin_watch(kernel)
    assert kernel.evaluate("state()['widgets']") > 0
    reply = kernel.run("%gpuwatch stop")
    assert [kind for kind, _ in reply.outputs] == ["update_display_data"], reply.outputs
    (twin,) = own(reply, "update_display_data")
    assert set(twin["data"]) == {"image/png", "text/plain"}
    assert twin["metadata"]["image/png"]["width"] > 300
    assert twin["transient"]["display_id"] == shown["transient"]["display_id"]
    left = kernel.evaluate("state()")
    assert (left["threads"], left["widgets"]) == ([], 0)


# -- measured cells ---------------------------------------------------------------------------


def test_report(watched: Kernel) -> None:
    """A measured cell shows its own output, then its report as HTML and text."""
    reply = watched.run("%%gpuprofile\nprint('mine')\n6 * 7")
    assert normal(without_report(reply)) == normal(watched.run("#\nprint('mine')\n6 * 7"))


def test_report_without_a_watch(kernel: Kernel) -> None:
    """A cell is measured without a watch too, and sampling ends with it."""
    report_of(kernel.run("%%gpuprofile\n1"))
    assert kernel.evaluate("state()['threads']") == []


@pytest.mark.parametrize(
    ("body", "exit_"),
    [
        ("import asyncio\nawait asyncio.sleep(0.2, 'slept')", "ok"),
        ("def f():\n    return 1 / 0\n\nf()", "error"),
        ("raise SystemExit", "error"),
        ("raise KeyboardInterrupt", "interrupted"),
    ],
    ids=["await", "error", "exit", "interrupt"],
)
def test_cell_is_left_alone(watched: Kernel, body: str, exit_: str) -> None:
    """A cell that awaits or fails shows what it shows without the magic, and then its report."""
    watched.run("#\n" + body)  # some warnings come only once
    # IPython's own comes again whenever any thread has changed a filter: let it come always.
    watched.run("import warnings\nwarnings.filterwarnings('always', message='To exit')")
    plain = watched.run("#\n" + body)
    reply = watched.run("%%gpuprofile -o p\n" + body)
    assert normal(without_report(reply)) == normal(plain)
    assert watched.evaluate("p.exit") == exit_


def test_interrupt(watched: Kernel) -> None:
    """An interrupted cell is reported as interrupted, and the watch goes on."""
    body = "print('ready', flush=True); __import__('time').sleep(60)"
    reply = watched.interrupt_when_ready("%%gpuprofile -o p\n" + body)
    assert (reply.status, reply.error) == ("error", "KeyboardInterrupt")
    assert "interrupted" in report_of(reply)
    assert watched.evaluate("p.exit") == "interrupted"
    assert len(watched.evaluate("state()['threads']")) == 2


def test_time_below(kernel: Kernel) -> None:
    """%%time on the second line times the cell, and the report follows."""
    reply = without_report(kernel.run("%%gpuprofile\n%%time\n6 * 7"))
    assert "Wall time" in reply.text
    assert reply.outputs[-1] == ("execute_result", "42")


def test_capture_below(kernel: Kernel) -> None:
    """%%capture on the second line hides the cell's output and not the report."""
    reply = without_report(kernel.run("%%gpuprofile\n%%capture out\nprint('hidden')"))
    assert reply.outputs == []
    assert kernel.evaluate("out.stdout") == "hidden\n"


def test_arguments(kernel: Kernel) -> None:
    """-o puts the Profile into a variable, and $name is expanded in --name."""
    kernel.run("name = 'epoch seven'")
    reply = kernel.run('%%gpuprofile --name "$name" -o p\n1;')
    assert "epoch seven" in report_of(reply)
    assert kernel.evaluate("(p.name, p.number)") == ("epoch seven", reply.execution_count)


def test_pending_clear(kernel: Kernel) -> None:
    """Where a report would erase the cell's output none is shown, and %gpureport has it."""
    reply = kernel.run("%%gpuprofile --name quiet\n" + CLEAR)
    assert reply.outputs == [("stdout", "kept\n"), ("clear_output", "True")]
    assert "quiet" in report_of(kernel.run("%gpureport"))


def test_bad_arguments(kernel: Kernel) -> None:
    """Bad arguments are one line, the cell does not run, and nothing goes on sampling."""
    reply = kernel.run("%%gpuprofile -g 9\nran = True")
    assert (reply.status, reply.error) == ("error", "UsageError")
    assert [kind for kind, _ in reply.outputs] == ["stderr"]
    assert reply.text.count("\n") == 1
    assert not kernel.evaluate("'ran' in globals()")
    assert kernel.evaluate("state()['threads']") == []


# -- the end ----------------------------------------------------------------------------------


def test_unload(kernel: Kernel, stub: NvmlStub) -> None:
    """Unloading under a running watch takes out threads, models, hooks, magics and NVML."""
    kernel.run("%unload_ext gpumagic")
    bare = kernel.evaluate("state()")
    kernel.run("%load_ext gpumagic\n%gpuwatch")
    kernel.run("%%gpuprofile\n1")
    reply = kernel.run("%unload_ext gpumagic")
    (twin,) = own(reply, "update_display_data")
    assert "image/png" in twin["data"]
    assert kernel.evaluate("state()") == bare
    assert (bare["threads"], bare["widgets"], bare["magics"]) == ([], 0, [])
    assert bare["configurables"] == []
    assert stub.init_balance == 0


@pytest.mark.parametrize("restart", [False, True], ids=["shutdown", "restart"])
def test_kernel_ends(start: Start, stub: NvmlStub, restart: bool) -> None:
    """A kernel with a running watch ends at once when asked to, and complains of nothing."""
    running = start()
    begin_watch(running)
    status, took_s = running.end(restart=restart)
    assert status == 0
    assert took_s < 5
    assert "Traceback" not in running.stderr_path.read_text()
    assert stub.init_balance == 0


# -- nbclient ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def executed(
    python: Path, stub: NvmlStub, tmp_path_factory: pytest.TempPathFactory
) -> nbformat.NotebookNode:
    """Run a notebook that ends with a live view, as ``nbconvert --execute`` does."""
    folder = tmp_path_factory.mktemp("notebook")
    manager = Manager()
    manager.python = python
    cells = [
        # A watch that is told of a page is a widget here too, and its state is kept.
        "%load_ext gpumagic\n%config GpuMagic.front_end = 'page'",
        # The first readings may bring new models; nbclient drops those that come between cells.
        f"%gpuwatch\n{SETTLE}",
        "%%gpuprofile\n1 / 0",
        "%%gpuprofile\n6 * 7",
        SHOWN,
        BLOCKING["sleep"],
        # The view stays, but moves no more, so that what it shows can be compared.
        f"current().watch._refresher.stop()\n{SHOWN}",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = NotebookClient(notebook, km=manager, timeout=60, allow_errors=True)
    environment = kernel_environment(folder, **stub.variables())
    client.execute(env=environment, cwd=str(folder), cleanup_kc=True)
    return notebook


def test_nbclient_reports(executed: nbformat.NotebookNode) -> None:
    """With allow_errors a failing cell keeps its error and its report, and the next one runs."""
    failing, next_ = executed.cells[2:4]
    assert [o.output_type for o in failing.outputs] == ["error", "display_data"]
    assert failing.outputs[0].ename == "ZeroDivisionError"
    assert [o.output_type for o in next_.outputs] == ["execute_result", "display_data"]
    for cell in (failing, next_):
        assert set(cell.outputs[-1].data) == {"text/html", "text/plain"}


def test_nbclient_keeps_the_last_view(executed: nbformat.NotebookNode) -> None:
    """The widget state in the notebook is that of the last update, not that of the beginning."""
    early, last = (ast.literal_eval(executed.cells[n].outputs[0].text) for n in (4, 6))
    assert early != last
    models = executed.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert {name: models[name]["state"]["value"] for name in last} == last
    assert VIEW in executed.cells[1].outputs[0].data
