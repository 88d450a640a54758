"""What a report consists of: frozen values with the words and figures that are written."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import Row, Trace

__all__ = [
    "COLUMNS",
    "Bracket",
    "Fact",
    "Group",
    "MemoryLine",
    "MemoryPart",
    "MemoryTable",
    "ReportLine",
    "Section",
    "Sentence",
    "Strip",
]

COLUMNS = ("start", "mean", "peak", "end")
"""The columns of figures; the limit stands after them."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One statement; ``lead`` is its weighty half and code stands between backticks.

    ``finding`` is true where something was held back or the figures mislead.
    """

    lead: str
    rest: str = ""
    finding: bool = False

    @property
    def text(self) -> str:
        """Both halves."""
        return f"{self.lead}{self.rest}"


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One row of figures; empty where a column does not apply, "n/a" where it was not measured.

    ``unit`` is given where the limits of the strip do not tell it. ``top`` is the value at the
    top of the strip where that is not the limit. ``trace`` is what is drawn of it, and
    ``ring`` the place of the peak on the time axis, where that is known, with its height.
    ``strong`` is true where the gravest finding is about these figures.
    """

    label: str
    unit: str = ""
    start: str = ""
    mean: str = ""
    peak: str = ""
    end: str = ""
    limit: str = ""
    top: str = ""
    trace: Trace | None = None
    ring: tuple[float, float] | None = None
    strong: bool = False

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures in the order of COLUMNS."""
        return (self.start, self.mean, self.peak, self.end)


@dataclass(frozen=True, slots=True)
class Strip:
    """Rows that share one sparkline; ``missing`` is the reason that stands in its place."""

    lines: tuple[ReportLine, ...]
    row: Row | None = None
    missing: str = ""

    @property
    def bare(self) -> bool:
        """Whether there is nothing but the reason."""
        return bool(self.missing) and not any(any(line.figures) for line in self.lines)


@dataclass(frozen=True, slots=True)
class Bracket:
    """Stretches of the time axis that a finding speaks of, as fractions of it, oldest first.

    ``label`` stands above the longest one. ``ends`` are those ends that lie inside the cell:
    from them, lines run down through all rows. ``device`` is the id of the finding's device.
    """

    device: str
    label: str
    stretches: tuple[tuple[float, float], ...]
    ends: tuple[float, ...] = ()

    @property
    def longest(self) -> tuple[float, float]:
        """The stretch that carries the label."""
        return max(self.stretches, key=lambda stretch: stretch[1] - stretch[0])

    @property
    def room(self) -> tuple[float, bool]:
        """How much of the axis there is for the label, and whether it ends with its stretch.

        It begins with the stretch where there is more room to the right of that.
        """
        x0, x1 = self.longest
        return (x1, True) if x1 > 1 - x0 else (1 - x0, False)


@dataclass(frozen=True, slots=True)
class Section:
    """The strips of one device; ``title`` is empty where the header names the device.

    Devices that need no rows share a section without strips: ``title`` is "GPU 1 to 7" and
    ``summary`` "idle, 0.4 GiB used each". ``bracket`` stands above the section's strips and
    its lines run on through those below.
    """

    title: str
    strips: tuple[Strip, ...] = ()
    summary: str = ""
    device: str = ""
    bracket: Bracket | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A single figure: "energy", "6.7 kJ", ", mean 542 W"; ``limited`` where a limit bit.

    ``strong`` is true where the gravest finding is about it.
    """

    label: str
    value: str
    rest: str = ""
    limited: bool = False
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The single figures of one device; ``begin`` says what they all are ("on average")."""

    title: str
    facts: tuple[Fact, ...]
    begin: str = ""


# -- where memory is ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of a GPU's memory: its share of the total, and its figure without the unit.

    ``fragmented`` is the share of the total, inside ``share``, that live blocks pin, and
    ``fragmented_text`` its figure.
    """

    name: str
    share: float
    text: str
    fragmented: float = 0.0
    fragmented_text: str = ""


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """All of a GPU's memory at one moment; the parts are in the order in which they lie."""

    label: str
    parts: tuple[MemoryPart, ...]

    def part(self, name: str) -> MemoryPart | None:
        """Return a part by its name, or ``None``."""
        return next((part for part in self.parts if part.name == name), None)


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """Where one GPU's memory was: one line a moment, all on one scale.

    ``names`` are those of all parts, in order; ``total`` is written with the unit of all.
    """

    title: str
    total: str
    names: tuple[str, ...]
    lines: tuple[MemoryLine, ...]
