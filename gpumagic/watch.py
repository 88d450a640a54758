"""The watch: a live view of the session's recording, or of a file's, until it is frozen."""

from __future__ import annotations

import math
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .alerts import Alert, Alerts, parse_alerts
from .front_ends import FrontEnd, front_end
from .options import parse_strips
from .session import Session
from .views.actions import Status
from .views.column_cache import ColumnCache
from .views.readings import elapsed
from .views.refresher import Refresher
from .views.scene import Scene, build_scene
from .watch_content import DEMO, Live, Record, Replay, WatchOptions, all_s

if TYPE_CHECKING:
    from .views.live import View
    from .views.live_display import PictureView

__all__ = ["DEMO", "Record", "Watch", "WatchOptions"]

_TEXT_PERIOD_S = 1.0
_SLOWEST_S = 5.0
_FEWEST_TICKS = 24
"""A page may take some updates to draw a new view rightly, also of a replay that is over."""


class Watch:
    """One view, shown in one output, until :meth:`stop` puts a picture in its place.

    Raises :class:`~gpumagic.errors.GpuMagicError` for a GPU that is not there, a file that
    cannot be read or written, or an unknown strip; nothing is left running then.
    """

    def __init__(self, session: Session, options: WatchOptions) -> None:
        self.options = options
        self._session = session
        self._front = _front_end(session)
        settings = session.settings
        self._strips = options.strips or parse_strips(settings.metrics)
        self._renderer = options.renderer or settings.renderer
        self._content: Live | Replay = (
            Replay(session, options) if options.replay else Live(session, options)
        )
        self._window = options.window_s
        self._display_id = f"gpumagic-{uuid4().hex}"
        self._view: View | None = None
        self._picture: PictureView | None = None
        self._panel: Any = None
        self._refresher: Refresher | None = None
        self._frozen = False
        self._columns = ColumnCache()
        self._alerts = Alerts(parse_alerts(settings.alerts), announces=not self._content.replays)
        self._alert: Alert | None = None
        self._changed = True
        self._next_update = 0.0

    # -- what it shows ----------------------------------------------------------------------

    @property
    def _asked_s(self) -> float:
        """The window asked for in seconds, which is infinite for all there is."""
        asked: float = self._session.settings.window_s
        return asked if self._window is None else self._window

    def _window_s(self, now: float) -> float:
        window = self._asked_s
        return all_s(now - self._content.begun()) if window == math.inf else window

    def _caption(self, window: float) -> str:
        shown = "all" if self._asked_s == math.inf else f"last {elapsed(window)}"
        return self._content.caption(shown)

    def scene(self) -> Scene:
        """Return the scene as it is now."""
        content = self._content
        end = content.now()
        window = self._window_s(end)
        return build_scene(
            content.recording, start=end - window, end=end, gpus=content.gpus(),
            strips=self._strips, state=content.state, caption=self._caption(window),
            reasons=content.reasons, cache=self._columns, **self._said(),
        )

    def _said(self) -> dict[str, Any]:
        """Return the one sentence below the strips and what it is about."""
        notice, alert = self._content.notice(), self._alert
        if notice is None and alert is not None:
            return {"notice": alert.text, "about": alert.strips}
        return {"notice": notice}

    def _judge(self) -> None:
        """Look for what goes wrong now, also while the picture is held still."""
        content = self._content
        alert = self._alerts.judge(content.recording, content.present(), content.gpus())
        if alert != self._alert:
            self._alert = alert
            self._changed = True

    def frozen_scene(self) -> Scene:
        """Return the scene that stays: clock times, and the whole of a replay."""
        content = self._content
        window = self._window_s(content.now())
        start, end = content.freeze(window)
        caption = self._caption(window)
        if not content.replays:
            caption = f"{elapsed(end - start)}, {caption.partition(', ')[2]}"
        return build_scene(
            content.recording, start=start, end=end, gpus=content.gpus(),
            strips=self._strips, caption=caption,
            state="replay" if content.replays else "stopped",
            reasons=content.reasons, final=True, **({} if content.replays else self._said()),
        )

    # -- what its controls ask for; see views.actions.Actions ---------------------------------

    def status(self) -> Status:
        """Say what is shown at present."""
        asked = self._asked_s
        return Status(
            paused=self._content.state == "paused",
            window_s=None if asked == math.inf else asked,
            position=self._content.position,
        )

    def pause(self, paused: bool = True) -> None:
        """Hold the picture still, or let it move again; recording goes on meanwhile."""
        self._content.pause(paused)
        self._changed = True

    def show_window(self, seconds: float | None) -> None:
        """Show the last ``seconds``, or all there is for ``None``."""
        self._window = math.inf if seconds is None else seconds
        self._changed = True

    def seek(self, position: float) -> None:
        """Move a replay to a fraction of its recording; a live view has no other place."""
        self._content.seek(position)
        self._changed = True

    def go_on_from(self, before: Watch) -> None:
        """Keep the alerts of the watch that this one takes the place of: they are not over."""
        if not (self._content.replays or before._content.replays):
            self._alerts, before._alerts = before._alerts, self._alerts

    # -- life -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the view without showing it: what can fail fails here.

        Raises :class:`~gpumagic.errors.SettingError` for a renderer that is not installed.
        """
        if not self._in_notebook() or self.options.text:
            return
        show = partial(self._display, update=True)
        if self._front == "headless":
            from .views.live_display import PictureView

            self._view = self._picture = PictureView(self.frozen_scene(), show)
        elif self._renderer == "html" or (self._renderer == "auto" and self._front == "colab"):
            from .views.live_display import DisplayView

            self._view = DisplayView(self.scene(), show)
        else:
            self._make_widget()

    def _make_widget(self) -> None:
        from .views import live

        if self.options.sidecar:
            from .views.live_sidecar import SidePanel

            self._panel = SidePanel()
        renderer = self._renderer
        if renderer == "auto" and self._front == "vscode":
            renderer = "svg"  # bqplot's front end has to be fetched there
        self._view = live.make_view(self.scene(), renderer, live.extras_of(self))

    def show(self) -> None:
        """Display the view in the present output and keep it moving; see :meth:`prepare`."""
        from .views import text

        if not self._in_notebook():
            if self.over_at_once:
                print(text.render(self.frozen_scene()))
            else:
                print(text.render(self.scene()))
                print("%gpuwatch shows it again, %gpuwatch stop ends it.")
            return
        if self._view is None and not self.options.text:
            self.prepare()
        scene = self.scene()
        shown = {"text/plain": text.render(scene)}
        if self._view is None:
            self._display(shown)
            self._run(self._tick_text, _TEXT_PERIOD_S)
            return
        shown = {**shown, **self._view.bundle()}
        if self._panel is None:
            self._display(shown)
        else:
            from .views.live_sidecar import SENTENCE

            self._display(self._panel.bundle(shown))
            print(SENTENCE)
        self._run(self._tick if self._picture is None else self._tick_still, self._update_s)

    @property
    def over_at_once(self) -> bool:
        """Whether nothing is left to stop once it is shown: a recording as text in a terminal."""
        return self._content.replays and not self._in_notebook()

    def _pause_s(self, scene: Scene) -> float:
        """Return how long the picture can stay as it is, if nobody asks for another."""
        content = self._content
        still = content.state == "paused" or content.over()
        if still and self._refresher is not None and self._refresher.ticks >= _FEWEST_TICKS:
            return math.inf
        # A column of a long window fills slowly, and its scene is dear: four updates for each
        # column show all there is.
        column_s = (scene.end - scene.start) / scene.columns
        return min(column_s / 4, _SLOWEST_S)

    def _run(self, tick: Any, period_s: float) -> None:
        self._refresher = Refresher(tick, period_s)
        self.cell_began()
        self._refresher.start()

    def cell_began(self) -> None:
        """Let the updates from now on belong to the running cell, where that goes by context."""
        if self._refresher is not None and _needs_parent():
            self._refresher.follow()

    def cell_ended(self, *, failed: bool) -> None:
        """Bring the picture up to date in a notebook that nobody looks at while it runs."""
        if self._picture is not None:
            self._picture.cell_ended(self.frozen_scene, failed=failed)

    def _tick_still(self) -> None:
        assert self._picture is not None
        self._judge()
        self._picture.refresh(self.frozen_scene)

    def _tick(self) -> None:
        """Update the view if that is due, or something else was asked for."""
        view, refresher = self._view, self._refresher
        assert view is not None
        if refresher is not None:
            refresher.period_s = self._update_s  # a setting may change
        self._judge()
        now = time.monotonic()
        if not self._changed and now < self._next_update:
            return
        self._changed = False
        scene = self.scene()
        view.update(scene)
        # A view that shows fewer updates than it is given has not shown the last one.
        self._changed = self._changed or view.behind
        self._next_update = now + self._pause_s(scene) - self._update_s / 2

    @property
    def _update_s(self) -> float:
        return 1.0 / self._session.settings.updates_per_s

    def _tick_text(self) -> None:
        from .views import text

        self._judge()
        self._display({"text/plain": text.render(self.scene())}, update=True)

    def _in_notebook(self) -> bool:
        return self._front != "terminal"

    def _display(self, bundle: dict[str, Any], *, update: bool = False) -> None:
        from IPython.display import display

        metadata = {}
        if "image/png" in bundle:
            metadata["image/png"] = {"width": bundle.pop("width")}
        display(  # type: ignore[no-untyped-call]
            bundle, raw=True, metadata=metadata, display_id=self._display_id, update=update
        )

    def stop(self) -> None:
        """Freeze: put the picture in the place of the view, and let go of everything."""
        if self._frozen:
            return
        self._frozen = True
        if self._refresher is not None:
            self._refresher.stop()
        replaced = False
        try:
            if self._refresher is not None:
                replaced = self._show_twin()
        finally:
            self._alerts.end(self._content.present())
            self._content.close()
            if self._panel is not None:
                self._panel.close()
            if self._view is not None and not replaced:
                self._view.close()

    def _show_twin(self) -> bool:
        """Show the picture that stays; return whether the widget had to take it in."""
        from .views.live_display import picture

        twin = picture(self.frozen_scene())
        self._display(dict(twin), update=True)
        if self._view is None or self._panel is not None or not self._view.lost():
            return False
        # The page was reloaded: it has forgotten the display's id, so the picture stands under
        # the cell that stops, and inside the widget that the page still shows.
        self._view.replace(twin)
        self._display_id = f"gpumagic-{uuid4().hex}"
        self._display(dict(twin))
        return True

    @property
    def cpu_s(self) -> float:
        """Processor seconds that drawing has used."""
        return self._refresher.cpu_s if self._refresher is not None else 0.0

    def describe(self) -> str:
        """Say in words what is shown and how the view keeps its time."""
        refresher = self._refresher
        drawn = f"{refresher.ticks} updates" if refresher is not None else "text"
        if refresher is not None and refresher.error is not None:
            drawn += f", stopped: {type(refresher.error).__name__}: {refresher.error}"
        view = self._view
        if view is not None and view.error is not None:
            drawn += f", no picture: {type(view.error).__name__}: {view.error}"
        caption = self._caption(self._window_s(self._content.now()))
        return f"watch: {caption}, {drawn}"


def _front_end(session: Session) -> FrontEnd:
    chosen = session.settings.front_end
    if chosen != "auto":
        found: FrontEnd = chosen
        return found
    return front_end(os.environ, sys.modules, session.shell)


def _needs_parent() -> bool:
    """Tell whether this ipykernel fails to send from a context without a cell's (7.0 only)."""
    version = getattr(sys.modules.get("ipykernel"), "__version__", "")
    return bool(version.startswith("7.0."))
