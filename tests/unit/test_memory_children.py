"""Children that hold GPU memory are named, with the real psutil and nvidia-ml-py on the stub."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpumagic.errors import SourceUnavailable
from gpumagic.memory.children import children_on
from gpumagic.memory.live import ChildProcess
from gpumagic.sources.nvml_library import Nvml
from nvml_stub import H200, NvmlStub

MIB = 1 << 20
UUID = "GPU-11111111-2222-4333-8444-555555555555"
OTHER = "GPU-aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
WAIT = "import sys; print('up', flush=True); sys.stdin.read()"
NOT_HERE = 4_194_303_999


@pytest.fixture
def driver(tmp_path: Path, libraries: Path) -> Iterator[NvmlStub]:
    """Two GPUs that nobody uses yet."""
    stub = NvmlStub(
        tmp_path, [{**H200, "uuid": UUID}, {**H200, "uuid": OTHER}], libraries=libraries
    )
    with stub.load_in_process():
        yield stub
        assert stub.init_balance == 0


def started(*command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A child with a long command line, until the end of its input."""
    process = started(sys.executable, "-c", WAIT, "--data", "x" * 80)
    yield process
    process.communicate()


@pytest.fixture
def grandchild() -> Iterator[int]:
    """A child of a child."""
    spawn = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'],"
        " stdin=subprocess.PIPE); print('up', flush=True); print(p.pid, flush=True);"
        " sys.stdin.read(); p.communicate(b'\\n')"
    )
    process = started(sys.executable, "-c", spawn)
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.communicate()


def test_children_and_theirs_are_found(
    driver: NvmlStub, child: subprocess.Popen[str], grandchild: int
) -> None:
    """All descendants in the lists are named with their bytes; this process and others not."""
    driver.gpu(
        0, processes=f"self:{9 * MIB},{child.pid}:{2 * MIB},1:{MIB}",
        graphics_processes=f"{grandchild}:{5 * MIB}",
    )
    first, second = children_on(UUID)
    assert first == ChildProcess(grandchild, f"{sys.executable} -c input()"[:60], 5 * MIB)
    assert (second.pid, second.bytes) == (child.pid, 2 * MIB)
    assert second.command.startswith(f"{sys.executable} -c import sys;"[:40])
    assert len(second.command) <= 60
    assert second.command.endswith("…")
    assert children_on(OTHER) == ()


def test_a_dataloader_worker_is_called_one(
    driver: NvmlStub, child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child with the name that torch gives its workers is named as a worker."""
    driver.gpu(0, processes=f"{child.pid}:{2 * MIB}")
    name = psutil.Process.name
    monkeypatch.setattr(
        psutil.Process, "name",
        lambda self: "pt_data_worker" if self.pid == child.pid else name(self),
    )
    assert children_on(UUID) == (ChildProcess(child.pid, "DataLoader worker", 2 * MIB),)


def test_hidden_bytes_are_not_zero(driver: NvmlStub, child: subprocess.Popen[str]) -> None:
    """A child whose memory the driver hides is there, without bytes."""
    driver.gpu(0, processes=f"{child.pid}:na")
    (found,) = children_on(UUID)
    assert (found.pid, found.bytes) == (child.pid, None)


@pytest.mark.parametrize("processes", ["", f"{NOT_HERE}:{MIB}", f"1:{MIB}", f"self:{MIB}"])
def test_no_child_is_no_entry(driver: NvmlStub, processes: str) -> None:
    """Without PIDs, with the host's, or with others' alone, there are no children."""
    driver.gpu(0, processes=processes or None)
    assert children_on(UUID) == ()


def test_the_hosts_pids_are_not_taken_for_ours(
    driver: NvmlStub, child: subprocess.Popen[str]
) -> None:
    """Where one PID is not of this namespace, one that equals a child's is not the child."""
    driver.gpu(0, processes=f"{child.pid}:{MIB},{NOT_HERE}:{MIB}")
    assert children_on(UUID) == ()


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NVML cannot be opened, nothing is raised."""
    def refuse(self: Nvml) -> None:
        raise SourceUnavailable("no NVIDIA GPU here: no library")

    monkeypatch.setattr(Nvml, "open", refuse)
    assert children_on(UUID) == ()


def test_an_unknown_gpu_has_none(driver: NvmlStub, child: subprocess.Popen[str]) -> None:
    """A UUID that NVML does not list has no children."""
    driver.gpu(0, processes=f"{child.pid}:{MIB}")
    assert children_on("cuda:0") == ()
