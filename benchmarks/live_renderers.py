"""Compare ways to draw the live view in a real JupyterLab.

Run ``python benchmarks/live_renderers.py``. It starts a Jupyter server of its own on 127.0.0.1,
opens one notebook per case in headless Chromium ($GPUMAGIC_CHROMIUM, or one on the PATH), and
draws a synthetic 10 Hz recording at 4 updates a second while the cell sleeps. Needs jupyterlab,
ipykernel, ipywidgets, bqplot, playwright and psutil.

The notebook imports this same file: the upper half runs in the kernel, the lower half drives it.
"""

from __future__ import annotations

import argparse
import contextvars
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

COLUMNS, PITCH, SAMPLES_PER_COLUMN = 120, 4, 5
WIDTH = COLUMNS * PITCH
SAMPLE_HZ, UPDATE_HZ = 10, 4
HEADER = 18
GAP = range(52, 56)
THROTTLED = (96, 112)
CELLS = ((8, 18, "[12]"), (24, 78, "[13]"), (86, None, "[14] 22 s"))

BLUE, GREY, ORANGE = "#2f7fc1", "#8c8c8c", "#d9730d"
RGBA = {"outer": "rgba(47,127,193,0.42)", "middle": "rgba(47,127,193,0.68)", "inner": BLUE}
COLOUR = {name: f"var(--gm-{name}, {rgba})" for name, rgba in RGBA.items()} | {
    "line": GREY,
    "hair": "rgba(140,140,140,0.25)",
    "ceiling": "rgba(140,140,140,0.55)",
    "band": "rgba(140,140,140,0.8)",
    "limit": ORANGE,
}
STYLE = f"""<style>
.gm-live {{
  --gm-outer: color-mix(in srgb, {BLUE} 42%, var(--jp-layout-color0, white));
  --gm-middle: color-mix(in srgb, {BLUE} 68%, var(--jp-layout-color0, white));
}}
.gm-live .line-elem[stroke-width="{PITCH}"] {{ shape-rendering: crispEdges; }}
.gm-text {{ position: relative; font: 13px/18px var(--jp-ui-font-family, sans-serif);
  color: var(--jp-ui-font-color1, inherit); font-variant-numeric: tabular-nums; }}
.gm-text span {{ position: absolute; white-space: nowrap; }}
.gm-text i {{ font-style: normal; font-size: 12px; color: var(--jp-ui-font-color2, inherit); }}
</style>"""


# --- the scene: what every renderer draws -------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Place one metric's series on the pixel grid."""

    label: str
    series: tuple[tuple[str, int], ...]
    top: int
    height: int
    full: float

    @property
    def base(self) -> int:
        """Return the y of zero."""
        return self.top + self.height


class Scene:
    """Lay out the rows and hold 120 columns of each series, as ratios of the row's ceiling."""

    def __init__(self, gpus: int) -> None:
        self.gpus, self.rows, y = gpus, [], HEADER + 6
        for gpu in range(gpus):
            first = 7 * gpu
            for label, names, height, gap, full in (
                ("utilization <i>%</i>", ("outer", "inner"), 24, 6, 100),
                ("memory <i>of 139.8 GiB</i>", ("outer", "middle", "inner"), 24, 6, 139.8),
                ("power <i>cap 700 W</i>", ("line",), 18, 6, 700),
                ("temp <i>slows at 87 °C</i>", ("line",), 18, 12, 87),
            ):
                series = tuple((name, first + i) for i, name in enumerate(names))
                self.rows.append(Row(label, series, y, height, full))
                first, y = first + len(names), y + height + gap
        first = 7 * gpus
        host = (("outer", first), ("inner", first + 1))
        self.rows.append(Row("CPU <i>of 8 cores</i>", host, y, 18, 8))
        self.rows.append(Row("RAM <i>of 64 GiB</i>", (("line", first + 2),), y + 24, 18, 64))
        self.height = y + 24 + 18 + 4
        self.values = np.full((7 * gpus + 3, COLUMNS), np.nan, np.float32)
        self.start = -COLUMNS
        self._random = np.random.default_rng(0)
        self._samples: list[np.ndarray] = []
        for _ in range(COLUMNS * SAMPLES_PER_COLUMN):
            self.push()

    def push(self) -> None:
        """Add one sample of every series, and a column whenever the last one is full."""
        if len(self._samples) % SAMPLES_PER_COLUMN == 0:
            self._samples.clear()
            self.values[:, :-1] = self.values[:, 1:]
            self.start += 1
        column = self.start + COLUMNS - 1
        busy = 0.0
        for begin, end, _ in CELLS:
            if begin <= column and (end is None or column < end):
                busy = {8: 0.12, 24: 0.6, 86: 0.95}[begin]
        noise = self._random.random(len(self.values), np.float32)
        util = np.clip(busy + 0.5 * busy * (noise - 0.7), 0, 1)
        sample = util.copy()
        ramp = min(1.0, 0.25 + max(column, 0) / 300)
        for gpu in range(self.gpus):
            at = 7 * gpu
            sample[at + 1] = util[at] * (0.65 + 0.2 * noise[at + 1])
            sample[at + 2 : at + 5] = ramp * np.array([0.8, 0.7, 0.5], np.float32)
            sample[at + 2 : at + 5] += 0.01 * noise[at + 2]
            sample[at + 5] = 0.15 + 0.82 * util[at + 5]
            sample[at + 6] = 0.4 + 0.4 * busy + 0.02 * noise[at + 6]
        sample[-3], sample[-2] = 0.6 * util[-3], 0.45 * util[-3]
        sample[-1] = 0.5 + 0.2 * busy
        if column in GAP:
            sample[:] = np.nan
        self._samples.append(sample)
        self.values[:, -1] = np.mean(self._samples, axis=0)

    def heights(self, row: Row, index: int) -> np.ndarray:
        """Return a series as pixels above the row's base; NaN where nothing was measured."""
        return self.values[index] * np.float32(row.height)

    def x(self, column: int) -> int:
        """Return the left edge of an absolute column, held inside the plot."""
        return min(max(column - self.start, 0), COLUMNS) * PITCH

    def cells(self) -> list[tuple[int, int, str]]:
        """Return each cell's left and right edge and its name."""
        return [(self.x(a), WIDTH if b is None else self.x(b), name) for a, b, name in CELLS]

    def limits(self) -> list[tuple[int, int, int]]:
        """Return the throttled stretches as left edge, right edge and y."""
        left, right = self.x(THROTTLED[0]), self.x(THROTTLED[1])
        return [(left, right, row.top) for row in self.rows if row.full == 700]

    def labels_html(self) -> str:
        """Return the labels left of the plot."""
        out = [f'{STYLE}<div class="gm-text" style="height:{self.height}px">']
        for number, row in enumerate(self.rows):
            name = ""
            if number == 4 * self.gpus:
                name = "Host"
            elif number % 4 == 0:
                name = f"GPU {number // 4}"
            y = row.top + row.height / 2 - 9
            out.append(f'<span style="left:0;top:{y:g}px"><b>{name}</b></span>')
            out.append(f'<span style="right:12px;top:{y:g}px">{row.label}</span>')
        return "".join(out) + "</div>"

    def header_html(self) -> str:
        """Return the names above the cells' bands."""
        spans = "".join(
            f'<span style="left:{left}px;top:0;max-width:{right - left}px;overflow:hidden">'
            f"<i>{name}</i></span>"
            for left, right, name in self.cells()
            if right > left
        )
        return f'<div class="gm-text" style="height:{HEADER}px;width:{WIDTH}px">{spans}</div>'

    def values_html(self) -> str:
        """Return the figures right of the plot."""
        out = [f'<div class="gm-text" style="height:{self.height}px">']
        for row in self.rows:
            y = row.top + row.height / 2 - 9
            now = [self.values[index, -1] * row.full for _, index in row.series]
            digits = 0 if row.full in (100, 700, 87) else 1
            text = ["n/a" if np.isnan(value) else f"{value:.{digits}f}" for value in now]
            out.append(f'<span style="right:150px;top:{y:g}px">{text[0]}</span>')
            for place, part in enumerate(text[1:]):
                out.append(f'<span style="right:{90 - 60 * place}px;top:{y:g}px">{part}</span>')
        return "".join(out) + "</div>"


# --- the renderers ------------------------------------------------------------------------------

LINE, LIMIT_SLOTS, EDGE_SLOTS = 1.5, 2, 8
STEPS = 16  # y travels as uint16 in sixteenths of a pixel: half the bytes of float32


def polyline(y: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and segment widths of one line; a segment that touches a gap has no width."""
    gap = np.isnan(y)
    widths = np.zeros(len(y), np.float32)
    widths[:-1][~(gap[:-1] | gap[1:])] = width
    x = (np.arange(len(y), dtype=np.float32) + 0.5) * PITCH
    return x, np.where(gap, 0, y).astype(np.float32), widths


def columns(base: float, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and segment widths of filled columns: up, then back without width."""
    x = np.repeat((np.arange(len(heights), dtype=np.float32) + 0.5) * PITCH, 2)
    y = np.full(2 * len(heights), base, np.float32)
    y[1::2] += np.nan_to_num(heights)
    widths = np.tile(np.array([PITCH, 0], np.float32), len(heights))
    return x, y, widths


def segments(pieces: list[tuple], slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return separate straight pieces (x1, y1, x2, y2, width), padded to a constant count."""
    pieces = (pieces + [(0, 0, 0, 0, 0)] * slots)[:slots]
    table = np.array(pieces, np.float32)
    x, y = table[:, [0, 2]].ravel(), table[:, [1, 3]].ravel()
    widths = np.zeros(2 * slots, np.float32)
    widths[::2] = table[:, 4]
    return x, y, widths


class BqplotView:
    """Draw the whole plot in one Figure with a FlexLine per colour."""

    def __init__(self, scene: Scene, filled: bool, merged: bool = True) -> None:
        import bqplot
        import ipywidgets as w

        self.scene, self.filled, self.merged = scene, filled, merged
        fixed = {"allow_padding": False}
        self.scales = {
            "x": bqplot.LinearScale(min=0, max=WIDTH, **fixed),
            "y": bqplot.LinearScale(min=0, max=STEPS * scene.height, **fixed),
            # FlexLine's width range is [0.5, stroke_width]: this domain makes width mean pixels.
            "width": bqplot.LinearScale(min=0.5, max=1.5, **fixed),
        }
        self.marks = {}
        for key, (colour, x, y, width) in self._marks().items():
            self.marks[key] = bqplot.FlexLine(
                x=x, y=y, width=width, colors=[COLOUR[colour]], stroke_width=1.5,
                scales=self.scales,
            )
        self.figure = bqplot.Figure(
            marks=list(self.marks.values()),
            scale_x=self.scales["x"],
            scale_y=self.scales["y"],
            fig_margin={"top": 0, "bottom": 0, "left": 0, "right": 0},
            padding_x=0,
            padding_y=0,
            background_style={"fill": "transparent"},
            display_toolbar=False,
            animation_duration=0,
            layout=fixed_layout(WIDTH, scene.height),
        )
        self.labels = w.HTML(scene.labels_html(), layout=fixed_layout(230, scene.height))
        self.header = w.HTML(scene.header_html(), layout=fixed_layout(WIDTH, HEADER))
        self.values = w.HTML(scene.values_html(), layout=fixed_layout(210, scene.height))
        self.header.layout.margin = f"0 0 -{HEADER}px 0"
        middle = w.VBox([self.header, self.figure], layout=fixed_layout(WIDTH, scene.height))
        self.root = w.HBox([self.labels, middle, self.values])
        self.root.add_class("gm-live")

    def update(self) -> None:
        """Send what changed."""
        for key, (_, x, y, width) in self._marks().items():
            mark = self.marks[key]
            with mark.hold_sync():
                for name, value in (("x", x), ("y", y), ("width", width)):
                    if not np.array_equal(getattr(mark, name), value):
                        setattr(mark, name, value)
        self.header.value = self.scene.header_html()
        self.values.value = self.scene.values_html()

    def _marks(self) -> dict:
        """Return each mark's colour, x, y and width, in drawing order."""
        scene = self.scene
        top = scene.height
        edges = [edge for left, right, _ in scene.cells() for edge in (left, right)]
        edges = [edge for edge in edges if 0 < edge < WIDTH]
        hair = [(e + 0.5, 0, e + 0.5, top - HEADER, 1) for e in edges]
        ceiling = [(0, top - r.top + 0.5, WIDTH, top - r.top + 0.5, 1) for r in scene.rows]
        band = [(a, top - HEADER, b, top - HEADER, 5) for a, b, _ in scene.cells()]
        limit = [(a, top - y, b, top - y, 4) for a, b, y in scene.limits()]
        marks = {
            "hair": ("hair", *segments(hair, EDGE_SLOTS)),
            "ceiling": ("ceiling", *segments(ceiling, len(ceiling))),
            "band": ("band", *segments(band, EDGE_SLOTS)),
        }
        parts: dict = {}
        for colour in ("outer", "middle", "inner", "line"):
            for row in scene.rows:
                base = top - row.base
                for name, index in row.series:
                    if name != colour:
                        continue
                    heights = scene.heights(row, index)
                    if self.filled and colour != "line":
                        part = columns(base, heights)
                    else:
                        part = polyline(base + heights, LINE)
                    key = colour if self.merged else f"{colour}{index}"
                    parts.setdefault(key, (colour, []))[1].append(part)
        for key, (colour, pieces) in parts.items():
            marks[key] = (colour, *(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))
        marks["limit"] = ("limit", *segments(limit, LIMIT_SLOTS * scene.gpus))
        return {
            key: (colour, x, np.rint(STEPS * y).astype(np.uint16), width)
            for key, (colour, x, y, width) in marks.items()
        }


class SvgView:
    """Draw everything as one HTML widget with inline SVG."""

    def __init__(self, scene: Scene) -> None:
        import ipywidgets as w

        self.scene = scene
        self.labels = w.HTML(scene.labels_html(), layout=fixed_layout(230, scene.height))
        self.plot = w.HTML(self._plot(), layout=fixed_layout(WIDTH + 210, scene.height))
        self.root = w.HBox([self.labels, self.plot])
        self.root.add_class("gm-live")

    def update(self) -> None:
        """Send the whole picture."""
        self.plot.value = self._plot()

    def _plot(self) -> str:
        scene = self.scene
        lines: dict[str, list[str]] = {name: [] for name in ("hair", "ceiling", "band", "limit")}
        for left, right, _ in scene.cells():
            lines["band"].append(f"M{left} {HEADER}H{right}")
            lines["hair"] += [
                f"M{e + 0.5:g} {HEADER}V{scene.height}" for e in (left, right) if 0 < e < WIDTH
            ]
        lines["ceiling"] = [f"M0 {row.top - 0.5:g}H{WIDTH}" for row in scene.rows]
        lines["limit"] = [f"M{a} {y}H{b}" for a, b, y in scene.limits()]
        fills: dict[str, list[str]] = {name: [] for name in ("outer", "middle", "inner")}
        lines["line"] = []
        for row in scene.rows:
            for name, index in row.series:
                heights = scene.heights(row, index)
                if name == "line":
                    lines["line"] += svg_runs(row.base, heights, close=False)
                else:
                    fills[name] += svg_runs(row.base, heights, close=True)
        out = [
            f'<div style="position:relative;width:{WIDTH + 210}px;height:{scene.height}px">'
            f'<svg width="{WIDTH}" height="{scene.height}" fill="none" stroke="none" '
            'style="position:absolute;left:0;top:0">'
        ]
        for name, width in (("hair", 1), ("ceiling", 1), ("band", 5)):
            out.append(svg_path(lines[name], f'stroke="{COLOUR[name]}" stroke-width="{width}"'))
        for name, paths in fills.items():
            out.append(svg_path(paths, f'fill="{COLOUR[name]}"'))
        for name, width in (("line", LINE), ("limit", 4)):
            out.append(svg_path(lines[name], f'stroke="{COLOUR[name]}" stroke-width="{width}"'))
        out.append(f'</svg><div style="position:absolute">{scene.header_html()}</div>')
        out.append(f'<div style="position:absolute;left:{WIDTH}px;width:210px">')
        return "".join(out) + scene.values_html() + "</div></div>"


class StillView(SvgView):
    """Draw once and send nothing more: what JupyterLab itself costs."""

    def update(self) -> None:
        """Send nothing."""


def svg_path(paths: list[str], attributes: str) -> str:
    """Return one path element of many pieces."""
    return f'<path d="{"".join(paths)}" {attributes}/>'


def svg_runs(base: int, heights: np.ndarray, close: bool) -> list[str]:
    """Return a path piece per run without a gap; a closed one goes down to the base."""
    runs, run = [], []
    for column, height in enumerate([*heights.tolist(), float("nan")]):
        if height == height:
            run.append((column * PITCH + PITCH // 2, round(base - height, 1)))
        elif run:
            points = "L".join(f"{x} {y:g}" for x, y in run)
            if close:
                points = f"{run[0][0]} {base}L{points}L{run[-1][0]} {base}Z"
            runs.append("M" + points)
            run = []
    return runs


class RowFiguresView(BqplotView):
    """Draw each row in a Figure of its own, a FlexLine per series, the same text beside."""

    def __init__(self, scene: Scene) -> None:
        import bqplot
        import ipywidgets as w

        super().__init__(scene, filled=True, merged=False)
        figures = []
        top = scene.height
        for number, row in enumerate(scene.rows):
            low = top - scene.rows[number + 1].top if number + 1 < len(scene.rows) else 0
            high = top - row.top if number else top
            scales = dict(self.scales)
            scales["y"] = bqplot.LinearScale(
                min=STEPS * low, max=STEPS * high, allow_padding=False
            )
            marks = [self.marks[f"{name}{index}"] for name, index in row.series]
            if number == 0:
                marks = [self.marks["band"], *marks]
            for mark in marks:
                mark.scales = scales
            figures.append(
                bqplot.Figure(
                    marks=marks, scale_x=scales["x"], scale_y=scales["y"],
                    fig_margin=self.figure.fig_margin, padding_x=0, padding_y=0,
                    background_style={"fill": "transparent"}, display_toolbar=False,
                    layout=fixed_layout(WIDTH, high - low),
                )
            )
        column = w.VBox([self.header, *figures], layout=fixed_layout(WIDTH, scene.height))
        self.root.children = (self.labels, column, self.values)


def fixed_layout(width: int, height: int) -> dict:
    """Return a layout of exactly that size, without margins or scrollbars."""
    return {
        "width": f"{width}px", "height": f"{height}px", "min_width": f"{width}px",
        "min_height": f"{height}px", "margin": "0", "padding": "0", "overflow": "visible",
        "flex": "0 0 auto",
    }


RENDERERS = {
    "bqplot columns": lambda scene: BqplotView(scene, filled=True),
    "bqplot lines": lambda scene: BqplotView(scene, filled=False),
    "HTML SVG": SvgView,
    "bqplot columns, a mark per series": lambda scene: BqplotView(scene, True, merged=False),
    "bqplot columns, a figure per row": RowFiguresView,
    "no updates": StillView,
}


def show(renderer: str, gpus: int):
    """Return the view, displayed by the cell that calls it."""
    from IPython.display import display

    before = len(_models())
    view = RENDERERS[renderer](Scene(gpus))
    view.models = len(_models()) - before
    display(view.root)
    return view


def _models() -> dict:
    from ipywidgets.widgets import widget

    return widget._instances


def drive(view, seconds: float, out: str) -> None:
    """Update the view from a thread while this thread sleeps, then write the kernel's figures."""
    costs: list[float] = []
    walls: list[float] = []

    def work() -> None:
        begin, pushed = time.monotonic(), 0
        for tick in range(int(seconds * UPDATE_HZ)):
            time.sleep(max(0.0, begin + tick / UPDATE_HZ - time.monotonic()))
            while pushed < (time.monotonic() - begin) * SAMPLE_HZ:
                view.scene.push()
                pushed += 1
            cpu, wall = time.thread_time(), time.monotonic()
            view.update()
            costs.append(time.thread_time() - cpu)
            walls.append(time.monotonic() - wall)

    thread = threading.Thread(target=lambda: contextvars.Context().run(work), name="live")
    cpu = time.process_time()
    thread.start()
    time.sleep(seconds)
    thread.join()
    process_ms = 1e3 * (time.process_time() - cpu) / len(costs)
    result = {
        "models": view.models,
        "updates": len(costs),
        "kernel_thread_ms": round(1e3 * float(np.mean(costs)), 2),
        "kernel_process_ms": round(process_ms, 2),
        "update_wall_p95_ms": round(1e3 * float(np.percentile(walls, 95)), 1),
    }
    Path(out).write_text(json.dumps(result))


# --- the browser's side -------------------------------------------------------------------------

CASES = [
    (name, gpus) for name in ("bqplot columns", "bqplot lines", "HTML SVG") for gpus in (1, 2, 8)
] + [("bqplot columns, a mark per series", 2), ("bqplot columns, a figure per row", 2)]
CASES.append(("no updates", 2))
CHROMIUM_ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]
WARM_UP = 3


def find_chromium() -> str:
    """Return the browser to use, or exit saying how to name one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("GPUMAGIC_CHROMIUM") or next(filter(None, map(shutil.which, names)), "")
    if not found:
        sys.exit("No Chromium found: install one or set GPUMAGIC_CHROMIUM to its path.")
    return found


class Server:
    """Own one Jupyter server: its folders, its token, its process."""

    def __init__(self, root: Path, theme: str) -> None:
        self.root, self.token = root, secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        env = dict(os.environ)
        for name in (
            "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
            "JUPYTERLAB_WORKSPACES_DIR", "JUPYTERLAB_SETTINGS_DIR",
        ):
            env[name] = str(root / name.lower())
        settings = Path(env["JUPYTERLAB_SETTINGS_DIR"]) / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
        (root / "notebooks").mkdir()
        with (root / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
                    "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.port}",
                    f"--IdentityProvider.token={self.token}",
                    f"--ServerApp.root_dir={root / 'notebooks'}",
                ],
                env=env, stdout=log, stderr=log,
            )
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api", timeout=1).close()
                return
            except OSError:
                time.sleep(0.5)
        self.close()
        raise RuntimeError(f"The Jupyter server did not start; see {root / 'server.log'}.")

    def url(self, notebook: str) -> str:
        """Return the address of a notebook in a workspace of its own."""
        name = notebook.removesuffix(".ipynb")
        address = f"http://127.0.0.1:{self.port}/lab/workspaces/{name}/tree/{notebook}"
        return f"{address}?token={self.token}"

    def end_kernels(self) -> None:
        """End the kernels of the case before the next one."""
        headers = {"Authorization": f"token {self.token}"}
        base = f"http://127.0.0.1:{self.port}/api/kernels"
        with urllib.request.urlopen(urllib.request.Request(base, headers=headers)) as reply:
            kernels = json.load(reply)
        for kernel in kernels:
            request = urllib.request.Request(
                f"{base}/{kernel['id']}", headers=headers, method="DELETE")
            urllib.request.urlopen(request).close()

    def close(self) -> None:
        """End the server and its kernels."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def write_notebook(path: Path, cells: list[str]) -> None:
    """Write a notebook of these code cells."""
    blank = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {
        "nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel},
        "cells": [blank | {"id": f"c{i}", "source": text} for i, text in enumerate(cells)],
    }
    path.write_text(json.dumps(book))


def browser_cpu(pid: int) -> float:
    """Return the CPU seconds of the browser's processes, drawing included."""
    import psutil

    total = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def machine_cpu() -> tuple[float, float]:
    """Return the busy and the stolen CPU seconds of the whole machine since it started."""
    import psutil

    times = psutil.cpu_times()
    steal = getattr(times, "steal", 0.0)
    busy = sum(times[:]) - times.idle - getattr(times, "iowait", 0.0) - steal
    return busy, steal


def browser_pid() -> int:
    """Return the pid of the Chromium that this process's Playwright started."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        line = process.cmdline()
        if "--headless" in " ".join(line) and "--type=" not in " ".join(line):
            return process.pid
    raise RuntimeError("Playwright's browser was not found among this process's children.")


def metrics(devtools) -> dict[str, float]:
    """Collect garbage, then read Chromium's own counters of the page."""
    devtools.send("HeapProfiler.collectGarbage")
    table = devtools.send("Performance.getMetrics")["metrics"]
    return {row["name"]: row["value"] for row in table}


def run_case(context, server: Server, case: tuple[str, int], args) -> dict:
    """Open a fresh notebook, draw, and measure while its cell sleeps."""
    renderer, gpus = case
    slug = f"{renderer.replace(',', '').replace(' ', '-')}-{gpus}gpu".lower()
    out = server.root / f"{slug}.json"
    begin = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})\n"
        f"import live_renderers as bench\nview = bench.show({renderer!r}, {gpus})"
    )
    blocking = f"bench.drive(view, {args.seconds + WARM_UP + 4}, {str(out)!r})"
    write_notebook(server.root / "notebooks" / f"{slug}.ipynb", [begin, blocking])
    page = context.new_page()
    received = [0, 0]

    def count(payload) -> None:
        received[0] += len(payload if isinstance(payload, bytes) else payload.encode())
        received[1] += 1

    page.on("websocket", lambda ws: ws.on("framereceived", count))
    try:
        page.goto(server.url(f"{slug}.ipynb"))
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
        page.wait_for_timeout(4000)
        page.locator(".jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Shift+Enter")
        mark = ".bqplot .line-elem" if "bqplot" in renderer else ".gm-live svg path"
        page.wait_for_selector(mark, state="attached", timeout=60_000)
        page.wait_for_timeout(1000)
        page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(1000 * WARM_UP)
        devtools = context.new_cdp_session(page)
        devtools.send("Performance.enable")
        pid = browser_pid()
        first, bytes0, frames0 = metrics(devtools), *received
        cpu0, machine0, wall0 = browser_cpu(pid), machine_cpu(), time.monotonic()
        page.wait_for_timeout(1000 * args.seconds)
        cpu1, machine1, wall1 = browser_cpu(pid), machine_cpu(), time.monotonic()
        bytes1, frames1 = received
        last = metrics(devtools)
        if args.shots:
            shot = Path(args.shots) / f"{slug}-{args.theme}.png"
            page.screenshot(path=str(shot))
        lines = page.locator(".gm-live .line-elem, .gm-live svg path").count()
        page.wait_for_timeout(500)
        for _ in range(60):
            if out.exists() and out.stat().st_size:
                break
            page.wait_for_timeout(500)
        wall = wall1 - wall0
        span = last["Timestamp"] - first["Timestamp"]
        return {
            "renderer": renderer,
            "gpus": gpus,
            "bytes_per_s": round((bytes1 - bytes0) / wall),
            "frames_per_s": round((frames1 - frames0) / wall, 1),
            "page_main_thread_share": round(
                (last["TaskDuration"] - first["TaskDuration"]) / span, 3),
            "browser_cores": round((cpu1 - cpu0) / wall, 3),
            "machine_busy_cores": round((machine1[0] - machine0[0]) / wall, 3),
            "machine_stolen_cores": round((machine1[1] - machine0[1]) / wall, 3),
            "heap_growth_bytes_per_s": round(
                (last["JSHeapUsedSize"] - first["JSHeapUsedSize"]) / span),
            "svg_elements": lines,
            "measured_s": round(wall, 1),
        } | json.loads(out.read_text())
    finally:
        page.close()
        server.end_kernels()


def environment(browser_version: str) -> dict:
    """Return what the figures depend on."""
    packages = ("jupyterlab", "ipykernel", "ipywidgets", "bqplot", "bqscales", "numpy")
    return {
        "python": platform.python_version(),
        "chromium": browser_version,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "packages": {name: version(name) for name in packages},
        "columns": COLUMNS,
        "updates_per_s": UPDATE_HZ,
        "samples_per_s": SAMPLE_HZ,
    }


def main() -> None:
    """Run every case and write the results."""
    parser = argparse.ArgumentParser(description="Compare ways to draw the live view.")
    here = Path(__file__).resolve().parent
    parser.add_argument("--seconds", type=int, default=15, help="measured seconds per case")
    parser.add_argument("--out", default=str(here / "results" / "live_renderers.json"))
    parser.add_argument("--only", default="", help="run only cases whose name contains this")
    parser.add_argument("--gpus", type=int, default=0, help="run only cases with this many GPUs")
    parser.add_argument("--shots", help="folder for a screenshot of each case")
    parser.add_argument("--scale", type=float, default=1, help="device pixels per CSS pixel")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    if args.shots:
        Path(args.shots).mkdir(parents=True, exist_ok=True)
    cases = [c for c in CASES if args.only in c[0] and args.gpus in (0, c[1])]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), f"JupyterLab {args.theme.title()}")
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=find_chromium(), args=CHROMIUM_ARGS)
                about = environment(browser.version)
                for case in cases:
                    context = browser.new_context(
                        viewport={"width": 1400, "height": 1500},
                        device_scale_factor=args.scale)
                    results.append(run_case(context, server, case, args))
                    context.close()
                    print(json.dumps(results[-1]), flush=True)
                browser.close()
        finally:
            server.close()
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"environment": about, "cases": results}, indent=2)
    Path(args.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
