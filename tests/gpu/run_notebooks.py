"""Run the notebooks that need a GPU in real kernels and check what they show.

``python tests/gpu/run_notebooks.py [--out DIR] [NAME ...]`` on a machine with an NVIDIA GPU and
torch. Writes each notebook with its outputs to DIR, ready to be kept, prints the reports of its
profiled cells and its summary, and exits with 1 if something is not as the notebook tells it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
MARKER = "gpumagic-summary:"
TOLD = "gpumagic-check:"

Checks = dict[str, bool]

PROBES: Mapping[str, str] = {
    "slow_training": f"""import json
print({TOLD!r}, json.dumps({{
    "rates": [rates[number] for number in STEPS],
    "steps": [profile.to_dict() for profile in STEPS.values()],
}}))""",
    "resource_baseline": f"""import json
print({TOLD!r}, json.dumps({{
    stage: {{column: text(figures(profile), *COLUMNS[column]) for column in COLUMNS}}
    for stage, profile in STAGES.items()
}}))""",
    "live_view": f"""import json, os
import statistics
from gpumagic.session import current
recording = current().recording
if os.environ.get("GPUMAGIC_NOTEBOOK_RECORDING"):
    gpumagic.save(recording, os.environ["GPUMAGIC_NOTEBOOK_RECORDING"])
begun, ended = [
    next(mark.time for mark in recording.marks() if mark.text == text)
    for text in ("epoch 1", "keeps outputs")
]
def busy(device):
    values = recording.series("gpu_utilization_ratio", device.id, begun, ended).values
    return statistics.mean(values)
print({TOLD!r}, json.dumps({{
    "alerts": [[alert.kind, alert.state] for alert in seen],
    "marks": [mark.text for mark in recording.marks()],
    "busy": [busy(d) for d in recording.devices if d.kind == "gpu"],
    "kept": [len(run.kept) for run in runs],
}}))""",
}
"""A cell for each notebook that prints what its check looks at; it is not kept."""


def check_slow_training(told: Any) -> Checks:
    """Check that each step of the slow training is held up by what its text says."""
    rates, steps = told["rates"], told["steps"]
    first, second, third, last = (rules_of(step) for step in steps)

    def at(step: int, metric: str) -> float | None:
        found: float | None = gpu_of(steps[step]).get(metric, {}).get("mean")
        return found

    util, active = at(0, "gpu_utilization_ratio"), at(3, "gpu_sm_active_ratio")
    return {
        "step 1 waits for data": any(rule.startswith("input-bound") for rule in first),
        "step 1 has a GPU-Util under 40 %": util is not None and util < 0.4,
        # Its workers may still come too late for a part of the step.
        "step 2 does not wait for data first": not any(
            rule.startswith("input-bound") for rule in second[:1]
        ),
        "step 2 waits for launches": "launch-bound" in second,
        "step 3 waits for neither": not any(
            rule.startswith("input-bound") or rule == "launch-bound" for rule in third
        ),
        "step 4 is well used": "healthy" in last or "throttled" in last,
        "step 4 has an SM active over 50 %": active is not None and active > 0.5,
        "each step is faster than the one before": rates == sorted(rates),
        "step 4 is at least 4 times as fast as step 1": rates[3] >= 4 * rates[0],
    }


def rules_of(profile: Mapping[str, Any]) -> list[str]:
    """List the rules that spoke."""
    return [finding["rule"] for finding in profile["findings"]]


def gpu_of(profile: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics of the GPU that torch calls cuda:0, or nothing."""
    for device in profile["devices"]:
        if device.get("torch", "").startswith("cuda:0"):
            found: Mapping[str, Any] = device["metrics"]
            return found
    return {}


def check_resource_baseline(told: Any) -> Checks:
    """Check that there is a row for each stage and a figure of the GPU in each that has one."""
    stages = list(told)
    device = ("GPU-Util", "SM active", "energy")
    torch = ("torch allocated", "allocated peak", "torch reserved", "context and other")

    def measured(stage: str, columns: Sequence[str]) -> bool:
        return all(told[stage][column] is not None for column in columns)

    return {
        "there are six stages in order": [stage[0] for stage in stages] == list("123456"),
        **{f"{stage}: RAM": measured(stage, ("RAM", "RAM change")) for stage in stages},
        # CUDA is there from the third stage on, and torch is not before the second.
        **{f"{stage}: torch's memory": measured(stage, torch) for stage in stages[2:]},
        **{f"{stage}: the device": measured(stage, device) for stage in stages[3:]},
        "1 idle kernel: the device": measured(stages[0], device),
    }


def check_live_view(told: Any) -> Checks:
    """Check that all GPUs trained, with their epochs marked, and that the climb was told."""
    return {
        "each GPU is busy in training": bool(told["busy"]) and min(told["busy"]) > 0.4,
        "each epoch is marked": told["marks"][:4] == [f"epoch {i}" for i in (1, 2, 3, 4)],
        "that memory climbs is told": ["filling", "begun"] in told["alerts"],
        "nothing else is told": {kind for kind, _ in told["alerts"]} <= {"filling", "near-full"},
        "what was kept is dropped": not any(told["kept"]),
    }


CHECKS: Mapping[str, Callable[[Any], Checks]] = {
    "live_view": check_live_view,
    "slow_training": check_slow_training,
    "resource_baseline": check_resource_baseline,
}


def execute(name: str) -> tuple[nbformat.NotebookNode, Any]:
    """Run a notebook and its probe; return it without the probe, and what that printed.

    Raises CellExecutionError where a cell fails.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(PROBES[name]))
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    client.execute()
    (line,) = [line for line in texts(notebook.cells.pop()) if line.startswith(TOLD)]
    return notebook, json.loads(line.removeprefix(TOLD))


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """Return the lines of all text that a cell shows."""
    found: list[str] = []
    for output in cell.get("outputs", ()):
        found += output.get("text", "").splitlines()
        found += output.get("data", {}).get("text/plain", "").splitlines()
    return found


def without_paths(value: Any, folders: Sequence[str]) -> Any:
    """Return outputs in which no path begins with one of this machine's folders.

    Pictures stay as they are: what looks like a path in their base64 is none.
    """
    if isinstance(value, str):
        for folder in folders:
            value = value.replace(f"{folder}/", "")
        return value
    if isinstance(value, list):
        return [without_paths(item, folders) for item in value]
    if isinstance(value, dict):
        return type(value)({
            key: item if key.startswith("image/") else without_paths(item, folders)
            for key, item in value.items()
        })
    return value


def machine_folders() -> list[str]:
    """List the folders of this machine whose names say nothing to a reader, longest first."""
    known = {str(ROOT), str(Path.home()), tempfile.gettempdir(), sys.prefix}
    known |= {str(Path(path).resolve()) for path in sys.path if path}
    known |= set(sysconfig.get_paths().values())
    return sorted(known - {"/", "/usr", "/usr/local"}, key=len, reverse=True)


def run(name: str, out: Path) -> list[str]:
    """Run one notebook, write it and print its reports; return its summary and its verdicts."""
    print(f"==== {name}")
    try:
        notebook, told = execute(name)
    except CellExecutionError as error:
        print(error)
        return [f"==== {name}", "FAILED a cell broke"]
    folders = machine_folders()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = without_paths(cell.outputs, folders)
    nbformat.write(notebook, out / f"{name}.ipynb")
    for cell in notebook.cells:
        if cell.source.startswith("%%gpuprofile"):
            print("\n".join([f"--- {cell.source.splitlines()[0]}", *texts(cell)]))
    found = [f"==== {name}"]
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            found += output.get("data", {}).get("text/markdown", "").splitlines()
        found += [line for line in texts(cell) if line.startswith(MARKER)]
    checks = CHECKS[name](told)
    return found + [f"{'ok' if good else 'FAILED':6} {check}" for check, good in checks.items()]


def main() -> int:
    """Run the notebooks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    recording = options.out.resolve() / "live_view.jsonl.gz"
    os.environ.setdefault("GPUMAGIC_NOTEBOOK_RECORDING", str(recording))
    unknown = set(options.names) - set(CHECKS)
    if unknown:
        parser.error(f"there is no check of {', '.join(sorted(unknown))}")
    # The kernel's folder is that of the notebooks, from which gpumagic cannot be imported.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    found = [line for name in options.names or CHECKS for line in run(name, options.out)]
    print("\n".join(found))
    return 1 if any(line.startswith("FAILED") for line in found) else 0


if __name__ == "__main__":
    sys.exit(main())
