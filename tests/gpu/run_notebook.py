"""Run a training notebook under a watch in a real kernel and check what it leaves.

``python tests/gpu/run_notebook.py --out DIR`` on a machine with an NVIDIA GPU and torch. The
executed notebook, with its widget state, and the recording are written to DIR. Exits with 1 if
something that must be there is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent

CELLS = [
    "import sys, time\nsys.path.insert(0, {here!r})\n%load_ext gpumagic",
    "%gpuwatch -w 60 --record {record}",
    "import torch  # half-imported for a while under the running sampler",
    "%%gpuprofile -n 'build the model'\nfrom training import Job\njob = Job(width=4096, depth=6)",
    "%%gpuprofile -n 'starved by the loader' -o starved\nsteps = job.starved(10)\nsteps",
    "import gpumagic\ngpumagic.mark('mended')",
    "%%gpuprofile -n 'busy' -o busy\n%%time\njob.busy(10)",
    "%%gpuprofile -n 'keeps outputs' -o climbing\njob.climbing(8)",
    "%%gpuprofile -n 'launches only' -o launched\n"
    "x = torch.randn(8192, 8192, device='cuda')\n"
    "for _ in range(60):\n    y = x @ x",
    "%%gpuprofile -n 'waits for it' --sync -o waited\n"
    "for _ in range(60):\n    y = x @ x",
    "%%gpuprofile -n 'short'\n1 + 1",
    "try:\n    torch.empty(1 << 42, device='cuda')\nexcept torch.OutOfMemoryError as error:\n"
    "    print(type(error).__name__)",
    "%gpumem",
    "job.kept.clear()",
    "%gpufree",
    "%gpuwatch status",
    "%gpuwatch stop",
    "%gpureport busy",
    "%gpuwatch -w 20",
    "job.busy(6)",
    "print(starved, busy, climbing, launched.streams, waited.streams)\n"
    "import json\nprint('REPORTS', json.dumps([p.to_dict() for p in (starved, busy, climbing,"
    " launched, waited)]))",
]


def main() -> int:
    """Run the notebook and check it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out.resolve() / "watch.jsonl.gz"
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell(
            cell.replace("{here!r}", repr(str(HERE))).replace("{record}", str(record))
        )
        for cell in CELLS
    ]
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    try:
        client.execute()
    finally:
        nbformat.write(notebook, options.out / "training.ipynb")
    return check(notebook, options.out)


def texts(cell: nbformat.NotebookNode) -> str:
    """Return all text that a cell shows."""
    found = []
    for output in cell.outputs:
        found.append(output.get("text", ""))
        found.append(output.get("data", {}).get("text/plain", ""))
    return "\n".join(found)


def check(notebook: nbformat.NotebookNode, out: Path) -> int:
    """Check the executed notebook and print a line a check."""
    by_source = {cell.source.splitlines()[0]: cell for cell in notebook.cells}
    watch = next(c for s, c in by_source.items() if s.startswith("%gpuwatch -w 60"))
    last = next(c for s, c in by_source.items() if s.startswith("%gpuwatch -w 20"))
    reports = json.loads(texts(notebook.cells[-1]).split("REPORTS ", 1)[1].splitlines()[0])
    starved, busy, climbing, launched, waited = reports

    def mean(report: dict, name: str) -> float:  # type: ignore[type-arg]
        return report["devices"][0]["metrics"][name]["mean"]

    state = notebook.metadata.get("widgets", {}).get(
        "application/vnd.jupyter.widget-state+json", {}
    ).get("state", {})
    checks = {
        "the stopped watch is a PNG with text": any(
            "image/png" in o.get("data", {}) and "text/plain" in o["data"] for o in watch.outputs
        ),
        "the stopped watch is no widget": not any(
            "application/vnd.jupyter.widget-view+json" in o.get("data", {})
            for o in watch.outputs
        ),
        "the running watch has left its picture, too": any(
            "image/png" in o.get("data", {}) for o in last.outputs
        ),
        "no widget's state is in the file": not state,
        "a profiled cell keeps its Out[]": any(
            o.output_type == "execute_result" for o in by_source[CELLS[4].splitlines()[0]].outputs
        ),
        "%%time below works": "Wall time" in texts(by_source[CELLS[6].splitlines()[0]]),
        "starved is less busy than busy": mean(starved, "gpu_utilization_ratio")
        < mean(busy, "gpu_utilization_ratio"),
        "busy is over 90 %": mean(busy, "gpu_utilization_ratio") > 0.9,
        "climbing ends higher than it starts": (
            climbing["devices"][0]["metrics"]["torch_allocated_bytes"]["end"]
            > climbing["devices"][0]["metrics"]["torch_allocated_bytes"]["start"]
        ),
        "kernels ran on after the launches": launched["streams_at_end"] == "busy",
        "--sync waits for them": waited["streams_at_end"] == "idle",
        "a short cell says so": "too short to say" in texts(by_source[CELLS[10].splitlines()[0]]),
        "cuda:0 is named": "cuda:0" in texts(by_source[CELLS[6].splitlines()[0]]),
        "the recording is there": (out / "watch.jsonl.gz").stat().st_size > 1000,
    }
    for name, good in checks.items():
        print(f"{'ok' if good else 'FAILED':6} {name}")
    for first in ("%gpumem", "%gpufree", "%gpuwatch status"):
        print(f"--- {first}\n{texts(by_source[first])}")
    for cell in notebook.cells:
        if cell.source.startswith("%%gpuprofile"):
            print(f"--- {cell.source.splitlines()[0]}\n{texts(cell)}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
