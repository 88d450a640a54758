"""What holds for every test."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nvml_stub

_GRACE_S = 1.0
_RATE = re.compile(r"^tests/browser/test_(live|beside)\.py::|::test_footers_cost_little$")
"""Finds the tests of how often or how fast something happens: no two of them run at a time."""
_VERSION = re.compile(
    r"^tests/kernel/.*[\[-](current|newest|ipython[\d.]+-ipykernel[\d.]+)(?=[-\]])"
)
"""Finds the version of the kernel that a test runs in."""


def worker_group(test: str) -> str:
    """Name the tests that one worker runs one after another, as they share what they start.

    That is a version of the kernel or a module, whose looks are each for themselves.
    """
    if _RATE.search(test):
        return "rate"
    version = _VERSION.match(test)
    if version:
        return version[1]
    path = test.partition("::")[0]
    return test if path.endswith("test_looks.py") else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope``, part the tests into groups instead of modules."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return worker_group(nodeid)

    return Groups(config, log)


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


@pytest.fixture
def closed_models() -> Iterator[None]:
    """Begin a test without models of widgets, and close those that it leaves."""
    from widget_models import models

    assert models() == []
    yield
    for model in models():
        model.close()


@pytest.fixture
def no_models_left(closed_models: None) -> Iterator[None]:
    """Fail a test that leaves models of widgets."""
    from widget_models import models

    yield
    assert models() == []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Note what widgets send, once asked for."""
    from widget_models import Widget

    found: list[tuple[Any, dict[str, Any]]] = []
    original = Widget.send_state

    def send_state(self: Any, key: Any = None) -> None:
        names = [key] if isinstance(key, str) else sorted(self.keys if key is None else key)
        if names:
            found.append((self, {name: getattr(self, name) for name in names}))
        original(self, key)

    monkeypatch.setattr(Widget, "send_state", send_state)
    return found
