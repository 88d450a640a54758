"""A scene as lines of text, for terminals and as the plain twin of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from .parts import Block, Row, Scene
from .spark import BARS, bars

__all__ = ["render"]

_ASCII_BARS = "_.-=+*#@"
_SMALLEST = 20
_LARGEST = 60
_LONGEST = 32
_ASCII = str.maketrans({
    "−": "-", "–": "-", "×": "x", "…": "~", "°": " ", "µ": "u", "─": "-", "═": "=", "┊": ":",
    **dict(zip(BARS, _ASCII_BARS, strict=True)),
})


def _spark(row: Row, cells: int) -> str:
    """Draw the first of a row's traces that has anything to show."""
    trace = next((t for t in row.traces if any(h is not None for h in t.heights)), None)
    if trace is None:
        return " " * cells
    return bars(trace.heights, cells)


def _details(row: Row) -> str:
    if row.missing is not None:
        return row.missing if row.drawn else ""
    return ", ".join(f"{d.label} {d.text}" for d in row.details)


def _title(block: Block, index: int) -> str:
    if index == 0:
        return f"{block.title} {block.torch_label}".rstrip()
    return ""


def _write(line: list[str], at: int, text: str) -> bool:
    """Write a text into a line if its place, and one space before and after, is free."""
    at = max(0, min(at, len(line) - len(text)))
    if len(text) > len(line) or "".join(line[max(0, at - 1) : at + len(text) + 1]).strip():
        return False
    line[at : at + len(text)] = text
    return True


def _labels(scene: Scene, cells: int) -> str:
    """Write the names of cells, marks and gaps over their places in time."""
    line = [" "] * cells
    for band in sorted(scene.bands, key=lambda b: (not b.running, -b.x0)):
        # A cell that failed ends in an x below; its number matters more than the word.
        short = band.label.removesuffix(" failed")
        if band.label and not _write(line, int(band.x0 * cells), band.label):
            _write(line, int(band.x0 * cells), short)
    for mark in reversed(scene.marks):
        if mark.label:
            _write(line, int(mark.x * cells) - len(mark.label) // 2, mark.label)
    for gap in scene.gaps:
        if gap.shown:
            _write(line, int((gap.x0 + gap.x1) / 2 * cells) - 1, "gap")
    return "".join(line).rstrip()


def _axis(scene: Scene, cells: int) -> str:
    """Draw cells as bars (the running one double) and marks as dotted lines."""
    line = [" "] * cells
    for band in scene.bands:
        first = min(cells - 1, round(band.x0 * cells))
        last = max(first + 1, round(band.x1 * cells))
        line[first:last] = ("═" if band.running else "─") * (last - first)
        if band.failed:
            line[last - 1] = "x"
    for mark in scene.marks:
        line[min(cells - 1, int(mark.x * cells))] = "┊"
    return "".join(line)


def _line(title: str, label: str, plot: str, value: str, rest: str, widths: Sequence[int]) -> str:
    head = f"{title:<{widths[0]}}  {label:<{widths[1]}}  "
    if not value and not rest:
        return (head + plot).rstrip()
    return f"{head}{plot:<{widths[2]}}  {value:>{widths[3]}}  {rest}".rstrip()


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def render(scene: Scene, width: int = 100, *, ascii: bool = False) -> str:
    """Write a scene as lines of at most ``width`` characters, one line a row.

    ``ascii`` keeps to characters that any terminal has.
    """
    widths = [
        max((len(_title(b, 0)) for b in scene.blocks), default=0),
        max((len(f"{r.label} {r.limit}") for r in scene.rows), default=0),
        0,
        max((len(r.value) for r in scene.rows), default=0),
    ]
    widths[3] = max(widths[3], len(scene.end_text))
    rest = max((min(_LONGEST, len(_details(r))) for r in scene.rows), default=0)
    room = width - sum(widths) - 6 - (rest + 2 if rest else 0)
    widths[2] = cells = max(_SMALLEST, min(_LARGEST, room))

    head = [scene.state, scene.caption, scene.devices]
    lines = ["  ".join(part for part in head if part)]
    labels = _labels(scene, cells)
    if labels:
        lines.append(_line("", "", labels, "", "", widths))
    start = f"{scene.start_text:>{widths[1]}}"
    lines.append(_line("", start, _axis(scene, cells), scene.end_text, "", widths))
    for block in scene.blocks:
        for index, row in enumerate(block.rows):
            title, label = _title(block, index), f"{row.label} {row.limit}"
            if row.missing is not None and not row.drawn:
                lines.append(_line(title, label, f"n/a: {row.missing}", "", "", widths))
                continue
            value = "n/a" if row.missing is not None else row.value
            lines.append(
                _line(title, label, _spark(row, cells), value, _details(row), widths)
            )
    lines = [_cut(line, width) for line in lines]
    if scene.notice:
        lines += wrap(f"! {scene.notice.replace('`', '')}", width, subsequent_indent="  ")
    text = "\n".join(lines)
    if ascii:
        text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text
