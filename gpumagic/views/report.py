"""The report of one cell, as HTML and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .report_html import write_html
from .report_model import build_report
from .report_text import write_text

if TYPE_CHECKING:
    from ..profiles import Profile

__all__ = ["render_html", "render_text"]


def render_html(profile: Profile) -> str:
    """Return the report as one self-contained block of HTML without script."""
    return write_html(build_report(profile))


def render_text(profile: Profile) -> str:
    """Return the report as text, at most 100 characters wide."""
    return write_text(build_report(profile))
