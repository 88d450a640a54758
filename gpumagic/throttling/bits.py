"""The bits of clock event reasons, and the counters of some of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from ..metrics import METRICS, THROTTLE_REASONS

__all__ = ["BITS", "BITS_OF", "DEAD_SHARE", "ITS_CAUSES", "SLOWDOWN", "TOO_MUCH", "holding"]

BITS = METRICS["gpu_clock_event_reasons_state"]
SLOWDOWN, ITS_CAUSES = 0x008, 0x040 | 0x080
"""The hardware's slowdown, and the bits that name its cause: those are what is counted then."""

BITS_OF: Mapping[str, int] = MappingProxyType(
    {
        "gpu_power_limited_seconds": 0x004,
        "gpu_thermal_limited_seconds": 0x020 | 0x040,
        "gpu_sync_boost_limited_seconds": 0x010,
        "gpu_power_brake_limited_seconds": 0x080,
    }
)
"""The bits whose time each counter counts."""

DEAD_SHARE = 0.5
"""Of the readings: from how many on a counter that stands at 0 contradicts them."""

TOO_MUCH = 1.1
"""By how many seconds a counter can grow in a second."""


@lru_cache(maxsize=1024)
def holding(bits: int) -> tuple[int, ...]:
    """List the reasons that a reading shows; the hardware's slowdown only without its cause."""
    told = bits & ~SLOWDOWN if bits & ITS_CAUSES else bits
    return tuple(bit for bit in sorted(THROTTLE_REASONS) if told & bit)
