"""What holds for every test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvml_stub

_GRACE_S = 1.0


def _ours() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("gpumagic-")]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test after which a thread of gpumagic's still runs."""
    before = set(_ours())
    yield
    deadline = time.monotonic() + _GRACE_S
    left = [t for t in _ours() if t not in before]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    names = [thread.name for thread in left if thread.is_alive()]
    assert not names, f"still running after the test: {', '.join(names)}"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the one stub library that this process can load."""
    if nvml_stub.compiler() is None:
        pytest.skip("needs Linux and gcc")
    # A process keeps the first libnvidia-ml that it loads: all modules share one build.
    return tmp_path_factory.getbasetemp() / "nvml-libraries"
