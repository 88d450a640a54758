"""A finding: one thing that held a cell back or misleads, with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["GRAVE", "SEVERITIES", "Finding", "Severity"]

Severity = Literal["failed", "limit", "waste", "hint", "well"]

SEVERITIES: tuple[Severity, ...] = ("failed", "limit", "waste", "hint", "well")
"""From the gravest down: the cell failed or is about to; something held it back; it left much
of the GPU unused; a figure misleads or could be better; all is well or cannot be told."""

GRAVE: frozenset[Severity] = frozenset({"failed", "limit", "waste"})
"""The severities beside which all is not well."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says of one cell.

    ``lead`` is the sentence, ``evidence`` the sentence of figures that it rests on, ``advice``
    the next step (with code between backticks), ``short`` all of it in a few words for one line.
    ``device`` is the id of the device that it is about. ``stretches`` are the epoch seconds of
    the parts of the cell that it speaks of, with ``label`` to stand above them, and ``metrics``
    those whose figures it is about. ``figures`` are the numbers of the evidence in base units.
    """

    rule: str
    severity: Severity
    lead: str
    evidence: str = ""
    advice: str = ""
    short: str = ""
    device: str = ""
    label: str = ""
    stretches: tuple[tuple[float, float], ...] = ()
    metrics: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """All of it as one text."""
        return " ".join(part for part in (self.lead, self.evidence, self.advice) if part)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "device": self.device,
            "message": self.lead,
            "evidence": self.evidence,
            "advice": self.advice,
            "stretches": [list(stretch) for stretch in self.stretches],
            "figures": dict(self.figures),
        }
