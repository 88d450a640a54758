"""The order in which a search walks a notebook, and the time that each part gets."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from .graph import Root, Walk
from .roots import DEBUGGER, Notebook
from .tensors import TensorReader

__all__ = ["LEAST_S", "tensors_below", "walk_all", "without_collector"]

# The share of the time that the user's own names may take.
_FIRST_SHARE = 0.85
LEAST_S = 0.02
"""What each part is given at the least: the late ones are short and matter most."""


def walk_all(
    walk: Walk,
    notebook: Notebook,
    *,
    last: Collection[str] = (),
    timeout_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[str]:
    """Walk from all roots in the order of HolderKind; return what was left out.

    Variables in ``last`` come after everything else, so that they hold only what nobody else
    does; displayed copies of the same objects do not count as somebody else.
    """
    begun = clock()
    variables = notebook.variables()
    mine = [root for root in variables if root.name not in last]
    aside = [root for root in variables if root.name in last]
    cut = []
    if not walk.walk(mine, begun + timeout_s * _FIRST_SHARE):
        cut.append("not all that your variables hold was looked through")
    same = {id(root.value) for root in aside}
    errors = notebook.tracebacks()  # a debugger has the same frames: they are the traceback's
    parts: tuple[list[Root], ...] = (
        notebook.running(),
        notebook.own_modules(),
        [root for root in notebook.displayed() if id(root.value) not in same],
        [root for root in errors if root.name != DEBUGGER],
        [root for root in errors if root.name == DEBUGGER],
        aside,
    )
    cut += [
        f"not all that a {roots[0].kind} holds was looked through"
        for roots in parts
        if not walk.walk(roots, max(begun + timeout_s, clock() + LEAST_S))
    ]
    return cut


def tensors_below(value: Any, notebook: Notebook, reader: TensorReader) -> list[Any]:
    """Return the tensors that an object leads to, without those of modules and the shell."""
    walk = Walk(reader.is_tensor, reader.gradient, notebook.fences())
    with reader.quiet():
        walk.walk([Root("variable", "", value)])
    return list(walk.targets)


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector from running: it would free what is about to be shown."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
