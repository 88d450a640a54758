"""The sampler: one asyncio loop in one owned daemon thread.

Each source has a task of its own with its own period; deadlines are multiples of the period
from the start, so that a late reading shifts no later one. A source that fails becomes a gap
with its reason and is opened again after a growing pause, while the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FuturesTimeout  # its own class before 3.11
from dataclasses import dataclass, replace

from .errors import GpuMagicError
from .recording import Recording
from .sample import Device, Gap
from .sources import Clock, Source

__all__ = ["Sampler", "SourceStats", "Ticker"]

_BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_JOIN_S = 5.0
_FORK_S = 0.1

# A poll selector keeps no state in the kernel: a forked child that closes its copy of the loop
# does not take this loop's wake-up descriptor out of a shared epoll set.
if sys.platform == "win32":
    _Poll = selectors.SelectSelector
else:
    _Poll = selectors.PollSelector


@dataclass(slots=True)
class SourceStats:
    """How a source has kept its time: readings, late ones, missed ticks, failures.

    ``late`` counts readings that began more than half a period after their deadline,
    ``missed`` the ticks that were left out because the next one was due already.
    """

    readings: int = 0
    late: int = 0
    missed: int = 0
    failures: int = 0
    slowest_s: float = 0.0


class Ticker:
    """Deadlines without drift: multiples of a period from a start."""

    def __init__(self, start: float, period: float) -> None:
        self.period = period
        self._start = start
        self._ticks = 0

    @property
    def deadline(self) -> float:
        """When the next reading is due; multiplied out, since a sum would gather its errors."""
        return self._start + self._ticks * self.period

    def advance(self, now: float, period: float) -> int:
        """Move to the next deadline after ``now``; return how many ticks were missed."""
        if period != self.period:
            self.period = period
            self._start = now
            self._ticks = 0
        self._ticks += 1
        missed = 0
        if self.deadline <= now:
            missed = int((now - self.deadline) / self.period) + 1
            self._ticks += missed
        return missed


class _Worker:
    """One source in the loop: opened, read at its period, opened again after a failure."""

    def __init__(self, sampler: Sampler, source: Source) -> None:
        self.source = source
        self.stats = SourceStats()
        self.lock = asyncio.Lock()
        self.reason = ""
        self.error: GpuMagicError | None = None
        self._sampler = sampler
        self._open = False
        self._failed_in_a_row = 0
        self._due: asyncio.Future[None] | None = None

    async def run(self) -> None:
        clock = self._sampler.clock
        ticker = self._sampler.ticker(self.source.period_s)
        while True:
            begun = clock()
            if begun - ticker.deadline > self.source.period_s / 2:
                self.stats.late += 1
            if await self.read():
                self.stats.missed += ticker.advance(clock(), self.source.period_s)
                await self._wait(max(0.0, ticker.deadline - clock()))
            else:
                pause = _BACKOFF_S[min(self._failed_in_a_row, len(_BACKOFF_S)) - 1]
                await self._wait(max(pause, self.source.period_s))
                ticker = self._sampler.ticker(self.source.period_s)

    async def _wait(self, seconds: float) -> None:
        self._sampler.count_cpu()
        self._due = asyncio.get_running_loop().create_future()
        alarm = self._sampler.alarm(seconds, self._due)
        try:
            await self._due
        finally:
            alarm.cancel()

    def wake(self) -> None:
        """End the present pause, be it for the next deadline or after a failure."""
        if self._due is not None:
            _end(self._due)

    async def read(self) -> bool:
        """Take one reading into the recording; return whether the source is well."""
        async with self.lock:
            begun = self._sampler.clock()
            try:
                if not self._open:
                    self.source.open()
                    self._open = True
                    self._describe()
                await self._take()
                self._describe()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._fail(error)
                return False
            if self._failed_in_a_row:
                self._failed_in_a_row = 0
                self.reason = ""
                self.error = None
                self.wake()  # a reading for a cell's end has found the source well again
            self.stats.readings += 1
            self.stats.slowest_s = max(self.stats.slowest_s, self._sampler.clock() - begun)
            return True

    async def _take(self) -> None:
        recording = self._sampler.recording
        async for record in self.source.read(self._sampler.clock):
            if isinstance(record, Gap):
                recording.open_gap(record)
            else:
                recording.append(record)

    def _describe(self) -> None:
        for device in self.source.devices():
            self._sampler.describe(device, self.source.name)

    def _fail(self, error: Exception) -> None:
        self.stats.failures += 1
        self._failed_in_a_row += 1
        if isinstance(error, GpuMagicError):
            # Without its traceback, which would keep this thread's frames alive.
            self.error = error.with_traceback(None)
            self.reason = str(error)
        else:
            self.reason = f"{type(error).__name__}: {error}"
        now = self._sampler.clock()
        self._sampler.recording.open_gap(Gap(now, None, self.source.name, None, self.reason))
        self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            try:
                self.source.close()
            except Exception as error:
                self.reason = f"{type(error).__name__}: {error}"


def _end(due: asyncio.Future[None]) -> None:
    if not due.done():
        due.set_result(None)


class _Selector(_Poll):
    """Let go of a lock while the loop sleeps, so that a fork can wait for that moment.

    A fork in the middle of a write or of a driver's call would give the child a lock that
    nobody there releases.
    """

    def __init__(self, busy: threading.Lock) -> None:
        super().__init__()
        self._busy = busy

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        self._busy.release()
        try:
            return super().select(timeout)
        finally:
            self._busy.acquire()


class Sampler:
    """Stream the sources' readings into a recording, from a thread of its own.

    ``clock`` gives epoch seconds; ``wait`` is awaited for pauses and is handed in by tests.
    A sampler is started and stopped once; a new one is made for the next run. The thread is a
    daemon named ``gpumagic-sampler`` and is joined by :meth:`stop`. A forked child has no
    sampler: there ``running`` is false.
    """

    def __init__(
        self,
        recording: Recording,
        sources: Sequence[Source],
        clock: Clock,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.recording = recording
        self.clock = clock
        self.wait = wait
        self.busy = threading.Lock()
        self._workers = [_Worker(self, source) for source in sources]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._finished = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._described: dict[str, dict[str, Device]] = {}
        self._cpu_s = 0.0
        self._started = clock()
        for source in sources:
            recording.periods[source.name] = source.period_s

    # -- lifetime -----------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the thread of this sampler runs in this process."""
        thread = self._thread
        return self._pid == os.getpid() and thread is not None and thread.is_alive()

    def start(self) -> None:
        """Start the thread; it samples until :meth:`stop`."""
        if self._thread is not None:
            raise RuntimeError("a sampler is started once; make a new one")
        # The class is named, since the user's policy (uvloop, nest_asyncio) is not ours.
        self._loop = asyncio.SelectorEventLoop(_Selector(self.busy))
        self._thread = threading.Thread(target=self._main, name="gpumagic-sampler", daemon=True)
        _guard_forks(self)
        self._thread.start()

    def _main(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        with self.busy:
            try:
                loop.run_until_complete(self.run())
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                loop.close()

    async def run(self) -> None:
        """Read all sources until :meth:`stop`; the thread is a thin shell round this."""
        self._started = self.clock()
        tasks = [asyncio.ensure_future(worker.run()) for worker in self._workers]
        try:
            await self._finished.wait()
        finally:
            tasks += self._requests
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in self._workers:
                worker.close()
            self.count_cpu()

    # -- for the workers ------------------------------------------------------------------

    def count_cpu(self) -> None:
        """Note what the thread has used; it is new, so its processor time counts from its start."""
        self._cpu_s = time.thread_time()

    def ticker(self, period: float) -> Ticker:
        """Return deadlines in step with those of the other sources, from about now on.

        What is due together is read in one wake-up: at ten a second, waking up costs more than
        most readings.
        """
        passed = self.clock() - self._started
        return Ticker(self._started + round(passed / period) * period, period)

    def alarm(
        self, seconds: float, due: asyncio.Future[None]
    ) -> asyncio.TimerHandle | asyncio.Future[None]:
        """Let ``due`` end after some seconds, unless what is returned is cancelled."""
        if self.wait is asyncio.sleep:
            # The same at a third of the cost: a task that sleeps takes five rounds of the loop.
            return asyncio.get_running_loop().call_later(seconds, _end, due)
        pause = asyncio.ensure_future(self.wait(seconds))
        pause.add_done_callback(lambda _: _end(due))
        return pause

    def stop(self) -> None:
        """Stop sampling, close the sources and join the thread; harmless when not running."""
        thread, loop = self._thread, self._loop
        if not self.running or thread is None or loop is None:
            return
        # The loop can have ended by itself between the two lines.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._finished.set)
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)

    # -- from other threads ---------------------------------------------------------------

    def read_now(self, names: Sequence[str] | None = None, timeout_s: float = 0.25) -> bool:
        """Take one reading of the sources named (of all by default) at once and wait for it.

        For the ends of a cell. Runs on the sampler's thread and returns ``False`` where it
        took longer than ``timeout_s`` (the reading then comes late, not never) or where the
        sampler does not run.
        """
        loop = self._loop
        if not self.running or loop is None:
            return False
        chosen = [w for w in self._workers if names is None or w.source.name in names]
        done: Future[bool] = Future()

        async def read() -> None:
            for worker in chosen:
                await worker.read()
            self.count_cpu()
            done.set_result(True)

        def begin() -> None:
            task = loop.create_task(read())
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

        try:
            # The coroutine is made over there: a loop that has just ended leaves none behind.
            loop.call_soon_threadsafe(begin)
            return done.result(timeout_s)
        except (RuntimeError, TimeoutError, FuturesTimeout):
            return False

    def set_periods(self, periods: Mapping[str, float]) -> None:
        """Change the seconds between readings, by source; a changed source is read at once."""
        changed = []
        for worker in self._workers:
            period = periods.get(worker.source.name, worker.source.period_s)
            if period != worker.source.period_s:
                worker.source.period_s = period
                changed.append(worker)
            self.recording.periods[worker.source.name] = period
        if self.running and self._loop is not None:
            for worker in changed:
                with contextlib.suppress(RuntimeError):  # the loop has just ended
                    self._loop.call_soon_threadsafe(worker.wake)

    @property
    def cpu_s(self) -> float:
        """Processor seconds that the sampler's thread has used."""
        return self._cpu_s

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that this sampler reads."""
        return tuple(worker.source for worker in self._workers)

    @property
    def stats(self) -> dict[str, SourceStats]:
        """How each source has kept its time, by its name."""
        return {worker.source.name: replace(worker.stats) for worker in self._workers}

    @property
    def reasons(self) -> dict[str, str]:
        """Why each source that gives nothing at present gives nothing."""
        return {w.source.name: w.reason for w in self._workers if w.reason}

    @property
    def errors(self) -> dict[str, GpuMagicError]:
        """The errors behind those reasons that are gpumagic's own."""
        return {w.source.name: w.error for w in self._workers if w.error is not None}

    def describe(self, device: Device, source: str) -> None:
        """Put into the recording what all sources together say of a device.

        The source that knows the GPU's index gives the names; the others add to it.
        """
        told = self._described.setdefault(device.id, {})
        known = told.get(source)
        if known is device or known == device:
            return
        told[source] = device
        first = next((d for d in told.values() if d.nvml_index is not None), device)
        constants: dict[str, float] = {}
        absent: dict[str, str] = {}
        for other in (*told.values(), first):
            constants.update(other.constants)
            absent.update(other.absent)
        self.recording.add_device(replace(first, constants=constants, absent=absent))


# -- fork ----------------------------------------------------------------------------------

_samplers: weakref.WeakSet[Sampler] = weakref.WeakSet()
_fork_hooks = False
_held: list[threading.Lock] = []


def _guard_forks(sampler: Sampler) -> None:
    """Let forks wait for a moment in which the sampler sleeps."""
    global _fork_hooks
    _samplers.add(sampler)
    if not _fork_hooks and hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork, after_in_parent=_release, after_in_child=_after_in_child
        )
        _fork_hooks = True


def _before_fork() -> None:
    _held.extend(
        sampler.busy
        for sampler in list(_samplers)
        if sampler.running and sampler.busy.acquire(timeout=_FORK_S)
    )


def _release() -> None:
    while _held:
        _held.pop().release()


def _after_in_child() -> None:
    _release()
    for sampler in list(_samplers):
        sampler.recording.forget_threads()
    _samplers.clear()
