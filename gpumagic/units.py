"""Base units to human text.

Values travel in base units (bytes, watts, seconds, ratios, hertz); only here do they become
"12.4 GiB", "610 W" or "83 %".
"""

from __future__ import annotations

__all__ = [
    "GIB", "KIB", "MIB", "amount", "bytes_of", "bytes_text", "duration", "part_of", "quantity",
]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# 1023.96 KiB would be written as 1024.0 KiB.
_ROUNDS_UP = 1023.95 / 1024
_BYTE_STEPS = ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def bytes_text(value: float) -> str:
    """Write a number of bytes with a binary unit, e.g. ``12.4 GiB``; the sign is kept."""
    size = abs(value)
    sign = "-" if value < 0 else ""
    for step, unit in _BYTE_STEPS:
        if size >= step * _ROUNDS_UP:
            return f"{sign}{size / step:.1f} {unit}"
    return f"{sign}{size:.0f} B"


def duration(seconds: float) -> str:
    """Write a length of time, e.g. ``4.1 ms``, ``12.4 s``, ``3 min 05 s`` or ``2 h 04 min``."""
    size = abs(seconds)
    sign = "-" if seconds < 0 else ""
    if size < 0.9995e-3:
        return f"{sign}{size * 1e6:.0f} µs"
    if size < 0.9995:
        return f"{sign}{size * 1e3:.{1 if size < 0.00995 else 0}f} ms"
    if size < 99.95:
        return f"{sign}{size:.1f} s"
    minutes, rest = divmod(round(size), 60)
    if minutes < 60:
        return f"{sign}{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours} h {minutes:02d} min"


def _joules(value: float) -> tuple[str, str]:
    size = abs(value)
    if size >= 999.5e3:
        return f"{value / 1e6:.2f}", "MJ"
    if size >= 999.5:
        return f"{value / 1e3:.1f}", "kJ"
    if size >= 9.95:
        return f"{value:.0f}", "J"
    return f"{value:.1f}", "J"


def _bytes(value: float) -> tuple[str, str]:
    number, _, unit = bytes_text(value).partition(" ")
    return number, unit


def amount(value: float, unit: str) -> tuple[str, str]:
    """Split a value in a base unit into its number and its human unit.

    ``unit`` is one of the units of :data:`gpumagic.metrics.METRICS`: ``ratio``, ``cores``,
    ``bytes``, ``bytes/s``, ``watts``, ``joules``, ``celsius``, ``hertz``, ``seconds``, ``count``
    or ``state``. %, W and °C are whole numbers; cores have one decimal.
    """
    match unit:
        case "ratio":
            return f"{value * 100:.0f}", "%"
        case "cores":
            return f"{value:.1f}", "cores"
        case "bytes":
            return _bytes(value)
        case "bytes/s":
            number, human = _bytes(value)
            return number, f"{human}/s"
        case "watts":
            return f"{value:.0f}", "W"
        case "joules":
            return _joules(value)
        case "celsius":
            return f"{value:.0f}", "°C"
        case "hertz":
            if abs(value) >= 0.9995e9:
                return f"{value / 1e9:.2f}", "GHz"
            return f"{value / 1e6:.0f}", "MHz"
        case "seconds":
            number, _, human = duration(value).partition(" ")
            return number, human
        case _:
            return f"{value:.0f}", ""


def quantity(value: float | None, unit: str, *, absent: str = "n/a") -> str:
    """Write a value in a base unit as text with its unit; ``None`` becomes ``absent``."""
    if value is None:
        return absent
    number, human = amount(value, unit)
    return f"{number} {human}" if human else number


def part_of(part: float, whole: float) -> str:
    """Write a part of a time in seconds, its unit once if that is the same: ``3.0 of 5.0 s``."""
    return _of(duration(part), duration(whole))


def bytes_of(part: float, whole: float) -> str:
    """Write bytes of a total, the unit once where it is the same: ``3.0 of 5.0 GiB``."""
    return _of(bytes_text(part), bytes_text(whole))


def _of(left: str, right: str) -> str:
    number, _, unit = left.partition(" ")
    return f"{number} of {right}" if right.partition(" ")[2] == unit else f"{left} of {right}"
