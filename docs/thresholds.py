"""What the pages on findings and on alerts share: the table of their thresholds."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from typing import Any

from gpumagic.units import quantity


def _docs(limits: type) -> dict[str, str]:
    """Return the text that stands below each threshold in its class."""
    body = ast.parse(inspect.getsource(limits)).body[0]
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


def rows(limits: Any) -> str:
    """Return a row for each threshold of a dataclass: its name, default and meaning."""
    docs = _docs(limits)
    return "".join(
        f"| `{field.name}` | {_value(field.name, field.default)} | {docs[field.name]} |\n"
        for field in fields(limits)
    )
