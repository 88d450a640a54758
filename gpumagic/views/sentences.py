"""A scene in words, for whoever cannot see it."""

from __future__ import annotations

from .parts import Band, Block, Row, Scene

__all__ = ["sentences"]


def _row(row: Row) -> str:
    unit = f" {row.unit}" if row.unit else ""
    limit = "" if row.limit == row.unit else f" ({row.limit})"
    if row.missing is not None:
        return f"{row.label}{limit} n/a: {row.missing}"
    words = [f"{row.label} {row.value}{unit}{limit}"]
    words += [
        f"{d.label} {d.text}" + ("" if d.style == "limit" else unit) for d in row.details
    ]
    return ", ".join(words)


def _block(block: Block) -> str:
    named = " ".join(x for x in (block.title, block.torch_label, *block.lines) if x)
    return f"{named}: " + "; ".join(_row(row) for row in block.rows) + "."


def _band(band: Band) -> str:
    return f"{band.label} is running" if band.running else band.label


def sentences(scene: Scene) -> tuple[str, ...]:
    """Say what a scene shows: a title, then a sentence for each device, and the finding."""
    title = ", ".join(x for x in (f"GPU use: {scene.state}", scene.caption, scene.devices) if x)
    cells = ", ".join(_band(band) for band in scene.bands if band.label)
    found = [title, f"From {scene.start_text} to {scene.end_text}."]
    found += [_block(block) for block in scene.blocks]
    if cells:
        found.append(f"Cells: {cells}.")
    found += [f"Gap: {reason}." for reason in dict.fromkeys(g.reason for g in scene.gaps)]
    if scene.notice:
        found.append(scene.notice.replace("`", ""))
    return tuple(found)
