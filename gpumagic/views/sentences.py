"""A scene in words, for whoever cannot see it."""

from __future__ import annotations

from collections.abc import Iterator

from .events import name_of
from .parts import Band, Block, Row, Scene

__all__ = ["sentences"]

_WORDS = {"OOM": "out of memory", "retry": "allocation retried"}
_FULL = {"others": "other processes"}


def _row(row: Row) -> str:
    unit = f" {row.unit}" if row.unit else ""
    limit = "" if row.limit == row.unit else f" ({row.limit})"
    if row.missing is not None:
        reason = f": {row.missing}" if row.missing else ""
        return f"{row.label}{limit} n/a{reason}"
    words = [f"{row.label} {row.value}{unit}{limit}"]
    words += [
        f"{_FULL.get(d.label, d.label)} {d.text}" + ("" if d.style == "limit" else unit)
        for d in row.details
    ]
    return ", ".join(words)


def _block(block: Block) -> str:
    title = block.label or block.title
    named = " ".join(x for x in (title, block.torch_label, *block.lines) if x)
    return f"{named}: " + "; ".join(_row(row) for row in block.rows) + "."


def _band(band: Band) -> str:
    return f"{band.label} is running" if band.running else band.label


def _events(scene: Scene) -> Iterator[str]:
    """Yield what happened to each device, with its times; many are counted together."""
    for block in scene.blocks:
        for kind, words in _WORDS.items():
            ticks = [
                t for note in scene.events for t in note.ticks
                if t.kind == kind and t.device == block.device
            ]
            if not ticks:
                continue
            count = sum(t.count for t in ticks)
            times = first = ticks[0].when
            if len(ticks) > 1 or ticks[0].last != first:
                times = f"first {first}, last {ticks[-1].last}"
            of = f" ({name_of(kind, count)})" if count > 1 else ""
            yield f"{block.label or block.title} {words}{of} {times}"


def sentences(scene: Scene) -> tuple[str, ...]:
    """Say what a scene shows: a title, then a sentence for each device, and the finding."""
    title = ", ".join(x for x in (f"GPU use: {scene.state}", scene.caption, scene.devices) if x)
    cells = ", ".join(_band(band) for band in scene.bands if band.label)
    marks = ", ".join(f"{m.text or m.label} ({m.when})" for m in scene.marks)
    found = [title, f"From {scene.start_text} to {scene.end_text}."]
    found += [_block(block) for block in scene.blocks]
    if cells:
        found.append(f"Cells: {cells}.")
    if marks:
        found.append(f"Marks: {marks}.")
    found += [f"{event}." for event in _events(scene)]
    found += [f"Gap: {reason}." for reason in dict.fromkeys(g.reason for g in scene.gaps)]
    if scene.notice:
        found.append(scene.notice.replace("`", ""))
    return tuple(found)
