"""Run a notebook on what this machine has, write it as HTML, and print a short summary.

``python notebooks/run.py NOTEBOOK [--html FILE] [--executed FILE]``
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

MARKER = "gpumagic-summary:"


def run(path: Path, executed: Path | None, timeout_s: int) -> nbformat.NotebookNode:
    """Execute a notebook with this Python and return it; a failing cell ends it."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=timeout_s, kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    finally:
        if executed is not None:
            executed.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, executed)
    return notebook


def summary(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the lines that cells printed for the summary."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            found += [
                line.removeprefix(MARKER).strip()
                for line in output.get("text", "").splitlines()
                if line.startswith(MARKER)
            ]
    return found


def main() -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--html", type=Path)
    parser.add_argument("--executed", type=Path)
    parser.add_argument("--timeout", type=int, default=600)
    options = parser.parse_args()
    try:
        notebook = run(options.notebook, options.executed, options.timeout)
    except CellExecutionError as error:
        print(f"{options.notebook} failed:\n{error}", file=sys.stderr)
        return 1
    if options.html is not None:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbconvert warns of pictures without a description
            html, _ = HTMLExporter().from_notebook_node(notebook)
        options.html.write_text(html, encoding="utf-8")
        print(options.html.resolve())
    for line in summary(notebook):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
