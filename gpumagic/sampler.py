"""The sampler: one owned daemon thread that reads the sources, each at its own period.

Deadlines are multiples of a period from the start, so that a late reading shifts no later one
and what is due together is read in one wake-up. Readings are coroutines, stepped in turns: a
slow one lets the quick sources in between its steps. A source that fails becomes a gap with its
reason and is opened again after a growing pause, while the others go on.

There is no event loop: all that is ever waited for is a deadline or a request of another thread,
and a loop's wake-up costs two to three times as much as that of a queue.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from .errors import GpuMagicError
from .recording import Recording
from .sample import Device, Gap
from .sources import Clock, Source

__all__ = ["Sampler", "SourceStats", "Ticker"]

_BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_JOIN_S = 5.0
_FORK_S = 0.1

# Deadlines this near to one another are one wake-up: multiples of two periods differ by rounding.
_TOGETHER_S = 0.001
_LONGEST_SLEEP_S = 3600.0


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
    """Deadlines without drift: multiples of a period from a start, the first one after ``now``."""

    def __init__(self, start: float, period: float, now: float) -> None:
        self.period = period
        self._start = start
        self._ticks = 0
        self.advance(now)

    @property
    def deadline(self) -> float:
        """When the next reading is due; multiplied out, since a sum would gather its errors."""
        return self._start + self._ticks * self.period

    def advance(self, now: float) -> int:
        """Move to the next deadline after ``now``; return how many ticks were missed."""
        before = self._ticks
        past = math.floor((now - self._start) / self.period)
        # A reading can begin a little before its deadline, together with another one.
        self._ticks = max(before, past) + 1
        if self.deadline <= now:
            self._ticks += 1  # the quotient was rounded down
        return self._ticks - before - 1


class _Request:
    """Readings of some sources that another thread waits for."""

    def __init__(self, workers: Sequence[_Worker]) -> None:
        self.workers = workers
        self.done = threading.Event()
        self._left = len(workers)

    def served(self, count: int = 1) -> None:
        """Note that so many of the sources have been read; the last one ends the wait."""
        self._left -= count
        if self._left <= 0:
            self.done.set()


class _Worker:
    """One source: opened, read at its period, opened again after a failure."""

    def __init__(self, sampler: Sampler, source: Source) -> None:
        self.source = source
        self.stats = SourceStats()
        self.reason = ""
        self.error: GpuMagicError | None = None
        self.due = -math.inf
        self._sampler = sampler
        self._open = False
        self._failed_in_a_row = 0
        self._ticker: Ticker | None = None
        self._reading: Coroutine[Any, Any, None] | None = None
        self._begun = 0.0
        # Who waits for the next reading, and for the present one.
        self._asked: list[_Request] = []
        self._serves: list[_Request] = []

    def schedule(self) -> None:
        """Take a changed period over; the next reading comes no later than it would have."""
        sampler = self._sampler
        if self._ticker is None:
            return  # the first reading is still to come, and is due
        self._ticker = Ticker(sampler.started, self.source.period_s, sampler.clock())
        if not self._failed_in_a_row:
            self.due = min(self.due, self._ticker.deadline)

    def ask(self, request: _Request) -> None:
        """Take a reading that begins from now on for somebody who waits."""
        self._asked.append(request)

    def begins(self, now: float) -> bool:
        """Tell whether there is a reading to go on with, beginning one if it is time."""
        if self._reading is not None:
            return True
        if self.due - now > _TOGETHER_S and not self._asked:
            return False
        if self._ticker is not None and now - self.due > self.source.period_s / 2:
            self.stats.late += 1
        self._serves, self._asked = self._asked, []
        self._begun = now
        self._reading = self._read()
        return True

    def step(self) -> bool:
        """Go on with the reading; return whether it lets others in before it goes on."""
        assert self._reading is not None
        try:
            self._reading.send(None)
            return True
        except StopIteration:
            self._succeed()
        except Exception as error:
            self._fail(error)
        self._reading = None
        if self._serves:
            self._sampler.count_cpu()
            for request in self._serves:
                request.served()
        return False

    async def _read(self) -> None:
        recording = self._sampler.recording
        if not self._open:
            self.source.open()
            self._open = True
            self._describe()
        async for record in self.source.read(self._sampler.clock):
            if isinstance(record, Gap):
                recording.open_gap(record)
            else:
                recording.append(record)
        self._describe()

    def _describe(self) -> None:
        for device in self.source.devices():
            self._sampler.describe(device, self.source.name)

    def _succeed(self) -> None:
        now = self._sampler.clock()
        self.stats.readings += 1
        self.stats.slowest_s = max(self.stats.slowest_s, now - self._begun)
        if self._failed_in_a_row or self._ticker is None:
            # A reading for a cell's end can find the source well before its pause is over.
            self._failed_in_a_row = 0
            self.reason = ""
            self.error = None
            self._ticker = Ticker(self._sampler.started, self.source.period_s, now)
        elif self._ticker.deadline - self._begun <= _TOGETHER_S:
            self.stats.missed += self._ticker.advance(now)
        self.due = self._ticker.deadline

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
        pause = _BACKOFF_S[min(self._failed_in_a_row, len(_BACKOFF_S)) - 1]
        self.due = now + max(pause, self.source.period_s)
        self._close_source()

    def close(self) -> None:
        """Let go of the source and of a reading that has not ended."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        self._close_source()

    def _close_source(self) -> None:
        if self._open:
            self._open = False
            try:
                self.source.close()
            except Exception as error:
                self.reason = f"{type(error).__name__}: {error}"


class Sampler:
    """Stream the sources' readings into a recording, from a thread of its own.

    ``clock`` gives epoch seconds. A sampler is started and stopped once; a new one is made for
    the next run. The thread is a daemon named ``gpumagic-sampler`` and is joined by
    :meth:`stop`. A forked child has no sampler: there ``running`` is false.
    """

    def __init__(self, recording: Recording, sources: Sequence[Source], clock: Clock) -> None:
        self.recording = recording
        self.clock = clock
        # Held in each step of a reading: a fork in the middle of a write or of a driver's call
        # would give the child a lock that nobody there releases.
        self.busy = threading.Lock()
        self.started = clock()
        self._workers = [_Worker(self, source) for source in sources]
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        # What other threads ask for: a reading, a look at changed periods, or (None) the end.
        self._requests: SimpleQueue[_Request | Sequence[_Worker] | None] = SimpleQueue()
        self._finished = False
        self._described: dict[str, dict[str, Device]] = {}
        self._cpu_s = 0.0
        for source in sources:
            recording.periods[source.name] = source.period_s

    # -- lifetime -----------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the thread of this sampler runs in this process."""
        thread = self._thread
        return self._pid == os.getpid() and thread is not None and thread.is_alive()

    def start(self, timeout_s: float = 0.0) -> None:
        """Start the thread; it samples until :meth:`stop`.

        Waits ``timeout_s`` at most until each source has been read.
        """
        if self._thread is not None:
            raise RuntimeError("a sampler is started once; make a new one")
        first = _Request(self._workers)
        self._requests.put(first)
        self._thread = threading.Thread(target=self._main, name="gpumagic-sampler", daemon=True)
        _guard_forks(self)
        self._thread.start()
        first.done.wait(timeout_s)

    def _main(self) -> None:
        self.started = self.clock()
        try:
            while not self._finished:
                self._sleep(self.turn())
        finally:
            self.close()

    def _sleep(self, seconds: float) -> None:
        """Wait for the next deadline or a request."""
        self.count_cpu()
        try:
            self._hear(self._requests.get(timeout=min(seconds, _LONGEST_SLEEP_S)))
        except Empty:
            return

    def turn(self) -> float:
        """Take all readings that are due or asked for; return the seconds until the next ones.

        They go on in turns, a step of each. What comes due or is asked for meanwhile is taken in.
        """
        while not self._finished:
            with self.busy:
                while not self._requests.empty():
                    self._hear(self._requests.get())
                now = self.clock()
                begun = [worker for worker in self._workers if worker.begins(now)]
                if not begun:
                    return max(0.0, min((w.due for w in self._workers), default=math.inf) - now)
                unfinished = False
                for worker in begun:
                    unfinished |= worker.step()
            if unfinished:
                time.sleep(0)  # lets go of the GIL, and a fork in
        return 0.0

    def _hear(self, request: _Request | Sequence[_Worker] | None) -> None:
        if request is None:
            self._finished = True
        elif isinstance(request, _Request):
            for worker in request.workers:
                worker.ask(request)
            if not request.workers:
                self.count_cpu()
                request.served()
        else:
            for worker in request:
                worker.schedule()

    def close(self) -> None:
        """Close the sources; for the sampler's own thread, and for who calls :meth:`turn`."""
        with self.busy:
            for worker in self._workers:
                worker.close()
        self.count_cpu()

    def count_cpu(self) -> None:
        """Note what the thread has used; it is new, so its processor time counts from its start."""
        self._cpu_s = time.thread_time()

    def stop(self) -> None:
        """Stop sampling, close the sources and join the thread; harmless when not running."""
        thread = self._thread
        if not self.running or thread is None:
            return
        self._requests.put(None)
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)

    # -- from other threads ---------------------------------------------------------------

    def read_now(self, names: Sequence[str] | None = None, timeout_s: float = 0.25) -> bool:
        """Take one reading of the sources named (of all by default) at once and wait for it.

        For the ends of a cell. Runs on the sampler's thread and returns ``False`` where it
        took longer than ``timeout_s`` (the reading then comes late, not never) or where the
        sampler does not run.
        """
        if not self.running:
            return False
        chosen = [w for w in self._workers if names is None or w.source.name in names]
        request = _Request(chosen)
        self._requests.put(request)
        return request.done.wait(timeout_s)

    def set_periods(self, periods: Mapping[str, float], *, looking: bool = False) -> None:
        """Change the seconds between readings, by source, and whether they are only looked at.

        The next reading of a changed source comes at the next multiple of its new period, and no
        later than it would have come. ``looking`` goes to :attr:`Source.looking`.
        """
        changed = []
        for worker in self._workers:
            worker.source.looking = looking
            period = periods.get(worker.source.name, worker.source.period_s)
            if period != worker.source.period_s:
                worker.source.period_s = period
                changed.append(worker)
            self.recording.periods[worker.source.name] = period
        if changed and self.running:
            self._requests.put(changed)

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
