"""Words for events on the line of labels: those close to each other share one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

from .events import OOM, RETRY, name_of
from .parts import EventNote, Panel, Tick
from .shelf import GUTTER, Shelf, width_of

__all__ = ["Failed", "note_of", "ooms_and_retries"]

Failed: TypeAlias = tuple[float, float, str]
"""A cell that failed: its ends as fractions of the axis, and its name."""

_REACH = 90.0
_MOST_ASIDE = 40.0
_RETRIES_APART = 60.0
"""How far a word for an event stands from it at most, and retries with words of their own."""

_JUST_AFTER = 0.01


def _groups(ticks: Sequence[Tick], kind: str, panel: Panel, apart: float) -> list[list[Tick]]:
    """Put ticks of a kind together where their words would collide."""
    found: list[list[Tick]] = []
    for tick in ticks:
        if tick.kind != kind:
            continue
        if found and panel.x(tick.x) - panel.x(found[-1][-1].x) < apart:
            found[-1].append(tick)
        else:
            found.append([tick])
    return found


def note_of(
    group: Sequence[Tick], failed: Sequence[Failed], shelf: Shelf, panel: Panel
) -> EventNote:
    """Name ticks that fall together, as near to them as there is room."""
    ticks = tuple(group)
    kind = OOM if any(t.kind == OOM for t in ticks) else ticks[0].kind
    word = name_of(kind, sum(t.count for t in ticks if t.kind == kind))
    width = width_of(word)
    first, last = panel.x(ticks[0].x), panel.x(ticks[-1].x)
    left = (first + last - width) / 2
    # An OOM at the end of the cell that failed of it leaves room for that cell's number.
    own = next((f for f in failed if f[0] <= ticks[0].x <= f[1] + _JUST_AFTER), None)
    if own is not None:
        label_end = panel.x(own[0]) + width_of(own[2]) + GUTTER
        left = max(left, min(label_end, first + _MOST_ASIDE))
    put = shelf.near(left, width, _REACH)
    if put is None:
        return EventNote(ticks, "", left)
    return EventNote(ticks, word, put)


def ooms_and_retries(
    ticks: Sequence[Tick], failed: Sequence[Failed], shelf: Shelf, panel: Panel
) -> tuple[list[EventNote], list[list[Tick]]]:
    """Name OOMs; return them and groups of retries, which come after cells that failed.

    Before an OOM, torch's allocator has tried again: the OOM's word is enough for both.
    """
    ooms = _groups(ticks, OOM, panel, width_of("2 OOMs") + GUTTER)
    near = width_of(OOM)
    places = [(panel.x(tick.x), group) for group in ooms for tick in group]
    lefts = [x for x, _ in places]
    rest: list[Tick] = []
    for tick in ticks:
        if tick.kind == OOM:
            continue
        x = panel.x(tick.x)
        first = bisect_right(lefts, x - near)
        if first < len(places) and lefts[first] < x + near:
            places[first][1].append(tick)
        else:
            rest.append(tick)
    for group in ooms:
        group.sort(key=lambda t: t.x)
    notes = [note_of(group, failed, shelf, panel) for group in reversed(ooms)]
    return notes, _groups(rest, RETRY, panel, _RETRIES_APART)
