"""The footer of a cell: one line with its time, use, peak, energy and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from ..summary import DeviceSummary, Figure
from ..units import amount, bytes_text, duration
from .footer_words import words_of
from .markup import code_html
from .parts import Row
from .report_idle import use_of
from .report_rows import TOO_SHORT, cpu_figure
from .spark import bars, spark_svg
from .wording import clean

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = [
    "MARK", "FooterLine", "Quantity", "build_footer", "busiest", "footer_html",
    "footer_text", "peak_of",
]

_UTIL = "gpu_utilization_ratio"
_SM = "gpu_sm_active_ratio"
_ALLOCATED = "torch_allocated_bytes"
_USED = "gpu_memory_used_bytes"
_SPARK_HEIGHT = 14
_SPARK_CELLS = 12
_LONGEST_WORDS = 160

MARK = "<i>! </i>"
"""The orange square of a finding; its text shows only where the styles are stripped."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure: a label before it, its number ("n/a" if not measured) and its unit."""

    label: str
    number: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class FooterLine:
    """All that a footer says, in the order of its columns.

    ``use`` is GPU-Util and SM active of the busiest GPU, or the cores used where there is no
    GPU. ``peak`` and ``energy`` are ``None`` where the column stays empty; ``peak_note`` says
    what the peak is of, ``energy_note`` that the energy is an estimate. ``words`` has code
    between backticks; ``marked`` is true for a finding.
    """

    wall: Quantity
    row: Row | None
    use: tuple[Quantity, ...]
    peak: Quantity | None
    peak_note: str
    energy: Quantity | None
    words: str
    marked: bool
    energy_note: str = ""


# -- what there is to say -------------------------------------------------------------------


def busiest(profile: Profile) -> DeviceSummary | None:
    """Return the GPU with the highest mean GPU-Util, the first of equals, or ``None``.

    For a GPU without GPU-Util, SM active counts.
    """
    def rank(gpu: DeviceSummary) -> tuple[float, bool]:
        mean = use_of(gpu).mean
        return (-1.0 if mean is None else mean, gpu.device.torch_index is not None)

    return max(profile.summary.gpus, key=rank, default=None)


def peak_of(profile: Profile) -> tuple[float | None, str]:
    """Return the highest peak of a GPU's memory in bytes, and what it is of.

    It is that of torch's tensors, or of all memory used where torch held none. Where the
    allocator only bounds a peak from above, what was read counts: the rest can be another
    cell's.
    """
    for metric, what in ((_ALLOCATED, "torch's tensors"), (_USED, "memory used, all processes")):
        figures = [gpu.figure(metric) for gpu in profile.summary.gpus]
        known = [(_lowest_peak(f), not f.peak_exact) for f in figures if f.peak is not None]
        if known:
            peak, sampled = max(known)
            if peak or metric == _USED:
                sure = "at least, from readings" if sampled else "exact"
                return peak, f"{what}: {sure}"
    return None, ""


def _lowest_peak(figure: Figure) -> float:
    assert figure.peak is not None
    return figure.peak if figure.peak_low is None else figure.peak_low


def build_footer(
    profile: Profile,
    *,
    error: str | None = None,
    cores: float | None = None,
    told: frozenset[str] = frozenset(),
) -> FooterLine:
    """Say what a cell did in one line.

    ``error`` is the exception's class name, ``cores`` the processor time of this process a
    second, for cells too short for the host's readings. ``told`` names the metrics whose
    absence the user knows of: their columns stay empty.
    """
    gpu = busiest(profile)
    words, marked = words_of(profile, error)
    wall = _wall(profile.wall_s)
    if gpu is None:
        use, peak, note = _host(profile, cores)
        return FooterLine(wall, _row(profile, "host", "cpu"), use, peak, note, None, words, marked)
    used = use_of(gpu)
    if not words and used.mean is None and used.reason.startswith(TOO_SHORT):
        words = "too short to say how busy"
    if not words and len(profile.summary.gpus) > 1 and used.mean is not None:
        words = f"{clean(gpu.device.label)}, the busiest of {len(profile.summary.gpus)}"
    bytes_, note = peak_of(profile)
    joules = profile.energy_joules
    energy, estimated = None, ""
    if joules is not None:
        estimated = "estimated from power" if profile.energy_estimated else ""
        energy = Quantity("≈" if estimated else "", *amount(joules, "joules"))
    elif "gpu_energy_joules" not in told:
        energy = Quantity("", "n/a")
    return FooterLine(
        wall, _row(profile, gpu.device.id, "util"), _use(gpu, told),
        _bytes("peak", bytes_), note, energy, words, marked, estimated,
    )


def _wall(seconds: float) -> Quantity:
    """Write a time so that it fits its column."""
    if seconds < 99.95:
        return Quantity("", *duration(seconds).split(" "))
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return Quantity("", f"{minutes}:{rest:02d}", "min")
    hours, minutes = divmod(minutes, 60)
    return Quantity("", f"{hours}:{minutes:02d}", "h")


def _use(gpu: DeviceSummary, told: frozenset[str]) -> tuple[Quantity, ...]:
    util, active = gpu.figure(_UTIL).mean, gpu.figure(_SM).mean
    if util is None and active is not None:
        return (Quantity("SM", *amount(active, "ratio")),)
    if util is None:
        return () if _UTIL in told else (Quantity("GPU", "n/a"),)
    if active is None:
        return (Quantity("GPU", *amount(util, "ratio")),)
    return (
        Quantity("GPU", amount(util, "ratio")[0]), Quantity("SM", *amount(active, "ratio")),
    )


def _host(
    profile: Profile, cores: float | None
) -> tuple[tuple[Quantity, ...], Quantity, str]:
    host = profile.summary.host
    rss = None
    if host is not None:
        mean = cpu_figure(host).mean
        cores = cores if mean is None else mean
        rss = host.figure("process_rss_bytes").peak
    use = Quantity("CPU", "n/a") if cores is None else Quantity("CPU", *amount(cores, "cores"))
    return (use,), _bytes("RAM peak", rss), "resident memory of this process: from readings"


def _bytes(label: str, value: float | None) -> Quantity:
    if value is None:
        return Quantity(label, "n/a")
    return Quantity(label, *bytes_text(value).split(" "))


def _row(profile: Profile, device: str, name: str) -> Row | None:
    rows = profile.scene.rows if profile.scene is not None else ()
    return next((r for r in rows if r.device == device and r.name == name and r.drawn), None)


# -- HTML -----------------------------------------------------------------------------------

_STYLE = (
    ".gpf{display:flex;padding-top:3px;white-space:nowrap;color:var(--jp-ui-font-color1,inherit);"
    "font:13px/20px var(--jp-ui-font-family,system-ui,sans-serif);"
    "font-variant-numeric:tabular-nums}"
    ".gpf>span{flex:none;text-align:right}"
    ".gpf .l{color:var(--jp-ui-font-color2,#7a7a7a)}.gpf b{font-weight:400}"
    ".gpf .t{width:50px}.gpf .s{width:92px;margin:3px 18px 0 12px}"
    ".gpf .u{width:126px;display:flex}.gpf .u>*{margin-left:4px}.gpf .u>:first-child{margin:0}"
    ".gpf .u b{min-width:25px}.gpf .p{width:112px}.gpf .e{width:72px}"
    ".gpf .w{flex:1 1 0;min-width:0;margin-left:16px;text-align:left;overflow:hidden;"
    "text-overflow:ellipsis;color:var(--jp-ui-font-color2,#7a7a7a)}"
    ".gpf .w code{font-size:12px;padding:0!important;background:none!important;color:inherit;"
    "white-space:nowrap!important}"
    ".gpf i{display:inline-block;width:8px;height:8px;margin-right:6px;background:#d9730d;"
    "font-size:0;overflow:hidden}"
    ".gpf svg{display:block;overflow:visible}.gpf svg svg{overflow:hidden}"
    ".gpf .use{fill:#2f7fc1}.gpf .held{fill:#d9730d}"
    ".gpf .line{fill:none;stroke:#8c8c8c;stroke-width:1.4;vector-effect:non-scaling-stroke}"
    ".gpf .rule{fill:var(--jp-border-color1,#bdbdbd)}"
)


def footer_html(line: FooterLine) -> str:
    """Write a footer as one ``<div>`` without script; every text from outside is escaped."""
    spark = spark_svg(line.row, _SPARK_HEIGHT) if line.row is not None else ""
    mark = MARK if line.marked else ""
    title = escape(line.words.replace("`", ""), quote=True)
    # The spaces are for places that strip the styles, such as a notebook not yet trusted.
    return (
        f'<div class="gpf"><style>{_STYLE}</style>'
        f'<span class="t">{_quantity(line.wall)}</span> <span class="s">{spark}</span> '
        f'<span class="u">{" ".join(map(_quantity, line.use))}</span> '
        f'<span class="p" title="{escape(line.peak_note, quote=True)}">{_quantity(line.peak)}'
        f'</span> <span class="e" title="{escape(line.energy_note, quote=True)}">'
        f'{_quantity(line.energy)}</span> '
        f'<span class="w" title="{title}">{mark}{code_html(line.words)}</span></div>'
    )


def _quantity(quantity: Quantity | None) -> str:
    if quantity is None:
        return ""
    label, unit = (
        f'<span class="l">{escape(text)}</span>' if text else ""
        for text in (quantity.label, quantity.unit)
    )
    grey = ' class="l"' if quantity.number == "n/a" else ""
    number = f"<b{grey}>{escape(quantity.number)}</b>"
    return " ".join(part for part in (label, number, unit) if part)


# -- text -----------------------------------------------------------------------------------


def footer_text(line: FooterLine) -> str:
    """Write a footer as one line of text in fixed columns; a finding begins with ``!``."""
    traces = line.row.traces if line.row is not None else ()
    drawn = (t.heights for t in traces if any(h is not None for h in t.heights))
    spark = bars(next(drawn, ()), _SPARK_CELLS)
    use = " ".join(_text(quantity, 3) for quantity in line.use)
    words = line.words.replace("`", "")
    if len(words) > _LONGEST_WORDS:
        words = words[: _LONGEST_WORDS - 1].rstrip() + "…"
    parts = [
        f"{_text(line.wall):>8}", f"{spark:<{_SPARK_CELLS}}", f"{use:<16}",
        f"{_text(line.peak):>15}", f"{_text(line.energy):>9}",
        f"! {words}" if line.marked else words,
    ]
    return "  ".join(parts).rstrip()


def _text(quantity: Quantity | None, width: int = 0) -> str:
    if quantity is None:
        return ""
    parts = (quantity.label, f"{quantity.number:>{width}}", quantity.unit)
    return " ".join(part for part in parts if part)
