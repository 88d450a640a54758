"""Which of some processes descend from this one, and what they run (psutil)."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .children import WORKER_NAME

__all__ = ["Descendant", "descendants"]


@dataclass(frozen=True, slots=True)
class Descendant:
    """A child of this process or of a child; ``command`` are its arguments in one line.

    ``worker`` says that it is called what torch's DataLoader calls its workers.
    """

    pid: int
    command: str
    worker: bool


def descendants(pids: Collection[int]) -> tuple[Descendant, ...]:
    """Return those of some PIDs that descend from this process, in the order given.

    Empty where one of the PIDs is not of this PID namespace: then they are the host's, and one
    that looks like a child's is another process.
    """
    import psutil

    own = os.getpid()
    found = []
    for pid in pids:
        if pid == own:
            continue
        try:
            process = psutil.Process(pid)
            parents = process.parents()
        except psutil.NoSuchProcess:
            return ()
        except psutil.Error:
            continue  # another user's
        if any(parent.pid == own for parent in parents):
            found.append(_describe(psutil, process))
    return tuple(found)


def _describe(psutil: Any, process: Any) -> Descendant:
    name, words = "", []
    try:
        name = process.name()
        words = process.cmdline()
    except psutil.Error:
        pass  # it ends right now, and may still hold memory
    command = " ".join(word for word in words if word) or name
    return Descendant(process.pid, command, name == WORKER_NAME)
