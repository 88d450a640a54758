"""Rules about the GPU's memory."""

from __future__ import annotations

from ..units import MIB, bytes_of, bytes_text, quantity
from .case import Case, Value
from .finding import Finding

__all__ = [
    "allocator_retries",
    "cache_no_leak",
    "fragmentation",
    "free_bytes",
    "near_full",
    "need_bytes",
    "out_of_memory",
]

_ALLOCATED = "torch_allocated_bytes"
_RESERVED = "torch_reserved_bytes"
_SPLIT = "torch_inactive_split_bytes"
_USED = "gpu_memory_used_bytes"
_OTHERS = "gpu_other_processes_memory_bytes"
_EXPANDABLE = "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"

_MUCH = 0.1


# -- how much was needed --------------------------------------------------------------------


def need_bytes(case: Case) -> Value:
    """Return what the device needed at its highest: all of it that was neither free nor cache.

    torch's cache is not need, since the allocator reuses it and gives it back before it fails;
    the tensors' own peak counts where it lies above the reading.
    """
    state = case.waterfall.state("highest") if case.waterfall is not None else None
    if state is None or case.waterfall is None or case.waterfall.total_bytes is None:
        return None
    free, cached, live = (state.part(name) for name in ("free", "cached", "live tensors"))
    # Parts of no size are not listed.
    left = free.bytes if free is not None else 0.0
    need = case.waterfall.total_bytes - left - (cached.bytes if cached is not None else 0.0)
    figure = case.figure(_ALLOCATED)
    peak = figure.peak if figure.peak_low is None else figure.peak_low
    if peak is not None and live is not None:
        need += max(0.0, peak - live.bytes)
    return min(need, case.waterfall.total_bytes)


def free_bytes(case: Case) -> Value:
    """Return what was left of the device at its highest need."""
    need, total = need_bytes(case), case.total_bytes
    return None if need is None or total is None else max(0.0, total - need)


def _who(case: Case) -> str:
    """Say who had the memory at the highest use, the largest part first."""
    state = case.waterfall.state("highest") if case.waterfall is not None else None
    if state is None:
        return ""
    names = {
        "live tensors": "live tensors", "cached": "torch's cache",
        "context": "the CUDA context and other libraries", "other processes": "other processes",
        "outside torch": "what is not torch's",
    }
    parts = sorted((p for p in state.parts if p.name in names), key=lambda p: -p.bytes)
    texts = [f"{names[p.name]} {bytes_text(p.bytes)}" for p in parts[:3] if p.bytes >= 256 * MIB]
    return ", ".join(texts)


# -- running out ----------------------------------------------------------------------------


def _others(case: Case) -> tuple[str, str] | None:
    """Return the advice, and it in short, where other processes hold a tenth of the device."""
    total, held = case.total_bytes, case.figure(_OTHERS).peak
    if total is None or held is None or held < _MUCH * total:
        return None
    advice = f"Other processes hold {bytes_text(held)}: end them, or take another GPU."
    if case.figure("children_count").peak:
        advice = f"Other processes, perhaps children of this one, hold {bytes_text(held)}."
    return advice, f"others hold {bytes_text(held)}"


def out_of_memory(case: Case) -> Finding | None:
    """An allocation failed in the cell."""
    count = case.grown("torch_ooms_count")
    if not count:
        return None
    failed = "an allocation" if count == 1 else f"{count:.0f} allocations"
    ended = case.span.status == "error"
    went_on = "" if ended else ", and the cell went on"
    who = _who(case)
    peak, total = case.figure(_ALLOCATED).peak, case.total_bytes
    evidence = f"At the highest reading: {who}." if who else ""
    if peak is not None and total is not None:
        evidence += f" Tensors reached {bytes_of(peak, total)}."
    others = _others(case)
    if others:
        advice, tip = others
    elif total is not None and (unusable := _unusable(case)) >= _MUCH * total:
        advice = f"{bytes_text(unusable)} lie in pieces: set {_EXPANDABLE} before CUDA starts."
        tip = "fragmented: `expandable_segments:True`"
    else:
        advice = (
            "Try a smaller batch, `torch.utils.checkpoint`, or bf16; `torch.inference_mode()` where"
            " nothing is trained."
        )
        tip = "smaller batch or checkpointing"
    return Finding(
        "out-of-memory", "failed" if ended else "limit",
        f"{case.subject} ran out of memory: {failed} failed{went_on}.",
        evidence.strip(), advice, f"out of memory: {tip}", case.device,
        metrics=(_USED, _RESERVED, _ALLOCATED), figures={"torch_ooms_count": count},
    )


def allocator_retries(case: Case) -> Finding | None:
    """The allocator had to empty its cache and ask again in order to go on."""
    count = case.grown("torch_alloc_retries_count")
    if not count:
        return None
    times = "once" if count == 1 else f"{count:.0f} times"
    who = _who(case)
    return Finding(
        "allocator-retries", "limit",
        f"Memory on {_name(case)} was so short that torch emptied its cache {times} to go on.",
        f"At the highest reading: {who}." if who else "",
        (_others(case) or ("",))[0]
        or f"Each time costs a wait for the GPU: try a smaller batch, or {_EXPANDABLE}.",
        f"memory short: cache emptied {times}", case.device,
        metrics=(_USED, _RESERVED), figures={"torch_alloc_retries_count": count},
    )


def _name(case: Case) -> str:
    return "the GPU" if case.subject == "The GPU" else case.subject


def near_full(case: Case) -> Finding | None:
    """The device's memory was nearly all needed, torch's cache not counted."""
    need, total = need_bytes(case), case.total_bytes
    if need is None or total is None or need < case.thresholds.near_full_ratio * total:
        return None
    who = _who(case)
    return Finding(
        "near-full", "limit",
        f"{case.subject}'s memory was nearly full: {bytes_of(need, total)} were needed.",
        f"At the highest reading: {who}." if who else "",
        (_others(case) or ("",))[0] or "A little more runs out of memory: try a smaller batch,"
        " `torch.utils.checkpoint`, or bf16.",
        f"memory {quantity(need / total, 'ratio')} full", case.device,
        metrics=(_USED, _ALLOCATED), figures={"need_bytes": need, "total_bytes": total},
    )


# -- memory that is held and not used -------------------------------------------------------


def _unusable(case: Case) -> float:
    """Return the bytes that torch holds above its tensors' peak in segments that blocks pin."""
    reserved, allocated = case.figure(_RESERVED), case.figure(_ALLOCATED)
    split = case.figure(_SPLIT)
    if reserved.peak is None or allocated.peak is None or split.peak is None:
        return 0.0
    return max(0.0, min(reserved.peak - allocated.peak, split.peak))


def fragmentation(case: Case) -> Finding | None:
    """torch had to take more memory while much of what it held lay in unusable pieces."""
    limits, total = case.thresholds, case.total_bytes
    reserved = case.figure(_RESERVED)
    if total is None or reserved.peak is None or reserved.start is None:
        return None
    unusable = _unusable(case)
    if reserved.peak <= reserved.start:
        return None  # nothing was taken: the pieces hindered nobody
    if unusable < max(limits.fragmented_ratio * reserved.peak, limits.waste_ratio * total):
        return None
    peak = case.figure(_ALLOCATED).peak
    assert peak is not None
    return Finding(
        "fragmentation", "limit",
        f"torch's memory is fragmented: it took {bytes_text(reserved.peak)} for tensors that never"
        f" passed {bytes_text(peak)}.",
        f"{bytes_text(unusable)} lay unused in pieces between live blocks.",
        f"Set {_EXPANDABLE} before CUDA starts, or allocate the largest tensors first.",
        f"{bytes_text(unusable)} fragmented: `expandable_segments:True`", case.device,
        metrics=(_RESERVED, _ALLOCATED), figures={"fragmented_bytes": unusable},
    )


def cache_no_leak(case: Case) -> Finding | None:
    """Most of what the device shows as used at the end is torch's cache, not tensors."""
    total = case.total_bytes
    reserved, allocated = case.figure(_RESERVED), case.figure(_ALLOCATED)
    if total is None or reserved.end is None or allocated.end is None:
        return None
    cached = reserved.end - allocated.end
    if cached < case.thresholds.cache_ratio * total or allocated.end > 0.5 * reserved.end:
        return None
    used = case.figure(_USED).end
    shown = f" of the {bytes_text(used)} that nvidia-smi shows" if used is not None else ""
    return Finding(
        "cache", "hint",
        f"{bytes_text(cached)}{shown} are torch's cache, not a leak.",
        f"Live tensors hold {bytes_text(allocated.end)};"
        " torch keeps the rest for its next tensors.",
        "`%gpufree` gives it back to other processes.",
        f"{bytes_text(cached)} are cache: `%gpufree`", case.device,
        metrics=(_RESERVED,), figures={"cached_bytes": cached},
    )

