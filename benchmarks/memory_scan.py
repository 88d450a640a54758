"""What the search for tensors costs in notebooks of very many objects.

Needs torch (the CPU build will do). For each kind of data, each number of objects, and with and
without a cycle that holds a tensor, a process of its own makes the heap beside a small model and
searches it whole: wall seconds, and seconds of the processor, which other programs do not
lengthen. ``python benchmarks/memory_scan.py [--objects N ...] [--out FILE]``.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("dicts", "instances", "tensors")
OBJECTS = (300_000, 1_300_000)
TIMES = 5


class Row:
    """An instance with a list of its own."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values = [number]


def heap(kind: str, objects: int, torch: Any) -> list[Any]:
    """Make data of so many objects that the collector knows."""
    if kind == "dicts":
        return [{"a": i, "b": [i], "c": (i, str(i))} for i in range(objects // 3)]
    if kind == "instances":
        return [Row(i) for i in range(objects // 2)]
    return [(torch.zeros(2), i) for i in range(objects // 2)]


def search(kind: str, objects: int, with_cycle: bool) -> dict[str, Any]:
    """Make a heap and search it; the first of the searches does not count."""
    import torch

    from gpumagic.memory.roots import Notebook
    from gpumagic.memory.scan import scan
    from gpumagic.memory.tensors import TensorReader

    gc.disable()
    space: dict[str, Any] = {"data": heap(kind, objects, torch)}
    space["model"] = model = torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(50)))
    space["optimizer"] = optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 50)).sum().backward()
    optimizer.step()
    if with_cycle:
        rows = [Row(1), Row(2)]
        rows[0].values, rows[1].values = [rows[1]], [rows[0], torch.zeros(1000)]
        del rows
    del model, optimizer
    notebook = Notebook()
    notebook.namespace = space
    reader = TensorReader(torch, "cpu")
    wall, processor = [], []
    for _ in range(TIMES + 1):
        begun, begun_processor = time.perf_counter(), time.process_time()
        found = scan(notebook, reader, timeout_s=600.0)
        wall.append(time.perf_counter() - begun)
        processor.append(time.process_time() - begun_processor)
    return {
        "kind": kind,
        "objects": found.objects,
        "with_cycle": with_cycle,
        "wall_s": statistics.median(wall[1:]),
        "wall_least_s": min(wall[1:]),
        "process_s": statistics.median(processor[1:]),
        "storages": sum(holder.storages for holder in found.holders["cpu"]),
        "cycles": sum(holder.kind == "cycle" for holder in found.holders["cpu"]),
        "cut": found.cut,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=OBJECTS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        kind, objects, cycle = given.one
        print(json.dumps(search(kind, int(objects), cycle == "1")))
        return
    results = []
    for kind in given.kinds:
        for objects in given.objects:
            for cycle in "01":
                command = [sys.executable, __file__, "--one", kind, str(objects), cycle]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                one = json.loads(done.stdout.splitlines()[-1])
                results.append(one)
                print(
                    f"{kind:10} {one['objects']:>9,} objects  "
                    f"{'with a cycle' if one['with_cycle'] else 'no cycle':12}  "
                    f"wall {one['wall_s']:.3f} s (least {one['wall_least_s']:.3f} s)  "
                    f"processor {one['process_s']:.3f} s",
                    flush=True,
                )
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
