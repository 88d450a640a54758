"""Settings: traitlets under the name GpuMagic, for %config, config files and defaults."""

from __future__ import annotations

from typing import Any

from traitlets import CaselessStrEnum, CFloat, CInt, Dict, TraitError, Unicode, validate
from traitlets.config import Configurable

from .errors import SettingError
from .options import check_interval, check_window, parse_gpus, parse_strips

__all__ = ["GpuMagic"]


class GpuMagic(Configurable):
    """Settings of gpumagic; each can be given in a config file as ``c.GpuMagic.NAME``."""

    interval_s = CFloat(
        0.1, help="Seconds between two quick readings (NVML counters, torch's allocator)."
    ).tag(config=True)
    window_s = CFloat(
        60.0, help="Seconds that the live view shows; a running one without a -w follows."
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
        ["auto", "bqplot", "svg"], default_value="auto",
        help="What draws the live view; auto takes bqplot while it can carry the load;"
        " for the next %gpuwatch.",
    ).tag(config=True)
    updates_per_s = CFloat(
        4.0, help="Updates of the live view per second; a running one follows."
    ).tag(config=True)
    max_samples = CInt(
        72_000,
        help="Samples kept of each source and GPU before the oldest go; to be set before the"
        " first use.",
    ).tag(config=True)

    thresholds = Dict(
        help="From which figures on findings are reported, by name, such as"
        ' {"near_full_ratio": 0.95}; the others keep their defaults.'
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

    @validate("updates_per_s")
    def _check_updates(self, proposal: Any) -> float:
        value = float(proposal["value"])
        if not 0.1 <= value <= 20:
            raise TraitError(f"updates_per_s is {value:g}; it goes from 0.1 to 20")
        return value

    @validate("max_samples")
    def _check_max_samples(self, proposal: Any) -> int:
        value = int(proposal["value"])
        if not 600 <= value <= 10_000_000:
            raise TraitError(f"max_samples is {value}; it goes from 600 to 10,000,000")
        return value


def _as_trait(check: Any, value: Any) -> Any:
    try:
        return check(value)
    except SettingError as error:
        raise TraitError(str(error)) from None
