"""The versions that kernels are tested in; see ``matrix.py``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernel import matrix
from needs import REQUIRE_ALL, cannot

_VERSIONS = [
    pytest.param(name, marks=[pytest.mark.kernel, *([pytest.mark.matrix] if pins else [])])
    for name, pins in matrix.PINS.items()
]


@pytest.fixture(scope="module", params=_VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    """Give the Python of each version in turn, built where that is asked for."""
    name: str = request.param
    chosen = request.config.getoption("markexpr") == "matrix"
    asked = REQUIRE_ALL or chosen or os.environ.get("GPUMAGIC_MATRIX")
    if not (asked or matrix.is_built(name)):
        cannot(f"not built: python tests/kernel/matrix.py {name}")
    return matrix.build(name)
