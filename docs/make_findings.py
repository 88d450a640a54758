"""Write docs/findings.md from RULES and Thresholds: ``python docs/make_findings.py``."""

from __future__ import annotations

from pathlib import Path

import thresholds

from gpumagic.diagnosis import RULES, Thresholds

HEAD = """# What a report can find

`%%gpuprofile` and the footer of `%gpureport on` judge a cell by rules. Each finding says what
happened, the figures that it rests on, and a next step; the stretch of the cell that it is about
is bracketed on the time axis. Two findings never explain the same stretch, and where none fits
nothing is said. The rules, in the order in which they are asked:

| finding | speaks when | silences |
|---|---|---|
"""

THRESHOLDS = """
## Thresholds

Change some with `%config GpuMagic.thresholds = {"near_full_ratio": 0.95}`, or in a config file.

| name | default | meaning |
|---|---|---|
"""


def page() -> str:
    """Return the page's text."""
    rules = [
        f"| `{rule.name}` | {rule.when} | "
        f"{', '.join(f'`{name}`' for name in sorted(rule.hides)) or ''} |\n"
        for rule in RULES
    ]
    return HEAD + "".join(rules) + THRESHOLDS + thresholds.rows(Thresholds)


if __name__ == "__main__":
    Path(__file__).with_name("findings.md").write_text(page(), encoding="utf-8")
