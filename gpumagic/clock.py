"""The one clock: seconds since the epoch that never run backwards."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """Tell the time as epoch seconds, driven by the monotonic clock.

    The offset between the two is fixed once, so that a step of the system's clock neither
    shortens a cell nor turns the time axis back.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.perf_counter()

    def now(self) -> float:
        """Return the present time in epoch seconds."""
        return time.perf_counter() + self._offset
