"""Write docs/findings.md from RULES and Thresholds: ``python docs/make_findings.py``."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from pathlib import Path

from gpumagic.diagnosis import RULES, Thresholds
from gpumagic.units import quantity

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


def _docs() -> dict[str, str]:
    """Return the text that stands below each threshold in its class."""
    body = ast.parse(inspect.getsource(Thresholds)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _value(name: str, value: object) -> str:
    assert isinstance(value, float)
    if name.endswith("_bytes"):
        return f"{value:.0f} ({quantity(value, 'bytes')})"
    return f"{value:.0e}".replace("+0", "") if value >= 1e6 else f"{value:g}"


def page() -> str:
    """Return the page's text."""
    rules = [
        f"| `{rule.name}` | {rule.when} | "
        f"{', '.join(f'`{name}`' for name in sorted(rule.hides)) or ''} |\n"
        for rule in RULES
    ]
    docs = _docs()
    limits = [
        f"| `{field.name}` | {_value(field.name, field.default)} | {docs[field.name]} |\n"
        for field in fields(Thresholds)
    ]
    return HEAD + "".join(rules) + THRESHOLDS + "".join(limits)


if __name__ == "__main__":
    Path(__file__).with_name("findings.md").write_text(page(), encoding="utf-8")
