"""A real IPython shell of its own for a test, and what the search says of what its cells made."""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import sys
from collections.abc import Iterator
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gpumagic.memory.live import DeviceMemory, MemoryReport
from gpumagic.memory.report import look
from gpumagic.memory.roots import Notebook

__all__ = ["Cells", "cells"]

_LAST = ("last_exc", "last_type", "last_value", "last_traceback")


class Cells:
    """Run cells, and look at what holds the tensors that they made, on the CPU."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell

    def run(self, *codes: str) -> str:
        """Run cells one after another; return what they printed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            for code in codes:
                self.shell.run_cell(code, store_history=True)
        return out.getvalue()

    @property
    def space(self) -> dict[str, Any]:
        """The user's namespace."""
        space: dict[str, Any] = self.shell.user_ns
        return space

    def notebook(self) -> Notebook:
        """Return the notebook as it is now."""
        return Notebook(self.shell)

    def report(self, **options: Any) -> MemoryReport:
        """Look without hurry."""
        options.setdefault("timeout_s", 60.0)
        return look(self.notebook(), cpu=True, **options).report

    def device(self, **options: Any) -> DeviceMemory:
        """Return the CPU of a report; empty if it has no tensor."""
        devices = self.report(**options).devices
        return devices[0] if devices else DeviceMemory("cpu")

    def name(self, size: int) -> str:
        """Return the whole name of the storage of so many bytes; there has to be just one."""
        return self.names(size)[0]

    def names(self, size: int) -> list[str]:
        """Return all names of the storage of so many bytes, the first first."""
        found = [one for one in self.device().storages if one.bytes == size]
        assert len(found) == 1, f"{len(found)} storages of {size} bytes"
        where = f" in {found[0].where}" if found[0].where else ""
        return [found[0].name + where, *found[0].also]

    def kinds(self) -> dict[str, str]:
        """Return the kinds of the holders by their names; those that nobody leads to left out."""
        holders = self.device().holders
        return {holder.name: holder.kind for holder in holders if holder.kind != "unknown"}

    def others(self) -> int:
        """Return the bytes that nobody leads to: torch keeps some of its own in a process."""
        return sum(holder.bytes for holder in self.device().of("unknown"))


def _restore(saved: dict[str, Any]) -> None:
    sys.modules["__main__"] = saved["main"]
    sys.displayhook, sys.excepthook = saved["displayhook"], saved["excepthook"]
    for name in _LAST:
        vars(sys).pop(name, None)
    for name in ("get_ipython", "display"):
        vars(builtins).pop(name, None)


@contextlib.contextmanager
def cells() -> Iterator[Cells]:
    """Give a fresh shell with torch imported; all that it held is gone afterwards."""
    saved = {
        "main": sys.modules["__main__"], "displayhook": sys.displayhook,
        "excepthook": sys.excepthook,
    }
    config = Config()
    config.HistoryManager.enabled = False
    gc.collect()
    shell = InteractiveShell(config=config)
    shell.cleanup = None
    made = Cells(shell)
    made.run("import torch, gc, weakref, sys")
    try:
        yield made
    finally:
        shell.history_manager.output_hist.clear()
        shell.user_ns.clear()
        shell.user_ns_hidden.clear()
        shell.displayhook._ = shell.displayhook.__ = shell.displayhook.___ = None
        shell.InteractiveTB.tb = shell.InteractiveTB.pdb = None
        shell.last_execution_result = None
        _restore(saved)
        gc.enable()
        gc.collect()
