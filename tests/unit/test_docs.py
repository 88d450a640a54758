"""The docs say what the code does."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def as_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pages' scripts find their neighbours, as they do when Python runs them."""
    monkeypatch.syspath_prepend(ROOT / "docs")


def test_metrics_page() -> None:
    """docs/metrics.md is what METRICS writes."""
    page = runpy.run_path(str(ROOT / "docs" / "make_metrics.py"))["page"]()
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page, (
        "run python docs/make_metrics.py"
    )


def test_findings_page() -> None:
    """docs/findings.md is what RULES and Thresholds write."""
    page = runpy.run_path(str(ROOT / "docs" / "make_findings.py"))["page"]()
    assert (ROOT / "docs" / "findings.md").read_text(encoding="utf-8") == page, (
        "run python docs/make_findings.py"
    )


def test_alerts_page() -> None:
    """docs/alerts.md is what ALERTS and AlertThresholds write."""
    page = runpy.run_path(str(ROOT / "docs" / "make_alerts.py"))["page"]()
    assert (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8") == page, (
        "run python docs/make_alerts.py"
    )
