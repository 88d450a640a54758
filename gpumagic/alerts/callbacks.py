"""Who is told of alerts: the logger "gpumagic", and callbacks of the user."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from .alert import Alert
from .words import elapsed

__all__ = ["Callback", "announce", "on_alert"]

Callback: TypeAlias = Callable[[Alert], object]

_LOGGER = logging.getLogger("gpumagic")
# Without it, the logging module writes warnings to stderr by itself: into a cell, from a thread.
_LOGGER.addHandler(logging.NullHandler())

_CALLBACKS: dict[object, Callback] = {}
_FAILED: set[tuple[object, str]] = set()


def on_alert(callback: Callback) -> Callable[[], None]:
    """Call ``callback`` with each :class:`Alert` as it begins and again once it is over.

    Return the function that ends it. Alerts are judged while a watch shows this machine, and
    the callback runs on gpumagic's own thread, beside the cell: it should be quick, and a widget
    or an output that it touches has to allow that. ``alert.state`` is "begun" or "over". What it
    raises is logged to the logger "gpumagic", once for each kind of alert, and nothing else.
    Those that are not over when the view stops are told so by the cell that stops it.

    Raises :class:`TypeError` for what cannot be called.
    """
    if not callable(callback):
        raise TypeError(f"on_alert takes a function of an Alert, not {callback!r}")
    token = object()
    # Both are one step each for other threads.
    _CALLBACKS[token] = callback

    def unregister() -> None:
        _CALLBACKS.pop(token, None)
        _FAILED.difference_update([entry for entry in _FAILED.copy() if entry[0] is token])

    return unregister


def announce(alert: Alert) -> None:
    """Log an alert that begins or is over, and hand it to the callbacks."""
    if alert.state == "begun":
        _LOGGER.log(logging.INFO if alert.severity == "hint" else logging.WARNING, alert.text)
    else:
        lasted = elapsed((alert.until or alert.since) - alert.since)
        _LOGGER.info("over after %s: %s", lasted, alert.text)
    for token, callback in list(_CALLBACKS.items()):
        _call(token, callback, alert)


def _call(token: object, callback: Callback, alert: Alert) -> None:
    try:
        callback(alert)
    except (Exception, SystemExit):
        # It is asked again: what it stumbles over can be one kind of alert.
        if (token, alert.kind) not in _FAILED:
            _FAILED.add((token, alert.kind))
            _LOGGER.exception("a callback of on_alert failed for the alert %r", alert.kind)
