"""The scene: all that a view of a recording shows, before anyone draws it.

The live view, the SVG, the PNG and the text draw one scene, so that they cannot drift apart.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from ..errors import DeviceError, SettingError
from ..recording import Recording
from ..sample import Device, Gap
from .arrange import rows_of
from .bins import Grid
from .column_cache import ColumnCache
from .parts import (
    Band,
    Block,
    Detail,
    GapNote,
    Heading,
    Layout,
    MarkLine,
    Panel,
    Row,
    Scene,
    State,
    Stretch,
    Trace,
)
from .readings import Reading, View, elapsed, read, source_of
from .strips import DEFAULT_STRIPS, STRIPS, Strip
from .table import columns_of_table, table_of
from .timeline import lay
from .wording import clean

__all__ = [
    "Band",
    "Block",
    "Detail",
    "GapNote",
    "Heading",
    "MarkLine",
    "Panel",
    "Row",
    "Scene",
    "Stretch",
    "Trace",
    "build_scene",
]

_MOST_GPUS_AS_ROWS = 2
_MOST_STRIPS_IN_TABLE = 5
_HOST_STRIPS = ("cpu", "ram")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def _strips(names: Sequence[str]) -> tuple[tuple[Strip, ...], tuple[Strip, ...]]:
    """Split strip names into those of GPUs and those of the host."""
    unknown = [name for name in names if name not in STRIPS]
    if unknown:
        raise SettingError(f"no strip is called {unknown[0]!r}; there are: {', '.join(STRIPS)}")
    found = [STRIPS[name] for name in dict.fromkeys(names)]
    host = [s for s in found if s.kind == "host"] or [STRIPS[name] for name in _HOST_STRIPS]
    return tuple(s for s in found if s.kind == "gpu"), tuple(host)


def _gpus(recording: Recording, ids: Collection[str] | None) -> tuple[Device, ...]:
    known = tuple(d for d in recording.devices if d.kind == "gpu")
    if ids is None:
        return known
    missing = set(ids) - {d.id for d in known}
    if missing:
        raise DeviceError(f"the recording has no GPU {min(missing)}")
    return tuple(d for d in known if d.id in ids)


def _layout(asked: Layout | None, gpus: int, strips: int) -> Layout:
    if asked is not None:
        return asked
    dense = gpus > _MOST_GPUS_AS_ROWS and strips <= _MOST_STRIPS_IN_TABLE
    return "table" if dense else "rows"


def _ago(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600 and whole % 3600 == 0:
        return f"−{whole // 3600} h"
    if whole >= 120 and whole % 60 == 0:
        return f"−{whole // 60} min"
    return f"−{elapsed(seconds)}"


def _clock(epoch: float, length: float) -> str:
    text = time.strftime("%H:%M:%S", time.localtime(epoch))
    return text if length >= 10 else f"{text}.{int(epoch % 1 * 10)}"


def _ends(start: float, end: float, live: bool, clock_times: bool) -> tuple[str, str]:
    """Write what stands at the two ends of the time axis."""
    length = end - start
    if clock_times:
        return _clock(start, length), _clock(end, length)
    return (_ago(length), "now") if live else ("0 s", elapsed(length))


def _relevant(gaps: Sequence[Gap], readings: Sequence[Reading]) -> list[Gap]:
    """Keep the gaps that a shown strip has."""
    shown = {(r.device.id, source_of(x.metric)) for r in readings for x in r.layers}
    sources = {source for _, source in shown}
    return [
        g for g in gaps
        if (g.device, g.source) in shown or (g.device is None and g.source in sources)
    ]


def build_scene(
    recording: Recording,
    *,
    start: float,
    end: float,
    gpus: Collection[str] | None = None,
    strips: Sequence[str] = DEFAULT_STRIPS,
    columns: int | None = None,
    state: State = "recording",
    caption: str = "",
    notice: str | None = None,
    about: Collection[tuple[str, str]] = (),
    clock_times: bool | None = None,
    host: bool = True,
    header: bool = True,
    layout: Layout | None = None,
    reasons: Mapping[str, str] = _NOTHING,
    cache: ColumnCache | None = None,
) -> Scene:
    """Build the scene of a recording between two times, in epoch seconds.

    ``gpus`` are ids of devices (all by default), ``strips`` short names of STRIPS; the host's
    CPU and RAM are shown below unless ``host`` is false. ``about`` lists (device id, strip) of
    the figures that ``notice`` speaks of. ``clock_times`` writes times of day at the ends of
    the axis, which is the default unless the state is "recording": only then ``end`` is now
    and a reading can be stale. Without them, other states count from "0 s" on.
    ``header=False`` leaves out the line with state and caption. ``reasons`` says for a metric
    or a source why it is missing, where the recording does not. ``columns`` is 120 by default,
    and what fits in a table. A view that moves hands in one ``cache``, which makes its next
    scenes cheap and changes nothing else.

    Raises :class:`SettingError` for an unknown strip and :class:`DeviceError` for an unknown
    GPU.
    """
    gpu_strips, host_strips = _strips(strips)
    devices = _gpus(recording, gpus)
    chosen = _layout(layout, len(devices), len(gpu_strips))
    host_device = next((d for d in recording.devices if d.kind == "host"), None)
    if not host:
        host_device = None
    if columns is None:
        columns = 120 if chosen == "rows" else columns_of_table(gpu_strips, host_strips)
    live = state == "recording"
    grid = Grid.over(start, end, columns)
    view = View(recording, grid, end, live, reasons, cache or ColumnCache())
    readings = [[read(view, device, strip) for strip in gpu_strips] for device in devices]
    host_readings = [read(view, host_device, s) for s in host_strips] if host_device else []
    place = table_of if chosen == "table" else rows_of
    arranged = place(
        readings, host_readings, gpu_strips, host_strips, grid, frozenset(about), header=header
    )
    every = [r for group in [*readings, host_readings] for r in group]
    bands, marks, gaps = lay(
        recording.spans(grid.start, end),
        recording.marks(grid.start, end),
        _relevant(recording.gaps(grid.start, end), every),
        grid=grid, until=end, panel=arranged.panels[0],
    )
    times = (not live) if clock_times is None else clock_times
    start_text, end_text = _ends(start, end, live, times)
    return Scene(
        state=state, caption=clean(caption), devices=arranged.devices, layout=chosen,
        columns=columns, start=grid.start, end=grid.end,
        start_text=start_text, end_text=end_text,
        panels=arranged.panels, headings=arranged.headings, blocks=arranged.blocks,
        bands=bands, marks=marks, gaps=gaps, notice=clean(notice) if notice else None,
        width=arranged.width, height=arranged.height,
        header_y=arranged.header_y, label_x=arranged.label_x, label_y=arranged.label_y,
        band_top=arranged.band_top, plot_bottom=arranged.plot_bottom,
        notice_y=arranged.notice_y,
    )
