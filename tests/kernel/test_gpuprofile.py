"""%gpuprofile and %%gpuprofile in a shell: wrong input is told in words, errors are the user's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from fakes_torch import FakeDevice, FakeHistory, FakeTorch
from fresh_shell import fresh_shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """Give a fresh shell with gpumagic loaded, whose files live in a temporary directory."""
    with fresh_shell(tmp_path, monkeypatch) as made:
        yield made


@pytest.mark.parametrize("statement", ["1+", "!ls", "await f()", "return 5", "a\0b"])
def test_a_syntax_error_is_one_line(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    """A statement that does not compile fails in one line that quotes it, without a traceback."""
    with pytest.raises(UsageError, match="%gpuprofile: SyntaxError: ") as error:
        shell.run_line_magic("gpuprofile", statement)
    assert statement in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.__context__ is None
    result = shell.run_cell(f"%gpuprofile {statement}")
    assert isinstance(result.error_in_exec, UsageError)
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err


def test_a_failing_statement_shows_no_frames_of_ours(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback of an error in the statement has none of gpumagic's own frames."""
    shell.run_cell("%gpuprofile -q 1 / 0")
    said = capsys.readouterr()
    assert "ZeroDivisionError" in said.out + said.err
    assert "profile.py" not in said.out + said.err


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("-x 5", "there is no option -x .*-- ends the options, as in %gpuprofile -- -x 5"),
        ("--foo 5", "there is no option --foo"),
        ("--foo=1 5", "there is no option --foo=1"),
        ("-q -x", "there is no option -x"),
        ("-nfoo 5", "-n takes its value apart, as in -n foo"),
        ("--peak 5", "choose from '?auto'?, '?exact'?"),
        ("--peak=most 5", "choose from '?auto'?, '?exact'?"),
        ("-o print 5", "'print' is a name of Python's own: take another"),
    ],
)
def test_a_wrong_option_is_one_line(shell: InteractiveShell, line: str, remedy: str) -> None:
    """A word like an option that is none is refused, with the way to write it as a statement."""
    with pytest.raises(UsageError, match=remedy) as error:
        shell.run_line_magic("gpuprofile", line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "value"),
    [("-q -- -x", -5), ("-q -1", -1), ("-q -(x)", -5), ("-q -abs(x)", -5), ("--name=a -q x", 5)],
)
def test_a_statement_may_begin_with_a_minus(
    shell: InteractiveShell, line: str, value: int
) -> None:
    """What cannot be an option is the statement, and so is all that follows two dashes."""
    shell.user_ns["x"] = 5
    assert shell.run_line_magic("gpuprofile", line) == value


@pytest.mark.parametrize("name", ["print", "len", "class", "None", "True", "type"])
def test_output_takes_no_name_of_pythons_own(shell: InteractiveShell, name: str) -> None:
    """-o refuses keywords and the names of builtins before the cell runs."""
    result = shell.run_cell(f"%%gpuprofile -o {name}\nran = True")
    assert isinstance(result.error_in_exec, UsageError)
    assert "such as -o p" in str(result.error_in_exec)
    assert "ran" not in shell.user_ns
    assert name not in shell.user_ns


@pytest.mark.parametrize("magic", ["reload_ext", "unload_ext"])
def test_an_unload_in_a_measured_cell_is_told(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], magic: str
) -> None:
    """A cell that unloads gpumagic while it is measured gets one line instead of a report."""
    result = shell.run_cell(f"%%gpuprofile -o p\n%{magic} gpumagic\n6 * 7")
    assert result.result == 42
    said = capsys.readouterr().err
    assert said == "gpumagic was unloaded while this cell was measured: no report\n"
    assert "p" not in shell.user_ns


def test_an_unload_between_cells_says_nothing(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unload outside a measured cell drops nothing and is silent."""
    shell.run_cell("%%gpuprofile -q\n1")
    capsys.readouterr()
    shell.run_cell("%unload_ext gpumagic")
    assert capsys.readouterr().err == ""


def test_a_measured_cell_inside_another_is_told(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """A nested %%gpuprofile runs its cell, and a line says that it has no report of its own."""
    shell.run_cell("%%gpuprofile -q -o p\nget_ipython().run_cell('%%gpuprofile -o inner\\ny = 1')")
    assert shell.user_ns["y"] == 1
    assert "inner" not in shell.user_ns
    said = capsys.readouterr().err
    assert said == "gpumagic: a %%gpuprofile inside a measured cell is not measured apart\n"


@pytest.mark.parametrize("torch", ["none", "without CUDA", "not initialised"])
def test_an_exact_peak_without_cuda_is_as_without_the_option(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, torch: str
) -> None:
    """With no torch, or one whose CUDA is not up, the cell runs untouched and it says why."""
    if torch != "none":
        FakeTorch(
            cuda=None if torch == "without CUDA" else "13.0", initialised=False,
            history=FakeHistory(),
        ).install(monkeypatch)
    result = shell.run_cell("%%gpuprofile -q --peak exact -o p\n6 * 7")
    assert result.result == 42
    found = shell.user_ns["p"].to_dict()
    assert found["peak_method"] == (
        "torch had not initialised CUDA when the cell began: peak by torch's counters"
    )
    assert shell.run_line_magic("gpuprofile", "-q --peak exact -o q 6 * 7") == 42
    assert shell.user_ns["q"].peak_method == found["peak_method"]
    shell.run_cell("%%gpuprofile -q -o p\n1")
    assert shell.user_ns["p"].to_dict()["peak_method"] == ""


def test_a_wrong_peak_runs_nothing(shell: InteractiveShell) -> None:
    """A value of --peak that is none is one line that names the choices, and no cell runs."""
    result = shell.run_cell("%%gpuprofile --peak most\nran = True")
    assert isinstance(result.error_in_exec, UsageError)
    assert re.search("'?auto'?, '?exact'?", str(result.error_in_exec))
    assert "\n" not in str(result.error_in_exec)
    assert "ran" not in shell.user_ns


def test_a_cell_with_a_history_ends_without(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that ends, fails or is interrupted leaves the allocator's history off."""
    history = FakeHistory()
    FakeTorch([FakeDevice("aaaaaaaa-0000-4000-8000-000000000000")], history=history).install(
        monkeypatch
    )
    shell.user_ns["one"] = history.allocators[0]
    for cell in ("one.alloc(5)", "1 / 0", "raise KeyboardInterrupt"):
        history.switched.clear()
        shell.run_cell(f"%%gpuprofile -q --peak exact\n{cell}")
        assert history.switched == [True, False], cell
        assert not history.on
