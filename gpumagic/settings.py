"""Settings: traitlets under the name GpuMagic, for %config, config files and defaults."""

from __future__ import annotations

from typing import Any

from traitlets import CaselessStrEnum, CFloat, Dict, TraitError, Unicode, validate
from traitlets.config import Configurable

from .errors import SettingError
from .front_ends import FRONT_ENDS
from .options import check_interval, check_window, parse_gpus, parse_strips, parse_window

__all__ = ["GpuMagic"]


class _Window(CFloat):  # type: ignore[type-arg]
    """Seconds, or the text of a window as ``%gpuwatch -w`` takes it; all is infinite."""

    def validate(self, obj: Any, value: Any) -> float:
        if isinstance(value, str):
            value = _as_trait(parse_window, value)
        return float(super().validate(obj, value))

    def from_string(self, s: str) -> float:
        return float(_as_trait(parse_window, s))


class GpuMagic(Configurable):
    """Settings of gpumagic; each can be given in a config file as ``c.GpuMagic.NAME``."""

    interval_s = CFloat(
        0.1,
        help="Seconds between two quick readings (NVML counters, torch's allocator); a live"
        " view alone has one each 0.2 s, unless this is set to something else.",
    ).tag(config=True)
    window_s = _Window(
        60.0,
        help="Seconds that the live view shows, or such as '10min' or 'all'; a running one"
        " without a -w follows.",
    ).tag(config=True)
    gpus = Unicode(
        "usable",
        help="GPUs to watch: indices, UUIDs, cuda:N, all, or usable (those of this kernel);"
        " for the next %gpuwatch or measured cell.",
    ).tag(config=True)
    metrics = Unicode(
        "util,mem,power,temp",
        help="Strips of the live view, by their short names; for the next %gpuwatch.",
    ).tag(config=True)
    renderer = CaselessStrEnum(
        ["auto", "bqplot", "svg", "html"], default_value="auto",
        help="What draws the live view; auto takes bqplot while it can carry the load;"
        " for the next %gpuwatch.",
    ).tag(config=True)
    front_end = CaselessStrEnum(
        ["auto", *FRONT_ENDS], default_value="auto",
        help="What looks at the notebook, where it is told wrongly; headless keeps a still"
        " picture in the file, colab replaces its output; for the next %gpuwatch.",
    ).tag(config=True)
    updates_per_s = CFloat(
        4.0, help="Updates of the live view per second; a running one follows."
    ).tag(config=True)
    memory_mib = CFloat(
        48.0,
        help="MiB of memory for what is recorded; beyond it old readings are merged, their"
        " peaks kept. To be set before the first use.",
    ).tag(config=True)

    thresholds = Dict(
        help="From which figures on findings are reported, by name, such as"
        ' {"near_full_ratio": 0.95}; the others keep their defaults.'
    ).tag(config=True)

    alerts = Dict(
        help="From which figures on alerts are shown below the live view, by name, such as"
        ' {"idle_minutes": 10}; the others keep their defaults (docs/alerts.md); for the next'
        " %gpuwatch."
    ).tag(config=True)

    @validate("interval_s")
    def _check_interval(self, proposal: Any) -> float:
        return float(_as_trait(check_interval, proposal["value"]))

    @validate("window_s")
    def _check_window(self, proposal: Any) -> float:
        return float(_as_trait(check_window, proposal["value"]))

    @validate("gpus")
    def _check_gpus(self, proposal: Any) -> str:
        _as_trait(parse_gpus, proposal["value"])
        return str(proposal["value"])

    @validate("metrics")
    def _check_metrics(self, proposal: Any) -> str:
        _as_trait(parse_strips, proposal["value"])
        return str(proposal["value"])

    @validate("thresholds")
    def _check_thresholds(self, proposal: Any) -> dict[str, float]:
        # Here, because loading the extension does not need the rules.
        from .diagnosis.thresholds import parse_thresholds

        _as_trait(parse_thresholds, proposal["value"])
        return dict(proposal["value"])

    @validate("alerts")
    def _check_alerts(self, proposal: Any) -> dict[str, float]:
        from .alerts.thresholds import parse_alerts

        _as_trait(parse_alerts, proposal["value"])
        return dict(proposal["value"])

    @validate("updates_per_s")
    def _check_updates(self, proposal: Any) -> float:
        value = float(proposal["value"])
        if not 0.1 <= value <= 20:
            raise TraitError(f"updates_per_s is {value:g}; it goes from 0.1 to 20")
        return value

    @validate("memory_mib")
    def _check_memory(self, proposal: Any) -> float:
        value = float(proposal["value"])
        if not 1 <= value <= 65_536:
            raise TraitError(f"memory_mib is {value:g}; it goes from 1 to 65,536")
        return value


def _as_trait(check: Any, value: Any) -> Any:
    try:
        return check(value)
    except SettingError as error:
        raise TraitError(str(error)) from None
