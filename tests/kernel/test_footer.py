"""%gpureport in a real kernel with a GPU that the stub gives: footers, reports and the list."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.matrix import Kernel, Reply
from needs import cannot
from nvml_stub import NvmlStub, compiler

pytestmark = pytest.mark.kernel

BUSY = {
    "utilization": 76, "memory_used": 60 << 30, "power_mw": 610_000, "temperature": 71,
    "sm_clock_mhz": 1755,
}
LONG = "__import__('time').sleep(0.7)"
CLEAR = "from IPython.display import clear_output\nprint('kept')\nclear_output(wait=True)"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    """Give a driver with one busy GPU."""
    if compiler() is None:
        cannot("the stub NVML is built with gcc")
    libraries = tmp_path_factory.getbasetemp() / "nvml"
    made = NvmlStub(tmp_path_factory.mktemp("stub"), gpus=1, libraries=libraries)
    made.gpu(0, **BUSY)
    made.write()
    return made


@pytest.fixture(scope="module")
def running(stub: NvmlStub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """Start one kernel for all of these tests."""
    folder = tmp_path_factory.mktemp("kernel")
    made = Kernel(Path(sys.executable), folder, extension="gpumagic", **stub.variables())
    yield made
    made.stop()


@pytest.fixture
def kernel(running: Kernel) -> Iterator[Kernel]:
    """Give the kernel with footers on, and end them afterwards."""
    reply = running.run("%gpureport on")
    assert [kind for kind, _ in reply.outputs] == ["stdout"]
    assert reply.text.count("\n") == 1
    yield running
    assert running.run("%gpureport off").text.startswith("No more footers")
    assert threads(running) == []


def threads(kernel: Kernel) -> list[str]:
    found: list[str] = kernel.evaluate(
        "[t.name for t in __import__('threading').enumerate() if t.name.startswith('gpumagic')]"
    )
    return found


def footer_of(reply: Reply) -> str:
    """Return a cell's footer, which is its last output and has both forms."""
    kind, text = reply.outputs[-1]
    assert kind == "display_data", reply.outputs
    shown = [m for m in reply.messages if m["msg_type"] == "display_data"][-1]
    assert shown["parent_header"]["msg_id"] == reply.msg_id
    assert set(shown["content"]["data"]) == {"text/html", "text/plain"}
    assert "\n" not in text
    return text


def test_a_long_cell(kernel: Kernel) -> None:
    """A long cell's footer comes after all of its own output."""
    reply = kernel.run(f"print('mine')\n{LONG}\n6 * 7")
    assert reply.outputs[:-1] == [("stdout", "mine\n"), ("execute_result", "42")]
    text = footer_of(reply)
    assert re.match(r" +7\d\d ms  [ ▁-█]+  GPU  76", text)
    assert "peak 60.0 GiB" in text


@pytest.mark.parametrize("body", ["pass", "1 + 1", "%gpureport list", "%gpumem", "# nothing"])
def test_a_short_cell(kernel: Kernel, body: str) -> None:
    """A short cell that does nothing on the GPU has no footer, and neither has one of ours."""
    kernel.run("1")
    text = kernel.run(body).text
    assert "GPU  " not in text
    assert "peak 60" not in text


@pytest.mark.parametrize(
    ("body", "last"),
    [
        (f"{LONG}\n1 / 0", "! failed: ZeroDivisionError"),
        (f"{LONG}\nraise KeyboardInterrupt", "interrupted"),
    ],
)
def test_a_failed_cell(kernel: Kernel, body: str, last: str) -> None:
    """A failed cell keeps its traceback, and its footer follows."""
    reply = kernel.run(body)
    assert reply.status == "error"
    assert [kind for kind, _ in reply.outputs] == ["error", "display_data"]
    assert footer_of(reply).endswith(last)


def test_capture(kernel: Kernel) -> None:
    """The footer of a captured cell is shown and not captured."""
    reply = kernel.run(f"%%capture out\nprint('hidden')\n{LONG}")
    footer_of(reply)
    assert len(reply.outputs) == 1


def test_pending_clear(kernel: Kernel) -> None:
    """Where a footer would erase the cell's output there is none; the report is there."""
    reply = kernel.run(f"{LONG}\n{CLEAR}")
    assert reply.outputs == [("stdout", "kept\n"), ("clear_output", "True")]
    report = kernel.run(f"%gpureport {reply.execution_count}").text
    assert report.startswith(f"[{reply.execution_count}]  7")
    done = kernel.run(f"{LONG}\n{CLEAR}\nprint('more')")
    footer_of(done)


def test_a_measured_cell(kernel: Kernel) -> None:
    """A cell with %%gpuprofile gets its report and no footer."""
    reply = kernel.run(f"%%gpuprofile --name epoch\n{LONG}")
    assert [kind for kind, _ in reply.outputs] == ["display_data"]
    assert reply.text.startswith("epoch  ")
    assert kernel.run("%gpureport").text == reply.text
    quiet = kernel.run(f"%%gpuprofile -q\n{LONG}")
    assert quiet.outputs == []


def test_a_silent_cell(kernel: Kernel) -> None:
    """What runs silently or without history has no footer and is not seen."""
    count = kernel.evaluate("get_ipython().execution_count")
    assert kernel.run(LONG, silent=True).outputs == []
    kernel.run("get_ipython().run_cell('1')")
    assert kernel.run(f"%gpureport {count + 5}").error == "UsageError"


def test_reports_of_any_cell(kernel: Kernel) -> None:
    """%gpureport N has the full report of each cell seen, however short."""
    long = kernel.run(LONG).execution_count
    short = kernel.run("'short'").execution_count
    assert f"[{long}]  7" in kernel.run(f"%gpureport {long}").text
    # The short one got no footer, so that it is asked for by its number.
    assert kernel.run("%gpureport").text.startswith(f"[{long}]"), "nor is one of %gpureport's"
    last = kernel.run(f"%gpureport {short}").text
    assert last.startswith(f"[{short}]")
    assert "too short to say" in last
    unknown = kernel.run("%gpureport nobody")
    assert unknown.error == "UsageError"
    assert "there are: " in unknown.text
    assert unknown.text.count("\n") == 1


def test_the_list(kernel: Kernel) -> None:
    """%gpureport list ranks the cells seen by time, energy or peak, as many as asked for."""
    first = kernel.run(f"# the first\n{LONG}").execution_count
    reply = kernel.run("%gpureport list -k 300")
    assert f"[{first}]" in reply.text
    assert "# the first" in reply.text
    rows = kernel.run("%gpureport list --by joules -k 2").text.splitlines()
    assert len(rows) == 4
    assert rows[0].endswith("cells by energy")
    assert all(" J" in row for row in rows[2:])


def test_the_list_says_what_failed(kernel: Kernel) -> None:
    """A measured cell that raised stands in the list with its exception's class name."""
    kernel.run("%%gpuprofile -q\n1 / 0")
    kernel.run(f"{LONG}\n{{}}['x']")
    text = kernel.run("%gpureport list -k 300").text
    assert "! failed: ZeroDivisionError" in text
    assert "! failed: KeyError" in text


def test_other_gpus(kernel: Kernel) -> None:
    """On again takes over the GPUs configured since; wrong ones are one line, and all stays."""
    try:
        kernel.run("%config GpuMagic.gpus = '7'")
        reply = kernel.run("%gpureport on")
        assert reply.error == "UsageError"
        assert reply.text.count("\n") == 1
        assert "GPU  76" in footer_of(kernel.run(LONG))
        kernel.run("%config GpuMagic.gpus = '0'")
        assert kernel.run("%gpureport on").text.startswith("Footers are on: ")
        assert "GPU  76" in footer_of(kernel.run(LONG))
        assert threads(kernel).count("gpumagic-sampler") == 1
    finally:
        kernel.run("%config GpuMagic.gpus = 'usable'")


def test_beside_a_watch(kernel: Kernel) -> None:
    """Footers and a watch share the sampler, and each goes on without the other."""
    kernel.run("%gpuwatch --text")
    assert threads(kernel).count("gpumagic-sampler") == 1
    footer_of(kernel.run(LONG))
    kernel.run("%gpuwatch stop")
    footer_of(kernel.run(LONG))


def test_off(running: Kernel) -> None:
    """After off there are no footers and no thread; what was seen is still had."""
    running.run("%gpureport on")
    seen = running.run(LONG).execution_count
    running.run("%gpureport off")
    assert threads(running) == []
    assert running.run(LONG).outputs == []
    assert running.run(f"%gpureport {seen}").text.startswith(f"[{seen}]")
    assert "on starts them" in running.run("%gpureport off").text


def test_unload(running: Kernel, stub: NvmlStub) -> None:
    """Unloading under footers leaves no thread and no hook, and NVML is given back."""
    running.run("%gpureport on")
    running.run(LONG)
    assert running.run("%unload_ext gpumagic").outputs == []
    assert threads(running) == []
    assert running.evaluate("len(get_ipython().display_pub._hooks)") == 0
    assert running.run(LONG).outputs == []
    assert stub.init_balance == 0
    assert running.run("%load_ext gpumagic").outputs == []
