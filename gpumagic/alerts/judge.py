"""The judge: which alerts hold now, which of them is shown, and who is told once."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..recording import Recording
from .alert import SEVERITIES, Alert
from .callbacks import announce
from .look import Look
from .registry import ALERTS, Kind
from .thresholds import AlertThresholds

__all__ = ["Alerts"]

_EVERY_S = 0.95
"""A view that draws four times a second is answered from what was judged once."""

_SHORTEST_S = 5.0
_LEAVES_S = 3.0
_SILENT_S = 15.0
"""Readings that stop end no alert before that."""

_LOOKS_BACK_S = 2.0

_ORDER = {kind.name: index for index, kind in enumerate(ALERTS)}
_HIDES = {kind.name: kind.hides for kind in ALERTS}

Key = tuple[str, str]


@dataclass(slots=True)
class _State:
    """An alert that has begun: when it was first and last found."""

    alert: Alert
    begun: float
    found: float


class Alerts:
    """Judge the last seconds of a recording, once a second at most.

    An alert begins when its check finds it, stays for 5 s at least and until it has not been
    found for 3 s, or for 15 s where readings are missing. It is logged and handed to the
    callbacks of :func:`gpumagic.on_alert` when it begins and when it is over, unless
    ``announces`` is false, as for a recording that is played from a file. One that another hides
    on the same GPU does not begin, and is not shown.

    Not for use from two threads at once.
    """

    def __init__(
        self, thresholds: AlertThresholds | None = None, *, announces: bool = True
    ) -> None:
        self.thresholds = thresholds or AlertThresholds()
        self._announces = announces
        self._active: dict[Key, _State] = {}
        self._notes: dict[Key, tuple[float, float]] = {}
        self._asked: dict[str, tuple[float, Sequence[Alert]]] = {}
        self._missing: set[Key] = set()
        self._recording: Recording | None = None
        self._judged: float | None = None
        self._shown: Alert | None = None

    @property
    def active(self) -> tuple[Alert, ...]:
        """The alerts that have begun and are not over, the gravest first; hidden ones as well."""
        return tuple(sorted((state.alert for state in self._active.values()), key=_gravity))

    def judge(
        self, recording: Recording, now: float, gpus: Collection[str] | None = None
    ) -> Alert | None:
        """Return the gravest alert at the time ``now`` (epoch seconds), or ``None``.

        ``gpus`` are the ids of the GPUs to judge, all by default. Nothing after ``now`` counts.
        A time before the last one, or another recording, begins anew.
        """
        judged = self._judged
        if recording is not self._recording or (judged is not None and now < judged):
            self.end(now if judged is None else max(now, judged))
            self._recording, judged = recording, None
        if judged is not None and now - judged < _EVERY_S:
            return self._shown
        self._judged = now
        devices = [
            d for d in recording.devices if d.kind == "gpu" and (gpus is None or d.id in gpus)
        ]
        look = Look(
            recording, now, devices, self.thresholds,
            active={key: state.alert for key, state in self._active.items()},
            unseen_s=math.inf if judged is None else now - judged + _LOOKS_BACK_S,
            notes=self._notes, missing=self._missing,
        )
        found = {
            (alert.kind, alert.device): alert for kind in ALERTS for alert in self._ask(kind, look)
        }
        self._take(found, now)
        self._drop(found, look, {device.id for device in devices})
        hidden = _hidden(self._active)
        shown = [state.alert for key, state in self._active.items() if key not in hidden]
        self._shown = min(shown, key=_gravity, default=None)
        return self._shown

    def _ask(self, kind: Kind, look: Look) -> Sequence[Alert]:
        """Return what a check finds, or found a moment ago if it is not due."""
        asked, found = self._asked.get(kind.name, (-math.inf, ()))
        # Looks come a little early or late.
        if look.now - asked < kind.every_s - _EVERY_S / 2:
            known = {device.id for device in look.gpus}
            return [alert for alert in found if alert.device in known]
        look.kind = kind.name
        look.missing -= {key for key in look.missing if key[0] == kind.name}
        alerts = tuple(kind.check(look))
        self._asked[kind.name] = (look.now, alerts)
        return alerts

    def _take(self, found: dict[Key, Alert], now: float) -> None:
        """Take over what was found: begin it, or bring its text up to date."""
        hidden = _hidden([*found, *self._active])
        for key, alert in found.items():
            state = self._active.get(key)
            if state is not None:
                state.alert = replace(alert, since=state.alert.since)
                state.found = now
            elif key not in hidden:
                self._active[key] = _State(alert, now, now)
                self._tell(alert)

    def _drop(self, found: dict[Key, Alert], look: Look, devices: Collection[str]) -> None:
        """End what has not been found for long enough, and what is no longer looked at."""
        now = look.now
        for key, state in list(self._active.items()):
            leaves = _SILENT_S if key in look.missing else _LEAVES_S
            lasts = now - state.begun < _SHORTEST_S or now - state.found < leaves
            if key in found or (lasts and key[1] in devices):
                continue
            self._end(key, now)

    def _end(self, key: Key, now: float) -> None:
        alert = self._active.pop(key).alert
        self._tell(replace(alert, state="over", until=max(now, alert.since)))

    def _tell(self, alert: Alert) -> None:
        if self._announces:
            announce(alert)

    def end(self, now: float) -> None:
        """Let all alerts be over, as when the view that shows them stops."""
        for key in list(self._active):
            self._end(key, now)
        self._notes.clear()
        self._asked.clear()
        self._missing.clear()
        self._recording = self._judged = self._shown = None


def _hidden(keys: Collection[Key]) -> set[Key]:
    """List the kinds that others make superfluous on their GPUs."""
    return {(name, device) for kind, device in keys for name in _HIDES[kind]}


def _gravity(alert: Alert) -> tuple[int, int, float, str]:
    return SEVERITIES.index(alert.severity), _ORDER[alert.kind], alert.since, alert.device
