"""Write docs/metrics.md from METRICS: ``python docs/make_metrics.py``."""

from __future__ import annotations

from pathlib import Path

from gpumagic.metrics import CLOCK_EVENT_REASONS, METRICS, THROTTLE_REASONS

HEAD = """# What each number means

One name everywhere: in `Profile.to_dict()`, JSON lines, pandas and exporters. The unit is part of
the name; a processor share of 1.0 is one core. *Window*: the time that a reading averages over, and
how often the device renews it. A reading counts in a cell's figures only if all the time that it
speaks of lies inside the cell. A value that was not measured is absent, never 0.

This page is written from the table in `gpumagic/metrics.py`.

| metric | what it is | comes from | window |
|---|---|---|---|
"""


def _window(window_s: float, refresh_s: float, kind: str) -> str:
    if kind == "constant":
        return "read once"
    if kind == "counter":
        return "counter" + (f", renewed every {refresh_s:g} s" if refresh_s else "")
    if window_s:
        return f"mean of {window_s:g} s" + (f", renewed every {refresh_s:g} s" if refresh_s else "")
    return "present" + (f", renewed every {refresh_s:g} s" if refresh_s else "")


def page() -> str:
    """Return the page's text."""
    rows = [
        f"| `{m.name}` | {m.help} | {m.call} | {_window(m.window_s, m.refresh_s, m.kind)} |\n"
        for m in METRICS.values()
    ]
    bits = [
        f"| `{bit:#05x}` | {text} | {'yes' if bit in THROTTLE_REASONS else 'no'} |\n"
        for bit, text in CLOCK_EVENT_REASONS.items()
    ]
    return (
        HEAD + "".join(rows)
        + "\n## Clock event reasons\n\nThe bits of `gpu_clock_event_reasons_state`.\n\n"
        + "| bit | reason | counts as throttled |\n|---|---|---|\n" + "".join(bits)
    )


if __name__ == "__main__":
    Path(__file__).with_name("metrics.md").write_text(page(), encoding="utf-8")
