"""What the live view says of the place under the pointer, without asking the kernel.

The browser gets the figures of all columns before anyone points at them: a cell that blocks the
kernel blocks no answer. An overlay, sent once for a layout, holds what reacts to the pointer and
a small script; hidden widgets hold the figures, in blocks of columns of which only those that
have changed are sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from .live_widgets import exact, quiet, resize
from .parts import Scene
from .pointer_overlay import Overlay, figures_of, overlay_of, render
from .pointer_words import BLOCK, Layer, Words, first_column
from .wording import FIGURE, LABEL, text_width

with quiet():
    import ipywidgets

__all__ = ["Pointer"]

_PERIOD_S = 1.0
_PERIOD_OF_NEW_WIDTHS_S = 5.0
_MOST_LABELS = 24
_LONGEST_LABEL = 40


def _item(key: str, text: str) -> str:
    return f'<i data-gpumagic="{escape(key)}">{escape(text, quote=False)}</i>'


def _labels(scene: Scene) -> list[tuple[float, float, str]]:
    """List what has a name on the time axis, with its ends in columns.

    What has no length can be hit a column beside it: one alone is three pixels wide.
    """
    near = 1 / scene.columns
    named = [(b.x0, b.x1, b.label) for b in scene.bands]
    named += [(m.x - near, m.x + near, m.text or m.label) for m in scene.marks]
    named += [
        (t.x - near, t.x + near, t.kind if t.count == 1 else f"{t.count} × {t.kind}")
        for note in scene.events for t in note.ticks
    ]
    named += [(g.x0, g.x1, f"gap: {g.reason}") for g in scene.gaps]
    return [
        (round(x0 * scene.columns, 1), round(x1 * scene.columns, 1),
         label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…")
        for x0, x1, label in named if label
    ][-_MOST_LABELS:]


def _room(scene: Scene, right: float) -> int:
    """Return how many characters fit between the header's words and what lies right of them."""
    taken = 14 + text_width(scene.state, FIGURE) * 1.06 + 16
    taken += sum(8 + text_width(text, LABEL) for text in (scene.caption, scene.devices) if text)
    return max(0, int((scene.width - right - taken) / (0.56 * LABEL)))


class Pointer:
    """Tell the values and the time under the pointer; see :class:`.live.Extra`.

    ``right`` is the room in pixels that something else, such as controls, takes at the right
    end of the header. ``clock`` returns seconds that never run backwards.
    """

    def __init__(self, right: float = 240.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._right = right
        self._clock = clock
        self._due = 0.0
        self._seen: Scene | None = None
        self._overlay: Overlay | None = None
        self._version = 0
        self._key = ""
        self._anew = False
        self._words = Words()
        self._holders: dict[str, Any] = {}
        self._box: Any = None
        self._over: Any = None
        self._head: Any = None
        self._size: Any = None
        self._hidden: dict[str, Any] = {}

    def widgets(self) -> Sequence[Any]:
        """Return the one widget that holds all others."""
        if self._box is None:
            with quiet():
                self._size = ipywidgets.Layout(**exact(0, 0))
                self._over = ipywidgets.HTML(layout=self._size)
                # Models that they share are models fewer.
                self._hidden = {
                    "layout": ipywidgets.Layout(display="none"), "style": self._over.style,
                }
                self._head = ipywidgets.HTML(**self._hidden)
                self._box = ipywidgets.Box([self._over, self._head], layout=self._size)
                self._box.add_class("gpumagic-pointer")
        return (self._box,)

    def update(self, scene: Scene) -> None:
        """Follow another scene, at most once a second while it only moves."""
        now = self._clock()
        if now < self._due and not self._differs(scene):
            return
        self._seen, self._due = scene, now + _PERIOD_S
        with quiet():
            self.widgets()
            figures = figures_of(scene)
            self._lay(overlay_of(scene, [figure for figure, _ in figures]))
            self._send(scene, [layer for _, layer in figures])

    def _differs(self, scene: Scene) -> bool:
        """Tell whether a scene has done more than move on a little since the last one sent."""
        before = self._seen
        if before is None or scene.state not in ("recording", "replay"):
            return before is not scene
        length, then = scene.end - scene.start, before.end - before.start
        return (
            (scene.state, scene.layout, scene.columns, scene.height)
            != (before.state, before.layout, before.columns, before.height)
            or abs(length - then) > 0.1 * then
        )

    def _lay(self, overlay: Overlay) -> None:
        """Send the overlay again if it has changed."""
        before, self._overlay = self._overlay, overlay
        if overlay == before:
            return
        if before is None or overlay.layers != before.layers:
            self._version += 1
        if before is None or overlay.size != before.size:
            resize(self._size, *overlay.size)
        self._over.value = render(overlay, self._version, self._right)

    def _send(self, scene: Scene, layers: Sequence[Layer]) -> None:
        """Send the blocks that have changed; the newest one goes with the head."""
        first, width = first_column(scene)
        key = f"{self._version}:{width!r}"
        anew = key != self._key
        if anew:
            if self._anew:
                # A window that grows with the recording makes all columns new each time.
                self._due += _PERIOD_OF_NEW_WIDTHS_S - _PERIOD_S
            self._key = key
            self._words.clear()
        self._anew = anew
        blocks = self._words.take(scene, layers)
        texts = {f"{key} {number}": text for number, text in blocks.items()}
        newest = texts.popitem()
        head = {
            "version": self._version, "key": key, "first": first, "count": scene.columns,
            "width": width, "live": scene.end_text == "now",
            "zone": time.localtime(scene.end).tm_gmtoff, "room": _room(scene, self._right),
            "labels": _labels(scene),
        }
        said = json.dumps(head, ensure_ascii=False, separators=(",", ":"))
        # As many as can be in view in part, but for the newest.
        self._hold(texts, (scene.columns + BLOCK - 2) // BLOCK)
        self._head.value = _item("head", said) + _item(*newest)

    def _hold(self, texts: dict[str, str], most: int) -> None:
        """Put each block into its widget, or into one of a block that has left the view."""
        made = [ipywidgets.HTML(**self._hidden) for _ in range(most - len(self._holders))]
        for holder in made:
            # No block has such a key.
            self._holders[holder.model_id] = holder
        free = [key for key in self._holders if key not in texts]
        for key, text in texts.items():
            if key not in self._holders:
                self._holders[key] = self._holders.pop(free.pop(0))
            self._holders[key].value = _item(key, text)
        if made:
            self._box.children = (*self._box.children, *made)
