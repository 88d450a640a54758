"""What a tensor occupies, asked of torch without running anybody's code.

torch is taken from ``sys.modules``. Getters are those of ``torch.Tensor`` itself, with
``__torch_function__`` and ``__torch_dispatch__`` switched off, those of modes too: no property
of a subclass, no proxy and no lazy attribute is touched, and nothing is allocated, copied or
synchronised.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import compress
from typing import Any

from .kinds import is_one_of

__all__ = [
    "NO_TORCH", "Place", "TensorFacts", "TensorReader", "all_tensors", "torch_module",
]


_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """The storage behind a tensor: torch's name of the device, its first byte, its bytes."""

    device: str
    address: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What one tensor is: ``bytes`` are those that it addresses, which may be few of a storage.

    ``has_graph`` tells that autograd recorded how it was made, which keeps other tensors.
    """

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    has_graph: bool


NO_TORCH = "torch is not imported in this process, so there are no tensors"


def torch_module() -> Any | None:
    """Return torch if the user has imported it whole; nothing is imported."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return None
    return torch if hasattr(torch, "Tensor") else None


class TensorReader:
    """Read tensors of one type of device: ``cuda`` or ``cpu``."""

    def __init__(self, torch: Any, device_type: str = "cuda") -> None:
        self._torch = torch
        self._tensor: Any = torch.Tensor
        self._device_type = device_type
        base = torch.Tensor
        self._device = base.device.__get__
        self._layout = base.layout.__get__
        self._shape = base.shape.__get__
        self._dtype = base.dtype.__get__
        self._is_leaf = base.is_leaf.__get__
        self._requires_grad = base.requires_grad.__get__
        self._grad = base.grad.__get__
        self._storage = base.untyped_storage
        self._strided = torch.strided
        self._names: dict[int | None, str] = {}
        private = torch._C
        self._is_cow = getattr(private, "_is_cow_tensor", lambda tensor: False)
        # The address of a tensor that is copied on write, without the write (torch 2.2).
        self._address = getattr(private, "_data_address", None)
        self._keys = getattr(private, "_dispatch_keys", None)
        self._python_key = getattr(getattr(private, "DispatchKey", None), "Python", None)

    def is_tensor(self, kind: type) -> bool:
        """Tell whether a type is torch's Tensor or derives from it."""
        return is_one_of(kind, (self._tensor,))

    def types(self) -> list[type]:
        """Return ``torch.Tensor`` and all types that derive from it; no metaclass is asked."""
        found: dict[int, type] = {}
        waiting = [self._tensor]
        while waiting:
            kind = waiting.pop()
            if id(kind) not in found:
                found[id(kind)] = kind
                waiting += type.__subclasses__(kind)
        return list(found.values())

    def quiet(self) -> AbstractContextManager[Any]:
        """Return the context in which tensors are read: nobody's overrides run in it."""
        stack = ExitStack()
        # The first also switches modes off, such as that of torch.set_default_device.
        for name in ("DisableTorchFunction", "_DisableTorchDispatch"):
            switch = getattr(self._torch._C, name, None)
            if switch is not None:
                stack.enter_context(switch())
        return stack

    def gradient(self, tensor: Any) -> list[Any]:
        """Return a leaf's gradient as a list of one, or an empty list."""
        try:
            # Of a tensor that is no leaf torch would warn, and keeps none by default.
            if self._requires_grad(tensor) and self._is_leaf(tensor):
                gradient = self._grad(tensor)
                return [] if gradient is None else [gradient]
        except Exception:
            return []
        return []

    def places(self, tensor: Any) -> list[Place]:
        """Return the storages of a tensor; of a sparse one there are several.

        Empty for tensors on other devices, and for those without memory of their own: fake and
        meta tensors, wrappers of other tensors, parameters that are not yet materialised.
        """
        try:
            device = self._device(tensor)
            if device.type != self._device_type:
                return []
            plain = self._layout(tensor) is self._strided
            parts = [tensor] if plain else self._parts(tensor)
            name = self._names.get(device.index) or self._name_device(device)
            return [place for part in parts if (place := self._place(part, name)) is not None]
        except Exception:
            # Each kind of tensor without a storage refuses in a way of its own.
            return []

    def _name_device(self, device: Any) -> str:
        index = device.index
        name = device.type if index is None else f"{device.type}:{index}"
        self._names[index] = name
        return str(name)

    def _parts(self, tensor: Any) -> list[Any]:
        if self._is_wrapper(tensor):
            return []
        names = _SPARSE.get(str(self._layout(tensor)), ())
        with self._torch.no_grad():
            return [getattr(self._tensor, name)(tensor) for name in names]

    def _is_wrapper(self, tensor: Any) -> bool:
        """Tell whether a tensor only says that it is sparse, and other tensors hold its values."""
        if self._keys is None or self._python_key is None:
            return type(tensor) is not self._tensor
        return bool(self._keys(tensor).has(self._python_key))

    def _place(self, part: Any, device: str) -> Place | None:
        storage = self._storage(part)
        size = storage.nbytes()
        if not self._is_cow(part):
            address = storage.data_ptr()
        elif self._address is not None:
            address = self._address(part)
        else:
            return None  # asking for its address would make the copy
        return Place(device, address, size) if size and address else None

    def has_graph(self, tensor: Any) -> bool:
        """Tell whether autograd recorded how a tensor was made; False where it refuses."""
        try:
            return bool(self._requires_grad(tensor) and not self._is_leaf(tensor))
        except Exception:
            return False

    def facts(self, tensor: Any) -> TensorFacts:
        """Describe a tensor that has a place."""
        size = 0
        shape: tuple[int, ...] = ()
        try:
            shape = tuple(int(extent) for extent in self._shape(tensor))
            size = self._tensor.numel(tensor) * self._tensor.element_size(tensor)
        except Exception:
            shape = ()  # a nested tensor has no one shape
        return TensorFacts(
            bytes=size,
            shape=shape,
            dtype=str(self._dtype(tensor)).removeprefix("torch."),
            has_graph=self.has_graph(tensor),
        )


def all_tensors(reader: TensorReader, objects: list[Any]) -> Iterator[Any]:
    """Yield those of some objects that are tensors; types are told apart by their ids."""
    kinds = set(map(id, reader.types()))
    return compress(objects, map(kinds.__contains__, map(id, map(type, objects))))
