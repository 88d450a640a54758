"""A scene as lines of text, for terminals and as the plain twin of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from .events import OOM, RETRY, name_of
from .parts import Block, Row, Scene
from .spark import BARS, bars

__all__ = ["render"]

_ASCII_BARS = "_.-=+*#@"
_SMALLEST = 20
_LARGEST = 60
_LONGEST = 32
_ASIDE = 8
_ASCII = str.maketrans({
    "−": "-", "–": "-", "×": "x", "…": "~", "°": " ", "µ": "u", "─": "-", "═": "=", "┊": ":",
    **dict(zip(BARS, _ASCII_BARS, strict=True)),
})


def _spark(row: Row, cells: int) -> str:
    """Draw a row's highest part."""
    totals = row.totals()
    return bars(totals, cells) if totals else " " * cells


def _happened(scene: Scene, row: Row) -> list[str]:
    """Name the events of the device of a row, if they are drawn at this one."""
    counts: dict[str, int] = {}
    for note in scene.events:
        ticks = [tick for tick in note.ticks if tick.device == row.device]
        failed = any(tick.kind == OOM for tick in ticks)
        for tick in ticks:
            # Before it fails, an allocation is tried again.
            if tick.kind == OOM or not failed:
                counts[tick.kind] = counts.get(tick.kind, 0) + tick.count
    if not counts or scene.memory_row(row.device) != row:
        return []
    return [name_of(kind, counts[kind]) for kind in (OOM, RETRY) if kind in counts]


def _details(scene: Scene, row: Row) -> list[str]:
    """Return what stands right of a row's figure, in lines of at most ``_LONGEST``."""
    if row.missing is not None:
        words = [row.missing] if row.missing and row.drawn else []
    else:
        words = [f"{d.label} {d.text}" for d in row.details]
    lines: list[str] = []
    for word in words + _happened(scene, row):
        if lines and len(lines[-1]) + 2 + len(word) <= _LONGEST:
            lines[-1] += f", {word}"
        else:
            if lines:
                lines[-1] += ","
            lines.append(word)
    return lines


def _title(block: Block, index: int) -> str:
    if index == 0:
        return f"{block.label or block.title} {block.torch_label}".rstrip()
    return ""


def _write(line: list[str], at: int, text: str) -> bool:
    """Write a text into a line if its place, and one space before and after, is free."""
    at = max(0, min(at, len(line) - len(text)))
    if len(text) > len(line) or "".join(line[max(0, at - 1) : at + len(text) + 1]).strip():
        return False
    line[at : at + len(text)] = text
    return True


def _write_near(line: list[str], at: int, text: str) -> None:
    """Write a text into a line as near to its place as there is room, a few cells away at most."""
    for aside in sorted(range(-_ASIDE, _ASIDE + 1), key=abs):
        if 0 <= at + aside <= len(line) - len(text) and _write(line, at + aside, text):
            return


def _labels(scene: Scene, cells: int) -> str:
    """Write the names of cells, marks and gaps over their places in time."""
    line = [" "] * cells
    for note in scene.events:
        if note.label and note.label.endswith((OOM, "OOMs")):
            _write_near(line, int(note.ticks[0].x * cells) - 1, note.label)
    for band in sorted(scene.bands, key=lambda b: (not b.running, not b.failed, -b.x0)):
        # A cell that failed ends in an x below; its number matters more than the word.
        short = band.label.removesuffix(" failed")
        if band.label and not _write(line, int(band.x0 * cells), band.label):
            _write(line, int(band.x0 * cells), short)
    for note in scene.events:
        if note.label and not note.label.endswith((OOM, "OOMs")):
            _write_near(line, int(note.ticks[0].x * cells) - 1, note.label)
    for mark in reversed(scene.marks):
        if mark.label:
            _write(line, int(mark.x * cells) - len(mark.label) // 2, mark.label)
    for gap in scene.gaps:
        if gap.shown:
            _write(line, int((gap.x0 + gap.x1) / 2 * cells) - 1, "gap")
    return "".join(line).rstrip()


def _axis(scene: Scene, cells: int) -> str:
    """Draw cells as bars (the running one double), marks as dotted lines, events as ``!``."""
    line = [" "] * cells
    for band in scene.bands:
        first = min(cells - 1, round(band.x0 * cells))
        last = max(first + 1, round(band.x1 * cells))
        line[first:last] = ("═" if band.running else "─") * (last - first)
        if band.failed:
            line[last - 1] = "x"
    for mark in scene.marks:
        line[min(cells - 1, int(mark.x * cells))] = "┊"
    for note in scene.events:
        for tick in note.ticks:
            line[min(cells - 1, int(tick.x * cells))] = "!"
    return "".join(line)


def _line(title: str, label: str, plot: str, value: str, rest: str, widths: Sequence[int]) -> str:
    head = f"{title:<{widths[0]}}  {label:<{widths[1]}}  "
    if not value and not rest:
        return (head + plot).rstrip()
    return f"{head}{plot:<{widths[2]}}  {value:>{widths[3]}}  {rest}".rstrip()


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def render(scene: Scene, width: int = 100, *, ascii: bool = False) -> str:
    """Write a scene as lines of at most ``width`` characters, one a row if its details fit.

    ``ascii`` keeps to characters that any terminal has.
    """
    widths = [
        max((len(_title(b, 0)) for b in scene.blocks), default=0),
        max((len(f"{r.label} {r.limit}") for r in scene.rows), default=0),
        0,
        max((len("n/a" if r.missing == "" else r.value) for r in scene.rows), default=0),
    ]
    widths[3] = max(widths[3], len(scene.end_text))
    rest = max((len(x) for r in scene.rows for x in _details(scene, r)), default=0)
    rest = min(_LONGEST, rest)
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
            if row.missing and not row.drawn:
                lines.append(_line(title, label, f"n/a: {row.missing}", "", "", widths))
                continue
            value = "n/a" if row.missing is not None else row.value
            first, *more = _details(scene, row) or [""]
            lines.append(_line(title, label, _spark(row, cells), value, first, widths))
            lines += [_line("", "", "", " ", line, widths) for line in more]
    lines = [_cut(line, width) for line in lines]
    if scene.notice:
        lines += wrap(f"! {scene.notice.replace('`', '')}", width, subsequent_indent="  ")
    text = "\n".join(lines)
    if ascii:
        text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text
