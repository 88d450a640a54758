"""The overlay of the live view that answers the pointer: what it shows, and its script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .drawn_words import detail_places
from .parts import Panel, Row, Scene
from .pointer_words import BLOCK, Layer
from .strips import STRIPS
from .svg import COLOURS
from .wording import FIGURE, LABEL, SMALL, SWATCH, text_width

__all__ = ["Figure", "Overlay", "figures_of", "overlay_of", "render"]

_FIGURE_ROOM = 46.0
_NONE = "\u2013"

_INK, _LABEL_INK = (
    f"var({name},{COLOURS['light'][paint]})"
    for name, paint in (("--jp-ui-font-color1", "ink"), ("--jp-ui-font-color2", "label"))
)
_FONT = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"

# Only what is for hitting takes the pointer; all else lets it through to what lies below.
_STYLE = """<style>
.gpumagic-live .gpumagic-pointer, .gpumagic-live .gpumagic-pointer * { pointer-events: none; }
.gpumagic-live .gpumagic-pointer .gpumagic-hit {
  pointer-events: all; fill: transparent; outline: none; touch-action: pan-y; }
.gpumagic-live .gpumagic-pointer .gpumagic-hit:focus-visible {
  stroke: var(--jp-brand-color1, #2f7fc1); stroke-width: 1; }
.gpumagic-live .gpumagic-told { visibility: hidden; }
.gpumagic-live.gpumagic-pointed .gpumagic-told { visibility: visible; }
</style>"""

# The one handler of the overlay's <svg>, which is ``this``. It keeps what it needs on that
# element: ``at`` is the place as a fraction of the time axis, ``hit`` the panel, ``timer`` what
# draws again as data move below a resting pointer; it ends with the pointer or the element.
# ``part`` is the text of a hidden widget. Of a layer's words, an empty one repeats the one before
# it. A column holds its right end, which is the time told. The present figures lie in a layer
# that is drawn by others (gpumagic-moving): it is clipped where this one tells its own.
_SCRIPT = """
const svg = this, root = svg.closest('.gpumagic-live');
if (!root) return;
const all = (query, act) => svg.querySelectorAll(query).forEach(act);
const part = key => (root.querySelector(`[data-gpumagic="${key}"]`) || {}).textContent || '';
const clip = path => root.querySelectorAll('.gpumagic-moving').forEach(
  e => { e.style.clipPath = path; });
const end = () => {
  clearInterval(svg.timer);
  svg.timer = svg.hit = null;
  root.classList.remove('gpumagic-pointed');
  clip('');
};
const draw = () => {
  const head = JSON.parse(part('head') || '{}');
  if (!svg.isConnected || !svg.hit || head.version != svg.dataset.version) return end();
  const index = Math.max(0, Math.min(head.count - 1, Math.floor(svg.at * head.count)));
  const column = head.first + index, right = column + 1, tenths = head.width < 1;
  const layers = part(`${head.key} ${Math.floor(column / BLOCK)}`).split(';');
  all('[data-layer]', e => {
    const words = (layers[e.dataset.layer] || '').split(',').slice(0, column % BLOCK + 1);
    e.textContent = words.filter(w => w).pop() || '';
  });
  all('[data-x]', e => e.setAttribute('transform',
    `translate(${+e.dataset.x + (index + .5) / head.count * e.dataset.w})`));
  const clock = new Date((right * head.width + head.zone) * 1000).toISOString()
    .slice(11, tenths ? 21 : 19);
  const ago = (head.count - 1 - index) * head.width;
  const time = !head.live ? clock : !ago ? 'now'
    : ago < 120 ? `\u2212${ago.toFixed(tenths ? 1 : 0)} s`
    : ago < 7200 ? `\u2212${(ago / 60).toFixed(1)} min` : `\u2212${(ago / 3600).toFixed(1)} h`;
  const names = head.labels.filter(l => l[0] <= index + 1 && l[1] >= index).map(l => l[2]);
  const said = [...(head.live ? [clock] : []), ...names].join('  ');
  all('[data-said=time]', e => { e.textContent = time; });
  all('[data-said=names]', e => { e.textContent = said.slice(0, head.room); });
  svg.hit.setAttribute('aria-valuenow', index);
  svg.hit.setAttribute('aria-valuetext', time + ', ' + said);
  root.classList.add('gpumagic-pointed');
  clip(svg.dataset.clip);
  return head.count;
};
if (event.type == 'pointerleave' || event.type == 'blur') return end();
const hit = event.target.closest('.gpumagic-hit');
if (!hit) return;
svg.hit = hit;
if (event.clientX !== undefined) {
  const box = hit.getBoundingClientRect();
  svg.at = (event.clientX - box.left) / box.width;
} else if (event.type == 'focus') {
  svg.at = svg.at === undefined ? .9999 : svg.at;
} else {
  const steps = {ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -1e6, End: 1e6};
  if (!steps[event.key]) return;
  event.preventDefault();
  svg.at = Math.max(0, Math.min(.9999, svg.at + steps[event.key] / draw()));
}
draw();
svg.timer = svg.timer || setInterval(draw, 250);
"""
_COMPACT = " ".join(line.strip() for line in _SCRIPT.strip().splitlines()).replace(
    "BLOCK", str(BLOCK)
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that follows the pointer: whose it is, and where and how it is written.

    ``left`` is how far the present figure in its place can reach.
    """

    device: str
    row: str
    style: str
    left: float
    x: float
    y: float
    size: float
    ink: str
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Overlay:
    """All that the overlay depends on; it is sent again when this changes.

    A panel comes with the right end of its figures and the lower end of its plots. ``top`` is
    the upper edge of what takes the pointer and ``live`` says whether times count back from now.
    """

    size: tuple[float, float]
    figures: tuple[Figure, ...]
    panels: tuple[tuple[Panel, float, float], ...]
    top: float
    axis_y: float
    header_y: float | None
    live: bool

    @property
    def layers(self) -> tuple[tuple[str, str, str], ...]:
        """Name the layers of which there are figures."""
        return tuple((f.device, f.row, f.style) for f in self.figures)


def _main(row: Row) -> Layer:
    """Return the layer of which the row's figure is the present value."""
    first = STRIPS[row.name].layers[0].metrics
    own = next((t for t in row.traces if t.metric in first and t.style != "other"), row.traces[0])
    return Layer(row, own.values)


def _detail(row: Row, style: str) -> Layer | None:
    """Return the layer of a detail."""
    values = next((trace.values for trace in row.traces if trace.style == style), None)
    if values is None:
        return None
    return Layer(row, values, _NONE) if style == "other" else Layer(row, values)


def figures_of(scene: Scene) -> list[tuple[Figure, Layer]]:
    """List the figures that follow the pointer; they stand where the present ones do."""
    table = scene.layout == "table"
    size, ink = (FIGURE, _LABEL_INK) if table else (SMALL, _INK)
    found = []
    for row in scene.rows:
        if not row.drawn:
            continue
        y = row.top + row.height / 2 + 4.5
        # The trace's last point is drawn by the layer that is clipped.
        place = max(row.value_x - _FIGURE_ROOM, row.panel.x1 + 2), row.value_x, y
        found.append((
            Figure(row.device, row.name, "", *place, FIGURE, _INK, row.bold), _main(row)
        ))
        for detail, left, x, y in detail_places(scene, row):
            layer = _detail(row, detail.style)
            if layer is not None:
                begin = left if table else left + SWATCH + text_width(detail.label, SMALL)
                # Labels are as a rule narrower than the room that is kept for them.
                begin = min(begin, x - 2 * size)
                figure = Figure(row.device, row.name, detail.style, begin, x, y, size, ink)
                found.append((figure, layer))
    return found


def overlay_of(scene: Scene, figures: Sequence[Figure]) -> Overlay:
    """Return what the overlay of a scene with these figures depends on."""
    panels = []
    for panel in scene.panels:
        rows = [row for row in scene.rows if row.panel == panel]
        bottom = max((row.top + row.height for row in rows), default=scene.plot_bottom)
        panels.append((panel, max((r.value_x for r in rows), default=panel.x1 + 44), bottom))
    return Overlay(
        (scene.width, scene.height), tuple(figures), tuple(panels), scene.label_y - 11,
        scene.band_top, scene.header_y, scene.end_text == "now",
    )


def _clip(overlay: Overlay) -> str:
    """Return the path, in CSS, of all but the present figures."""
    holes = [(f.left, f.y - f.size, f.x + 1, f.y + 4) for f in overlay.figures]
    for panel, value_x, _ in overlay.panels:
        left, right = (value_x - 26, value_x + 1) if overlay.live else (panel.x1 + 1, value_x + 20)
        holes.append((left, overlay.axis_y - 5, right, overlay.axis_y + 8))
    path = "".join(f"M{a:g} {b:g}H{c:g}V{d:g}H{a:g}z" for a, b, c, d in holes)
    return f"path(evenodd,'M-99-99H9999V9999H-99z{path}')"


def _text(data: str, x: float, y: float, size: float, *, ink: str = _INK, bold: bool = False,
          end: bool = True) -> str:
    more = ' text-anchor="end"' if end else ""
    more += ' font-weight="600"' if bold else ""
    return f'<text {data} x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{ink}"{more}></text>'


def render(overlay: Overlay, version: int, right: float) -> str:
    """Write the overlay: what is told at the pointer's place, and what takes the pointer."""
    again = "this.onpointermove(event)"
    up = "this.ownerSVGElement.onpointermove(event)"
    told = [
        _text(f'data-layer="{number}"', f.x, f.y, f.size, ink=f.ink, bold=f.bold)
        for number, f in enumerate(overlay.figures)
    ]
    hits = []
    for number, (panel, value_x, bottom) in enumerate(overlay.panels):
        width = panel.x1 - panel.x0
        told.append(
            f'<path data-x="{panel.x0:g}" data-w="{width:g}" stroke="{_LABEL_INK}"'
            f' shape-rendering="crispEdges" d="M0 {overlay.axis_y:g}V{bottom:g}"/>'
        )
        place = value_x if overlay.live else panel.x1 + 3
        told.append(
            _text('data-said="time"', place, overlay.axis_y + 5, SMALL, end=overlay.live)
        )
        # One panel is enough for the keyboard; Lab's own keys, such as those that fold
        # headings, would take the arrows away. A click leaves the focus where it is; the other
        # button is Lab's, which takes the cell for the one that its menu is about.
        focus = "" if number else (
            ' tabindex="0" role="slider" aria-label="Time" aria-valuemin="0" aria-valuenow="0"'
            f' data-lm-suppress-shortcuts="true" onfocus="{up}" onblur="{up}"'
        )
        hits.append(
            f'<rect class="gpumagic-hit" x="{panel.x0:g}" y="{overlay.top:g}" width="{width:g}"'
            f' height="{bottom - overlay.top:g}"'
            f' onmousedown="event.button||event.preventDefault()"{focus}/>'
        )
    width, height = overlay.size
    if overlay.header_y is not None:
        told.append(_text('data-said="names"', width - right, overlay.header_y, LABEL))
    return (
        f'{_STYLE}<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"'
        f' viewBox="0 0 {width:g} {height:g}" data-version="{version}"'
        f' data-clip="{escape(_clip(overlay))}"'
        f' font-family="var(--jp-ui-font-family,{_FONT})"'
        ' style="display:block;font-variant-numeric:tabular-nums"'
        f' onpointermove="{escape(_COMPACT)}" onpointerdown="{again}" onpointerleave="{again}"'
        f' onkeydown="{again}"><g class="gpumagic-told">{"".join(told)}</g>{"".join(hits)}</svg>'
    )
