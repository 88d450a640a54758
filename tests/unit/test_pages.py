"""Pages of finished columns: which are drawn when, and where they lie."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gpumagic.recording import Recording
from gpumagic.views.pages import COLUMNS, Due, Layout, Ring, Series, View, series_of
from gpumagic.views.parts import Scene
from gpumagic.views.scene import build_scene
from gpumagic.views.stretches import draw
from scene_examples import NOW, START, empty, gpu, training


def scene_of(recording: Recording, later: float = 0.0, **more: Any) -> Scene:
    return build_scene(recording, start=START + later, end=NOW + later, **more)


def with_heights(scene: Scene, heights: dict[int, float | None]) -> Scene:
    """Change columns of the first trace."""
    block = scene.blocks[0]
    row = block.rows[0]
    changed = list(row.traces[0].heights)
    for column, height in heights.items():
        changed[column] = height
    trace = replace(row.traces[0], heights=tuple(changed))
    row = replace(row, traces=(trace, *row.traces[1:]))
    return replace(scene, blocks=(replace(block, rows=(row, *block.rows[1:])), *scene.blocks[1:]))


class Shown:
    """A ring as the page shows it: which columns each slot was drawn with."""

    def __init__(self, scene: Scene) -> None:
        self.layout = Layout.of(scene)
        self.ring = Ring(self.layout)
        self.drawn: dict[int, range] = {}

    def turn(self, scene: Scene) -> tuple[list[Due], View]:
        before = dict(self.drawn)
        due, view = self.ring.turn(scene, series_of(scene))
        width = round((scene.end - scene.start) / scene.columns, 6)
        first = round(scene.start / width)
        for one in due:
            self.drawn[one.slot] = range(first + one.low, first + one.high)
        self.require_whole(before if len(due) == 1 else self.drawn, first, view)
        return due, view

    def require_whole(self, drawn: dict[int, range], first: int, view: View) -> None:
        """Require that pages and tail show every column once and in its place.

        A page drawn by this very update need not have been drawn yet.
        """
        count = self.layout.pages
        assert view.end == view.shift + count * COLUMNS
        columns: list[int] = []
        for slot in range(count):
            place = (view.end if slot < view.turned else view.shift) + slot * COLUMNS
            if place + COLUMNS > 0:
                assert drawn[slot] == range(first + place, first + place + COLUMNS)
                columns += drawn[slot]
        columns += range(first + view.tail, first + self.layout.columns)
        assert sorted(columns) == list(range(min(columns), first + self.layout.columns))
        assert min(columns) <= first


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("step", [0.1, 0.25, 0.7])
def test_each_column_is_shown_once(gpus: int, step: float) -> None:
    """As time goes, pages and tail hold all columns in place, and a page is drawn before it is
    turned to."""
    recording = training(gpus, end=NOW)
    shown = Shown(scene_of(recording))
    for index in range(round(70 / step)):
        shown.turn(scene_of(recording, index * step))


def test_a_finished_page_is_drawn_once() -> None:
    """In a minute of steady values each page is drawn when it is new and never again."""
    recording = training(1, end=NOW)
    shown = Shown(scene_of(recording, -50))
    shown.turn(scene_of(recording, -50))
    count = sum(len(shown.turn(scene_of(recording, -50 + i / 4))[0]) for i in range(1, 201))
    columns = 50 / 0.5
    assert columns / COLUMNS - 1 <= count <= columns / COLUMNS + 1


def test_a_page_is_turned_after_it_was_drawn() -> None:
    """The tail keeps a page's columns for the update that draws it, and loses them with the next.
    """
    recording = training(1, end=NOW)
    shown = Shown(scene_of(recording))
    views = [shown.turn(scene_of(recording, i / 4)) for i in range(100)]
    turns = 0
    for (due, before), (_, after) in pairwise(views[1:]):
        if due:
            turns += 1
            assert (after.tail - before.tail) in (COLUMNS, COLUMNS - 1)
    assert turns


def test_a_late_change_is_drawn() -> None:
    """A finished column that changes has its page drawn again, and no other one."""
    scene = scene_of(training(1))
    shown = Shown(scene)
    shown.turn(scene)
    assert shown.turn(scene)[0] == []
    (due,), _ = shown.turn(with_heights(scene, {60: 0.125}))
    assert due.low <= 60 < due.high
    assert shown.turn(with_heights(scene, {60: 0.125}))[0] == []


def test_a_change_at_an_edge_is_drawn_on_both_sides() -> None:
    """Lines reach into the neighbour, so a first column belongs to two pages."""
    scene = scene_of(training(1))
    shown = Shown(scene)
    due, _ = shown.turn(scene)
    edge = due[3].low
    again, _ = shown.turn(with_heights(scene, {edge: 0.125}))
    assert [one.low for one in again] == [due[2].low, edge]


def test_a_change_that_has_left_the_window_is_none() -> None:
    """A page that leaves at the left is not drawn again for the columns that are gone."""
    recording = training(1, end=NOW)
    shown = Shown(scene_of(recording, -30))
    shown.turn(scene_of(recording, -30))
    for index in range(12):
        due, _ = shown.turn(scene_of(recording, -30 + index / 2))
        assert all(one.low > 0 for one in due)


@pytest.mark.parametrize("change", ["height", "window", "back"])
def test_all_pages_are_drawn_anew(change: str) -> None:
    """Another ceiling's place, another window and a leap back in time draw every page in sight."""
    recording = training(1)
    scene = scene_of(recording)
    shown = Shown(scene)
    first, _ = shown.turn(scene)
    if change == "height":
        rows = tuple(replace(row, top=row.top + 1) for row in scene.blocks[0].rows)
        other = replace(scene, blocks=(replace(scene.blocks[0], rows=rows), *scene.blocks[1:]))
    elif change == "window":
        other = build_scene(recording, start=NOW - 600, end=NOW)
    else:
        other = scene_of(recording, -1000.0)
    due, _ = shown.turn(other)
    assert abs(len(due) - len(first)) <= 1
    assert len(due) >= 7


def series(heights: tuple[float | None, ...], style: str = "line", **more: Any) -> Series:
    return Series(style, False, 0, 10.0, 20.0, heights, **more)


def layout(columns: int = 120) -> Layout:
    return replace(Layout.of(scene_of(training(1))), columns=columns)


def paths(text: str) -> list[str]:
    return re.findall(r' d="([^"]*)"', text)


def places(path: str) -> list[tuple[float, float]]:
    """Return the corners of a path, in tenths of a pixel."""
    x = y = 0.0
    found = []
    for command, numbers in re.findall(r"([MVhlvz])([-\d. ]*)", path):
        values = [float(n) for n in re.findall(r"-?[\d.]+", numbers)]
        if command == "M":
            x, y = values
        elif command == "V":
            (y,) = values
        elif command == "h":
            x += values[0]
        elif command == "v":
            y += values[0]
        elif command == "l":
            x, y = x + values[0], y + values[1]
        found.append((x, y))
    return found


def y_at(corners: list[tuple[float, float]], x: float) -> float:
    """Return the height of a line at a place."""
    for (x0, y0), (x1, y1) in pairwise(corners):
        if x0 <= x <= x1 and x1 > x0:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise AssertionError(f"nothing at {x}")


def test_lines_join_across_pages() -> None:
    """Where one page ends and the next begins, a line has the same height in both."""
    heights = tuple((i * 37 % 101) / 100 for i in range(120))
    one, two = ((low, low + COLUMNS) for low in (32, 48))
    left = places(paths(draw((series(heights),), layout(), *one, 0.0))[0])
    right = places(paths(draw((series(heights),), layout(), *two, 0.0))[0])
    width = COLUMNS * 30
    assert y_at(left, width) == pytest.approx(y_at(right, 0), abs=1)


def test_a_gap_stays_open() -> None:
    """Where nothing is known nothing is drawn, from edge to edge of the columns."""
    heights = tuple(None if i in (40, 41) else 0.5 for i in range(120))
    (path,) = paths(draw((series(heights),), layout(), 32, 48, 0.0))
    first, second = (places(part) for part in re.split("(?<=.)(?=M)", path))
    assert first[-1][0] == 8 * 30
    assert second[0][0] == 10 * 30


@pytest.mark.parametrize("steps", [False, True])
def test_columns_have_their_heights(steps: bool) -> None:
    """In the middle of its column an area is as high as the scene says."""
    heights = tuple((i * 37 % 101) / 100 for i in range(120))
    text = draw((series(heights, "outer"),), layout(), 32, 48, 0.0, steps=steps)
    corners = places(paths(text)[0])
    for column in range(32, 48):
        y = y_at(corners, (column - 32 + 0.5) * 30)
        assert y == pytest.approx(10 * (10 + 20 * (1 - heights[column])), abs=1)


def test_the_share_of_others_stands_on_ours() -> None:
    """The grey area ends at the top of what is ours, as that is translucent."""
    ours, total = (0.25,) * 120, (0.75,) * 120
    grey = series(total, "other", floor=ours)
    text = draw((grey, series(ours, "outer")), layout(), 32, 48, 0.0)
    assert text.index("#8c8c8c") < text.index("opacity")
    lowest = [max(y for _, y in places(path)) for path in paths(text)]
    assert lowest == [250, 300]


def test_flat_pieces_are_one() -> None:
    """A page of equal columns is a handful of corners, and idle areas are nothing."""
    (flat,) = paths(draw((series((0.5,) * 120, "outer"),), layout(), 32, 48, 0.0))
    assert len(places(flat)) <= 5
    assert draw((series((0.0,) * 120, "outer"),), layout(), 32, 48, 0.0) == ""
    assert draw((series((None,) * 120),), layout(), 32, 48, 0.0) == ""


def test_each_panel_has_its_box() -> None:
    """In a table every panel's stretch is cut off by a box of its own."""
    scene = scene_of(training(8))
    text = draw(series_of(scene), Layout.of(scene), 16, 32, 0.0)
    found = [float(left) for left in re.findall(r"left:([\d.]+)px", text)]
    assert found == [panel.x0 - scene.panels[0].x0 for panel in scene.panels]
    assert text.count("overflow:hidden") == len(scene.panels)


def test_no_rows_no_columns() -> None:
    """A scene without devices has pages with nothing on them."""
    for recording in (empty(), empty(gpu())):
        scene = scene_of(recording)
        shown = Shown(scene)
        due, view = shown.turn(scene)
        assert draw(series_of(scene), shown.layout, view.tail, scene.columns, 0.0) == ""
        assert all(draw(series_of(scene), shown.layout, d.low, d.high, 0.0) == "" for d in due)
