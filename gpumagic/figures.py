"""What a summary consists of: frozen values, each with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .sample import Device, Span

__all__ = ["Coverage", "DeviceSummary", "Energy", "Figure", "Summary", "Throttling"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one device over a span, in the metric's base unit.

    ``start`` and ``end`` are the readings next to the span's ends, ``mean`` and ``peak`` are
    over the readings that count (``samples`` of them). What is ``None`` was not measured;
    ``reason`` says why when nothing was. ``peak_low`` is given where the peak is only known to
    lie between it and ``peak``; ``peak_exact`` where a counter proves the peak.
    """

    metric: str
    start: float | None = None
    mean: float | None = None
    peak: float | None = None
    end: float | None = None
    samples: int = 0
    peak_low: float | None = None
    peak_exact: bool = False
    reason: str = ""

    @property
    def measured(self) -> bool:
        """Whether there is any value at all."""
        return any(v is not None for v in (self.start, self.mean, self.peak, self.end))


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of a span, give or take ``bound_joules``.

    ``method`` is ``"counter"`` for the difference of the energy counter, with power integrated
    between its readings and the span's ends; the bound is what the counter can lag and how far
    power varied near those edges. It is ``"estimate"`` for power integrated over the span;
    ``reason`` then says why it is not the counter. ``None`` comes with a ``reason`` and no method.
    """

    joules: float | None = None
    bound_joules: float | None = None
    mean_watts: float | None = None
    reason: str = ""
    method: Literal["counter", "estimate", ""] = ""


@dataclass(frozen=True, slots=True)
class Throttling:
    """Share of the time in which the clocks were held back, in all and by reason.

    ``method`` is ``"counters"`` where the driver's counters tell at least one reason: shares are
    then their growth over the time between the two readings next to the span's ends, and
    ``seconds`` that growth. ``sampled`` names the reasons that have no counter: they are shares
    of the ``samples`` readings of ``gpu_clock_event_reasons_state``, as all reasons are where
    ``method`` is ``"samples"``. Reasons can hold at the same time: ``ratio`` is the share of any
    of them in the readings, held between the largest share and their sum (1 at most).
    """

    ratio: float | None = None
    by_reason: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    reason: str = ""
    method: Literal["counters", "samples", ""] = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    sampled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """How well readings cover a span: how many, and the longest stretch without one.

    What the driver's rings filled in after a stall does not count as a reading. ``merged_s``
    is 0, or the longest time over which older readings are merged into one: ``longest_gap_s`` is
    then what no gap exceeds. ``estimated`` says that readings merged across an end of the span are
    counted by their share of it.
    """

    source: str
    samples: int
    longest_gap_s: float
    period_s: float
    merged_s: float = 0.0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """What one device did in a span.

    For ``lost_s`` seconds of it the device could not be read, for ``gap_reason``; means are
    over the rest.
    """

    device: Device
    figures: Mapping[str, Figure]
    energy: Energy
    throttling: Throttling
    coverage: Coverage | None
    lost_s: float = 0.0
    gap_reason: str = ""

    def figure(self, metric: str) -> Figure:
        """Return a metric's figure; one that was never read says so."""
        return self.figures.get(metric, Figure(metric, reason="not read"))


@dataclass(frozen=True, slots=True)
class Summary:
    """What all devices did in a span; ``watch_cpu_s`` is what the sampler itself used."""

    span: Span
    devices: tuple[DeviceSummary, ...]
    watch_cpu_s: float | None = None

    @property
    def gpus(self) -> tuple[DeviceSummary, ...]:
        """The GPUs among the devices."""
        return tuple(d for d in self.devices if d.device.kind == "gpu")

    @property
    def host(self) -> DeviceSummary | None:
        """The host."""
        return next((d for d in self.devices if d.device.kind == "host"), None)

    @property
    def wall_s(self) -> float:
        """The span's length in seconds."""
        return self.span.end - self.span.start if self.span.end is not None else 0.0
