"""What the controls of a live view ask of its watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["WINDOWS", "Actions", "Status"]

WINDOWS: tuple[tuple[str, float | None], ...] = (
    ("1 min", 60.0), ("10 min", 600.0), ("1 h", 3600.0), ("all", None),
)
"""The windows that controls offer, by their words: seconds, or ``None`` for all there is."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a watch shows at present.

    ``window_s`` is ``None`` where all is shown. ``position`` is how far a replay has come, as a
    fraction of the recording, and ``None`` where nothing is replayed.
    """

    paused: bool
    window_s: float | None
    position: float | None = None


class Actions(Protocol):
    """A watch as its controls see it.

    The methods are quick, may be called from any thread, and take effect with the next update.
    """

    def status(self) -> Status:
        """Say what is shown at present."""

    def pause(self, paused: bool = True) -> None:
        """Hold the picture still, or let it move again; recording goes on meanwhile."""

    def show_window(self, seconds: float | None) -> None:
        """Show the last ``seconds``, or all there is for ``None``."""

    def seek(self, position: float) -> None:
        """Move a replay to a fraction of its recording; a live view has no other place."""
