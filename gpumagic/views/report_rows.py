"""The table of a report: which figures stand in which row, and in which unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..metrics import METRICS
from ..sample import Device
from ..summary import DeviceSummary, Figure
from ..units import GIB, KIB, MIB
from .parts import Row, Scene, Trace
from .report_parts import COLUMNS, ReportLine, Section, Strip
from .strips import Scale, scale_of
from .wording import clean

__all__ = [
    "TOO_SHORT", "cpu_figure", "gpu_section", "host_section", "limit_of",
    "scale_for", "span_text",
]

TOO_SHORT = "too short to say"
"""How the reasons of a cell that is shorter than a reading begin."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row: its label, figure, columns, its limit, and words after that.

    ``drawn`` is the metric whose trace stands for it, where it has none of its own.
    """

    label: str
    figure: Figure
    columns: str
    ceiling: float | None = None
    words: str = ""
    ringed: bool = False
    drawn: str = ""

    @property
    def values(self) -> list[float]:
        """The figures that are shown."""
        figures = (getattr(self.figure, column) for column in self.columns.split())
        return [value for value in figures if value is not None]

    @property
    def too_short(self) -> bool:
        """Whether the row would say little more than that: it has neither mean nor peak."""
        return (
            "mean" in self.columns
            and self.figure.mean is None
            and self.figure.reason.startswith(TOO_SHORT)
        )

    @property
    def measured(self) -> bool:
        if self.too_short:
            return False
        return any(getattr(self.figure, c) is not None for c in self.columns.split())


_BYTE_SCALES = tuple(
    (step, Scale(1 / step, 1, unit)) for step, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
)


def scale_for(metric: str, values: Iterable[float | None]) -> Scale:
    """Return the one unit for some figures of a metric, chosen by the largest of them."""
    if METRICS[metric].unit != "bytes":
        return scale_of(metric)
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    if largest == 0:
        return _BYTE_SCALES[0][1]
    # 1023.96 MiB would be written as 1024.0 MiB.
    return next((s for step, s in _BYTE_SCALES if largest >= step * 0.9999), Scale(1, 0, "B"))


def span_text(scale: Scale, low: float | None, high: float) -> str:
    """Write a figure that lies between two values, as one number where both read the same."""
    text = scale.number(high)
    if low is None or scale.number(low) == text:
        return text
    return f"{scale.number(low)} to {text}"


def limit_of(device: Device, metric: str) -> float | None:
    """Return the ceiling of a metric on a device, in base units."""
    ceiling = METRICS[metric].ceiling
    return device.constants.get(ceiling) if isinstance(ceiling, str) else ceiling


def cpu_figure(host: DeviceSummary) -> Figure:
    """Add up the processor time of this process and of its children.

    Their peaks need not meet: that of the sum is known to lie between the larger one and both.
    """
    own, children = host.figure("process_cpu_ratio"), host.figure("children_cpu_ratio")
    if own.mean is None or own.peak is None or children.mean is None or children.peak is None:
        return own
    mean = own.mean + children.mean
    low = max(own.peak, children.peak, mean)
    return replace(own, mean=mean, peak=own.peak + children.peak, peak_low=low)


def _ram_figure(host: DeviceSummary) -> tuple[str, Figure]:
    """Return whose memory counts, and its figure: the container's, or the machine's."""
    container = host.figure("container_memory_used_bytes")
    if container.measured:
        return "RAM, container", container
    return "RAM, machine", host.figure("host_memory_used_bytes")


def _gpu_entry(gpu: DeviceSummary, label: str, metric: str, columns: str, **more: object) -> _Entry:
    ceiling = limit_of(gpu.device, metric)
    return _Entry(label, gpu.figure(metric), columns, ceiling, **more)  # type: ignore[arg-type]


def gpu_section(
    gpu: DeviceSummary, title: str, scene: Scene | None, about: frozenset[str] = frozenset()
) -> Section:
    """Arrange the rows of a GPU; those of metrics ``about`` are set off."""
    strips = [
        ("util", [
            _gpu_entry(gpu, "GPU-Util", "gpu_utilization_ratio", "mean peak"),
            _gpu_entry(gpu, "SM active", "gpu_sm_active_ratio", "mean peak"),
        ]),
        ("mem", [
            _gpu_entry(gpu, "memory used", "gpu_memory_used_bytes", "start peak end"),
            _gpu_entry(gpu, "reserved", "torch_reserved_bytes", "start peak end"),
            _gpu_entry(gpu, "allocated", "torch_allocated_bytes", "start peak end", ringed=True),
        ]),
        ("power", [
            _gpu_entry(gpu, "power", "gpu_power_watts", "start mean peak end", words=" cap"),
        ]),
        ("temp", [
            _gpu_entry(
                gpu, "temperature", "gpu_temperature_celsius", "start mean peak end",
                words=" slowdown",
            ),
        ]),
    ]
    found = _strips(strips, gpu.device, scene, about)
    return Section(title, found, device=gpu.device.id)


def host_section(
    host: DeviceSummary, title: str, scene: Scene | None, about: frozenset[str] = frozenset()
) -> Section:
    """Arrange the rows of the host; those of metrics ``about`` are set off."""
    device = host.device
    cores = limit_of(device, "process_cpu_ratio")
    cpu = [_Entry("CPU", cpu_figure(host), "mean peak", cores)]
    label, used = _ram_figure(host)
    ram = [
        _Entry(label, used, "start peak end", limit_of(device, used.metric)),
        _Entry("this process", host.figure("process_rss_bytes"), "start peak end"),
    ]
    children = int(host.figure("children_count").peak or 0)
    workers = int(host.figure("workers_count").peak or 0)
    busy = host.figure("workers_cpu_ratio")
    others = children > workers or busy.mean is None
    word = "1 child" if children == 1 else f"{children} children"
    if children and others:
        cpu.append(_Entry(word, host.figure("children_cpu_ratio"), "mean peak"))
    if workers and busy.mean is not None:
        named = "1 worker" if workers == 1 else f"{workers} workers"
        # Where all children are workers, the children's trace is theirs.
        drawn = "" if others else "children_cpu_ratio"
        cpu.append(_Entry(named, busy, "mean peak", drawn=drawn))
        word = word if others else named
    if children:
        ram.append(_Entry(word, host.figure("children_rss_bytes"), "start peak end"))
    found = _strips([("cpu", cpu), ("ram", ram)], device, scene, about)
    return Section(title, found, device=device.id)


def _row(scene: Scene | None, device: str, name: str) -> Row | None:
    if scene is None:
        return None
    return next((r for r in scene.rows if r.device == device and r.name == name), None)


def _strips(
    strips: Sequence[tuple[str, list[_Entry]]],
    device: Device,
    scene: Scene | None,
    about: frozenset[str],
) -> tuple[Strip, ...]:
    """Make strips of what was measured; the rest is gathered by its reason, which stands once."""
    found: list[Strip] = []
    short = {clean(e.figure.reason) for _, entries in strips for e in entries if e.too_short}
    too_short = short.pop() if len(short) == 1 else TOO_SHORT
    missing: dict[str, tuple[int, list[str]]] = {}
    for name, entries in strips:
        measured = [entry for entry in entries if entry.measured]
        if measured:
            found.append(_strip(measured, _row(scene, device.id, name), about))
        for entry in entries:
            if not entry.measured:
                reason = clean(entry.figure.reason) or "not read"
                if reason.startswith(TOO_SHORT):
                    reason = too_short
                missing.setdefault(reason, (len(found), []))[1].append(entry.label)
    everything = sum(len(entries) for _, entries in strips)
    for reason, (place, labels) in reversed(missing.items()):
        label = device.label if len(labels) == everything else ", ".join(labels)
        found.insert(place, Strip((ReportLine(label),), None, reason))
    return tuple(found)


def _strip(entries: Sequence[_Entry], row: Row | None, about: frozenset[str]) -> Strip:
    if row is not None and not row.drawn:
        row = None
    reason = _brief(entries)
    lines: list[ReportLine] = []
    shared = ""
    together = [value for entry in entries for value in entry.values]
    for entry in entries:
        line, unit = _line(entry, _scale(entry, together), None if reason else row)
        line = replace(line, strong=entry.figure.metric in about)
        if not lines:
            shared = unit if line.limit.partition(" ")[2].startswith(_one_of(unit)) else ""
            top = row.limit if row is not None and not reason and row.limit[:4] == "top " else ""
            line = replace(line, top=top)
            shared = shared or (unit if not line.limit and top.endswith(unit) else "")
        else:
            line = replace(line, limit="")
        lines.append(line if unit == shared else replace(line, unit=unit))
    return Strip(tuple(lines), None if reason else row, reason)


def _one_of(unit: str) -> str:
    return "core" if unit == "cores" else unit


def _brief(entries: Sequence[_Entry]) -> str:
    """Say briefly why figures that are there have no mean, or no sparkline."""
    reason = next((clean(e.figure.reason) for e in entries if e.figure.reason), "")
    if not reason.startswith(TOO_SHORT):
        return reason
    whole = all(getattr(e.figure, c) is not None for e in entries for c in e.columns.split())
    return "too short to draw" if whole else TOO_SHORT


def _scale(entry: _Entry, together: Sequence[float]) -> Scale:
    """Return the unit that the rows of a strip share, or a smaller one for a row far below."""
    shared = scale_for(entry.figure.metric, together)
    largest = max(entry.values, default=0.0)
    return shared if float(shared.number(largest)) else scale_for(entry.figure.metric, [largest])


def _line(entry: _Entry, scale: Scale, row: Row | None) -> tuple[ReportLine, str]:
    """Write one row; return it with the unit of its figures."""
    figure, wanted = entry.figure, entry.columns.split()
    start, mean, peak, end = (
        _number(figure, column, scale) if column in wanted else "" for column in COLUMNS
    )
    limit = ""
    if entry.ceiling is not None:
        limit = scale_for(figure.metric, [entry.ceiling]).limit(entry.ceiling) + entry.words
    metric = entry.drawn or figure.metric
    trace = next((t for t in row.traces if t.metric == metric), None) if row else None
    ring = _ring(figure, scale, trace, row.ceiling) if entry.ringed and row and trace else None
    line = ReportLine(
        entry.label, "", start, mean, peak, end, limit=limit, trace=trace, ring=ring
    )
    return line, scale.unit


def _number(figure: Figure, column: str, scale: Scale) -> str:
    value = getattr(figure, column)
    if value is None:
        return "n/a"
    return span_text(scale, figure.peak_low if column == "peak" else None, value)


def _ring(
    figure: Figure, scale: Scale, trace: Trace, ceiling: float
) -> tuple[float, float] | None:
    """Find where the peak lies on the time axis, if a reading caught it."""
    known = [(h, -index) for index, h in enumerate(trace.heights) if h is not None]
    if figure.peak is None or not known or min(known)[0] == max(known)[0]:
        return None
    height, negative = max(known)
    if scale.number(height * ceiling) != scale.number(figure.peak):
        return None
    return (0.5 - negative) / len(trace.heights), height
