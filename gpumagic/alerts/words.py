"""Words of alerts: lengths of time and small numbers as a calm line has them."""

from __future__ import annotations

__all__ = ["about", "count", "elapsed"]

_NUMBERS = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
)


def elapsed(seconds: float) -> str:
    """Write how long something has lasted, in whole units: ``19 s``, ``3 min``, ``2 h``."""
    whole = max(1, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{round(seconds / 3600)} h"


def about(seconds: float) -> str:
    """Write how long something will take, as roughly as it is known: ``about 40 s``."""
    if seconds < 7.5:
        return "a few seconds"
    if seconds < 57.5:
        return f"about {5 * round(seconds / 5)} s"
    if seconds < 95:
        return f"about {10 * round(seconds / 10)} s"
    return f"about {round(seconds / 60)} min"


def count(number: int) -> str:
    """Write a small number as a word, a larger one in digits."""
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)
