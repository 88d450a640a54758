"""The waterfall shares a GPU's memory out among parts that add up, and says what it cannot."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fakes import GIB, GPU, fill, recording_of, ticks
from fakes import START as T0
from gpumagic.recording import Recording
from gpumagic.sample import Device, Gap, Span
from gpumagic.waterfall import PARTS, MemoryState, Waterfall, build_waterfall

MIB = 1 << 20
SPAN = Span(1, T0 + 2, T0 + 8, number=1, status="ok")
TOTAL = 140 * GIB
DRIVER = 645 * MIB
CONTEXT = 480 * MIB


def reserved_at(time: float) -> float:
    """Torch's cache: 2 GiB before the cell, 9 from its third second to its fifth, then 4."""
    if time < T0 + 2.05:
        return 2.0 * GIB
    return (9.0 if T0 + 5 <= time < T0 + 7 else 4.0) * GIB


def filled(
    *, torch: bool = True, processes: bool = True, driver: bool = True, others: float = GIB,
    **extra: Any,
) -> Recording:
    """Make a recording in which all the figures fit each other."""
    recording = recording_of(GPU)

    def used(time: float) -> float:
        own = reserved_at(time) if torch else 0.0
        return own + CONTEXT + others + (0 if driver else DRIVER)

    inside = {"gpu_memory_reserved_bytes": DRIVER} if driver else {}
    fill(
        recording, ticks(T0, T0 + 10), GPU, "nvml", gpu_memory_used_bytes=used,
        gpu_memory_free_bytes=lambda t: TOTAL - used(t) - (DRIVER if driver else 0), **inside,
    )
    if torch:
        fill(
            recording, ticks(T0 + 0.01, T0 + 10), GPU, "allocator",
            torch_reserved_bytes=reserved_at, torch_inactive_split_bytes=100 * MIB,
            torch_allocated_bytes=lambda t: reserved_at(t) / 2,
        )
    if processes:
        fill(
            recording, ticks(T0, T0 + 10, 1.0), GPU, "nvml_slow",
            gpu_process_memory_bytes=lambda t: CONTEXT + (reserved_at(t) if torch else 0),
            gpu_other_processes_memory_bytes=others,
        )
    return recording


def parts_of(state: MemoryState | None) -> dict[str, float]:
    assert state is not None
    return {part.name: part.bytes for part in state.parts}


def built(
    recording: Recording, device: Device = GPU, reasons: Mapping[str, str] | None = None
) -> Waterfall:
    return build_waterfall(recording, SPAN, device, reasons or {})


def test_parts_that_fit_are_told_apart() -> None:
    """With all readings there each byte has its name, at all three moments."""
    found = built(filled())
    assert [state.moment for state in found.states] == ["before", "highest", "after"]
    for moment, reserved in (("before", 2), ("highest", 9), ("after", 4)):
        assert parts_of(found.state(moment)) == {  # type: ignore[arg-type]
            "live tensors": reserved / 2 * GIB,
            "cached": reserved / 2 * GIB,
            "context": CONTEXT,
            "other processes": GIB,
            "driver": DRIVER,
            "free": TOTAL - reserved * GIB - CONTEXT - GIB - DRIVER,
        }
    assert found.total_bytes == TOTAL
    assert (found.reason, found.notes) == ("", ())
    highest = found.state("highest")
    assert highest is not None
    assert T0 + 5 <= highest.time < T0 + 7
    assert highest.part("cached").fragmented_bytes == 100 * MIB  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(150))
def test_parts_add_up_whatever_was_read(seed: int) -> None:
    """No part is negative, their order is that of PARTS, and their sum is the GPU's memory."""
    rng = random.Random(seed)
    recording = recording_of(GPU)
    device = GPU if rng.random() < 0.7 else replace(GPU, constants={})
    total = 140 * GIB
    driver = rng.choice([None, DRIVER])
    for time in ticks(T0, T0 + 10):
        used = rng.randrange(total - (driver or 0))
        values: dict[str, float] = {"gpu_memory_used_bytes": used}
        values["gpu_memory_free_bytes"] = total - used - (driver or 0)
        if driver is not None:
            values["gpu_memory_reserved_bytes"] = driver
        fill(recording, [time], GPU, "nvml", **values)
    if rng.random() < 0.8:
        first = T0 + rng.choice([0, 0, 4])
        for time in ticks(first, T0 + 10, rng.choice([0.1, 0.1, 3])):
            held = rng.randrange(total)
            fill(recording, [time], GPU, "allocator", torch_reserved_bytes=held,
                 torch_allocated_bytes=rng.randrange(held + 1),
                 torch_inactive_split_bytes=rng.randrange(held + 1))
    if rng.random() < 0.8:
        for time in ticks(T0, T0 + 10, rng.choice([1.0, 1.0, 4])):
            fill(recording, [time], GPU, "nvml_slow",
                 gpu_other_processes_memory_bytes=rng.randrange(total),
                 **({"gpu_process_memory_bytes": rng.randrange(total)} if rng.random() < 0.8
                    else {}))
    found = build_waterfall(recording, SPAN, device, {})
    assert [state.moment for state in found.states] == ["before", "highest", "after"]
    assert found.total_bytes == total
    for state in found.states:
        sizes = parts_of(state)
        assert list(sizes) == [name for name in PARTS if name in sizes]
        assert all(size > 0 for size in sizes.values())
        assert sum(sizes.values()) == pytest.approx(total, abs=MIB)
        for part in state.parts:
            assert part.fragmented_bytes is None or 0 <= part.fragmented_bytes <= part.bytes


def test_the_ends_count_as_highest() -> None:
    """A cell that frees memory was highest at its begin."""
    recording = recording_of(GPU)
    fill(recording, ticks(T0, T0 + 10), GPU, gpu_memory_free_bytes=0,
         gpu_memory_used_bytes=lambda t: 9 * GIB if t < T0 + 2.05 else GIB)
    highest = built(recording).state("highest")
    assert highest is not None
    assert highest.time == pytest.approx(T0 + 2)


def test_what_the_process_grew_by_is_not_called_others() -> None:
    """A process figure of the reading before does not claim what came after it."""
    recording = filled(processes=False)
    fill(recording, ticks(T0, T0 + 10, 1.0), GPU, "nvml_slow",
         gpu_process_memory_bytes=lambda t: CONTEXT + reserved_at(t) - 200 * MIB,
         gpu_other_processes_memory_bytes=GIB)
    sizes = parts_of(built(recording).state("highest"))
    assert sizes["context"] == CONTEXT - 200 * MIB
    assert sizes["remainder"] == 200 * MIB


def test_readings_of_different_times_do_not_make_a_part_negative() -> None:
    """Torch's cache read before the driver's figure fell is cut, and a note says so."""
    recording = recording_of(GPU)
    fill(recording, ticks(T0, T0 + 10), GPU, gpu_memory_used_bytes=2 * GIB,
         gpu_memory_free_bytes=TOTAL - 2 * GIB)
    fill(recording, ticks(T0, T0 + 10), GPU, "allocator", torch_reserved_bytes=3 * GIB,
         torch_allocated_bytes=GIB)
    fill(recording, ticks(T0, T0 + 10, 1.0), GPU, "nvml_slow",
         gpu_process_memory_bytes=4 * GIB, gpu_other_processes_memory_bytes=GIB)
    found = built(recording)
    sizes = parts_of(found.state("highest"))
    assert sizes == {"live tensors": GIB, "cached": GIB, "free": TOTAL - 2 * GIB}
    assert found.notes == (
        "cached: cut to what the driver counted; its figures and torch's were read up to"
        " 100 ms apart",
    )


def test_without_torch_the_process_is_its_context() -> None:
    """What a process holds without torch is context, with a note."""
    found = built(filled(torch=False))
    sizes = parts_of(found.state("highest"))
    assert sizes["context"] == CONTEXT
    assert "live tensors" not in sizes
    assert found.notes == ("context: this process's memory; torch holds nothing on this GPU",)


def test_torch_that_comes_up_in_the_cell_held_nothing_before() -> None:
    """Before CUDA is initialised there are no tensors, and afterwards there are."""
    recording = filled(torch=False)
    fill(recording, ticks(T0 + 6, T0 + 10), GPU, "allocator",
         torch_reserved_bytes=CONTEXT / 2, torch_allocated_bytes=CONTEXT / 2)
    found = built(recording)
    assert "live tensors" not in parts_of(found.state("before"))
    assert parts_of(found.state("after"))["live tensors"] == CONTEXT / 2


def test_hidden_processes_are_outside_torch() -> None:
    """Where the driver hides processes, one part stands for all of them, and says why."""
    hidden = replace(GPU, absent={"gpu_other_processes_memory_bytes": "no PID of this container"})
    found = built(filled(processes=False), hidden)
    sizes = parts_of(found.state("highest"))
    assert sizes["outside torch"] == CONTEXT + GIB
    assert "context" not in sizes
    assert "other processes" not in sizes
    (note,) = found.notes
    assert note.endswith("other processes in one figure: no PID of this container")
    unread = built(filled(processes=False), reasons={"nvml_slow": "it failed"})
    assert unread.notes[0].endswith("in one figure: it failed")
    assert built(filled(processes=False)).notes[0].endswith("was not read near then")


def test_an_old_driver_counts_its_own_memory_as_used() -> None:
    """With version 1 of the memory info the driver's part is missing, and a note says where."""
    found = built(filled(driver=False))
    sizes = parts_of(found.state("highest"))
    assert "driver" not in sizes
    assert sizes["remainder"] == DRIVER
    assert found.notes == (
        "remainder: the driver's own memory is in it; this driver counts it as used",
    )
    hidden = built(filled(driver=False, processes=False))
    assert parts_of(hidden.state("highest"))["outside torch"] == DRIVER + CONTEXT + GIB
    assert "the driver's own memory" in hidden.notes[0]


def test_an_allocator_that_was_not_read_is_not_taken_for_none() -> None:
    """Where torch was not read near a moment, its memory is in the remainder."""
    recording = filled(torch=False)
    found = built(recording, reasons={"allocator": "it failed"})
    sizes = parts_of(found.state("highest"))
    assert "context" not in sizes
    assert sizes["remainder"] == CONTEXT
    assert found.notes[0].startswith("remainder: torch's memory is in it")


def test_a_small_remainder_is_rounding() -> None:
    """Up to 1 MiB that no figure names is left out; more of it is shown."""
    for gap, shown in ((MIB, None), (3 * MIB, 3 * MIB)):
        recording = recording_of(GPU)
        fill(recording, ticks(T0, T0 + 10), GPU, gpu_memory_used_bytes=0,
             gpu_memory_reserved_bytes=DRIVER, gpu_memory_free_bytes=TOTAL - DRIVER - gap)
        found = built(recording)
        assert parts_of(found.state("after")).get("remainder") == shown


def test_a_moment_that_was_not_read_is_left_out() -> None:
    """A reading far from a moment does not stand for it."""
    recording = recording_of(GPU)
    fill(recording, ticks(T0 + 4, T0 + 6), GPU, gpu_memory_used_bytes=1, gpu_memory_free_bytes=1)
    assert [state.moment for state in built(recording).states] == ["highest"]


def test_no_reading_has_a_reason() -> None:
    """A device without memory info, a lost one, and one that was never read each say why."""
    recording = recording_of(GPU)
    assert built(recording).reason == "the GPU's memory was not read near the cell"
    assert built(recording, reasons={"nvml": "no driver"}).reason == "no driver"
    recording.add_gap(Gap(T0, T0 + 10, "nvml", GPU.id, "the GPU fell off the bus"))
    assert built(recording).reason == "the GPU fell off the bus"
    without = replace(GPU, absent={"gpu_memory_used_bytes": "not supported"})
    found = built(recording, without)
    assert (found.reason, found.states) == ("not supported", ())


def test_a_span_that_runs_is_refused() -> None:
    """There is no after before the end."""
    with pytest.raises(ValueError, match="after its end"):
        build_waterfall(recording_of(GPU), Span(1, T0), GPU, {})
