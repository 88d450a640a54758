"""ALERTS: one row for each kind of alert.

To add an alert, write a function of a :class:`~gpumagic.alerts.look.Look` that yields an
:class:`~gpumagic.alerts.alert.Alert` for each GPU that it concerns, and add it to ALERTS. Its
docstring's first paragraph says when it speaks. It judges windows of the recording, and eases
its limits a little where ``look.on`` says that its alert has begun.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import clocks, growth, memory, presence, straggler
from .alert import Alert
from .look import Look

__all__ = ["ALERTS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of alert.

    ``check`` yields what it finds. ``hides`` names the kinds that have nothing to add on the
    same GPU while this one holds. ``every_s`` is the least time between two looks of a check
    that reads much.
    """

    name: str
    check: Callable[[Look], Iterable[Alert]]
    hides: frozenset[str] = frozenset()
    every_s: float = 0.0

    @property
    def when(self) -> str:
        """When it speaks, in words."""
        return " ".join((inspect.getdoc(self.check) or "").partition("\n\n")[0].split())


ALERTS: tuple[Kind, ...] = (
    Kind(
        "lost", presence.lost,
        frozenset({
            "out-of-memory", "filling", "straggler", "throttled", "hot", "near-full",
            "allocator-retries", "power-cap", "idle-held",
        }),
    ),
    Kind(
        "out-of-memory", memory.out_of_memory,
        frozenset({"filling", "near-full", "allocator-retries"}),
    ),
    Kind("filling", growth.filling, frozenset({"near-full"})),
    Kind(
        "straggler", straggler.straggler, frozenset({"throttled", "hot", "power-cap"}),
        every_s=3.0,
    ),
    Kind("throttled", clocks.throttled, frozenset({"hot"})),
    Kind("hot", clocks.hot),
    Kind("allocator-retries", memory.allocator_retries, frozenset({"near-full"})),
    Kind("near-full", memory.near_full),
    Kind("power-cap", clocks.power_cap),
    Kind("idle-held", presence.idle_held),
)
"""All alerts; of two of the same severity the one further up is shown."""
