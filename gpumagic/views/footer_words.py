"""What a footer and the list of cells say of a cell in a few words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..diagnosis import GRAVE
from ..sample import SpanStatus
from .report_idle import labels_of
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["ending_of", "words_of"]


def words_of(profile: Profile, error: str | None = None) -> tuple[str, bool]:
    """Return the one thing to say of a cell in short, and whether it gets the mark.

    That a cell failed, was interrupted, or lost a GPU comes before what else was found; only
    why it failed, and what held it back while the GPU could be read, come before these.
    ``error`` is the exception's class name. Code stands between backticks.
    """
    findings = profile.findings
    first = next((f for f in findings if f.severity == "failed"), None)
    if first is not None:
        return clean(first.short or first.lead), True
    ending = ending_of(profile.span.status, error)
    if ending[0]:
        return ending
    first = next((f for f in findings if f.severity in GRAVE), None)
    lost = _lost(profile)
    if first is None and lost:
        return lost, True
    # A hint beside "all is well" has its place in the report.
    first = first or next((f for f in findings if f.severity != "hint"), None)
    first = first or next(iter(findings), None)
    if first is None:
        return "", False
    return clean(first.short or first.lead), first.severity != "well"


def ending_of(status: SpanStatus, error: str | None = None) -> tuple[str, bool]:
    """Say how a cell ended that did not end well, and whether that gets the mark."""
    if status == "error":
        return (f"failed: {clean(error)}" if error else "failed"), True
    return ("interrupted" if status == "interrupted" else ""), False


def _lost(profile: Profile) -> str:
    """Say which GPUs could not be read in part of the cell, and why the first of them."""
    lost = [gpu for gpu in profile.summary.gpus if gpu.lost_s]
    if not lost:
        return ""
    # What stands in brackets is for the report.
    reason = re.sub(r"\s*\([^()]*\)", "", clean(lost[0].gap_reason))
    text = f"{labels_of([gpu.device for gpu in lost])} could not be read"
    return f"{text}: {reason}" if reason else text
