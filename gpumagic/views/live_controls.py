"""The controls of the live view: plain words that say what the kernel shows.

A click travels to the kernel as a message, and the kernel reads it when no cell runs. So a word
is bold only once its watch has said so; until then, what was clicked is underlined with dots by
the page itself. Buttons have no value that both sides could write at the same moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any

from .actions import WINDOWS, Actions
from .live_widgets import exact, quiet, resize
from .parts import Scene

with quiet():
    import ipywidgets

__all__ = ["Controls"]

_HEIGHT = 24.0
_SLIDER = 110.0
_STEP = 0.01
"""About a pixel of the slider."""

_BASELINE = 14.0
"""Where the words' baseline lies in their line."""

_HANDS_OFF_S = 2.0
"""For how long after a movement by hand the slider is left alone."""

_IDLE = "takes effect when the kernel is idle"

_INK, _LABEL = "var(--jp-ui-font-color1, #212121)", "var(--jp-ui-font-color2, #616161)"
_LINE, _USE = "var(--jp-border-color1, #c4c4c4)", "var(--jp-brand-color1, #2f7fc1)"

# The page marks what was clicked (data-asked) and forgets it with the next word of the kernel,
# which comes as a class or as another text. Lab's own keys would take Enter and arrows away from
# what has the keyboard; a click leaves the keyboard where it is. The picture whose handler this
# is can be loaded before it is in the page.
_SCRIPT = """
const start = left => {
  const box = this.closest('.gpumagic-controls');
  if (!box) return left && setTimeout(start, 100, left - 1);
  const all = (query, act) => box.querySelectorAll(query).forEach(act);
  const say = () => {
    all('button', b => b.removeAttribute('data-asked'));
    all('button, .noUi-handle', e => e.setAttribute('data-lm-suppress-shortcuts', 'true'));
    all('.gpumagic-window', b =>
      b.setAttribute('aria-pressed', b.classList.contains('gpumagic-shown')));
  };
  say();
  new MutationObserver(found => {
    if (found.some(({target}) => target == box || target.tagName == 'BUTTON')) say();
  }).observe(box, {subtree: true, childList: true, attributeFilter: ['class']});
  box.addEventListener('mousedown',
    e => e.button == 0 && e.target.closest('button') && e.preventDefault());
  box.addEventListener('click', e => {
    const word = e.target.closest('button');
    if (!word) return;
    if (word.matches('.gpumagic-window'))
      all('.gpumagic-window', b => b.removeAttribute('data-asked'));
    word.setAttribute('data-asked', '');
  });
};
start(100);
"""

_STYLE = f"""<style>
.gpumagic-live .gpumagic-controls {{
  pointer-events: none; justify-content: flex-end; align-items: flex-start; }}
.gpumagic-live .gpumagic-controls > * {{ pointer-events: auto; }}
.gpumagic-live .gpumagic-controls button {{
  all: unset; box-sizing: border-box; flex: none; width: auto; height: 20px; padding: 0 5px;
  margin: 0; cursor: pointer; pointer-events: auto; white-space: pre; text-align: right;
  color: {_LABEL};
  font: 12px/20px var(--jp-ui-font-family, system-ui, Helvetica, Arial, sans-serif);
  text-underline-offset: 3px; box-shadow: none !important; background: none !important; }}
.gpumagic-live .gpumagic-controls button:last-child {{ padding-right: 0; }}
.gpumagic-live .gpumagic-controls button.gpumagic-pause {{ min-width: 56px; padding-right: 14px; }}
.gpumagic-live .gpumagic-controls button:hover {{ color: {_INK}; }}
.gpumagic-live .gpumagic-controls button:focus-visible {{ outline: 1px solid {_USE}; }}
.gpumagic-live .gpumagic-controls button[data-asked] {{ text-decoration: underline dotted; }}
.gpumagic-live .gpumagic-controls button.gpumagic-shown {{
  color: {_INK}; font-weight: 600; text-decoration: underline solid; }}
.gpumagic-live .gpumagic-controls .widget-slider {{
  height: 20px; margin: 0 8px 0 0; padding: 0; min-width: 0; }}
.gpumagic-live .gpumagic-controls .slider-container {{
  margin: 0 6px; padding: 0; height: 20px; display: flex; align-items: center; }}
.gpumagic-live .gpumagic-controls .noUi-target {{
  flex: 1; margin: 0; height: 3px; background: {_LINE}; border: 0; border-radius: 0;
  box-shadow: none; }}
.gpumagic-live .gpumagic-controls .noUi-connect {{ background: {_USE}; }}
.gpumagic-live .gpumagic-controls .noUi-connects {{ border-radius: 0; }}
.gpumagic-live .gpumagic-controls .noUi-handle {{
  top: -4px; right: -5px; width: 11px; height: 11px; border: 0; border-radius: 50%;
  background: {_USE}; box-shadow: none; transform: none; }}
.gpumagic-live .gpumagic-controls .noUi-handle:focus-visible {{
  outline: 1px solid {_INK}; outline-offset: 2px; }}
</style>"""

# A picture of one empty point, whose only task is to run the script.
_POINT = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
_START = f'<img alt="" src="data:image/gif;base64,{_POINT}" onload="{escape(_SCRIPT)}">'


def _command(seconds: float | None) -> str:
    return f"%gpuwatch -w {'all' if seconds is None else f'{seconds:g}'}"


class Controls:
    """Offer a watch's actions as words, and a slider for a replay; see :class:`.live.Extra`.

    ``clock`` returns seconds that never run backwards.
    """

    def __init__(self, actions: Actions, clock: Callable[[], float] = time.monotonic) -> None:
        self._actions = actions
        self._clock = clock
        self._box: Any = None
        self._place: Any = None
        self._pause: Any = None
        self._windows: list[tuple[float | None, Any]] = []
        self._slider: Any = None
        self._where: tuple[float, float | None] | None = None
        self._written: float | None = None
        self._moved = -math.inf

    def widgets(self) -> Sequence[Any]:
        """Return the one widget that holds all others."""
        if self._box is None:
            with quiet():
                self._make()
        return (self._box,)

    def _make(self) -> None:
        hidden = ipywidgets.HTML(_STYLE + _START, layout={"display": "none"})
        self._pause = ipywidgets.Button(description="pause", tooltip=_IDLE)
        self._pause.add_class("gpumagic-pause")
        self._pause.on_click(self._toggle)
        # Models that the words share are models fewer.
        shared = {"layout": self._pause.layout, "style": self._pause.style}
        for word, seconds in WINDOWS:
            button = ipywidgets.Button(
                description=word, tooltip=f"{_IDLE}; {_command(seconds)} does the same", **shared
            )
            button.add_class("gpumagic-window")
            button.on_click(partial(self._show, seconds))
            self._windows.append((seconds, button))
        self._place = ipywidgets.Layout(**exact(0, _HEIGHT), visibility="hidden")
        buttons = [button for _, button in self._windows]
        self._box = ipywidgets.HBox([hidden, self._pause, *buttons], layout=self._place)
        self._box.add_class("gpumagic-controls")

    # These run on the thread that reads the browser's messages and write no trait: traits
    # belong to the view's thread.

    def _toggle(self, _: Any) -> None:
        self._actions.pause(not self._actions.status().paused)

    def _show(self, seconds: float | None, _: Any) -> None:
        self._actions.show_window(seconds)

    def _seek(self, change: Any) -> None:
        # The view's own writing is no movement by hand.
        if change["new"] != self._written:
            self._written = None
            self._moved = self._clock()
            self._actions.seek(change["new"])

    def update(self, scene: Scene) -> None:
        """Follow another scene and say what its watch shows."""
        with quiet():
            self.widgets()
            self._follow(scene)
            status = self._actions.status()
            word = "resume" if status.paused else "pause"
            if self._pause.description != word:
                self._pause.description = word
            for seconds, button in self._windows:
                shown = "gpumagic-shown" in button._dom_classes
                if shown != (seconds == status.window_s):
                    (button.remove_class if shown else button.add_class)("gpumagic-shown")
            if status.position is not None:
                self._move(status.position)

    def _follow(self, scene: Scene) -> None:
        """Keep the words at the right end of the header."""
        where = scene.width, scene.header_y
        if where == self._where:
            return
        self._where = where
        more = {"visibility": "hidden"} if scene.header_y is None else {
            "visibility": "visible", "margin": f"{scene.header_y - _BASELINE:g}px 0 0"
        }
        resize(self._place, scene.width, _HEIGHT, **more)

    def _move(self, position: float) -> None:
        """Move the slider, unless it may be in someone's hand."""
        place = round(min(1.0, max(0.0, position)) / _STEP) * _STEP
        if self._slider is None:
            self._slider = ipywidgets.FloatSlider(
                value=place, min=0.0, max=1.0, step=_STEP, readout=False,
                layout={"width": f"{_SLIDER:g}px"},
            )
            self._slider.observe(self._seek, names="value")
            sheet, *words = self._box.children
            self._box.children = (sheet, self._slider, *words)
        elif self._clock() - self._moved >= _HANDS_OFF_S and self._slider.value != place:
            self._written = place
            self._slider.value = place
