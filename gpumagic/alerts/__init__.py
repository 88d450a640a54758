"""Alerts: what goes wrong on the GPUs now, in one calm line, as logic over a recording.

``Alerts().judge(recording, now)`` returns the gravest one; :func:`on_alert` registers who is
told when one begins and when it is over.
"""

from __future__ import annotations

from .alert import SEVERITIES, Alert, Severity
from .callbacks import on_alert
from .judge import Alerts
from .registry import ALERTS, Kind
from .thresholds import AlertThresholds, parse_alerts

__all__ = [
    "ALERTS",
    "SEVERITIES",
    "Alert",
    "AlertThresholds",
    "Alerts",
    "Kind",
    "Severity",
    "on_alert",
    "parse_alerts",
]
