"""Memory views as one self-contained block of HTML: no script, nothing loaded, own styles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ..memory.live import MemoryReport
from ..memory.naming import Name
from ..memory.release import Freed
from ..memory.stats import AllocatorReport
from .markup import code_html
from .memory_freed import build_free
from .memory_lists import Chain, TensorRow, build_chains, build_tensors
from .memory_model import Block, MemoryView, Row, Section, build_memory
from .memory_parts import Bar, Bars, Key
from .memory_text import allocator_parts
from .memory_words import plain
from .wording import clean

__all__ = ["free_html", "holders_html", "memory_html", "tensors_html"]

_ROW_HEIGHT, _BAR_HEIGHT = 9, 13
# What is there is seen, however little of the whole it is.
_THINNEST = 0.004
# Longer texts are broken into lines.
_LONGEST_NAME, _LONGEST_DETAIL, _LONGEST_COMMAND = 26, 34, 24

# Notebook front ends stripe tables, set them in from the margins and align to the right.
_STYLE = (
    ".gph{max-width:760px;font:13px/20px var(--jp-ui-font-family,system-ui,sans-serif);"
    "color:var(--jp-ui-font-color1,inherit);font-variant-numeric:tabular-nums;"
    "--i:currentColor;--l:var(--jp-ui-font-color2,#7a7a7a);--c:var(--jp-code-font-family,monospace)}"
    ".gph p{margin:0 0 4px;font-size:13px;line-height:20px;color:inherit}"
    ".gph .head{display:flex;gap:10px;margin:2px 0 4px}.gph b{font-weight:600}"
    ".gph .head>*{white-space:nowrap}.gph .head b{font-size:14px}"
    ".gph p.dev{margin-top:10px}.gph .head .dev{margin-left:auto}.gph .l{color:var(--l)}"
    ".gph p.small{font-size:11px;line-height:15px;margin:2px 0 0;color:var(--l)}"
    ".gph code{padding:0!important;background:none!important;color:inherit;font-family:var(--c);"
    "font-size:12px;white-space:inherit!important;overflow-wrap:anywhere}"
    ".gph p code{padding:1px 4px!important;border-radius:3px;white-space:nowrap!important;"
    "background:var(--jp-layout-color2,rgba(128,128,128,.15))!important}"
    ".gph p.small code{font-size:11px;padding:0 2px!important}"
    ".gph table{display:table;table-layout:auto;width:100%;margin:4px 0 8px!important;border:0;"
    "border-collapse:collapse;font:inherit;color:inherit}.gph table.who{margin-top:8px!important}"
    ".gph table tr,.gph table thead{background:none!important;border:0}"
    ".gph table th,.gph table td{padding:0 0 0 12px;border:0;line-height:20px;font-size:13px;"
    "font-weight:400;text-align:left!important;vertical-align:top;max-width:none;background:none;"
    "color:inherit;white-space:normal}"
    ".gph table th:first-child,.gph table .all{padding-left:0}"
    ".gph table .d,.gph table .c,.gph table .u,.gph table .h{color:var(--l)}"
    ".gph table .n,.gph table .r{text-align:right!important;white-space:nowrap}"
    ".gph table .o{white-space:nowrap}"
    ".gph table .h{font-size:11px}.gph table .sub{font-size:11px;line-height:15px;color:var(--l)}"
    ".gph .sub code{font-size:10.5px}"
    ".gph .alloc table{width:auto!important}.gph .alloc td,.gph .alloc tr:first-child th{"
    "text-align:right!important;white-space:nowrap;line-height:17px}"
    ".gph .alloc th{line-height:17px}"
    ".gph .alloc td:last-child{color:var(--l)}"
    ".gph .alloc p{font-size:11px;line-height:15px;color:var(--l)}"
    ".gph table.who .s,.gph table.who .u{width:100%;min-width:80px}"
    ".gph table.who th{min-width:124px}.gph table.who .d{min-width:150px}"
    ".gph table.who .all{white-space:nowrap}"
    ".gph table.who tr+.t>*{padding-top:10px}.gph table.who .c{min-width:96px}"
    ".gph table.bars .s{width:100%;min-width:120px}"
    ".gph table.bars td,.gph table.bars th{white-space:nowrap;line-height:17px}"
    ".gph table.bars .k{white-space:normal;line-height:20px}"
    ".gph .k>span{margin-right:16px;white-space:nowrap}"
    ".gph svg{display:block;overflow:visible}.gph .s svg{margin-top:5px}"
    ".gph .bars .s svg{margin-top:2px}"
    ".gph i{display:inline-block;box-sizing:content-box;font-size:0;overflow:hidden;"
    "width:8px;height:8px;margin-right:5px;background:#2f7fc1}"
    ".gph .use{fill:#2f7fc1}.gph .outer{opacity:.42}.gph .middle{opacity:.68}"
    ".gph .other{fill:#8c8c8c;background:#8c8c8c}.gph .driver{fill:var(--i);background:var(--i)}"
    ".gph .free,.gph .unknown{fill:none;stroke:var(--l);background:none}"
    ".gph .free{stroke-opacity:.5}.gph .unknown{stroke-dasharray:3 2}"
    ".gph i.free,.gph i.unknown{width:6px;height:6px;border:1px solid var(--l)}"
    ".gph i.unknown{border-style:dashed}"
    ".gph .gap{stroke:var(--jp-layout-color0,Canvas);stroke-width:1.5}"
    ".gph pre{margin:0 0 2px!important;padding:0!important;border:0;background:none;color:inherit;"
    "font:12px/17px var(--c);white-space:pre-wrap;overflow-wrap:anywhere}"
    ".gph .chain{margin:8px 0}"
)


def free_html(freed: Freed) -> str:
    """Write what was released, or would be, and what stays; every text is escaped."""
    return _page(_view(build_free(freed)))


def memory_html(report: MemoryReport, allocator: AllocatorReport | None = None) -> str:
    """Write where memory is and who holds it, and the allocator's figures below."""
    tables = "".join(f'<div class="alloc">{part._repr_html_()}</div>'
                     for part in allocator_parts(allocator))
    return _page(_view(build_memory(report, allocator)) + tables)


def tensors_html(report: MemoryReport, count: int | None = None) -> str:
    """Write the ``count`` largest storages (``None``: all that were named), and totals."""
    table = build_tensors(report, count)
    return _page(_view(table.view, _tensors(table.rows, table.several)))


def holders_html(
    name: str,
    chains: Sequence[Name],
    commands: Sequence[str] | None = None,
    *,
    reason: str = "",
    cut: str = "",
) -> str:
    """Write the chains that lead to a value as trees; see :func:`.memory_lists.build_chains`."""
    built = build_chains(name, chains, commands, reason=reason, cut=cut)
    sentence = f"<p>{code_html(built.sentence)}</p>"
    return _page("".join([sentence, *map(_chain, built.chains), *_small(built.notes)]))


# -- pieces ----------------------------------------------------------------------------------


def _page(content: str) -> str:
    return f'<div class="gph"><style>{_STYLE}</style>{content}</div>'


def _small(notes: Sequence[str]) -> Iterator[str]:
    return (f'<p class="small">{code_html(clean(note))}</p>' for note in notes)


def _view(view: MemoryView, table: str = "") -> str:
    alone = len(view.blocks) == 1
    found = [_head(view.title, view.note, view.blocks[0].device if alone else "")]
    found += [f"<p>{code_html(clean(sentence))}</p>" for sentence in view.sentences]
    found.append(table)
    for block in view.blocks:
        found.append("" if alone else f'<p class="dev"><b>{escape(block.device)}</b></p>')
        found += _block(block)
    return "".join([*found, *_small(view.notes)])


def _head(title: str, note: str, device: str) -> str:
    # The spaces are for places that strip the styles, such as a notebook not yet trusted.
    parts = [f"<b>{escape(title)}</b>"]
    if note:
        parts.append(f'<span class="l">{escape(note)}</span>')
    if device:
        parts.append(f'<span class="l dev">{escape(device)}</span>')
    return f'<div class="head">{" ".join(parts)}</div>'


def _block(block: Block) -> Iterator[str]:
    rows = "".join(_section(section) for section in block.sections)
    if rows:
        yield f'<table class="who"><tbody>{rows}</tbody></table>'
    if block.bars is not None:
        yield _bars(block.bars)
    yield from _small(block.notes)


def _section(section: Section) -> str:
    note = f' <span class="l">{code_html(section.note)}</span>' if section.note else ""
    head = (
        f'<tr class="t"><th class="all" colspan="2" scope="rowgroup"><b>{escape(section.title)}</b>'
        f'{note}</th><td class="n"><b>{escape(section.number)}</b></td>'
        f'<td class="u" colspan="2">{escape(section.unit)}</td></tr>'
    )
    return head + "".join(map(_row, section.rows))


def _row(row: Row) -> str:
    command = f"<code>{escape(row.command)}</code>" if row.command else ""
    number = escape(row.number)
    if row.number == "n/a":
        number = f'<span class="l">{number}</span>'
    name = _one_line("", row.name, _LONGEST_NAME)
    return (
        f'<tr><th{name} scope="row">{code_html(row.name)}</th>'
        f'<td{_one_line("d", row.detail, _LONGEST_DETAIL)}>{code_html(row.detail)}</td>'
        f'<td class="n">{number}</td><td class="s">{_row_bar(row)}</td>'
        f'<td{_one_line("c", row.command, _LONGEST_COMMAND)}>{command}</td></tr>'
    )


def _one_line(style: str, text: str, longest: int) -> str:
    """Return the class of a cell, which keeps a short text on one line."""
    fits = len(plain(text)) <= longest
    classes = " ".join(x for x in (style, "o" if fits and text else "") if x)
    return f' class="{classes}"' if classes else ""


def _row_bar(row: Row) -> str:
    if row.share <= 0:
        return ""
    share = min(1.0, max(_THINNEST, row.share))
    rect = _rect(row.style, min(row.start, 1 - share), share, _ROW_HEIGHT)
    return f'<svg width="100%" height="{_ROW_HEIGHT + 1}" aria-hidden="true">{rect}</svg>'


def _rect(style: str, start: float, share: float, height: float) -> str:
    return (
        f'<rect class="{style}" x="{_percent(start)}" y=".5" width="{_percent(share)}"'
        f' height="{height}"/>'
    )


def _percent(share: float) -> str:
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + "%"


def _bars(bars: Bars) -> str:
    lines = "".join(_bar(bar, bars.unit) for bar in bars.bars)
    keys = " ".join(map(_key, bars.keys))
    return (
        f'<table class="bars"><tbody>{lines}<tr><td></td><td class="k" colspan="2">{keys}</td></tr>'
        "</tbody></table>"
    )


def _bar(bar: Bar, unit: str) -> str:
    found = [_rect(p.style, p.start, p.share, _BAR_HEIGHT) for p in bar.pieces]
    found += [
        f'<line class="gap" x1="{x}" x2="{x}" y1="0" y2="{_BAR_HEIGHT + 1}"/>'
        for x in (_percent(piece.start) for piece in bar.pieces[1:])
    ]
    svg = f'<svg width="100%" height="{_BAR_HEIGHT + 1}" aria-hidden="true">{"".join(found)}</svg>'
    return (
        f'<tr><th class="d" scope="row">{escape(bar.label)}</th><td class="s">{svg}</td>'
        f'<td class="n">{escape(bar.free)} <span class="l">{escape(unit)} free</span></td></tr>'
    )


def _key(key: Key) -> str:
    number = f" {escape(key.number)}" if key.number else ""
    name = f'<span class="l">{escape(key.name)}</span>'
    # The style hides the text of a swatch: it is for places that strip the styles.
    return f'<span><i class="{key.style}">▪ </i>{name}{number}</span>'


# -- lists -----------------------------------------------------------------------------------


def _tensors(rows: Sequence[TensorRow], several: bool) -> str:
    if not rows:
        return ""
    last = '<th class="h" scope="col">device</th>' if several else ""
    body = "".join(_tensor(row, several) for row in rows)
    return (
        '<table class="ten"><thead><tr><th class="h" scope="col">name</th>'
        '<th class="h" scope="col">where</th><th class="h r" scope="col">shape</th>'
        '<th class="h" scope="col">dtype</th><th class="h r" scope="col">bytes</th>'
        f"{last}</tr></thead><tbody>{body}</tbody></table>"
    )


def _tensor(row: TensorRow, several: bool) -> str:
    asides = f'<div class="sub">{code_html(", ".join(row.asides))}</div>' if row.asides else ""
    last = f'<td class="d">{escape(row.device)}</td>' if several else ""
    return (
        f'<tr><th scope="row">{code_html(row.name)}{asides}</th>'
        f'<td class="d">{escape(row.where)}</td><td class="r">{escape(row.shape)}</td>'
        f'<td>{escape(row.dtype)}</td><td class="n">{escape(row.size)}</td>{last}</tr>'
    )


def _chain(chain: Chain) -> str:
    where = f' <span class="l">in {escape(chain.where)}</span>' if chain.where else ""
    command = (
        f'<p class="small">to release it: <code>{escape(chain.command)}</code></p>'
        if chain.command else ""
    )
    steps = "\n".join(
        f"{'  ' * (depth - 1)}{'└ ' if depth else ''}{escape(step)}"
        for depth, step in enumerate(chain.steps)
    )
    return (
        f'<div class="chain"><p>{code_html(chain.name)}{where}</p><pre>{steps}</pre>{command}</div>'
    )
