"""The panel under a cell that ran out of GPU memory: who holds it, and what would make room."""

from __future__ import annotations

import textwrap

from ..memory.live import Holder
from ..memory.shortage import Shortage
from ..units import bytes_text
from .footer import MARK
from .markup import code_html
from .memory_words import code, holder_name, joined, plain
from .wording import clean

__all__ = ["shortage_html", "shortage_text", "shortage_words"]

_WIDTH = 100

_STYLE = (
    ".gps{max-width:760px;padding:3px 0;color:var(--jp-ui-font-color1,inherit);"
    "font:13px/20px var(--jp-ui-font-family,system-ui,sans-serif);"
    "font-variant-numeric:tabular-nums}"
    ".gps p{margin:0 0 2px;font-size:13px;line-height:20px;color:inherit}"
    ".gps b{font-weight:600}.gps .l{color:var(--jp-ui-font-color2,#7a7a7a)}"
    ".gps code{font-size:12px;padding:0!important;background:none!important;color:inherit;"
    "overflow-wrap:anywhere}"
    ".gps code.c{padding:1px 4px!important;border-radius:3px;white-space:nowrap;"
    "background:var(--jp-layout-color2,rgba(128,128,128,.15))!important}"
    ".gps i{display:inline-block;width:8px;height:8px;margin-right:6px;background:#d9730d;"
    "font-size:0;overflow:hidden}"
)


# -- the words ------------------------------------------------------------------------------


def shortage_words(short: Shortage) -> tuple[str, str]:
    """Return the first sentence and the others, four in all; code stands between backticks."""
    others = (_holders(short), _old(short), _room(short))
    return _lead(short), " ".join(text for text in others if text)


def _label(short: Shortage) -> str:
    return clean(short.label or short.device)


def _lead(short: Shortage) -> str:
    free = None if short.free_bytes is None else (
        f"{bytes_text(short.free_bytes) if short.free_bytes else 'nothing'} free"
    )
    asked = None if short.asked_bytes is None else f"{bytes_text(short.asked_bytes)} asked for"
    if asked and free:
        return f"{asked}, {free} on {_label(short)}."
    if asked or free:
        return f"Out of memory on {_label(short)}: {asked or free}."
    return f"Out of memory on {_label(short)}."


def _number(short: Shortage, size: int) -> str:
    """Write bytes without the unit where it is that of the first sentence."""
    first = short.asked_bytes or short.free_bytes
    number, _, unit = bytes_text(size).partition(" ")
    return number if first and bytes_text(first).endswith(f" {unit}") else f"{number} {unit}"


def _holders(short: Shortage) -> str:
    if not short.holders:
        return ""
    if len(short.holders) == 1:
        return f"The largest holder is {_holder(short, short.holders[0])}."
    texts = ", ".join(_holder(short, holder) for holder in short.holders)
    return f"The largest holders are {texts}."


def _holder(short: Shortage, holder: Holder) -> str:
    if holder.kind in ("variable", "output", "module"):
        name = joined([code(root) for root in holder.roots], last=" and ")
        if short.rebinding is not None and short.rebinding[0] in holder.roots:
            name = f"the old {name}"
    else:
        name = holder_name(holder)
        if holder.kind == "traceback" and name.startswith("traceback"):
            name = f"the {name}"
        elif holder.kind == "cycle":
            name = "objects in a cycle"
        elif holder.kind == "unknown":
            name = f"memory {name}" if name.startswith("not ") else name
    return f"{name} ({_number(short, holder.bytes)})"


def _old(short: Shortage) -> str:
    """Say that an old object is still there while the new one is made."""
    if short.rebinding is None:
        return ""
    name, size = short.rebinding
    told = any(name in holder.roots for holder in short.holders)
    much = "" if told else f" ({bytes_text(size)})"
    return (
        f"The old {code(name)}{much} is still there while the new one is made:"
        f" {_command(short.remedy)} first."
    )


def _command(text: str) -> str:
    """Mark a command as code, whole: a shortened one could not be run."""
    return f"`{clean(text)}`"


def _room(short: Shortage) -> str:
    """Say what ``%gpufree`` gives back, and whether that is enough."""
    asked, missing = short.asked_bytes, short.short_bytes
    if short.never and short.total_bytes is not None:
        most = bytes_text(short.total_bytes)
        return f"At most {most} can be had on {_label(short)}: this can never fit."
    gives = f"`%gpufree` gives back {bytes_text(short.gives_back_bytes)}"
    if short.saved_bytes:
        saved = bytes_text(short.saved_bytes)
        gives += f", and up to {saved} that autograd saved" if short.fits is not True else ""
    if not short.gives_back_bytes:
        gives = "`%gpufree` has nothing to give back"
    if asked is None or missing is None or short.fits is None:
        return f"{gives}."
    then = ""
    if short.remedy_fits is not None and short.rebinding is not None:
        old = f"without the old {code(short.rebinding[0])}"
        then = f"; {old} this request fits" if short.remedy_fits else f", and {old} too"
    elif short.remedy_fits:
        then = f"; with {_command(short.remedy)} this request fits"
    if short.lasts:
        return f"{gives}, and the {_number(short, asked)} fit."
    if short.fits:
        return (
            f"{gives}, but the cell needs {_number(short, short.again_bytes)} of it again:"
            f" {bytes_text(missing)} short{then}."
        )
    return f"{gives}: {bytes_text(missing)} short{then}."


# -- the panel ------------------------------------------------------------------------------


def shortage_html(short: Shortage) -> str:
    """Write the panel as one ``<div>`` without script; every text from outside is escaped."""
    lead, rest = shortage_words(short)
    advice = "".join(f'<p class="l">{_html(text)}</p>' for text in short.advice)
    # The space is for places that strip the styles, such as a notebook not yet trusted.
    return (
        f'<div class="gps"><style>{_STYLE}</style>'
        f"<p>{MARK}<b>{_html(lead)}</b> {_html(rest)}</p>{advice}</div>"
    )


def _html(text: str) -> str:
    """Escape a text, and give the commands in it a ground of their own."""
    return code_html(clean(text)).replace("<code>%", '<code class="c">%')


def shortage_text(short: Shortage) -> str:
    """Write the panel as lines of text; the first begins with ``!``."""
    lead, rest = shortage_words(short)
    return "\n".join(
        textwrap.fill(
            plain(clean(text)), _WIDTH, initial_indent=begin, subsequent_indent="  ",
            break_long_words=False, break_on_hyphens=False,
        )
        for begin, text in (("! ", f"{lead} {rest}".strip()), *(("  ", a) for a in short.advice))
    )
