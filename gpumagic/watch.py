"""The watch: a live view of the session's recording, or of a file's, until it is frozen."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

from .options import parse_strips
from .session import Session
from .units import duration
from .views.column_cache import ColumnCache
from .views.readings import elapsed
from .views.refresher import Refresher
from .views.scene import Scene, build_scene
from .watch_content import DEMO, Live, Record, Replay, WatchOptions, window_s

__all__ = ["DEMO", "Record", "Watch", "WatchOptions", "record_text", "status_text"]

_TEXT_PERIOD_S = 1.0
_TWIN_SCALE = 2
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
        settings = session.settings
        self._strips = options.strips or parse_strips(settings.metrics)
        self._renderer = options.renderer or settings.renderer
        self._content: Live | Replay = (
            Replay(session, options) if options.replay else Live(session, options)
        )
        self._display_id = f"gpumagic-{uuid4().hex}"
        self._view: Any = None
        self._refresher: Refresher | None = None
        self._frozen = False
        self._columns = ColumnCache()

    # -- what it shows ----------------------------------------------------------------------

    def scene(self) -> Scene:
        """Return the scene as it is now."""
        content = self._content
        start, end = content.span()
        return build_scene(
            content.recording, start=start, end=end, gpus=content.gpus(),
            strips=self._strips, state=content.state, caption=content.caption,
            notice=content.notice(), reasons=content.reasons, cache=self._columns,
        )

    def frozen_scene(self) -> Scene:
        """Return the scene that stays: clock times, and the whole of a replay."""
        content = self._content
        start, end = content.freeze()
        caption = content.caption
        if content.state == "recording":
            caption = f"{elapsed(end - start)}, {caption.partition(', ')[2]}"
        return build_scene(
            content.recording, start=start, end=end, gpus=content.gpus(),
            strips=self._strips, caption=caption,
            state="replay" if content.state == "replay" else "stopped",
            notice=content.notice(), reasons=content.reasons,
        )

    # -- life -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the view without showing it: what can fail fails here.

        Raises :class:`~gpumagic.errors.SettingError` for a renderer that is not installed.
        """
        if self._in_notebook() and not self.options.text:
            from .views import live

            self._view = live.make_view(self.scene(), self._renderer)

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
        self._display({**self._view.bundle(), **shown})
        self._run(self._tick, self._period_s(scene))

    @property
    def over_at_once(self) -> bool:
        """Whether nothing is left to stop once it is shown: a recording as text in a terminal."""
        return self._content.state == "replay" and not self._in_notebook()

    def _period_s(self, scene: Scene) -> float:
        # A column of a long window fills slowly, and its scene is dear: four updates for each
        # column show all there is.
        column_s = window_s(self._session, self.options) / scene.columns
        return max(1.0 / self._session.settings.updates_per_s, min(column_s / 4, _SLOWEST_S))

    def _run(self, tick: Any, period_s: float) -> None:
        self._refresher = Refresher(tick, period_s)
        self.cell_began()
        self._refresher.start()

    def cell_began(self) -> None:
        """Let the updates from now on belong to the running cell, where that goes by context."""
        if self._refresher is not None and _needs_parent():
            self._refresher.follow()

    def _tick(self) -> None:
        scene = self.scene()
        self._view.update(scene)
        refresher = self._refresher
        if refresher is None:
            return
        over = self._content.over() and refresher.ticks >= _FEWEST_TICKS
        refresher.period_s = 3600.0 if over else self._period_s(scene)  # a setting may change

    def _tick_text(self) -> None:
        from .views import text

        self._display({"text/plain": text.render(self.scene())}, update=True)

    def _in_notebook(self) -> bool:
        return hasattr(self._session.shell, "kernel")

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
                replaced = self._show_twin(_twin(self.frozen_scene()))
        finally:
            self._content.close()
            if self._view is not None and not replaced:
                self._view.close()

    def _show_twin(self, twin: dict[str, Any]) -> bool:
        """Show the picture that stays; return whether the widget had to take it in."""
        self._display(dict(twin), update=True)
        if self._view is None or not self._view.lost():
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

    def status(self) -> str:
        """Say in words what is shown and how the view keeps its time."""
        refresher = self._refresher
        drawn = f"{refresher.ticks} updates" if refresher is not None else "text"
        if refresher is not None and refresher.error is not None:
            drawn += f", stopped: {type(refresher.error).__name__}: {refresher.error}"
        return f"watch: {self._content.caption}, {drawn}"


def _twin(scene: Scene) -> dict[str, Any]:
    from .views import png, text

    picture = png.render(scene, scale=_TWIN_SCALE)
    # The picture has a margin around the scene; its header says how wide it is with it.
    width = int.from_bytes(picture[16:20], "big") // _TWIN_SCALE
    encoded = base64.b64encode(picture).decode("ascii")
    return {"image/png": encoded, "width": width, "text/plain": text.render(scene)}


def _needs_parent() -> bool:
    """Tell whether this ipykernel fails to send from a context without a cell's (7.0 only)."""
    import sys

    version = getattr(sys.modules.get("ipykernel"), "__version__", "")
    return bool(version.startswith("7.0."))


def record_text(record: Record) -> str:
    """Say in words how far a recording into a file has come."""
    lines = "1 line" if record.lines == 1 else f"{record.lines} lines"
    trouble = f"; it cannot be written any more: {record.error}" if record.error else ""
    return f"{record.path}, {lines}{trouble}"


def status_text(session: Session) -> str:
    """Say in text what runs: the watch, who holds the sampler, and how sources keep time."""
    lines = [session.watch.status() if session.watch is not None else "watch: none"]
    if session.record is not None:
        lines.append(f"recording: {record_text(session.record)}")
    sampler = session.sampler
    if sampler is None:
        lines.append("sampling: stopped (nobody needs it)")
        return "\n".join(lines)
    holders = ", ".join(session.leases)
    lines.append(
        f"sampling: for {holders}; {duration(session.watch_cpu_s)} of processor time so far"
    )
    reasons = sampler.reasons
    for name, stats in sampler.stats.items():
        period = session.recording.periods.get(name, 0.0)
        line = (
            f"  {name}: every {period:g} s, {stats.readings} readings, {stats.late} late,"
            f" {stats.missed} missed"
        )
        if name in reasons:
            line = f"  {name}: n/a: {reasons[name]}"
        lines.append(line)
    for device in session.recording.devices:
        parts = [device.label, device.torch_label, device.name]
        lines.append("  " + "  ".join(part for part in parts if part and part != "Host"))
    return "\n".join(line.rstrip() for line in lines)
