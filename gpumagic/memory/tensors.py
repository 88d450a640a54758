"""What a tensor occupies, asked of torch without running anybody's code.

torch is taken from ``sys.modules``. Getters are those of ``torch.Tensor`` itself, with
``__torch_function__`` switched off: no property of a subclass, no proxy and no lazy attribute
is touched, and nothing is allocated, copied or synchronised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from .graph import mro_of

__all__ = ["TensorFacts", "TensorReader", "torch_module"]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor: ``bytes`` are those of its storage, ``own_bytes`` those that it addresses.

    ``device`` is torch's name (``cuda:0``, ``cpu``), ``address`` the storage's first byte.
    ``has_graph`` tells that autograd recorded how it was made, which keeps other tensors.
    """

    device: str
    address: int
    bytes: int
    own_bytes: int
    shape: tuple[int, ...]
    dtype: str
    is_parameter: bool
    has_graph: bool


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
        self._tensor: type = torch.Tensor
        self._parameter: type = torch.nn.Parameter
        self._device_type = device_type
        base = torch.Tensor
        get: Callable[[str], Any] = lambda name: getattr(base, name)  # noqa: E731
        self._device = get("device").__get__
        self._layout = get("layout").__get__
        self._shape = get("shape").__get__
        self._dtype = get("dtype").__get__
        self._is_leaf = get("is_leaf").__get__
        self._requires_grad = get("requires_grad").__get__
        self._grad = get("grad").__get__
        self._is_cow = getattr(torch._C, "_is_cow_tensor", lambda tensor: False)

    def is_tensor(self, kind: type) -> bool:
        """Tell whether a type is torch's Tensor or derives from it."""
        return self._tensor in mro_of(kind)

    def quiet(self) -> AbstractContextManager[Any]:
        """Return the context in which tensors are read: no ``__torch_function__`` runs in it."""
        switch = getattr(self._torch._C, "DisableTorchFunctionSubclass", None)
        return nullcontext() if switch is None else switch()  # type: ignore[no-any-return]

    def gradient(self, tensor: Any) -> list[Any]:
        """Return a leaf's gradient as a list of one, or an empty list."""
        try:
            # Of a tensor that is no leaf torch would warn, and keeps none by default.
            if self._is_leaf(tensor) and self._requires_grad(tensor):
                gradient = self._grad(tensor)
                return [] if gradient is None else [gradient]
        except Exception:
            return []
        return []

    def facts(self, tensor: Any) -> list[TensorFacts]:
        """Return what a tensor occupies: one entry for each storage, of a sparse one several.

        Empty for tensors on other devices, and for those without memory of their own: fake and
        meta tensors, wrappers of other tensors, parameters that are not yet materialised.
        """
        try:
            if self._device(tensor).type != self._device_type:
                return []
            return [facts for part in self._parts(tensor) if (facts := self._read(tensor, part))]
        except Exception:
            # Each kind of tensor without a storage refuses in a way of its own.
            return []

    def _parts(self, tensor: Any) -> Iterable[Any]:
        layout = str(self._layout(tensor))
        if layout == "torch.strided":
            yield tensor
            return
        names = {
            "torch.sparse_coo": ("_indices", "_values"),
            "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
            "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
            "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
            "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
        }.get(layout, ())
        with self._torch.no_grad():
            for name in names:
                yield getattr(self._tensor, name)(tensor)

    def _read(self, tensor: Any, part: Any) -> TensorFacts | None:
        if self._is_cow(part):
            return None  # asking for its address would make the copy
        storage = self._tensor.untyped_storage(part)
        size, address = storage.nbytes(), storage.data_ptr()
        if not size or not address:
            return None
        device = self._device(part)
        try:
            shape = tuple(int(extent) for extent in self._shape(tensor))
        except Exception:
            shape = ()  # a nested tensor has no one shape
        return TensorFacts(
            device=device.type if device.index is None else f"{device.type}:{device.index}",
            address=address,
            bytes=size,
            own_bytes=min(size, self._tensor.numel(part) * self._tensor.element_size(part)),
            shape=shape,
            dtype=str(self._dtype(tensor)).removeprefix("torch."),
            is_parameter=self._parameter in mro_of(type(tensor)),
            has_graph=bool(self._requires_grad(tensor) and not self._is_leaf(tensor)),
        )


def all_tensors(reader: TensorReader, objects: list[Any]) -> Iterator[Any]:
    """Yield those of some objects that are tensors."""
    kinds = {kind for kind in set(map(type, objects)) if reader.is_tensor(kind)}
    for value in objects:
        if type(value) in kinds:
            yield value
