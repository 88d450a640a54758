"""Magics: parse what the user typed, and hand it on. Loaded by ``%load_ext gpumagic``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from .extension import Extension

__all__ = ["extension_of", "load_ipython_extension", "unload_ipython_extension"]

_extensions: WeakKeyDictionary[Any, Extension] = WeakKeyDictionary()


def load_ipython_extension(shell: Any) -> None:
    """Register the magics with a shell; a second call changes nothing."""
    from .extension import Extension

    if shell not in _extensions:
        extension = Extension(shell)
        extension.register()
        _extensions[shell] = extension


def unload_ipython_extension(shell: Any) -> None:
    """Take everything off a shell again: view, sampler, hooks, magics and settings."""
    extension = _extensions.pop(shell, None)
    if extension is not None:
        extension.unregister()


def extension_of(shell: Any) -> Extension | None:
    """Return the extension that is loaded in a shell, or ``None``."""
    return _extensions.get(shell)
