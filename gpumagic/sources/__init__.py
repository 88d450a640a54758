"""Sources read devices; each has its own period and its own stamp.

To add a source, write a class that fits :class:`Source` and add it to SOURCES.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from ..sample import Device, Gap, Sample

__all__ = ["SOURCES", "Clock", "Source", "make_sources"]

Clock = Callable[[], float]


class Source(Protocol):
    """Something that reads devices.

    The sampler calls all of these on its own thread. ``name`` is the key in METRICS,
    ``period_s`` the wanted seconds between two readings. ``looking`` tells that nothing is being
    measured or recorded, only looked at as it comes: what costs much and no view shows may then
    be left out of a reading.
    """

    name: str
    period_s: float
    looking: bool

    def open(self) -> None:
        """Get ready; raise :class:`~gpumagic.errors.SourceUnavailable` with the reason."""

    def devices(self) -> Sequence[Device]:
        """Return the devices as they are known now; called after ``open`` and each reading."""

    def read(self, now: Clock) -> AsyncIterator[Sample | Gap]:
        """Yield what one reading gives, each stamped when it was read.

        An open :class:`~gpumagic.sample.Gap` tells that a device could not be read. A long
        reading awaits ``asyncio.sleep(0)`` between its steps, so that quick sources keep
        their time; nothing else can be awaited, since no event loop runs. An exception is a gap
        of the whole source.
        """

    def close(self) -> None:
        """Let go of all that ``open`` took; harmless when there is nothing."""


def _nvml(selection: Sequence[str]) -> Source:
    from .nvml import NvmlSource

    return NvmlSource(selection)


def _nvml_slow(selection: Sequence[str]) -> Source:
    from .nvml_slow import NvmlSlowSource

    return NvmlSlowSource(selection)


def _gpm(selection: Sequence[str]) -> Source:
    from .gpm import GpmSource

    return GpmSource(selection)


def _host(_: Sequence[str]) -> Source:
    from .host import HostSource

    return HostSource()


def _allocator(_: Sequence[str]) -> Source:
    from .allocator import AllocatorSource

    return AllocatorSource()


def _cell(_: Sequence[str]) -> Source:
    from .cell import CellSource

    return CellSource()


SOURCES: Mapping[str, Callable[[Sequence[str]], Source]] = MappingProxyType(
    {
        "nvml": _nvml,
        "nvml_slow": _nvml_slow,
        "gpm": _gpm,
        "allocator": _allocator,
        "host": _host,
        "cell": _cell,
    }
)
"""Makers of the sources by name; each takes the selection of GPUs and imports its own home."""


def make_sources(
    selection: Sequence[str] = ("usable",), *, names: Sequence[str] | None = None
) -> list[Source]:
    """Make the sources named (all of SOURCES by default) for a selection of GPUs."""
    return [SOURCES[name](selection) for name in (names or SOURCES)]
