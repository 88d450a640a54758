"""The rules on cells recorded on a real H200: each has the finding that fits, and no wrong one.

The recordings come from ``tests/gpu/scenarios.py``; each holds one cell and two seconds on both
sides of it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gpumagic.codec import load
from gpumagic.diagnosis import Finding, diagnose
from gpumagic.profiles import Profile
from gpumagic.recording import Recording
from gpumagic.sample import Span
from gpumagic.summary import Summary, summarise
from gpumagic.views.scene import build_scene
from gpumagic.waterfall import build_waterfall

FOLDER = Path(__file__).parents[1] / "data" / "h200"

EXPECTED = {
    "input-workers-full": {"input-bound-workers"},
    "input-no-workers": {"input-bound-no-workers"},
    "input-storage": {"input-bound-storage"},
    "input-by-hand": {"host-bound"},
    "launch-bound": {"launch-bound"},
    "launch-bound-raw": {"launch-bound"},
    "under-filled-batch": {"launch-bound"},
    "tensor-busy": {"healthy", "throttled"},
    "healthy": {"healthy", "throttled"},
    "autograd-forward": {"healthy", "throttled"},
    "inference-forward": {"healthy", "throttled"},
    "copies-alone": {"copies"},
    "one-thread": {"under-filled"},
    "leaking": {"staircase", "throttled"},
    "fragmented": {"fragmentation", "throttled"},
    "cache-only": {"cache", "healthy", "throttled"},
    "near-oom": {"near-full", "throttled"},
    "oom": {"out-of-memory", "throttled"},
    "other-process": {"other-process", "throttled"},
    "short": {"too-short"},
}
"""What each cell gets. Every cell that fills this GPU meets its power cap of 700 W."""


@cache
def cell(name: str) -> tuple[Recording, Summary, tuple[Finding, ...]]:
    """Load a recorded cell and judge it."""
    recording = load(FOLDER / f"{name}.jsonl.gz")
    span, = (span for span in recording.spans() if span.name == name)
    summary = summarise(recording, span)
    waterfalls = [build_waterfall(recording, span, gpu.device, {}) for gpu in summary.gpus]
    return recording, summary, diagnose(recording, summary, waterfalls=waterfalls)


def of(name: str, rule: str) -> Finding:
    """Return one finding of a cell."""
    return next(finding for finding in cell(name)[2] if finding.rule == rule)


def test_every_recorded_cell_is_judged() -> None:
    """Each file has an expectation, and each expectation a file."""
    assert {path.name.removesuffix(".jsonl.gz") for path in FOLDER.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_cell_gets_the_finding_that_fits(name: str) -> None:
    """A cell of a real H200 has exactly the findings that describe what it did."""
    assert {finding.rule for finding in cell(name)[2]} == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_cell_can_be_read(name: str) -> None:
    """The report of a recorded cell can be written as text and as HTML."""
    recording, summary, findings = cell(name)
    span: Span = summary.span
    assert span.end is not None
    scene = build_scene(
        recording, start=span.start, end=span.end, state="stopped", header=False, layout="rows"
    )
    profile = Profile(span, summary, scene=scene, findings=findings)
    text = profile.to_text()
    assert all(len(line) <= 100 for line in text.splitlines())
    assert findings[0].lead.split(":")[0] in " ".join(text.split())
    assert "<script" not in profile.to_html()


def test_starved_cells_name_their_cause() -> None:
    """The three causes of starving differ in who was busy."""
    workers = of("input-workers-full", "input-bound-workers")
    assert workers.figures["worker_cpu_ratio"] > 0.9
    storage = of("input-storage", "input-bound-storage")
    assert storage.figures["worker_cpu_ratio"] < 0.1
    alone = of("input-no-workers", "input-bound-no-workers")
    assert alone.figures["process_cpu_ratio"] > 0.9


def test_the_climb_has_its_step() -> None:
    """The cell that keeps an output of 1 GiB a step is told so."""
    assert of("leaking", "staircase").figures["bytes_per_step"] == pytest.approx(2**30, rel=0.02)


def test_figures_of_misleading_cells_are_the_ones_known() -> None:
    """A spinning thread and copies show 100 % GPU-Util with next to no SM active."""
    for name, rule in (("one-thread", "under-filled"), ("copies-alone", "copies")):
        figures = of(name, rule).figures
        assert figures["gpu_utilization_ratio"] > 0.97
        assert figures["gpu_sm_active_ratio"] < 0.02
    rate = of("copies-alone", "copies").figures["gpu_pcie_receive_bytes_per_second"]
    assert 50e9 < rate < 64e9


def test_inference_needs_less_memory_than_autograd() -> None:
    """The same forward passes keep their activations with autograd and drop them without."""
    peaks = [
        cell(name)[1].gpus[0].figure("torch_allocated_bytes").peak
        for name in ("inference-forward", "autograd-forward")
    ]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0] < 0.5 * peaks[1]


@pytest.mark.parametrize("name", ["one-thread", "copies-alone"])
def test_a_gpu_that_does_little_is_not_called_busy(name: str) -> None:
    """Where GPU-Util misleads, the report says what it was and does not call the GPU busy."""
    _, summary, findings = cell(name)
    text = Profile(summary.span, summary, findings=findings).to_text()
    assert "GPU-Util of the GPU was" in text
    assert "was busy" not in text
