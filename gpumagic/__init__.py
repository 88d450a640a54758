"""gpumagic: see what a notebook does with its GPU.

``%load_ext gpumagic`` in a notebook, or ``with gpumagic.profile("name") as p:`` in a script.
Names are loaded on first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .alerts import on_alert
    from .codec import load, save
    from .magics import load_ipython_extension, unload_ipython_extension
    from .measurement import profile
    from .memory.free import free_memory
    from .memory.report import memory_report
    from .memory.stats import allocator_stats
    from .profiles import Profile
    from .recording import Recording

__version__ = "0.1.0"

_HOMES = {
    "Profile": "profiles",
    "Recording": "recording",
    "allocator_stats": "memory.stats",
    "free_memory": "memory.free",
    "load": "codec",
    "load_ipython_extension": "magics",
    "memory_report": "memory.report",
    "on_alert": "alerts",
    "profile": "measurement",
    "save": "codec",
    "unload_ipython_extension": "magics",
}

__all__ = [
    "Profile",
    "Recording",
    "__version__",
    "allocator_stats",
    "free_memory",
    "load",
    "load_ipython_extension",
    "mark",
    "memory_report",
    "on_alert",
    "profile",
    "save",
    "unload_ipython_extension",
]


def mark(text: str) -> None:
    """Put a named moment, e.g. ``mark("epoch 3")``, on the time axis of the running recording."""
    from .session import current

    current().mark(text)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
