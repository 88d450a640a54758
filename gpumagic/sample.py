"""What a recording holds: devices, samples, gaps, spans and marks; all of them frozen.

Times are seconds since the epoch, taken from a clock that never runs backwards
(:class:`gpumagic.clock.Clock`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["HOST", "Device", "DeviceKind", "Gap", "Mark", "Sample", "Span", "SpanStatus"]

HOST = "host"
"""The id of the device that stands for this machine's processors and memory."""

DeviceKind = Literal["gpu", "host"]
SpanStatus = Literal["running", "ok", "error", "interrupted"]

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or the host.

    ``id`` is the GPU's UUID (``GPU-...`` or ``MIG-...``), or ``"host"``. ``nvml_index`` and
    ``torch_index`` are labels and can differ; ``torch_index`` is ``None`` where this process
    does not use the GPU, and ``torch_assumed`` says that the pairing could not be known yet.
    ``constants`` holds what does not change, under the names of METRICS (total memory, power
    limit, ...); ``absent`` gives the reason for each metric that this device does not offer.
    """

    id: str
    kind: DeviceKind
    name: str
    nvml_index: int | None = None
    torch_index: int | None = None
    torch_assumed: bool = False
    constants: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    absent: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name that views print: ``GPU 0``, ``GPU 0 MIG 1a2b`` for a slice, or ``Host``."""
        if self.kind == "host":
            return "Host"
        if self.nvml_index is None:
            return self.slice_name() or self.id[:12]
        return f"GPU {self.nvml_index} {self.slice_name()}".rstrip()

    @property
    def is_slice(self) -> bool:
        """Whether this is a MIG slice: its GPU's ``nvml_index`` is not its own."""
        return self.id.startswith("MIG-")

    def slice_name(self, digits: int = 4) -> str:
        """What tells a slice from the others of its GPU (``MIG 1a2b``), or nothing for a GPU.

        ``digits`` is how much of its UUID is written.
        """
        if not self.is_slice:
            return ""
        # Before driver R470 the id was MIG-<the GPU's UUID>/<GPU instance>/<compute instance>.
        _, _, instances = self.id.partition("/")
        return f"MIG {instances or self.id[4 : 4 + digits]}"

    @property
    def torch_label(self) -> str:
        """``cuda:0``, ``cuda:0 assumed``, or nothing."""
        if self.torch_index is None:
            return ""
        return f"cuda:{self.torch_index}" + (" (assumed)" if self.torch_assumed else "")


@dataclass(frozen=True, slots=True)
class Sample:
    """The values that one source read from one device at one time.

    ``values`` maps names of METRICS to base units; what was not read is an absent key.
    """

    time: float
    device: str
    source: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch in which a source gave nothing, and why.

    ``device`` is ``None`` where the whole source failed; ``end`` is ``None`` while it lasts.
    """

    start: float
    end: float | None
    source: str
    device: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Span:
    """One cell, or one ``with profile(...)`` block; ``end`` is ``None`` while it runs.

    ``number`` is the cell's execution count (``None`` for a block), ``name`` what the user
    called it.
    """

    id: int
    start: float
    end: float | None = None
    number: int | None = None
    name: str = ""
    status: SpanStatus = "running"

    @property
    def label(self) -> str:
        """The short name of bands: ``[12]``, or the name of a block."""
        return f"[{self.number}]" if self.number is not None else (self.name or "block")


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that the user named, e.g. ``epoch 3``."""

    time: float
    text: str
