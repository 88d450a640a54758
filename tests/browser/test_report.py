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

WHOLE = f"""import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from report_examples import *
finding = starved(stretches=((START + 8, START + 12),), label="loads in the main process, 4.0 s")
diagnosed(training(workers=4, loaders=True), finding, throttled())"""

_PLACES = """element => {
    const place = box => [box.left, box.right];
    const all = pattern => [...element.querySelectorAll(pattern)].map(
        found => place(found.getBoundingClientRect()));
    const report = element.querySelector(".gpm");
    return {
        label: all(".br span")[0], bracket: all(".br > svg > .held")[0],
        strip: all("td.s > svg")[0],
        parts: all(".mem tr:last-child svg > rect"), bar: all(".mem tr:last-child svg")[0],
        wider: report.scrollWidth - report.clientWidth,
        code: element.querySelector("code").textContent,
    };
}"""


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


def test_everything_in_its_place(open_notebook: OpenNotebook, screenshots: Path) -> None:
    """The bracket's label ends over its stretch, and the parts of memory fill their bar."""
    notebook = open_notebook(WHOLE)
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).locator(".gpm").first.wait_for()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.use_theme(theme)
        notebook.screenshot(screenshots, f"report-whole-{theme.rpartition(' ')[2].lower()}")
    found = notebook.output(1).evaluate(_PLACES)
    assert found["label"][1] == pytest.approx(found["bracket"][1], abs=2)
    assert found["strip"][0] <= found["label"][0] < found["label"][1] <= found["strip"][1] + 1
    assert found["parts"][0][0] == pytest.approx(found["bar"][0], abs=1.5)
    assert found["parts"][-1][1] == pytest.approx(found["bar"][1], abs=1.5)
    joints = zip(found["parts"], found["parts"][1:], strict=False)
    assert all(left[1] == pytest.approx(right[0], abs=1.5) for left, right in joints)
    assert found["wider"] <= 0
    assert found["code"] == "DataLoader(…, num_workers=4)"
