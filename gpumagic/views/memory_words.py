"""The words of memory views: names and details with code between backticks, and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..memory.live import DeviceMemory, Holder, MemoryReport, PinnedCache
from ..memory.naming import Name
from ..memory.release import Freed, Step
from ..memory.stats import AllocatorStats
from .strips import Scale
from .wording import clean, short_name

__all__ = [
    "code", "cut_note", "detail_of", "device_label", "free_sentences", "holder_name", "is_empty",
    "joined", "number_of", "pinned_by", "plain", "release_of", "shape_text", "short", "spent",
    "step_name",
]

_LONGEST_NAME = 56
_LONGEST_DETAIL = 120
_MOST = 3
_MOST_EXTENTS = 6
_CALL = re.compile(r"[\w.<>]+\(\)")
_IS_CODE = ("variable", "output", "module", "name")
_PLAIN_STEPS = ("displayed values",)


def short(text: str, longest: int = _LONGEST_NAME) -> str:
    """Put a text on one line and shorten it in its middle, where two long names differ least."""
    text = clean(text)
    if len(text) <= longest:
        return text
    head = (longest - 1) * 2 // 3
    return f"{text[:head].rstrip()}…{text[head + 1 - longest :].lstrip()}"


def code(text: str) -> str:
    """Mark a text as code, on one line and shortened; a backtick of its own becomes ``'``."""
    return f"`{short(text).replace('`', chr(39))}`"


def plain(text: str) -> str:
    """Return a marked text without its marks."""
    return text.replace("`", "")


def _calls(text: str) -> str:
    """Mark the functions in a text."""
    text = short(text, _LONGEST_DETAIL)
    return text if "`" in text else _CALL.sub(lambda match: f"`{match[0]}`", text)


def joined(texts: Sequence[str], most: int = _MOST, last: str = ", ") -> str:
    """Join some texts with commas; of many, count those that are left out."""
    if len(texts) > most + 1:
        return f"{', '.join(texts[:most])} and {len(texts) - most} more"
    return last.join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def number_of(scale: Scale, value: float | None) -> str:
    """Write bytes without the unit; what is there is never written as nothing."""
    if value is None:
        return "n/a"
    text = scale.number(value)
    zero = scale.number(0.0)
    return f"<{zero[:-1]}1" if value > 0 and text == zero else text


# -- who holds, and what that is ---------------------------------------------------------------


def holder_name(holder: Holder) -> str:
    """Name a holder: variables, displays and variables of modules are code."""
    if holder.kind in _IS_CODE:
        return joined([code(root) for root in holder.roots])
    return joined([_root(root) for root in holder.roots])


def _root(name: str) -> str:
    """Name a root that is no variable: the debugger is a command, a function is code."""
    return code(name) if name.startswith("%") else _calls(short(name))


def step_name(step: Step) -> str:
    """Name what is released; one step can be of several holders."""
    names = step.name.split(", ")
    if step.kind in _IS_CODE and step.name not in _PLAIN_STEPS:
        return joined([code(name) for name in names])
    return joined([_root(name) for name in names])


def detail_of(kind: str, detail: str) -> str:
    """Write the detail of a holder or a step, the names in it as code."""
    text = short(detail, _LONGEST_DETAIL)
    if "`" in text:
        return text
    if kind == "cycle":
        return "; ".join(map(_cycle, text.split("; ")))
    if kind not in ("traceback", "frame", "output"):
        return _calls(text)
    return "; ".join(map(_names_in, text.split("; ")))


def _cycle(text: str) -> str:
    types, comma, rest = text.partition(", ")
    return " ⇄ ".join(code(part) for part in types.split(" ⇄ ")) + comma + rest


def _names_in(text: str) -> str:
    """Mark the names that follow a function, and the other names of a displayed value."""
    for before in (": ", "holds ", ", also "):
        head, found, names = text.partition(before)
        if found:
            return _calls(head) + before + ", ".join(map(code, names.split(", ")))
    return _calls(text)


def pinned_by(pinned: PinnedCache) -> str:
    """Say what keeps cached blocks from going back."""
    if not pinned.names:
        return "pinned by live blocks"
    return f"pinned by {joined([code(name) for name in pinned.names], 2)}"


def device_label(device: str, stats: AllocatorStats | None) -> str:
    """Write ``GPU 0 · H200 · cuda:0``, as far as it is known."""
    if device == "cpu":
        return "CPU"
    if stats is None:
        return clean(device)
    index = "" if stats.nvml_index is None else f"GPU {stats.nvml_index}"
    return " · ".join(x for x in (index, short(short_name(stats.name), 32), clean(device)) if x)


def shape_text(shape: Sequence[int], own_bytes: int) -> str:
    """Write a shape as ``4096 × 11008``; a nested tensor has no one shape."""
    if not shape:
        return "scalar" if own_bytes <= 16 else "n/a"
    texts = [str(extent) for extent in shape]
    if len(texts) > _MOST_EXTENTS:
        texts = [*texts[: _MOST_EXTENTS - 2], "…", texts[-1]]
    return short(" × ".join(texts), 44)


def release_of(chain: Name) -> str:
    """Return the command that would release what a chain begins with, empty if none is known."""
    root = clean(chain.steps[0] if chain.steps else chain.text)
    match chain.kind:
        case "traceback" | "orphan":
            return "%gpufree"
        case "output":
            return "%gpufree --out"
        case "variable":
            return f"%gpufree {root}" if root.isidentifier() else ""
        case _:
            return ""


# -- sentences -----------------------------------------------------------------------------------


def free_sentences(freed: Freed) -> Iterator[str]:
    """Say what became of the names that were asked for, and what is gone with a traceback."""
    for name in freed.asked:
        keepers = (freed.still or {}).get(name, ())
        if keepers:
            holders = [_found(freed.after, keeper) for keeper in keepers]
            names = [
                _keeper(keeper, holder, freed.asked)
                for keeper, holder in zip(keepers, holders, strict=True)
            ]
            commands = dict.fromkeys(h.command for h in holders if h is not None and h.command)
            then = f": {joined([code(command) for command in commands])}" if commands else ""
            gone = "would go, but is" if freed.dry_run else "deleted;"
            yield f"{code(name)} {gone} still held by {joined(names, last=' and ')}{then}"
    if freed.asked and not freed.dry_run and not any(
        step.bytes for step in freed.steps if step.kind == "name"
    ) and not any((freed.still or {}).values()):
        kind = "tensor memory" if _is_cpu(freed.before) else "GPU memory"
        held = "they" if len(freed.asked) > 1 else "it"
        yield f"{joined([code(name) for name in freed.asked])} deleted; {held} held no {kind}."
    if any(step.debug_gone for step in freed.steps):
        after = "Afterwards, " if freed.dry_run else ""
        yield f"{after}`%debug` has nothing to look at any more."
    if any(device.of("output") for device in freed.after):
        option = "--cpu --out" if _is_cpu(freed.after) else "--out"
        yield (
            f"Displayed values stay, since one can be the only copy: `%gpufree {option}` releases"
            " them."
        )


def _keeper(name: str, holder: Holder | None, asked: Sequence[str]) -> str:
    """Name who holds memory on; of variables that are joined, those that were not asked for."""
    if holder is None:
        return code(name) if name.isidentifier() else _calls(name)
    others = tuple(root for root in holder.roots if root not in asked)
    return holder_name(replace(holder, roots=others or holder.roots))


def _found(report: MemoryReport, name: str) -> Holder | None:
    found = (h for device in report for h in device.holders if name in (h.name, *h.roots))
    return next(found, None)


def _is_cpu(report: MemoryReport) -> bool:
    return any(device.device == "cpu" for device in report)


def cut_note(*reports: MemoryReport) -> str:
    """Say what the searches left out."""
    cuts = dict.fromkeys(clean(report.cut) for report in reports if report.cut)
    return f"Not complete: {'; '.join(cuts)}." if cuts else ""


def spent(report: MemoryReport) -> str:
    """Say what the search itself took."""
    if not report.objects:
        return ""
    return f"{report.objects:,} Python objects looked at in {report.seconds:.2f} s."


def is_empty(device: DeviceMemory) -> bool:
    """Whether a device holds nothing of this process's torch, and no child of it."""
    reserved = device.allocator.torch_reserved_bytes if device.allocator else 0
    parts = (device.holders, device.remainders, device.children, device.pinned)
    return not any(parts) and not reserved
