"""Give device memory back: what the notebook keeps goes, what the user's names hold stays."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from ..devices import cuda_module
from ..errors import SettingError
from ..units import MIB
from .errors_kept import let_errors_go
from .live import DeviceMemory, Holder, MemoryReport
from .phases import tensors_below
from .release import Freed, Step, StepKind
from .report import Looked, look, running_shell
from .roots import DisplayCopy, Notebook
from .scan import TIMEOUT_S
from .tensors import TensorReader, torch_module

__all__ = ["free_memory"]

# What the rounding to blocks may make of a difference.
_UNEVEN_BYTES = MIB
_KINDS: dict[str, StepKind] = {"traceback": "traceback", "cycle": "cycle", "output": "output"}


def free_memory(
    *names: str, outputs: bool = False, dry_run: bool = False, cpu: bool = False
) -> Freed:
    """Give back the device memory that the notebook holds and no variable does.

    Without names: the last errors' tracebacks, cycles, handles of other processes, and then
    torch's cached blocks (``gc.collect``, ``torch.cuda.ipc_collect`` and ``empty_cache``).
    With names: those variables are deleted, with the displayed copies of the same objects, and
    tracebacks stay. ``outputs`` also lets go of displayed values (``Out``, ``_``) that hold
    device memory: such a value can be the only copy. With ``dry_run`` nothing is released and
    the result says what would be. ``cpu`` does the same for tensors on the CPU.

    Bytes are what torch's allocator tells before and after each step, on the CPU what the
    search for tensors finds. Raises :class:`~gpumagic.errors.SettingError` for a name that is
    no variable, before anything is released. A refusal of torch is the result's ``reason``.
    """
    notebook = Notebook(running_shell())
    return free(notebook, names, outputs=outputs, dry_run=dry_run, cpu=cpu)


def free(
    notebook: Notebook,
    names: Collection[str] = (),
    *,
    outputs: bool = False,
    dry_run: bool = False,
    cpu: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Freed:
    """Do what :func:`free_memory` says in a notebook."""
    names = tuple(dict.fromkeys(names))
    _check(notebook, names)
    before = look(notebook, cpu=cpu, last=names, timeout_s=timeout_s)
    if before.found is None:
        report = before.report
        return Freed((), report, report, dry_run, names, None, report.reason)
    if dry_run:
        return _foreseen(before, names, outputs)
    wanted = _addresses(notebook, names, cpu)
    work = _Work(notebook, before, names, cpu)
    if names:
        work.step("name", ", ".join(names), lambda: _delete(notebook, names))
    work.step("cycle", "cycles", lambda: None)
    if not names and _errors_may_hold(before.report):
        work.drop_errors()
    if outputs:
        work.step("output", "displayed values", lambda: _forget(notebook, cpu))
    work.step("ipc", "handles of other processes", work.collect_ipc, collect=False)
    work.empty_cache()
    after = look(notebook, cpu=cpu, timeout_s=timeout_s)
    still = {name: _holders_at(after, wanted[name]) for name in names}
    return Freed(
        tuple(work.steps(after, wanted)), before.report, after.report, False, names, still,
        work.reason or before.report.reason,
    )


def _errors_may_hold(report: MemoryReport) -> bool:
    """Tell whether the notebook's errors can hold device memory: else ``%debug`` keeps them."""
    return bool(report.cut) or any(
        device.of("traceback")
        or sum(holder.bytes for holder in device.of("unknown")) > _UNEVEN_BYTES
        or sum(rest.bytes for rest in device.remainders) > _UNEVEN_BYTES
        for device in report
    )


def _check(notebook: Notebook, names: Iterable[str]) -> None:
    known = {root.name for root in notebook.variables()}
    for name in names:
        if name in known:
            continue
        if name in notebook.namespace:
            raise SettingError(f"{name} is {_whose(notebook, name)}")
        close = [one for one in known if one.lower().startswith(name[:3].lower())][:3]
        hint = f"; there are: {', '.join(sorted(close))}" if close else ""
        if not name.isidentifier():
            hint = "; give the name of a variable, such as model"
        raise SettingError(f"no variable {name}{hint}")


def _whose(notebook: Notebook, name: str) -> str:
    """Say what a name is that is no variable of the user's."""
    value = notebook.namespace[name]
    if type(value) is ModuleType:
        return "a module, not a variable"
    if value is notebook.outputs or any(copy.key == name for copy in notebook.display_copies()):
        return "IPython's, not a variable of yours; %gpufree --out lets go of displayed values"
    return "IPython's, not a variable of yours"


# -- what would happen --------------------------------------------------------------------


def _foreseen(before: Looked, names: tuple[str, ...], outputs: bool) -> Freed:
    """Say what the steps would release, without doing any."""
    kinds = {"cycle"} | (set() if names else {"traceback"}) | ({"output"} if outputs else set())
    steps: list[Step] = []
    left: list[DeviceMemory] = []
    for device in before.report:
        gone = [one for one in device.holders if one.kind in kinds or _is_named(one, names)]
        left.append(_without(device, gone, before))
        steps += [_foreseen_step(holder, device.device) for holder in gone]
    returned = {
        device.device: _reserved(device) - _reserved(after)
        for device, after in zip(before.report, left, strict=True)
    }
    if any(returned.values()):
        steps.append(Step("cache", "cached blocks", "", returned))
    still = None
    if names:
        still = {name: _also_held(before.report, name, names) for name in names}
    after_report = replace(before.report, devices=tuple(left))
    return Freed(
        tuple(steps), before.report, after_report, True, names, still, before.report.reason
    )


def _is_named(holder: Holder, names: Collection[str]) -> bool:
    return holder.kind == "variable" and set(holder.roots) <= set(names)


def _foreseen_step(holder: Holder, device: str) -> Step:
    kind: StepKind = _KINDS.get(holder.kind, "name")
    return Step(
        kind, holder.name, holder.detail, {device: holder.bytes}, holder.kind == "traceback"
    )


def _also_held(report: MemoryReport, name: str, names: Collection[str]) -> tuple[str, ...]:
    """Return who else holds what a variable leads to; those keep it when the names go."""
    going = {h.name for device in report for h in device.holders if _is_named(h, names)}
    return tuple(dict.fromkeys(
        storage.holder
        for device in report
        for storage in device.storages
        if storage.holder not in going and any(_begins(other, name) for other in storage.also)
    ))


def _begins(text: str, name: str) -> bool:
    return text == name or (text.startswith(name) and text[len(name)] in ".[ ")


def _without(device: DeviceMemory, gone: list[Holder], before: Looked) -> DeviceMemory:
    """Return a device's memory as it would be without some holders and their cached blocks."""
    holders = tuple(holder for holder in device.holders if holder not in gone)
    names = {holder.name for holder in holders}
    stats = device.allocator
    addresses = before.addresses_of(device.device, gone)
    blocks = before.blocks
    if stats is not None and blocks is not None and stats.torch_allocated_bytes is not None:
        size = sum(blocks.size_of(stats.torch_index, one) or 0 for one in addresses)
        back = blocks.would_return(stats.torch_index, addresses)
        stats = replace(
            stats,
            torch_allocated_bytes=stats.torch_allocated_bytes - size,
            torch_reserved_bytes=_less(stats.torch_reserved_bytes, back),
            torch_cached_bytes=_less(stats.torch_cached_bytes, back - size),
            gpu_memory_used_bytes=_less(stats.gpu_memory_used_bytes, back),
            gpu_memory_free_bytes=_less(stats.gpu_memory_free_bytes, -back),
            gpu_process_memory_bytes=_less(stats.gpu_process_memory_bytes, back),
        )
    return replace(
        device,
        holders=holders,
        storages=tuple(one for one in device.storages if one.holder in names),
        storage_count=device.storage_count - len(addresses),
        allocator=stats,
    )


def _less(value: int | None, by: int) -> int | None:
    return None if value is None else value - by


def _reserved(device: DeviceMemory) -> int:
    stats = device.allocator
    return 0 if stats is None else stats.torch_reserved_bytes or 0


# -- what is done -------------------------------------------------------------------------


class _Work:
    """Do the steps and measure what each released."""

    def __init__(
        self, notebook: Notebook, before: Looked, names: Collection[str], cpu: bool
    ) -> None:
        self._notebook = notebook
        self._before = before
        self._names = names
        self._cuda = None if cpu else cuda_module()
        self._done: list[Step] = []
        self.reason = ""

    def step(
        self, kind: StepKind, name: str, do: Callable[[], object], *, collect: bool = True
    ) -> None:
        """Do one step, collect garbage, and note by how much torch's allocated bytes fell."""
        before = self._bytes("allocated_bytes")
        do()
        if collect:  # it takes as long as the notebook is large
            gc.collect()
        after = self._bytes("allocated_bytes")
        self._note(kind, name, before, after)

    def drop_errors(self) -> None:
        """Let the notebook's errors go."""
        gone = False

        def drop() -> None:
            nonlocal gone
            gone = let_errors_go(self._notebook)

        self.step("traceback", "traceback", drop)
        self._done[-1] = replace(self._done[-1], debug_gone=gone)

    def collect_ipc(self) -> None:
        """Let go of memory that was shared with processes which are gone."""
        collect = getattr(self._cuda, "ipc_collect", None)
        if collect is not None:
            self._ask(collect)

    def empty_cache(self) -> None:
        """Return torch's cached blocks to the driver."""
        if self._cuda is None:
            return
        before = self._bytes("reserved_bytes")
        self._ask(self._cuda.empty_cache)
        self._note("cache", "cached blocks", before, self._bytes("reserved_bytes"))

    def _ask(self, release: Callable[[], object]) -> None:
        try:
            release()
        except RuntimeError as error:
            # E.g. in the middle of a CUDA graph's capture, or after a kernel has failed.
            text = (str(error).strip().splitlines() or ["no reason given"])[0]
            self.reason = f"torch refused to release its cache: {text}"

    def _bytes(self, name: str) -> dict[str, int]:
        cuda = self._cuda
        if cuda is None:
            return {}
        return {
            f"cuda:{index}": int(stats.get(name, {}).get("all", {}).get("current", 0))
            for index in range(cuda.device_count())
            if (stats := cuda.memory_stats_as_nested_dict(index))
        }

    def _note(
        self, kind: StepKind, name: str, before: Mapping[str, int], after: Mapping[str, int]
    ) -> None:
        freed = {
            device: size - after.get(device, 0)
            for device, size in before.items()
            if size > after.get(device, 0)
        }
        self._done.append(Step(kind, name, "", freed))

    def steps(self, after: Looked, wanted: Mapping[str, set[tuple[str, int]]]) -> Iterator[Step]:
        """Yield the steps that released something, described by who held it before."""
        for step in self._done:
            holders = [
                (device.device, holder)
                for device in self._before.report
                for holder in device.holders
                if self._is_of(holder, step)
            ]
            freed = step.bytes
            if self._cuda is None:
                named = set().union(*wanted.values()) if step.kind == "name" else set()
                freed = _gone({holder for _, holder in holders}, named, self._before, after)
            if freed or step.debug_gone or step.kind == "name":
                yield from _told_apart(replace(step, bytes=freed), holders)

    def _is_of(self, holder: Holder, step: Step) -> bool:
        if step.kind == "name":
            return _is_named(holder, self._names)
        return holder.kind == step.kind


def _told_apart(step: Step, holders: Sequence[tuple[str, Holder]]) -> Iterator[Step]:
    """Yield a step by holder, if theirs is what was measured together; else as one."""
    sums: dict[str, int] = {}
    for device, holder in holders:
        sums[device] = sums.get(device, 0) + holder.bytes
    if holders and all(
        abs(sums.get(device, 0) - size) <= _UNEVEN_BYTES + size / 100
        for device, size in step.bytes.items()
    ):
        for device, holder in holders:
            yield replace(
                step, name=holder.name, detail=holder.detail, bytes={device: holder.bytes}
            )
        return
    details = dict.fromkeys(holder.detail for _, holder in holders)
    yield replace(step, detail="; ".join(details))


def _gone(
    holders: Collection[Holder], named: set[tuple[str, int]], before: Looked, after: Looked
) -> dict[str, int]:
    """Return the bytes of those storages of some holders, or named, that are there no more."""
    freed: dict[str, int] = {}
    if before.found is None:
        return freed
    left = {} if after.found is None else after.found.addresses
    for device, known in before.found.addresses.items():
        size = sum(
            one.bytes
            for address, one in known.items()
            if (one.holder in holders or (device, address) in named)
            and address not in left.get(device, {})
        )
        if size:
            freed[device] = size
    return freed


def _delete(notebook: Notebook, names: Collection[str]) -> None:
    """Delete variables and the displayed copies of the same objects."""
    values = {id(notebook.namespace[name]) for name in names}
    for copy in notebook.display_copies():
        if id(copy.value) in values:
            _empty(copy)
    for name in names:
        del notebook.namespace[name]


def _forget(notebook: Notebook, cpu: bool) -> None:
    """Let go of the displayed values that hold device memory, wherever IPython keeps them."""
    reader = TensorReader(torch_module(), "cpu" if cpu else "cuda")
    copies = notebook.display_copies()
    holding: dict[int, bool] = {}
    for copy in copies:
        key = id(copy.value)
        if key not in holding:
            holding[key] = bool(_places(notebook, reader, copy.value))
        if holding[key]:
            _empty(copy)


def _empty(copy: DisplayCopy) -> None:
    if type(copy.owner) is not dict:
        setattr(copy.owner, copy.key, None if copy.key == "result" else "")
    elif isinstance(copy.key, str) and not copy.key.strip("_"):
        copy.owner[copy.key] = ""  # as IPython begins
    else:
        copy.owner.pop(copy.key, None)


def _places(notebook: Notebook, reader: TensorReader, value: Any) -> set[tuple[str, int]]:
    """Return the storages that an object leads to: device and address."""
    with reader.quiet():
        return {
            (place.device, place.address)
            for tensor in tensors_below(value, notebook, reader)
            for place in reader.places(tensor)
        }


def _addresses(
    notebook: Notebook, names: Iterable[str], cpu: bool
) -> dict[str, set[tuple[str, int]]]:
    torch = torch_module()
    if torch is None:
        return {name: set() for name in names}
    reader = TensorReader(torch, "cpu" if cpu else "cuda")
    return {name: _places(notebook, reader, notebook.namespace[name]) for name in names}


def _holders_at(after: Looked, places: set[tuple[str, int]]) -> tuple[str, ...]:
    """Return who holds some storages, the largest holder first."""
    if after.found is None:
        return ()
    found = {
        one.holder.name: one.holder.bytes
        for device, known in after.found.addresses.items()
        for address, one in known.items()
        if (device, address) in places
    }
    return tuple(sorted(found, key=lambda name: -found[name]))
