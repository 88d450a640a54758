"""What holds device memory at one moment, as plain values: names, bytes, and nothing alive.

A report keeps no reference to a tensor, so reading it later frees nothing and holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .stats import AllocatorStats

__all__ = [
    "ChildProcess",
    "DeviceMemory",
    "Holder",
    "HolderKind",
    "LiveStorage",
    "MemoryReport",
    "PinnedCache",
    "Remainder",
]

HolderKind = Literal[
    "variable", "frame", "module", "output", "traceback", "cycle", "unknown"
]
"""What keeps a tensor: names of the user; a function that runs (in any thread); a module; a
displayed value; an error's traceback or the debugger; a cycle that waits for the garbage
collector; something that no Python object leads to."""


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """The memory behind one tensor or several views, in bytes.

    ``name`` is the shortest expression that leads to it and ``where`` the function in which it
    means something (empty: in the notebook). ``bytes`` is the storage's size, ``block_bytes``
    what the allocator gave for it (``None`` where it was not asked), ``own_bytes`` what the
    largest tensor on it addresses: a slice that pins a large storage has few. ``shape`` and
    ``dtype`` are that tensor's; ``views`` counts the tensors seen on it. ``holder`` is the name
    of its :class:`Holder`; ``also`` are other names of it. ``has_graph``: autograd keeps what
    it was computed from.
    """

    name: str
    where: str
    device: str
    bytes: int
    own_bytes: int
    shape: tuple[int, ...]
    dtype: str
    views: int
    holder: str
    also: tuple[str, ...] = ()
    has_graph: bool = False
    block_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps some storages: ``bytes`` and ``storages`` count each storage once.

    A storage that several hold is its first holder's, in the order of HolderKind, so that
    letting tracebacks and displays go frees what is theirs here. ``roots`` are the names
    together (``("model", "optimizer")`` where one keeps tensors of the other); ``detail`` says
    what it is in a few words, ``names`` its largest tensors. ``command`` is what would release
    it (empty: nothing of ours would); ``cell`` the cell that a display or a traceback is of.
    """

    kind: HolderKind
    roots: tuple[str, ...]
    detail: str
    bytes: int
    storages: int
    names: tuple[str, ...] = ()
    command: str = ""
    cell: int = 0

    @property
    def name(self) -> str:
        """The names together, e.g. ``model, optimizer``."""
        return ", ".join(self.roots)


@dataclass(frozen=True, slots=True)
class Remainder:
    """Memory that torch has allocated and no tensor of Python explains, and what it may be."""

    name: str
    bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PinnedCache:
    """Cached bytes that cannot be returned: live blocks lie in the same segments.

    ``names`` are the tensors in them, the smallest first: releasing those costs least.
    """

    bytes: int
    segments: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A child of this process that holds memory of the GPU; ``bytes`` where the driver tells."""

    pid: int
    command: str
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device: its holders and storages, the largest first.

    ``allocator`` are the figures of torch and the driver (``None`` for the CPU);
    ``storages`` may be fewer than there are (see ``storage_count``).
    """

    device: str
    holders: tuple[Holder, ...] = ()
    storages: tuple[LiveStorage, ...] = ()
    storage_count: int = 0
    allocator: AllocatorStats | None = None
    remainders: tuple[Remainder, ...] = ()
    pinned: PinnedCache | None = None
    children: tuple[ChildProcess, ...] = ()

    @property
    def reachable_bytes(self) -> int:
        """Bytes of all storages that were found."""
        return sum(holder.bytes for holder in self.holders)

    def of(self, *kinds: HolderKind) -> tuple[Holder, ...]:
        """Return the holders of some kinds."""
        return tuple(holder for holder in self.holders if holder.kind in kinds)


@dataclass(frozen=True, slots=True, repr=False)
class MemoryReport:
    """What holds device memory: a sequence of devices that prints as tables.

    ``reason`` says why there is none; ``cut`` what the search left out, and why. ``objects``
    is the number of Python objects looked at, in ``seconds``.
    """

    devices: tuple[DeviceMemory, ...] = ()
    reason: str = ""
    cut: str = ""
    objects: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[DeviceMemory]:
        return iter(self.devices)

    def __getitem__(self, position: int) -> DeviceMemory:
        return self.devices[position]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists, bytes as integers."""
        return asdict(self)

    def to_pandas(self) -> Any:
        """Return the storages as a DataFrame, one row each. Raises ImportError without pandas."""
        import pandas

        rows = [asdict(storage) for device in self.devices for storage in device.storages]
        names = [*LiveStorage.__dataclass_fields__]
        return pandas.DataFrame(rows, columns=names)

    def __str__(self) -> str:
        from ..views.memory_text import memory_text

        return memory_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from ..views.memory_html import memory_html

        return memory_html(self)
