"""What a report consists of: frozen values with the words and figures that are written."""

from __future__ import annotations

from dataclasses import dataclass

from .parts import Row, Trace

__all__ = ["COLUMNS", "Fact", "Group", "ReportLine", "Section", "Sentence", "Strip"]

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
class Section:
    """The strips of one device; ``title`` is empty where the header names the device.

    Devices that need no rows share a section without strips: ``title`` is "GPU 1 to 7" and
    ``summary`` "idle, 0.4 GiB used each".
    """

    title: str
    strips: tuple[Strip, ...] = ()
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A single figure: "energy", "6.7 kJ", ", mean 542 W"; ``limited`` where a limit bit."""

    label: str
    value: str
    rest: str = ""
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The single figures of one device."""

    title: str
    facts: tuple[Fact, ...]
