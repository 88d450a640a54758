"""Each rule on a case that must fire it, a near one that must not, and their contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest

from cell_examples import TOTAL, Cell, Value, cell, memory
from fakes import GIB, GPU, OTHER_GPU, START, fill, ticks
from gpumagic.diagnosis import RULES, SEVERITIES, Thresholds, diagnose, parse_thresholds
from gpumagic.errors import SettingError
from gpumagic.sample import HOST, Gap
from gpumagic.summary import summarise
from gpumagic.waterfall import MemoryState, Part, Waterfall

LOADER, LOADS_ITSELF, MODEL, OTHER, COMPILER = 1.0, 2.0, 4.0, 0.0, 5.0

STARVED: dict[str, Value] = {
    "util": 0.3, "sm": 0.25, "cpu": 0.2, "main": 0.2, "place": LOADER, "workers": 2.0,
    "workers_cpu": 1.96, "children": 1.96,
}
BUSY: dict[str, Value] = {
    "util": 0.98, "sm": 0.94, "tensor": 0.67, "dram": 0.28, "cpu": 1.0, "main": 1.0,
    "place": MODEL,
}
LAUNCHING: dict[str, Value] = {
    "util": 0.11, "sm": 0.002, "cpu": 1.0, "main": 0.5, "place": MODEL,
}


def with_(base: dict[str, Value], **changes: Any) -> Cell:
    """Make a cell of a base with some figures changed."""
    return cell(**{**base, **changes})


def sawtooth(low: float, high: float, period: float = 0.4) -> Callable[[float], float]:
    """Return a figure that is high in the second half of each period."""
    return lambda t: high if (t % period) > period / 2 else low


# -- waiting for data -----------------------------------------------------------------------


def test_full_workers_are_input_bound() -> None:
    """A cell that waits for workers which fill their cores is told how many more it needs."""
    finding = with_(STARVED, seconds=12.0).finding("input-bound-workers")
    assert finding.lead == "The GPU waited for data for 8.4 of 12.0 s."
    assert finding.label == "waits for data, 8.4 of 12.0 s"
    assert "the 2 workers of the DataLoader filled their cores (0.98 each)" in finding.evidence
    assert "while 6 of 8 cores were idle" in finding.evidence
    assert "`DataLoader(..., num_workers=8)`" in finding.advice


def test_the_stretch_that_waits_is_told_apart_from_the_rest() -> None:
    """Only the part that waits is bracketed, and the rest is told beside it."""
    finding = with_(
        STARVED, seconds=12.0, place=lambda t: LOADER if t < 6 else MODEL,
        util=lambda t: 0.45 if t < 6 else 1.0, sm=lambda t: 0.4 if t < 6 else 0.85,
    ).finding("input-bound-workers")
    assert finding.lead.startswith("The GPU waited for data for 3.")
    assert "SM active was 4" in finding.evidence
    assert "8" in finding.evidence.split(" in the rest")[0][-4:]
    (start, end), = finding.stretches
    assert start == START
    assert 5.5 <= end - START <= 6.5


@pytest.mark.parametrize(
    "changes",
    [
        {"util": 0.95, "sm": 0.9},
        {"place": MODEL},
        {"place": lambda t: LOADER if t < 1 else MODEL},
    ],
    ids=["the GPU is busy", "it is not in the loader", "only at the start"],
)
def test_a_loader_that_keeps_up_is_not_input_bound(changes: dict[str, Value]) -> None:
    """Where the GPU is busy, or the cell hardly waits for its loader, nothing is said of data."""
    rules = with_(STARVED, **changes).rules
    assert not {rule for rule in rules if rule.startswith("input-bound")}


def test_workers_are_not_asked_for_where_all_cores_are_used() -> None:
    """No more workers are proposed than there are cores to run them."""
    finding = with_(
        STARVED, cores=2.0, cpu=0.1, main=0.1, workers_cpu=1.9, children=1.9
    ).finding("input-bound-workers")
    assert "num_workers" not in finding.advice


def test_idle_workers_wait_for_storage() -> None:
    """Workers that use little of their cores are waiting themselves."""
    finding = with_(STARVED, workers=4.0, workers_cpu=0.2, children=0.2).finding(
        "input-bound-storage"
    )
    assert "the 4 workers waited too (0.05 of a core each)" in finding.evidence
    assert "input-bound-workers" not in with_(STARVED, workers=4.0, workers_cpu=0.2).rules


def test_workers_at_work_do_not_wait_for_storage() -> None:
    """Workers that are half busy are no sign of slow storage."""
    assert "input-bound-storage" not in with_(STARVED, workers=4.0, workers_cpu=2.0).rules


def test_storage_pressure_is_evidence() -> None:
    """Time in which tasks waited for storage is told where it is counted."""
    finding = with_(
        STARVED, workers_cpu=0.1, pressure=lambda t: 0.5 * t + 10
    ).finding("input-bound-storage")
    assert "tasks waited for storage in 6.0 of 12.0 s" in finding.evidence


def test_loading_in_the_own_process_needs_workers() -> None:
    """A DataLoader without workers on a full core is told to take some."""
    base = {**STARVED, "place": LOADS_ITSELF, "main": 0.98, "cpu": 1.0, "workers": 0.0,
            "workers_cpu": 0.0, "children": 0.0}
    finding = with_(base).finding("input-bound-no-workers")
    assert "without workers, on one core (0.98)" in finding.evidence
    assert "num_workers=7" in finding.advice
    idle = with_({**base, "main": 0.1, "cpu": 0.1})
    assert idle.rules == {"input-bound-storage"}


def test_code_between_large_kernels_is_host_bound() -> None:
    """A full core outside of models, while large kernels run now and then, holds the GPU up."""
    base: dict[str, Value] = {
        "util": 0.014, "sm": 0.01, "cpu": 1.0, "main": 0.99, "place": OTHER
    }
    assert with_(base).rules == {"host-bound"}
    finding = with_(base).finding("host-bound")
    assert "outside of any model and loader, while 7 of 8 cores were idle" in finding.evidence
    assert "host-bound" not in with_(base, main=0.4).rules
    assert "host-bound" not in with_(base, sm=0.0001).rules


def test_preparing_before_training_is_not_waiting() -> None:
    """A cell that prepares its data for long and trains at the end has not starved its GPU."""
    rules = with_(
        {"cpu": 1.0, "main": 1.0, "place": OTHER},
        util=lambda t: 0.0 if t < 9 else 0.99, sm=lambda t: 0.0 if t < 9 else 0.9,
    ).rules
    assert not rules & {"host-bound", "launch-bound"}


# -- launching, and GPU-Util that misleads --------------------------------------------------


def test_small_kernels_from_a_full_core_are_launch_bound() -> None:
    """A model on a full core with short kernels is launch-bound."""
    finding = with_(LAUNCHING).finding("launch-bound")
    assert "A kernel ran 11 % of the time (GPU-Util), SM active was under 1 %" in finding.evidence
    assert "torch.compile" in finding.advice


@pytest.mark.parametrize(
    "changes",
    [{"cpu": 0.5, "main": 0.4}, {"util": 0.97, "sm": 0.9}, {"place": LOADER},
     {"util": 0.3, "sm": 0.28, "place": OTHER}, {"util": 0.0, "sm": 0.0}],
    ids=["no full core", "busy", "in the loader", "large kernels", "no kernel"],
)
def test_other_cells_are_not_launch_bound(changes: dict[str, Value]) -> None:
    """Without a full core, without small kernels or in a loader nothing is said of launching."""
    assert "launch-bound" not in with_(LAUNCHING, **changes).rules


def test_launching_needs_no_sm_counter_in_a_model() -> None:
    """On older GPUs the place in the model and the full core are enough."""
    base = {name: v for name, v in LAUNCHING.items() if name != "sm"}
    assert with_(base).rules == {"launch-bound"}
    assert with_(base, place=OTHER).rules == set()


def test_a_spinning_thread_is_under_filled() -> None:
    """GPU-Util of 100 % with SM active at 1 % is shown for what it is."""
    finding = with_(BUSY, util=1.0, sm=0.0075).finding("under-filled")
    assert finding.lead == "GPU-Util said 100 %, but the GPU was mostly empty: SM active 1 %."
    assert "under-filled" not in with_(BUSY, sm=0.45).rules
    assert "under-filled" not in with_(BUSY, util=0.5, sm=0.1).rules


def test_the_batch_can_grow_within_the_memory_that_is_left() -> None:
    """How far a batch can grow follows from the cell's own growth and what is left."""
    made = with_(
        BUSY, sm=0.2, waterfall=memory(20), used=21 * GIB, reserved=20 * GIB,
        allocated=lambda t: (10 if t < 0.01 else 20) * GIB,
    )
    assert "119.0 GiB of memory are left, room for one over 10 times as large" in (
        made.finding("under-filled").advice
    )
    full = with_(
        BUSY, sm=0.2, waterfall=memory(130), used=131 * GIB, reserved=130 * GIB,
        allocated=lambda t: (10 if t < 0.01 else 130) * GIB,
    )
    assert "batch" not in full.finding("under-filled").advice


def test_copies_alone_are_no_work() -> None:
    """GPU-Util counts copies; without a kernel that is said, and not that the GPU is empty."""
    base = {**BUSY, "util": 1.0, "sm": 0.0, "receive": 56 * GIB}
    finding = with_(base).finding("copies")
    assert "56.0 GiB/s went over PCIe to the GPU" in finding.evidence
    assert with_(base).rules == {"copies"}
    assert "copies" not in with_(base, receive=10e6).rules
    assert "copies" not in with_(base, sm=0.3).rules


# -- memory ---------------------------------------------------------------------------------


def test_a_failed_allocation_is_told_first() -> None:
    """Running out of memory comes before all other findings, and hides what follows from it."""
    made = with_(
        BUSY, status="error", ooms=lambda t: 0.0 if t < 6 else 1.0,
        retries=lambda t: 0.0 if t < 6 else 1.0,
        waterfall=memory(132), used=133 * GIB, allocated=132 * GIB, reserved=132 * GIB,
    )
    first = made.findings()[0]
    assert first.rule == "out-of-memory"
    assert first.lead == "The GPU ran out of memory: an allocation failed."
    assert "live tensors 132.0 GiB" in first.evidence
    assert not made.rules & {"near-full", "allocator-retries", "healthy"}
    assert first.severity == "failed"
    assert "out-of-memory" not in with_(BUSY, ooms=3.0).rules
    caught = with_(BUSY, ooms=lambda t: 0.0 if t < 6 else 1.0).finding("out-of-memory")
    assert caught.lead.endswith("an allocation failed, and the cell went on.")
    assert caught.severity == "limit"


def test_others_who_hold_the_memory_are_named() -> None:
    """Where other processes hold a tenth of the GPU, they are the remedy."""
    finding = with_(
        BUSY, ooms=lambda t: 0.0 if t < 6 else 1.0, others=60 * GIB, waterfall=memory(70, 0, 60)
    ).finding("out-of-memory")
    assert "Other processes hold 60.0 GiB" in finding.advice


def test_an_emptied_cache_is_told() -> None:
    """A retry of the allocator in the cell is a sign of too little memory; an old one is not."""
    assert "allocator-retries" in with_(BUSY, retries=lambda t: 2.0 if t < 5 else 3.0).rules
    assert "allocator-retries" not in with_(BUSY, retries=2.0).rules


def test_need_counts_and_cache_does_not() -> None:
    """Memory is nearly full by what is needed; a cache can be given back."""
    need = with_(BUSY, waterfall=memory(126), allocated=126 * GIB)
    assert "127.0 of 140.0 GiB were needed" in need.finding("near-full").lead
    assert "near-full" not in with_(BUSY, waterfall=memory(30, 100), allocated=30 * GIB).rules
    assert "near-full" not in with_(BUSY, waterfall=memory(120), allocated=120 * GIB).rules


def staircase(t: float) -> float:
    """Gain a GiB every 0.5 s, with activations that come and go in each step."""
    return (20 + int(max(0.0, t) / 0.5) + sawtooth(0, 6, 0.5)(t)) * GIB


def test_memory_that_climbs_step_by_step_is_told() -> None:
    """A staircase is told with its step and the steps that are left."""
    made = with_(BUSY, allocated=staircase, waterfall=memory(44), used=45 * GIB)
    finding = made.finding("staircase")
    assert finding.lead.startswith("Memory climbs: 1.0 GiB a step, ")
    assert "more steps" in finding.evidence
    assert "healthy" not in made.rules


@pytest.mark.parametrize(
    "allocated",
    [
        lambda t: (20 + min(20.0, 10 * max(t, 0.0))) * GIB,
        lambda t: (20 + sawtooth(0, 30)(t)) * GIB,
        lambda t: (20 if t < 7 else 60) * GIB,
        lambda t: (20 + max(0.0, t) * 0.001) * GIB,
        lambda t: (20 + (t % 4)) * GIB,
    ],
    ids=["warm-up", "activations", "one allocation", "next to nothing", "comes down"],
)
def test_memory_that_stays_is_no_staircase(allocated: Value) -> None:
    """Warm-up, activations, one large allocation and what comes down again are no climb."""
    assert "staircase" not in with_(BUSY, allocated=allocated).rules


def test_loading_onto_an_idle_gpu_is_no_staircase() -> None:
    """Memory that fills while no kernel runs is being loaded."""
    rules = cell(util=0.01, sm=0.0, cpu=0.5, allocated=lambda t: (1 + max(0.0, t)) * GIB).rules
    assert "staircase" not in rules


def test_a_climb_that_cannot_be_split_into_steps_has_a_rate() -> None:
    """Steps that come faster than readings are told as bytes a second."""
    finding = with_(
        BUSY, allocated=lambda t: (20 + max(0.0, t)) * GIB, waterfall=memory(32)
    ).finding("staircase")
    assert finding.lead.startswith("Memory climbs: 1.0 GiB a second")


def test_pieces_that_made_torch_take_more_are_fragmentation() -> None:
    """What torch took above its tensors' peak, in segments that blocks pin, is fragmented."""
    base: dict[str, Value] = {
        **BUSY, "reserved": lambda t: (20 if t < 3 else 60) * GIB,
        "allocated": 22 * GIB, "split": lambda t: (2 if t < 3 else 36) * GIB,
    }
    finding = with_(base).finding("fragmentation")
    assert "it took 60.0 GiB for tensors that never passed 22.0 GiB" in finding.lead
    assert "expandable_segments:True" in finding.advice
    assert "fragmentation" not in with_(base, reserved=60 * GIB).rules
    assert "fragmentation" not in with_(base, split=1 * GIB).rules
    assert "fragmentation" not in with_(base, allocated=50 * GIB).rules


def test_a_cache_is_no_leak() -> None:
    """A device that looks full of torch's cache is explained; a full one is not."""
    base: dict[str, Value] = {
        **BUSY, "used": 62 * GIB, "reserved": 61 * GIB, "allocated": 4 * GIB, "split": 0.0
    }
    finding = with_(base).finding("cache")
    assert finding.lead == (
        "57.0 GiB of the 62.0 GiB that nvidia-smi shows are torch's cache, not a leak."
    )
    assert "cache" not in with_(base, allocated=50 * GIB).rules
    assert "cache" not in with_(base, reserved=20 * GIB).rules


# -- limits ---------------------------------------------------------------------------------


def test_another_process_is_told_with_its_load() -> None:
    """Another process is named by its bytes, and grave only where it worked."""
    assert "healthy" not in with_(BUSY, others=8 * GIB).rules
    assert "healthy" in with_(BUSY, others=8 * GIB, others_load=0.0).rules
    idle = with_(BUSY, others=8 * GIB, others_load=0.0).finding("other-process")
    assert idle.lead == "Other processes hold 8.0 GiB of the GPU's memory."
    assert idle.severity == "hint"
    busy = with_(BUSY, others=8 * GIB, others_load=0.4, allocated=GIB).finding("other-process")
    assert "and ran kernels 40 % of the time" in busy.lead
    assert busy.severity == "limit"
    assert "other-process" not in with_(BUSY, others=0.1 * GIB).rules
    little = with_(BUSY, others=0.1 * GIB, others_load=0.95)
    assert little.rules == {"other-process"}


def test_a_power_cap_is_told_with_the_clock_that_it_cost() -> None:
    """The power cap is a hint: the GPU works as fast as it may."""
    finding = with_(BUSY, reasons=4.0, clock=1.58e9).finding("throttled")
    assert finding.lead == "The power cap held the clocks back 100 % of the time."
    assert "1.58 GHz then, 20 % below its highest; the cap is 700 W" in finding.evidence
    assert finding.severity == "hint"
    assert "throttled" not in with_(BUSY, reasons=1.0, clock=1.58e9).rules
    assert "throttled" not in with_(BUSY, reasons=4.0, clock=1.975e9).rules


def test_heat_is_a_limit() -> None:
    """Clocks that heat holds back, and heat alone, are limits with a remedy."""
    assert with_(BUSY, reasons=32.0, clock=1.2e9).finding("throttled").severity == "limit"
    hot = with_(BUSY, temp=87.0)
    assert "hot" in hot.rules
    assert "healthy" not in hot.rules
    assert "hot" not in with_(BUSY, temp=80.0).rules
    assert "hot" not in with_(BUSY, temp=88.0, reasons=32.0, clock=1.2e9).rules


def test_a_quota_that_is_used_up_is_told() -> None:
    """The share of the quota's periods in which the container had to wait is the evidence."""
    base: dict[str, Value] = {
        **STARVED, "periods": lambda t: 100 + 10 * t, "held_periods": lambda t: 50 + 4 * t,
        "held": lambda t: 7 + 0.3 * t,
    }
    finding = with_(base).finding("host-limit")
    assert finding.device == HOST
    assert "up in 40 % of its periods" in finding.lead
    assert "host-limit" not in with_(base, held_periods=50.0).rules
    assert "host-limit" not in with_(base, held_periods=lambda t: 50 + 0.5 * t).rules


def test_full_cores_are_told_unless_the_gpu_is_busy() -> None:
    """Cores that are all used are a limit only while the GPU has time to spare."""
    assert "host-limit" in with_(STARVED, cpu=1.0, children=7.0).rules
    assert "host-limit" not in with_(BUSY, cpu=8.0).rules
    assert "host-limit" not in with_(STARVED, cpu=1.0, children=6.0).rules


def test_full_ram_is_told_without_a_gpu() -> None:
    """The host's rules speak where there is no GPU."""
    assert cell(gpu=False, ram=62 * GIB, cpu=1.0).rules == {"host-memory"}
    assert cell(gpu=False, ram=50 * GIB, cpu=1.0).rules == set()


# -- all is well, or cannot be told ---------------------------------------------------------


def test_a_well_used_gpu_is_told_in_one_line() -> None:
    """A healthy run gets one short line with what it rests on."""
    finding, = with_(BUSY).findings()
    assert finding.message == (
        "The GPU was well used: SM active 94 %, tensor cores 67 %, bandwidth 28 %."
    )
    assert with_(BUSY, sm=0.5).rules == set()


def test_an_older_gpu_is_busy_and_no_more_is_claimed() -> None:
    """Without SM counters GPU-Util is told as what it is."""
    base = {name: v for name, v in BUSY.items() if name not in ("sm", "tensor", "dram")}
    finding = with_(base, absent={"gpu_sm_active_ratio": "not counted before Hopper"}).finding(
        "healthy"
    )
    assert "How much of it was used is not counted" in finding.evidence


def test_a_short_cell_is_not_judged() -> None:
    """A cell of 50 ms is too short to say, and nothing else is said."""
    assert with_(STARVED, seconds=0.05).rules == {"too-short"}
    assert "too-short" not in with_(STARVED, seconds=5.0).rules


def test_a_cell_that_leaves_the_gpu_idle_gets_no_finding() -> None:
    """Work on the host alone is not a GPU that starves."""
    assert cell(util=0.0, sm=0.0, cpu=1.0, main=1.0, place=OTHER).rules == set()


# -- what looks alike and is something else -------------------------------------------------


def test_waiting_for_the_gpu_is_no_host_work() -> None:
    """A cell that asks for its loss at each step spins on a core while the GPU works."""
    waits: dict[str, Value] = {"util": 0.75, "sm": 0.62, "cpu": 1.0, "main": 1.0}
    assert with_(waits, place=OTHER).rules == set()


def test_work_on_the_cpu_within_a_model_is_not_launching() -> None:
    """A full core in a model with large kernels is told without a claim about launches."""
    base: dict[str, Value] = {"util": 0.3, "sm": 0.25, "cpu": 1.0, "main": 1.0, "place": MODEL}
    finding, = with_(base).findings()
    assert finding.rule == "host-bound"
    assert "in a model or an optimizer" in finding.evidence
    assert with_(base, cpu=7.2, sm=0.002).rules == set()


def test_waits_that_workers_share_two_cores_for_are_not_storage() -> None:
    """Eight workers on two full cores are each idle by no fault of the storage."""
    rules = with_(
        STARVED, cores=2.0, workers=8.0, workers_cpu=1.9, children=1.9, cpu=0.1, main=0.1
    ).rules
    assert "input-bound-storage" not in rules
    assert "input-bound-workers" in rules


def test_a_main_thread_that_unpacks_is_not_waiting_for_its_workers() -> None:
    """Where the main thread itself is full in the loader, its workers are not the cause."""
    assert with_(STARVED, workers_cpu=0.2, main=0.97, cpu=1.0).rules == set()


def test_many_workers_are_not_told_to_be_fewer() -> None:
    """A number of workers is proposed only where it is larger than the present one."""
    finding = with_(STARVED, workers=96.0, workers_cpu=3.0, cores=128.0).finding(
        "input-bound-storage"
    )
    assert "num_workers" not in finding.advice


def test_workers_that_restart_are_counted_while_they_live() -> None:
    """The count is that of the time with workers, and keeping them is proposed."""
    finding = with_(
        STARVED, workers=lambda t: 4.0 if t % 4 > 2 else 0.0,
        workers_cpu=lambda t: 3.9 if t % 4 > 2 else 0.0, children=2.0,
    ).finding("input-bound-workers")
    assert "the 4 workers" in finding.evidence
    assert "persistent_workers=True" in finding.advice


def test_cores_count_as_idle_in_the_stretch_and_on_the_machine() -> None:
    """Cores that others use, or that were idle at another time, are not there."""
    base: dict[str, Value] = {**STARVED, "workers": 8.0, "workers_cpu": 7.8, "children": 7.8}
    assert "were idle" not in with_(base).finding("input-bound-workers").evidence
    half = with_(
        base, place=lambda t: LOADER if t < 6 else MODEL, util=lambda t: 0.3 if t < 6 else 1.0,
        sm=lambda t: 0.25 if t < 6 else 0.9, children=lambda t: 7.8 if t < 6 else 0.0,
    )
    assert "were idle" not in half.finding("input-bound-workers").evidence


@pytest.mark.parametrize(
    "figures",
    [
        {"util": 0.15, "cpu": 1.0, "main": 1.0, "place": OTHER},
        {"util": 0.2, "sm": 0.03, "cpu": 0.6, "main": 0.6, "place": MODEL},
    ],
    ids=["without SM counters", "quantised on the GPU"],
)
def test_loading_a_model_is_no_staircase(figures: dict[str, Value]) -> None:
    """Memory that only ever grows while the SMs do little is a model being loaded."""
    assert "staircase" not in cell(
        **figures, allocated=lambda t: (1 + max(0.0, 3 * t)) * GIB, waterfall=memory(40)
    ).rules


def test_loading_by_copies_is_no_waste() -> None:
    """Copies that stay on the GPU are neither wasted nor an empty GPU."""
    base: dict[str, Value] = {**BUSY, "util": 1.0, "sm": 0.0, "receive": 5 * GIB}
    assert with_(base, allocated=lambda t: 5 * GIB * max(0.0, min(t, 12.0))).rules == set()


def test_a_leak_with_long_steps_is_seen() -> None:
    """Steps of three seconds with large activations leave a floor that climbs."""
    made = with_(
        BUSY, seconds=60.0, waterfall=memory(60),
        allocated=lambda t: (20 + int(max(0.0, t) / 3) + sawtooth(0, 40, 3.0)(t)) * GIB,
    )
    assert "staircase" in made.rules


def test_the_clock_is_that_of_the_time_in_which_it_was_held() -> None:
    """Idle clocks of the rest of the cell are not blamed on the cap."""
    finding = with_(
        BUSY, reasons=lambda t: 4.0 if t < 3 else 1.0, clock=lambda t: 1.6e9 if t < 3 else 0.3e9,
        util=lambda t: 1.0 if t < 3 else 0.0, sm=lambda t: 0.9 if t < 3 else 0.0,
    ).finding("throttled")
    assert "1.60 GHz then, 19 % below" in finding.evidence


def test_children_are_not_told_to_be_ended() -> None:
    """Where this process has children, they can be those who hold the memory."""
    finding = with_(
        BUSY, others=8 * GIB, others_load=0.4, allocated=GIB, child_count=2.0
    ).finding("other-process")
    assert "children of this process are among them" in finding.evidence
    assert finding.advice == ""
    needed = with_(BUSY, others=110 * GIB, waterfall=memory(20, 0, 110)).finding("near-full")
    assert needed.advice == (
        "Other processes hold 110.0 GiB: end them, or take another GPU."
    )


def test_the_kernels_of_others_are_not_blamed_on_the_cell() -> None:
    """GPU-Util that others made is no sign of an empty or a waiting GPU of this cell."""
    others: dict[str, Value] = {"others": 8 * GIB, "others_load": 0.8, "allocated": GIB}
    assert with_(BUSY, util=0.9, sm=0.1, **others).rules == {"other-process"}
    assert with_(LAUNCHING, **{**others, "others_load": 0.1}).rules == {"other-process"}


def test_compiling_is_told_as_what_it_is() -> None:
    """Time in torch's compiler is a hint, and nothing is said of launches."""
    made = with_(LAUNCHING, place=lambda t: COMPILER if t < 9 else MODEL,
                 util=lambda t: 0.2 if t < 9 else 0.99, sm=lambda t: 0.1 if t < 9 else 0.9)
    assert made.rules == {"compiling"}
    assert "for 9.0 of 12.0 s" in made.finding("compiling").lead


def test_a_slice_without_utilization_can_be_well_used() -> None:
    """SM activity alone is enough to say that the GPU was well used."""
    base = {name: value for name, value in BUSY.items() if name != "util"}
    assert with_(base, absent={"gpu_utilization_ratio": "not on a MIG slice"}).rules == {"healthy"}


def test_the_processors_own_work_is_no_limit() -> None:
    """Cores that a cell without GPU work fills are its business."""
    assert cell(util=0.0, sm=0.0, cpu=8.0, main=1.0, place=OTHER).rules == set()
    assert cell(gpu=False, cpu=8.0, main=1.0, place=OTHER).rules == set()


def test_a_gpu_that_this_process_does_not_use_is_not_judged() -> None:
    """Of two GPUs only the one with tensors of ours is spoken of."""
    made = with_(STARVED, allocated=GIB)
    fill(made.recording, ticks(START - 1, START + 13), OTHER_GPU, gpu_utilization_ratio=0.99)
    fill(made.recording, ticks(START - 1, START + 13, 0.2), OTHER_GPU, "gpm",
         gpu_sm_active_ratio=0.05)
    fill(made.recording, ticks(START - 1, START + 13), OTHER_GPU, "allocator",
         torch_allocated_bytes=0.0)
    made.recording.add_device(OTHER_GPU)
    both = replace(made, summary=summarise(made.recording, made.summary.span))
    assert len(both.summary.gpus) == 2
    assert {finding.device for finding in both.findings()} == {GPU.id}


def test_what_others_do_on_a_gpu_is_not_the_cells() -> None:
    """Where this process does not use the GPU, neither waste nor "all is well" is claimed."""
    busy = with_(BUSY, own=False, others=30 * GIB, others_load=0.9)
    assert busy.rules == {"other-process"}
    assert "had to share" not in busy.finding("other-process").evidence
    for figures in (STARVED, LAUNCHING, BUSY):
        assert with_(figures, own=False).rules == set()


def test_a_gpu_that_was_lost_is_not_well() -> None:
    """A GPU that could not be read for a part of the cell is not said to be well used."""
    made = with_(BUSY)
    made.recording.add_gap(Gap(START + 5, START + 7, "nvml", GPU.id, "lost"))
    lost = replace(made, summary=summarise(made.recording, made.summary.span))
    assert lost.rules == set()


def test_unknown_workers_are_not_judged() -> None:
    """Where the workers' work is not known, neither they nor their transforms are blamed."""
    unknown = {name: v for name, v in STARVED.items() if name != "workers_cpu"}
    assert with_(unknown).rules == set()
    none = {name: v for name, v in unknown.items() if name != "workers"}
    assert "more workers" in with_(none).finding("input-bound-workers").advice


def test_no_free_byte_is_full() -> None:
    """A device without a free byte is as full as can be."""
    parts = (Part("live tensors", TOTAL - GIB), Part("driver", GIB))
    full = Waterfall(GPU, TOTAL, (MemoryState("highest", START + 1, parts),))
    assert "near-full" in with_(BUSY, waterfall=full, allocated=TOTAL - GIB).rules


EXTREMES = [
    dict.fromkeys((field.name for field in fields(Thresholds)), value) for value in (0.0, 2.0)
]


@pytest.mark.parametrize("thresholds", EXTREMES)
@pytest.mark.parametrize("seconds", [0.01, 0.7, 3.0, 12.0])
@pytest.mark.parametrize("left_out", [(), ("sm",), ("util",), ("cpu", "main"), ("place",),
                                      ("workers", "workers_cpu"), ("cpu", "sm", "workers_cpu")])
def test_no_threshold_and_no_missing_figure_breaks_a_rule(
    thresholds: dict[str, float], seconds: float, left_out: tuple[str, ...]
) -> None:
    """Whatever is absent and wherever the thresholds lie, the rules answer in whole sentences."""
    for base in (STARVED, LAUNCHING, BUSY, {**BUSY, "allocated": staircase}):
        figures = {name: v for name, v in base.items() if name not in left_out}
        made = cell(seconds, waterfall=memory(44), **figures)
        for finding in made.findings(parse_thresholds(thresholds)):
            assert "None" not in finding.message
            assert finding.lead.endswith(".")


def test_all_is_well_only_if_it_is_for_each() -> None:
    """Several well used GPUs share one line, and one that is not leaves none."""
    made = with_(BUSY, allocated=GIB)

    def beside(active: float) -> list[str]:
        recording = with_(BUSY, allocated=GIB).recording
        recording.add_device(OTHER_GPU)
        fill(recording, ticks(START - 1, START + 13), OTHER_GPU, gpu_utilization_ratio=0.98)
        fill(recording, ticks(START - 1, START + 13, 0.2), OTHER_GPU, "gpm",
             gpu_sm_active_ratio=active)
        fill(recording, ticks(START - 1, START + 13), OTHER_GPU, "allocator",
             torch_allocated_bytes=GIB)
        summary = summarise(recording, made.summary.span)
        return [finding.lead for finding in Cell(recording, summary, ()).findings()]

    assert beside(0.90) == ["All 2 GPUs were well used: SM active 90 to 94 %."]
    assert not any("well used" in lead for lead in beside(0.5))


# -- the contract ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_says_when_it_speaks(rule: Any) -> None:
    """A rule has a name of its own, words on when it speaks, and hides only rules there are."""
    names = [other.name for other in RULES]
    assert names.count(rule.name) == 1
    assert rule.when.endswith(".")
    assert rule.hides <= set(names)


COMBINED = [
    {**base, **more}
    for base, more in product(
        (STARVED, LAUNCHING, BUSY, {**BUSY, "util": 1.0, "sm": 0.0, "receive": 56 * GIB}),
        (
            {}, {"reasons": 4.0, "clock": 1.5e9}, {"others": 9 * GIB, "others_load": 0.3},
            {"allocated": staircase, "waterfall": memory(44)},
            {"ooms": lambda t: float(t > 6), "waterfall": memory(134)},
            {"used": 62 * GIB, "reserved": 61 * GIB, "allocated": 4 * GIB, "split": 0.0},
        ),
    )
]


@pytest.mark.parametrize("figures", COMBINED)
def test_findings_never_contradict_each_other(figures: dict[str, Any]) -> None:
    """One cause a stretch, "all is well" only alone or beside hints, the gravest first."""
    findings = cell(**figures).findings()
    rules = [finding.rule for finding in findings]
    causes = {
        "input-bound-workers", "input-bound-storage", "input-bound-no-workers", "copies",
        "launch-bound", "host-bound", "under-filled",
    }
    assert len(rules) == len(set(rules))
    assert len(causes & set(rules)) <= 1
    if "healthy" in rules:
        assert all(finding.severity in ("hint", "well") for finding in findings)
    grave = [SEVERITIES.index(finding.severity) for finding in findings]
    assert grave == sorted(grave)
    for finding in findings:
        assert finding.rule in {rule.name for rule in RULES}
        assert finding.lead.endswith(".")
        assert finding.short
        assert finding.message.count("`") % 2 == 0
        assert finding.short.count("`") % 2 == 0
        assert all(START <= a < b <= START + 12.0 for a, b in finding.stretches)


def test_thresholds_are_settings() -> None:
    """A threshold that is raised silences its rule; a wrong one is refused in one line."""
    made = with_(STARVED)
    assert not any(
        finding.rule.startswith("input-bound")
        for finding in made.findings(parse_thresholds({"loader_ratio": 1.1}))
    )
    with pytest.raises(SettingError, match="no threshold is called 'loader'; near it: loader_ra"):
        parse_thresholds({"loader": 1})
    with pytest.raises(SettingError, match="a number from 0 to 2"):
        parse_thresholds({"loader_ratio": "much"})
    with pytest.raises(SettingError, match="a number from 0 to 2"):
        parse_thresholds({"near_full_ratio": 1e9})
    with pytest.raises(SettingError, match="a number from 0 on"):
        parse_thresholds({"shortest_s": -1})
    assert parse_thresholds({}) == Thresholds()


def test_a_span_without_readings_gets_no_finding() -> None:
    """Nothing measured, nothing said."""
    made = cell()
    assert diagnose(made.recording, made.summary) == ()


def test_each_metric_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rules ask for a metric, its readings are taken from the recording once."""
    made = with_(STARVED, allocated=staircase, reasons=4.0, clock=1.5e9, waterfall=memory(44))
    asked: list[str] = []
    series = made.recording.series

    def count(metric: str, *more: Any) -> Any:
        asked.append(metric)
        return series(metric, *more)

    monkeypatch.setattr(made.recording, "series", count)
    assert made.findings()
    assert len(asked) == len(set(asked))
