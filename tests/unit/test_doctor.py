"""What the doctor finds, and the remedy that it names."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fakes_torch import FakeDevice, FakeTorch
from gpumagic import doctor
from gpumagic.doctor import Check
from nvml_stub import H200, LEGACY, NvmlStub

ROOT = Path(__file__).parents[2]
FIRST = "11111111-2222-4333-8444-555555555555"
SECOND = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
INSTALLED = {
    "ipython": "9.18.1", "ipykernel": "7.4.0", "nvidia-ml-py": "13.615.71",
    "ipywidgets": "8.1.9", "bqplot": "0.13.1", "jupyterlab-widgets": "3.0.17",
}

MakeDriver = Callable[..., NvmlStub]


@pytest.fixture
def driver(tmp_path: Path, libraries: Path) -> Iterator[NvmlStub]:
    """Two H200."""
    stub = NvmlStub(
        tmp_path, [{**H200, "uuid": f"GPU-{FIRST}"}, {**H200, "uuid": f"GPU-{SECOND}"}],
        libraries=libraries,
    )
    with stub.load_in_process():
        yield stub


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No torch, no CUDA variables, and INSTALLED as the installed distributions."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name in ("torch", "torch.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    (tmp_path / "ipython").mkdir()
    installed(monkeypatch)


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    known = {**INSTALLED, **{name.replace("_", "-"): v for name, v in versions.items()}}

    def version(name: str) -> str:
        found = known.get(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)


def check(name: str) -> Check:
    (found,) = [c for c in doctor.checks() if c.name == name]
    return found


# -- the report -------------------------------------------------------------------------------


def test_a_healthy_machine_is_ten_lines(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With everything there the report is ten lines, each of them ok."""
    FakeTorch([FakeDevice(FIRST), FakeDevice(SECOND)]).install(monkeypatch)
    lines = doctor.report().splitlines()
    assert len(lines) == 10
    assert all(line.startswith("ok  ") for line in lines)


def test_every_failure_names_its_remedy(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is missing stands with what to do about it."""
    driver.write(init_error=9)
    installed(monkeypatch, ipython=None, ipykernel=None, bqplot=None, torch="2.13.0+cpu")
    failed = [c for c in doctor.checks() if c.ok is False]
    assert {c.name for c in failed} == {"versions", "nvml", "torch", "widgets"}
    assert all(c.remedy for c in failed)
    text = doctor.report()
    for c in failed:
        assert f"-> {c.remedy}" in text


def test_a_check_that_fails_spoils_no_other(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unforeseen error in one check is that check's text; the others go on."""

    def fail() -> Check:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(doctor, "_widgets", fail)
    assert check("widgets") == Check(
        "widgets", None, "could not be looked at: ZeroDivisionError: oops"
    )
    assert check("gpus").ok is True


def test_nvml_is_given_back(driver: NvmlStub) -> None:
    """The doctor leaves NVML initialised as often as it was before."""
    doctor.checks()
    assert driver.calls("nvmlInit_v2", "nvmlInitWithFlags", "nvmlInit")
    assert driver.init_balance == 0


def test_torch_is_not_imported(driver: NvmlStub) -> None:
    """The doctor imports neither torch nor the widgets that it looks for."""
    code = (
        "import sys, gpumagic.doctor; gpumagic.doctor.report();"
        "print(sorted({'torch', 'bqplot', 'ipywidgets'} & sys.modules.keys()))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], text=True, check=True, capture_output=True,
        env={**driver.environment(), "PYTHONPATH": str(ROOT)},
    )
    assert out.stdout == "[]\n"


# -- what is installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "ok", "remedy"),
    [
        ({}, True, ""),
        ({"ipykernel": "7.0.1"}, False, "pip install 'ipykernel!=7.0.*'"),
        ({"ipykernel": "7.1.0"}, True, ""),
        ({"ipython": "8.11.0"}, False, "pip install 'ipython>=8.12'"),
        ({"ipython": "10.0.0"}, True, ""),
        ({"ipykernel": None}, None, "for notebooks: pip install 'ipykernel!=7.0.*'"),
    ],
)
def test_versions(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str | None], ok: bool | None, remedy: str,
) -> None:
    """An ipykernel 7.0 and an old IPython are told with the command that helps."""
    installed(monkeypatch, **versions)
    found = check("versions")
    assert (found.ok, found.remedy) == (ok, remedy)


def test_an_impostor_of_pynvml(driver: NvmlStub, tmp_path: Path) -> None:
    """The abandoned package that hides nvidia-ml-py is found, with the way to get rid of it."""
    (tmp_path / "site" / "pynvml").mkdir(parents=True)
    (tmp_path / "site" / "pynvml" / "__init__.py").write_text("")
    paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    out = subprocess.run(
        [sys.executable, "-m", "gpumagic", "doctor"], text=True, check=True,
        capture_output=True, env={**driver.environment(), "PYTHONPATH": paths},
    )
    assert "!!  pynvml     the abandoned package pynvml" in out.stdout
    assert "-> pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py" in out.stdout


def test_an_imported_impostor(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """An impostor that is imported already is told as well, and the kernel to be restarted."""
    impostor = ModuleType("pynvml")
    impostor.__path__ = []
    monkeypatch.setitem(sys.modules, "pynvml", impostor)
    found = check("pynvml")
    assert found.ok is False
    assert found.remedy.endswith("restart the kernel")
    assert check("nvml").remedy.startswith("pip uninstall -y pynvml")


def test_a_front_end_that_may_be_elsewhere(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without jupyterlab-widgets here the view can still work, so it is a hint, no failure."""
    installed(monkeypatch, jupyterlab_widgets=None)
    found = check("widgets")
    assert found.ok is None
    assert "where JupyterLab is installed" in found.remedy


def test_limits_below_the_machine(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limits are shown against the machine that psutil shows."""
    monkeypatch.setattr("gpumagic.sources.host.cores_allowed", lambda cgroup, machine: 1.5)
    monkeypatch.setattr("gpumagic.sources.cgroup.Cgroup.memory_limit", lambda self: 1 << 29)
    text = check("limits").text
    assert "may use 1.5 of the machine's" in text
    assert "512.0 MiB of its" in text


def test_autoload_is_told(driver: NvmlStub) -> None:
    """The doctor says whether kernels load gpumagic by themselves."""
    from gpumagic import autoload

    assert check("autoload").text.startswith("off")
    autoload.turn_on()
    assert check("autoload").text == f"on, by {autoload.places()[0]}"


# -- the driver -------------------------------------------------------------------------------


def test_the_driver_and_its_gpus(driver: NvmlStub) -> None:
    """Versions, memory and counters are those that NVML tells; like GPUs share a line."""
    assert check("nvml").text == "driver 580.159.04, NVML 13.580.159.04, CUDA up to 13.0"
    assert check("gpus").text == "GPU 0-1 NVIDIA H200, 140.4 GiB, MIG off"
    assert check("counters").text == "GPU 0-1: energy counter, GPM (SM and tensor activity)"


def test_gpus_of_different_kinds(tmp_path: Path, libraries: Path) -> None:
    """What an old GPU lacks stands beside what a new one has."""
    with NvmlStub(tmp_path, [H200, LEGACY], libraries=libraries).load_in_process():
        assert check("gpus").text.endswith("; GPU 1 NVIDIA GeForce GTX 960M, 4.0 GiB")
        assert "GPU 1: no energy counter (not supported by this GPU), no GPM" in check(
            "counters"
        ).text
        found = check("usable")
        assert found.ok is None
        assert "assumed" in found.text
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.remedy


def test_mig_slices_are_counted(driver: NvmlStub) -> None:
    """A GPU that is sliced is shown with the number of its slices."""
    driver.gpu(1, mig=2)
    assert "GPU 1 NVIDIA H200, 140.4 GiB, MIG on with 2 slices" in check("gpus").text


def test_a_lost_gpu_is_missed(driver: NvmlStub) -> None:
    """A GPU that NVML counts and that does not answer is a failure with a remedy."""
    driver.lose(1)
    found = check("gpus")
    assert found.ok is False
    assert found.text.endswith("1 more do not answer")
    assert "nvidia-smi" in found.remedy


@pytest.mark.parametrize(
    ("code", "text", "remedy"),
    [
        (9, "the NVIDIA driver is not loaded", "run nvidia-smi"),
        (18, "different versions", "run nvidia-smi"),
        (12, "libnvidia-ml.so.1 is not installed", "--gpus all"),
    ],
)
def test_no_nvml(driver: NvmlStub, code: int, text: str, remedy: str) -> None:
    """Why NVML does not start, and what helps; what rests on it is no failure of its own."""
    driver.write(init_error=code)
    found = check("nvml")
    assert found.ok is False
    assert text in found.text
    assert remedy in found.remedy
    assert [check(name).ok for name in ("gpus", "usable", "counters")] == [None, None, None]


@pytest.mark.parametrize(
    ("variable", "ok", "text"),
    [
        (None, True, "cuda:0-1 are GPU 0-1"),
        ("1,0", True, "cuda:0 is GPU 1, cuda:1 is GPU 0 (CUDA_VISIBLE_DEVICES=1,0)"),
        ("1", True, "cuda:0 is GPU 1 (CUDA_VISIBLE_DEVICES=1)"),
        ("", False, "CUDA_VISIBLE_DEVICES is empty: this process may use no GPU"),
    ],
)
def test_usable(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch,
    variable: str | None, ok: bool, text: str,
) -> None:
    """Which GPUs this process may use follows CUDA's rules for the variable."""
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    found = check("usable")
    assert (found.ok, found.text) == (ok, text)
    assert bool(found.remedy) is not ok


# -- torch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "ok", "text"),
    [
        (None, None, "not installed: its memory is not shown"),
        ("2.13.0", True, "torch 2.13.0 is installed, and not imported here"),
        ("2.13.0+cpu", False, "torch 2.13.0+cpu is a CPU build"),
    ],
)
def test_torch_unimported(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch,
    version: str | None, ok: bool | None, text: str,
) -> None:
    """A torch that is not imported is known by its distribution."""
    installed(monkeypatch, torch=version)
    found = check("torch")
    assert (found.ok, found.text) == (ok, text)


def test_torch_before_cuda(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """An imported torch is asked nothing that would initialise CUDA."""
    FakeTorch([FakeDevice(FIRST)], initialised=False).install(monkeypatch)
    found = check("torch")
    assert found.ok is True
    assert found.text == (
        "torch 2.11.0+cu130 for CUDA 13.0 is imported; CUDA is not initialised"
    )


def test_torch_agrees_with_nvml(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own order is shown in NVML's numbers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    FakeTorch([FakeDevice(SECOND), FakeDevice(FIRST)]).install(monkeypatch)
    found = check("torch")
    assert found.ok is True
    assert found.text.endswith("cuda:0 is GPU 1, cuda:1 is GPU 0")


def test_a_variable_that_came_too_late(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA_VISIBLE_DEVICES set after CUDA started is told to need a restart."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    FakeTorch([FakeDevice(FIRST), FakeDevice(SECOND)]).install(monkeypatch)
    found = check("torch")
    assert found.ok is False
    assert "CUDA_VISIBLE_DEVICES now differs" in found.text
    assert "restart the kernel" in found.remedy


def test_torch_uses_what_nvml_lacks(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of torch's that NVML does not list is named by its UUID."""
    stranger = "99999999-2222-4333-8444-555555555555"
    FakeTorch([FakeDevice(stranger)]).install(monkeypatch)
    found = check("torch")
    assert found.ok is False
    assert f"GPU-{stranger}" in found.text


@pytest.mark.parametrize(
    ("indices", "text"),
    [(["0"], "0"), (["0", "1", "2"], "0-2"), (["0", "2", "3"], "0,2-3"), ([], "")],
)
def test_ranges(indices: list[str], text: str) -> None:
    """Neighbours join into a range."""
    assert doctor._ranges(indices) == text
