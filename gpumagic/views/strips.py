"""STRIPS: one row for each strip that a view can show.

To add a strip, add a row. Its scale comes from METRICS: the first metric's unit and ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from ..metrics import METRICS
from ..sample import DeviceKind
from ..units import GIB
from .parts import LayerStyle

__all__ = ["DEFAULT_STRIPS", "STRIPS", "Layer", "Scale", "Strip", "scale_of"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One trace of a strip.

    ``metrics`` are added up (``combine="sum"``; the first has to be there), or the first one
    that was read is taken. ``word`` names the layer beside its present figure. Values below
    ``floor``, in base units, are not told.
    """

    style: LayerStyle
    metrics: tuple[str, ...]
    word: str = ""
    combine: Literal["sum", "first"] = "sum"
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Strip:
    """One strip: its short name, label, layers and the words of its limit.

    Layers are listed from the largest to the smallest; then that of other processes, which is
    a share of the first.

    ``limit`` is written after the label, with ``{}`` for the ceiling and its unit;
    ``held_by`` says which limits are drawn on its ceiling.
    """

    name: str
    kind: DeviceKind
    label: str
    limit: str
    layers: tuple[Layer, ...]
    height: float
    held_by: Literal["power", "thermal"] | None = None
    zoom: bool = False

    @property
    def metric(self) -> str:
        """The metric that gives the strip its unit, ceiling and present figure."""
        return self.layers[0].metrics[0]

    @property
    def second(self) -> bool:
        """Whether it has two nested parts, so that a table has a column for the second figure."""
        return sum(layer.style != "other" for layer in self.layers) == 2


def _area(name: str, kind: DeviceKind, label: str, limit: str, *layers: Layer,
          height: float = 18, zoom: bool = False) -> Strip:
    return Strip(name, kind, label, limit, layers, height, zoom=zoom)


def _line(name: str, kind: DeviceKind, label: str, limit: str, *metrics: str,
          held_by: Literal["power", "thermal"] | None = None) -> Strip:
    layer = Layer("line", metrics, combine="first")
    return Strip(name, kind, label, limit, (layer,), 14, held_by)


_ROWS = (
    _area(
        "util", "gpu", "utilization", "%",
        Layer("outer", ("gpu_utilization_ratio",)),
        Layer("inner", ("gpu_sm_active_ratio",), "SM active"),
        Layer("other", ("gpu_other_processes_utilization_ratio",), "others", floor=0.01),
    ),
    _area(
        "mem", "gpu", "memory", "of {}",
        Layer("outer", ("gpu_memory_used_bytes",)),
        Layer("middle", ("torch_reserved_bytes",), "reserved"),
        Layer("inner", ("torch_allocated_bytes",), "allocated"),
        Layer("other", ("gpu_other_processes_memory_bytes",), "others", floor=0.1 * GIB),
        height=20, zoom=True,
    ),
    _line("power", "gpu", "power", "cap {}", "gpu_power_watts", held_by="power"),
    _line("temp", "gpu", "temp", "slows at {}", "gpu_temperature_celsius", held_by="thermal"),
    _line("sm-clock", "gpu", "SM clock", "of {}", "gpu_sm_clock_hertz"),
    _line("mem-clock", "gpu", "mem. clock", "of {}", "gpu_memory_clock_hertz"),
    _area(
        "mem-util", "gpu", "mem. access", "%",
        Layer("inner", ("gpu_memory_utilization_ratio",)),
    ),
    _area("encoder", "gpu", "encoder", "%", Layer("inner", ("gpu_encoder_utilization_ratio",))),
    _area("decoder", "gpu", "decoder", "%", Layer("inner", ("gpu_decoder_utilization_ratio",))),
    _area(
        "cpu", "host", "CPU", "of {}",
        Layer("outer", ("process_cpu_ratio", "children_cpu_ratio")),
        Layer("inner", ("children_cpu_ratio",), "children"),
    ),
    _line(
        "ram", "host", "RAM", "of {}", "container_memory_used_bytes", "host_memory_used_bytes"
    ),
)

STRIPS: Mapping[str, Strip] = MappingProxyType({row.name: row for row in _ROWS})
"""All strips by their short name."""

DEFAULT_STRIPS = ("util", "mem", "power", "temp")


@dataclass(frozen=True, slots=True)
class Scale:
    """How a strip writes its figures: base units times ``factor``, with ``places`` decimals."""

    factor: float
    places: int
    unit: str

    def number(self, value: float) -> str:
        """Write a figure without its unit."""
        text = f"{value * self.factor:.{self.places}f}"
        return text[1:] if text.startswith("-") and not text.strip("-0.") else text

    def limit(self, value: float) -> str:
        """Write a limit with its unit, without a needless ``.0``; one core is no "cores"."""
        number = self.number(value).removesuffix(".0")
        unit = "core" if number == "1" and self.unit == "cores" else self.unit
        return f"{number} {unit}"


_SCALES: Mapping[str, Scale] = {
    "ratio": Scale(100, 0, "%"),
    "bytes": Scale(1 / GIB, 1, "GiB"),
    "cores": Scale(1, 1, "cores"),
    "watts": Scale(1, 0, "W"),
    "celsius": Scale(1, 0, "°C"),
    "hertz": Scale(1e-6, 0, "MHz"),
}


@lru_cache
def scale_of(metric: str) -> Scale:
    """Return the one unit in which a strip of this metric writes all its figures."""
    return _SCALES.get(METRICS[metric].unit, Scale(1, 0, ""))
