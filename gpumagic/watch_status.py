"""What ``%gpuwatch status`` and ``stop`` say in words."""

from __future__ import annotations

from .session import Session
from .units import duration
from .watch_content import Record

__all__ = ["record_text", "status_text"]


def record_text(record: Record) -> str:
    """Say in words how far a recording into a file has come."""
    lines = "1 line" if record.lines == 1 else f"{record.lines} lines"
    trouble = f"; it cannot be written any more: {record.error}" if record.error else ""
    return f"{record.path}, {lines}{trouble}"


def status_text(session: Session) -> str:
    """Say in text what runs: the watch, who holds the sampler, and how sources keep time."""
    lines = [session.watch.describe() if session.watch is not None else "watch: none"]
    if session.record is not None:
        lines.append(f"recording: {record_text(session.record)}")
    sampler = session.sampler
    if sampler is None:
        lines.append("sampling: stopped (nobody needs it)")
        return "\n".join(lines)
    holders = ", ".join(session.leases)
    lines.append(
        f"sampling: for {holders}; {duration(session.watch_cpu_s)} of processor time so far"
    )
    reasons = sampler.reasons
    for name, stats in sampler.stats.items():
        period = session.recording.periods.get(name, 0.0)
        line = (
            f"  {name}: every {period:g} s, {stats.readings} readings, {stats.late} late,"
            f" {stats.missed} missed"
        )
        if name in reasons:
            line = f"  {name}: n/a: {reasons[name]}"
        lines.append(line)
    for device in session.recording.devices:
        parts = [device.label, device.torch_label, device.name]
        lines.append("  " + "  ".join(part for part in parts if part and part != "Host"))
    return "\n".join(line.rstrip() for line in lines)
