"""Measuring one cell or block: from its begin to its Profile.

Nothing of the user's is reset, emptied or waited for (unless ``sync`` asks for the wait).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, get_args

from .cell_profiles import profile_of
from .devices import cuda_module
from .errors import SettingError
from .memory.history import History
from .memory.streams import streams_state, synchronise
from .profiles import Profile
from .sample import Span, SpanStatus
from .session import Session, current

__all__ = ["Measurement", "Peak", "profile", "status_of"]

Peak = Literal["auto", "exact"]
"""How the peak of torch's memory is found: by its counters and readings, or by its history."""

_READ_S = 0.5


class Measurement:
    """One measurement in progress; ``end`` gives its :class:`~gpumagic.profiles.Profile`.

    ``gpus`` and ``interval_s`` default to the settings. With ``sync`` the end waits for the
    GPUs that torch uses before it takes the time. ``peak="exact"`` keeps the history of
    torch's allocator while the cell runs (see :mod:`gpumagic.memory.history`). Raises
    :class:`~gpumagic.errors.DeviceError` for a GPU that is not there and
    :class:`~gpumagic.errors.SettingError` for another ``peak``.
    """

    def __init__(
        self,
        session: Session,
        *,
        name: str = "",
        number: int | None = None,
        gpus: str | int | Iterable[str | int] | None = None,
        interval_s: float | None = None,
        sync: bool = False,
        peak: Peak = "auto",
    ) -> None:
        if peak not in get_args(Peak):
            raise SettingError(f"peak is one of {', '.join(get_args(Peak))}, not {peak!r}")
        if not isinstance(name, str):
            raise TypeError(f"the name of a measurement is a string, not {name!r}")
        names: list[str] | None = None
        if gpus is not None:
            given = (gpus,) if isinstance(gpus, (str, int)) else gpus
            names = [str(gpu) for gpu in given]
        self.session = session
        self._sync = sync
        self._history = History() if peak == "exact" else None
        # A measurement inside a measured cell is a span of its own; a cell's is the cell.
        self._block: Span | None = None
        self._lease = session.lease(f"profile {name}".strip(), gpus=names, interval_s=interval_s)
        self._gpus = self._lease.gpus
        try:
            sampler = session.sampler
            if sampler is not None:
                sampler.read_now(timeout_s=_READ_S)
            if self._history is not None:
                self._history.begin()
        except BaseException:
            self._let_go()
            raise
        self._cuda_at_start = cuda_module() is not None
        self._cpu_at_start = session.watch_cpu_s
        start = session.clock()
        if number is None:
            self._block = session.recording.begin_span(start, name=name)
            self.span = self._block
        else:
            self.span = Span(0, start, number=number, name=name)

    def end(self, status: SpanStatus = "ok") -> Profile:
        """End the measurement, let go of the sampler, and return what was measured."""
        session = self.session
        try:
            synchronised = self._sync and _synchronised()
            end = session.clock()
            streams = streams_state()
            if self._block is not None:
                session.recording.end_span(self._block.id, end, status)
            sampler = session.sampler
            if sampler is not None:
                sampler.read_now(timeout_s=_READ_S)
            history = self._history.end() if self._history is not None else None
            result = profile_of(
                session,
                replace(self.span, end=end, status=status),
                gpus=self._gpus,
                streams=streams,
                synchronised=synchronised,
                watch_cpu_s=session.watch_cpu_s - self._cpu_at_start,
                cuda_at_start=self._cuda_at_start,
                history=history,
            )
        except BaseException:
            self.cancel()
            raise
        self._lease.release()
        session.profiles.append(result)
        return result

    def cancel(self) -> None:
        """Let go of the sampler and of the allocator's history without a result."""
        recording = self.session.recording
        try:
            span = recording.span(self._block.id) if self._block is not None else None
            if span is not None and span.end is None:
                recording.end_span(span.id, self.session.clock(), "interrupted")
        finally:
            self._let_go()

    def _let_go(self) -> None:
        try:
            if self._history is not None:
                self._history.drop()
        finally:
            self._lease.release()


def status_of(error: BaseException) -> SpanStatus:
    """Tell how a block ended that an exception has left."""
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "error"


@contextmanager
def profile(
    name: str = "",
    *,
    gpus: str | int | Iterable[str | int] | None = None,
    interval_s: float | None = None,
    sync: bool = False,
    peak: Peak = "auto",
) -> Iterator[ProfileHandle]:
    """Measure a block: ``with gpumagic.profile("load") as p: ...``.

    ``p`` stands for the :class:`~gpumagic.profiles.Profile` once the block has ended
    (``p.result``, or any of its attributes). An exception in the block goes on as ever.
    ``gpus`` is an index, a list of names, or both as one text (``0``, ``"0,cuda:1"``).
    ``peak="exact"`` finds the peak of torch's memory by its allocator's history.
    """
    measurement = Measurement(
        current(), name=name, gpus=gpus, interval_s=interval_s, sync=sync, peak=peak
    )
    handle = ProfileHandle()
    status: SpanStatus = "ok"
    try:
        yield handle
    except BaseException as error:
        status = status_of(error)
        raise
    finally:
        try:
            handle.result = measurement.end(status)
        except Exception:
            if status == "ok":
                raise  # else the block's own exception is what the user has to see


def _synchronised() -> bool:
    """Wait for the GPUs; a kernel that failed is for the user's next call to tell."""
    try:
        return synchronise()
    except RuntimeError:
        return False


class ProfileHandle:
    """What ``with profile(...) as p`` gives: the Profile, once there is one."""

    def __init__(self) -> None:
        self.result: Profile | None = None

    def __getattr__(self, name: str) -> object:
        result = self.__dict__.get("result")  # a copy in the making has no attributes yet
        if result is None:
            raise AttributeError(f"no {name} yet: the block has not ended")
        found: object = getattr(result, name)
        return found

    def __repr__(self) -> str:
        return repr(self.result) if self.result is not None else "<Profile in progress>"

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, str]:
        if self.result is None:
            return {"text/plain": repr(self)}
        return self.result._repr_mimebundle_(include, exclude)
