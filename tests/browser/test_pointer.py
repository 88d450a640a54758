"""The view answers the pointer while a cell blocks the kernel, and its controls tell the truth."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import OpenNotebook
from .lab import Notebook

pytestmark = pytest.mark.browser

COLUMN_S = 0.5
DAY = round(24 * 3600 / COLUMN_S)

VIEW = """
import math, threading, time
from IPython.display import display
from gpumagic.recording import Recording
from gpumagic.sample import HOST, Device, Gap, Mark, Sample, Span
from gpumagic.views.actions import Status
from gpumagic.views.live import make_view
from gpumagic.views.live_controls import Controls
from gpumagic.views.live_pointer import Pointer
from gpumagic.views.refresher import Refresher
from gpumagic.views.scene import build_scene

GIB = 1 << 30

def column(moment):  # counted from the kernel's midnight
    local = moment + time.localtime(moment).tm_gmtoff
    return (math.ceil(local / 0.5) - 1) % 172800

class Watch:
    def __init__(self, gpus):
        constants = {"gpu_memory_total_bytes": 140 * GIB, "gpu_power_limit_watts": 700.0,
                     "gpu_temperature_slowdown_celsius": 87.0}
        self.recording = Recording()
        self.recording.periods.update(nvml=0.1, allocator=0.1, host=1.0)
        self.gpus = [f"GPU-{i}" for i in range(gpus)]
        for i, name in enumerate(self.gpus):
            self.recording.add_device(Device(name, "gpu", name="NVIDIA H200", nvml_index=i,
                                             torch_index=i, constants=constants))
        self.recording.add_device(Device(HOST, "host", "host", constants={
            "host_cpu_limit_ratio": 8.0, "host_memory_limit_bytes": 64.0 * GIB,
            "host_memory_total_bytes": 64.0 * GIB}))
        now = time.time()
        self.next = math.floor((now - 70) * 10)
        self.gap = (now - 40, now - 34)
        self.recording.add_gap(Gap(*self.gap, "nvml", None, "the driver said no"))
        self.recording.add_span(Span(1, now - 30, now - 20, 12, status="ok"))
        self.recording.add_mark(Mark(now - 10, "epoch 3"))
        self.paused, self.window, self.position, self.seeks = False, 60.0, POSITION, []
        self.shown = None
    def status(self):
        return Status(self.paused, self.window, self.position)
    def pause(self, paused=True):
        self.paused = paused
    def show_window(self, seconds):
        self.window = seconds
    def seek(self, position):
        self.seeks.append(position)
        self.position = position
    def feed(self):
        while (self.next + 0.5) / 10 <= time.time():
            moment = (self.next + 0.5) / 10
            self.next += 1
            c = column(moment)
            for i, name in enumerate(self.gpus):
                if not self.gap[0] <= moment < self.gap[1]:
                    self.recording.append(Sample(moment, name, "nvml", {
                        "gpu_utilization_ratio": (c + i) % 97 / 100,
                        "gpu_sm_active_ratio": (c + i) % 97 / 200,
                        "gpu_memory_used_bytes": (40 + c % 50) * GIB,
                        "gpu_power_watts": 100.0 + c % 500,
                        "gpu_temperature_celsius": 40.0 + c % 40}))
                self.recording.append(Sample(moment, name, "allocator", {
                    "torch_reserved_bytes": (30 + c % 50) * GIB,
                    "torch_allocated_bytes": (20 + c % 50) * GIB}))
            if self.next % 10 == 0:
                self.recording.append(Sample(moment, HOST, "host", {
                    "process_cpu_ratio": 1.0, "host_memory_used_bytes": 32.0 * GIB}))
    def scene(self):
        self.feed()
        if not (self.paused and self.shown):
            now = time.time()
            self.shown = build_scene(self.recording, start=now - (self.window or 70), end=now,
                                     caption=f"last {self.window or 70:g} s")
        return self.shown

watch = Watch(GPUS)
view = make_view(watch.scene(), "RENDERER", [Pointer(), Controls(watch)])
refresher = Refresher(lambda: view.update(watch.scene()), 0.25)
refresher.start()
display(view.bundle(), raw=True)
"""
SLEEP = "import time; time.sleep({})"

TOLD = """
() => [...document.querySelectorAll('.gpumagic-told text')]
  .filter(e => getComputedStyle(e).visibility == 'visible')
  .map(e => [e.getAttribute('data-layer') || e.getAttribute('data-said'), e.textContent])
"""
WORDS = """
() => [...document.querySelectorAll('.gpumagic-controls button')].map(e => {
  const style = getComputedStyle(e);
  const line = style.textDecorationLine == 'none' ? '' : style.textDecorationStyle;
  return [e.textContent, line, Number(style.fontWeight) >= 600];
})
"""


def view(renderer: str = "auto", gpus: int = 2, position: float | None = None) -> str:
    """Return the source of a cell that shows a view that moves."""
    source = VIEW.replace("RENDERER", renderer).replace("POSITION", repr(position))
    return source.replace("GPUS", str(gpus))


def show(notebook: Notebook) -> None:
    """Run the view's cell and wait until it can answer."""
    notebook.run(1)
    notebook.wait_live(1)
    notebook.page.locator(".gpumagic-hit").first.wait_for(state="attached")
    notebook.until(lambda: words(notebook) != [], "the controls are there")
    notebook.page.locator(".gpumagic-live").scroll_into_view_if_needed()


def point(notebook: Notebook, place: float, panel: int = 0, height: float = 0.5) -> None:
    """Move the mouse to a fraction of a panel's width, and of its height."""
    hit = notebook.page.locator(".gpumagic-hit").nth(panel)
    hit.scroll_into_view_if_needed()
    box = hit.bounding_box()
    assert box is not None
    notebook.page.mouse.move(box["x"] + place * box["width"], box["y"] + height * box["height"])


def told(notebook: Notebook) -> dict[str, str]:
    """Return what is told at the pointer: texts by the number of their layer, and the times."""
    found: dict[str, str] = dict(notebook.page.evaluate(TOLD))
    return found


def find(notebook: Notebook, name: str, ended_s: float, beyond: int = 0) -> dict[str, str]:
    """Point at each column to the left of a place until ``name`` is told, or some beyond it.

    The place is where ``name`` ended when the view's cell ran, seconds before that moment: since
    then the view has moved to the left.
    """
    for column in range(round(2 * (60 - ended_s)), -1, -1):
        point(notebook, (column + 0.5) / 120)
        found = told(notebook)
        if name in found["names"]:
            if beyond:
                point(notebook, (column - beyond + 0.5) / 120)
                found = told(notebook)
            return found
    raise AssertionError(f"no column is named {name!r}")


def column_of(clock: str) -> int:
    """Return the number of the column that ends at a time of day."""
    hours, minutes, seconds = clock.split(":")
    return round((int(hours) * 3600 + int(minutes) * 60 + float(seconds)) / COLUMN_S) - 1


def ago_s(found: dict[str, str]) -> float:
    """Return how many seconds before the view's end the pointed column is, as it is told."""
    return float(re.fullmatch(r"−([\d.]+) s", found["time"])[1])  # type: ignore[index]


def ahead_s(found: dict[str, str]) -> float:
    """Return by how much the end of the view is later than now, at most half a day."""
    now = time.localtime()
    columns = column_of(found["names"].split(" ")[0]) + 1 + ago_s(found) / COLUMN_S
    today = (now.tm_hour * 60 + now.tm_min) * 60 + now.tm_sec + time.time() % 1
    return (columns * COLUMN_S - today + 12 * 3600) % (24 * 3600) - 12 * 3600


def wait_moved(notebook: Notebook, before: dict[str, str], columns: int) -> dict[str, str]:
    """Wait until the pointed column is one of so many later, and return what is told of it."""
    first = column_of(before["names"].split(" ")[0])

    def moved() -> dict[str, str] | None:
        found = told(notebook)
        later = (column_of(found["names"].split(" ")[0]) - first) % DAY
        return found if later >= columns else None

    found: dict[str, str] = notebook.until(moved, f"{columns} columns later than {before}", 5)
    return found


def words(notebook: Notebook) -> list[tuple[str, str, bool]]:
    """Return the words of the controls with their underlines, and whether they are bold."""
    return [tuple(word) for word in notebook.page.evaluate(WORDS)]


def plain(*marked: tuple[str, str, bool], pause: str = "pause") -> list[tuple[str, str, bool]]:
    """Return all words of which only some are marked."""
    known = {word: (word, line, bold) for word, line, bold in marked}
    return [known.get(w, (w, "", False)) for w in (pause, "1 min", "10 min", "1 h", "all")]


def require_values(found: dict[str, str]) -> None:
    """Require that the values of two GPUs are those of the column whose time stands beside."""
    column = column_of(found["names"].split(" ")[0]) % DAY
    figures = {
        index: f"{value:.{places}f}" for index, (value, places) in enumerate([
            (column % 97, 0), (column % 97 / 2, 0), (40 + column % 50, 1), (30 + column % 50, 1),
            (20 + column % 50, 1), (100 + column % 500, 0), (40 + column % 40, 0),
            ((column + 1) % 97, 0),
        ])
    }
    assert {index: found[str(index)] for index in figures} == figures


@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_values_while_a_cell_blocks(
    open_notebook: OpenNotebook, renderer: str, screenshots: Path
) -> None:
    """The pointer tells each column's time and values as recorded, also while a cell runs."""
    notebook = open_notebook(view(renderer), SLEEP.format(9))
    show(notebook)
    notebook.press_run(2)
    notebook.wait_busy(2)
    for place in (0.52, 0.91):
        point(notebook, place)
        found = told(notebook)
        require_values(found)
        assert ago_s(found) == pytest.approx(60 * (1 - place), abs=COLUMN_S)
    before = told(notebook)
    after = wait_moved(notebook, before, 4)
    # The columns follow the time of day, of which a busy machine shows a little less.
    assert -3 < ahead_s(after) <= COLUMN_S, after
    require_values(after)
    assert after["time"] == before["time"]
    assert notebook.prompt(2) == "[*]:"
    notebook.screenshot(screenshots, f"pointer-{renderer}")
    point(notebook, 0.5, height=-0.5)
    assert told(notebook) == {}
    assert notebook.page.locator(".gpumagic-pointed").count() == 0
    notebook.wait_ended(2)


def test_names_and_gaps(open_notebook: OpenNotebook) -> None:
    """A gap is n/a with its reason; cells and marks at the pointer are named."""
    notebook = open_notebook(view())
    show(notebook)
    found = find(notebook, "gap: the driver said no", 34, beyond=4)
    assert [found[str(index)] for index in (0, 1, 2, 5, 6)] == ["n/a"] * 5
    assert found["3"] != "n/a"
    assert "[12]" in find(notebook, "[12]", 20, beyond=4)["names"]
    assert find(notebook, "epoch 3", 10)


def test_many_gpus(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """In a table, one place in time is told in all panels at once."""
    notebook = open_notebook(view("auto", 8))
    show(notebook)
    point(notebook, 0.75, panel=1)
    notebook.screenshot(screenshots, "pointer-table")
    found = told(notebook)
    figures = [text for key, text in found.items() if key.isdigit()]
    assert len(figures) == 8 * 5 + 2
    assert all(re.fullmatch(r"\d+(\.\d)?", text) for text in figures), figures
    lines = notebook.page.locator(".gpumagic-told path").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect().x)"
    )
    assert len(lines) == len({round(x) for x in lines}) == 4


def test_keyboard(open_notebook: OpenNotebook) -> None:
    """The time axis takes the focus; arrows move one column, and leaving restores."""
    notebook = open_notebook(view())
    show(notebook)
    notebook.page.locator(".gpumagic-hit").first.focus()
    assert told(notebook)["time"] == "now"
    for _ in range(3):
        notebook.page.keyboard.press("ArrowLeft")
    assert told(notebook)["time"] == "−1.5 s"
    notebook.page.keyboard.press("Home")
    assert told(notebook)["time"] == "−59.5 s"
    notebook.page.keyboard.press("Tab")
    assert told(notebook) == {}


def test_controls_while_idle(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """A click on a word or Enter on it shows that window; pause holds and resume lets go."""
    notebook = open_notebook(view())
    show(notebook)
    first = plain(("1 min", "solid", True))
    notebook.until(lambda: words(notebook) == first, f"{words(notebook)}")
    button = notebook.page.locator(".gpumagic-controls button")
    button.nth(2).click()
    shown = plain(("10 min", "solid", True))
    notebook.until(lambda: words(notebook) == shown, f"10 min: {words(notebook)}", 5)
    notebook.until(lambda: "last 600 s" in notebook.text(1), "ten minutes are shown", 5)
    button.nth(3).focus()
    notebook.page.keyboard.press("Enter")
    notebook.until(lambda: words(notebook) == plain(("1 h", "solid", True)), "1 h", 5)
    notebook.screenshot(screenshots, "controls")
    button.nth(0).click()
    held = plain(("1 h", "solid", True), pause="resume")
    notebook.until(lambda: words(notebook) == held, "paused", 5)
    button.nth(0).focus()
    notebook.page.keyboard.press("Space")
    notebook.until(lambda: words(notebook) == plain(("1 h", "solid", True)), "resumed", 5)


def test_controls_while_busy(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """What is clicked while a cell runs is dotted, and shown when the cell has ended."""
    notebook = open_notebook(view(), SLEEP.format(4))
    show(notebook)
    notebook.press_run(2)
    notebook.wait_busy(2)
    button = notebook.page.locator(".gpumagic-controls button")
    button.nth(3).click()
    button.nth(2).click()
    asked = plain(("1 min", "solid", True), ("10 min", "dotted", False))
    assert words(notebook) == asked
    notebook.page.wait_for_timeout(1200)
    assert words(notebook) == asked
    assert notebook.prompt(2) == "[*]:"
    notebook.screenshot(screenshots, "controls-asked")
    notebook.wait_ended(2)
    shown = plain(("10 min", "solid", True))
    notebook.until(lambda: words(notebook) == shown, "ten minutes", 5)


def test_slider(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """A replay's slider follows its watch and seeks where it is moved."""
    print_seeks = "print(watch.seeks[-1:])"
    move = "watch.position = 0.6"
    notebook = open_notebook(view(position=0.25), move, print_seeks)
    show(notebook)
    slider: Any = notebook.page.locator(".gpumagic-controls .noUi-handle")
    assert slider.get_attribute("aria-valuetext") == "0.25"
    notebook.run(2)
    notebook.until(lambda: slider.get_attribute("aria-valuetext") == "0.6", "it follows", 5)
    slider.focus()
    notebook.page.keyboard.press("ArrowRight")
    notebook.screenshot(screenshots, "controls-slider")
    notebook.until(lambda: slider.get_attribute("aria-valuetext") == "0.61", "it moves", 5)
    notebook.page.wait_for_timeout(2500)
    assert slider.get_attribute("aria-valuetext") == "0.61"
    assert notebook.printed(3) == "[0.61]"


@pytest.mark.parametrize("frontend", ["lab"], indirect=True)
def test_dark(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """In the dark theme what is told, and the controls, are light."""
    notebook = open_notebook(view())
    show(notebook)
    notebook.use_theme("JupyterLab Dark")
    point(notebook, 0.75)
    notebook.screenshot(screenshots, "pointer-dark")
    inks = notebook.page.evaluate(
        "() => [...document.querySelectorAll('.gpumagic-told text, .gpumagic-controls button')]"
        ".map(e => getComputedStyle(e)[e.tagName == 'text' ? 'fill' : 'color'])"
    )
    assert len(inks) > 10
    for ink in inks:
        assert all(float(part) > 100 for part in re.findall(r"[\d.]+", ink)[:3]), ink


@pytest.mark.parametrize("frontend", ["notebook"], indirect=True)
@pytest.mark.parametrize("renderer", ["bqplot", "svg"])
def test_narrow_page(open_notebook: OpenNotebook, renderer: str, screenshots: Path) -> None:
    """On a page too narrow for the view, which is drawn smaller, the place is hit as well."""
    notebook = open_notebook(view(renderer))
    notebook.page.set_viewport_size({"width": 760, "height": 1500})
    show(notebook)
    for place in (0.55, 0.9):
        point(notebook, place)
        found = told(notebook)
        require_values(found)
        ago = ago_s(found)
        assert ago == pytest.approx(60 * (1 - place), abs=COLUMN_S)
    notebook.screenshot(screenshots, f"pointer-narrow-{renderer}")
    notebook.page.locator(".gpumagic-controls button").nth(2).click()
    shown = plain(("10 min", "solid", True))
    notebook.until(lambda: words(notebook) == shown, "ten minutes", 8)
