"""The extension in a shell: what it puts in, and that it takes all of it out again."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics

from fresh_shell import fresh_shell
from nvml_stub import NvmlStub, compiler

HEAVY = ("torch", "bqplot", "ipywidgets", "numpy", "pandas", "PIL", "psutil", "pynvml")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Give a fresh shell whose history and profile live in a temporary directory."""
    with fresh_shell(tmp_path, monkeypatch, load=False) as made:
        yield made


def state(shell: InteractiveShell) -> dict[str, Any]:
    """Return all that an extension could leave behind in a shell."""
    callbacks = shell.events.callbacks
    return {
        # Names only: IPython itself loads its own magics lazily, at their first use.
        "line": set(shell.magics_manager.magics["line"]),
        "cell": set(shell.magics_manager.magics["cell"]),
        "cleanup": list(shell.input_transformers_cleanup),
        "post": list(shell.input_transformers_post),
        "ast": list(shell.ast_transformers),
        "events": {name: list(functions) for name, functions in callbacks.items()},
        "configurables": [
            type(c).__name__ for c in shell.configurables if not isinstance(c, Magics)
        ],
        "threads": {t.name for t in threading.enumerate() if t.name.startswith("gpumagic")},
        "names": set(shell.user_ns),
    }


def test_unload_leaves_nothing(shell: InteractiveShell) -> None:
    """After load, use and unload, the shell is as it was before."""
    before = state(shell)
    shell.run_line_magic("load_ext", "gpumagic")
    assert state(shell) != before
    shell.run_line_magic("gpuwatch", "")
    shell.run_cell("%%gpuprofile -q -o measured\nx = 1")
    assert shell.user_ns["measured"].exit == "ok"
    del shell.user_ns["measured"], shell.user_ns["x"]
    shell.run_line_magic("unload_ext", "gpumagic")
    after = state(shell)
    after["names"] = before["names"] = before["names"] | after["names"]
    assert after == before


def test_load_twice_and_reload(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    """Loading twice says so and changes nothing; reloading leaves one of each."""
    shell.run_line_magic("load_ext", "gpumagic")
    once = {name: len(f) for name, f in shell.events.callbacks.items()}
    shell.run_line_magic("load_ext", "gpumagic")
    assert "already loaded" in capsys.readouterr().out
    assert {name: len(f) for name, f in shell.events.callbacks.items()} == once
    shell.run_line_magic("reload_ext", "gpumagic")
    assert {name: len(f) for name, f in shell.events.callbacks.items()} == once
    assert sum(type(c).__name__ == "GpuMagic" for c in shell.configurables) == 1
    shell.run_cell("%%gpuprofile -q -o measured\n21 * 2")
    assert shell.user_ns["measured"].exit == "ok"
    assert shell.user_ns["_"] == 42


def test_reload_stops_the_sampler(shell: InteractiveShell) -> None:
    """A reload while a watch runs stops its thread; the next watch starts another."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_line_magic("gpuwatch", "")
    assert len(state(shell)["threads"]) == 1
    shell.run_line_magic("reload_ext", "gpumagic")
    assert state(shell)["threads"] == set()
    shell.run_line_magic("gpuwatch", "")
    assert len(state(shell)["threads"]) == 1


def test_two_watches_share_one_sampler(shell: InteractiveShell) -> None:
    """A second watch takes the first one's place, and a stop ends all sampling."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_line_magic("gpuwatch", "")
    shell.run_line_magic("gpuwatch", "-w 30")
    assert state(shell)["threads"] == {"gpumagic-sampler"}
    shell.run_line_magic("gpuwatch", "stop")
    assert state(shell)["threads"] == set()


@pytest.mark.parametrize(
    ("magic", "line", "part"),
    [
        ("gpuwatch", "-i 0.0001", "goes from 0.02"),
        ("gpuwatch", "-i nan", "goes from 0.02"),
        ("gpuwatch", "-i soon", "not a number"),
        ("gpuwatch", "-w 0", "goes from 5"),
        ("gpuwatch", "-m nope", "there are: util"),
        ("gpuwatch", "-m ''", "there are: util"),
        ("gpuwatch", "-g ' '", "no GPU is named"),
        ("gpuwatch", "go", "invalid choice"),
        ("gpuwatch", "--foo", "unrecognized"),
        ("gpuwatch", "'open", "no closing quotation"),
        ("gpuwatch", "--record /no/such/dir/x.jsonl", "cannot be written"),
        ("gpuwatch", "--replay /no/such/file", "cannot be read"),
        ("gpuwatch", "--replay demo --speed 0", "--speed"),
        ("gpuwatch", "--replay demo --record x", "--replay shows"),
        ("gpuprofile", "", "takes a statement"),
        ("gpuprofile", "-o 1x print()", "name of a variable"),
        ("gpureport", "", "no cell has been measured"),
        ("gpureport", "12", "no cell has been measured"),
        ("gpureport", "12 --by time", "belong to %gpureport list"),
        ("gpureport", "list -k 0", "at least 1"),
        ("gpureport", "list --by name", "invalid choice"),
        ("gpureport", "on -n on", "once"),
        ("gpureport", "12 13", "unrecognized"),
        ("gpumem", "--foo", "unrecognized"),
        ("gpufree", "--foo", "unrecognized"),
    ],
)
def test_bad_input(shell: InteractiveShell, magic: str, line: str, part: str) -> None:
    """Bad input is a one-line usage error that names the remedy, and nothing keeps running."""
    shell.run_line_magic("load_ext", "gpumagic")
    with pytest.raises(UsageError, match=part) as error:
        shell.run_line_magic(magic, line)
    assert "\n" not in str(error.value)
    assert state(shell)["threads"] == set()


def test_a_bad_watch_leaves_the_running_one(shell: InteractiveShell) -> None:
    """A usage error in a second %gpuwatch leaves the first one running."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_line_magic("gpuwatch", "")
    with pytest.raises(UsageError):
        shell.run_line_magic("gpuwatch", "--replay /no/such/file")
    assert state(shell)["threads"] == {"gpumagic-sampler"}


def test_settings(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    """%config sets what is valid and says in words what is not."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_line_magic("config", "GpuMagic.interval_s = 0.5")
    shell.run_cell("%gpuwatch\n%gpuwatch status")
    assert "every 0.5 s" in capsys.readouterr().out
    settings = next(c for c in shell.configurables if type(c).__name__ == "GpuMagic")
    shell.run_cell("%config GpuMagic.interval_s = 0")
    assert settings.interval_s == 0.5


def test_a_changed_interval_reaches_the_sampler(shell: InteractiveShell) -> None:
    """%config GpuMagic.interval_s takes effect on the watch that runs."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_line_magic("gpuwatch", "")
    shell.run_line_magic("config", "GpuMagic.interval_s = 0.5")
    from gpumagic.session import current

    assert current().recording.periods["allocator"] == 0.5


def test_statement(shell: InteractiveShell) -> None:
    """%gpuprofile STATEMENT gives the statement's value and keeps its quotes and braces."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_cell("r = %gpuprofile -q -n 'my step' -o p {'a': 'x  y'}['a']")
    assert shell.user_ns["r"] == "x  y"
    assert shell.user_ns["p"].name == "my step"


def test_statement_fails_as_ever(shell: InteractiveShell) -> None:
    """A failing statement raises its own error, and its report still comes."""
    shell.run_line_magic("load_ext", "gpumagic")
    result = shell.run_cell("%gpuprofile -q -o p 1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert shell.user_ns["p"].exit == "error"


def test_report_again(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    """%gpureport shows the last report, or the one of a number or a name."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_cell("%%gpuprofile -q -n first\n1", store_history=True)
    shell.run_cell("%%gpuprofile -q\n2", store_history=True)
    number = shell.execution_count - 1
    for line, name in (("", f"[{number}]"), (str(number), f"[{number}]"), ("first", "first")):
        shell.run_line_magic("gpureport", line)
        assert name in capsys.readouterr().out
    with pytest.raises(UsageError, match="no report of 'nobody'"):
        shell.run_line_magic("gpureport", "nobody")


def test_a_profile_may_be_named_like_a_word(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report named "on" is had with -n, and with the bare word footers go on."""
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_cell("%%gpuprofile -q -n on\n1", store_history=True)
    capsys.readouterr()
    shell.run_line_magic("gpureport", "--name on")
    assert capsys.readouterr().out.startswith("on ")
    shell.run_line_magic("gpureport", "on")
    assert capsys.readouterr().out.startswith("Footers are on: ")
    assert state(shell)["threads"] == {"gpumagic-sampler"}


def test_unload_with_footers_on(shell: InteractiveShell) -> None:
    """Unloading under footers takes all of them out, and a reload starts without."""
    before = state(shell)
    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_line_magic("gpureport", "on")
    shell.run_cell("1", store_history=True)
    shell.run_line_magic("unload_ext", "gpumagic")
    after = state(shell)
    after["names"] = before["names"] = before["names"] | after["names"]
    assert after == before
    shell.run_line_magic("load_ext", "gpumagic")
    assert state(shell)["threads"] == set()


def test_an_error_of_ours_leaves_the_cell_alone(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in a footer is told in one line, once, and the cells succeed."""
    from gpumagic.footers import Footers

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the footer broke")

    shell.run_line_magic("load_ext", "gpumagic")
    shell.run_line_magic("gpureport", "on")
    monkeypatch.setattr(Footers, "cell_ended", fail)
    monkeypatch.setattr(Footers, "cell_began", fail)
    capsys.readouterr()
    for _ in range(3):
        assert shell.run_cell("21 * 2", store_history=True).success
    said = capsys.readouterr()
    assert said.err == "gpumagic: no footer: RuntimeError: the footer broke\n"
    assert "Traceback" not in said.out


def test_footers_cost_little(shell: InteractiveShell) -> None:
    """An empty cell takes at most 0.3 ms more with footers on than with them off."""
    shell.run_line_magic("load_ext", "gpumagic")
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(5):
        for word, found in times.items():
            shell.run_line_magic("gpureport", word)
            for _ in range(30):
                begun = time.perf_counter()
                shell.run_cell("pass", store_history=True)
                found.append(time.perf_counter() - begun)
    assert statistics.median(times["on"]) - statistics.median(times["off"]) < 0.3e-3


@pytest.mark.skipif(sys.platform != "linux", reason="psutil tells of ended children on Linux only")
def test_commands_in_a_measured_cell_count(shell: InteractiveShell) -> None:
    """A cell that waits for a command reports the processor time that the command has used."""
    shell.run_line_magic("load_ext", "gpumagic")
    spin = "import time; t = time.process_time()\\nwhile time.process_time() - t < 1.5: pass"
    before = os.times()
    shell.run_cell(
        "%%gpuprofile -q -o p\nimport subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', '{spin}'])"
    )
    after = os.times()
    used = sum(after[2:4]) - sum(before[2:4])
    assert used > 1.4
    summary = shell.user_ns["p"].summary
    ratio = summary.host.figure("children_cpu_ratio").mean
    assert ratio == pytest.approx(used / summary.wall_s, abs=0.15)


LOADED = """
import sys, json
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
shell.run_line_magic("load_ext", "gpumagic")
shell.run_cell("1 + 1")
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_load_is_light(tmp_path: Path) -> None:
    """Loading the extension imports none of the heavy packages and few modules at all."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True,
        env={**_environment(), "IPYTHONDIR": str(tmp_path)},
    )
    new = json.loads(done.stdout.splitlines()[-1])
    assert not [name for name in new if name.split(".")[0] in HEAVY]
    assert len([name for name in new if name.startswith("gpumagic")]) < 20


BALANCE = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpumagic")
shell.run_line_magic("gpuwatch", "")
shell.run_cell("%%gpuprofile -q -o p\\nimport time; time.sleep(0.5)")
shell.run_line_magic("gpumem", "")
shell.run_line_magic("unload_ext", "gpumagic")
print(len(shell.user_ns["p"].summary.gpus), "GPUs")
"""


@pytest.mark.skipif(compiler() is None, reason="the stub NVML is built with gcc")
def test_nvml_is_given_back(tmp_path: Path) -> None:
    """After unload NVML has been shut down as often as it was initialised, and nothing blocked."""
    stub = NvmlStub(tmp_path, gpus=2)
    stub.write(log_calls=True)
    done = subprocess.run(
        [sys.executable, "-c", BALANCE], capture_output=True, text=True, check=True,
        env=stub.environment() | {"IPYTHONDIR": str(tmp_path)},
    )
    assert "2 GPUs" in done.stdout
    assert stub.init_balance == 0
    assert stub.calls("nvmlInitWithFlags")
    assert stub.calls("nvmlDeviceGetUtilizationRates")
    assert not stub.calls("nvmlDeviceGetPcieThroughput")


def _environment() -> dict[str, str]:
    return dict(os.environ)
