"""The tables of ``live_view.py``, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["case_tables", "long_run_table"]



def middle(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure of some runs of one case."""
    found = dict(runs[0])
    for key, value in runs[0].items():
        values = [run[key] for run in runs]
        if isinstance(value, dict):
            found[key] = middle(values)
        elif isinstance(value, (int, float)) and key not in ("gpus", "rate"):
            found[key] = statistics.median(values)
    return found


def figures(case: dict[str, Any], nothing: dict[str, Any]) -> dict[str, float]:
    """Return the figures of the tables: what a view adds to a page without one."""
    def more(kind: str, key: str) -> float:
        return float(case[kind][key]) - float(nothing[kind][key])

    return {
        "drawn/s": case["sleep"]["drawn_per_s"],
        "kB/s": case["sleep"]["bytes_per_s"] / 1e3,
        "messages/s": case["sleep"]["messages_per_s"],
        "browser, cores": more("sleep", "browser_cores"),
        "server, cores": more("sleep", "server_cores"),
        "kernel, cores": more("sleep", "kernel_cores"),
        "all, cores": sum(
            more("sleep", f"{name}_cores") for name in ("browser", "server", "kernel")
        ),
        "browser beside computing": more("compute", "browser_cores"),
        "drawn/s beside computing": case["compute"]["drawn_per_s"],
        "work": case["compute"]["work"] / nothing["compute"]["work"],
        "heap, MB": more("sleep", "heap_bytes") / 1e6,
        "nodes": more("sleep", "nodes"),
        "models": case["sleep"]["models"],
        "file, kB": (case["file_growth_bytes"] - nothing["file_growth_bytes"]) / 1e3,
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def ratio(ours: float, theirs: float) -> str:
    """Write a ratio; what is within the noise of nothing has none."""
    if abs(theirs) < 5e-3 or ours < 0 or theirs < 0:
        return "n/a"
    return f"{ours / theirs:.2g}"


def case_tables(runs: Sequence[dict[str, Any]]) -> str:
    """Write the figures of all cases, then gpumagic's as ratios to those of each peer."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if "error" not in run:
            by_name.setdefault(run["name"], []).append(run)
    if "nothing, 1 GPU" not in by_name:
        return "no table without the case of nothing\n"
    middles = {name: middle(group) for name, group in by_name.items()}
    nothing = middles.pop("nothing, 1 GPU")
    if not middles:
        return ""
    shown = {name: figures(case, nothing) for name, case in middles.items()}
    columns = list(next(iter(shown.values())))
    text = table(
        ["", *columns],
        [[name, *(f"{value:.3g}" for value in row.values())] for name, row in shown.items()],
    )
    compared = []
    for name, case in middles.items():
        for other, peer in middles.items():
            ours = case["tool"].startswith("gpumagic")
            if ours and not peer["tool"].startswith("gpumagic") and case["gpus"] == peer["gpus"]:
                compared.append([
                    f"{name} : {other}",
                    *(ratio(shown[name][key], shown[other][key]) for key in columns),
                ])
    return text + ("\n" + table(["", *columns], compared) if compared else "")


def long_run_table(runs: Sequence[dict[str, Any]]) -> str:
    """Write the figures of long runs, of one kind: hidden tabs, or days."""
    rows = []
    for run in runs:
        what = f"{run['renderer']}, {run['gpus']} GPUs"
        if "window" in run:
            what += f", window {run['window']}"
        row = {"": what}
        if "error" in run:
            row["error"] = run["error"]
        elif "window" in run:
            row |= {"updates": f"{run['updates']}"}
            row |= {
                f"{name}, growth in 12 h": f"{run[key]['growth'] / 1e6:+.2f} of"
                f" {run[key]['day'] / 1e6:.1f}"
                for name, key in (
                    ("kernel, MB", "kernel_rss_bytes"), ("objects, millions", "kernel_objects"),
                    ("page heap, MB", "page_heap_bytes"), ("Chromium, MB", "chromium_rss_bytes"),
                )
            }
        else:
            row |= {
                "updates": f"{run['updates']}", "hidden, s": f"{run['hidden_s']:g}",
                "longest stall, s": f"{run['longest_stall_s']:g}",
                "heap, MB": f"{run['heap_growth_bytes'] / 1e6:+.2f}",
            }
        rows.append(row)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return table(columns, [[row.get(key, "") for key in columns] for row in rows])
