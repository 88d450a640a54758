"""What would help against a shortage of GPU memory, as far as there is evidence for it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..units import GIB, MIB, bytes_text
from .live import DeviceMemory, Holder, LiveStorage
from .out_of_memory import Request
from .stats import torch_version

__all__ = ["Evidence", "advice_for", "functions_of", "unreachable_bytes"]

_MOST = 2
_MUCH = 0.1
_ENOUGH = 256 * MIB
_SETTING = "expandable_segments:True"
_NEW_VARIABLE_SINCE = (2, 10)
_ITEM = re.compile(r"([^\W\d][\w.]*)\[\d+\]")
_TRAINS = re.compile(r"optim|sgd\b|adam|loss|scaler|\.grad\b", re.IGNORECASE)
_TRAINING_CODE = re.compile(r"(^|_)(train|training|fit|backward|step|loss)(_|$)")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a failed request; bytes, ``None`` where not told.

    ``again`` are the holders of what the cell had made when it failed, which it makes again the
    next time. ``solved`` says that after ``%gpufree`` the cell has room. ``functions`` are the
    names of those that the error came through. ``history`` are earlier looks at the device.
    """

    request: Request
    device: DeviceMemory
    label: str
    asked: int | None = None
    free: int | None = None
    total: int | None = None
    others: int | None = None
    again: tuple[Holder, ...] = ()
    solved: bool = False
    functions: frozenset[str] = frozenset()
    history: Sequence[DeviceMemory] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def made(self) -> tuple[LiveStorage, ...]:
        """The storages of ``again``."""
        names = {holder.name for holder in self.again}
        return tuple(s for s in self.device.storages if s.holder in names)

    def matters(self, size: int) -> bool:
        """Whether some bytes count beside what was asked for."""
        return size >= (self.asked if self.asked is not None else GIB) / 4

    @property
    def trains(self) -> bool:
        """Whether anything shows that gradients are wanted."""
        names = [root for holder in self.device.holders for root in (*holder.roots, holder.detail)]
        names += [storage.name for storage in self.device.storages]
        return any(map(_TRAINS.search, names)) or any(map(_TRAINING_CODE.search, self.functions))


def unreachable_bytes(device: DeviceMemory) -> int:
    """Return the bytes that no Python object leads to, such as what autograd has saved."""
    rest = sum(r.bytes for r in device.remainders if r.name == "not reachable from Python")
    return rest + sum(holder.bytes for holder in device.of("unknown"))


def advice_for(evidence: Evidence) -> tuple[str, ...]:
    """Return at most two sentences, the most certain first; code stands between backticks."""
    found = [
        text for rule in (_limit, _fragments, _kept_graphs, _others, *_SMALLER)
        if not (evidence.solved and rule in _SMALLER) and (text := rule(evidence))
    ]
    return tuple(found[:_MOST])


# -- what is in the way ---------------------------------------------------------------------


def _limit(evidence: Evidence) -> str:
    """The process may not use more, although the device has it."""
    request, asked = evidence.request, evidence.asked
    allowed, free = request.allowed_bytes, request.free_bytes
    if allowed is None or free is None or asked is None or asked > free:
        return ""
    if request.total_bytes is not None and allowed >= request.total_bytes * 0.99:
        return ""
    return (
        f"This process may use {bytes_text(allowed)} of {evidence.label}: raise"
        " `torch.cuda.set_per_process_memory_fraction`."
    )


def _fragments(evidence: Evidence) -> str:
    """The cache has room for the request, in pieces."""
    asked, free = evidence.asked, evidence.free
    pieces = evidence.request.unallocated_bytes
    if pieces is None:
        pieces = evidence.device.pinned.bytes if evidence.device.pinned is not None else 0
    if asked is None or free is None or not free < asked <= free + pieces:
        return ""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    if any(_SETTING in evidence.environment.get(name, "") for name in names):
        return ""
    variable = names[0] if evidence.request.new_variable or _is_new() else names[1]
    return (
        f"{bytes_text(pieces)} lie cached in pieces between live tensors: set"
        f" `{variable}={_SETTING}` before torch starts."
    )


def _is_new() -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", torch_version() or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _NEW_VARIABLE_SINCE


def _kept_graphs(evidence: Evidence) -> str:
    """A list keeps tensors with what they were computed from."""
    kept: dict[str, list[LiveStorage]] = {}
    for storage in evidence.device.storages:
        match = _ITEM.match(storage.name)
        if match is not None and storage.has_graph and not storage.where:
            kept.setdefault(match[1], []).append(storage)
    saved = unreachable_bytes(evidence.device)
    for name, items in sorted(kept.items(), key=lambda pair: -len(pair[1])):
        if len(items) < 2 or not _is_list(evidence.device, name):
            continue
        size = sum(item.bytes for item in items)
        if not (evidence.matters(size + saved) or _has_grown(evidence, name, len(items))):
            continue
        alone = all(not item.shape for item in items)
        what = f"`{'loss' if 'loss' in name.lower() else 'x'}.{'item' if alone else 'detach'}()`"
        return (
            f"`{name}` is a list whose tensors keep the graphs that they came from: append {what}."
        )
    return ""


def _is_list(device: DeviceMemory, name: str) -> bool:
    root = name.partition(".")[0]
    holder = next((h for h in device.of("variable") if root in h.roots), None)
    # Of variables that hold the same tensors the report does not tell the types.
    return holder is not None and (root != name or len(holder.roots) > 1 or "list" in holder.detail)


def _has_grown(evidence: Evidence, name: str, count: int) -> bool:
    """Whether a list had fewer tensors in each earlier look, and the device less memory."""
    if not evidence.history:
        return False
    before = [
        sum(s.has_graph and s.name.startswith(f"{name}[") for s in device.storages)
        for device in evidence.history
    ]
    grown = all(first < then for first, then in zip(before, [*before[1:], count], strict=True))
    return grown and evidence.history[0].reachable_bytes < evidence.device.reachable_bytes


def _others(evidence: Evidence) -> str:
    """Other processes hold much of the device."""
    held, asked, free, total = evidence.others, evidence.asked, evidence.free, evidence.total
    if held is None or held < _ENOUGH:
        return ""
    enough = asked is not None and free is not None and free + held >= asked
    if not enough and (total is None or held < _MUCH * total):
        return ""
    children = [child for child in evidence.device.children if child.bytes]
    ours = sum(child.bytes or 0 for child in children)
    if ours >= held / 2:
        named = ", ".join(f"PID {child.pid} `{child.command}`" for child in children[:2])
        return f"Children of this process hold {bytes_text(ours)} of {evidence.label}: {named}."
    held_text = bytes_text(held)
    return f"Other processes hold {held_text} of {evidence.label}: end them, or take another GPU."


# -- what would take less -------------------------------------------------------------------


def _graph_bytes(evidence: Evidence) -> tuple[int, int]:
    """Return the bytes that the cell had made, and those of tensors with a graph."""
    made = evidence.made
    return sum(s.bytes for s in made), sum(s.bytes for s in made if s.has_graph)


def _inference(evidence: Evidence) -> str:
    """Tensors keep graphs, and nothing shows that anybody wants gradients."""
    made, graphs = _graph_bytes(evidence)
    if not graphs or graphs < made / 2 or evidence.trains:
        return ""
    if not evidence.matters(graphs + unreachable_bytes(evidence.device)):
        return ""
    return "If nothing is trained here, `torch.inference_mode()` keeps no activations."


def _batch(evidence: Evidence) -> str:
    """Most of what the cell had made has the same number of rows."""
    made, graphs = _graph_bytes(evidence)
    rows: Counter[int] = Counter()
    tensors: Counter[int] = Counter()
    for storage in evidence.made:
        if len(storage.shape) > 1 and storage.shape[0] > 1:
            rows[storage.shape[0]] += storage.bytes
            tensors[storage.shape[0]] += 1
    if not rows or not evidence.matters(made):
        return ""
    ((count, size),) = rows.most_common(1)
    if size < made / 2 or tensors[count] < 2:
        return ""
    then = " and accumulate gradients over two" if graphs and evidence.trains else ""
    return f"Halve the batch{then}: most of the traceback's {bytes_text(made)} have {count} rows."


def _autocast(evidence: Evidence) -> str:
    """Most of what the cell had made is in single precision, and in a graph."""
    made, _ = _graph_bytes(evidence)
    single = sum(s.bytes for s in evidence.made if s.has_graph and s.dtype.endswith("float32"))
    if not single or single < made / 2 or not evidence.matters(single):
        return ""
    return f"`torch.autocast` would halve most of the traceback's {bytes_text(single)} of float32."


_SMALLER = (_inference, _batch, _autocast)


def functions_of(error: BaseException) -> Iterator[str]:
    """Yield the names of the functions that an error came through."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_name
        traceback = traceback.tb_next
