"""Rules that speak where no other does: all is well, or it cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..units import duration, quantity
from .case import Case, at_least, at_most
from .finding import Finding
from .signals import SM, UTIL, shared

__all__ = ["healthy", "together", "too_short"]

_WORTH_SAYING = 0.1
_TENSOR = "gpu_tensor_active_ratio"
_DRAM = "gpu_dram_active_ratio"


def healthy(case: Case) -> Finding | None:
    """The GPU was busy and filled, and nothing held it back."""
    limits = case.thresholds
    util, active = case.mean(UTIL), case.mean(SM)
    if case.wall_s < limits.shortest_s:
        return None
    if (case.gpu is not None and case.gpu.lost_s) or shared(case):
        return None
    figures = {n: v for n, v in ((UTIL, util), (SM, active)) if v is not None}
    if active is None:
        if not at_least(util, limits.healthy_util_ratio) or not case.figure(SM).reason:
            return None
        return Finding(
            "healthy", "well", f"{case.subject} was busy throughout: GPU-Util"
            f" {quantity(util, 'ratio')}.",
            "How much of it was used is not counted on this GPU.", "", "busy throughout",
            case.device, figures=figures,
        )
    if active < limits.healthy_sm_ratio or at_most(util, limits.idle_util_ratio):
        return None
    more = [
        f"{word} {quantity(value, 'ratio')}"
        for word, value in (("tensor cores", case.mean(_TENSOR)), ("bandwidth", case.mean(_DRAM)))
        if value is not None and value >= _WORTH_SAYING
    ]
    text = ", ".join([f"SM active {quantity(active, 'ratio')}", *more])
    short = "busy throughout" if at_least(util, limits.healthy_util_ratio) else "well used"
    return Finding(
        "healthy", "well", f"{case.subject} was well used: {text}.", "", "", short, case.device,
        figures=figures,
    )


def together(findings: Sequence[Finding]) -> Finding:
    """Say of several GPUs in one what was found of each."""
    first = findings[0]
    active = [f.figures[SM] for f in findings if SM in f.figures]
    if len(findings) == 1 or first.rule != "healthy" or len(active) < len(findings):
        return first
    low, high = (quantity(value, "ratio") for value in (min(active), max(active)))
    spread = low if low == high else f"{low.removesuffix(' %')} to {high}"
    return replace(
        first, lead=f"All {len(findings)} GPUs were well used: SM active {spread}.", device=""
    )


def too_short(case: Case) -> Finding | None:
    """The cell is shorter than what the GPU's counters average over."""
    figure = case.figure(UTIL)
    if case.gpu is None or figure.mean is not None or case.mean(SM) is not None:
        return None
    if not figure.reason.startswith("too short"):
        return None
    return Finding(
        "too-short", "well",
        f"{duration(case.wall_s)} is too short to say what held the cell back.",
        "", "Measure some seconds of it: a few hundred steps, or an epoch.", "too short to say",
        case.device,
    )
