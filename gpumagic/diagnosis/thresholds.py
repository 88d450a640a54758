"""From which figures on a rule speaks; each can be set through ``GpuMagic.thresholds``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..options import replace_thresholds

__all__ = ["Thresholds", "parse_thresholds"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The figures at which rules begin to speak.

    ``*_ratio`` are shares in [0, 1], ``*_s`` seconds, ``*_bytes`` bytes, ``*_celsius`` degrees.
    """

    shortest_s: float = 1.0
    """A cell shorter than this is too short to be judged by what its GPU did."""
    stretch_ratio: float = 0.2
    """A cause is named if it held for at least this part of the cell."""
    idle_util_ratio: float = 0.8
    """The GPU waits where GPU-Util is at most this."""
    loader_ratio: float = 0.4
    """The cell waits for data where it is in a DataLoader for at least this part of the time."""
    model_ratio: float = 0.5
    """The cell launches kernels where it is in a model for at least this part of the time."""
    full_core_ratio: float = 0.85
    """A core is full from this share on."""
    full_worker_ratio: float = 0.75
    """A DataLoader worker is full from this share of a core on."""
    idle_worker_ratio: float = 0.35
    """A DataLoader worker is idle up to this share of a core."""
    small_kernels_ratio: float = 0.2
    """Kernels are small if they fill up to this share of the GPU while they run."""
    high_util_ratio: float = 0.7
    """GPU-Util misleads from this on, where little of the GPU is used."""
    low_sm_ratio: float = 0.4
    """Little of the GPU is used where SM active is at most this."""
    no_sm_ratio: float = 0.05
    """No kernel to speak of runs where SM active is at most this."""
    copies_bytes_per_second: float = 1e9
    """Copies are what keeps the GPU busy from this rate over PCIe on."""
    near_full_ratio: float = 0.9
    """Device memory is nearly full where the need is at least this part of it."""
    growth_ratio: float = 0.02
    """Memory climbs if it gained at least this part of the device."""
    growth_shortest_s: float = 4.0
    """A climb is looked for in cells from this length on."""
    run_growth_bytes: float = 2.0**20
    """Live tensors grow from run to run of a cell if each run adds at least this much."""
    run_growth_ratio: float = 0.001
    """The same, as a part of the live tensors: each run has to add both."""
    fragmented_ratio: float = 0.25
    """Memory is fragmented if this part of what torch holds cannot be used."""
    waste_ratio: float = 0.05
    """Fragmentation and cache matter from this part of the device on."""
    cache_ratio: float = 0.2
    """A cache is pointed out from this part of the device on."""
    other_process_bytes: float = 512 * 2.0**20
    """Another process is named from this much of the GPU's memory on."""
    throttled_ratio: float = 0.1
    """Held back clocks are told from this share of the time on."""
    hot_margin_celsius: float = 3.0
    """The GPU is hot this near to its slowdown temperature."""
    quota_ratio: float = 0.1
    """The container's quota is told if it was used up in this share of its periods."""
    host_full_ratio: float = 0.95
    """The cores are used up from this share of them on."""
    host_memory_ratio: float = 0.92
    """The host's memory is nearly full from this share on."""
    healthy_sm_ratio: float = 0.6
    """The GPU is well used from this SM activity on."""
    healthy_util_ratio: float = 0.9
    """The GPU is well used from this GPU-Util on, where SM activity is not counted."""


def parse_thresholds(given: Mapping[str, object]) -> Thresholds:
    """Return the thresholds with some of them replaced.

    Raises :class:`~gpumagic.errors.SettingError` for a name that is none and for what is no
    number at or above zero.
    """
    return replace_thresholds(Thresholds(), given, called="threshold", page="docs/findings.md")
