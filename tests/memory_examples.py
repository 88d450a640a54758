"""Reports of what holds memory, as a search would give them, for views and whoever draws them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpumagic.memory.live import (
    ChildProcess,
    DeviceMemory,
    Holder,
    LiveStorage,
    MemoryReport,
    PinnedCache,
    Remainder,
)
from gpumagic.memory.naming import Name
from gpumagic.memory.release import Freed, Step
from gpumagic.memory.stats import AllocatorReport, AllocatorStats
from gpumagic.units import GIB, KIB, MIB

CUDA = "cuda:0"
CONTEXT_TEXT = "CUDA context and other non-torch memory of this process"


@dataclass(frozen=True, slots=True)
class ToldStats(AllocatorStats):
    """Figures with what the driver leaves free and keeps for itself."""

    gpu_memory_free_bytes: int | None = None
    gpu_memory_reserved_bytes: int | None = None


def gib(number: float) -> int:
    """Return GiB as bytes."""
    return round(number * GIB)


def stats(
    index: int = 0,
    *,
    allocated: float = 117.7,
    cached: float = 7.0,
    returnable: float | None = 5.8,
    used: float | None = 129.5,
    others: float | None = 4.1,
    context: float | None = 0.7,
    driver: float | None = 0.6,
    total: float | None = 139.8,
    text: str = CONTEXT_TEXT,
    nvml_index: int | None = None,
) -> AllocatorStats:
    """Return figures of one H200; sizes are in GiB and what is ``None`` was not told."""
    reserved = allocated + cached
    own = None if context is None else reserved + context
    free = None if None in (used, driver, total) else (total or 0) - (used or 0) - (driver or 0)
    sizes = {
        "torch_allocated_bytes": allocated,
        "torch_requested_bytes": allocated * 0.99,
        "torch_active_bytes": allocated,
        "torch_reserved_bytes": reserved,
        "torch_cached_bytes": cached,
        "torch_returnable_bytes": returnable,
        "torch_inactive_split_bytes": None if returnable is None else cached - returnable,
        "gpu_memory_total_bytes": total,
        "gpu_memory_used_bytes": used,
        "gpu_memory_free_bytes": free,
        "gpu_memory_reserved_bytes": driver,
        "gpu_process_memory_bytes": own,
        "gpu_other_processes_memory_bytes": others,
        "outside_torch_bytes": context,
    }
    return ToldStats(
        index,
        f"{index + 1:08d}-2222-4333-8444-555555555555",
        "NVIDIA H200",
        nvml_index=index if nvml_index is None else nvml_index,
        torch_alloc_retries_count=1,
        torch_ooms_count=1,
        torch_fragmentation_ratio=0.01,
        outside_torch_text=text,
        **{name: gib(size) for name, size in sizes.items() if size is not None},
    )


TRACEBACK = Holder(
    "traceback", ("traceback of [17]",), "frame train_step(): acts, loss", gib(41.2), 34,
    ("acts[0]", "acts[1]", "loss"), "%gpufree", 17,
)
OUTPUT = Holder(
    "output", ("Out[7]",), "value shown by [7], also _", gib(7.6), 1, ("Out[7]",),
    "%gpufree --out", 7,
)
CYCLE = Holder(
    "cycle", ("cycle",), "Trainer ⇄ LossLog, unreachable", gib(6.4), 3, (), "%gpufree"
)
MODEL = Holder(
    "variable", ("model", "optimizer"), "your variables", gib(36.6), 870,
    ("model.layers[0].weight",),
)
BATCH = Holder(
    "variable", ("batch",), "your variable, list of 512", gib(24.8), 512, ("batch[3]",),
    "%gpufree batch",
)
REST = Remainder("not reachable from Python", gib(1.1), "autograd or C++")
PINNED = PinnedCache(gib(1.2), 1, ("batch[3]",))


def storages() -> tuple[LiveStorage, ...]:
    """Return some storages: a plain one, a slice that pins, one with other names, a graph's."""
    return (
        LiveStorage("batch[0]", "", CUDA, gib(8.0), gib(8.0), (512, 2048, 2048), "float32", 1,
                    "batch"),
        LiveStorage("acts[0]", "train_step(), [17] line 3", CUDA, gib(4.0), gib(4.0),
                    (64, 4096, 4096), "float32", 2, "traceback of [17]", has_graph=True),
        LiveStorage("model.layers[0].weight", "", CUDA, gib(2.0), gib(2.0), (16384, 32768),
                    "float32", 1, "model, optimizer",
                    also=("optimizer.param_groups[0]['params'][0]",)),
        LiveStorage("corner", "", CUDA, gib(1.0), 4 * KIB, (32, 32), "float32", 1, "corner"),
        LiveStorage("scale", "", CUDA, 4, 4, (), "float32", 1, "scale"),
    )


def device(**more: object) -> DeviceMemory:
    """Return one GPU with holders of each kind; ``more`` replaces fields."""
    whole = DeviceMemory(
        CUDA, (TRACEBACK, MODEL, BATCH, OUTPUT, CYCLE), storages(), 1420, stats(), (REST,), PINNED
    )
    return replace(whole, **more)  # type: ignore[arg-type]


def report(*devices: DeviceMemory, **more: object) -> MemoryReport:
    """Return a report of some devices, or of :func:`device`."""
    whole = MemoryReport(devices or (device(),), objects=184_220, seconds=0.21)
    return replace(whole, **more)  # type: ignore[arg-type]


def allocator(*figures: AllocatorStats) -> AllocatorReport:
    """Return the allocator's report of some GPUs, or of one."""
    return AllocatorReport(figures or (stats(),))


def steps(*, outputs: bool = True) -> tuple[Step, ...]:
    """Return what a release does: the cache's step counts all that goes back to the driver."""
    found = [
        Step("traceback", "traceback of [17]", TRACEBACK.detail, {CUDA: gib(41.2)}, True),
        Step("cycle", "cycle", CYCLE.detail, {CUDA: gib(6.4)}),
    ]
    if outputs:
        found.append(Step("output", "Out[7]", OUTPUT.detail, {CUDA: gib(7.6)}))
    returned = sum(step.bytes[CUDA] for step in found) + gib(5.8)
    return (*found, Step("cache", "cached blocks", "torch", {CUDA: returned}))


def dry_run(*, outputs: bool = True) -> Freed:
    """Return a dry run: all that is not the user's would go, and outputs if asked for."""
    stays = (MODEL, BATCH) if outputs else (MODEL, BATCH, OUTPUT)
    return Freed(steps(outputs=outputs), report(), report(device(holders=stays)), dry_run=True)


def released(*, outputs: bool = False) -> Freed:
    """Return a release that was done; outputs stay unless asked for."""
    stays = (MODEL, BATCH) if outputs else (MODEL, BATCH, OUTPUT)
    kept = 0.0 if outputs else 7.6
    after = device(
        holders=stays,
        allocator=stats(allocated=62.5 + kept, cached=1.2, returnable=0.0, used=68.5 + kept),
    )
    return Freed(steps(outputs=outputs), report(), report(after))


def asked() -> Freed:
    """Return a release of a name whose memory a traceback keeps, of one of two GPUs."""
    step = Step("name", "model", "your variable, Net", {CUDA: 0})
    before = report(
        device(holders=(replace(MODEL, roots=("model",)), TRACEBACK)),
        DeviceMemory("cuda:1", allocator=stats(1, allocated=0, cached=0, used=0.6, context=None)),
        cut="not all that your variables hold was looked through",
    )
    after = report(device(holders=(TRACEBACK,)), *before.devices[1:], cut=before.cut)
    return Freed((step,), before, after, asked=("model",), still={"model": ("traceback of [17]",)})


def with_children() -> MemoryReport:
    """Return a report with two workers that hold memory of the GPU, one of them untold."""
    workers = (
        ChildProcess(4242, "python -c from multiprocessing.spawn import spawn_main", gib(2.1)),
        ChildProcess(4243, "python train.py --rank 1"),
    )
    return report(device(children=workers))


def many() -> MemoryReport:
    """Return a report with more holders than are shown one by one."""
    small = tuple(
        Holder("variable", (f"part_{n}",), "your variable, Tensor", (240 - 4 * n) * MIB, 1,
               command=f"%gpufree part_{n}")
        for n in range(20)
    )
    return report(device(holders=(MODEL, *small)))


def on_cpu() -> MemoryReport:
    """Return a report of tensors in main memory."""
    holders = (
        replace(BATCH, bytes=gib(3.2), command="%gpufree --cpu batch"),
        replace(TRACEBACK, bytes=300 * MIB, command="%gpufree --cpu"),
    )
    return report(DeviceMemory("cpu", holders, (replace(storages()[0], device="cpu"),), 12))


def chains() -> tuple[Name, ...]:
    """Return three ways to one tensor, the longest first."""
    return (
        Name("hidden", "the closure of hook(), [9] line 2, held by model",
             ("model", "._forward_hooks", "[12]", "hidden in the closure of hook(), [9] line 2")),
        Name("acts[0]", "train_step(), [17] line 3",
             ("traceback of [17]", "acts in train_step(), [17] line 3", "[0]"),
             kind="traceback"),
        Name("batch[3]", "", ("batch", "[3]"), True),
    )
