"""A tab that is really hidden for an hour's worth of updates, and what it costs to come back."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from live_view_chromium import PATIENCE_S, Chromium, Machine, screen
from live_view_notebook import Notebook, jupyter, until

__all__ = ["UPDATES", "hidden"]

UPDATES = 14_400
"""An hour at four updates a second."""

_FASTEST = 20
_USUAL, _WINDOW_S = 4, 60.0
"""A faster view has a shorter window: as many updates for each column, and for each page."""

_SETTLE_S = 15.0
_BACK_S = 15.0

_WATCH = """
(() => {
  const seen = window.seen = {tasks: [], frames: [], moves: 0};
  new PerformanceObserver(list => {
    for (const task of list.getEntries())
      seen.tasks.push([performance.timeOrigin + task.startTime, task.duration]);
  }).observe({entryTypes: ['longtask']});
  const frame = () => {
    seen.frames.push(Date.now());
    if (seen.frames.length < 100000) requestAnimationFrame(frame);
  };
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState !== 'visible') return;
    requestAnimationFrame(frame);
    // Not before: bqplot sets so many attributes that an observer doubles what the page costs.
    setTimeout(() => new MutationObserver(() => { seen.moves += 1; }).observe(
      panel.content.widgets[1].outputArea.node,
      {attributes: true, childList: true, characterData: true, subtree: true}), 5000);
  });
})()
"""


def hidden(
    directory: Path, *, renderer: str, gpus: int, updates: int = UPDATES, rate: float = _FASTEST
) -> dict[str, Any]:
    """Hide a tab with a live view for so many updates, show it again, and measure the return.

    The longest stall is the longest of: from the request to show the tab to its first frame, a
    task of the main thread after it, and a pause between two frames.
    """
    out, end = directory / f"hidden-{time.time_ns()}.json", directory / f"end-{time.time_ns()}"
    cells = [
        f"%load_ext gpumagic\n%config GpuMagic.updates_per_s = {rate:g}",
        f"%gpuwatch --renderer {renderer} -w {_WINDOW_S * _USUAL / rate:g}s",
        f"import live_view_kernel; live_view_kernel.busy('sleep', {str(out)!r}, {str(end)!r})",
    ]
    with screen() as display, jupyter(directory, gpus) as server:
        chromium = Chromium(directory, display)
        try:
            notebook = Notebook(server, chromium, cells)
            page = notebook.page
            notebook.run(0)
            notebook.run(1)
            notebook.start(2)
            until(lambda: notebook.ended(2) or out.exists(), "the cell runs", PATIENCE_S)
            time.sleep(_SETTLE_S)
            page.value(_WATCH)
            before, rss = page.memory(), chromium.rss_bytes()
            first = json.loads(out.read_text())["ticks"]
            chromium.open("about:blank").close()
            until(lambda: page.value("document.visibilityState") == "hidden", "it is hidden")
            machine, begun = Machine(), time.monotonic()
            while (ticks := json.loads(out.read_text())["ticks"] - first) < updates:
                time.sleep(1)
            hidden_s = time.monotonic() - begun
            state = page.value("document.visibilityState")
            asked = time.time() * 1e3
            chromium.front(page)
            time.sleep(_BACK_S)
            seen = page.value("({...seen, now: Date.now(), frames: seen.frames.slice(0, 5000)})")
            after = page.memory()
            shown = page.value("document.visibilityState")
            load = machine.since()
            rss_after = chromium.rss_bytes()
            end.touch()
            until(lambda: notebook.ended(2), "the cell ends", PATIENCE_S)
        finally:
            chromium.stop()
    frames = [asked, *seen["frames"]]
    pauses = [frames[i + 1] - frames[i] for i in range(len(frames) - 1)]
    tasks = [length for start, length in seen["tasks"] if start >= asked - 50]
    return {
        "renderer": renderer, "gpus": gpus, "updates": ticks, "hidden_s": round(hidden_s, 1),
        "updates_per_s": round(ticks / hidden_s, 2), "visibility": [state, shown],
        "moves_after_return": seen["moves"],
        "first_frame_s": round(pauses[0] / 1e3, 3) if pauses else None,
        "longest_pause_s": round(max(pauses[1:], default=0.0) / 1e3, 3),
        "longest_task_s": round(max(tasks, default=0.0) / 1e3, 3),
        "longest_stall_s": round(max([*pauses, *tasks], default=float("nan")) / 1e3, 3),
        "longest_task_while_hidden_s": round(
            max((t for s, t in seen["tasks"] if s < asked - 50), default=0.0) / 1e3, 3),
        "heap_growth_bytes": after["heap_bytes"] - before["heap_bytes"],
        "heap_bytes": [before["heap_bytes"], after["heap_bytes"]],
        "nodes": [before["nodes"], after["nodes"]],
        "chromium_rss_bytes": [rss, rss_after],
        **load,
    }
