"""What the notebooks of ``live_view.py`` run in their kernels."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

_LOOK_S = 0.25


def models() -> int:
    """Return how many widget models the kernel keeps."""
    module = sys.modules.get("ipywidgets.widgets.widget")
    return len(module._instances) if module is not None else 0


def state() -> dict[str, Any]:
    """Return what the kernel knows about itself and about gpumagic's session, if there is one."""
    found: dict[str, Any] = {
        "time": time.perf_counter(), "cpu_s": time.process_time(), "models": models(),
        "pid": os.getpid(),
    }
    module = sys.modules.get("gpumagic.session")
    if module is not None:
        session = module.current()
        found["watching_s"] = session.watch_cpu_s
        drawn = re.search(r"(\d+) updates", session.watch.describe()) if session.watch else None
        found["ticks"] = int(drawn[1]) if drawn else 0
    return found


def busy(kind: str, out: str, end: str) -> None:
    """Sleep, or compute, until a file is there; write what the kernel knows, again and again.

    ``speed`` is how much was computed for each processor second of the kernel.
    """
    work, before = 0, time.process_time()
    while not Path(end).exists():
        used = time.process_time() - before
        unfinished = Path(out + ".new")
        unfinished.write_text(json.dumps({**state(), "speed": work / used if used else 0.0}))
        unfinished.replace(out)
        deadline = time.perf_counter() + _LOOK_S
        if kind == "sleep":
            time.sleep(_LOOK_S)
        while time.perf_counter() < deadline:
            sum(x * x for x in range(10_000))
            work += 1


# -- a day -----------------------------------------------------------------------------------

DAY_S = 86_400.0
_CELL_S = 300.0


def day(
    renderer: str, gpus: int, window: float | str, updates: int, points: int, per_s: float,
    out: str,
) -> None:
    """Let a day of readings pass and show it; wait at each of some points until it is looked at.

    The readings go into a real session's recording, and the refresher's thread draws them by a
    real watch: only the clock is not real. ``out`` gets what the kernel holds, with the number
    of the point; it goes on when the file ``out.N`` is there.
    """
    from IPython.display import display
    from watching import Played

    from gpumagic.views import live
    from gpumagic.views.refresher import Refresher
    from gpumagic.watch import Watch, WatchOptions

    played = Played(gpus, 60.0)
    window_s = math.inf if window == "all" else float(window)
    watch = Watch(played.session, WatchOptions(gpus=("all",), window_s=window_s))
    view = live.make_view(watch.scene(), renderer, live.extras_of(watch))
    display(view.bundle(), raw=True)
    begun, step, each = played.now, DAY_S / updates, updates // points
    cells: list[Any] = []
    drawn, looked = 0, -1

    def write(point: int) -> None:
        unfinished = Path(out + ".new")
        unfinished.write_text(json.dumps({
            **state(), "point": point, "passed_s": played.now - begun, "rss_bytes": rss_bytes(),
            "objects": objects(), "cells": len(cells),
        }))
        unfinished.replace(out)

    def tick() -> None:
        nonlocal drawn, looked
        point, rest = divmod(drawn, each)
        # A tick that waited would be followed by a pause of the same length.
        if rest == 0 and looked < point:
            write(point)
            looked = point
        if not Path(f"{out}.{looked}").exists() or drawn == updates:
            return
        if played.now - begun >= _CELL_S * len(cells):
            if cells:
                played.recording.end_span(cells[-1], played.now)
            cells.append(played.recording.begin_span(played.now, number=len(cells) + 6).id)
        played.play(step)
        view.update(watch.scene())
        drawn += 1

    refresher = Refresher(tick, 1 / per_s)
    refresher.start()
    while refresher.running and not Path(f"{out}.{points}").exists():
        time.sleep(0.2)
    refresher.stop()
    view.close()
    watch.stop()
    if refresher.error is not None:
        raise refresher.error


def rss_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def objects() -> int:
    """Return how many objects the collector knows after a collection."""
    gc.collect()
    return len(gc.get_objects())
