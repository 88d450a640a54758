"""The models of widgets that are alive, for tests of what a live view makes and sends.

The fixtures ``closed_models``, ``no_models_left`` and ``sent`` of conftest.py rest on them.
"""

from __future__ import annotations

from typing import Any

from ipywidgets.widgets import widget as registry

__all__ = ["Widget", "models"]

Widget: Any = registry.Widget


def models() -> list[Any]:
    """List the models that are alive; where they are kept depends on the version."""
    found = getattr(registry, "_instances", None)
    if found is None:
        found = Widget._active_widgets
    return list(found.values())
