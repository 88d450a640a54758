"""Kernels of several versions, and the cells that the cell magic must leave alone.

``python tests/kernel/matrix.py [NAME ...]`` builds the virtual environments of the table below with
pip, from the network, under ``build/matrix/`` or ``$GPUMAGIC_MATRIX_VENVS``. The tests use those
that exist and skip the others; ``-m matrix``, ``GPUMAGIC_MATRIX=1`` or ``GPUMAGIC_REQUIRE_ALL=1``
builds what is missing. "current" is the environment that runs pytest. An environment whose pins
have changed is built anew.
"""

from __future__ import annotations

import ast
import json
import os
import queue
import re
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
TIMEOUT_S = 30.0
_REST_S = 0.2
"""How long after it printed ``ready`` a cell is surely in its wait."""

# What gpumagic itself needs beside IPython: the oldest that it promises, and the newest.
OLDEST = (
    "ipywidgets==8.0.7",
    "bqplot==0.12.47",
    "nvidia-ml-py==12.535.133",
    "psutil==5.9.8",
    "pillow",
)
NEWEST = ("ipywidgets", "bqplot", "nvidia-ml-py", "psutil", "pillow")

# For what reads torch's tensors.
TORCH = ("torch==2.13.0",)

# name -> what pip installs into it; None is the environment that runs pytest.
PINS: dict[str, tuple[str, ...] | None] = {
    "current": None,
    "ipython8.12-ipykernel6.29": ("ipython==8.12.3", "ipykernel==6.29.5", *OLDEST, *TORCH),
    "ipython9-ipykernel7.0": ("ipython", "ipykernel==7.0.1", *NEWEST),
    "ipython9-ipykernel7.1": ("ipython", "ipykernel==7.1.0", *NEWEST),
    "newest": ("ipython", "ipykernel", *NEWEST, *TORCH),
}


def venv_python(name: str) -> Path:
    """Return where the Python of the environment ``name`` is, built or not."""
    if PINS[name] is None:
        return Path(sys.executable)
    default = REPOSITORY / "build" / "matrix"
    folder = Path(os.environ.get("GPUMAGIC_MATRIX_VENVS") or default) / name
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def build(name: str) -> Path:
    """Build the environment ``name`` unless it is there, and return its Python."""
    python, pins = venv_python(name), PINS[name]
    if pins is not None and not is_built(name):
        folder = python.parents[1]
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
        (folder / "ready").write_text("\n".join(pins))
    return python


def is_built(name: str) -> bool:
    """Tell whether the environment ``name`` can be used."""
    pins = PINS[name]
    if pins is None:
        return True
    ready = venv_python(name).parents[1] / "ready"  # a build that was cut short has no such file
    return ready.exists() and ready.read_text() == "\n".join(pins)


class Manager(KernelManager):
    """A manager that starts ipykernel from one given Python."""

    python: Path

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [str(self.python), "-Xfrozen_modules=off", "-m", "ipykernel_launcher"]
        return KernelSpec(argv=[*argv, "-f", "{connection_file}"], language="python")


@dataclass
class Reply:
    """What a front-end gets to see of one cell."""

    status: str = ""
    error: str | None = None
    execution_count: int = 0
    outputs: list[tuple[str, str]] = field(default_factory=list)
    msg_id: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """All that came while the cell ran, whoever it belongs to."""

    @property
    def text(self) -> str:
        """All outputs as one text."""
        return "".join(text for _, text in self.outputs)


def kernel_environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a kernel that finds this repository and writes into a folder."""
    paths = [str(HERE), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


class Kernel:
    """A running kernel with an extension loaded: the probe, unless another one is named."""

    def __init__(
        self, python: Path, folder: Path, *, extension: str = "cell_probe", **variables: str
    ) -> None:
        self.folder = folder
        self.manager = Manager()
        self.manager.python = python
        environment = kernel_environment(folder, **variables)
        self.stderr_path = folder / "stderr.txt"
        with self.stderr_path.open("w") as stderr:
            self.manager.start_kernel(env=environment, cwd=str(folder), stderr=stderr)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_S)
        loaded = self.run(f"%load_ext {extension}")
        assert loaded.status == "ok", loaded

    def stop(self) -> None:
        """Shut the kernel down."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def end(self, *, restart: bool) -> tuple[int, float]:
        """Ask the kernel to end, as a front end does; return its status and the seconds taken."""
        begun = time.monotonic()
        process = self.manager.provisioner.process
        self.client.shutdown(restart=restart)
        status = process.wait(TIMEOUT_S)
        return status, time.monotonic() - begun

    def run(
        self, code: str, *, silent: bool = False, on_text: Callable[[str], None] | None = None
    ) -> Reply:
        """Run ``code`` as a cell; ``on_text`` is told of each piece of printed text."""
        msg_id = self.client.execute(code, silent=silent, store_history=not silent)
        reply = Reply(msg_id=msg_id)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            own = message["parent_header"].get("msg_id") == msg_id
            if own or reply.messages:
                reply.messages.append(message)
            if not own:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            self._add(reply.outputs, kind, content)
            if kind == "stream" and on_text is not None:
                on_text(content["text"])
        content = self._reply(msg_id)
        reply.status, reply.error = content["status"], content.get("ename")
        reply.execution_count = content.get("execution_count", 0)
        return reply

    def interrupt_when_ready(self, code: str) -> Reply:
        """Run ``code`` and interrupt the kernel when it has printed ``ready`` and waits."""

        def on_text(text: str) -> None:
            if "ready" in text:
                time.sleep(_REST_S)
                self.manager.interrupt_kernel()

        return self.run(code, on_text=on_text)

    def evaluate(self, expression: str) -> Any:
        """Evaluate an expression whose value is a literal, beside any cell."""
        msg_id = self.client.execute("", silent=True, user_expressions={"it": expression})
        value = self._reply(msg_id)["user_expressions"]["it"]
        assert value["status"] == "ok", value
        return ast.literal_eval(value["data"]["text/plain"])

    def notes(self) -> list[dict[str, Any]]:
        """Take what the probe noted since the last call."""
        found: list[dict[str, Any]] = json.loads(self.evaluate("__import__('cell_probe').drain()"))
        return found

    def _reply(self, msg_id: str) -> dict[str, Any]:
        while True:
            try:
                message = self.client.get_shell_msg(timeout=TIMEOUT_S)
            except queue.Empty:
                raise AssertionError("the kernel did not answer") from None
            if message["parent_header"].get("msg_id") == msg_id:
                content: dict[str, Any] = message["content"]
                return content

    @staticmethod
    def _add(outputs: list[tuple[str, str]], kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            kind, text = content["name"], content["text"]
            if outputs and outputs[-1][0] == kind:  # how text is split depends on timing
                text = outputs.pop()[1] + text
        elif kind in ("display_data", "execute_result", "update_display_data"):
            text = content["data"]["text/plain"]
        elif kind == "clear_output":
            text = str(content["wait"])
        elif kind == "error":
            text = "\n".join(content["traceback"])
        else:
            return
        outputs.append((kind, text))


_COUNT = re.compile(r"In ?\[\d+\]")
_TIMES = re.compile(r"(?m)^(CPU times|Wall time|Compiler *|Parser *): .*$")
_ADDRESS = re.compile(r"0x[0-9a-f]+|/tmp/ipykernel_\d+/\d+\.py")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_FIRST_LINE = re.compile(r"(?m)^( +|-+> )1 .*$")
_RULE = re.compile(r"(?m)^-+$")
_FRAME = re.compile(r"(Cell In\[#\], line )(\d+)\n(?:.*\S.*\n?)*")
_NAME = re.compile(r"`%%\w+`")

Shown = tuple[str, "str | None", list[tuple[str, str]]]


def normal(reply: Reply, moved: int | None = None) -> Shown:
    """Return what must be the same with and without the magic.

    Taken out are times, addresses, prompts' numbers, colours, and the text of line 1 where a
    traceback quotes it: that line is the magic's. ``moved`` is for cells whose lines do not agree:
    it is added to the line numbers of the cell itself, whose quoted source is dropped then.
    """
    outputs = []
    for kind, text in reply.outputs:
        text = _ADDRESS.sub("0x", _TIMES.sub(r"\1", _COUNT.sub("In[#]", _STYLE.sub("", text))))
        if moved is not None:
            text = _FRAME.sub(lambda frame: f"{frame[1]}{int(frame[2]) + moved}\n", text)
        text = _RULE.sub("---", _FIRST_LINE.sub(r"\g<1>1 (line 1)", text))
        outputs.append((kind, _NAME.sub("`%%name`", text)))
    return reply.status, reply.error, outputs


@dataclass(frozen=True)
class Row:
    """A cell with the magic, the cell without it, and how the measurement ends.

    ``after`` is a cell whose outputs must agree too, for what the first one leaves behind.
    """

    name: str
    plain: str
    magic: str
    status: str = "ok"
    error: str | None = None
    measured: bool = True
    after: str = ""
    moved: bool = False  # the plain cell is a line shorter
    shell: bool = True  # also in a plain InteractiveShell


def same(name: str, body: str, status: str = "ok", error: str | None = None, **more: Any) -> Row:
    """Return a row whose plain cell has a comment in place of the magic, so that lines agree."""
    return Row(name, "#\n" + body, "%%gpuprofile\n" + body, status, error, **more)


def alone(name: str, body: str, status: str = "ok", error: str | None = None, **more: Any) -> Row:
    """Return a row whose plain cell is the body alone, because its first line matters."""
    return Row(name, body, "%%gpuprofile\n" + body, status, error, moved=True, **more)


_AGEN = "async def agen():\n    for i in range(3):\n        yield i\n"
_ACM = (
    "import contextlib\n@contextlib.asynccontextmanager\nasync def acm():\n"
    "    print('in')\n    yield 7\n    print('out')\n"
)

ROWS: list[Row] = [
    same("value", "1 + 1"),
    same("semicolon", "1 + 1;"),
    same("semicolon and comment", "1 + 1;  # quiet"),
    same("none", "x = 3"),
    same("underscore", "5 * 5\n_ = None\n'six'"),
    same("await", "import asyncio\nawait asyncio.sleep(0, 'slept')"),
    same("await on the first line", "await __import__('asyncio').sleep(0, 'slept')"),
    same(
        "await raises",
        "import asyncio\n\nawait asyncio.wait_for(asyncio.Event().wait(), 0)",
        "error",
        "TimeoutError",
    ),
    same("async comprehension", _AGEN + "[i async for i in agen()]"),
    same("async for", _AGEN + "async for i in agen():\n    print(i)"),
    same("async with", _ACM + "async with acm() as seven:\n    print(seven)"),
    same("error", "a = 1\n\nb = 0\na / b\nprint('never')", "error", "ZeroDivisionError"),
    same("error on the first line", "1 / 0", "error", "ZeroDivisionError"),
    same(
        "error in a function",
        "def f():\n    return g()\ndef g():\n    return {}['k']\n\nf()",
        "error",
        "KeyError",
    ),
    same(
        "error with a cause",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('so') from e",
        "error",
        "ValueError",
    ),
    same("assertion", "assert 1 == 2, 'no'", "error", "AssertionError"),
    same("SyntaxError", "a = 1\nb = = 2", "error", "SyntaxError", measured=False),
    same("IndentationError", "if True:\npass", "error", "IndentationError", measured=False),
    same("SystemExit", "import sys\nsys.exit(3)", "error", "SystemExit"),
    same("raised KeyboardInterrupt", "raise KeyboardInterrupt", "interrupted", "KeyboardInterrupt"),
    alone("%%time below", "%%time\nprint('a')\n40 + 2"),
    alone("%%time below, one line", "%%time\n40 + 2"),
    alone("%%time below, quiet", "%%time\n40 + 2;"),
    alone("%%time below, blank between", "\n\n%%time\n40 + 2"),
    alone("%%time below, error", "%%time\nx = 1\nx / 0", "error", "ZeroDivisionError"),
    alone("%%time below, one-line body of ours", "%%time\npwd"),
    alone(
        "%%capture below",
        "%%capture out\nprint('hidden')\ndisplay(1)\n2",
        after="out.stdout, [o.data for o in out.outputs]",
    ),
    Row("%%capture below, error", "%%capture out\n1 / 0", "%%gpuprofile\n%%capture out\n1 / 0"),
    alone("%%bash below", "%%bash\necho from bash\necho to stderr >&2"),
    alone("%%bash below, fails", "%%bash\nexit 3", "error", "CalledProcessError"),
    alone(
        "%%writefile below",
        "%%writefile written.txt\nline one\n  line two\n",
        after="!cat written.txt; rm written.txt",
    ),
    alone("unknown cell magic below", "%%nosuchmagic\nx", "error", "UsageError"),
    Row(
        "%%time above", "%%time\n#\nprint('a')\n40 + 2", "%%time\n%%gpuprofile\nprint('a')\n40 + 2"
    ),
    Row(
        "%%time above, error",
        "%%time\n#\nx = 1\nx / 0",
        "%%time\n%%gpuprofile\nx = 1\nx / 0",
        "error",
        "ZeroDivisionError",
    ),
    Row(
        "%%capture above",
        "%%capture out\n#\nprint('hid')\n2",
        "%%capture out\n%%gpuprofile\nprint('hid')\n2",
    ),
    Row(
        "%%capture above, error",
        "%%capture out\n#\n1 / 0",
        "%%capture out\n%%gpuprofile\n1 / 0",
        "error",
        "ZeroDivisionError",
    ),
    same("line magics", "%time 1 + 1\nwhere = %pwd\nwhere == __import__('os').getcwd()"),
    same("magic in a block", "for i in range(2):\n    %time i"),
    same("shell lines", "!echo one\nwords = !echo two\nwords"),
    alone("automagic", "pwd"),
    alone("automagic after a blank line", "\npwd"),
    same("help in the body", "len?", shell=False),
    Row(
        "blank lines above", "\n\n#\n1 / 0", "\n\n%%gpuprofile\n1 / 0", "error", "ZeroDivisionError"
    ),
    Row(
        "comment above",
        "# c\n%%time\n1",
        "# c\n%%gpuprofile\n1",
        "error",
        "UsageError",
        measured=False,
    ),
    same("comment only", "# nothing"),
    same("blank lines within", "\n\n\n1 / 0", "error", "ZeroDivisionError"),
    alone("indented body", "    x = 1\n    if x:\n        print(x)\n    x"),
    alone("indented everything", "    x = 1\n    x"),
    Row("indented magic too", "    #\n    x = 1\n    x", "    %%gpuprofile\n    x = 1\n    x"),
    Row(
        "CRLF",
        "#\r\nx = 1\r\nif x:\r\n    print(x)\r\n1 / 0",
        "%%gpuprofile -o p\r\nx = 1\r\nif x:\r\n    print(x)\r\n1 / 0",
        "error",
        "ZeroDivisionError",
    ),
    same("doctest prompts", ">>> x = 1\n>>> for i in range(2):\n...     print(i)\n>>> x"),
    same("IPython prompts", "In [1]: x = 1\n   ...: x"),
    same("unicode", "größe = 'Ω→\u2028 🙂'\nprint(größe)\ngröße"),
    same("unicode error", "größe = '🙂'\n'é' + größe / 0", "error", "TypeError"),
    same("docstring only", '"""A docstring."""'),
    same("text with blank lines", 'text = """a\n   \n%%time\n\tb"""\ntext'),
    same(
        "future import",
        "from __future__ import annotations\ndef f(x: nosuch) -> None: ...\nf.__annotations__",
    ),
    same(
        "order",
        "print('a')\ndisplay(1)\nprint('b')\nimport sys\nprint('c', file=sys.stderr)\n"
        "display(2)\n3",
    ),
    same("update", "h = display(1, display_id='h')\nh.update(2)"),
    same("clear now", "from IPython.display import clear_output\nprint('a')\nclear_output()\n1"),
    same("nested run_cell", "r = get_ipython().run_cell('print(1)\\n2 + 2')\nr.result + 1"),
    same(
        "nested blank run_cell", "r = get_ipython().run_cell('')\nr = get_ipython().run_cell(' ')"
    ),
    same("nested failing run_cell", "r = get_ipython().run_cell('1 / 0')\nr.success"),
    same(
        "source",
        "import inspect\ndef f():\n    # here\n    return 1\n"
        "print(inspect.getsource(f), inspect.getsourcelines(f)[1])",
    ),
]


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PINS:
        print(chosen, build(chosen))
