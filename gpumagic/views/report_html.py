"""A report as one self-contained block of HTML: no script, nothing loaded, styles of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby

from .markup import code_html
from .report_memory import memory_html
from .report_model import Report
from .report_parts import COLUMNS, Bracket, Fact, Group, ReportLine, Section, Strip
from .spark import bracket_svg, spark_svg

__all__ = ["write_html"]

_LONGEST_LABEL = 24
_HEIGHTS = {1: 22, 2: 32, 3: 49}
# The style hides the text of a mark: it is for places that strip the styles.
_MARK = '<i class="mark">! </i>'

# Notebook front ends stripe tables, set them in from the margins and align to the right.
_STYLE = """
.gpm{max-width:760px;font:13px/17px var(--jp-ui-font-family,system-ui,sans-serif);
color:var(--jp-ui-font-color1,inherit);font-variant-numeric:tabular-nums;
--i:currentColor;--l:var(--jp-ui-font-color2,#7a7a7a)}
.gpm p{margin:0 0 6px;font-size:13px;line-height:19px;color:inherit}
.gpm .head{display:flex;gap:10px;margin:2px 0 8px;line-height:19px}
.gpm .head>*{white-space:nowrap;flex-shrink:0}
.gpm .head b,.gpm .head :last-child{flex-shrink:1;overflow:hidden;text-overflow:ellipsis}
.gpm .head b{font-size:14px}.gpm .head :last-child{margin-left:auto}
.gpm .l{color:var(--l)}.gpm .small,.gpm p.small{font-size:11px;line-height:15px;color:var(--l)}
.gpm b{font-weight:600}
.gpm code{white-space:nowrap;font-size:12px;padding:1px 4px;border-radius:3px;color:inherit;
background:var(--jp-layout-color2,rgba(128,128,128,.15))}
.gpm i{display:inline-block;box-sizing:content-box;font-size:0;overflow:hidden;
width:7px;height:7px;margin-right:4px;background:#2f7fc1}
.gpm .outer{opacity:.42}.gpm .middle{opacity:.68}
.gpm .mark{width:8px;height:8px;background:#d9730d;margin-right:6px}
.gpm .dash{width:12px;height:3px;background:#d9730d;vertical-align:middle}
.gpm table{display:table;table-layout:auto;width:100%;margin:6px 0 8px;border:0;
border-collapse:collapse;font:inherit;color:inherit}
.gpm table tr,.gpm table thead{background:none!important;border:0}
.gpm table th,.gpm table td{padding:0 0 0 12px;border:0;line-height:17px;font-size:13px;
font-weight:400;text-align:right;vertical-align:top;white-space:nowrap;max-width:none;
background:none;color:inherit}
.gpm table .f{padding-top:5px}.gpm table .c{line-height:22px}
.gpm table .g{min-width:36px}.gpm table th:first-child{padding-left:0;text-align:left}
.gpm table .w{white-space:normal;text-align:left}
.gpm table thead th,.gpm table .lim,.gpm table .n{font-size:11px;color:var(--l)}
.gpm table thead .s,.gpm table thead .k{color:inherit}
.gpm table .lim,.gpm table .n{text-align:left}
.gpm table .lim{min-width:64px}.gpm table .two{line-height:14px;padding-top:3px}
.gpm table .s{width:100%;min-width:120px;padding-right:6px}
.gpm table .t th{padding-top:12px;font-weight:600}
.gpm table .ax td{font-size:10.5px;color:var(--l);line-height:14px}
.gpm table .ax div{display:flex;justify-content:space-between}
.gpm .br{position:relative;padding-top:15px;line-height:14px}
.gpm .br span{position:absolute;top:0;overflow:hidden;text-overflow:ellipsis;font-size:11px}
.gpm table .b td:not(.lim){font-weight:600}
.gpm table.mem th,.gpm table.mem td{line-height:15px;padding-top:1px}
.gpm table.mem td.s{padding-top:3px}
.gpm table.mem .ttl{font-size:13px;color:inherit}
.gpm table.mem thead th{vertical-align:bottom;line-height:13px}
.gpm table.mem .k i{margin-right:3px}.gpm table.mem .pin{padding-left:4px;color:var(--l)}
.gpm svg{display:block;overflow:visible}.gpm svg svg{overflow:hidden}
.gpm .use{fill:#2f7fc1}.gpm .held{fill:#d9730d}.gpm .other{fill:#8c8c8c;background:#8c8c8c}
.gpm .driver{fill:var(--i);background:var(--i)}
.gpm .free,.gpm .unknown{fill:none;stroke:var(--l);background:none}
.gpm .free{stroke-opacity:.5}.gpm .unknown{stroke-dasharray:3 2}
.gpm i.free,.gpm i.unknown{width:5px;height:5px;border:1px solid var(--l)}
.gpm i.unknown{border-style:dashed}
.gpm .hatch{stroke:#2f7fc1;stroke-width:11;stroke-dasharray:1.5 2.5}
.gpm .hair{fill:#8c8c8c;opacity:.4}
.gpm .line{fill:none;stroke:#8c8c8c;stroke-width:1.4;vector-effect:non-scaling-stroke}
.gpm .rule{fill:var(--jp-border-color1,#bdbdbd)}
.gpm .ring{fill:var(--jp-layout-color0,#fff);stroke:var(--i);stroke-width:1.6}
.gpm .o{width:5px;height:5px;border:1.5px solid;margin-right:5px;border-radius:50%;background:none}
.gpm .facts{margin-bottom:2px}.gpm .facts+.small{margin-top:6px}
.gpm .facts>span{display:inline-block;margin-right:16px}
"""


def write_html(report: Report) -> str:
    """Write a report as one ``<div>``; every text from outside is escaped."""
    style = re.sub(r"\n", "", _STYLE)
    parts = [
        f"<style>{style}</style>",
        _head(report),
        *_verdict(report),
        _table(report),
        *(memory_html(table) for table in report.memory),
        *(_group(group) for group in report.groups),
        f'<p class="small">{escape(report.evidence)}</p>' if report.evidence else "",
        *(f'<p class="small">{escape(note)}</p>' for note in report.notes),
    ]
    return f'<div class="gpm">{"".join(parts)}</div>'


def _head(report: Report) -> str:
    mark = _MARK if report.failed else ""
    parts = [text for text in (report.number, report.wall) if text]
    plain = [f'<span class="l">{escape(text)}</span>' for text in parts]
    plain.append(f'<span class="l">{mark}{escape(report.exit)}</span>')
    plain.append(f'<span class="l">{escape(report.devices)}</span>')
    # The spaces are for places that strip the styles, such as a notebook not yet trusted.
    return f'<div class="head"><b>{escape(report.name)}</b> {" ".join(plain)}</div>'


def _verdict(report: Report) -> Iterator[str]:
    """Write plain sentences as one paragraph and each finding as its own."""
    for finding, sentences in groupby(report.verdict, key=lambda sentence: sentence.finding):
        if not finding:
            yield f"<p>{' '.join(code_html(sentence.text) for sentence in sentences)}</p>"
            continue
        for sentence in sentences:
            lead, rest = code_html(sentence.lead), code_html(sentence.rest)
            yield f"<p>{_MARK}<b>{lead}</b>{rest}</p>"


# -- the table ------------------------------------------------------------------------------


def _table(report: Report) -> str:
    columns = "".join(f'<th class="g" scope="col">{name}</th>' for name in COLUMNS)
    # Of one device the bracket stands in the line of headings, of several below its title.
    first = report.sections[0].bracket if report.sections and not report.sections[0].title else None
    rows: list[str] = []
    ends: tuple[float, ...] = ()
    for section in report.sections:
        ends = section.bracket.ends if section.bracket is not None else ends
        rows += _section(section, ends)
    drawn = any(strip.row is not None for s in report.sections for strip in s.strips)
    axis = (
        '<tr class="ax"><td></td><td class="s"><div><span>0 s</span> '
        f'<span>{escape(report.wall)}</span></div></td><td colspan="5"></td></tr>'
    ) if drawn else ""
    return (
        f'<table><thead><tr><th></th><th class="s">{_bracket(first)}</th>{columns}'
        f'<th class="lim" scope="col">limit</th></tr></thead>'
        f'<tbody>{"".join(rows)}{axis}</tbody></table>'
    )


def _bracket(bracket: Bracket | None) -> str:
    """Write a finding's stretches of time with its label above."""
    if bracket is None:
        return ""
    share, at_end = bracket.room
    x0, x1 = bracket.longest
    place = f"right:{(1 - x1) * 100:.1f}%" if at_end else f"left:{x0 * 100:.1f}%"
    label = f'<span style="{place};max-width:{share * 100:.1f}%">{escape(bracket.label)}</span>'
    return f'<div class="br">{label}{bracket_svg(bracket.stretches, bracket.ends)}</div>'


def _section(section: Section, ends: tuple[float, ...]) -> Iterator[str]:
    if section.summary:
        yield _wide(f"<b>{escape(section.title)}</b>", escape(section.summary))
    elif section.title:
        yield f'<tr class="t"><th colspan="7" scope="rowgroup">{escape(section.title)}</th></tr>'
        if section.bracket is not None:
            bracket = _bracket(section.bracket)
            yield f'<tr><td></td><td class="s">{bracket}</td><td colspan="5"></td></tr>'
    for strip in section.strips:
        if strip.bare:
            label = escape(", ".join(line.label for line in strip.lines))
            yield _wide(label, f"n/a: {escape(strip.missing)}")
            continue
        for index, line in enumerate(strip.lines):
            place = ("f c" if len(strip.lines) == 1 else "f") if index == 0 else ""
            spark = _spark(strip, ends) if index == 0 else ""
            yield _line(line, spark, place, key=len(strip.lines) > 1)


def _wide(label: str, text: str) -> str:
    if len(label) > _LONGEST_LABEL:
        return (
            f'<tr><th class="f w" colspan="7" scope="row">{label} <span class="small">{text}</span>'
            "</th></tr>"
        )
    return (
        f'<tr><th class="f" scope="row">{label}</th>'
        f'<td class="f w n" colspan="6">{text}</td></tr>'
    )


def _spark(strip: Strip, ends: tuple[float, ...]) -> str:
    """Write the cell that all rows of a strip share."""
    count = len(strip.lines)
    span = f' rowspan="{count}"' if count > 1 else ""
    if strip.missing:
        return f'<td class="s f n w"{span}>n/a: {escape(strip.missing)}</td>'
    if strip.row is None:
        return f'<td class="s f"{span}></td>'
    ring = next((line.ring for line in strip.lines if line.ring), None)
    height = _HEIGHTS.get(count, 17 * count - 2)
    below = max(0, 17 * count - height)
    return f'<td class="s f"{span}>{spark_svg(strip.row, height, ring, ends, below)}</td>'


def _line(line: ReportLine, spark: str, place: str, *, key: bool) -> str:
    """Write one row; ``place`` has the classes of a strip's first row."""
    first = f' class="{place}"' if place else ""
    swatch = ""
    if key and line.trace is not None and line.trace.style != "line":
        swatch = f'<i class="{line.trace.style}"></i>'
    unit = f' <span class="l">{escape(line.unit)}</span>' if line.unit else ""
    cells = [f'<th{first} scope="row">{swatch}{escape(line.label)}{unit}</th>', spark]
    for name, figure in zip(COLUMNS, line.figures, strict=True):
        ring = '<i class="o"></i>' if name == "peak" and line.ring else ""
        grey = f'<span class="l">{figure}</span>' if figure == "n/a" else figure
        cells.append(f"<td{first}>{ring}{grey}</td>")
    limit = "<br>".join(escape(text) for text in (line.limit, line.top) if text)
    place = "two" if line.limit and line.top else place
    cells.append(f'<td class="{f"lim {place}".strip()}">{limit}</td>')
    strong = ' class="b"' if line.strong else ""
    return f"<tr{strong}>{''.join(cells)}</tr>"


def _group(group: Group) -> str:
    title = f"<b>{escape(group.title)}</b>&ensp;" if group.title else ""
    if group.begin:
        title += f'<span class="l">{escape(group.begin)}:</span> '
    return f'<p class="facts">{title}{" ".join(map(_fact, group.facts))}</p>'


def _fact(fact: Fact) -> str:
    mark = '<i class="dash">! </i>' if fact.limited else ""
    if fact.value == "n/a":
        return f'<span class="l">{mark}{escape(fact.label)} n/a{escape(fact.rest)}</span>'
    value = escape(fact.value)
    value = f"<b>{value}</b>" if fact.strong else value
    rest = f'<span class="l">{escape(fact.rest)}</span>' if fact.rest else ""
    return f'<span><span class="l">{mark}{escape(fact.label)}</span> {value}{rest}</span>'
