"""The watch beside a training run: nothing is cut off, covered, pale or in the wrong place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest

from nvml_stub import NvmlStub

from .conftest import OpenNotebook
from .lab import Frontend, Notebook

pytestmark = pytest.mark.browser

WINDOW_S = {1: 40.0, 2: 40.0, 8: 25.0}
"""By the number of GPUs: in a table, the time axis is not half as long."""

FRONTENDS: tuple[Frontend, ...] = ("lab", "notebook")
WIDTHS = (1200, 800)
HEIGHT = 900
LAPTOP_HEIGHT = 700.0
"""What a laptop's screen has left for a cell below the bars of browser and front end."""

WATCH, NOTES = 1, 2

# What a blocked kernel could not be asked for later, and the parts that torch would tell.
TRAINING = """
import json, threading, time, gpumagic
from gpumagic.sample import Sample
recording = gpumagic.session.current().recording
gpus = [device.id for device in recording.devices if device.kind == "gpu"]
def notes():
    while True:
        now = time.time()
        for index, gpu in enumerate(gpus):
            recording.append(Sample(now, gpu, "allocator", {
                "torch_reserved_bytes": (135 if gpu == gpus[-1] else 40) * 2.0**30,
                "torch_allocated_bytes":
                    (133 if gpu == gpus[-1] else 25 + 10 * (now % 1)) * 2.0**30}))
        told = {
            "spans": [[s.start, s.end, s.status] for s in recording.spans(0, now)],
            "marks": [[m.time, m.text] for m in recording.marks(0, now)],
            "gaps": [[g.start, g.end, g.source] for g in recording.gaps(0, now)],
        }
        with open("FILE.new", "w") as file:
            json.dump(told, file)
        import os; os.replace("FILE.new", "FILE")
        time.sleep(0.1)
threading.Thread(target=notes, daemon=True).start()
time.sleep(2)
"""
FAILING = "import time; time.sleep(2); raise ValueError('loss is nan')"
LONG = "import time; time.sleep(9)"
BUSY = "import gpumagic, time; time.sleep(14); gpumagic.mark('epoch 3'); time.sleep(600)"

TEXTS = """
index => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const root = cell.querySelector('.gpumagic-live');
  const seen = e => {
    for (let p = e; p && p != cell; p = p.parentElement) {
      const style = getComputedStyle(p);
      if (style.visibility == 'hidden' || style.display == 'none' || style.opacity == '0')
        return false;
    }
    return e.textContent.trim() != '';
  };
  const page = e => {
    for (let p = e; p; p = p.parentElement) {
      const colour = getComputedStyle(p).backgroundColor;
      if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...root.querySelectorAll('text, button')].filter(seen).map(e => {
    const box = e.getBoundingClientRect();
    const parts = e.tagName == 'text' ? [...e.querySelectorAll('tspan')] : [];
    return {
      text: e.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom,
      end: e.getAttribute('text-anchor') == 'end', page: page(e),
      inks: (parts.length ? parts : [e]).map(p => {
        const style = getComputedStyle(p);
        const ink = e.tagName == 'text' ? style.fill : style.color;
        return [ink, parseFloat(style.fontSize), Number(style.fontWeight) >= 600];
      }),
    };
  });
}
"""
ROOM = """
index => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const root = cell.querySelector('.gpumagic-live');
  const output = cell.querySelector('.jp-OutputArea-output');
  const box = root.getBoundingClientRect(), around = output.getBoundingClientRect();
  return {
    scrolls: [root, output].map(e => e.scrollWidth - e.clientWidth),
    left: box.left - around.left, right: around.right - box.right, height: box.height,
    ends: around.right,
  };
}
"""
# Places in pixels of the layout, whatever the page has made of them: those of the first panel.
TIMELINE = """
index => {
  const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
  const hit = cell.querySelector('.gpumagic-hit');
  const x0 = Number(hit.getAttribute('x')), width = Number(hit.getAttribute('width'));
  const bands = [], marks = [];
  for (const path of cell.querySelectorAll('.gpumagic-moving path')) {
    const d = path.getAttribute('d');
    const box = d.match(/^M([\\d.]+) ([\\d.]+)h([\\d.]+)v(3|5)H/);
    const [x, y, length, high] = box ? box.slice(1).map(Number) : [];
    if (box && x < x0 + width) bands.push({x0: x, x1: x + length, y, high});
    if (path.hasAttribute('stroke-dasharray')) marks.push(Number(d.match(/^M([\\d.]+)/)[1]));
  }
  const top = Math.min(...bands.map(b => b.y));
  const words = [...cell.querySelectorAll('.gpumagic-moving text')].map(e => {
    const box = e.getBBox();
    return [e.textContent, box.x, box.x + box.width];
  });
  return {x0, width, bands: bands.filter(b => b.y < top + 2), marks, words};
}
"""


@dataclass(frozen=True)
class Drawn:
    """A text as it stands on the screen: its box in pixels, and its inks with size and weight."""

    text: str
    left: float
    right: float
    top: float
    bottom: float
    end: bool
    page: str
    inks: tuple[tuple[str, float, bool], ...]

    def covers(self, other: Drawn) -> bool:
        """Tell whether two texts lie on each other, by more than the empty edge of a line."""
        size = max(size for _, size, _ in (*self.inks, *other.inks))
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > 0.5 and down > 0.4 * size


def texts(notebook: Notebook) -> list[Drawn]:
    """Return the texts of the watch that can be seen."""
    found = notebook.page.evaluate(TEXTS, WATCH)
    return [
        Drawn(**{**one, "inks": tuple((ink, size, bold) for ink, size, bold in one["inks"])})
        for one in found
    ]


def _linear(part: float) -> float:
    part /= 255
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def contrast(ink: str, page: str) -> float:
    """Return the contrast of two opaque or translucent colours, as WCAG counts it."""
    red, green, blue, *alpha = (float(part) for part in re.findall(r"[\d.]+", ink))
    below = [float(part) for part in re.findall(r"[\d.]+", page)][:3]
    opacity = alpha[0] if alpha else 1.0
    mixed = [
        a * opacity + b * (1 - opacity) for a, b in zip((red, green, blue), below, strict=True)
    ]
    light, dark = sorted(
        (sum(w * _linear(p) for w, p in zip((0.2126, 0.7152, 0.0722), colour, strict=True))
         for colour in (mixed, below)), reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


def require_readable(notebook: Notebook) -> None:
    """Require that no text covers another, is cut off at the right, or is pale."""
    found = texts(notebook)
    assert len(found) > 20
    covered = [(a.text, b.text) for a, b in combinations(found, 2) if a.covers(b)]
    assert covered == []
    room = notebook.page.evaluate(ROOM, WATCH)
    assert [one.text for one in found if one.right > room["ends"]] == []
    pale = [
        (one.text, ink, one.page, round(contrast(ink, one.page), 2))
        for one in found for ink, size, bold in one.inks
        if contrast(ink, one.page) < (3.0 if size >= 24 or (bold and size >= 18.7) else 4.5)
    ]
    assert pale == []


def require_room(notebook: Notebook) -> None:
    """Require that all of the view lies in the output, and on a laptop's screen."""
    room = notebook.page.evaluate(ROOM, WATCH)
    assert max(room["scrolls"]) <= 0, room
    assert min(room["left"], room["right"]) >= -0.5, room
    assert room["height"] <= LAPTOP_HEIGHT, room


def require_aligned(notebook: Notebook) -> None:
    """Require that figures end where those above and below them end."""
    figures = [t for t in texts(notebook) if t.end and re.fullmatch(r"[\d.]+", t.text)]
    assert len(figures) >= 4
    columns: list[list[float]] = []
    for right in sorted(t.right for t in figures):
        if columns and right - columns[-1][0] < 12:
            columns[-1].append(right)
        else:
            columns.append([right])
    assert all(column[-1] - column[0] < 1 for column in columns), columns


def require_timeline(notebook: Notebook, notes: Path, window_s: float) -> None:
    """Require that bands, the mark and its label stand where the recording has them."""
    drawn = notebook.page.evaluate(TIMELINE, WATCH)
    told = json.loads(notes.read_text())
    x0, pixels = drawn["x0"], drawn["width"] / window_s
    *ended, (start, none, _) = told["spans"]
    assert none is None
    bands = sorted((b for b in drawn["bands"] if b["high"] == 3), key=lambda b: b["x0"])
    assert abs(bands[-1]["x1"] - (x0 + drawn["width"])) < 0.2
    running = bands[-1]["x0"]

    def place(moment: float) -> float:
        """Return where a moment stands, counted from the start of the running cell."""
        return float(running + (moment - start) * pixels)

    for begun, over, _ in ended:
        if over - begun > 1 and place(begun) > x0 + 2:
            assert any(
                abs(b["x0"] - place(begun)) < 2 and abs(b["x1"] - place(over)) < 2 for b in bands
            ), (place(begun), place(over), bands)
    (failed,) = [s for s in ended if s[2] == "error"]
    ends = [b["x1"] for b in drawn["bands"] if b["high"] == 5]
    if place(failed[1]) > x0 + 2:
        assert any(abs(x - place(failed[1])) < 2 for x in ends), (ends, place(failed[1]))
    ((moment, name),) = told["marks"]
    assert any(abs(x - place(moment)) < 2 for x in drawn["marks"]), (drawn, place(moment))
    labels = {text: (left, right) for text, left, right in drawn["words"]}
    left, right = labels[name]
    assert left - 4 <= place(moment) <= right + 4
    if "gap" not in labels and window_s < 40:
        return  # beside the cell's own name there is no room for it
    begun, over, _ = next(g for g in told["gaps"] if g[2] == "nvml" and g[1] is not None)
    assert abs(sum(labels["gap"]) / 2 - place((begun + over) / 2)) < 6, labels


def train(notebooks: Sequence[Notebook], stub: NvmlStub) -> None:
    """Run some cells, of which one fails, lose a GPU for a moment, and leave one cell busy.

    The notebooks do so at the same time.
    """
    for index in (0, WATCH):
        run_all(notebooks, index)
    for notebook in notebooks:
        notebook.wait_live(WATCH)
    run_all(notebooks, 2)
    run_all(notebooks, 3)
    begin_all(notebooks, 4)
    pause(notebooks, 4.5)
    stub.lose(0)
    pause(notebooks, 2)
    stub.find(0)
    for notebook in notebooks:
        notebook.wait_ended(4)
    begin_all(notebooks, 5)
    pause(notebooks, 14.5)
    stub.gpu(0, clock_event_reasons=4)
    pause(notebooks, 2)
    stub.gpu(0, clock_event_reasons=1)
    pause(notebooks, 1.5)


def begin_all(notebooks: Sequence[Notebook], index: int) -> None:
    """Run a cell of each notebook, and wait until all are busy."""
    for notebook in notebooks:
        notebook.press_run(index)
    for notebook in notebooks:
        notebook.wait_busy(index)


def run_all(notebooks: Sequence[Notebook], index: int) -> None:
    """Run a cell of each notebook, and wait until all have ended."""
    for notebook in notebooks:
        notebook.press_run(index)
    for notebook in notebooks:
        notebook.wait_ended(index)


def pause(notebooks: Sequence[Notebook], seconds: float) -> None:
    """Let the notebooks go on for a time."""
    notebooks[0].page.wait_for_timeout(1000 * seconds)


def close_sidebar(notebook: Notebook) -> None:
    """Hide the file browser, as one does on a narrow page."""
    if notebook.frontend == "lab":
        notebook.page.evaluate(
            "() => { const shell = window.jupyterapp.shell;"
            " if (!shell.leftCollapsed) shell.collapseLeft(); }"
        )
        notebook.page.wait_for_timeout(300)


def pictures(notebook: Notebook, folder: Path, name: str) -> None:
    """Take a picture of the page and of the watch alone."""
    notebook.cell(WATCH).scroll_into_view_if_needed()
    notebook.screenshot(folder, f"{name}-page")
    notebook.output(WATCH).screenshot(path=folder / f"{name}-{notebook.frontend}.png")


@pytest.fixture(params=[1, 2, 8])
def gpus(request: pytest.FixtureRequest, stub: NvmlStub) -> Iterator[int]:
    """Show as many GPUs, of which one has its memory nearly full."""
    for index in range(request.param):
        stub.gpu(index, wave_period_s=6 + index)
        stub.gpm(index, {2: 55 + index})
    stub.gpu(request.param - 1, wave=False, memory_used=138 << 30)
    stub.write(count=request.param)
    yield request.param
    for index in range(request.param):
        stub.gpm(index, {2: None})
        stub.gpu(index, clock_event_reasons=1, lost=None)


@pytest.mark.parametrize("frontend", ["lab"], indirect=True)
def test_looks(
    open_notebook: OpenNotebook, stub: NvmlStub, gpus: int, screenshots: Path
) -> None:
    """At both widths and in both themes all of the watch is in the output and can be read.

    So it is in JupyterLab and in Notebook, which watch the same GPUs at the same time.
    """
    notebooks = [open_training(open_notebook, gpus, name) for name in FRONTENDS]
    train(notebooks, stub)
    failures = []
    for notebook in notebooks:
        try:
            require_timeline(notebook, notes_of(notebook), WINDOW_S[gpus])
        except (AssertionError, KeyError) as error:
            failures.append(f"{notebook.frontend} timeline: {error!r}")
    for theme in ("light", "dark"):
        for notebook in notebooks:
            notebook.use_theme(f"JupyterLab {theme.capitalize()}")
        for width in WIDTHS:
            for notebook in notebooks:
                notebook.page.set_viewport_size({"width": width, "height": HEIGHT})
            pause(notebooks, 1.2)
            for notebook in notebooks:
                pictures(notebook, screenshots, f"{theme}-{width}-{gpus}gpu")
                try:
                    require_readable(notebook)
                    require_room(notebook)
                    require_aligned(notebook)
                except AssertionError as error:
                    failures.append(f"{notebook.frontend} {theme} {width}: {error}")
    assert failures == []


def open_training(open_notebook: OpenNotebook, gpus: int, frontend: Frontend) -> Notebook:
    """Open the training's notebook in a front end, at the first of the widths."""
    file = f"notes-{frontend}.json"
    notebook = open_notebook(
        f"%gpuwatch -w {WINDOW_S[gpus]:g}", TRAINING.replace("FILE", file), FAILING, LONG, BUSY,
        frontend=frontend,
    )
    notes_of(notebook).unlink(missing_ok=True)
    close_sidebar(notebook)
    notebook.page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    return notebook


def notes_of(notebook: Notebook) -> Path:
    """Return where the training of a notebook leaves what its recording has."""
    return notebook.path.parent / f"notes-{notebook.frontend}.json"
