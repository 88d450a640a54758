"""One server and one browser for the tests of this directory, a fresh notebook for each."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from needs import cannot
from nvml_stub import NvmlStub, compiler

from .lab import Frontend, Notebook, Server, browser, find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

_MODULES = ("playwright", "jupyterlab", "notebook", "ipykernel")
_MOST_GPUS = 8
_BUSY = {
    "wave": True, "wave_period_s": 4, "lost": None, "utilization": 80, "memory_utilization": 40,
    "memory_used": 60 << 30, "power_mw": 610_000, "temperature": 71, "sm_clock_mhz": 1755,
}

_FAILED = pytest.StashKey[bool]()


class OpenNotebook:
    """Open notebooks in one front end, and remember them."""

    def __init__(self, server: Server, context: BrowserContext, frontend: Frontend) -> None:
        self.opened: list[Notebook] = []
        self._server = server
        self._context = context
        self._frontend: Frontend = frontend

    def __call__(self, *cells: str, frontend: Frontend | None = None) -> Notebook:
        """Open a fresh notebook; cell 0 loads the extension and these follow.

        ``frontend`` is another front end than the test's.
        """
        source = ["%load_ext gpumagic", *cells]
        chosen = frontend or self._frontend
        return self._keep(Notebook.create(self._server, self._context, chosen, source))

    def again(self, notebook: Notebook) -> Notebook:
        """Close all of a notebook and open its file with a fresh kernel, as on another day."""
        notebook.close()
        return self._keep(Notebook(self._server, self._context, self._frontend, notebook.path))

    def _keep(self, notebook: Notebook) -> Notebook:
        self.opened.append(notebook)
        return notebook


@pytest.fixture(scope="package")
def chromium() -> str:
    """Return the browser's path, or skip and say what to install."""
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        cannot(f"not installed: pip install {' '.join(missing)}")
    if compiler() is None:
        cannot("no C compiler for the NVML stub: apt-get install gcc")
    found = find_chromium()
    if found is None:
        cannot("no Chromium: apt-get install chromium, or name one in GPUMAGIC_CHROMIUM")
    return found


@pytest.fixture(scope="package")
def driver(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    """Build the GPUs that every kernel sees."""
    return NvmlStub(tmp_path_factory.mktemp("nvml"), gpus=_MOST_GPUS)


@pytest.fixture
def stub(driver: NvmlStub) -> NvmlStub:
    """Show two H200 whose values swing."""
    for index in range(_MOST_GPUS):
        driver.gpu(index, **_BUSY)
    driver.write(count=2)
    return driver


@pytest.fixture(scope="package")
def server(driver: NvmlStub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run the Jupyter server of these tests."""
    running = Server(tmp_path_factory.mktemp("jupyter"), driver.variables())
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="package")
def context(chromium: str) -> Iterator[BrowserContext]:
    """Run the browser of these tests."""
    with browser(chromium) as running:
        yield running


@pytest.fixture(params=["lab", "notebook"])
def frontend(request: pytest.FixtureRequest) -> Frontend:
    """Take JupyterLab, then Notebook 7."""
    name: Frontend = request.param
    return name


@pytest.fixture(scope="package")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for screenshots; GPUMAGIC_SCREENSHOTS names one that is kept."""
    named = os.environ.get("GPUMAGIC_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the fixtures whether the test has failed."""
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def open_notebook(
    request: pytest.FixtureRequest, server: Server, context: BrowserContext, stub: NvmlStub,
    frontend: Frontend, screenshots: Path,
) -> Iterator[OpenNotebook]:
    """Hand out what opens notebooks.

    Requires at the end that no page met an error or a broken widget, and closes all. The pages
    of a failed test are left as screenshots.
    """
    server.use_light_theme()
    opener = OpenNotebook(server, context, frontend)
    complaints: list[str] = []
    try:
        yield opener
        for number, notebook in enumerate(opener.opened):
            complaints += notebook.complaints()
            if request.node.stash.get(_FAILED, False) and not notebook.page.is_closed():
                notebook.screenshot(screenshots, f"failed-{request.node.originalname}-{number}")
    finally:
        for notebook in opener.opened:
            notebook.close()
    assert complaints == []
