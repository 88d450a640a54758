"""Times in words: what stands at the ends of a time axis, and when something happened."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from .readings import elapsed
from .wording import SMALL, text_width

__all__ = ["Axis"]

_DAY = 86_400.0
_SECONDS_UNTIL = 3600.0
_DAY_FROM = 12 * 3600.0
_DATE_FROM = 7 * _DAY
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)


@dataclass(frozen=True, slots=True)
class Axis:
    """A stretch of time, in epoch seconds, and how its times are written.

    ``live`` counts back from now, ``clock`` writes times of day, and ``offset`` counts from the
    start. ``room`` is the width for the words at its left end, in pixels.
    """

    start: float
    end: float
    kind: Literal["live", "clock", "offset"]
    room: float

    @property
    def length(self) -> float:
        """Its length in seconds."""
        return self.end - self.start

    def ends(self) -> tuple[str, str]:
        """Write what stands at its two ends."""
        if self.kind == "live":
            return self._ago(), "now"
        if self.kind == "offset":
            return "0 s", elapsed(self.length)
        return self._clock(self.start), self._clock(self.end)

    def when(self, moment: float) -> str:
        """Write when something happened, for sentences."""
        if self.kind == "live":
            return f"{elapsed(max(0.0, self.end - moment))} ago"
        if self.kind == "offset":
            return f"at {elapsed(max(0.0, moment - self.start))}"
        return f"at {self._clock(moment)}"

    def _ago(self) -> str:
        length = self.length
        whole = round(length)
        if whole >= 3600 and whole % 3600 == 0:
            text = f"{whole // 3600} h"
        elif whole >= 36_000:
            text = f"{length / 3600:.1f} h"
        elif 120 <= whole < 3600 and whole % 60 == 0:
            text = f"{whole // 60} min"
        else:
            text = elapsed(length)
        if text_width(f"−{text}", SMALL) > self.room:
            text = f"{length / 60:.1f} min" if length < 3600 else f"{length / 3600:.1f} h"
        return f"−{text}"

    def _clock(self, moment: float) -> str:
        """Write a time of day, as exactly as the axis can show it."""
        there = time.localtime(moment)
        if self.length >= _DATE_FROM:
            return f"{there.tm_mday} {_MONTHS[there.tm_mon - 1]}"
        minutes = f"{there.tm_hour:02d}:{there.tm_min:02d}"
        if self._spans_days():
            return f"{_DAYS[there.tm_wday]} {minutes}"
        if self.length >= _SECONDS_UNTIL:
            return minutes
        seconds = f"{minutes}:{there.tm_sec:02d}"
        return seconds if self.length >= 10 else f"{seconds}.{int(moment % 1 * 10)}"

    def _spans_days(self) -> bool:
        """Tell whether the same time of day could be meant twice, or nearly so."""
        days = {time.localtime(moment)[:3] for moment in (self.start, self.end)}
        return self.length >= _DAY_FROM and len(days) > 1
