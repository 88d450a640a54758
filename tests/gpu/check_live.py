"""Watch real GPUs while all of them train, in a real kernel, and measure what that costs.

``python tests/gpu/check_live.py --out DIR`` on a machine with NVIDIA GPUs and torch. A client takes
the part of the page: it counts what the kernel sends, while `nvidia-smi` reads the same GPUs.
Writes DIR/live.json and exits with 1 if a figure is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

from comparison import Row, between, near, report

TRAIN_S = 20.0
WARM_UP_S = 6.0

SETUP = """
import gc, json, time
%load_ext gpumagic
%config GpuMagic.front_end = "page"
import torch, gpumagic
from gpumagic.session import current
gpus = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
sizes = [8192 if i % 2 == 0 else 4096 for i in range(len(gpus))]
work = [torch.randn(n, n, device=d, dtype=torch.bfloat16) for d, n in zip(gpus, sizes)]
def train(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for x in work:
            for _ in range(8):
                x @ x
        for d in gpus:
            torch.cuda.synchronize(d)
def cost():
    session = current()
    watch = session.watch
    return {"all": session.watch_cpu_s, "view": watch.cpu_s if watch else 0.0,
            "ticks": watch._refresher.ticks if watch else 0, "time": time.monotonic()}
"""
WATCH = "%gpuwatch --renderer {renderer}"
TRAIN = """
train({warm_up})
gpumagic.mark("measured")
before, begun = cost(), time.time()
train({seconds})
after, ended = cost(), time.time()
recording = current().recording
told = {{}}
for device in recording.devices:
    if device.kind == "gpu":
        told[device.nvml_index] = {{
            name: list(recording.series(name, device.id, begun, ended).values)
            for name in ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts")}}
print("TOLD", json.dumps({{"before": before, "after": after, "begun": begun, "ended": ended,
                           "gpus": told}}))
"""
MODELS = "import ipywidgets; print('MODELS', len(ipywidgets.widgets.widget._instances))"


@dataclass
class Heard:
    """What the kernel sent while a cell ran."""

    text: str = ""
    sent: int = 0
    messages: int = 0
    pictures: list[int] = field(default_factory=list)


def ask(client: Any, code: str, timeout_s: float = 180.0) -> Heard:
    """Run a cell and take in all that the kernel sends meanwhile."""
    heard = Heard()
    wanted = client.execute(code)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        content = message["content"]
        if message["msg_type"].startswith("comm_"):
            head = (message["header"], message["parent_header"], message["metadata"], content)
            heard.sent += len(json.dumps(head, default=str))
            heard.sent += sum(len(part) for part in message["buffers"])
            heard.messages += 1
        elif message["msg_type"] in ("display_data", "update_display_data"):
            heard.pictures.append(len(content["data"].get("image/png", "")))
        elif message["msg_type"] == "stream":
            heard.text += content["text"]
        elif message["msg_type"] == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        mine = message["parent_header"].get("msg_id") == wanted
        if mine and message["msg_type"] == "status" and content["execution_state"] == "idle":
            return heard
    raise TimeoutError(f"a cell took over {timeout_s:g} s")


def told(heard: Heard, word: str) -> Any:
    """Return what a cell printed behind a word."""
    return json.loads(heard.text.split(f"{word} ", 1)[1].splitlines()[0])


class Smi:
    """`nvidia-smi` beside the watch, ten times a second."""

    FIELDS = ("index", "utilization.gpu", "memory.used", "power.draw.instant")

    def __init__(self) -> None:
        command = ["nvidia-smi", f"--query-gpu={','.join(self.FIELDS)}",
                   "--format=csv,noheader,nounits", "-lms", "100"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def end(self) -> Mapping[int, Sequence[Sequence[float]]]:
        """Stop it; return the readings of each GPU."""
        self._process.terminate()
        text, _ = self._process.communicate(timeout=20)
        found: dict[int, list[list[float]]] = defaultdict(list)
        for line in text.splitlines():
            try:
                index, *values = (float(part) for part in line.split(","))
            except ValueError:
                continue  # the last line can be cut
            if len(values) == len(self.FIELDS) - 1:
                found[int(index)].append(values)
        return found


def measure(renderer: str) -> tuple[list[Row], dict[str, Any]]:
    """Watch a training cell with one renderer; return the figures and what else was seen."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        ask(client, SETUP)
        ask(client, WATCH.format(renderer=renderer))
        smi = Smi()
        heard = ask(client, TRAIN.format(warm_up=WARM_UP_S, seconds=TRAIN_S))
        readings = smi.end()
        stopped = ask(client, "%gpuwatch stop")
        models = told(ask(client, MODELS), "MODELS")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    seen = told(heard, "TOLD")
    before, after = seen["before"], seen["after"]
    wall = after["time"] - before["time"]
    view = (after["view"] - before["view"]) / wall
    all_ = (after["all"] - before["all"]) / wall
    rate = (after["ticks"] - before["ticks"]) / wall
    sent = heard.sent / (WARM_UP_S + TRAIN_S)
    rows = [
        between(f"{renderer}: watching in all", 100 * all_, 0, 5, "% core", "aim: 2"),
        between(f"{renderer}: drawing and sending", 100 * view, 0, 2.5, "% core", "of it"),
        between(f"{renderer}: updates", rate, 3.5, 4.1, "1/s", "four are asked for"),
        between(f"{renderer}: sent to the page", sent / 1e3, 0.5, 40, "kB/s", "aim: under 40"),
        between(f"{renderer}: the picture that stays", sum(stopped.pictures) / 1e3, 1, 60, "kB",
                "base64 in the file"),
        near(f"{renderer}: models left", models, 0, 0, "", "ipywidgets' register"),
    ]
    for index, series in sorted(seen["gpus"].items(), key=lambda item: int(item[0])):
        own = readings[int(index)][int(10 * WARM_UP_S):]
        for column, (name, factor, bound, unit) in enumerate((
            ("gpu_utilization_ratio", 100, 6, "%"),
            ("gpu_memory_used_bytes", 1 / (1 << 20), 20, "MiB"),
            ("gpu_power_watts", 1, 25, "W"),
        )):
            rows.append(near(
                f"{renderer}: GPU {index} {name}, mean", statistics.mean(series[name]) * factor,
                statistics.mean(r[column] for r in own), bound, unit, "nvidia-smi every 100 ms",
            ))
    return rows, {"renderer": renderer, "gpus": len(seen["gpus"]), "messages_per_s":
                  heard.messages / (WARM_UP_S + TRAIN_S)}


def main() -> int:
    """Measure both renderers; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    rows: list[Row] = []
    cases = []
    for renderer in ("bqplot", "svg"):
        found, case = measure(renderer)
        rows += found
        cases.append(case)
    return report(rows, options.out / "live.json", cases=cases)


if __name__ == "__main__":
    sys.exit(main())
