"""The Profile: one cell and all that was measured of it; what ``-o VAR`` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from .diagnosis import Finding
from .metrics import METRICS
from .sample import Span
from .summary import DeviceSummary, Figure, Summary
from .waterfall import Waterfall

if TYPE_CHECKING:
    from .memory.streams import StreamState
    from .views.scene import Scene

__all__ = ["Profile"]


@dataclass(frozen=True, eq=False)
class Profile:
    """What was measured of one cell or block.

    ``streams`` tells if the GPU's current streams were still busy at the end ("idle", "busy",
    "unknown"; other streams are never asked); ``synchronised`` that ``--sync`` waited for
    them. ``reasons`` says per source why it gave nothing. ``scene`` is the picture of the
    span's time axis. ``findings`` say what held the cell back, the gravest first, and
    ``waterfalls`` where each GPU's memory was. ``peak_method`` says how the peak of torch's
    memory was found if its exact peak was asked for ("exact from the allocator's history", or
    why not), and is empty otherwise. It shows itself as HTML in a notebook and as
    text elsewhere. Two profiles are equal only if they are the same object.
    """

    span: Span
    summary: Summary
    streams: StreamState = "unknown"
    synchronised: bool = False
    reasons: Mapping[str, str] | None = None
    scene: Scene | None = None
    findings: tuple[Finding, ...] = ()
    waterfalls: tuple[Waterfall, ...] = ()
    peak_method: str = ""

    @property
    def name(self) -> str:
        """What the user called it, or the cell's number."""
        return self.span.name or self.span.label

    @property
    def number(self) -> int | None:
        """The cell's execution count."""
        return self.span.number

    @property
    def wall_s(self) -> float:
        """Seconds from the begin to the end of the cell."""
        return self.summary.wall_s

    @property
    def exit(self) -> str:
        """How the cell ended: ``ok``, ``error`` or ``interrupted``."""
        return self.span.status

    @property
    def energy_joules(self) -> float | None:
        """Joules of all measured GPUs together, or ``None`` if one of them was not measured."""
        parts = [gpu.energy.joules for gpu in self.summary.gpus]
        if not parts or any(part is None for part in parts):
            return None
        return sum(part for part in parts if part is not None)

    @property
    def energy_estimated(self) -> bool:
        """Whether ``energy_joules`` rests, for any GPU, on power instead of the counter."""
        return any(gpu.energy.method == "estimate" for gpu in self.summary.gpus)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values for JSON, in base units; absent is an absent key."""
        return {
            "name": self.name,
            "number": self.number,
            "wall_s": self.wall_s,
            "exit": self.exit,
            "started": datetime.fromtimestamp(self.span.start, timezone.utc).isoformat(),
            "streams_at_end": self.streams,
            "synchronised": self.synchronised,
            "watch_cpu_s": self.summary.watch_cpu_s,
            "reasons": dict(self.reasons or {}),
            "peak_method": self.peak_method,
            "findings": [finding.to_dict() for finding in self.findings],
            "devices": [
                _device_dict(device, self._waterfall(device)) for device in self.summary.devices
            ],
        }

    def _waterfall(self, summary: DeviceSummary) -> Waterfall | None:
        device = summary.device.id
        return next((w for w in self.waterfalls if w.device.id == device), None)

    def to_text(self) -> str:
        """Return the report as plain text."""
        from .views.report import render_text

        return render_text(self)

    def to_html(self) -> str:
        """Return the report as one self-contained block of HTML without script."""
        from .views.report import render_html

        return render_html(self)

    def __repr__(self) -> str:
        from .views.wording import clean

        # A name is the user's: control codes would reach the terminal.
        return f"<Profile {clean(self.name)} {self.wall_s:.3f} s {self.exit}>"

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, str]:
        return {"text/html": self.to_html(), "text/plain": self.to_text()}


def _figure_dict(figure: Figure) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: value
        for key in ("start", "mean", "peak", "end", "peak_low")
        if (value := getattr(figure, key)) is not None
    }
    found["samples"] = figure.samples
    if figure.metric in ("torch_allocated_bytes", "torch_reserved_bytes"):
        found["peak_exact"] = figure.peak_exact
    if figure.reason:
        found["reason"] = figure.reason
    return found


def _waterfall_dict(waterfall: Waterfall) -> dict[str, Any]:
    """Return moment -> part -> bytes; a moment that was not read is an absent key."""
    return {
        state.moment: {part.name: part.bytes for part in state.parts}
        for state in waterfall.states
    }


def _device_dict(summary: DeviceSummary, waterfall: Waterfall | None) -> dict[str, Any]:
    device = summary.device
    found: dict[str, Any] = {"device": device.id, "label": device.label, "name": device.name}
    if device.torch_index is not None:
        found["torch"] = device.torch_label
    found["constants"] = dict(device.constants)
    found["metrics"] = {
        name: _figure_dict(summary.figures[name]) for name in METRICS if name in summary.figures
    }
    if device.kind == "gpu":
        energy: dict[str, Any] = {
            key: value
            for key in ("joules", "bound_joules", "mean_watts", "method")
            if (value := getattr(summary.energy, key)) not in (None, "")
        }
        if summary.energy.reason:
            energy["reason"] = summary.energy.reason
        found["metrics"]["gpu_energy_joules"] = energy
        throttled: dict[str, Any] = {"samples": summary.throttling.samples}
        if summary.throttling.ratio is not None:
            throttled["ratio"] = summary.throttling.ratio
            throttled["by_reason"] = dict(summary.throttling.by_reason)
            throttled["method"] = summary.throttling.method
            throttled["seconds"] = dict(summary.throttling.seconds)
            throttled["sampled"] = list(summary.throttling.sampled)
        if summary.throttling.reason:
            throttled["reason"] = summary.throttling.reason
        found["throttled"] = throttled
        if waterfall is not None:
            found["waterfall"] = _waterfall_dict(waterfall)
    if summary.lost_s:
        found["lost_s"] = summary.lost_s
        found["lost_reason"] = summary.gap_reason
    if summary.coverage is not None:
        found["samples"] = summary.coverage.samples
        found["longest_gap_s"] = summary.coverage.longest_gap_s
    return found
