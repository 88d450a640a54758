"""Where a GPU's memory was, before, at its highest and after a cell: words, SVG and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from ..waterfall import PARTS, MemoryState, Part, Waterfall
from .report_parts import MemoryLine, MemoryPart, MemoryTable
from .report_rows import scale_for
from .strips import Scale
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["PART_STYLES", "memory_html", "memory_notes", "memory_tables", "memory_texts"]

_METRIC = "gpu_memory_used_bytes"
_MOMENTS = ("before", "highest", "after")
_ALIKE = 0.01
_MOST_TABLES = 2
_HEIGHT = 11
_BRIEF = {"live tensors": "live", "other processes": "others"}
PART_STYLES = {
    "live tensors": "use",
    "cached": "use middle",
    "context": "use outer",
    "outside torch": "use outer",
    "other processes": "other",
    "driver": "driver",
    "remainder": "unknown",
    "free": "free",
}
"""How each part is drawn: use in three depths, others grey, the driver in ink, free hollow."""


# -- figures --------------------------------------------------------------------------------


def memory_tables(profile: Profile, devices: Sequence[str]) -> tuple[MemoryTable, ...]:
    """Write down the waterfalls of some devices; a GPU without a reading has none."""
    several = len(profile.summary.gpus) > 1
    found: list[MemoryTable] = []
    for waterfall in profile.waterfalls:
        if waterfall.device.id in devices and waterfall.states and waterfall.total_bytes:
            label = f"{clean(waterfall.device.label)} memory" if several else "GPU memory"
            found.append(_table(waterfall, waterfall.total_bytes, label))
    if len(found) > _MOST_TABLES and len({table.total for table in found}) == 1:
        return (_joined(found),)
    return tuple(found)


def _joined(tables: Sequence[MemoryTable]) -> MemoryTable:
    """Make one table of those of many GPUs: each has one line, at its highest use."""
    lines = []
    for table in tables:
        line = next((x for x in table.lines if x.label == "highest"), table.lines[-1])
        lines.append(replace(line, label=table.title.removesuffix(" memory")))
    names = tuple(n for n in PARTS if any(n in table.names for table in tables))
    return MemoryTable("Highest memory", tables[0].total, names, tuple(lines))


def memory_notes(profile: Profile, devices: Sequence[str]) -> tuple[str, ...]:
    """Return what the parts stand for where that is special, each note once."""
    shown = [w for w in profile.waterfalls if w.device.id in devices and w.states]
    return tuple(dict.fromkeys(clean(note) for w in shown for note in w.notes))


def _table(waterfall: Waterfall, total: float, title: str) -> MemoryTable:
    scale = scale_for(_METRIC, [total])
    states = sorted(waterfall.states, key=lambda state: _MOMENTS.index(state.moment))
    labels: list[str] = [state.moment for state in states]
    if len(states) == len(_MOMENTS) and _alike(states, total):
        states, labels = states[-1:], ["throughout"]
    lines = tuple(
        MemoryLine(label, tuple(_part(part, total, scale) for part in _ordered(state)))
        for label, state in zip(labels, states, strict=True)
    )
    names = [name for name in PARTS if any(line.part(name) for line in lines)]
    zero = scale.number(0.0)
    if all((part := line.part("remainder")) is None or part.text == zero for line in lines):
        # A remainder of nothing is no news.
        names = [name for name in names if name != "remainder"]
    return MemoryTable(title, scale.limit(total), tuple(names), lines)


def _ordered(state: MemoryState) -> list[Part]:
    return sorted((p for p in state.parts if p.name in PARTS), key=lambda p: PARTS.index(p.name))


def _alike(states: Sequence[MemoryState], total: float) -> bool:
    """Tell whether no part changed by more than a hundredth of the device."""
    for name in PARTS:
        sizes = [part.bytes if (part := state.part(name)) else 0.0 for state in states]
        if max(sizes) - min(sizes) > _ALIKE * total:
            return False
    return True


def _part(part: Part, total: float, scale: Scale) -> MemoryPart:
    pinned = part.fragmented_bytes or 0.0
    text = scale.number(pinned)
    shown = text != scale.number(0.0)
    return MemoryPart(
        part.name,
        min(1.0, max(0.0, part.bytes / total)),
        scale.number(part.bytes),
        min(max(0.0, pinned), max(0.0, part.bytes)) / total if shown else 0.0,
        text if shown else "",
    )


# -- as text --------------------------------------------------------------------------------


def memory_texts(table: MemoryTable, width: int) -> Iterator[str]:
    """Write a table as lines: one of names, then one a moment; labels take at least ``width``."""
    pinned = any(part.fragmented_text for line in table.lines for part in line.parts)
    heads = [
        "cached (fragmented)" if name == "cached" and pinned else _BRIEF.get(name, name)
        for name in table.names
    ]
    rows = [[_words(line.part(name), name, pinned) for name in table.names] for line in table.lines]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    labels = [f"{table.title} of {table.total}", *(line.label for line in table.lines)]
    width = max(width, *map(len, labels))
    for label, texts in zip(labels, [heads, *rows], strict=True):
        cells = (f"{text:>{size}}" for text, size in zip(texts, widths, strict=True))
        yield "  ".join([f"{label:<{width}}", *cells]).rstrip()


def _words(part: MemoryPart | None, name: str, pinned: bool) -> str:
    """Write one figure; the room of a fragmented share is kept where another moment has one."""
    if part is None:
        return ""
    if name != "cached" or not pinned:
        return part.text
    share = f"({part.fragmented_text})" if part.fragmented_text else ""
    return f"{part.text} {share:>7}"


def _shown(table: MemoryTable, line: MemoryLine) -> Iterator[MemoryPart]:
    return (part for part in line.parts if part.name in table.names)


# -- as HTML --------------------------------------------------------------------------------


def memory_html(table: MemoryTable) -> str:
    """Write a table with a bar and the figures of each moment."""
    pinned = any(part.fragmented_text for line in table.lines for part in line.parts)
    heads = "".join(_head(name, pinned) for name in table.names)
    rows = "".join(_row(table, line, pinned) for line in table.lines)
    return (
        f'<table class="mem"><thead><tr><th class="ttl" colspan="2" scope="col">'
        f'{escape(table.title)} <span class="l">of {escape(table.total)}</span></th>{heads}</tr>'
        f"</thead><tbody>{rows}</tbody></table>"
    )


def _head(name: str, pinned: bool) -> str:
    both = name == "cached" and pinned
    before, _, last = ("cached (fragmented)" if both else name).rpartition(" ")
    # Two lines for all names of several words, so that the swatch stays with the first.
    words = f"{before}<br>{last}" if before else last
    return (
        f'<th class="k" scope="col"{" colspan=2" * both}><i class="{PART_STYLES[name]}"></i>'
        f'<span class="l">{words}</span></th>'
    )


def _row(table: MemoryTable, line: MemoryLine, pinned: bool) -> str:
    cells = []
    for name in table.names:
        part = line.part(name)
        cells.append(f"<td>{part.text if part is not None else ''}</td>")
        if name == "cached" and pinned:
            share = f"({part.fragmented_text})" if part and part.fragmented_text else ""
            cells.append(f'<td class="pin">{share}</td>')
    return (
        f'<tr><th scope="row">{escape(line.label)}</th><td class="s">{_bar(table, line)}</td>'
        f'{"".join(cells)}</tr>'
    )


def _bar(table: MemoryTable, line: MemoryLine) -> str:
    """Draw the parts of one moment side by side over the whole width there is."""
    found, left = [], 0.0
    for part in _shown(table, line):
        found.append(_piece(PART_STYLES[part.name], left, part.share))
        if part.fragmented:
            # Thick dashes make a hatch that needs no pattern, whose id would not be unique.
            start, end = _percent(left + part.share - part.fragmented), _percent(left + part.share)
            found.append(
                f'<line class="hatch" x1="{start}" x2="{end}" y1="6" y2="6"/>'
            )
        left += part.share
    return f'<svg width="100%" height="{_HEIGHT + 1}" aria-hidden="true">{"".join(found)}</svg>'


def _piece(style: str, left: float, share: float) -> str:
    return (
        f'<rect class="{style}" x="{_percent(left)}" y=".5" height="{_HEIGHT}"'
        f' width="{_percent(share)}"/>'
    ) if share > 0 else ""


def _percent(share: float) -> str:
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + "%"
