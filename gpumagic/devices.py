"""Which GPU is torch's ``cuda:0``.

NVML numbers the GPUs of the machine by PCI bus and knows nothing of CUDA_VISIBLE_DEVICES; CUDA
numbers those that this process may use. The two are paired by UUID. Once torch has initialised
CUDA it is asked; before that the environment is read by CUDA's rules, and where the order
cannot be known yet the pairing is called assumed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from .errors import DeviceError

__all__ = [
    "Gpu",
    "Pairing",
    "cuda_module",
    "pair",
    "parse_visible_devices",
    "select",
]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU or a MIG slice as NVML lists it; ``parent`` is the UUID of a slice's GPU."""

    uuid: str
    index: int
    name: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Pairing:
    """torch's order of GPUs: ``order[i]`` is the UUID of ``cuda:i``.

    ``assumed`` says that the order could not be known; ``reason`` why it is empty or short.
    """

    order: tuple[str, ...]
    assumed: bool = False
    reason: str = ""

    def torch_index(self, uuid: str) -> int | None:
        """Return the torch index of a UUID, or ``None`` where this process cannot use it."""
        return self.order.index(uuid) if uuid in self.order else None


def cuda_module() -> ModuleType | None:
    """Return ``torch.cuda`` if the user has imported it whole and initialised CUDA.

    Nothing is imported and nothing initialised; a torch that is being imported right now, in
    this thread or in another, counts as absent.
    """
    torch = sys.modules.get("torch")
    cuda = sys.modules.get("torch.cuda")
    if torch is None or cuda is None:
        return None
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return None
    is_initialized = getattr(cuda, "is_initialized", None)
    try:
        if is_initialized is None or not is_initialized():
            return None
    except (AttributeError, RuntimeError):
        return None
    return cuda


def parse_visible_devices(value: str | None, gpus: Sequence[Gpu]) -> Pairing:
    """Apply CUDA's rules for CUDA_VISIBLE_DEVICES to the GPUs of the machine.

    ``value`` is the variable's text (``None`` if unset). Integers count in CUDA's own order,
    which is taken to be NVML's, and end where their digits end; UUIDs may be shortened to a
    unique prefix. The first entry says whether the list is of integers, of GPUs' or of MIG
    slices' UUIDs. The first entry that names nothing ends the list, and an entry named twice
    leaves no GPU at all.
    """
    whole = [gpu for gpu in gpus if gpu.parent is None]
    slices = [gpu for gpu in gpus if gpu.parent is not None]
    in_mig_mode = {gpu.parent for gpu in slices}
    if value is None:
        plain = tuple(gpu.uuid for gpu in whole if gpu.uuid not in in_mig_mode)
        if not slices or plain:
            return Pairing(plain)
        # CUDA gives a process one slice; which one is the driver's choice.
        return Pairing((slices[0].uuid,), assumed=True)
    order: list[str] = []
    kind = next((kind for kind in ("GPU-", "MIG-") if value.startswith(kind)), "")
    assumed = False
    for entry in value.split(","):
        uuid = _named(entry, kind, whole, slices)
        if uuid is None:
            break
        if uuid in order:
            return Pairing((), reason=f"CUDA_VISIBLE_DEVICES={value} names a GPU twice")
        if uuid in in_mig_mode:
            # CUDA takes a slice of it; which one is the driver's choice.
            uuid = next(gpu.uuid for gpu in slices if gpu.parent == uuid)
            assumed = True
        order.append(uuid)
        if uuid.startswith("MIG-"):
            break
    reason = ""
    if not order:
        shown = f"={value}" if value.strip() else " is empty"
        reason = f"CUDA_VISIBLE_DEVICES{shown}: this process may use no GPU"
    return Pairing(tuple(order), assumed, reason)


def _named(
    entry: str, kind: str, whole: Sequence[Gpu], slices: Sequence[Gpu]
) -> str | None:
    if kind:
        listed = slices if kind == "MIG-" else whole
        found = [gpu.uuid for gpu in listed if gpu.uuid.startswith(entry)]
        return found[0] if entry.startswith(kind) and len(found) == 1 else None
    # As C's strtoul reads it: "1gpu" is 1.
    digits = re.match(r"\s*([+-]?[0-9]+)", entry)
    index = int(digits[1]) if digits is not None else -1
    return whole[index].uuid if 0 <= index < len(whole) else None


def pair(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> Pairing:
    """Pair torch's indices with NVML's GPUs, from torch where it can tell.

    After CUDA's initialisation the UUIDs come from ``torch.cuda.get_device_properties``;
    before, from CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER in ``environment``.
    """
    cuda = cuda_module()
    if cuda is not None:
        order = _torch_order(cuda, gpus)
        if order is not None:
            return Pairing(order)
    pairing = parse_visible_devices(environment.get("CUDA_VISIBLE_DEVICES"), gpus)
    whole = {gpu.name for gpu in gpus if gpu.parent is None}
    alike = len(whole) <= 1
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    by_uuid = environment.get("CUDA_VISIBLE_DEVICES", "").startswith(("GPU-", "MIG-"))
    if len(gpus) > 1 and not (alike or by_bus or by_uuid):
        return Pairing(pairing.order, assumed=True, reason=pairing.reason)
    return pairing


def _torch_order(cuda: ModuleType, gpus: Sequence[Gpu]) -> tuple[str, ...] | None:
    known = {_bare(gpu.uuid): gpu.uuid for gpu in gpus}
    order: list[str] = []
    try:
        for index in range(cuda.device_count()):
            uuid = _bare(str(cuda.get_device_properties(index).uuid))
            order.append(known.get(uuid, f"GPU-{uuid}"))
    except (AttributeError, RuntimeError, AssertionError):
        return None
    return tuple(order)


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def select(gpus: Sequence[Gpu], wanted: Sequence[str], pairing: Pairing) -> tuple[str, ...]:
    """Return the UUIDs that a list of names stands for, in NVML's order.

    A name is an NVML index, a UUID or a unique prefix of one, ``cuda:N``, ``all``, or
    ``usable`` (those that this process may use). Raises :class:`~gpumagic.errors.DeviceError`
    for a name that fits none or several.
    """
    chosen: set[str] = set()
    for name in wanted:
        if name == "all":
            chosen.update(gpu.uuid for gpu in gpus)
        elif name == "usable":
            chosen.update(pairing.order)
        else:
            chosen.add(_one(gpus, name, pairing))
    return tuple(gpu.uuid for gpu in gpus if gpu.uuid in chosen)


def _one(gpus: Sequence[Gpu], name: str, pairing: Pairing) -> str:
    # int() reads the digits of all scripts; nobody else does.
    if name.startswith("cuda:") and name.isascii() and name[5:].isdecimal():
        index = int(name[5:])
        if index < len(pairing.order):
            return pairing.order[index]
        count = len(pairing.order)
        usable = "1 GPU" if count == 1 else f"{count} GPUs"
        raise DeviceError(f"no {name}: this process may use {usable}")
    if name.isascii() and name.isdecimal():
        found = [gpu.uuid for gpu in gpus if gpu.parent is None and gpu.index == int(name)]
    else:
        found = [gpu.uuid for gpu in gpus if gpu.uuid.lower().startswith(name.lower())]
    if len(found) == 1:
        return found[0]
    have = ", ".join(str(gpu.index) for gpu in gpus if gpu.parent is None) or "none"
    problem = "fits several GPUs" if found else "is not a GPU of this machine"
    raise DeviceError(f"{name!r} {problem} (there are: {have}); give an index, a UUID or all")
