"""The live view: a scene as a widget that moves, drawn by bqplot or as inline SVG.

A live view belongs to one thread at a time: :func:`make_view` runs on the main thread, then the
refresher's thread owns the view until it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..errors import SettingError
from ..sample import HOST
from .actions import Actions
from .parts import Scene

__all__ = ["Extra", "View", "extras_of", "make_view"]

_MOST_GPUS_BY_BQPLOT = 2


class View(Protocol):
    """A scene on the page, kept up to date."""

    @property
    def behind(self) -> bool:
        """Whether the last scene was left out: it has to be shown again if none follows."""

    @property
    def error(self) -> Exception | None:
        """What made drawing fail; nothing is drawn after it."""

    def bundle(self) -> dict[str, Any]:
        """Return the mimebundle that shows the view; text/plain is the caller's."""

    def update(self, scene: Scene) -> None:
        """Show another scene; what has not changed is not sent again."""

    def lost(self) -> bool:
        """Tell whether a page was loaded since, which may have forgotten the display's id."""

    def replace(self, bundle: dict[str, Any]) -> None:
        """Put a still picture in the place of what moves; ``update`` does nothing after it.

        ``bundle`` holds ``image/png`` in base64, its ``width`` and ``text/plain``.
        """

    def close(self) -> None:
        """Close every model of the view; harmless a second time."""


class Extra(Protocol):
    """Something on top of the picture: controls, or what answers the pointer."""

    def widgets(self) -> Sequence[Any]:
        """Return the widgets, which stay the same; the view shows and closes them."""

    def update(self, scene: Scene) -> None:
        """Follow another scene; called on the view's thread."""


_ROOM_OF_WINDOWS, _ROOM_OF_A_SLIDER = 240.0, 130.0


@contextmanager
def _ipywidgets_needed() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise SettingError(
            f"the live view needs ipywidgets, which cannot be imported ({_cause(error)}):"
            " `pip install ipywidgets`, or `%gpuwatch --text`"
        ) from error


def extras_of(actions: Actions) -> Sequence[Extra]:
    """Return what answers the pointer, and the controls of a watch.

    Raises :class:`SettingError` if ipywidgets is not installed.
    """
    with _ipywidgets_needed():
        from .live_controls import Controls
        from .live_pointer import Pointer

    slider = _ROOM_OF_A_SLIDER if actions.status().position is not None else 0.0
    return Pointer(right=_ROOM_OF_WINDOWS + slider), Controls(actions)


def _carried_by_bqplot(scene: Scene) -> bool:
    gpus = sum(block.device != HOST for block in scene.blocks)
    return scene.layout == "rows" and gpus <= _MOST_GPUS_BY_BQPLOT


def make_view(scene: Scene, renderer: str = "auto", extras: Sequence[Extra] = ()) -> View:
    """Make the live view of a scene; ``renderer`` is "bqplot", "svg" or "auto".

    ``extras`` lie above the picture, in their order.

    "auto" takes bqplot for up to two GPUs, if it can be imported, and SVG for more: figures of
    many GPUs are thousands of elements in the page (see docs/renderers.md).

    Raises :class:`SettingError` for an unknown renderer, and if what it needs is not installed.
    """
    if renderer not in ("auto", "bqplot", "svg"):
        raise SettingError(f"no renderer is called {renderer!r}; there are: auto, bqplot, svg")
    with _ipywidgets_needed():
        from .live_svg import SvgView
    if renderer == "svg" or (renderer == "auto" and not _carried_by_bqplot(scene)):
        return SvgView(scene, extras)
    try:
        from .live_bqplot import BqplotView
    except Exception as error:
        if renderer == "auto":
            return SvgView(scene, extras)
        raise SettingError(
            f"bqplot cannot be imported ({_cause(error)}): `pip install bqplot`, or"
            " `--renderer svg`"
        ) from error
    return BqplotView(scene, extras)


def _cause(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
