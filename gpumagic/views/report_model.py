"""The report of one cell before anyone writes it: words and figures, in their order.

HTML and text write one :class:`Report`, so that they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..summary import DeviceSummary
from ..units import duration
from .report_evidence import evidence, notes
from .report_facts import facts
from .report_findings import about, bracket_of
from .report_idle import fold_idle
from .report_memory import memory_notes, memory_tables
from .report_parts import Group, MemoryTable, ReportLine, Section, Sentence, Strip
from .report_rows import TOO_SHORT, gpu_section, host_section
from .report_words import device_title, verdict
from .wording import clean, short_name

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["Report", "build_report"]

_LONGEST_NAME = 48
_AS_ABOVE = "as above"


@dataclass(frozen=True, slots=True)
class Report:
    """All that a report says.

    ``number`` is empty where ``name`` is the number already. ``failed`` is true for a cell
    that raised. ``memory`` says where each GPU's memory was. ``groups`` are single figures, by
    device. ``evidence`` is what the figures rest on, ``notes`` what is odd about devices.
    """

    name: str
    number: str
    wall: str
    exit: str
    failed: bool
    devices: str
    verdict: tuple[Sentence, ...]
    sections: tuple[Section, ...]
    memory: tuple[MemoryTable, ...]
    groups: tuple[Group, ...]
    evidence: str
    notes: tuple[str, ...]


def build_report(profile: Profile) -> Report:
    """Say what a profile holds, in human units."""
    gpus = profile.summary.gpus
    shown, folded = fold_idle(gpus)
    sections = _bracketed(_sections(profile, shown, folded), profile)
    ids = [gpu.device.id for gpu in shown]
    name = clean(profile.name)
    number = profile.span.label if profile.number is not None else ""
    return Report(
        name=name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1].rstrip() + "…",
        number="" if number == name else number,
        wall=duration(profile.wall_s),
        exit=profile.exit,
        failed=profile.exit == "error",
        devices=_devices(gpus),
        verdict=verdict(profile, shown),
        sections=sections,
        memory=memory_tables(profile, ids),
        groups=facts(profile, shown, _told(sections), titled=len(gpus) > 1),
        evidence=evidence(profile, [x for s in sections for t in s.strips for x in t.lines]),
        notes=(*notes(gpus), *memory_notes(profile, ids)),
    )


def _bracketed(sections: tuple[Section, ...], profile: Profile) -> tuple[Section, ...]:
    """Put the bracket above the section that it is about, or above the first one drawn."""
    bracket = bracket_of(profile)
    drawn = [s for s in sections if any(strip.row is not None for strip in s.strips)]
    if bracket is None or not drawn:
        return sections
    own = next((section for section in drawn if section.device == bracket.device), drawn[0])
    return tuple(
        replace(section, bracket=bracket) if section is own else section for section in sections
    )


def _sections(
    profile: Profile, gpus: tuple[DeviceSummary, ...], folded: tuple[Section, ...]
) -> tuple[Section, ...]:
    summary = profile.summary
    several = len(summary.gpus) > 1
    found = [
        gpu_section(
            gpu, device_title(gpu.device) if several else "", profile.scene,
            about(profile.findings, gpu.device),
        )
        for gpu in gpus
    ]
    found += folded
    if not gpus:
        reason = (profile.reasons or {}).get("nvml") or "none was measured"
        found.append(Section("", (Strip((ReportLine("GPU"),), None, clean(reason)),)))
    if summary.host is not None:
        found.append(host_section(
            summary.host, "Host" if several else "", profile.scene,
            about(profile.findings, summary.host.device),
        ))
    return _once(found if several else _one_line(found))


def _one_line(sections: Sequence[Section]) -> list[Section]:
    """Gather what was too short to say of all devices in the first such line."""
    short = [
        strip for section in sections for strip in section.strips
        if strip.bare and strip.missing.startswith(TOO_SHORT)
    ]
    if len(short) < 2:
        return list(sections)
    first, *rest = short
    label = ", ".join(line.label for strip in short for line in strip.lines)
    reasons = {strip.missing for strip in short}
    reason = reasons.pop() if len(reasons) == 1 else TOO_SHORT
    joined = Strip((ReportLine(label),), None, reason)
    return [
        replace(section, strips=tuple(
            joined if strip is first else strip
            for strip in section.strips if not any(strip is other for other in rest)
        ))
        for section in sections
    ]


def _once(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Let each reason stand once: for the next device it is as above."""
    told: set[str] = set()
    found = []
    for section in sections:
        strips = tuple(
            replace(strip, missing=_AS_ABOVE) if strip.bare and strip.missing in told else strip
            for strip in section.strips
        )
        told |= {strip.missing for strip in section.strips if strip.bare}
        found.append(replace(section, strips=strips))
    return tuple(found)


def _told(sections: tuple[Section, ...]) -> frozenset[str]:
    """Return the reasons that stand in the table already."""
    return frozenset(t.missing for s in sections for t in s.strips if t.missing)


def _devices(gpus: tuple[DeviceSummary, ...]) -> str:
    if not gpus:
        return "no GPU"
    if len(gpus) == 1:
        return device_title(gpus[0].device)
    names = {short_name(gpu.device.name) for gpu in gpus}
    return f"{len(gpus)} × {names.pop()}" if len(names) == 1 else f"{len(gpus)} GPUs"
