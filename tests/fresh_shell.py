"""A real IPython shell for a test, the only one of its process while it is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

__all__ = ["fresh_shell"]


@contextmanager
def fresh_shell(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, load: bool = True
) -> Iterator[InteractiveShell]:
    """Make a shell whose history and profile live in a folder, with gpumagic loaded or not."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    if load:
        made.run_line_magic("load_ext", "gpumagic")
    yield made
    if "gpumagic" in made.extension_manager.loaded:
        made.run_line_magic("unload_ext", "gpumagic")
    made.history_manager.end_session()
    InteractiveShell.clear_instance()
