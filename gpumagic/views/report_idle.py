"""GPUs that did nothing in a cell: they share a line of its report."""

from __future__ import annotations

from collections.abc import Sequence

from ..sample import Device
from ..summary import DeviceSummary, Figure
from ..units import MIB
from .report_parts import Section
from .report_rows import TOO_SHORT, scale_for, span_text
from .wording import clean

__all__ = ["did_work", "fold_idle", "labels_of", "sampled", "state_of", "steady", "use_of"]

_UTIL = "gpu_utilization_ratio"
_USED = "gpu_memory_used_bytes"
_ALLOCATED = "torch_allocated_bytes"
_SM = "gpu_sm_active_ratio"
_SAME_BYTES = 16 * MIB
_LEAST_ACTIVE = 0.002


def sampled(figure: Figure) -> list[float]:
    """Return what was read of a figure: next to the ends of the cell, and its highest."""
    peak = figure.peak if figure.peak_low is None else figure.peak_low
    return [v for v in (figure.start, peak, figure.end) if v is not None]


def steady(figure: Figure, tolerance: float) -> bool:
    """Tell whether all that was read of a figure is the same, give or take ``tolerance``."""
    values = sampled(figure)
    return not values or max(values) - min(values) <= tolerance


def use_of(gpu: DeviceSummary) -> Figure:
    """Return the figure that tells how busy a GPU was: GPU-Util, or SM active without that.

    MIG slices have no GPU-Util.
    """
    util, active = gpu.figure(_UTIL), gpu.figure(_SM)
    return active if util.mean is None and active.mean is not None else util


def did_work(gpu: DeviceSummary) -> bool:
    """Tell whether SMs were active, which GPU-Util, in whole percents, does not always show."""
    return (gpu.figure(_SM).peak or 0.0) >= _LEAST_ACTIVE


def state_of(gpu: DeviceSummary) -> str:
    """Say in a word what a GPU did that needs no rows, or nothing if it does."""
    if gpu.lost_s:
        return ""
    if not (steady(gpu.figure(_ALLOCATED), 0) and steady(gpu.figure(_USED), _SAME_BYTES)):
        return ""
    use = use_of(gpu)
    if use.metric == _SM or use.peak == 0:
        return "" if did_work(gpu) else "idle"
    return TOO_SHORT if use.peak is None and use.reason.startswith(TOO_SHORT) else ""


def fold_idle(
    gpus: Sequence[DeviceSummary],
) -> tuple[tuple[DeviceSummary, ...], tuple[Section, ...]]:
    """Split GPUs into those that get rows and sections in a line for the others."""
    states = {gpu.device.id: state_of(gpu) for gpu in gpus}
    shown = [gpu for gpu in gpus if not states[gpu.device.id]]
    if not shown:
        shown = [gpu for gpu in gpus if gpu.device.torch_index == 0][:1] or list(gpus[:1])
    rest = [gpu for gpu in gpus if gpu not in shown]
    folds = []
    for state in dict.fromkeys(states[gpu.device.id] for gpu in rest):
        group = [gpu for gpu in rest if states[gpu.device.id] == state]
        title = labels_of([gpu.device for gpu in group])
        folds.append(Section(title, summary=_folded(state, group)))
    return tuple(shown), tuple(folds)


def _folded(state: str, group: Sequence[DeviceSummary]) -> str:
    used = [values[-1] for gpu in group if (values := sampled(gpu.figure(_USED)))]
    if not used:
        return state
    scale = scale_for(_USED, used)
    each = " each" if len(group) > 1 else ""
    return f"{state}, {span_text(scale, min(used), max(used))} {scale.unit} used{each}"


def labels_of(devices: Sequence[Device]) -> str:
    """Name GPUs briefly: ``GPU 1, 3 to 7``; where one has no number of its own, each in full."""
    numbers = [d.nvml_index for d in devices if d.nvml_index is not None and not d.is_slice]
    if len(numbers) < len(devices):
        return ", ".join(clean(d.label) for d in devices)
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    ]
    return "GPU " + ", ".join(texts)
