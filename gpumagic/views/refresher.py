"""A thread that calls a function at a steady pace: the one owner of a live view."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable

__all__ = ["Refresher"]

_JOIN_S = 3.0
_PAUSE_PER_WORK = 1.0


class Refresher:
    """Call ``tick`` every ``period_s`` from a daemon thread named ``gpumagic-view``.

    Each call runs in a context of its own: ipykernel keeps the message that a send belongs to
    in a context variable, and a context inherited from the cell that started the watch would
    make every update a part of that cell (nbclient drops those). Only ipykernel 7.0 needs a
    cell's context, as the send itself fails without one (ipykernel#1450): :meth:`follow` takes
    over that of each new cell there.

    When a tick takes long beside a busy cell, the pause is at least as long, so that drawing takes
    at most half of the thread's time. A tick that raises ends the thread with ``error`` set.
    ``cpu_s`` is the processor time that the thread has used, in seconds.
    """

    def __init__(self, tick: Callable[[], None], period_s: float) -> None:
        self.period_s = period_s
        self.ticks = 0
        self.cpu_s = 0.0
        self.error: BaseException | None = None
        self._tick = tick
        self._context: contextvars.Context | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpumagic-view", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def follow(self) -> None:
        """Let the calls from now on run in a copy of the caller's context."""
        self._context = contextvars.copy_context()

    def _run(self) -> None:
        deadline = time.perf_counter()
        while not self._stop.is_set():
            begun = time.perf_counter()
            try:
                (self._context or contextvars.Context()).run(self._tick)
            except Exception as error:
                self.error = error.with_traceback(None)
                return
            self.ticks += 1
            self.cpu_s = time.thread_time()
            now = time.perf_counter()
            deadline = max(deadline + self.period_s, now + (now - begun) * _PAUSE_PER_WORK)
            self._stop.wait(max(0.0, deadline - now))

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def stop(self) -> bool:
        """End the thread and join it; return whether it has ended."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        return not self._thread.is_alive()
