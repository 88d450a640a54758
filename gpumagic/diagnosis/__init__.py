"""Diagnosis: what held a cell back, in words, and what to try next.

To add a rule, write a function of a :class:`~gpumagic.diagnosis.case.Case` that returns a
:class:`~gpumagic.diagnosis.finding.Finding` or ``None``, and add it to RULES. A case that must
fire it, and a near one that must not, go to its tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..coverage import length
from ..figures import Summary
from ..recording import Recording
from ..waterfall import Waterfall
from . import climbing, data, filling, growing, launching, limits, memory, outcome
from .case import Case
from .finding import GRAVE, SEVERITIES, Finding, Severity
from .growing import RunGrowth
from .rule import Rule
from .thresholds import Thresholds, parse_thresholds

__all__ = [
    "GRAVE",
    "RULES",
    "SEVERITIES",
    "Case",
    "Finding",
    "Rule",
    "RunGrowth",
    "Severity",
    "Thresholds",
    "diagnose",
    "parse_thresholds",
]

RULES: tuple[Rule, ...] = (
    Rule(
        "out-of-memory", memory.out_of_memory,
        frozenset({"allocator-retries", "near-full", "staircase", "cache", "fragmentation"}),
    ),
    Rule("input-bound-workers", data.input_bound_workers),
    Rule("input-bound-storage", data.input_bound_storage),
    Rule("input-bound-no-workers", data.input_bound_no_workers),
    Rule("copies", filling.copies_alone),
    Rule("launch-bound", launching.launch_bound),
    Rule("host-bound", launching.host_bound),
    Rule("under-filled", filling.under_filled),
    Rule("run-growth", growing.run_growth, frozenset({"staircase", "cache"})),
    Rule("staircase", climbing.staircase, frozenset({"cache"})),
    Rule("allocator-retries", memory.allocator_retries, frozenset({"near-full", "cache"})),
    Rule("near-full", memory.near_full, frozenset({"cache"}), own=False),
    Rule("fragmentation", memory.fragmentation, frozenset({"cache"})),
    Rule("host-limit", limits.host_limit, own=False),
    Rule("host-memory", limits.host_memory, own=False),
    Rule("other-process", limits.other_process, own=False),
    Rule("throttled", limits.throttled, frozenset({"hot"})),
    Rule("hot", limits.hot, own=False),
    Rule("cache", memory.cache_no_leak),
    Rule("compiling", launching.compiling),
    Rule("healthy", outcome.healthy),
    Rule("too-short", outcome.too_short),
)
"""All rules; of two causes for the same stretch, the one with the longer stretch speaks."""

_CAUSES = frozenset(
    {
        "input-bound-workers", "input-bound-storage", "input-bound-no-workers", "copies",
        "launch-bound", "host-bound", "under-filled",
    }
)
_SAME_STRETCH = 0.3


def diagnose(
    recording: Recording,
    summary: Summary,
    *,
    waterfalls: Sequence[Waterfall] = (),
    thresholds: Thresholds | None = None,
    growth: Mapping[str, RunGrowth] | None = None,
) -> tuple[Finding, ...]:
    """Return what the rules find in a summarised span, the gravest first.

    ``growth`` says on which GPUs, by their ids, live memory only grew in the cell's last runs.

    Rules judge each GPU that this process used, and the host once. Findings that contradict
    each other never stand together: two causes only for different stretches, and "all is well"
    only where nothing was held back.
    """
    found: list[Finding] = []
    by_device = {waterfall.device.id: waterfall for waterfall in waterfalls}
    known = thresholds or Thresholds()
    cases = [
        Case(
            recording, summary, gpu, known, by_device.get(gpu.device.id),
            (growth or {}).get(gpu.device.id),
        )
        for gpu in summary.gpus
    ]
    judged = _judged(cases) or [Case(recording, summary, None, known)]
    for case in judged:
        for finding in _of_case(case):
            if not any(k.rule == finding.rule and k.device == finding.device for k in found):
                found.append(finding)
    found = _well_together(found, len(judged))
    order = {rule.name: index for index, rule in enumerate(RULES)}
    return tuple(sorted(found, key=lambda f: (SEVERITIES.index(f.severity), order[f.rule])))


def _well_together(found: Sequence[Finding], judged: int) -> list[Finding]:
    """Let "all is well" stand only where it holds for all that was judged, and once."""
    well = [f for f in found if f.severity == "well"]
    rest = [f for f in found if f.severity != "well"]
    if len(well) < judged or any(f.severity in GRAVE for f in rest):
        return rest
    return [*rest, outcome.together(well)]


def _judged(cases: Sequence[Case]) -> list[Case]:
    """Choose the cases to judge, the busiest GPU first: those that this process uses.

    Where it uses none, those on which anything ran.
    """
    chosen = [case for case in cases if case.own]
    if not chosen:
        chosen = [
            case for case in cases
            if case.figure("gpu_utilization_ratio").peak != 0
            or case.figure("gpu_sm_active_ratio").peak
        ]
    return sorted(chosen, key=lambda case: -(case.mean("gpu_utilization_ratio") or 0.0))


def _of_case(case: Case) -> list[Finding]:
    asked = [rule for rule in RULES if case.own or not rule.own]
    found = [(rule, finding) for rule in asked if (finding := rule.check(case)) is not None]
    hidden = {name for rule, _ in found for name in rule.hides}
    causes = _apart([f for rule, f in found if rule.name in _CAUSES])
    return [
        f for rule, f in found
        if rule.name not in hidden and (rule.name not in _CAUSES or f in causes)
    ]


def _apart(causes: Sequence[Finding]) -> list[Finding]:
    """Keep those causes that explain stretches of their own, the longer ones first."""
    kept: list[Finding] = []
    for finding in sorted(causes, key=lambda f: -length(f.stretches)):
        explained = sum(_shared(finding.stretches, other.stretches) for other in kept)
        if explained <= _SAME_STRETCH * length(finding.stretches):
            kept.append(finding)
    return kept


def _shared(ones: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> float:
    return sum(
        max(0.0, min(end, last) - max(start, first))
        for start, end in ones for first, last in others
    )
