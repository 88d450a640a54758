"""Diagnosis: what held a cell back, in words, and what to try next."""

from __future__ import annotations

from .finding import SEVERITIES, Finding, Severity

__all__ = ["SEVERITIES", "Finding", "Severity"]
