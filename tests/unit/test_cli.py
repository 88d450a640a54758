"""The command: recording without a notebook, and what it says when it cannot."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import pytest

import gpumagic
from gpumagic import cli
from gpumagic.cli import main
from nvml_stub import NvmlStub

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30


@pytest.fixture
def driver(
    tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NvmlStub]:
    """Two GPUs, for this process and for those that it starts."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stub = NvmlStub(tmp_path / "driver", 2, libraries=libraries)
    with stub.load_in_process():
        yield stub


def start(stub: NvmlStub, *arguments: str, out: int | IO[str] = subprocess.PIPE,
          **variables: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "gpumagic", *arguments],
        env={**stub.environment(), "PYTHONPATH": paths, **variables},
        stdout=out, stderr=subprocess.PIPE, text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a process; return its exit code and what it said on standard error."""
    with process:
        try:
            _, said = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, said


def objects(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


# -- what is recorded -------------------------------------------------------------------------


def test_a_recording_of_a_while(
    driver: NvmlStub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file holds header, all GPUs and the host, loads again, and is summed up in one line."""
    path = tmp_path / "gpu.jsonl"
    code = main(["record", "--interval", "0.05", "--duration", "0.5", "--out", str(path)])
    assert code == 0
    lines = objects(path.read_text())
    assert lines[0] == {
        "kind": "recording", "version": 1, "gpumagic": gpumagic.__version__,
        "period_nvml_s": 0.05, "period_nvml_slow_s": 1.0, "period_host_s": 1.0,
    }
    recording = gpumagic.load(path)
    assert [device.label for device in recording.devices] == ["GPU 0", "GPU 1", "Host"]
    for gpu in recording.devices[:2]:
        assert len(recording.series("gpu_power_watts", gpu.id)) >= 2
        assert len(recording.series("gpu_energy_joules", gpu.id)) >= 1
    assert len(recording.series("host_memory_used_bytes", "host")) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gpumagic record: {len(lines)} lines in 5")
    assert said.err.endswith(f" to {path}\n")
    assert said.err.count("\n") == 1


def test_nvml_is_given_back(driver: NvmlStub, tmp_path: Path) -> None:
    """A recorder shuts NVML down as often as it initialised it."""
    main(["record", "--duration", "0.1", "--out", str(tmp_path / "x.jsonl")])
    assert driver.calls("nvmlInit_v2", "nvmlInitWithFlags", "nvmlInit")
    assert driver.init_balance == 0


def test_standard_output_holds_lines_alone(
    driver: NvmlStub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --out the lines go to standard output, and every line of it is JSON."""
    assert main(["record", "--duration", "0.1"]) == 0
    said = capsys.readouterr()
    kinds = [line["kind"] for line in objects(said.out)]
    assert kinds[0] == "recording"
    assert kinds.count("device") == 3
    assert kinds.count("sample") >= 3
    assert "to standard output" in said.err


def test_usable_are_those_of_the_environment(
    driver: NvmlStub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``all`` records GPUs that CUDA_VISIBLE_DEVICES hides, ``usable`` and ``1`` do not."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    def recorded(*gpus: str) -> list[int]:
        assert main(["record", "--duration", "0.1", *gpus]) == 0
        return [line["nvml_index"] for line in objects(capsys.readouterr().out)
                if "nvml_index" in line]

    assert recorded() == [0, 1]
    assert recorded("--gpus", "usable") == [1]
    assert recorded("--gpus", "1") == [1]


def test_without_a_gpu_the_host_is_recorded(
    driver: NvmlStub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is no GPU the host is recorded alone, the reason said and written as gaps."""
    driver.write(init_error=9)
    assert main(["record", "--duration", "0.1"]) == 0
    said = capsys.readouterr()
    lines = objects(said.out)
    assert {line["source"] for line in lines if line["kind"] == "gap"} == {"nvml", "nvml_slow"}
    assert {line["device"] for line in lines if line["kind"] == "sample"} == {"host"}
    first = said.err.splitlines()[0]
    assert "the NVIDIA driver is not loaded" in first
    assert first.endswith("recording the host alone")


def test_a_recorder_is_light(driver: NvmlStub, tmp_path: Path) -> None:
    """Recording imports neither torch nor IPython nor traitlets, nor what draws."""
    code = """
import sys
from gpumagic.cli import main
assert main(["record", "--duration", "0.1", "--out", sys.argv[1]]) == 0
heavy = {"torch", "IPython", "traitlets", "ipywidgets", "bqplot", "pandas", "numpy", "PIL"}
print(sorted(heavy & sys.modules.keys()))
"""
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.jsonl")], text=True, check=True,
        capture_output=True, env={**driver.environment(), "PYTHONPATH": str(ROOT)},
    )
    assert out.stdout == "[]\n"


# -- how it ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(
    driver: NvmlStub, tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C, SIGTERM and a closed terminal leave a whole gzip file and exit code 0."""
    path = tmp_path / "gpu.jsonl.gz"
    process = start(driver, "record", "--interval", "60", "--out", str(path))
    until = time.monotonic() + DEADLINE_S
    while not (path.exists() and path.stat().st_size) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    code, said = ended(process)
    assert code == 0
    assert "Traceback" not in said
    assert said.count("\n") == 1
    with gzip.open(path, "rt") as file:  # raises where the trailer is missing
        assert json.loads(next(file))["kind"] == "recording"
        assert all(json.loads(line) for line in file)


@pytest.mark.parametrize("interval", ["0.02", "3600"])
def test_a_closed_pipe_ends_it_silently(driver: NvmlStub, interval: str) -> None:
    """``| head -2`` ends the recorder, at once even if no line is due, without a traceback."""
    process = start(driver, "record", "--interval", interval)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["kind"] == "recording"
    assert json.loads(process.stdout.readline())["kind"] == "device"
    process.stdout.close()
    code, said = ended(process)
    assert code == 0
    assert said.count("\n") == 1
    assert "lines in" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("by_name", [True, False])
def test_a_full_disk_is_a_failure(driver: NvmlStub, by_name: bool) -> None:
    """Lines that cannot be written end the recorder with exit code 1 and the reason."""
    more = ["--out", "/dev/full"] if by_name else []
    with open("/dev/full", "w") as full:
        code, said = ended(start(driver, "record", "--duration", "20", *more, out=full))
    assert code == 1
    assert "No space left on device" in said
    assert said.count("\n") == 1


def test_a_file_that_ends_badly_is_a_failure(
    driver: NvmlStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error that only the closing of the file meets is told as well."""

    class Bad(io.StringIO):
        def close(self) -> None:
            super().close()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpumagic.sinks.jsonl.open_for_writing", lambda path: Bad())
    assert main(["record", "--duration", "0.1", "--out", "x.jsonl.gz"]) == 1
    assert "x.jsonl.gz cannot be written: No space left" in capsys.readouterr().err


def test_handlers_are_put_back() -> None:
    """Signals end the recorder while it runs, an ignored SIGHUP (nohup) stays ignored, and
    the handlers of before are back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    got: SimpleQueue[str] = SimpleQueue()
    try:
        with cli._signals(got.put):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        assert [got.get_nowait(), got.get_nowait()] == ["SIGTERM", "SIGINT"]
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGHUP, hangup)


# -- what it refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["record", "--interval", "0"], "it goes from 0.02 to 3600 s"),
        (["record", "--interval", "nan"], "it goes from 0.02 to 3600 s"),
        (["record", "--interval", "often"], "gpumagic record --help"),
        (["record", "--duration", "0"], "give seconds above 0"),
        (["record", "--duration", "nan"], "give seconds above 0"),
        (["record", "--gpus", "0,7"], "(there are: 0, 1); give an index, a UUID or all"),
        (["record", "--gpus", ","], "give indices, UUIDs, all or usable"),
        (["record", "--gpus", "٣"], "write it in digits, such as 0"),
        (["record", "--out", ""], "--out names no file"),
        (["record", "--out", "/no/such/folder/x"], "/no/such/folder/x cannot be written"),
        (["record", "--often"], "--help shows all"),
        (["autoload", "maybe"], "gpumagic autoload --help"),
        (["recrod"], "gpumagic --help"),
        ([], "record, doctor or autoload"),
    ],
)
def test_a_wrong_option_is_one_line(
    driver: NvmlStub, capsys: pytest.CaptureFixture[str], arguments: list[str], remedy: str
) -> None:
    """What cannot be used ends with exit code 2 and one line that names the remedy."""
    try:
        code = main(arguments)
    except SystemExit as exit:  # argparse's own way
        code = int(exit.code or 0)
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert remedy in said.err


@pytest.mark.parametrize("gpus", ["usable", "0"])
def test_a_gpu_is_named_where_there_is_none(
    driver: NvmlStub, capsys: pytest.CaptureFixture[str], gpus: str
) -> None:
    """Who names a GPU on a machine without one is told so, instead of getting the host."""
    driver.write(init_error=9)
    assert main(["record", "--gpus", gpus]) == 2
    assert "--gpus all records the host alone" in capsys.readouterr().err


# -- the other commands -----------------------------------------------------------------------


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the version; --help names every command."""
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as exit:
            main([option])
        assert exit.value.code == 0
    said = capsys.readouterr().out
    assert f"gpumagic {gpumagic.__version__}\n" in said
    for command in ("record", "doctor", "autoload"):
        assert command in said


def test_doctor_prints_its_report(driver: NvmlStub, capsys: pytest.CaptureFixture[str]) -> None:
    """``gpumagic doctor`` shows the report and ends well, whatever is missing."""
    driver.write(init_error=9)
    assert main(["doctor"]) == 0
    assert "the NVIDIA driver is not loaded" in capsys.readouterr().out


def test_doctor_into_a_closed_pipe(driver: NvmlStub) -> None:
    """``gpumagic doctor | true`` leaves no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        code, said = ended(start(driver, "doctor", out=closed))
    assert (code, said) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_doctor_onto_a_full_disk(driver: NvmlStub) -> None:
    """``gpumagic doctor > /dev/full`` is a failure told in one line."""
    with open("/dev/full", "w") as full:
        code, said = ended(start(driver, "doctor", out=full))
    assert code == 1
    assert said.count("\n") == 1
    assert "gpumagic doctor: standard output cannot be written: No space left" in said
