"""Figures beside what they should be: a table, a file, and whether all of them fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "between", "near", "report"]


@dataclass(frozen=True)
class Row:
    """One figure, the range in which it has to lie, and where the range comes from.

    ``value`` is ``None`` where it was not measured, which does not fit; ``low`` or ``high``
    ``None`` leaves that side open.
    """

    figure: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    source: str
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is a value and it lies in the range."""
        if self.value is None:
            return False
        above = self.low is None or self.value >= self.low
        return above and (self.high is None or self.value <= self.high)


def near(
    figure: str, value: float | None, expected: float, bound: float, unit: str, source: str,
    reason: str = "",
) -> Row:
    """Return a row whose value has to lie within ``bound`` of ``expected``."""
    return Row(figure, value, expected - bound, expected + bound, unit, source, reason)


def between(
    figure: str, value: float | None, low: float | None, high: float | None, unit: str,
    source: str, reason: str = "",
) -> Row:
    """Return a row whose value has to lie between two others, with ``None`` for no limit."""
    return Row(figure, value, low, high, unit, source, reason)


def _number(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 1e6 else f"{value:.4f}"


def _range(row: Row) -> str:
    if row.low is not None and row.low == row.high:
        return _number(row.low)
    if row.low is None:
        return "any" if row.high is None else f"to {_number(row.high)}"
    return f"{_number(row.low)} {'up' if row.high is None else f'to {_number(row.high)}'}"


def report(rows: Sequence[Row], path: Path, **more: Any) -> int:
    """Print the rows, write them as JSON with ``more``, and return 1 if one does not fit."""
    widths = (
        max((len(row.figure) for row in rows), default=0),
        max((len(_number(row.value)) for row in rows), default=0),
        max((len(_range(row)) for row in rows), default=0),
    )
    for row in rows:
        flag = "ok   " if row.fits else "WRONG"
        why = f"  ({row.reason})" if row.reason else ""
        print(
            f"{flag} {row.figure:{widths[0]}} {_number(row.value):>{widths[1]}}"
            f"  {_range(row):>{widths[2]}} {row.unit:8} {row.source}{why}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(
        {**more, "rows": [asdict(row) | {"fits": row.fits} for row in rows]},
        indent=1, default=str,
    ))
    wrong = sum(not row.fits for row in rows)
    print(f"{len(rows)} figures, {wrong} wrong; {path}")
    return 1 if wrong else 0
