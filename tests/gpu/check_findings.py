"""Show that each finding is reported where it should be, and nowhere else.

On a machine with an NVIDIA GPU and torch: ``python tests/gpu/check_findings.py [--out DIR]
[NAME ...]``. Runs the scenarios, prints a table, writes DIR/findings.json and what scenarios.py
writes, and exits with 1 if a scenario lacks its finding, has one that does not belong, or broke.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpumagic.diagnosis import RULES
from scenarios import Outcome, arguments, chosen, run
from workloads import SCENARIOS, Scenario

__all__ = ["Verdict", "allowed_by", "complaints_of", "judge", "main"]

HARMLESS = frozenset({"well", "hint"})
"""Severities that may be reported of any scenario."""


@dataclass(frozen=True)
class Verdict:
    """What one scenario should have given, what it gave, and what is wrong with that."""

    scenario: Scenario
    outcome: Outcome
    complaints: tuple[str, ...]


def allowed_by(scenario: Scenario) -> frozenset[str]:
    """Return the rules that may speak of a scenario, whatever their severity."""
    return scenario.must | scenario.may


def complaints_of(scenario: Scenario, found: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Say what is wrong with the findings of a scenario, given as pairs of rule and severity."""
    known = {rule.name for rule in RULES}
    complaints = [f"expects {name}, which is no rule" for name in allowed_by(scenario) - known]
    rules = {rule for rule, _ in found}
    if scenario.must and not rules & scenario.must:
        complaints.append(f"lacks {' or '.join(sorted(scenario.must))}")
    allowed = allowed_by(scenario)
    complaints += [
        f"{rule} ({severity}) does not belong"
        for rule, severity in found
        if rule not in allowed and severity not in HARMLESS
    ]
    return tuple(complaints)


def judge(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Judge what the scenarios gave, each by itself and the two forward passes together."""
    grown = {outcome.name: outcome.grown_bytes for outcome in outcomes}
    verdicts = []
    for outcome in outcomes:
        scenario = SCENARIOS[outcome.name]
        complaints: tuple[str, ...]
        if outcome.profile is None:
            complaints = ("broke",)
        else:
            complaints = complaints_of(scenario, [(f.rule, f.severity) for f in outcome.findings])
            if outcome.error:
                complaints += ("its report could not be written",)
        if outcome.name == "autograd-forward" and "inference-forward" in grown:
            with_graph, without = grown["autograd-forward"], grown["inference-forward"]
            if with_graph is None or without is None:
                complaints += ("the peaks of the forward passes were not measured",)
            elif with_graph <= without:
                complaints += (
                    f"its peak rose by {with_graph / 2**30:.1f} GiB, no more than without"
                    f" autograd ({without / 2**30:.1f} GiB)",
                )
        verdicts.append(Verdict(scenario, outcome, complaints))
    return verdicts


def _print(verdict: Verdict) -> None:
    scenario, outcome = verdict.scenario, verdict.outcome
    expected = " or ".join(sorted(scenario.must)) or "nothing"
    if scenario.may:
        expected += f" (may: {', '.join(sorted(scenario.may))})"
    state = f"WRONG: {'; '.join(verdict.complaints)}" if verdict.complaints else "ok"
    print(f"{scenario.name:20} {expected:50} {state}")
    if outcome.grown_bytes is not None:
        print(f"{'':20} torch's memory rose by {outcome.grown_bytes / 2**30:.2f} GiB")
    for finding in outcome.findings:
        print(f"{'':20} {finding.severity:6} {finding.rule}: {finding.lead} {finding.evidence}")
    if outcome.error:
        print(outcome.error)


def _plain(verdict: Verdict) -> dict[str, object]:
    return {
        "scenario": verdict.scenario.name,
        "what": verdict.scenario.text,
        "must": sorted(verdict.scenario.must),
        "may": sorted(verdict.scenario.may),
        "findings": [finding.to_dict() for finding in verdict.outcome.findings],
        "grown_bytes": verdict.outcome.grown_bytes,
        "complaints": list(verdict.complaints),
        "error": verdict.outcome.error,
    }


def main() -> int:
    """Run the scenarios and judge them; return the exit status."""
    parser = arguments(__doc__)
    options = parser.parse_args()
    begun = time.monotonic()
    verdicts = judge(run(chosen(parser, options), options.out, scale=options.scale))
    print(f"\n{'scenario':20} {'expected':50} verdict")
    for verdict in verdicts:
        _print(verdict)
    wrong = sum(bool(verdict.complaints) for verdict in verdicts)
    (options.out / "findings.json").write_text(
        json.dumps([_plain(verdict) for verdict in verdicts], indent=1, default=str)
    )
    print(f"{len(verdicts)} scenarios in {time.monotonic() - begun:.0f} s, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
