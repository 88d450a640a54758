"""Base units become text that a person reads."""

from __future__ import annotations

import pytest

from gpumagic.units import GIB, KIB, MIB, amount, bytes_text, duration, quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (1.5 * MIB, "1.5 MiB"),
        (12.4 * GIB, "12.4 GiB"),
        (3 * 1024 * GIB, "3.0 TiB"),
        (-2 * GIB, "-2.0 GiB"),
        (MIB - 1, "1.0 MiB"),
        (GIB - 1, "1.0 GiB"),
        (1024 * GIB - 1, "1.0 TiB"),
        (1023.9 * MIB, "1023.9 MiB"),
    ],
)
def test_bytes_have_binary_units(value: float, text: str) -> None:
    """The largest unit is taken whose number stays under 1024 after rounding."""
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (250e-6, "250 µs"),
        (0.99951e-3, "1.0 ms"),
        (4.1e-3, "4.1 ms"),
        (9.96e-3, "10 ms"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (12.4, "12.4 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7440, "2 h 04 min"),
        (-2.5, "-2.5 s"),
    ],
)
def test_lengths_of_time_read_well(seconds: float, text: str) -> None:
    """No length is written with 60 seconds, 60 minutes or 1000 of the smaller unit."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.834, "ratio", "83 %"),
        (1.0, "ratio", "100 %"),
        (3.27, "cores", "3.3 cores"),
        (GIB, "bytes", "1.0 GiB"),
        (610.4, "watts", "610 W"),
        (9.4, "joules", "9.4 J"),
        (610.4, "joules", "610 J"),
        (9_960, "joules", "10.0 kJ"),
        (999_600, "joules", "1.00 MJ"),
        (64.0, "celsius", "64 °C"),
        (1.98e9, "hertz", "1.98 GHz"),
        (420e6, "hertz", "420 MHz"),
        (999.6e6, "hertz", "1.00 GHz"),
        (12.4, "seconds", "12.4 s"),
        (3.0, "count", "3"),
        (8.0, "state", "8"),
        (None, "watts", "n/a"),
    ],
)
def test_each_unit_has_its_text(value: float | None, unit: str, text: str) -> None:
    """A value in a base unit gets its human unit, and an absent one is n/a."""
    assert quantity(value, unit) == text


def test_an_amount_is_number_and_unit() -> None:
    """The number and its unit come apart, for tables that align them; a count has no unit."""
    assert amount(12.4 * GIB, "bytes") == ("12.4", "GiB")
    assert amount(3, "count") == ("3", "")
    assert quantity(None, "bytes", absent="–") == "–"
