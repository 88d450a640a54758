"""What a test does where something that it needs is missing."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["REQUIRE_ALL", "cannot"]

REQUIRE_ALL = os.environ.get("GPUMAGIC_REQUIRE_ALL") == "1"
"""Whether a missing package is a failure: so in continuous integration."""


def cannot(reason: str) -> NoReturn:
    """Skip the test for a reason, or fail it where nothing may be missing."""
    if REQUIRE_ALL:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
