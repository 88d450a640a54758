"""Rules that speak where no other does: all is well, or it cannot be told."""

from __future__ import annotations

from ..units import duration, quantity
from .case import Case
from .finding import Finding

__all__ = ["healthy", "too_short"]

_UTIL = "gpu_utilization_ratio"
_SM = "gpu_sm_active_ratio"
_TENSOR = "gpu_tensor_active_ratio"
_DRAM = "gpu_dram_active_ratio"


def healthy(case: Case) -> Finding | None:
    """The GPU was busy and filled, and nothing held it back."""
    limits = case.thresholds
    util, active = case.mean(_UTIL), case.mean(_SM)
    if util is None or case.wall_s < limits.shortest_s:
        return None
    if active is None:
        if util < limits.healthy_util_ratio or not case.figure(_SM).reason:
            return None
        return Finding(
            "healthy", "well", f"{case.subject} was busy throughout: GPU-Util"
            f" {quantity(util, 'ratio')}.",
            "How much of it was used is not counted on this GPU.", "", "busy throughout",
            case.device, figures={_UTIL: util},
        )
    if active < limits.healthy_sm_ratio:
        return None
    more = [
        f"{word} {quantity(value, 'ratio')}"
        for word, value in (("tensor cores", case.mean(_TENSOR)), ("bandwidth", case.mean(_DRAM)))
        if value is not None and value >= 0.1
    ]
    text = ", ".join([f"SM active {quantity(active, 'ratio')}", *more])
    return Finding(
        "healthy", "well", f"{case.subject} was well used: {text}.", "", "", "busy throughout",
        case.device, figures={_UTIL: util, _SM: active},
    )


def too_short(case: Case) -> Finding | None:
    """The cell is shorter than what the GPU's counters average over."""
    figure = case.figure(_UTIL)
    if case.gpu is None or figure.mean is not None or not figure.reason.startswith("too short"):
        return None
    return Finding(
        "too-short", "well",
        f"{duration(case.wall_s)} is too short to say what held the cell back.",
        "", "Measure some seconds of it: a few hundred steps, or an epoch.", "too short to say",
        case.device,
    )
