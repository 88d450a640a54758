"""The cells seen so far, ranked by time, energy or peak memory, as HTML and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..units import bytes_text, duration, quantity
from .footer import MARK, busiest, peak_of
from .footer_words import words_of
from .markup import code_html
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["ORDERS", "RankedCell", "Ranking", "rank", "ranked_cell"]

_LONGEST_TITLE = 40
_LONGEST_WORDS = 60
_COLUMNS = ("time", "GPU-Util", "peak", "energy")


@dataclass(frozen=True, slots=True)
class RankedCell:
    """One cell of the list: its number or name, its code's first line, and its figures.

    ``util`` is the mean GPU-Util of the busiest GPU and ``active`` its mean SM active, which is
    shown where the GPU has no GPU-Util. ``peak`` is in bytes and ``joules`` of all GPUs,
    ``estimated`` where they rest on power; ``None`` was not measured. ``words`` has code between
    backticks; ``marked`` is true for a finding.
    """

    label: str
    title: str
    wall_s: float
    util: float | None = None
    peak: float | None = None
    joules: float | None = None
    words: str = ""
    marked: bool = False
    active: float | None = None
    estimated: bool = False


ORDERS: Mapping[str, Callable[[RankedCell], float | None]] = MappingProxyType(
    {
        "time": lambda cell: cell.wall_s,
        "joules": lambda cell: cell.joules,
        "peak": lambda cell: cell.peak,
    }
)
"""What cells can be ranked by."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The first cells of an order; ``total`` counts all that were ranked."""

    cells: tuple[RankedCell, ...]
    by: str
    total: int

    def to_text(self) -> str:
        """Return the list as text in fixed columns."""
        return _text(self)

    def to_html(self) -> str:
        """Return the list as one block of HTML without script."""
        return _html(self)

    def __repr__(self) -> str:
        return f"<Ranking of {self.total} cells by {self.by}>"

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, str]:
        return {"text/html": self.to_html(), "text/plain": self.to_text()}


def ranked_cell(profile: Profile, title: str = "", error: str | None = None) -> RankedCell:
    """Take from a profile what the list shows of it; ``title`` is the code's first line."""
    gpu = busiest(profile)
    words, marked = words_of(profile, error)
    return RankedCell(
        label=clean(profile.span.label if profile.number is not None else profile.name),
        title=clean(profile.span.name or title) if profile.number is not None else "",
        wall_s=profile.wall_s,
        util=gpu.figure("gpu_utilization_ratio").mean if gpu is not None else None,
        peak=peak_of(profile)[0],
        joules=profile.energy_joules,
        words=words,
        marked=marked,
        active=gpu.figure("gpu_sm_active_ratio").mean if gpu is not None else None,
        estimated=profile.energy_estimated,
    )


def rank(cells: Sequence[RankedCell], by: str = "time", count: int = 10) -> Ranking:
    """Order cells from the largest figure down; those without it come last, the newest first."""
    figure = ORDERS[by]

    def key(cell: RankedCell) -> tuple[bool, float]:
        value = figure(cell)
        return (value is not None, value or 0.0)

    newest_first = list(reversed(cells))
    ordered = sorted(newest_first, key=key, reverse=True)
    return Ranking(tuple(ordered[:count]), by, len(cells))


# -- what both write ------------------------------------------------------------------------


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _figures(cell: RankedCell) -> tuple[str, str, str, str]:
    peak = "n/a" if cell.peak is None else bytes_text(cell.peak)
    joules = quantity(cell.joules, "joules")
    if cell.estimated and cell.joules is not None:
        joules = f"≈ {joules}"
    util = quantity(cell.util, "ratio")
    if cell.util is None and cell.active is not None:
        util = f"SM {quantity(cell.active, 'ratio')}"
    return duration(cell.wall_s), util, peak, joules


def _caption(ranking: Ranking) -> str:
    if not ranking.cells:
        return "No cell has been seen yet."
    shown, total = len(ranking.cells), ranking.total
    cells = f"{shown} of {total} cells" if shown < total else f"{total} cells"
    return f"{'1 cell' if total == 1 else cells} by {_WORDS[ranking.by]}"


_WORDS = {"time": "time", "joules": "energy", "peak": "peak memory"}


# -- text -----------------------------------------------------------------------------------


def _text(ranking: Ranking) -> str:
    if not ranking.cells:
        return _caption(ranking)
    rows = [("cell", "", *_COLUMNS, "")]
    for cell in ranking.cells:
        words = _cut(cell.words.replace("`", ""), _LONGEST_WORDS)
        rows.append((
            _cut(cell.label, _LONGEST_TITLE), _cut(cell.title, _LONGEST_TITLE), *_figures(cell),
            f"! {words}" if cell.marked else words,
        ))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join([_caption(ranking), *(_aligned(row, widths) for row in rows)])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = range(2, 2 + len(_COLUMNS))
    parts = [
        text.rjust(width) if column in numbers else text.ljust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(part for part, width in zip(parts, widths, strict=True) if width).rstrip()


# -- HTML -----------------------------------------------------------------------------------

# Notebook front ends stripe tables, set them in from the margins and align to the right.
_STYLE = (
    ".gpl{max-width:760px;font:13px/20px var(--jp-ui-font-family,system-ui,sans-serif);"
    "color:var(--jp-ui-font-color1,inherit);font-variant-numeric:tabular-nums}"
    ".gpl table{display:table;table-layout:auto;margin:2px 0;border:0;border-collapse:collapse;"
    "font:inherit;color:inherit}.gpl tr,.gpl thead{background:none!important;border:0}"
    ".gpl table th,.gpl table td{padding:1px 0 1px 18px;border:0;font-size:13px;"
    "font-weight:400;text-align:right;vertical-align:top;white-space:nowrap;background:none;"
    "color:inherit}"
    ".gpl table th:first-child{padding-left:0}.gpl table .a{text-align:left}"
    ".gpl table .w{text-align:left;white-space:normal}"
    ".gpl .l,.gpl table thead th,.gpl table .w{color:var(--jp-ui-font-color2,#7a7a7a)}"
    ".gpl table thead th{font-size:11px}"
    ".gpl table code{font-size:12px;padding:0!important;background:none!important;color:inherit;"
    "white-space:nowrap!important}"
    ".gpl i{display:inline-block;width:8px;height:8px;margin-right:6px;background:#d9730d;"
    "font-size:0;overflow:hidden}"
)


def _html(ranking: Ranking) -> str:
    caption = f'<div class="l">{escape(_caption(ranking))}</div>'
    table = ""
    if ranking.cells:
        heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
        rows = "".join(f"<tr>{''.join(_cells(cell))}</tr>" for cell in ranking.cells)
        table = (
            f'<table><thead><tr><th class="a" scope="col">cell</th><th></th>{heads}<th></th></tr>'
            f"</thead><tbody>{rows}</tbody></table>"
        )
    return f'<div class="gpl"><style>{_STYLE}</style>{caption}{table}</div>'


def _cells(cell: RankedCell) -> Iterator[str]:
    yield f'<th class="a" scope="row">{escape(_cut(cell.label, _LONGEST_TITLE))}</th>'
    title = escape(_cut(cell.title, _LONGEST_TITLE))
    yield f'<td class="a"><code>{title}</code></td>' if title else "<td></td>"
    for figure in _figures(cell):
        yield f'<td class="l">{figure}</td>' if figure == "n/a" else f"<td>{figure}</td>"
    mark = MARK if cell.marked else ""
    yield f'<td class="w">{mark}{code_html(cell.words)}</td>'
