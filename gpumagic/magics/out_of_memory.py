"""The panel under the traceback of a cell that ran out of GPU memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .showing import show_as

if TYPE_CHECKING:
    from ..memory.live import DeviceMemory, Holder
    from ..memory.report import Looked
    from ..memory.shortage import Shortage

__all__ = ["OutOfMemoryPanel"]


_COUNT = 200
"""Storages that are named: what keeps a graph is small, and counts."""


class OutOfMemoryPanel:
    """Show who holds the memory after ``torch.OutOfMemoryError``, in any cell.

    It looks once, after the cell, and keeps neither the error nor its traceback. Where the
    cell's output is captured, as below ``%%capture``, it stands with the traceback: outside.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._told: tuple[int, str] | None = None
        self._waiting: Shortage | None = None
        self._shown = 0

    def register(self) -> None:
        """Look at each cell's end from now on."""
        self._shown = id(vars(sys).get("last_value"))
        self._shell.events.register("post_run_cell", self._cell_ended)

    def unregister(self) -> None:
        """Look no more; harmless a second time."""
        self._told = self._waiting = None
        if self._cell_ended in self._shell.events.callbacks["post_run_cell"]:
            self._shell.events.unregister("post_run_cell", self._cell_ended)

    def _cell_ended(self, result: Any) -> None:
        # A cell that runs within another one has come first, with an error that may be the same.
        told, self._told = self._told, None
        waiting, self._waiting = self._waiting, None
        error = self._error_of(result)
        try:
            short = waiting if error is None else self._look(error, result.info, told) or waiting
            if short is not None and _is_captured(self._shell):
                self._waiting = short
            elif short is not None:
                _show(short)
        except Exception as failure:  # the user's error has been shown, and is what counts
            print(f"gpumagic: no panel: {type(failure).__name__}: {failure}", file=sys.stderr)

    def _error_of(self, result: Any) -> BaseException | None:
        """Return the error that a cell ended with, or showed and ended well, as ``%run`` does."""
        shown = vars(sys).get("last_value")
        is_new = id(shown) != self._shown
        self._shown = id(shown)
        error: BaseException | None = getattr(result, "error_in_exec", None)
        if error is None and is_new and isinstance(shown, BaseException):
            return shown
        return error

    def _look(
        self, error: BaseException, info: Any, told: tuple[int, str] | None
    ) -> Shortage | None:
        """Return what is to be said of an error, if it is one of memory and not told yet."""
        if "torch" not in sys.modules:
            return None
        from ..memory.out_of_memory import is_out_of_memory

        if not is_out_of_memory(error):
            return None
        self._told = id(error), str(error)
        return None if self._told == told else _shortage(self._shell, error, info)


def _is_captured(shell: Any) -> bool:
    from IPython.core.displaypub import CapturingDisplayPublisher

    return isinstance(shell.display_pub, CapturingDisplayPublisher)


def _shortage(shell: Any, error: BaseException, info: Any) -> Shortage | None:
    from ..devices import cuda_module
    from ..memory.report import look
    from ..memory.roots import Notebook
    from ..memory.shortage import names_bound_by, names_read_by, parse, shortage_of

    notebook = Notebook(shell)
    cuda = cuda_module()
    looked = look(notebook, cpu=cuda is None, count=_COUNT)
    request = parse(str(error))
    index = request.device_index
    if index is None and cuda is not None:
        index = cuda.current_device()
    device = next(
        (one for one in looked.report if one.device in ("cpu", f"cuda:{index}")), None
    )
    if device is None:
        return None
    source = getattr(info, "transformed_cell", None) or info.raw_cell or ""
    cell, line = notebook.cell_of(error)
    return shortage_of(
        error,
        device,
        bound=names_bound_by(source, line),
        needed=names_read_by(source),
        returnable=_Returned(looked, device),
        cell=cell,
    )


class _Returned:
    """How many bytes the driver gets back once some holders are released, the cache included."""

    def __init__(self, looked: Looked, device: DeviceMemory) -> None:
        self._looked = looked
        self._device = device

    def __call__(self, going: Sequence[Holder]) -> int:
        stats, blocks = self._device.allocator, self._looked.blocks
        if stats is None or blocks is None:
            return sum(holder.bytes for holder in going)
        addresses = self._looked.addresses_of(self._device.device, going)
        return blocks.would_return(stats.torch_index, addresses)


def _show(short: Shortage) -> None:
    from ..views.shortage import shortage_html, shortage_text

    show_as(shortage_html(short), shortage_text(short))
