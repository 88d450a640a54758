"""The contract of METRICS, over all of its rows."""

from __future__ import annotations

import re

import pytest

from gpumagic.metrics import (
    CLOCK_EVENT_REASONS,
    METRICS,
    THROTTLE_REASONS,
    Metric,
    of_source,
    throttle_names,
)
from gpumagic.sources import SOURCES

ROWS = list(METRICS.values())
SUFFIXES = {
    "ratio": "_ratio",
    "bytes": "_bytes",
    "bytes/s": "_bytes_per_second",
    "watts": "_watts",
    "joules": "_joules",
    "celsius": "_celsius",
    "hertz": "_hertz",
    "seconds": "_seconds",
    "count": "_count",
    "state": "_state",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
class TestRow:
    """Each row of METRICS."""

    def test_the_name_carries_the_unit(self, row: Metric) -> None:
        """The name is snake case and ends in its base unit; cores are a ratio or a count."""
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", row.name)
        endings = ("_ratio", "_count") if row.unit == "cores" else (SUFFIXES[row.unit],)
        assert row.name.endswith(endings)

    def test_it_tells_what_it_is(self, row: Metric) -> None:
        """Title, help and the call it comes from are there, the help as a sentence."""
        assert row.title.strip()
        assert row.call.strip()
        assert row.help[0].isupper()
        assert row.help.endswith(".")

    def test_its_source_exists(self, row: Metric) -> None:
        """A source of SOURCES reads it."""
        assert row.source in SOURCES

    def test_its_ceiling_exists(self, row: Metric) -> None:
        """A ceiling is a positive number, or a constant with a comparable unit."""
        if row.ceiling is None:
            return
        assert row.kind == "gauge"
        if isinstance(row.ceiling, str):
            constant = METRICS[row.ceiling]
            assert constant.kind == "constant"
            assert constant.unit == row.unit
        else:
            assert row.ceiling > 0

    def test_its_counter_exists(self, row: Metric) -> None:
        """A rate names a counter of seconds of its own source."""
        if row.rate_of is None:
            return
        counter = METRICS[row.rate_of]
        assert (counter.kind, counter.source, counter.unit) == ("counter", row.source, "seconds")
        assert (row.kind, row.unit) == ("gauge", "cores")

    def test_its_times_are_lengths(self, row: Metric) -> None:
        """Window and refresh are not negative, and constants have none."""
        assert row.window_s >= 0
        assert row.refresh_s >= 0
        assert row.reach_s == row.window_s + row.refresh_s
        if row.kind == "constant":
            assert row.reach_s == 0


def test_names_lead_to_their_rows() -> None:
    """METRICS maps each row's own name to it, and no name stands in two rows."""
    assert [row.name for row in ROWS] == list(METRICS)
    listed = [row for s in SOURCES for row in of_source(s, kinds=("gauge", "counter", "constant"))]
    assert sorted(row.name for row in listed) == sorted(METRICS)


def test_metrics_cannot_be_changed() -> None:
    """The table is read-only."""
    with pytest.raises(TypeError):
        METRICS["new_ratio"] = ROWS[0]  # type: ignore[index]


def test_a_sources_metrics_are_listed_by_kind() -> None:
    """of_source lists what is read again and again, and constants only when asked for."""
    read = {row.name for row in of_source("nvml")}
    assert "gpu_power_watts" in read
    assert "gpu_power_limit_watts" not in read
    constants = {row.name for row in of_source("nvml", kinds=["constant"])}
    assert "gpu_power_limit_watts" in constants
    assert not read & constants
    assert all(of_source(source) for source in SOURCES)


def test_reasons_are_single_bits() -> None:
    """Clock event reasons are the low nine bits of nvml.h, and throttling is a part of them."""
    assert list(CLOCK_EVENT_REASONS) == [1 << n for n in range(9)]
    assert frozenset(CLOCK_EVENT_REASONS) > THROTTLE_REASONS


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x000, ()),
        (0x001, ()),
        (0x002 | 0x100, ()),
        (0x004, ("power cap",)),
        (0x001 | 0x004 | 0x040, ("power cap", "thermal (hardware)")),
        (0x8000, ()),
    ],
)
def test_only_what_holds_work_back_is_throttling(bits: float, names: tuple[str, ...]) -> None:
    """Idle, application clocks, display clocks and unknown bits are no throttling."""
    assert throttle_names(float(bits)) == names
