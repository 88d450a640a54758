"""What a scene consists of: frozen values that say what is drawn, and where.

Lengths are CSS pixels with the origin at the top left. Places in time are fractions of the
time axis: 0 is its left end, 1 its right end; :meth:`Panel.x` turns them into pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Band",
    "Block",
    "Detail",
    "EventNote",
    "GapNote",
    "Heading",
    "Key",
    "LayerStyle",
    "Layout",
    "MarkLine",
    "Panel",
    "Row",
    "Scene",
    "State",
    "Stretch",
    "Tick",
    "Trace",
]

State = Literal["recording", "paused", "stopped", "replay"]
Layout = Literal["rows", "table"]
LayerStyle = Literal["other", "outer", "middle", "inner", "line"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One stretch of the picture's width over which the whole time axis runs."""

    x0: float
    x1: float

    def x(self, place: float) -> float:
        """Turn a fraction of the time axis into a pixel."""
        return self.x0 + place * (self.x1 - self.x0)


@dataclass(frozen=True, slots=True)
class Trace:
    """One metric over time; one height and one value for each column, oldest first.

    A value is in base units, as it was read: the whole of what is in use for ``outer``. A height
    is a fraction of the row's ceiling in [0, 1], or ``None`` where nothing is known.
    Nested parts are cumulative (``inner`` lies inside ``middle`` inside ``outer``) and listed
    in the order in which they are painted. ``other``, the share of other processes, ends at the
    total and is seen from the top of ``outer`` on; it is ``None`` where there is none, and
    ``outer`` then ends at the total.
    """

    metric: str
    style: LayerStyle
    heights: tuple[float | None, ...]
    values: tuple[float | None, ...]

    def stretches(self) -> Iterator[list[tuple[int, float]]]:
        """Yield each run of columns that have heights, as numbers of columns and heights."""
        run: list[tuple[int, float]] = []
        for column, height in enumerate(self.heights):
            if height is not None:
                run.append((column, height))
            elif run:
                yield run
                run = []
        if run:
            yield run


@dataclass(frozen=True, slots=True)
class Detail:
    """A figure beside the present value: the key of a nested part, or a limit in words."""

    style: Literal["middle", "inner", "other", "limit"]
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch in which a limit held work back, drawn on the row's ceiling."""

    x0: float
    x1: float


@dataclass(frozen=True, slots=True)
class Row:
    """One strip of one device.

    ``label`` and the smaller ``limit`` read as one ("memory" "of 139.8 GiB"); the unit stands
    there and nowhere else. ``unit`` repeats it for sentences. ``value`` is the present figure,
    empty where ``missing`` gives the reason why there is none (an empty one where the device
    has given it in a row above). ``ceiling`` is the value at ``top``, in base units; the
    baseline, zero, is ``top + height``. The plot lies over ``panel``, the present figure ends
    at ``value_x`` and the details begin at ``detail_x`` (in a table: the one detail ends there).
    """

    name: str
    device: str
    label: str
    limit: str
    unit: str
    traces: tuple[Trace, ...]
    value: str
    bold: bool
    details: tuple[Detail, ...]
    missing: str | None
    limited: tuple[Stretch, ...]
    ceiling: float
    panel: Panel
    top: float
    height: float
    value_x: float
    detail_x: float

    @property
    def drawn(self) -> bool:
        """Whether any trace has a height."""
        return any(h is not None for trace in self.traces for h in trace.heights)

    def totals(self) -> tuple[float | None, ...]:
        """Return the heights of the largest part, with the share of others on it."""
        traces = [t for t in self.traces if any(h is not None for h in t.heights)]
        if len(traces) < 2 or traces[0].style != "other":
            return traces[0].heights if traces else ()
        return tuple(
            own if other is None else other
            for other, own in zip(traces[0].heights, traces[1].heights, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Block:
    """One device: its title, the small lines under it and its rows.

    ``label`` names the device in full, where its title says only what tells it from the block
    above ("MIG 1a2b"). ``above`` is the title of its GPU, where that has no block; ``above_y``
    is its baseline and ``indent`` where the title begins. ``flagged`` is true where the notice
    is about this device and the layout is a table.
    """

    device: str
    title: str
    torch_label: str
    lines: tuple[str, ...]
    name: str
    rows: tuple[Row, ...]
    top: float
    flagged: bool = False
    label: str = ""
    above: str = ""
    above_y: float = 0.0
    indent: float = 0.0


@dataclass(frozen=True, slots=True)
class Key:
    """What a part of a column of a table is called; ``x`` is its left edge, ``y`` its baseline."""

    style: str
    word: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a column of a table, with the key of the parts drawn in it.

    ``top`` is the upper edge of its text.
    """

    panel: Panel
    top: float
    label: str
    limit: str
    key: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """One cell on the time axis; ``label`` is empty where it would collide with another.

    ``label_x`` is the left edge of the label in pixels, in the first panel. ``opens`` and
    ``closes`` say which of its edges run through the timeline as hairlines.
    """

    x0: float
    x1: float
    label: str
    label_x: float
    running: bool
    failed: bool
    opens: bool
    closes: bool


@dataclass(frozen=True, slots=True)
class MarkLine:
    """A moment that the user named; ``label`` is empty where it would collide.

    ``label_x`` is the middle of the label in pixels, in the first panel. ``text`` is its whole
    name, and ``when`` its time in words.
    """

    x: float
    label: str
    label_x: float
    text: str = ""
    when: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """What happened to a device in one column: ``count`` of a ``kind``, "OOM" or "retry".

    It stands at the first of them; ``when`` and ``last`` are the times of the first and of the
    last one in words.
    """

    x: float
    device: str
    kind: str
    count: int
    when: str
    last: str


@dataclass(frozen=True, slots=True)
class EventNote:
    """Ticks close to each other and the one word for them, empty where there is no room for it.

    ``label_x`` is the left edge of the word in pixels, in the first panel. Ticks without a word
    are not orange.
    """

    ticks: tuple[Tick, ...]
    label: str
    label_x: float


@dataclass(frozen=True, slots=True)
class GapNote:
    """A stretch without readings and why; ``shown`` says whether the word "gap" fits."""

    x0: float
    x1: float
    reason: str
    shown: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a view of a recording shows, before anyone draws it.

    ``start`` and ``end`` are the epoch seconds at the two ends of the time axis: multiples of
    ``(end - start) / columns``, so that columns do not shimmer as the window moves.
    ``start_text`` and ``end_text`` are written there ("−60 s" and "now" in a live view, times
    of day or "0 s" and the length in others). ``devices`` sums up the GPUs of a table ("8 ×
    H200"). ``notice`` is the one finding, with code between backticks; while the picture can
    change, its line keeps its place when it is ``None``. ``*_y`` are baselines of text,
    ``band_top`` is the upper edge of the bands and ``plot_bottom`` the lower end of hairlines
    and mark lines.
    """

    state: State
    caption: str
    devices: str
    layout: Layout
    columns: int
    start: float
    end: float
    start_text: str
    end_text: str
    panels: tuple[Panel, ...]
    headings: tuple[Heading, ...]
    blocks: tuple[Block, ...]
    bands: tuple[Band, ...]
    marks: tuple[MarkLine, ...]
    gaps: tuple[GapNote, ...]
    notice: str | None
    width: float
    height: float
    header_y: float | None
    label_x: float
    label_y: float
    band_top: float
    plot_bottom: float
    notice_y: float
    events: tuple[EventNote, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all blocks."""
        return tuple(row for block in self.blocks for row in block.rows)

    def memory_row(self, device: str) -> Row | None:
        """Return the row of a device at which its events are drawn: memory, or its first one."""
        rows = [row for row in self.rows if row.device == device]
        return next((row for row in rows if row.name == "mem"), rows[0] if rows else None)
