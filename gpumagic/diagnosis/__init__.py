"""Diagnosis: what held a cell back, in words, and what to try next.

To add a rule, write a function of a :class:`~gpumagic.diagnosis.case.Case` that returns a
:class:`~gpumagic.diagnosis.finding.Finding` or ``None``, and add it to RULES. A case that must
fire it, and a near one that must not, go to its tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..figures import DeviceSummary, Summary
from ..recording import Recording
from ..waterfall import Waterfall
from . import feeding, limits, memory, outcome
from .case import Case
from .finding import SEVERITIES, Finding, Severity
from .rule import Rule
from .thresholds import Thresholds, parse_thresholds

__all__ = [
    "RULES",
    "SEVERITIES",
    "Case",
    "Finding",
    "Rule",
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
    Rule("input-bound-workers", feeding.input_bound_workers),
    Rule("input-bound-storage", feeding.input_bound_storage),
    Rule("input-bound-no-workers", feeding.input_bound_no_workers),
    Rule("copies", feeding.copies_alone),
    Rule("launch-bound", feeding.launch_bound),
    Rule("under-filled", feeding.under_filled),
    Rule("staircase", memory.staircase, frozenset({"cache"})),
    Rule("allocator-retries", memory.allocator_retries, frozenset({"near-full", "cache"})),
    Rule("near-full", memory.near_full, frozenset({"cache"})),
    Rule("fragmentation", memory.fragmentation, frozenset({"cache"})),
    Rule("host-limit", limits.host_limit),
    Rule("host-memory", limits.host_memory),
    Rule("other-process", limits.other_process),
    Rule("throttled", limits.throttled, frozenset({"hot"})),
    Rule("hot", limits.hot),
    Rule("cache", memory.cache_no_leak),
    Rule("healthy", outcome.healthy),
    Rule("too-short", outcome.too_short),
)
"""All rules; of two that explain the same stretch, the first one speaks."""

_CAUSES = frozenset(
    {
        "input-bound-workers", "input-bound-storage", "input-bound-no-workers", "copies",
        "launch-bound", "under-filled",
    }
)
_SAME_STRETCH = 0.3


def diagnose(
    recording: Recording,
    summary: Summary,
    *,
    waterfalls: Sequence[Waterfall] = (),
    thresholds: Thresholds | None = None,
    streams: str = "unknown",
) -> tuple[Finding, ...]:
    """Return what the rules find in a summarised span, the gravest first.

    Rules judge each GPU that was used, and the host once. Findings that contradict each other
    never stand together: two causes only for different stretches, and "all is well" only where
    nothing was held back.
    """
    found: list[Finding] = []
    for gpu in _judged(summary):
        waterfall = next((w for w in waterfalls if gpu and w.device.id == gpu.device.id), None)
        case = Case(recording, summary, gpu, thresholds or Thresholds(), waterfall, streams)
        for finding in _of_case(case):
            if not any(_same(known, finding) for known in found):
                found.append(finding)
    held = any(f.severity in ("failed", "limit", "waste") for f in found)
    if held:
        found = [f for f in found if f.severity != "well"]
    order = {rule.name: index for index, rule in enumerate(RULES)}
    return tuple(sorted(found, key=lambda f: (SEVERITIES.index(f.severity), order[f.rule])))


def _same(known: Finding, finding: Finding) -> bool:
    """Tell whether a finding is known: of the host there is one, and "all is well" stands once."""
    if known.rule != finding.rule:
        return False
    return known.device == finding.device or finding.severity == "well"


def _judged(summary: Summary) -> list[DeviceSummary | None]:
    """List the GPUs to judge, the busiest first; ``None`` for a span without GPUs."""
    used = [
        gpu for gpu in summary.gpus
        if gpu.figure("gpu_utilization_ratio").peak != 0
        or gpu.figure("torch_allocated_bytes").measured
    ]
    used.sort(key=lambda gpu: -(gpu.figure("gpu_utilization_ratio").mean or 0.0))
    return list(used) or [None]


def _of_case(case: Case) -> list[Finding]:
    found = [(rule, finding) for rule in RULES if (finding := rule.check(case)) is not None]
    hidden = {name for rule, _ in found for name in rule.hides}
    kept: list[Finding] = []
    for rule, finding in found:
        if rule.name in hidden or _explained(finding, kept):
            continue
        kept.append(finding)
    return kept


def _explained(finding: Finding, kept: Sequence[Finding]) -> bool:
    """Tell whether an earlier cause explains a good part of the stretch of this one."""
    if finding.rule not in _CAUSES:
        return False
    long = sum(end - start for start, end in finding.stretches)
    shared = sum(
        max(0.0, min(end, last) - max(start, first))
        for other in kept if other.rule in _CAUSES
        for start, end in finding.stretches
        for first, last in other.stretches
    )
    return long > 0 and shared > _SAME_STRETCH * long
