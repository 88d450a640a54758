"""The findings of a diagnosis in a report: as sentences, and as a bracket on the time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..diagnosis import GRAVE, Finding
from ..metrics import LIMITED_SECONDS, METRICS
from ..sample import Device
from .parts import Scene
from .report_idle import labels_of
from .report_parts import Bracket, Sentence
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["THROTTLE_METRICS", "about", "bracket_of", "findings", "well"]

THROTTLE_METRICS = frozenset({"gpu_clock_event_reasons_state", *LIMITED_SECONDS})
"""What tells that clocks were held back."""

# An end this near to an end of the axis, as a fraction of it, is that end.
_EDGE = 0.015
_MOST_ENDS = 6
_MOST_LEADS = 2


def findings(profile: Profile, *, grave: bool) -> list[Sentence]:
    """Return what held the cell back (``grave``), or what misleads or could be better.

    What a rule finds of several GPUs is one paragraph: all of it for the first, and less for
    the others.
    """
    by_rule: dict[str, list[Finding]] = {}
    for finding in profile.findings:
        if finding.severity != "well" and (finding.severity in GRAVE) == grave:
            by_rule.setdefault(finding.rule, []).append(finding)
    return [_sentence(first, others, profile) for first, *others in by_rule.values()]


def well(profile: Profile) -> list[Finding]:
    """Return the findings that are no warning: all is well, or nothing can be told."""
    return [finding for finding in profile.findings if finding.severity == "well"]


def _sentence(finding: Finding, others: Sequence[Finding], profile: Profile) -> Sentence:
    rest = [clean(text) for text in (finding.evidence, finding.advice) if text]
    if len(others) > _MOST_LEADS:
        ids = {other.device for other in others}
        devices = [gpu.device for gpu in profile.summary.gpus if gpu.device.id in ids]
        rest.append(f"The same holds for {labels_of(devices)}.")
    else:
        rest += [_lead(other, profile) for other in others]
    return Sentence(_lead(finding, profile), " ".join(["", *rest]), finding=True)


def _lead(finding: Finding, profile: Profile) -> str:
    lead, label = clean(finding.lead), _label_of(finding, profile)
    return f"{label}: {lead}" if label and label not in lead else lead


def _label_of(finding: Finding, profile: Profile) -> str:
    """Name the GPU that a finding is about, where there are several."""
    gpus = profile.summary.gpus
    if len(gpus) < 2:
        return ""
    return next((clean(g.device.label) for g in gpus if g.device.id == finding.device), "")


def about(found: Sequence[Finding], device: Device) -> frozenset[str]:
    """Return the metrics of a device whose figures the gravest finding is about."""
    first = next((f for f in found if f.severity != "well"), None)
    if first is None:
        return frozenset()
    if device.kind == "host":
        # A finding about a GPU can rest on the host's figures.
        return frozenset(m for m in first.metrics if m in METRICS and METRICS[m].source == "host")
    return frozenset(first.metrics) if first.device in ("", device.id) else frozenset()


# -- on the time axis -----------------------------------------------------------------------


def bracket_of(profile: Profile) -> Bracket | None:
    """Place the stretches of the first finding that has any on the time axis of the picture."""
    if profile.scene is None:
        return None
    for finding in profile.findings:
        stretches = _placed(finding.stretches, profile.scene)
        if stretches:
            return Bracket(finding.device, clean(finding.label), stretches, _ends(stretches))
    return None


def _placed(
    stretches: Sequence[tuple[float, float]], scene: Scene
) -> tuple[tuple[float, float], ...]:
    """Turn epoch seconds into fractions of the axis; what lies beside it is left out."""
    length = scene.end - scene.start
    found = []
    for start, end in sorted(stretches):
        x0, x1 = (min(1.0, max(0.0, (t - scene.start) / length)) for t in (start, end))
        if x1 > x0:
            found.append((0.0 if x0 < _EDGE else x0, 1.0 if x1 > 1 - _EDGE else x1))
    return tuple(found)


def _ends(stretches: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Return the ends that lie inside the cell: of all stretches, or of the longest if many."""
    ends = [x for stretch in stretches for x in stretch if 0 < x < 1]
    if len(ends) > _MOST_ENDS:
        ends = [x for x in max(stretches, key=lambda s: s[1] - s[0]) if 0 < x < 1]
    return tuple(dict.fromkeys(ends))
