"""The session: the one owner of sampling in a kernel.

Sampling runs while somebody holds a lease (a watch, a profile, a record) and stops with the
last one. The session notes cells as spans, keeps the views, and takes everything down.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .clock import Clock
from .errors import DeviceError
from .options import check_interval, parse_gpus
from .recording import Recording
from .sample import Mark, Span, SpanStatus
from .settings import GpuMagic
from .sources import Source, make_sources

if TYPE_CHECKING:
    from .profiles import Profile
    from .sampler import Sampler

__all__ = ["Lease", "Session", "current"]

_FASTEST_S = {"nvml": 0.0, "allocator": 0.0, "cell": 0.0, "gpm": 0.2}
_SLOW_S = 1.0
_DEFAULT_S: float = GpuMagic.interval_s.default_value
_LOOKING = frozenset({"watch"})
"""Who only looks: their readings are for the eye, and no figure of a cell rests on them."""
_LOOKING_S = {"nvml": 0.2, "allocator": 0.2, "gpm": 0.2}
"""Seconds between readings for those. The driver renews utilization every 0.2 s, and a column of
a picture is hardly narrower: what comes more often is seen twice."""
_KEPT_PROFILES = 200
_OPEN_S = 3.0


def _visible() -> tuple[str | None, ...]:
    """Return what decides which GPUs this process uses, until CUDA is initialised."""
    return tuple(os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))


class Lease:
    """A claim on sampling; release it, or use it in a ``with``."""

    def __init__(
        self, session: Session, who: str, gpus: tuple[str, ...], interval_s: float | None
    ) -> None:
        self.who = who
        self.gpus = gpus
        self.interval_s = interval_s
        self._session: Session | None = session

    def release(self) -> None:
        """Give the claim back; harmless a second time."""
        session, self._session = self._session, None
        if session is not None:
            session._release(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class Session:
    """Own the sampler, the recording and the views of this process.

    ``make`` builds the sources for a selection of GPUs and is handed in by tests. Methods may
    be called from any thread.
    """

    def __init__(
        self,
        settings: GpuMagic | None = None,
        *,
        shell: Any = None,
        clock: Callable[[], float] | None = None,
        make: Callable[[Sequence[str]], list[Source]] = make_sources,
    ) -> None:
        self.settings = settings if settings is not None else GpuMagic()
        self.shell = shell
        self.clock = clock or Clock().now
        self.recording = Recording(max_bytes=int(self.settings.memory_mib * 2**20))
        self.profiles: deque[Profile] = deque(maxlen=_KEPT_PROFILES)
        self.watch: Any = None
        self.record: Any = None
        self._make = make
        self._lock = threading.RLock()
        self._leases: list[Lease] = []
        self._sampler: Sampler | None = None
        self._selection: tuple[str, ...] = ()
        self._visible = _visible()
        # By thread: a kernel's subshells run cells in threads of their own, at the same time.
        self._cells: dict[int, Span] = {}
        self._pid = os.getpid()
        self._cpu_before = 0.0

    # -- sampling -------------------------------------------------------------------------

    @property
    def sampler(self) -> Sampler | None:
        """The sampler that runs now, or ``None``."""
        return self._sampler if self.alive else None

    @property
    def alive(self) -> bool:
        """Whether this is the process that made the session; a forked child has none."""
        return self._pid == os.getpid()

    def lease(
        self,
        who: str,
        *,
        gpus: str | Iterable[str | int] | None = None,
        interval_s: float | None = None,
    ) -> Lease:
        """Claim sampling of some GPUs at an interval; defaults come from the settings.

        The sampler reads the GPUs of all leases together at the shortest of their intervals. A
        watch that asks for none, where the setting has its default, is served with a reading
        each 0.2 s.
        Raises :class:`~gpumagic.errors.DeviceError` for a GPU that is not there and
        :class:`~gpumagic.errors.SettingError` for an interval out of bounds.
        """
        if gpus is None:
            gpus = self.settings.gpus
        names = parse_gpus(gpus if isinstance(gpus, str) else " ".join(map(str, gpus)))
        if interval_s is not None:
            check_interval(interval_s)
        lease = Lease(self, who, names, interval_s)
        with self._lock:
            self._leases.append(lease)
            try:
                self._adjust()
                self._check_gpus()
            except BaseException:
                self._leases.remove(lease)
                self._adjust()
                raise
        return lease

    def _check_gpus(self) -> None:
        """Raise for a GPU that was named and is not there, as its source has found out."""
        sampler = self._sampler
        error = sampler.errors.get("nvml") if sampler is not None else None
        if isinstance(error, DeviceError):
            raise error

    def named_gpus(self, names: Sequence[str]) -> list[str]:
        """Return the ids of the recorded GPUs that some names stand for (see ``select``)."""
        gpus = [d for d in self.recording.devices if d.kind == "gpu"]
        if "all" in names:
            return [d.id for d in gpus]
        return [
            d.id
            for d in gpus
            if (str(d.nvml_index) in names and not d.is_slice)
            or (d.torch_index is not None and "usable" in names)
            or f"cuda:{d.torch_index}" in names
            or any(d.id.lower().startswith(name.lower()) for name in names)
        ]

    def _release(self, lease: Lease) -> None:
        if not self.alive:
            return  # another thread of the parent can have held the lock at the fork
        with self._lock:
            if lease in self._leases:
                self._leases.remove(lease)
                self._adjust()

    @property
    def leases(self) -> tuple[str, ...]:
        """Who claims sampling at present."""
        return tuple(lease.who for lease in self._leases)

    def refresh(self) -> None:
        """Take changed settings over to the sampler that runs."""
        with self._lock:
            if self._leases:
                self._set_periods()

    def _adjust(self) -> None:
        """Run the sampler that the leases ask for, or none."""
        if not self.alive:
            return
        if not self._leases:
            self._stop_sampler()
            return
        selection = tuple(dict.fromkeys(name for lease in self._leases for name in lease.gpus))
        running = self._sampler is not None and self._sampler.running
        if not running or selection != self._selection or self._visible != _visible():
            self._start_sampler(selection)
        self._set_periods()

    def _start_sampler(self, selection: tuple[str, ...]) -> None:
        from .sampler import Sampler

        self._stop_sampler()
        if self._visible != _visible():
            # What torch's indices stand for is told anew, for the GPUs that are left.
            for device in self.recording.devices:
                if device.torch_index is not None:
                    self.recording.add_device(replace(device, torch_index=None))
        self._selection = selection
        self._visible = _visible()
        sampler = Sampler(self.recording, self._make(selection), self.clock)
        self._sampler = sampler
        self._set_periods()
        sampler.start(timeout_s=_OPEN_S)

    def _set_periods(self) -> None:
        assert self._sampler is not None
        self._sampler.set_periods(
            {
                source.name: min(self._period_s(lease, source.name) for lease in self._leases)
                for source in self._sampler.sources
            },
            looking=all(lease.who in _LOOKING for lease in self._leases),
        )

    def _period_s(self, lease: Lease, source: str) -> float:
        """Return the seconds between the readings of a source that a lease needs."""
        interval: float = self.settings.interval_s
        if lease.interval_s is not None:
            interval = lease.interval_s
        elif lease.who in _LOOKING and interval == _DEFAULT_S:
            return _LOOKING_S.get(source, _SLOW_S)
        return max(interval, _FASTEST_S.get(source, _SLOW_S))

    def _stop_sampler(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
            self._cpu_before += sampler.cpu_s

    @property
    def watch_cpu_s(self) -> float:
        """Processor seconds that sampling and drawing have used in this session."""
        sampler, watch = self._sampler, self.watch
        running = sampler.cpu_s if sampler is not None else 0.0
        return self._cpu_before + running + (watch.cpu_s if watch is not None else 0.0)

    def reasons(self) -> dict[str, str]:
        """Why each source that gives nothing at present gives nothing."""
        return self._sampler.reasons if self._sampler is not None else {}

    # -- what the user does ---------------------------------------------------------------

    def cell_began(self, number: int) -> None:
        """Note that a cell begins in this thread; an unfinished one before it ends here."""
        self._end_cell("ok")
        if self.watch is not None:
            self.watch.cell_began()
        if self._leases and self._visible != _visible():
            with self._lock:
                self._adjust()  # a cell has changed which GPUs there are
        if self._leases:
            self._cells[get_ident()] = self.recording.begin_span(self.clock(), number=number)

    def cell_ended(self, status: SpanStatus) -> None:
        """Note that this thread's running cell has ended."""
        self._end_cell(status)
        if self.watch is not None:
            self.watch.cell_ended(failed=status != "ok")

    def _end_cell(self, status: SpanStatus) -> None:
        cell = self._cells.pop(get_ident(), None)
        if cell is not None:
            self.recording.end_span(cell.id, self.clock(), status)

    @property
    def cell(self) -> Span | None:
        """The cell that runs now, the last begun of several, if sampling ran when it began."""
        cells = list(self._cells.values())
        return cells[-1] if cells else None

    def mark(self, text: str) -> None:
        """Put a named moment on the time axis."""
        self.recording.add_mark(Mark(self.clock(), str(text)))

    # -- the end --------------------------------------------------------------------------

    def stop_watch(self) -> bool:
        """Freeze the watch, if there is one; return whether there was.

        A forked child has none: the view, and the file of a recording, are its parent's.
        """
        watch, self.watch = self.watch, None
        if watch is None or not self.alive:
            return False
        self._cpu_before += watch.cpu_s
        watch.stop()
        return True

    def stop_record(self) -> Any:
        """End the recording into a file, if there is one; return it, or ``None``."""
        record, self.record = self.record, None
        if not self.alive:
            return None
        if record is not None:
            record.close()
        return record

    def close(self) -> None:
        """Freeze the view, end the recording, drop all leases and stop the sampler."""
        if not self.alive:
            return
        try:
            self.stop_watch()
        finally:
            self.stop_record()
        with self._lock:
            self._leases.clear()
            self._stop_sampler()


_current: Session | None = None


def current() -> Session:
    """Return the session of this process, made at first use; a forked child gets its own."""
    global _current
    if _current is None or not _current.alive:
        _current = Session()
    return _current


def install(session: Session | None) -> None:
    """Make a session the current one; the extension does so when it is loaded."""
    global _current
    _current = session
