"""numpy's arrays of objects: what they hold is not known to the garbage collector."""

from __future__ import annotations

import sys
from typing import Any

from .kinds import is_one_of

__all__ = ["elements", "index_of", "is_array"]

_MOST = 1_000_000


def _base() -> Any | None:
    return getattr(sys.modules.get("numpy"), "ndarray", None)


def is_array(kind: type) -> bool:
    """Tell whether a type is numpy's array or derives from it; numpy is never imported."""
    base = _base()
    return base is not None and is_one_of(kind, (base,))


def elements(array: Any) -> list[Any]:
    """Return the objects in an array of objects, in a row; of very large ones and others none."""
    base: Any = _base()
    try:
        if not base.dtype.__get__(array).hasobject or base.size.__get__(array) > _MOST:
            return []
        found: list[Any] = base.tolist(base.ravel(array))
        return found
    except Exception:  # an array of records has fields of its own
        return []


def index_of(array: Any, child: Any) -> str:
    """Return the index of an element as it would be written, empty if it is not there."""
    base: Any = _base()
    for number, value in enumerate(elements(array)):
        if value is child:
            place: list[int] = []
            for extent in reversed(base.shape.__get__(array)):
                number, rest = divmod(number, extent)
                place.insert(0, rest)
            return f"[{', '.join(map(str, place))}]"
    return ""
