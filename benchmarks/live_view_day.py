"""A day of readings in minutes: whether kernel and page stay as large as they are."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from live_view_chromium import PATIENCE_S, Chromium, Machine
from live_view_notebook import Notebook, jupyter, until

__all__ = ["day"]

_POINTS = 20
_PER_S = 25.0
_SETTLE_S = 2.0
_POINT_S = 900.0


def grown(points: list[dict[str, Any]], key: str) -> dict[str, float]:
    """Say how a figure grows over the second half of the day, and how far it varies."""
    half = [point[key] for point in points[len(points) // 2 :]]
    # Quarters and not points: one reading of memory says little.
    part = max(1, len(half) // 4)
    first, last = (sum(some) / part for some in (half[:part], half[-part:]))
    return {
        "half_day": half[0], "day": half[-1], "growth": round(last - first),
        "range": max(half) - min(half),
    }


def day(
    directory: Path, *, renderer: str, gpus: int, window: float | str, updates: int
) -> dict[str, Any]:
    """Let a day of ten readings a second pass in a notebook; see how large all is.

    ``window`` is what is shown of it: seconds, or ``"all"``.
    """
    out = directory / f"day-{time.time_ns()}.json"
    cell = (
        "import live_view_kernel\n"
        f"live_view_kernel.day({renderer!r}, {gpus}, {window!r}, {updates}, {_POINTS},"
        f" {_PER_S!r}, {str(out)!r})"
    )
    points: list[dict[str, Any]] = []
    machine, begun = Machine(), time.monotonic()
    with jupyter(directory, gpus) as server:
        chromium = Chromium(directory)
        try:
            notebook = Notebook(server, chromium, [cell])
            notebook.page.value("app.shell.collapseLeft(), 0")
            notebook.start(0)
            for number in range(_POINTS + 1):
                until(partial(_reached, notebook, out, number), f"point {number}", _POINT_S)
                time.sleep(_SETTLE_S)  # what is on its way to the page arrives
                point = json.loads(out.read_text())
                points.append({
                    **point, **notebook.page.memory(), "chromium_rss_bytes": chromium.rss_bytes(),
                })
                Path(f"{out}.{number}").touch()
            until(lambda: notebook.ended(0), "the day ends", PATIENCE_S)
        finally:
            chromium.stop()
    return {
        "renderer": renderer, "gpus": gpus, "window": window, "updates": updates,
        "wall_s": round(time.monotonic() - begun), **machine.since(),
        "kernel_rss_bytes": grown(points, "rss_bytes"),
        "kernel_objects": grown(points, "objects"),
        "page_heap_bytes": grown(points, "heap_bytes"),
        "page_nodes": grown(points, "nodes"),
        "chromium_rss_bytes": grown(points, "chromium_rss_bytes"),
        "models": [points[0]["models"], points[-1]["models"]],
        "kernel_cpu_s": round(points[-1]["cpu_s"] - points[0]["cpu_s"], 1),
        "points": points,
    }


def _reached(notebook: Notebook, out: Path, number: int) -> bool:
    if notebook.ended(0):
        raise RuntimeError("the day has ended early")
    time.sleep(0.2)
    return out.exists() and json.loads(out.read_text())["point"] == number
