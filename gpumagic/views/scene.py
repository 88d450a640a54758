"""The scene: all that a view of a recording shows, before anyone draws it.

The live view, the SVG, the PNG and the text draw one scene, so that they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from ..errors import DeviceError, SettingError
from ..recording import Recording
from ..sample import Device, Gap
from .arrange import rows_of, without_notice
from .axis import Axis
from .bins import Grid
from .column_cache import ColumnCache
from .events import events_of
from .layers import View, source_of
from .parts import (
    Band,
    Block,
    Detail,
    EventNote,
    GapNote,
    Heading,
    Key,
    Layout,
    MarkLine,
    Panel,
    Row,
    Scene,
    State,
    Stretch,
    Tick,
    Trace,
)
from .readings import Reading, read
from .strips import DEFAULT_STRIPS, STRIPS, Strip
from .table import columns_of_table, table_of
from .timeline import lay
from .titles import in_order, titles_of
from .wording import clean

__all__ = [
    "Band",
    "Block",
    "Detail",
    "EventNote",
    "GapNote",
    "Heading",
    "Key",
    "MarkLine",
    "Panel",
    "Row",
    "Scene",
    "Stretch",
    "Tick",
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
    known = in_order([d for d in recording.devices if d.kind == "gpu"])
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


def _relevant(gaps: Sequence[Gap], readings: Sequence[Reading]) -> list[Gap]:
    """Keep the gaps that a shown strip has."""
    shown = {
        (r.device.id, source_of(x.metric))
        for r in readings for x in r.layers if x.layer.style != "other"
    }
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
    final: bool | None = None,
    shares: bool | None = None,
    reasons: Mapping[str, str] = _NOTHING,
    cache: ColumnCache | None = None,
) -> Scene:
    """Build the scene of a recording between two times, in epoch seconds.

    ``gpus`` are ids of devices (all by default), ``strips`` short names of STRIPS; the host's
    CPU and RAM are shown below unless ``host`` is false. ``about`` lists (device id, strip) of
    the figures that ``notice`` speaks of. ``clock_times`` writes times of day at the ends of
    the axis, which is the default unless the state is "recording": only then ``end`` is now
    and a reading can be stale. Without them, other states count from "0 s" on.
    ``header=False`` leaves out the line with state and caption. ``final`` says that the picture
    will not change, so that no line is kept for a notice that may come; by default that is so
    when the state is "stopped". ``shares`` tells the share of other processes from ours
    and that of workers from other children, by default where there is a header: a report has
    words of its own for both. ``reasons`` says for a metric
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
    titles = titles_of([*devices, *([host_device] if host_device else [])])
    if columns is None:
        dense = chosen == "table"
        columns = columns_of_table(gpu_strips, host_strips, titles) if dense else 120
    live = state == "recording"
    grid = Grid.over(start, end, columns)
    cache = cache or ColumnCache()
    gaps = recording.gaps(grid.start, end)
    view = View(
        recording, grid, end, live, reasons, cache, header if shares is None else shares, gaps
    )
    readings = [[read(view, device, strip) for strip in gpu_strips] for device in devices]
    host_readings = [read(view, host_device, s) for s in host_strips] if host_device else []
    place = table_of if chosen == "table" else rows_of
    arranged = place(
        readings, host_readings, gpu_strips, host_strips, grid, frozenset(about), titles,
        header=header, cache=cache,
    )
    every = [r for group in [*readings, host_readings] for r in group]
    times = (not live) if clock_times is None else clock_times
    axis = Axis(
        start, end, "clock" if times else "live" if live else "offset", arranged.label_x
    )
    line = lay(
        recording.spans(grid.start, end),
        recording.marks(grid.start, end),
        _relevant(gaps, every),
        [e for d in devices for e in events_of(recording, d.id, grid, end)],
        grid=grid, axis=axis, until=end, panel=arranged.panels[0],
    )
    if final is None:
        final = state == "stopped"
    if final and not notice:
        arranged = without_notice(arranged)
    start_text, end_text = axis.ends()
    return Scene(
        state=state, caption=clean(caption), devices=arranged.devices, layout=chosen,
        columns=columns, start=grid.start, end=grid.end,
        start_text=start_text, end_text=end_text,
        panels=arranged.panels, headings=arranged.headings, blocks=arranged.blocks,
        bands=line.bands, marks=line.marks, gaps=line.gaps, events=line.events,
        notice=clean(notice) if notice else None,
        width=arranged.width, height=arranged.height,
        header_y=arranged.header_y, label_x=arranged.label_x, label_y=arranged.label_y,
        band_top=arranged.band_top, plot_bottom=arranged.plot_bottom,
        notice_y=arranged.notice_y,
    )
