"""Live views without widgets: an output that is replaced through its display id.

:class:`DisplayView` moves where widgets do not (Colab does not show what threads send to them,
googlecolab/colabtools#3373). :class:`PictureView` keeps a still picture fresh where nobody looks
and the file that is left counts. Both have the methods of :class:`.live.View`, and ``show``, which
replaces the output by a mimebundle; a picture's ``width`` in CSS pixels is in the bundle too.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from typing import Any

from . import png, svg, text
from .parts import Scene

__all__ = ["DisplayView", "PictureView", "Show", "picture"]

Show = Callable[[dict[str, Any]], None]

_SCALE = {"rows": 2.0, "table": 1.5}
"""Pixels a CSS pixel: a table of eight GPUs would be over 60 kB in the file at 2."""

_HTML_PERIOD_S = 0.5
_PICTURE_PERIOD_S = 5.0
_SHARE = 0.05
_MOST_SAVED_S = 1.0


def picture(scene: Scene) -> dict[str, Any]:
    """Return the mimebundle that stays in a file: ``image/png``, its ``width``, text/plain."""
    scale = _SCALE[scene.layout]
    drawn = png.render(scene, scale=scale)
    # The picture has a margin around the scene; its header says how wide it is with it.
    width = round(int.from_bytes(drawn[16:20], "big") / scale)
    encoded = base64.b64encode(drawn).decode("ascii")
    return {"image/png": encoded, "width": width, "text/plain": text.render(scene)}


class DisplayView:
    """A scene as inline SVG in an HTML output, at most two updates a second.

    ``behind`` is true while the last scene was left out because it came too early: it has to be
    shown again if none follows. ``clock`` gives seconds and is handed in by tests.
    """

    error: Exception | None = None

    period_s = _HTML_PERIOD_S
    """The shortest time between two updates; one that comes earlier is left out."""

    def __init__(
        self, scene: Scene, show: Show, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show
        self._clock = clock
        self._html = _piece(scene)
        self._sent_at = clock()
        self._over = False
        self.behind = False

    def bundle(self) -> dict[str, Any]:
        """Return the mimebundle that shows the view."""
        return {"text/html": self._html}

    def update(self, scene: Scene) -> None:
        """Show another scene, if it looks different and the last one is old enough."""
        now = self._clock()
        self.behind = not self._over and now - self._sent_at < self.period_s
        if self._over or self.behind:
            return
        html = _piece(scene)
        if html == self._html:
            return
        self._html, self._sent_at = html, now
        self._show({"text/html": html, "text/plain": text.render(scene)})

    def lost(self) -> bool:
        """Return false: without widgets nothing tells that a page was loaded since."""
        return False

    def replace(self, bundle: dict[str, Any]) -> None:
        """Move no more: the output itself is replaced by its display id."""
        self._over = True

    def close(self) -> None:
        """Move no more."""
        self._over = True


def _piece(scene: Scene) -> str:
    # What is wider than the page scrolls by itself, and no line of text makes room below.
    return f'<div style="display:flex;overflow:auto hidden">{svg.render(scene, "auto")}</div>'


class PictureView:
    """A still picture, refreshed when a cell ends and now and then while it runs.

    Drawing takes tens of milliseconds of processor time. A thread's calls draw every ``period_s``
    at most. At the ends of cells drawing has a budget, a twentieth of a core, of which up to a
    second is saved up: only a run of many short cells goes without. A cell that fails always gets
    its picture. ``error`` is what made drawing fail at the end of a cell; none is tried after it.
    ``clock`` gives seconds and ``used`` the processor seconds of the thread that calls; both are
    handed in by tests.
    """

    behind = False
    """Its thread calls :meth:`refresh` all the time: what is left out comes again."""

    def __init__(
        self, scene: Scene, show: Show, *, clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self.error: Exception | None = None
        self._show = show
        self._clock = clock
        self._used = used
        self._lock = threading.Lock()
        self._over = False
        self._took_s = self._drawn_at = 0.0
        self._saved_s = _MOST_SAVED_S
        self._counted_at = clock()
        self._shown = self._kept = scene
        self._bundle = self._draw(scene)

    @property
    def period_s(self) -> float:
        """The shortest time between two pictures from a thread: 5 s, or 20 times a drawing's."""
        return max(_PICTURE_PERIOD_S, self._took_s / _SHARE)

    def bundle(self) -> dict[str, Any]:
        """Return the mimebundle that shows the view."""
        return dict(self._bundle)

    def update(self, scene: Scene) -> None:
        """Show another scene; see :meth:`refresh`."""
        self.refresh(lambda: scene)

    def refresh(self, scene: Callable[[], Scene]) -> None:
        """Show what ``scene`` returns, if it is another than before; for the view's thread.

        A call that comes before ``period_s`` has passed since the last drawing does nothing, so
        the thread may have any pace. The scene is made under the view's lock: the picture of a
        cell's end is never replaced by an older one that the thread was drawing.
        """
        with self._lock:
            if self._over or self._clock() - self._drawn_at < self.period_s:
                return
            found = scene()
            if found != self._shown:
                self._send(found)

    def cell_ended(self, scene: Callable[[], Scene], *, failed: bool) -> None:
        """Show the scene at the end of a cell, from the cell's thread; nothing is raised.

        nbclient drops what is sent between two cells, so only what was sent here is known to
        have arrived. ``failed`` is for a cell that did not end well: it may be the last one.
        """
        with self._lock:
            if self._over or not (failed or self._can_afford()):
                return
            try:
                found = scene()
                if found != self._kept:
                    self._send(found)
                    self._kept = found
            except Exception as error:
                self.error = error.with_traceback(None)
                self._over = True

    def _send(self, scene: Scene) -> None:
        self._bundle = self._draw(scene)
        self._shown = scene
        self._show(dict(self._bundle))

    def _draw(self, scene: Scene) -> dict[str, Any]:
        # Not by the clock: beside a busy machine a drawing takes long and costs no more.
        before = self._used()
        drawn = picture(scene)
        self._took_s = self._used() - before
        self._drawn_at = self._clock()
        self._saved_s -= self._took_s
        return drawn

    def _can_afford(self) -> bool:
        now = self._clock()
        earned = (now - self._counted_at) * _SHARE
        self._counted_at = now
        self._saved_s = min(_MOST_SAVED_S, self._saved_s + earned)
        return self._saved_s > 0

    def lost(self) -> bool:
        """Return false: nobody has a page."""
        return False

    def replace(self, bundle: dict[str, Any]) -> None:
        """Draw no more: the output itself is replaced by its display id."""
        self._over = True

    def close(self) -> None:
        """Draw no more; harmless a second time."""
        self._over = True
