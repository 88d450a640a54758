"""The allocator's figures and the freeing of memory, with a torch and a driver that are told."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch

from fakes_torch import MIB, FakeDevice, FakeTorch, nested_stats
from gpumagic.devices import cuda_module
from gpumagic.errors import DeviceError, SourceUnavailable
from gpumagic.memory.free import free_memory
from gpumagic.memory.report import memory_report
from gpumagic.memory.stats import allocator_stats
from gpumagic.sources.nvml_library import Nvml
from nvml_stub import H200, NvmlStub

GIB = 1 << 30
FIRST = "11111111-2222-4333-8444-555555555555"
SECOND = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"


@pytest.fixture
def driver(tmp_path: Path, libraries: Path) -> Iterator[NvmlStub]:
    """Two GPUs; the first holds 3 GiB, of which 2.5 are this process's."""
    stub = NvmlStub(
        tmp_path, [{**H200, "uuid": f"GPU-{FIRST}"}, {**H200, "uuid": f"GPU-{SECOND}"}],
        libraries=libraries,
    )
    stub.gpu(0, memory_used=3 * GIB, processes=f"self:{5 * GIB // 2},1:{GIB // 2}")
    with stub.load_in_process():
        yield stub


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Nvml) -> None:
        raise SourceUnavailable("no NVIDIA GPU here: no library")

    monkeypatch.setattr(Nvml, "open", refuse)


def busy() -> dict[str, Any]:
    """1 GiB of tensors in 2 GiB of segments; 256 MiB of the rest are pinned."""
    return nested_stats(
        allocated=GIB, requested=960 * MIB, active=GIB + 16 * MIB, reserved=2 * GIB,
        inactive_split=256 * MIB, retries=2, ooms=1,
    )


def without_torch(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Take torch out of ``sys.modules``; ``version`` is what is installed."""
    for name in ("torch", "torch.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)


# -- the figures ----------------------------------------------------------------------------


def test_torchs_figures_and_their_differences(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each figure is the allocator's own; cache, returnable bytes and fragmentation follow."""
    FakeTorch([FakeDevice(FIRST, busy())]).install(monkeypatch)
    (gpu,) = allocator_stats()
    assert (gpu.torch_index, gpu.uuid, gpu.nvml_index) == (0, f"GPU-{FIRST}", 0)
    assert gpu.torch_allocated_bytes == GIB
    assert gpu.torch_requested_bytes == 960 * MIB
    assert gpu.torch_active_bytes == GIB + 16 * MIB
    assert gpu.torch_reserved_bytes == 2 * GIB
    assert gpu.torch_cached_bytes == GIB
    assert gpu.torch_inactive_split_bytes == 256 * MIB
    assert gpu.torch_returnable_bytes == GIB - 16 * MIB - 256 * MIB
    assert gpu.torch_fragmentation_ratio == 0.125
    assert (gpu.torch_alloc_retries_count, gpu.torch_ooms_count) == (2, 1)


def test_the_context_is_the_process_less_torch(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the driver tells this process's bytes, the rest of them is named as its context."""
    FakeTorch([FakeDevice(FIRST, busy())]).install(monkeypatch)
    gpu = allocator_stats()[0]
    assert gpu.gpu_memory_used_bytes == 3 * GIB
    assert gpu.gpu_memory_total_bytes == 143771 * MIB
    assert gpu.gpu_process_memory_bytes == 5 * GIB // 2
    assert gpu.gpu_other_processes_memory_bytes == GIB // 2
    assert gpu.outside_torch_bytes == GIB // 2
    assert gpu.outside_torch_text == "CUDA context and other non-torch memory of this process"


@pytest.mark.parametrize(
    ("processes", "used", "left", "text"),
    [
        # This process is not in the list, the others are.
        ("1:536870912", 3 * GIB, GIB // 2, "neither torch nor another process"),
        # The host's PIDs in a container, and no bytes at all as under WSL.
        ("4194303999:536870912", 3 * GIB, GIB, "and other processes"),
        ("self:na", 3 * GIB, GIB, "and other processes"),
        # A list that is older than torch's figure.
        ("self:1073741824", 3 * GIB, None, "smaller than what torch holds"),
    ],
)
def test_the_rest_has_an_honest_name(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch,
    processes: str, used: int, left: int | None, text: str,
) -> None:
    """The remainder is only called this process's where the driver tells this process's."""
    driver.gpu(0, memory_used=used, processes=processes)
    FakeTorch([FakeDevice(FIRST, busy())]).install(monkeypatch)
    gpu = allocator_stats()[0]
    assert gpu.outside_torch_bytes == left
    assert text in gpu.outside_torch_text
    assert "of this process" not in gpu.outside_torch_text


def test_torchs_order_is_not_nvmls(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of torch and of the driver meet by UUID where the two number GPUs differently."""
    FakeTorch(
        [FakeDevice(SECOND, nested_stats(reserved=MIB)), FakeDevice(FIRST, busy())]
    ).install(monkeypatch)
    report = allocator_stats()
    assert [gpu.nvml_index for gpu in report] == [1, 0]
    assert [gpu.gpu_memory_used_bytes for gpu in report] == [0, 3 * GIB]
    (only,) = allocator_stats(1)
    assert only == report[1]


def test_a_gpu_that_torch_lacks_is_an_error(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking for a GPU beyond torch's names how many there are."""
    FakeTorch([FakeDevice(FIRST)]).install(monkeypatch)
    with pytest.raises(DeviceError, match="no cuda:1: torch has 1 GPU, from"):
        allocator_stats(1)


def test_nvml_is_given_back(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report leaves NVML initialised as often as it was before."""
    FakeTorch([FakeDevice(FIRST, busy())]).install(monkeypatch)
    allocator_stats()
    assert driver.calls("nvmlInit_v2", "nvmlInitWithFlags", "nvmlInit")
    assert driver.init_balance == 0


@pytest.mark.usefixtures("no_driver")
def test_without_nvml_torchs_figures_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVML the driver's figures are absent, with the reason, and torch's are there."""
    FakeTorch([FakeDevice(FIRST, busy())]).install(monkeypatch)
    gpu = allocator_stats()[0]
    assert gpu.torch_reserved_bytes == 2 * GIB
    assert gpu.uuid == f"GPU-{FIRST}"
    assert gpu.gpu_memory_used_bytes is None
    assert "gpu_memory_used_bytes" not in gpu.to_dict()
    assert gpu.outside_torch_text == "no NVIDIA GPU here: no library"


@pytest.mark.usefixtures("no_driver")
def test_the_other_backend_keeps_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zeros that cudaMallocAsync answers for what it does not keep are absent, not 0."""
    stats = nested_stats(allocated=GIB, requested=0, reserved=2 * GIB)
    FakeTorch([FakeDevice(FIRST, stats)], backend="cudaMallocAsync").install(monkeypatch)
    gpu = allocator_stats()[0]
    assert gpu.torch_requested_bytes is None
    assert gpu.torch_fragmentation_ratio is None
    assert gpu.torch_returnable_bytes == GIB


@pytest.mark.usefixtures("no_driver")
def test_no_cache_no_fragmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of which torch holds nothing has no fragmentation, rather than one of 0."""
    FakeTorch([FakeDevice(FIRST)]).install(monkeypatch)
    gpu = allocator_stats()[0]
    assert gpu.torch_reserved_bytes == 0
    assert gpu.torch_fragmentation_ratio is None


def test_the_table(driver: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed table is whole: a column for each GPU, a meaning for each row."""
    FakeTorch([FakeDevice(FIRST, busy()), FakeDevice(SECOND)]).install(monkeypatch)
    assert str(allocator_stats()) == f"""\
cuda:0 is NVIDIA H200, NVML's GPU 0 (GPU-{FIRST})
cuda:1 is NVIDIA H200, NVML's GPU 1 (GPU-{SECOND})
                      cuda:0     cuda:1
allocated            1.0 GiB        0 B  in live tensors
requested          960.0 MiB        0 B  what tensors asked for, before rounding
active               1.0 GiB        0 B  allocated, and freed but awaited by a stream
reserved             2.0 GiB        0 B  all that torch holds
free in cache        1.0 GiB        0 B  reserved - allocated
  returnable       752.0 MiB        0 B  what %gpufree can give back
  inactive split   256.0 MiB        0 B  pinned by live blocks
fragmentation           12 %        n/a  inactive split / reserved
retries                    2          0  cache emptied to make room
out of memory              1          0  allocations that failed
device used          3.0 GiB        0 B  NVML, all processes
device total       140.4 GiB  140.4 GiB  NVML
this process         2.5 GiB        n/a  NVML
other processes    512.0 MiB        0 B  NVML
outside torch      512.0 MiB        0 B  see below
outside torch on cuda:0: CUDA context and other non-torch memory of this process
outside torch on cuda:1: memory that neither torch nor another process holds by the driver's\
 account"""


@pytest.mark.usefixtures("no_driver")
def test_a_name_cannot_break_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTML table escapes what a driver or torch calls a GPU."""
    FakeTorch([FakeDevice(FIRST, busy(), name="<b>&")]).install(monkeypatch)
    html = allocator_stats()._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html
    assert "2.0 GiB" in html


# -- without CUDA -----------------------------------------------------------------------------


def test_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the report is empty and names the remedy."""
    without_torch(monkeypatch, None)
    report = allocator_stats()
    assert len(report) == 0
    assert str(report) == "torch is not installed in this environment: pip install torch"
    assert report.to_dict() == {"devices": [], "reason": str(report)}


def test_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is installed and not imported is told and stays so."""
    without_torch(monkeypatch, "2.13.0")
    assert "torch 2.13.0 is not imported in this process" in str(allocator_stats())
    assert "torch" not in sys.modules


@pytest.mark.parametrize("imported", [True, False])
def test_a_cpu_build(monkeypatch: pytest.MonkeyPatch, imported: bool) -> None:
    """A build without CUDA is called so, imported or not, with where to get another."""
    without_torch(monkeypatch, "2.13.0+cpu")
    if imported:
        FakeTorch(version="2.13.0", cuda=None, initialised=False).install(monkeypatch)
    text = repr(allocator_stats())
    assert "is a CPU build" in text
    assert "https://pytorch.org" in text


def test_cuda_is_not_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the user's first CUDA call nothing is asked of torch that would be one."""
    FakeTorch([FakeDevice(FIRST)], initialised=False).install(monkeypatch)
    assert "has not initialised CUDA" in str(allocator_stats())
    assert "has not initialised CUDA" in str(free_memory())
    assert "has not initialised CUDA" in str(allocator_stats(7))


def test_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch in the middle of its import counts as absent and is called so."""
    fake = FakeTorch([FakeDevice(FIRST)]).install(monkeypatch)
    spec = ModuleSpec("torch", None)
    spec._initializing = True  # type: ignore[attr-defined]
    fake.torch.__spec__ = spec
    assert cuda_module() is None
    assert "being imported" in str(allocator_stats())


# -- freeing ----------------------------------------------------------------------------------


def with_tensors(fake: FakeTorch) -> FakeTorch:
    """Give a torch with an invented allocator the real one's tensors, all on the CPU."""
    for name in ("Tensor", "_C", "strided", "no_grad"):
        setattr(fake.torch, name, getattr(torch, name))
    return fake


def test_what_comes_back_and_what_stays(
    driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result holds both sides: what the device got back, and what is left."""
    device = FakeDevice(FIRST, busy())

    def emptied() -> None:
        device.stats = nested_stats(allocated=GIB, reserved=GIB + 256 * MIB,
                                    inactive_split=256 * MIB)
        driver.gpu(0, memory_used=9 * GIB // 4, processes=f"self:{7 * GIB // 4},1:{GIB // 2}")

    fake = FakeTorch([device, FakeDevice(SECOND)], on_empty_cache=emptied)
    with_tensors(fake).install(monkeypatch)
    freed = free_memory()
    assert fake.calls == ["ipc_collect", "empty_cache"]
    assert [step.kind for step in freed.steps] == ["cache"]
    assert freed.returned_bytes("cuda:0") == 768 * MIB
    assert freed.released_bytes("cuda:0") == 0
    (before,), (after,) = freed.before, freed.after
    assert before.allocator is not None
    assert after.allocator is not None
    assert before.allocator.gpu_memory_used_bytes == 3 * GIB
    assert after.allocator.gpu_memory_used_bytes == 9 * GIB // 4
    assert after.allocator.torch_reserved_bytes == GIB + 256 * MIB
    known = json.loads(json.dumps(freed.to_dict()))
    assert known["steps"][0]["bytes"] == {"cuda:0": 768 * MIB}
    assert "768.0" in str(freed)


@pytest.mark.usefixtures("no_driver")
def test_a_dry_run_asks_torch_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run collects nothing and empties no cache."""
    fake = with_tensors(FakeTorch([FakeDevice(FIRST, busy())])).install(monkeypatch)
    gc.disable()
    try:
        garbage = ref(_Cycle())
        freed = free_memory(dry_run=True)
        assert garbage() is not None
    finally:
        gc.enable()
    assert fake.calls == []
    assert freed.dry_run


@pytest.mark.usefixtures("no_driver")
def test_nothing_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where live tensors hold everything the result says that nothing was released."""
    stats = nested_stats(allocated=GIB, reserved=GIB)
    with_tensors(FakeTorch([FakeDevice(FIRST, stats)])).install(monkeypatch)
    freed = free_memory()
    assert freed.steps == ()
    assert "Nothing was released." in str(freed)


@pytest.mark.usefixtures("no_driver")
def test_an_unused_torch_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch holds no GPU memory the text says so."""
    with_tensors(FakeTorch([FakeDevice(FIRST)])).install(monkeypatch)
    freed = free_memory()
    assert freed.reason == "torch holds no GPU memory in this process"
    assert freed.steps == ()


@pytest.mark.usefixtures("no_driver")
def test_a_refusal_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of torch's in releasing its cache is told and does not reach the user's cell."""

    def refuse() -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nCompile with TORCH_USE...")

    fake = FakeTorch([FakeDevice(FIRST, busy())], on_empty_cache=refuse)
    with_tensors(fake).install(monkeypatch)
    freed = free_memory()
    assert freed.reason == (
        "torch refused to release its cache: CUDA error: an illegal memory access"
    )
    assert "refused to release its cache" in str(freed)


class _Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("missing", ["torch", "cuda"])
def test_nothing_is_touched_where_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Without torch, or before CUDA is initialised, not even garbage is collected."""
    if missing == "torch":
        without_torch(monkeypatch, None)
    else:
        FakeTorch([FakeDevice(FIRST)], initialised=False).install(monkeypatch)
    gc.disable()
    try:
        garbage = ref(_Cycle())
        freed = free_memory()
        assert garbage() is not None
    finally:
        gc.enable()
        gc.collect()
    assert freed.reason
    assert freed.reason in str(freed).replace("\n  ", " ")


def test_the_real_torch_is_not_disturbed() -> None:
    """With the real torch imported, neither report initialises CUDA."""
    before = torch.cuda.is_initialized()
    allocator_stats()
    free_memory()
    free_memory(dry_run=True)
    memory_report()
    assert torch.cuda.is_initialized() is before
