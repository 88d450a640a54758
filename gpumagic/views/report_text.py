"""A report as plain text: fixed columns, at most 100 characters wide."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap

from .report_memory import memory_texts
from .report_model import Report
from .report_parts import COLUMNS, Bracket, Fact, Group, ReportLine, Section, Strip
from .spark import bars, bracket_text

__all__ = ["write_text"]

_WIDTH = 100
_SPARK = 24
_FIGURE = 6
_LABEL = 16
_LONGEST_LABEL = 20


def write_text(report: Report) -> str:
    """Write a report as lines of text; a finding begins with ``!``."""
    lines = [_head(report)]
    for finding, sentences in groupby(report.verdict, key=lambda sentence: sentence.finding):
        texts = [sentence.text.replace("`", "") for sentence in sentences]
        for text in texts if finding else [" ".join(texts)]:
            lines += _wrapped(text, "! " if finding else "")
    lines += ["", *_table(report), ""]
    for table in report.memory:
        lines += [*memory_texts(table, _LABEL), ""]
    for group in report.groups:
        lines += _group(group)
    for text in (report.evidence, *report.notes):
        lines += _wrapped(text, "")
    return "\n".join(lines).rstrip()


def _wrapped(text: str, begin: str, room: int = _WIDTH) -> list[str]:
    return wrap(text, room, initial_indent=begin, subsequent_indent=" " * len(begin))


def _head(report: Report) -> str:
    left = "  ".join(x for x in (report.name, report.number, report.wall, report.exit) if x)
    room = _WIDTH - len(left) - 2
    if len(report.devices) > room:
        return f"{left}\n{report.devices}"
    return f"{left}  {report.devices:>{room}}"


# -- the table ------------------------------------------------------------------------------


def _table(report: Report) -> Iterator[str]:
    lines = [line for s in report.sections for strip in s.strips if not strip.bare
             for line in strip.lines]
    widths = [
        max([_FIGURE, *(len(line.figures[index]) for line in lines)])
        for index in range(len(COLUMNS))
    ]
    beside = [t for s in report.sections for t in s.strips if not t.bare and (t.row or t.missing)]
    bare = [_bare_label(strip) for s in report.sections for strip in s.strips if strip.bare]
    labels = [*map(_label, lines), *(text for text in bare if len(text) <= _LONGEST_LABEL)]
    label = max([_LABEL, *map(len, labels)])
    limit = max((len(_limit(line)) for line in lines), default=0)
    room = _WIDTH - label - sum(widths) - limit - 2 * (len(widths) + 2)
    cells = min(_SPARK, room) if beside else 0
    heads = [f"{name:>{width}}" for name, width in zip(COLUMNS, widths, strict=True)]
    # Of one device the bracket stands in the line of headings, of several below its title.
    first = report.sections[0].bracket if report.sections and not report.sections[0].title else None
    place = " " * cells
    if first is not None and cells:
        yield from _bracket_label(first, label, cells)
        place = bracket_text(first.stretches, cells)
    yield "  ".join([" " * label, *([place] if cells else []), *heads, "limit"])
    for section in report.sections:
        yield from _section(section, label, cells, widths)


def _bracket_label(bracket: Bracket, label: int, cells: int) -> Iterator[str]:
    """Write the label of a bracket over the cell where its longest stretch begins, or ends."""
    if not bracket.label:
        return
    _, at_end = bracket.room
    x0, x1 = bracket.longest
    text = bracket.label[: _WIDTH - label - 2]
    place = round(x1 * cells) - len(text) if at_end else round(x0 * cells)
    yield " " * (label + 2 + max(0, min(place, _WIDTH - label - 2 - len(text)))) + text


def _section(section: Section, label: int, cells: int, widths: list[int]) -> Iterator[str]:
    if section.summary:
        yield from _wrapped(f"{section.title:<{label}}  {section.summary}", "")
    elif section.title:
        yield section.title
        if section.bracket is not None and cells:
            yield from _bracket_label(section.bracket, label, cells)
            drawn = bracket_text(section.bracket.stretches, cells)
            yield f"{' ' * (label + 2)}{drawn}".rstrip()
    for strip in section.strips:
        if strip.bare:
            yield from _bare(strip, label)
            continue
        reason = f"n/a: {strip.missing}" if strip.missing else ""
        fits = len(reason) <= cells
        for index, line in enumerate(strip.lines):
            instead = reason if index == 0 and fits else ""
            yield _line(line, label, f"{_drawn(line, cells) or instead:<{cells}}", widths)
        if not fits:
            yield from _indented(reason, label)


def _bare_label(strip: Strip) -> str:
    return ", ".join(line.label for line in strip.lines)


def _bare(strip: Strip, label: int) -> Iterator[str]:
    name = _bare_label(strip)
    text = f"n/a: {strip.missing}"
    if len(name) > label:
        yield from _wrapped(f"{name}  {text}", "")
        return
    first, *rest = _indented(text, label)
    yield f"{name:<{label}}{first[label:]}"
    yield from rest


def _indented(text: str, label: int) -> list[str]:
    return [" " * (label + 2) + line for line in _wrapped(text, "", _WIDTH - label - 2)]


def _label(line: ReportLine) -> str:
    return f"{line.label} {line.unit}".rstrip()


def _limit(line: ReportLine) -> str:
    return ", ".join(x for x in (line.limit, line.top) if x)


def _drawn(line: ReportLine, cells: int) -> str:
    return bars(line.trace.heights, cells) if line.trace is not None else ""


def _line(line: ReportLine, label: int, spark: str, widths: list[int]) -> str:
    parts = [f"{_label(line):<{label}}", *([spark] if spark else [])]
    figures = zip(line.figures, widths, strict=True)
    parts += [f"{figure:>{width}}" for figure, width in figures]
    parts.append(_limit(line))
    return "  ".join(parts).rstrip()


def _group(group: Group) -> list[str]:
    """Write single figures side by side, as many in a line as fit."""
    lines: list[str] = []
    begin = ", ".join(text for text in (group.title, group.begin) if text)
    begin = f"{begin}: " if begin else ""
    for text in map(_fact, group.facts):
        if lines and len(lines[-1]) + 3 + len(text) <= _WIDTH:
            lines[-1] += f"   {text}"
        else:
            lines += _wrapped(text, " " * len(begin) if lines else begin)
    return lines


def _fact(fact: Fact) -> str:
    return f"{fact.label} {fact.value}{fact.rest}"
