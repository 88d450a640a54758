"""Whose share is told apart: other processes on a GPU, workers on the host, slices of a GPU."""

from __future__ import annotations

import pytest

from gpumagic.recording import Recording
from gpumagic.sample import HOST, Device, Gap, Sample
from gpumagic.views.drawing import shapes, trace_shapes
from gpumagic.views.drawn_words import detail_places
from gpumagic.views.scene import Row, Scene, build_scene
from gpumagic.views.sentences import sentences
from gpumagic.views.shapes import Area, Box, Text
from gpumagic.views.titles import title_width
from scene_examples import GIB, NOW, START, empty, feed, gpu, host, training

MEMORY = "gpu_other_processes_memory_bytes"
LOAD = "gpu_other_processes_utilization_ratio"


def scene(recording: Recording, **more: object) -> Scene:
    settings: dict[str, object] = {"start": START, "end": NOW, **more}
    return build_scene(recording, **settings)  # type: ignore[arg-type]


def row(drawn: Scene, name: str, device: str = "GPU-0") -> Row:
    return next(r for r in drawn.rows if (r.name, r.device) == (name, device))


def shared(memory: float = 4.0, load: float = 0.25, *, start: float = START) -> Recording:
    """Return a minute of training beside another process, read once a second."""
    recording = training()
    feed(
        recording, "GPU-0", "nvml_slow", every=1.0, start=start,
        **{MEMORY: memory * GIB, LOAD: load},
    )
    return recording


# -- other processes ----------------------------------------------------------------------


def test_others_lie_on_what_is_ours() -> None:
    """The grey part ends at the total, ours at the total less theirs, and both are told."""
    drawn = scene(shared())
    memory, load = row(drawn, "mem"), row(drawn, "util")
    heights = [(t.style, t.heights[60]) for t in memory.traces]
    assert heights == [("other", 0.5), ("outer", 0.45), ("middle", 0.375), ("inner", 0.25)]
    assert [(t.style, t.heights[60]) for t in load.traces] == [("other", 0.75), ("outer", 0.5)]
    assert (memory.value, load.value) == ("40.0", "75")
    assert [(d.label, d.text) for d in memory.details] == [
        ("reserved", "30.0"), ("allocated", "20.0"), ("others", "4.0"),
    ]
    assert [(d.label, d.text) for d in load.details] == [("others", "25")]
    assert "allocated 20.0 GiB, other processes 4.0 GiB" in " ".join(sentences(drawn))


@pytest.mark.parametrize(("memory", "load"), [(0.0, 0.0), (0.05, 0.005)])
def test_without_others_nothing_changes(memory: float, load: float) -> None:
    """Where nobody else is there, or next to nobody, the scene is as if it were not known."""
    assert scene(shared(memory, load)) == scene(training())


def test_ours_is_no_less_than_its_parts() -> None:
    """Read less often than the total, others never push ours below what torch holds, or 0."""
    drawn = scene(shared(memory=79.0, load=1.0))
    memory, load = row(drawn, "mem"), row(drawn, "util")
    assert {t.style: t.heights[60] for t in memory.traces}["outer"] == 0.375
    assert {t.style: t.heights[60] for t in load.traces}["outer"] == 0.0


def test_where_others_are_unknown_the_total_is_drawn() -> None:
    """Before the first reading of others, the pale part ends at the total."""
    memory = row(scene(shared(start=START + 30)), "mem")
    other, outer = memory.traces[:2]
    assert set(other.heights[:58]) == {None}
    assert set(outer.heights[:58]) == {0.5}
    assert (other.heights[70], outer.heights[70]) == (0.5, 0.45)
    assert set(memory.totals()) == {0.5}


def test_others_are_held_between_their_readings() -> None:
    """Once a second is enough: no column between two readings of others lacks them."""
    other = row(scene(shared()), "mem").traces[0]
    assert None not in other.heights[1:]


def test_a_gap_of_others_is_no_gap_of_the_strip() -> None:
    """Where only the share of others is missing, the time axis has no gap."""
    recording = shared()
    assert scene(recording).gaps == ()
    recording.add_gap(Gap(START + 20, START + 30, "nvml_slow", "GPU-0", "busy"))
    assert scene(recording).gaps == ()


def test_grey_lies_beside_blue() -> None:
    """The grey area begins where the pale blue one ends: nothing shows through it."""
    drawn = scene(shared(), strips=("mem",), host=False)
    memory = row(drawn, "mem")
    grey, pale, *_ = [s for s in trace_shapes(drawn) if isinstance(s, Area)]
    assert (grey.paint, grey.opacity, pale.paint) == ("line", 1.0, "use")
    tops = {round(y, 6) for y in (memory.top + memory.height * (1 - h) for h in (0.5, 0.45))}
    assert {round(y, 6) for points in grey.stretches for _, y in points} == tops


def test_three_details_take_two_lines() -> None:
    """A high row has two lines of details, and no text of a neighbour covers them."""
    drawn = scene(shared())
    places = detail_places(drawn, row(drawn, "mem"))
    assert [d.label for d, *_ in places] == ["reserved", "allocated", "others"]
    lines = [y for *_, y in places]
    assert lines[0] == lines[1] == lines[2] - 12


def test_a_report_has_totals() -> None:
    """Rows without a header, from which reports take their pictures, are not shared out."""
    rows = scene(shared(), header=False).rows
    assert all(t.style != "other" for r in rows for t in r.traces)
    told = scene(shared(), header=False, shares=True)
    assert row(told, "mem").traces[0].style == "other"


def test_a_table_names_the_grey_part() -> None:
    """In a table, the column where others are drawn has their word once, in its heading."""
    recording = training(3)
    feed(recording, "GPU-1", "nvml_slow", every=1.0, **{MEMORY: 4.0 * GIB, LOAD: 0.0})
    drawn = scene(recording)
    keys = {h.label: [(k.style, k.word) for k in h.key] for h in drawn.headings}
    assert ("other", "others") in keys["memory"]
    assert ("other", "others") not in keys["utilization"]


# -- workers ------------------------------------------------------------------------------


def with_host(**values: float) -> Recording:
    recording = empty(host())
    feed(recording, HOST, "host", every=1.0, process_cpu_ratio=1.0, **values)
    return recording


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"workers_count": 4, "workers_cpu_ratio": 2.0, "children_count": 5}, "4 workers 2.0"),
        ({"workers_count": 1, "workers_cpu_ratio": 0.5, "children_count": 1}, "1 worker 0.5"),
        ({"workers_count": 0, "workers_cpu_ratio": 0.0, "children_count": 5}, "5 children 3.0"),
        ({"workers_count": 4, "children_count": 5}, "5 children 3.0"),
        ({"children_count": 1}, "1 child 3.0"),
        ({"children_count": 0}, None),
    ],
)
def test_workers_come_before_children(values: dict[str, float], told: str | None) -> None:
    """The inner part of CPU is the DataLoader's workers where there are any, else children."""
    cpu = row(scene(with_host(children_cpu_ratio=3.0, **values)), "cpu", HOST)
    found = [f"{d.label} {d.text}" for d in cpu.details]
    assert found == ([] if told is None else [told])
    assert cpu.value == "4.0"


# -- slices -------------------------------------------------------------------------------


def sliced(*ids: str, parent: bool = True) -> Recording:
    """Return a GPU and its slices, which come first in no order."""
    recording = empty()
    for slice_id in ids:
        recording.add_device(Device(
            slice_id, "gpu", "NVIDIA H200 MIG 1g.18gb", nvml_index=0,
            constants={"gpu_memory_total_bytes": 16 * GIB},
        ))
    if parent:
        recording.add_device(gpu(0))
    recording.add_device(gpu(1))
    for device in recording.devices:
        recording.append(
            Sample(NOW - 0.1, device.id, "nvml", {"gpu_memory_used_bytes": 9.0 * GIB})
        )
    return recording


A, B, C = "MIG-1a2b3c-1", "MIG-1a2b9d-2", "MIG-9f00aa-3"


def test_slices_follow_their_gpu() -> None:
    """A slice stands moved in below its GPU and before the next one."""
    drawn = scene(sliced(C, A))
    assert drawn.layout == "table"
    assert [(b.title, b.indent > 0, b.label, b.above) for b in drawn.blocks] == [
        ("GPU 0", False, "GPU 0", ""),
        ("MIG 1a2b", True, "GPU 0 MIG 1a2b", ""),
        ("MIG 9f00", True, "GPU 0 MIG 9f00", ""),
        ("GPU 1", False, "GPU 1", ""),
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_slice_is_titled_without_its_gpu(count: int) -> None:
    """Where the GPU itself is not shown, its title stands once above its slices."""
    drawn = scene(sliced(A, B, C, parent=False), gpus=[A, B, C][:count], host=False)
    assert [b.above for b in drawn.blocks] == ["GPU 0", *[""] * (count - 1)]
    assert [r.device for r in drawn.rows if r.name == "mem"] == [A, B, C][:count]


@pytest.mark.parametrize("gpus", [[A, B], [A, B, C, "GPU-0"]])
def test_slices_are_told_apart(gpus: list[str]) -> None:
    """Titles of slices are as long as it takes to tell them apart, and none is cut."""
    drawn = scene(sliced(A, B, C), gpus=gpus, host=False)
    titles = [b.title for b in drawn.blocks]
    assert len(set(titles)) == len(gpus)
    assert {"MIG 1a2b3", "MIG 1a2b9"} <= set(titles)
    written = [run.text for s in shapes(drawn) if isinstance(s, Text) for run in s.runs]
    assert set(titles) <= set(written)


def test_slices_of_old_drivers_have_numbers() -> None:
    """Before R470 a slice's id held its GPU's, and its instances tell it from others."""
    old = [f"MIG-GPU-1a2b/{n}/0" for n in (1, 2)]
    assert [b.title for b in scene(sliced(*old), gpus=old, host=False).blocks] == [
        "MIG 1/0", "MIG 2/0",
    ]


@pytest.mark.parametrize("index", [0, 12])
def test_the_odd_one_is_marked_beside_its_title(index: int) -> None:
    """The square of the device that the notice is about lies right of all titles, and moves
    nothing.
    """
    recording = sliced(A, B)
    for device in (gpu(index + 2), gpu(index + 3)):
        recording.add_device(device)
    plain = scene(recording, notice="x", host=False)
    marked = scene(recording, notice="x", host=False, about=[(A, "mem")])
    assert [b.rows[0].panel for b in plain.blocks] == [b.rows[0].panel for b in marked.blocks]
    (square,) = [s for s in shapes(marked) if isinstance(s, Box) and s not in shapes(plain)]
    ends = [block.indent + title_width(block.title) for block in marked.blocks]
    assert max(ends) <= square.x < square.x + square.width <= marked.panels[0].x0
