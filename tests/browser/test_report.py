"""The report of a measured cell in the page and in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvml_stub import NvmlStub

from .conftest import OpenNotebook

pytestmark = pytest.mark.browser

CELL = """%%gpuprofile --name work
import time
time.sleep(2)
6 * 7"""


def test_report_below_the_cell(
    open_notebook: OpenNotebook, stub: NvmlStub, screenshots: Path
) -> None:
    """A measured cell keeps its value and its Out, and shows its figures below."""
    stub.gpu(0, wave=False, utilization=37)
    stub.gpu(1, wave=False, utilization=0)
    notebook = open_notebook(CELL, "print(Out[2], _)")
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).locator(".jp-RenderedHTMLCommon").first.wait_for()
    notebook.screenshot(screenshots, "report")
    text = notebook.text(1)
    assert "42" in notebook.texts(1)
    assert "work" in text
    assert "37" in text, text
    assert notebook.printed(2) == "42 42"
    outputs = notebook.save()[1]["outputs"]
    kinds = [sorted(output.get("data", {})) for output in outputs]
    assert ["text/html", "text/plain"] in kinds
    assert ["text/plain"] in kinds
    assert [output["output_type"] for output in outputs].count("execute_result") == 1
