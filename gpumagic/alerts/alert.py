"""An alert: one thing that goes wrong on a GPU now, in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["SEVERITIES", "Alert", "Severity", "State"]

Severity = Literal["failed", "limit", "hint"]
State = Literal["begun", "over"]

SEVERITIES: tuple[Severity, ...] = ("failed", "limit", "hint")
"""From the gravest down: something has failed; something fails soon or is held back; something
could be better. The words are those of findings."""


@dataclass(frozen=True, slots=True)
class Alert:
    """What goes wrong on one GPU.

    ``kind`` is a name of ALERTS and ``device`` the GPU's id. ``text`` is one line, with code
    between backticks. ``since`` is the time in epoch seconds from which it holds, as far as the
    recording shows. ``strips`` lists (device id, strip) of the figures in a view that it speaks
    of. ``evidence`` are the numbers that it rests on, by name and in base units. ``state`` is
    "begun" while it holds and "over" from ``until`` (epoch seconds, else ``None``) on.
    """

    kind: str
    device: str
    text: str
    severity: Severity
    since: float
    strips: tuple[tuple[str, str], ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    state: State = "begun"
    until: float | None = None
