"""Errors that gpumagic raises.

::

    GpuMagicError                 base of all of them
    ├── SettingError              a setting or an option has a value that cannot be used
    ├── DeviceError               a GPU was named that is not there, or cannot be told
    ├── RecordingError            a recording file cannot be read or written
    └── SourceUnavailable         a source has nothing to read here; its text says why

A metric that cannot be measured is no error: it is absent, and a reason stands beside it.
Errors of vendors' libraries are translated where they occur and do not leave ``sources``.
"""

from __future__ import annotations

__all__ = [
    "DeviceError",
    "GpuMagicError",
    "RecordingError",
    "SettingError",
    "SourceUnavailable",
]


class GpuMagicError(Exception):
    """Base of gpumagic's errors; its text is one line and names the remedy."""


class SettingError(GpuMagicError, ValueError):
    """A setting or an option has a value that cannot be used."""


class DeviceError(GpuMagicError, LookupError):
    """A GPU was named that is not there, or that cannot be told from another."""


class RecordingError(GpuMagicError):
    """A recording cannot be read or written."""


class SourceUnavailable(GpuMagicError):
    """A source has nothing to read on this machine; the text says why and what would help."""
