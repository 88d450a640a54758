"""Which GPU is torch's cuda:0: CUDA's rules for the environment, and torch's own word."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpumagic.devices import Gpu, Pairing, cuda_module, pair, parse_visible_devices, select
from gpumagic.errors import DeviceError, SettingError
from gpumagic.options import parse_gpus

A, B, C = "GPU-aaaa1111-0", "GPU-aaaa2222-0", "GPU-bbbb3333-0"
GPUS = [Gpu(A, 0, "NVIDIA H200"), Gpu(B, 1, "NVIDIA H200"), Gpu(C, 2, "NVIDIA H200")]
SLICES = [
    Gpu(A, 0, "NVIDIA H200"),
    Gpu("MIG-1111", 0, "NVIDIA H200 MIG 1g.18gb", A),
    Gpu("MIG-1122", 0, "NVIDIA H200 MIG 1g.18gb", A),
    Gpu(B, 1, "NVIDIA H200"),
]


# -- the environment -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "order"),
    [
        (None, (A, B, C)),
        ("0,1,2", (A, B, C)),
        ("2,0", (C, A)),
        (" 1 , 2 ", (B, C)),
        ("+1", (B,)),
        ("1gpu,2nd", (B, C)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("0,-1,1", (A,)),
        ("NoDevFiles", ()),
        ("none", ()),
        ("all", ()),
        ("0,7,1", (A,)),
        ("7", ()),
        ("0,x,1", (A,)),
        ("0,,1", (A,)),
        ("0,0", ()),
        ("1,2,1", ()),
        (A, (A,)),
        (f"{C},{A}", (C, A)),
        ("GPU-bbbb", (C,)),
        ("GPU-aaaa2,GPU-b", (B, C)),
        ("GPU-aaaa", ()),
        ("GPU-b,GPU-aaaa,GPU-aaaa1", (C,)),
        ("GPU-cccc", ()),
        ("GPU-b,GPU-none,GPU-aaaa1", (C,)),
        (f"{A},{A}", ()),
        (f"{A},GPU-aaaa1", ()),
        (f"{A},1", (A,)),
        (f"0,{B}", (A,)),
        ("GPU-BBBB", ()),
        ("1_0", (B,)),
        ("99999999999999999999", ()),
    ],
)
def test_the_variable_is_read_by_cudas_rules(value: str | None, order: tuple[str, ...]) -> None:
    """Integers and unique UUID prefixes count up to the first wrong one; a repeat leaves none."""
    pairing = parse_visible_devices(value, GPUS)
    assert pairing.order == order
    assert not pairing.assumed
    assert bool(pairing.reason) == (not order)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "CUDA_VISIBLE_DEVICES is empty: this process may use no GPU"),
        ("-1", "CUDA_VISIBLE_DEVICES=-1: this process may use no GPU"),
        ("1,1", "CUDA_VISIBLE_DEVICES=1,1 names a GPU twice"),
    ],
)
def test_the_reason_for_no_gpu_is_told(value: str, reason: str) -> None:
    """Where the variable hides all GPUs, the reason says so."""
    assert parse_visible_devices(value, GPUS).reason == reason


@pytest.mark.parametrize(
    ("value", "order", "assumed"),
    [
        ("MIG-1122", ("MIG-1122",), False),
        ("MIG-112", ("MIG-1122",), False),
        ("MIG-1111,MIG-1122", ("MIG-1111",), False),
        ("MIG-11", (), False),
        ("MIG-9", (), False),
        ("1", (B,), False),
        (B, (B,), False),
        ("0", ("MIG-1111",), True),
        (A, ("MIG-1111",), True),
        ("1,0", (B, "MIG-1111"), True),
        (None, (B,), False),
    ],
)
def test_a_process_gets_one_mig_slice(
    value: str | None, order: tuple[str, ...], assumed: bool
) -> None:
    """A slice ends the list; naming a GPU in MIG mode gives one of its slices, assumed."""
    pairing = parse_visible_devices(value, SLICES)
    assert (pairing.order, pairing.assumed) == (order, assumed)


def test_with_slices_only_the_first_is_assumed() -> None:
    """Where all GPUs are in MIG mode and nothing is said, the driver picks; we assume."""
    assert parse_visible_devices(None, SLICES[:3]) == Pairing(("MIG-1111",), assumed=True)
    assert parse_visible_devices(None, []) == Pairing(())


ENTRIES = ["0", "1", "2", "3", "-1", "", " 1", "2 ", "+0", "1x", "x", "GPU-aaaa1", "GPU-aaaa",
           "GPU-bbbb", A, B, C, "GPU-", "GPU-zzz", " GPU-bbbb", "10", "-0", "0 1"]


def test_torch_reads_the_variable_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a thousand lists the order is the one that torch works out before CUDA is up."""
    cuda = pytest.importorskip("torch.cuda", reason="compares with torch: pip install torch")
    lists = [",".join(p) for n in (1, 2) for p in itertools.product(ENTRIES, repeat=n)]
    dice = random.Random(7)
    lists += [",".join(dice.choices(ENTRIES, k=dice.choice([3, 4]))) for _ in range(500)]
    uuids = [gpu.uuid for gpu in GPUS]
    compared = 0
    for value in lists:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        theirs: list[Any] = cuda._parse_visible_devices()
        if theirs and isinstance(theirs[0], str):
            theirs = cuda._transform_uuid_to_ordinals(theirs, uuids)
        else:
            theirs = list(itertools.takewhile(lambda index: index < len(GPUS), theirs))
        ours = [uuids.index(uuid) for uuid in parse_visible_devices(value, GPUS).order]
        if not theirs and ours:
            # torch looks for repeats behind an entry that ends the list, too; CUDA's own
            # documentation says of what follows it only that it is invisible.
            assert len(value.split(",")) > len(ours) + 1
            continue
        assert ours == theirs, value
        compared += 1
    assert compared > 900


# -- pairing ---------------------------------------------------------------------------------

MIXED = [Gpu(A, 0, "NVIDIA T4"), Gpu(B, 1, "NVIDIA H200")]


@pytest.mark.parametrize(
    ("gpus", "environment", "order", "assumed"),
    [
        (GPUS, {}, (A, B, C), False),
        (GPUS, {"CUDA_VISIBLE_DEVICES": "2"}, (C,), False),
        (MIXED, {}, (A, B), True),
        (MIXED, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, (A, B), True),
        (MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (A, B), False),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "1"}, (B,), True),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, (B,), False),
        (MIXED, {"CUDA_VISIBLE_DEVICES": B}, (B,), False),
        (MIXED[:1], {}, (A,), False),
        ([], {}, (), False),
    ],
)
def test_an_order_that_cannot_be_known_is_assumed(
    monkeypatch: pytest.MonkeyPatch, gpus: list[Gpu], environment: dict[str, str],
    order: tuple[str, ...], assumed: bool,
) -> None:
    """CUDA sorts by speed unless told not to: among unlike GPUs NVML's order is an assumption."""
    monkeypatch.setitem(sys.modules, "torch", None)
    pairing = pair(gpus, environment)
    assert (pairing.order, pairing.assumed) == (order, assumed)


def fake_torch(monkeypatch: pytest.MonkeyPatch, **cuda: Any) -> tuple[ModuleType, ModuleType]:
    """Put a torch with a torch.cuda of these attributes into sys.modules."""
    torch, module = ModuleType("torch"), ModuleType("torch.cuda")
    torch.__spec__ = importlib.util.spec_from_loader("torch", None)
    vars(module).update({"is_initialized": lambda: True, **cuda})
    torch.cuda = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.cuda", module)
    return torch, module


def with_uuids(*uuids: str) -> dict[str, Any]:
    return {
        "device_count": lambda: len(uuids),
        "get_device_properties": lambda index: SimpleNamespace(uuid=uuids[index]),
    }


def test_torch_is_asked_once_cuda_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is torch's own, by UUID without prefix and in any case, whatever the variable."""
    fake_torch(monkeypatch, **with_uuids("bbbb3333-0", "AAAA1111-0", "dddd"))
    pairing = pair(GPUS, {"CUDA_VISIBLE_DEVICES": "0"})
    assert pairing == Pairing((C, A, "GPU-dddd"))
    assert [pairing.torch_index(uuid) for uuid in (A, B, C)] == [1, None, 0]


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, AssertionError])
def test_a_torch_that_cannot_tell_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A torch without UUIDs, or whose CUDA fails, leaves the environment to decide."""
    def fail(index: int) -> None:
        raise error("no uuid")

    fake_torch(monkeypatch, device_count=lambda: 1, get_device_properties=fail)
    assert pair(GPUS, {"CUDA_VISIBLE_DEVICES": "2"}).order == (C,)


def test_torch_counts_only_when_it_is_whole_and_initialised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An absent, half-imported or uninitialised torch is no torch, and is not touched."""
    torch, cuda = fake_torch(monkeypatch, **with_uuids("bbbb3333-0"))
    assert cuda_module() is cuda
    assert torch.__spec__ is not None
    torch.__spec__._initializing = True  # type: ignore[attr-defined]
    assert cuda_module() is None
    assert pair(GPUS, {}).order == (A, B, C)
    torch.__spec__._initializing = False  # type: ignore[attr-defined]
    cuda.is_initialized = lambda: False  # type: ignore[attr-defined]
    assert cuda_module() is None

    def fail() -> bool:
        raise RuntimeError("bad fork")

    cuda.is_initialized = fail  # type: ignore[attr-defined]
    assert cuda_module() is None
    del cuda.is_initialized
    assert cuda_module() is None
    monkeypatch.delitem(sys.modules, "torch.cuda")
    assert cuda_module() is None


# -- selection -------------------------------------------------------------------------------

PAIRING = Pairing((C, A))


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (["0"], (A,)),
        (["2", "0"], (A, C)),
        (["all"], (A, B, C)),
        (["usable"], (A, C)),
        (["usable", "1"], (A, B, C)),
        (["cuda:0"], (C,)),
        (["gpu-BBBB"], (C,)),
        ([A, "0"], (A,)),
        ([], ()),
    ],
)
def test_names_select_gpus(names: list[str], ids: tuple[str, ...]) -> None:
    """Indices are NVML's, cuda:N is torch's, prefixes need not be whole; the order is NVML's."""
    assert select(GPUS, names, PAIRING) == ids


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("3", "'3' is not a GPU of this machine"),
        ("GPU-aaaa", "'GPU-aaaa' fits several GPUs"),
        ("GPU-ffff", "is not a GPU of this machine (there are: 0, 1, 2); give an index"),
        ("cuda:2", "no cuda:2: this process may use 2 GPUs"),
        ("cuda:x", "'cuda:x' is not a GPU"),
        ("-1", "'-1' is not a GPU"),
        ("²", "'²' is not a GPU"),
        ("١", "'١' is not a GPU"),
        ("cuda:١", "'cuda:١' is not a GPU"),
    ],
)
def test_a_name_that_fits_none_or_several_is_refused(name: str, text: str) -> None:
    """The error says what is wrong with the name and what there is."""
    with pytest.raises(DeviceError) as caught:
        select(GPUS, [name], PAIRING)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("01", ("1",)),
        ("00,cuda:01", ("0", "cuda:1")),
        ("cuda:0 GPU-00 all", ("cuda:0", "GPU-00", "all")),
        ("cuda:x", ("cuda:x",)),
    ],
)
def test_an_index_loses_its_leading_zeros(text: str, names: tuple[str, ...]) -> None:
    """An index is handed on as NVML and torch write it, and any other name as it is."""
    assert parse_gpus(text) == names


@pytest.mark.parametrize("text", ["٣", "cuda:٣", "1" * 5000])
def test_an_index_is_of_plain_digits(text: str) -> None:
    """Digits of other scripts and endless ones are refused with the remedy, in one short line."""
    with pytest.raises(SettingError, match="write it in digits, such as 0") as caught:
        parse_gpus(text)
    assert len(str(caught.value)) < 120


def test_a_slice_is_named_by_its_uuid_only() -> None:
    """An index means the whole GPU, not its MIG slices."""
    assert select(SLICES, ["0"], Pairing(())) == (A,)
    assert select(SLICES, ["MIG-1122"], Pairing(())) == ("MIG-1122",)
    with pytest.raises(DeviceError, match="fits several"):
        select(SLICES, ["mig-11"], Pairing(()))
