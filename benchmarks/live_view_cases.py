"""The cases of ``live_view.py``: a view of some GPUs, beside a cell that sleeps or computes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from live_view_chromium import PATIENCE_S, Chromium, Machine, cpu_s
from live_view_notebook import Notebook, Server, jupyter, until
from live_view_peers import NVDASHBOARD_WIDGETS, Peers, open_nvdashboard, set_rate

__all__ = ["ACTIVITIES", "Case", "known", "run"]

ACTIVITIES = ("sleep", "compute")

_NOT_OBSERVED = "observers.forEach(observer => observer.disconnect())"

_FULL_S = 62.0
"""Until what is shown over time fills its window; nvdashboard is given the same time."""

_SETTLE_S = 4.0
_LISTEN_S = 8.0
_FASTEST_PER_S = 5.0
"""gpuwidget waits 0.2 s between two updates, and longer for each GPU that it reads."""

_DRAWN = """
(() => {
  const seen = window.drawn = [];
  const observers = window.observers = [];
  const kinds = {attributes: true, childList: true, characterData: true, subtree: true};
  for (const node of %s) {
    const times = [];
    seen.push(times);
    const observer = new MutationObserver(() => times.push(performance.now()));
    observer.observe(node, kinds);
    observers.push(observer);
  }
  return seen.length;
})()
"""


@dataclass(frozen=True)
class Case:
    """What is shown, of how many GPUs, how often."""

    tool: str
    gpus: int
    rate: float | None = None
    """Updates a second that are asked for; ``None`` where the tool has no setting."""

    @property
    def name(self) -> str:
        """Return what ``--cases`` is compared with."""
        rate = "" if self.rate is None else f", {self.rate:g}/s"
        return f"{self.tool}, {self.gpus} GPU{'s' * (self.gpus > 1)}{rate}"

    @property
    def peer(self) -> bool:
        """Whether it is another tool."""
        return self.tool in ("nvdashboard", "gpuwidget")

    def cells(self) -> tuple[str, str, str]:
        """Return the cells that prepare, show and stop it."""
        if self.tool.startswith("gpumagic"):
            renderer = self.tool.split()[1]
            return (
                f"%load_ext gpumagic\n%config GpuMagic.updates_per_s = {self.rate:g}",
                f"%gpuwatch --renderer {renderer}", "%gpuwatch stop",
            )
        if self.tool == "gpuwidget":
            find = "import gc; from gpuwidget.widgets import GPUStatsApp\n"
            stop = "for app in [o for o in gc.get_objects() if isinstance(o, GPUStatsApp)]:"
            return (
                "import gpuwidget", "gpuwidget.live()",
                find + stop + " app.stop_updating(app.stop_button)",
            )
        return "0", "0", "0"


def known(renderers: Sequence[str], *, peers: bool) -> list[Case]:
    """Return all cases, of which that of nothing is the first."""
    found = [Case("nothing", 1)]
    found += [Case(f"gpumagic {name}", gpus, 4) for name in renderers for gpus in (1, 2, 8)]
    found += [Case(f"gpumagic {name}", 8, 2) for name in renderers]
    if peers:
        # 10/s is what it does unless a setting says otherwise.
        found += [Case("nvdashboard", gpus, rate) for rate in (10, 4) for gpus in (1, 2, 8)]
        found += [Case("gpuwidget", gpus) for gpus in (1, 2, 8)]
    return found


def updates(times: list[float], rate: float) -> int:
    """Return how many updates some changes are, by their milliseconds.

    Changes closer than a third of the period that is asked for belong to one update.
    """
    pairs = zip([float("-inf"), *times], times, strict=False)
    return sum(now - before > 1000 / rate / 3 for before, now in pairs)


class Measured:
    """One open case: the notebook, and the processes behind it."""

    def __init__(self, case: Case, server: Server, chromium: Chromium, directory: Path) -> None:
        self.case = case
        self._chromium = chromium
        self._directory = directory
        self._outs = {
            kind: directory / f"{kind}-{uuid4().hex}.json" for kind in (*ACTIVITIES, "alone")
        }
        begin, show, stop = case.cells()
        busy = [
            f"import live_view_kernel\n"
            f"live_view_kernel.busy({kind!r}, {str(out)!r}, {str(out) + '.end'!r})"
            for kind, out in self._outs.items()
        ]
        look = "import json, live_view_kernel\nprint(json.dumps(live_view_kernel.state()))"
        self._notebook = Notebook(server, chromium, [begin, show, *busy, stop, look])
        self._alone = 0.0
        self._server = psutil.Process(server._process.pid)

    def show(self) -> None:
        """Show the view."""
        self._notebook.run(0)
        self._notebook.page.value("app.shell.collapseLeft(), 0")
        self._compute_alone()
        self._saved = self._notebook.saved_bytes()
        self._shown = time.monotonic()
        if self.case.tool == "nvdashboard":
            open_nvdashboard(self._notebook)
        else:
            self._notebook.run(1)

    def _compute_alone(self) -> None:
        """Find out how much a cell computes without a view, in the same process."""
        out = self._outs["alone"]
        self._notebook.start(4)
        until(out.exists, f"the first cell of {self.case.name} runs", PATIENCE_S)
        time.sleep(_LISTEN_S)
        Path(f"{out}.end").touch()
        until(lambda: self._notebook.ended(4), "the cell ends", PATIENCE_S)
        self._alone = json.loads(out.read_text())["speed"]

    def beside(self, kind: str, seconds: float) -> dict[str, Any]:
        """Measure beside a cell: first processor time, undisturbed, then what the page gets."""
        page, out = self._notebook.page, self._outs[kind]
        index = 2 + ACTIVITIES.index(kind)
        self._notebook.start(index)
        until(lambda: self._notebook.ended(index) or out.exists(),
              f"the cell of {self.case.name} runs", PATIENCE_S)
        over_time = self.case.tool not in ("nothing", "gpuwidget")
        full = self._shown + _FULL_S * over_time - time.monotonic()
        time.sleep(max(_SETTLE_S, full))
        first_memory = page.memory()
        time.sleep(0.5)
        kernel = psutil.Process(json.loads(out.read_text())["pid"])
        groups = {"browser": self._chromium.processes(), "kernel": [kernel],
                  "server": [self._server]}
        machine, first = Machine(), json.loads(out.read_text())
        begun, before = time.monotonic(), {name: cpu_s(ps) for name, ps in groups.items()}
        time.sleep(seconds)
        passed, after = time.monotonic() - begun, {n: cpu_s(ps) for n, ps in groups.items()}
        last, load = json.loads(out.read_text()), machine.since()
        cores = {
            f"{name}_cores": sum(after[name][pid] - used for pid, used in before[name].items()
                                 if pid in after[name]) / passed
            for name in groups
        }
        kernel_s = last["time"] - first["time"]
        found = {
            **{name: round(value, 4) for name, value in cores.items()}, **load,
            "work": round(last["speed"] / self._alone, 4) if kind == "compute" else None,
            "models": last["models"],
            **self._received(),
        }
        if "watching_s" in last:
            found["watching_says_cores"] = round(
                (last["watching_s"] - first["watching_s"]) / kernel_s, 4)
            found["ticks_per_s"] = round((last["ticks"] - first["ticks"]) / kernel_s, 2)
        memory = page.memory()
        found |= memory
        found["heap_growth_bytes"] = memory["heap_bytes"] - first_memory["heap_bytes"]
        Path(f"{out}.end").touch()
        until(lambda: self._notebook.ended(index), "the cell ends", PATIENCE_S)
        return found

    def _received(self) -> dict[str, float]:
        """Count what the page receives and how often each view of it changes."""
        page = self._notebook.page
        nodes = "[panel.content.widgets[1].outputArea.node]"
        if self.case.tool == "nvdashboard":
            names = json.dumps(list(NVDASHBOARD_WIDGETS))
            nodes = f"{names}.map(id => document.getElementById(id))"
        page.received.clear()
        page.value(_DRAWN % nodes)
        page.send("Network.enable")
        begun = time.monotonic()
        page.listen(_LISTEN_S)
        frames = page.value("drawn")
        # bqplot sets so many attributes that an observer doubles what the page costs.
        page.value(_NOT_OBSERVED)
        passed = time.monotonic() - begun
        rate = self.case.rate or _FASTEST_PER_S
        page.send("Network.disable")
        return {
            "bytes_per_s": round(sum(size for _, size in page.received) / passed),
            "messages_per_s": round(len(page.received) / passed, 1),
            "drawn_per_s": round(max(updates(times, rate) for times in frames) / passed, 2),
        }

    def stop(self) -> dict[str, Any]:
        """Stop the view; return what it leaves in the file and in the kernel."""
        notebook = self._notebook
        notebook.run(5)
        notebook.run(6)
        left = json.loads(notebook.text(6))["models"]
        # The cells' own numbers and times are in the file of a notebook without a view as well.
        return {"file_growth_bytes": notebook.saved_bytes() - self._saved, "models_left": left}


def run(directory: Path, case: Case, seconds: float, peers: Peers | None) -> dict[str, Any]:
    """Run one case in a server and a browser of its own."""
    found: dict[str, Any] = {"name": case.name, **asdict(case)}
    variables: Mapping[str, str] = {}
    path: list[str] = []
    if case.peer:
        assert peers is not None
        nvdashboard = case.tool == "nvdashboard"
        variables = peers.variables if nvdashboard else {}
        path = peers.path
    with jupyter(directory, case.gpus, variables, path=path) as server:
        if case.tool == "nvdashboard" and case.rate is not None:
            set_rate(server.root.parent / "settings", case.rate)
        chromium = Chromium(directory)
        try:
            measured = Measured(case, server, chromium, directory)
            measured.show()
            for kind in ACTIVITIES:
                found[kind] = measured.beside(kind, seconds)
            found |= measured.stop()
            found["chromium"] = chromium.version
        finally:
            chromium.stop()
    return found
