"""An IPython extension that registers the cell magic with a begin and end that only take notes.

It loads ``cell.py`` by its path, so that a kernel of any version needs nothing but IPython.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython

CELL = Path(__file__).parents[2] / "gpumagic" / "magics" / "cell.py"
HELP = "Measure a cell which runs as it would without this magic."

notes: list[dict[str, Any]] = []
magics: dict[int, Any] = {}


def load_cell_module() -> Any:
    """Import ``cell.py`` under a name of its own, once."""
    name = "cell_under_test"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, CELL)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def begin(line: str, context: Any) -> None:
    """Note the arguments and the cell; refuse ``--bad``."""
    if "--bad" in line:
        raise UsageError("unrecognized arguments: --bad")
    notes.append({"begin": line, **asdict(context)})


def end(outcome: Any) -> None:
    """Note the outcome, and where a report displayed now would go."""
    shell: Any = get_ipython()
    publisher = type(shell.display_pub).__name__
    notes.append({"end": outcome.status, "publisher": publisher, **asdict(outcome)})


def drain() -> str:
    """Hand over the notes as JSON and forget them."""
    text = json.dumps(notes)
    notes.clear()
    return text


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%gpuprofile``."""
    magic = load_cell_module().CellMagic(shell, "gpuprofile", begin=begin, end=end, doc=HELP)
    magics[id(shell)] = magic
    magic.register()


def unload_ipython_extension(shell: Any) -> None:
    """Take ``%%gpuprofile`` off again."""
    magics.pop(id(shell)).unregister()
