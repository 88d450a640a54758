"""For how long clocks were held back, and by what: the driver's counters, or readings of bits.

The counters (LIMITED_SECONDS) tell it exactly, and the bits of ``gpu_clock_event_reasons_state``
only at each reading. Reasons without a counter come from the bits alone. Where readings have been
merged, each of them counts as it was: for its share of the merged row's time, with the last one
at the end.

A counter is not believed where it contradicts itself or the bits:

* it went back, or grew by more than the time that passed (its unit is not the one expected);
* it stands at exactly 0, so has not moved since the driver was loaded, while at least half of
  the readings in the span show its reason.
"""

from __future__ import annotations

from .runs import Runs
from .shares import throttling_of
from .when import held_back

__all__ = ["Runs", "held_back", "throttling_of"]
