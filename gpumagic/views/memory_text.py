"""Memory views as plain text: fixed columns, at most 100 characters wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from ..memory.live import MemoryReport
from ..memory.naming import Name
from ..memory.release import Freed
from ..memory.stats import AllocatorReport
from .memory_freed import build_free
from .memory_lists import Chain, TensorRow, build_chains, build_tensors
from .memory_model import Block, MemoryView, Row, Section, build_memory
from .memory_parts import Bars
from .memory_words import plain
from .wording import clean

__all__ = ["allocator_parts", "free_text", "holders_text", "memory_text", "tensors_text"]

_WIDTH = 100
_NAME, _DETAIL, _COMMAND = 26, 20, 26
_ROW_BAR = 10
_BAR = 60
_GLYPHS = {"stays": "▓", "to release": "█", "released": "█", "free": "·"}
_GLYPH = "▒"
_DEEPEST = 20
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def free_text(freed: Freed) -> str:
    """Write what was released, or would be, and what stays."""
    return _view(build_free(freed))


def memory_text(report: MemoryReport, allocator: AllocatorReport | None = None) -> str:
    """Write where memory is and who holds it, and the allocator's figures below."""
    parts = [_view(build_memory(report, allocator))]
    for part in allocator_parts(allocator):
        lines = str(part).splitlines()
        parts.append("\n".join(piece for line in lines for piece in _narrow(line)))
    return "\n\n".join(parts)


def tensors_text(report: MemoryReport, count: int | None = None) -> str:
    """Write the ``count`` largest storages (``None``: all that were named), and totals."""
    table = build_tensors(report, count)
    return _view(table.view, list(_tensors(table.rows, table.several)))


def holders_text(
    name: str,
    chains: Sequence[Name],
    commands: Sequence[str] | None = None,
    *,
    reason: str = "",
    cut: str = "",
) -> str:
    """Write the chains that lead to a value as trees; see :func:`build_chains`."""
    built = build_chains(name, chains, commands, reason=reason, cut=cut)
    lines = _wrapped(built.sentence)
    for index, chain in enumerate(built.chains, 1):
        lines += ["", *_chain(index, chain)]
    if built.notes:
        lines += ["", *(line for note in built.notes for line in _wrapped(note))]
    return "\n".join(lines)


def allocator_parts(allocator: AllocatorReport | None) -> list[AllocatorReport]:
    """Split the figures of many GPUs into tables that fit side by side."""
    devices = () if allocator is None else allocator.devices
    return [AllocatorReport(devices[i : i + 2]) for i in range(0, len(devices), 2)]


# -- pieces ----------------------------------------------------------------------------------


def _wrapped(text: str) -> list[str]:
    return wrap(plain(clean(text)), _WIDTH, subsequent_indent="  ")


def _narrow(line: str) -> list[str]:
    return [line] if len(line) <= _WIDTH else wrap(line, _WIDTH, subsequent_indent="  ")


def _cut(text: str, width: int) -> str:
    text = plain(text)
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def _beside(left: str, right: str) -> str:
    room = _WIDTH - len(left) - 2
    return f"{left}  {right:>{room}}" if len(right) <= room else f"{left}\n{right}"


def _view(view: MemoryView, table: Sequence[str] = ()) -> str:
    head = "  ".join(part for part in (view.title, view.note) if part)
    alone = len(view.blocks) == 1
    lines = [_beside(head, view.blocks[0].device) if alone else head]
    for sentence in view.sentences:
        lines += _wrapped(sentence)
    if table:
        lines += ["", *table]
    for block in view.blocks:
        lines += ["", *([] if alone else [block.device])]
        lines += _block(block)
    if view.notes:
        lines.append("")
    for note in view.notes:
        lines += _wrapped(note)
    return "\n".join(lines)


def _block(block: Block) -> Iterator[str]:
    rows = [row for section in block.sections for row in section.rows]
    numbers = [s.number for s in block.sections] + [row.number for row in rows]
    widths = (
        max([len("before"), *(min(_NAME, len(plain(row.name))) for row in rows)]),
        max(map(len, numbers), default=0),
        max((len(row.command) for row in rows if len(row.command) <= _COMMAND), default=0),
    )
    for index, section in enumerate(block.sections):
        if index:
            yield ""
        yield from _section(section, widths)
    if block.bars is not None:
        yield ""
        yield from _bars(block.bars)
    if block.notes:
        yield ""
    for note in block.notes:
        yield from _wrapped(note)


def _section(section: Section, widths: tuple[int, int, int]) -> Iterator[str]:
    name, number, command = widths
    detail = _WIDTH - name - number - _ROW_BAR - command - (8 if command else 6)
    room = name + detail + 2
    head = f"{section.title}, {section.note}" if section.note else section.title
    if len(head) > room:
        head = head.rpartition(", ")[0]
    yield f"{_cut(head, room):<{room}}  {section.number:>{number}}  {section.unit}"
    for row in section.rows:
        line = (
            f"{_cut(row.name, name):<{name}}  {_cut(row.detail, detail):<{detail}}"
            f"  {row.number:>{number}}  {_row_bar(row):<{_ROW_BAR}}"
        )
        fits = len(row.command) <= command
        yield f"{line}  {row.command if fits else ''}".rstrip()
        if not fits:
            yield from wrap(row.command, _WIDTH, initial_indent="    ", subsequent_indent="      ")


def _row_bar(row: Row) -> str:
    """Draw a bar in eighths of a cell, or in whole cells where it does not begin at the left."""
    if row.start:
        size = max(1, round(row.share * _ROW_BAR))
        return " " * min(_ROW_BAR - size, round(row.start * _ROW_BAR)) + "█" * size
    eighths = max(1, round(min(1.0, row.share) * _ROW_BAR * 8)) if row.share else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _bars(bars: Bars) -> Iterator[str]:
    width = max(len(bar.free) for bar in bars.bars)
    for bar in bars.bars:
        drawn = ""
        for piece in bar.pieces:
            end = round((piece.start + piece.share) * _BAR)
            drawn += _GLYPHS.get(piece.name, _GLYPH) * (end - len(drawn))
        yield f"{bar.label:<6}  {drawn:<{_BAR}}  {bar.free:>{width}} {bars.unit} free"
    keys: dict[str, list[str]] = {}
    for key in bars.keys:
        glyph = _GLYPHS.get(key.name, _GLYPH)
        keys.setdefault(glyph, []).append(f"{key.name} {key.number}".rstrip())
    text = "   ".join(f"{glyph} {', '.join(words)}" for glyph, words in keys.items())
    yield from wrap(text, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)


# -- lists -----------------------------------------------------------------------------------


def _tensors(rows: Sequence[TensorRow], several: bool) -> Iterator[str]:
    if not rows:
        return
    heads = ("name", "where", "shape", "dtype", "bytes", *(["device"] if several else []))
    cells = [
        (plain(row.name), row.where, row.shape, row.dtype, row.size,
         *([row.device] if several else []))
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    # Names and places are cut first: the others are figures.
    for index, least in ((1, 12), (0, 20), (2, 12)):
        over = sum(widths) + 2 * (len(widths) - 1) - _WIDTH
        widths[index] = max(min(least, widths[index]), widths[index] - max(0, over))
    yield _line(heads, widths)
    for row, texts in zip(rows, cells, strict=True):
        yield _line(texts, widths)
        if row.asides:
            yield from wrap(plain(", ".join(row.asides)), _WIDTH, initial_indent="    ",
                            subsequent_indent="    ")


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        f"{_cut(text, width):>{width}}" if index == 4 else f"{_cut(text, width):<{width}}"
        for index, (text, width) in enumerate(zip(texts, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _chain(index: int, chain: Chain) -> Iterator[str]:
    where = f" in {chain.where}" if chain.where else ""
    begin = f"{index}  "
    head = _cut(f"{plain(chain.name)}{where}", _WIDTH - len(begin))
    yield begin + head
    for depth, step in enumerate(chain.steps):
        indent = " " * (len(begin) + 2 * min(max(0, depth - 1), _DEEPEST))
        yield _cut(f"{indent}{'└ ' if depth else ''}{plain(step)}", _WIDTH)
    if chain.command:
        yield from _narrow(f"{' ' * len(begin)}to release it: {chain.command}")
