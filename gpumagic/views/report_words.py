"""The sentences of a report: what can be said of a cell, and no more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..sample import Device
from ..summary import DeviceSummary, Figure
from ..units import duration, part_of, quantity
from .report_findings import findings, well
from .report_idle import did_work, labels_of, sampled, state_of, steady, use_of
from .report_parts import Sentence
from .report_rows import TOO_SHORT, cpu_figure, limit_of, scale_for, span_text
from .strips import scale_of
from .wording import clean, short_name

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["device_title", "verdict"]

_UTIL = "gpu_utilization_ratio"
_SM = "gpu_sm_active_ratio"
_NAMES = {_UTIL: "GPU-Util", _SM: "SM active"}
_USED = "gpu_memory_used_bytes"
_ALLOCATED = "torch_allocated_bytes"
_LONGEST_NAME = 40
_MISLED = frozenset({"copies", "under-filled"})
"""The rules after which GPU-Util is not to be called busy."""


def device_title(device: Device) -> str:
    """Name a GPU in full: ``GPU 0 · H200 · cuda:0``."""
    name = short_name(device.name)
    if len(name) > _LONGEST_NAME:
        name = name[: _LONGEST_NAME - 1].rstrip() + "…"
    return " · ".join(x for x in (clean(device.label), name, device.torch_label) if x)


# -- the verdict ----------------------------------------------------------------------------


def verdict(profile: Profile, shown: Sequence[DeviceSummary]) -> tuple[Sentence, ...]:
    """Say what held the cell back, the gravest first, then what it did, then what misleads."""
    found = [*findings(profile, grave=True), *_ending(profile), *_did(profile, shown)]
    found += findings(profile, grave=False)
    found += _lost(profile.summary.gpus, profile.wall_s)
    if profile.streams == "busy":
        found.append(Sentence(
            "Kernels were still running when the cell ended;",
            " the time is that of launching them: `--sync` waits.", finding=True,
        ))
    return tuple(found)


def _ending(profile: Profile) -> list[Sentence]:
    wall = duration(profile.wall_s)
    if profile.exit == "error":
        return [Sentence(f"The cell failed after {wall}; the figures are of the time until then.")]
    if profile.exit == "interrupted":
        text = f"The cell was interrupted after {wall}; the figures are of the time until then."
        return [Sentence(text)]
    return []


def _did(profile: Profile, shown: Sequence[DeviceSummary]) -> list[Sentence]:
    """Say what the cell did, after what a diagnosis found to be well; nothing is said twice."""
    fine = [
        Sentence(" ".join(clean(text) for text in (f.lead, f.evidence, f.advice) if text))
        for f in well(profile)
    ]
    use = _use(profile, shown)
    text = " ".join(sentence.text for sentence in fine)
    if TOO_SHORT in text and TOO_SHORT in use.text:
        return fine
    if "GPU-Util" in text and "GPU-Util" in use.text and len(profile.summary.gpus) == 1:
        memory = _memory(profile.summary.gpus[0])
        use = Sentence(f"{memory[:1].upper()}{memory[1:]}.")
        return [*fine, use] if memory else fine
    return [*fine, use]


def _use(profile: Profile, shown: Sequence[DeviceSummary]) -> Sentence:
    gpus, wall = profile.summary.gpus, duration(profile.wall_s)
    if not gpus:
        return Sentence(_host(profile, wall))
    if len(gpus) == 1:
        # A slice is not the GPU.
        subject = "" if gpus[0].device.is_slice else "The GPU"
        return Sentence(_one(gpus[0], subject, wall, profile))
    used = [gpu for gpu in shown if not state_of(gpu)]
    if len(used) == 1:
        only = _one(used[0], "", wall, profile)
        # Whether one was used that could not be read is not known.
        known = use_of(used[0]).mean is not None
        begin = f"Of {len(gpus)} GPUs one was used: "
        return Sentence(begin + re.sub("^The ", "the ", only) if known else only)
    if not used and all(state_of(gpu) == "idle" for gpu in gpus):
        names = " and ".join(dict.fromkeys(_NAMES[use_of(gpu).metric] for gpu in gpus))
        return Sentence(f"None of the {len(gpus)} GPUs was used: {names} 0 % throughout.")
    return Sentence(_several(used or shown, len(gpus), wall))


def _one(gpu: DeviceSummary, subject: str, wall: str, profile: Profile) -> str:
    subject = subject or clean(gpu.device.label)
    use = use_of(gpu)
    if use.mean is None:
        return _unknown(use, subject, wall)
    if (use.metric == _SM or use.peak == 0) and not did_work(gpu):
        return _unused(gpu, subject)
    memory = _memory(gpu)
    if gpu.lost_s:
        wall = f"the {duration(max(profile.wall_s - gpu.lost_s, 0.0))} that could be read"
    text = f"{subject} was busy {_share(use.mean)} of {wall} (GPU-Util)"
    if any(f.rule in _MISLED and f.device == gpu.device.id for f in profile.findings):
        text = f"GPU-Util of {_inside(subject)} was {_share(use.mean)} over {wall}"
    if use.metric == _SM:
        text = f"The SMs of {_inside(subject)} were active {_share(use.mean)} of {wall}"
    return f"{text}; {memory}." if memory else f"{text}."


def _share(mean: float) -> str:
    return "less than 1 %" if mean < 0.005 else quantity(mean, "ratio")


def _unknown(util: Figure, subject: str, wall: str) -> str:
    if util.reason.startswith(TOO_SHORT):
        return f"{wall} is too short to say how busy {_inside(subject)} was."
    return f"How busy {_inside(subject)} was is not known."


def _inside(subject: str) -> str:
    return "the GPU" if subject == "The GPU" else subject


def _lost(gpus: Sequence[DeviceSummary], wall_s: float) -> list[Sentence]:
    """Say which GPUs could not be read, for how long and why; those alike in one sentence."""
    alike: dict[tuple[str, str], list[Device]] = {}
    for gpu in gpus:
        if not gpu.lost_s:
            continue
        long = "" if gpu.lost_s > 0.999 * wall_s else f" for {part_of(gpu.lost_s, wall_s)}"
        alike.setdefault((long, clean(gpu.gap_reason)), []).append(gpu.device)
    return [
        Sentence(f"{labels_of(devices)} could not be read{long}", f": {reason}." if reason else ".",
                 finding=True)
        for (long, reason), devices in alike.items()
    ]


def _unused(gpu: DeviceSummary, subject: str) -> str:
    name = _NAMES[use_of(gpu).metric]
    if gpu.lost_s:
        return f"{name} of {_inside(subject)} was 0 % while it could be read."
    if state_of(gpu):
        figure = gpu.figure(_USED)
        values = sampled(figure)
        if not values:
            return f"{subject} was not used: {name} 0 % throughout."
        scale = scale_for(_USED, values)
        held = f"{scale.number(values[-1])} {scale.unit}"
        return f"{subject} was not used: {name} 0 % throughout, memory steady at {held}."
    figure = gpu.figure(_ALLOCATED)
    word = "tensors"
    if steady(figure, 0):
        figure, word = gpu.figure(_USED), "memory in use"
    text = f"{name} of {_inside(subject)} stayed at 0 %"
    if figure.start is None or figure.end is None:
        return f"{text}; {word} changed."
    scale = scale_for(figure.metric, [figure.start, figure.end])
    before, after = scale.number(figure.start), scale.number(figure.end)
    return f"{text}; {word} went from {before} to {after} {scale.unit}."


def _memory(gpu: DeviceSummary) -> str:
    """Say how much memory was used at most: torch's tensors if known, else all of it."""
    figure, subject, verb = gpu.figure(_ALLOCATED), "tensors", "reached"
    if figure.peak is None:
        figure, subject = gpu.figure(_USED), "memory in use"
    elif figure.peak_exact or figure.peak_low is not None:
        verb = "took at most"
    if figure.peak is None:
        return ""
    scale = scale_for(figure.metric, [figure.peak])
    peak, total = scale.number(figure.peak), limit_of(gpu.device, _USED)
    if figure.peak_low is not None and span_text(scale, figure.peak_low, figure.peak) != peak:
        verb, peak = "peaked at", span_text(scale, figure.peak_low, figure.peak)
    if total is None:
        return f"{subject} {verb} {peak} {scale.unit}"
    whole = scale_for(_USED, [total])
    unit = "" if whole.unit == scale.unit else f" {scale.unit}"
    return f"{subject} {verb} {peak}{unit} of {whole.limit(total)}"


def _several(used: Sequence[DeviceSummary], count: int, wall: str) -> str:
    # One figure for all of them: SM active if more GPUs have that.
    found = {
        metric: [(mean, gpu) for gpu in used if (mean := gpu.figure(metric).mean) is not None]
        for metric in (_UTIL, _SM)
    }
    counted = max((_UTIL, _SM), key=lambda metric: len(found[metric]))
    means = found[counted]
    if not means:
        # What is too short for some is not known of all.
        figures = sorted(
            (gpu.figure(_UTIL) for gpu in used), key=lambda f: f.reason.startswith(TOO_SHORT)
        )
        return _unknown(figures[0], f"{count} GPUs", wall).replace(" was", " were")
    highest, busiest = max(means, key=lambda item: item[0])
    lowest = min(mean for mean, _ in means)
    subject = f"{count} GPUs" if len(means) == count else f"{len(means)} of {count} GPUs"
    spread = span_text(scale_of(counted), lowest, highest)
    verb = "was" if len(means) == 1 else "were"
    if any(gpu.lost_s for _, gpu in means):
        wall = "the time that could be read"
    text = f"{subject} {verb} busy {spread} % of {wall} (GPU-Util)"
    if counted == _SM:
        text = f"The SMs of {subject} were active {spread} % of {wall}"
    if spread != span_text(scale_of(counted), None, highest):
        text += f", {clean(busiest.device.label)} the most"
    metric = _ALLOCATED if any(gpu.figure(_ALLOCATED).measured for gpu in used) else _USED
    fullest = max(used, key=lambda gpu: max(sampled(gpu.figure(metric)), default=0.0))
    memory = _memory(fullest)
    return f"{text}; {memory} on {clean(fullest.device.label)}." if memory else f"{text}."


def _host(profile: Profile, wall: str) -> str:
    host = profile.summary.host
    text = "This cell ran on the host"
    cpu = cpu_figure(host) if host is not None else None
    if host is None or cpu is None or cpu.mean is None:
        return f"{text} for {wall}; no GPU was measured."
    scale, cores = scale_of(cpu.metric), limit_of(host.device, cpu.metric)
    text += f": {scale.number(cpu.mean)} "
    text += f"of {scale.limit(cores)} on average" if cores else "cores on average"
    rss = host.figure("process_rss_bytes")
    if rss.peak is not None:
        size = scale_for(rss.metric, [rss.peak])
        text += f", its process up to {size.number(rss.peak)} {size.unit} of RAM"
    return f"{text}; no GPU was measured."
