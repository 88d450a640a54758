"""Out of memory: torch's texts are read, and what is said and advised follows from evidence."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes import GIB
from gpumagic.memory.live import (
    ChildProcess,
    DeviceMemory,
    Holder,
    LiveStorage,
    PinnedCache,
    Remainder,
)
from gpumagic.memory.shortage import (
    Request,
    Shortage,
    is_out_of_memory,
    names_bound_by,
    names_read_by,
    parse,
    shortage_of,
)
from gpumagic.memory.stats import AllocatorStats
from gpumagic.views.shortage import shortage_html, shortage_text, shortage_words

MIB = 1 << 20
UNREACHABLE = "not reachable from Python"

TAIL = (
    "If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation"
    " for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html"
    "#environment-variables)"
)
NEW_TAIL = TAIL.replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def size(number: float, unit: int = GIB) -> int:
    return round(number * unit)


def message(
    asked: str = "16.00 GiB", free: str = "9.66 GiB", *, total: str = "139.80 GiB",
    unallocated: str = "1.20 GiB", allowed: str = "", tail: str = TAIL,
) -> str:
    """Return what torch 2.11 says."""
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {total} of"
        f" which {free} is free. Including non-PyTorch memory, this process has 125.00 GiB memory"
        f" in use. {allowed}Of the allocated memory 117.90 GiB is allocated by PyTorch, and"
        f" {unallocated} is reserved by PyTorch but unallocated. {tail}"
    )


# -- which errors ---------------------------------------------------------------------------


def error_type(name: str, module: str, base: type[BaseException] = RuntimeError) -> Any:
    return type(name, (base,), {"__module__": module})


TORCH = error_type("OutOfMemoryError", "torch")


@pytest.mark.parametrize(
    "error",
    [
        TORCH("anything"),
        error_type("OutOfMemoryError", "torch.cuda")("anything"),
        error_type("Derived", "user", TORCH)("anything"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"),
        RuntimeError("HIP out of memory. Tried to allocate 256.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
                     "Cuda failure 2 'out of memory'"),
    ],
)
def test_errors_that_say_so(error: BaseException) -> None:
    """torch's own type counts, and so do the texts of CUDA and its libraries."""
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("out of memory"),
        ValueError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate"),
        error_type("OutOfMemoryError", "pyarrow")("no memory"),
        KeyboardInterrupt(),
    ],
)
def test_errors_that_do_not(error: BaseException) -> None:
    """Other errors, of the host's memory too, are not taken for the GPU's."""
    assert not is_out_of_memory(error)


def raised(outer: BaseException, *, suppressed: bool = False, cause: bool = False) -> BaseException:
    try:
        try:
            raise TORCH(message())
        except TORCH as error:
            if cause:
                raise outer from error
            if suppressed:
                raise outer from None
            raise outer  # noqa: B904
    except BaseException as error:
        return error


def test_an_error_behind_the_error_counts() -> None:
    """What led to the error counts as a traceback shows it, and circles end."""
    assert is_out_of_memory(raised(ValueError("training failed"), cause=True))
    assert is_out_of_memory(raised(KeyError("x")))
    assert not is_out_of_memory(raised(KeyError("x"), suppressed=True))
    first, second = ValueError(), KeyError()
    first.__context__, second.__context__ = second, first
    assert not is_out_of_memory(first)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
def test_an_error_in_a_group_counts() -> None:
    """A member of a group says so for the group."""
    group = ExceptionGroup("several", [ValueError(), TORCH(message())])  # noqa: F821
    assert is_out_of_memory(group)
    assert not is_out_of_memory(ExceptionGroup("one", [ValueError()]))  # noqa: F821


def test_an_error_without_a_text_is_no_problem() -> None:
    """An error whose text cannot be had is not one of memory."""
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("mute")

    assert not is_out_of_memory(Mute())


# -- torch's texts --------------------------------------------------------------------------


def test_the_text_of_today() -> None:
    """All figures of torch's message are read, to the byte that the text tells."""
    assert parse(message()) == Request(
        size(16), 0, size(9.66), size(139.8), None, size(117.9), None, size(1.2), size(125), 0,
    )
    assert parse(message(tail=NEW_TAIL)).new_variable
    assert not parse(message()).new_variable


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (  # 2.1 misspells the capacity, and still advises max_split_size_mb
            "CUDA out of memory. Tried to allocate 5.96 GiB. GPU 0 has a total capacty of 23.69"
            " GiB of which 5.25 GiB is free. Process 2006998 has 256.00 MiB memory in use."
            " Including non-PyTorch memory, this process has 18.17 GiB memory in use. Of the"
            " allocated memory 17.88 GiB is allocated by PyTorch, and 0 bytes is reserved by"
            " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
            " max_split_size_mb to avoid fragmentation.",
            {"asked_bytes": size(5.96), "device_index": 0, "total_bytes": size(23.69),
             "unallocated_bytes": 0, "others_bytes": 256 * MIB, "own_bytes": size(18.17)},
        ),
        (  # 2.3, which writes the number as a character; this one is lost on the way
            "CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.34"
            " GiB of which 160.81 MiB is free. Process 47694 has 44.17 GiB memory in use. Of the"
            " allocated memory 43.36 GiB is allocated by PyTorch, and 396.27 MiB is reserved by"
            " PyTorch but unallocated.",
            {"asked_bytes": 224 * MIB, "device_index": None, "free_bytes": size(160.81, MIB),
             "others_bytes": None, "own_bytes": None},
        ),
        (
            "CUDA out of memory. Tried to allocate 224.00 MiB. GPU \x01 has a total capacity of"
            " 44.34 GiB of which 0 bytes is free. ",
            {"device_index": 1, "free_bytes": 0},
        ),
        (  # several processes
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.55"
            " GiB of which 1.65 GiB is free. Process 5906 has 293.38 MiB memory in use. Process"
            " 343080 has 9.54 MiB memory in use. Including non-PyTorch memory, this process has"
            " 21.22 GiB memory in use. Of the allocated memory 20.04 GiB is allocated by PyTorch,"
            " and 903.34 MiB is reserved by PyTorch but unallocated.",
            {"device_index": 1, "others_bytes": size(293.38, MIB) + size(9.54, MIB)},
        ),
        (  # a fraction, and CUDA graphs
            "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 80.00"
            " GiB of which 60.00 GiB is free. Including non-PyTorch memory, this process has 20.00"
            " GiB memory in use. 20.00 GiB allowed; Of the allocated memory 19.00 GiB is allocated"
            " by PyTorch, with 3.00 GiB allocated in private pools (e.g., CUDA Graphs), and 10.00"
            " KiB is reserved by PyTorch but unallocated.",
            {"asked_bytes": 512, "allowed_bytes": size(20), "private_bytes": size(3),
             "allocated_bytes": size(16), "unallocated_bytes": 10 << 10},
        ),
        (  # a difference without a sign that went below zero
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00"
            " GiB of which 0 bytes is free. Of the allocated memory 14.51 GiB is allocated by"
            " PyTorch, and 17179869184.00 GiB is reserved by PyTorch but unallocated.",
            {"allocated_bytes": size(14.51), "unallocated_bytes": None},
        ),
        (  # 2.0 and before
            "CUDA out of memory. Tried to allocate 10.73 GiB (GPU 3; 8.00 GiB total capacity;"
            " 17.20 GiB already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch)"
            " If reserved memory is >> allocated memory try setting max_split_size_mb",
            {"asked_bytes": size(10.73), "device_index": 3, "total_bytes": size(8),
             "free_bytes": 0, "allocated_bytes": size(17.2),
             "unallocated_bytes": size(19.15) - size(17.2)},
        ),
        (  # cudaMallocAsync
            "Allocation on device 2 would exceed allowed memory. (out of memory)\nCurrently"
            " allocated     : 9.43 GiB\nRequested               : 640.00 MiB\nDevice limit        "
            "    : 11.59 GiB\nFree (according to CUDA): 7.12 MiB\nPyTorch limit (set by"
            " user-supplied memory fraction)\n                        : 17179869184.00 GiB",
            {"asked_bytes": 640 * MIB, "device_index": 2, "free_bytes": size(7.12, MIB),
             "total_bytes": size(11.59), "allocated_bytes": size(9.43)},
        ),
        ("CUDA error: out of memory", {"asked_bytes": None, "free_bytes": None}),
        ("", {"device_index": None, "others_bytes": None}),
    ],
)
def test_the_texts_of_other_versions(text: str, known: dict[str, Any]) -> None:
    """Each version's text is read, and what it does not tell is None."""
    request = parse(text)
    assert {name: getattr(request, name) for name in known} == known


def test_a_text_that_was_passed_on_is_read() -> None:
    """The text can stand inside another, as a DataLoader's worker or a library writes it."""
    text = f"Caught OutOfMemoryError in replica 0.\nOriginal Traceback:\n  ...\n{message()}\n"
    assert parse(text) == parse(message())


# -- which names ----------------------------------------------------------------------------

CELL = """\
model = build()
a, (b, *rest) = pair()
for step, batch in enumerate(loader):
    loss = (
        model(batch)
    )
    total += loss
    if (n := len(batch)) > 3:
        big = [inner for inner in batch]
with open(path) as file, lock:
    data: bytes = file.read()
def f():
    hidden = 1
obj.attr = table[0] = last = g(h := 2)
declared: int
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (1, ("model",)),
        (2, ("a", "b", "rest")),
        (3, ("step", "batch")),
        (5, ("loss",)),
        (7, ()),
        (8, ("n",)),
        (9, ("big",)),
        (10, ("file",)),
        (11, ("data",)),
        (13, ()),
        (14, ("last", "h")),
        (15, ()),
        (99, ()),
        (None, ("model", "a", "b", "rest", "step", "batch", "loss", "n", "big", "file", "data",
                "last", "h")),
    ],
)
def test_the_names_of_a_statement(line: int | None, names: tuple[str, ...]) -> None:
    """The innermost statement at a line says which names it binds; functions keep theirs."""
    assert names_bound_by(CELL, line) == names


@pytest.mark.parametrize("source", ["%matplotlib inline\nx = 1", "x = ", "x = '\0'", ""])
def test_a_cell_that_is_no_python_binds_nothing(source: str) -> None:
    """Magics, errors and empty cells give no names."""
    assert names_bound_by(source, 1) == ()
    assert names_read_by(source) == frozenset()


def test_other_statements_bind_too() -> None:
    """try, match and async bodies are entered; an augmented walrus counts, del does not."""
    source = (
        "try:\n    x = 1\nexcept E as e:\n    y = 2\nelse:\n    z = 3\nfinally:\n    w = 4\n"
        "x += (v := 5)\ndel x\nmatch y:\n    case 1:\n        u = 6\n"
    )
    assert names_bound_by(source, None) == ("x", "y", "z", "w", "v", "u")
    assert names_bound_by(source, 13) == ("u",)


def test_the_names_that_a_cell_reads() -> None:
    """Names that are only bound are not read."""
    assert names_read_by("loss = train_step(model, batch)") == {"train_step", "model", "batch"}


# -- the judgement --------------------------------------------------------------------------


def gib(number: float) -> int:
    return size(number)


def variable(*names: str, holds: float, detail: str = "your variables") -> Holder:
    return Holder("variable", names, detail, gib(holds), 3, names, f"%gpufree {' '.join(names)}")


def traceback(holds: float, cell: int = 17) -> Holder:
    return Holder(
        "traceback", (f"traceback of [{cell}]",), "frame train_step(): acts, loss", gib(holds), 4,
        ("acts", "loss"), "%gpufree", cell,
    )


CYCLE = Holder("cycle", ("cycle",), "Trainer ⇄ LossLog, unreachable", gib(6.4), 2, (), "%gpufree")
OUT = Holder("output", ("Out[7]",), "value shown by [7]", gib(7.6), 1, (), "%gpufree --out", 7)
STATS = AllocatorStats(
    0, "GPU-1", "NVIDIA H200", 0, gpu_memory_total_bytes=gib(139.8), gpu_memory_used_bytes=gib(130),
)


def tensor(
    name: str, holds: float, holder: str = "traceback of [17]", *, shape: tuple[int, ...] = (64, 9),
    graph: bool = False, dtype: str = "torch.float32",
) -> LiveStorage:
    return LiveStorage(
        name, "", "cuda:0", gib(holds), gib(holds), shape, dtype, 1, holder, has_graph=graph
    )


def device(
    *holders: Holder, storages: Sequence[LiveStorage] = (), remainders: Sequence[Remainder] = (),
    stats: AllocatorStats | None = STATS, pinned: PinnedCache | None = None,
    children: Sequence[ChildProcess] = (),
) -> DeviceMemory:
    ordered = tuple(sorted(holders, key=lambda holder: -holder.bytes))
    return DeviceMemory(
        "cuda:0", ordered, tuple(storages), len(storages), stats, tuple(remainders), pinned,
        tuple(children),
    )


MOCK = device(
    variable("model", "optimizer", holds=36.6), variable("batch", holds=24.8), traceback(41.2),
    CYCLE, OUT,
)


def judged(found: DeviceMemory = MOCK, text: str | None = None, **given: Any) -> Shortage:
    given.setdefault("environment", {})
    return shortage_of(TORCH(message() if text is None else text), found, **given)


def words(short: Shortage) -> str:
    return " ".join(shortage_words(short))


def test_the_request_fits_after_gpufree() -> None:
    """Where the traceback, cycles and the cache make enough room, the panel says so."""
    short = judged(returnable=gib(5.8), cell=17)
    assert short.gives_back_bytes == gib(41.2) + gib(6.4) + gib(5.8)
    assert (short.fits, short.lasts, short.short_bytes) == (True, True, 0)
    assert short.again_bytes == gib(41.2)
    assert short.remedy == ""
    assert short.advice == ()
    assert words(short) == (
        "16.0 GiB asked for, 9.7 GiB free on GPU 0. The largest holders are the traceback of [17]"
        " (41.2), `model` and `optimizer` (36.6), `batch` (24.8). `%gpufree` gives back 53.4 GiB,"
        " and the 16.0 fit."
    )


def test_what_the_cell_had_made_it_makes_again() -> None:
    """The request alone fitting is not enough: the cell needs its own memory once more."""
    found = device(variable("model", holds=80), traceback(41.2))
    short = judged(found, cell=17)
    assert (short.fits, short.lasts) == (True, False)
    # 16.0 + 41.2 - 9.66 - 41.2
    assert short.short_bytes == size(16) - size(9.66)
    assert "gives back 41.2 GiB, but the cell needs 41.2 of it again: 6.3 GiB short; with" in (
        words(short)
    )
    # What an older cell's traceback holds does not come again.
    assert judged(found, cell=18).lasts is True


def test_the_least_that_makes_room_is_proposed() -> None:
    """Of the names that would make it fit, the smallest is proposed; those in use are not."""
    found = device(
        variable("model", holds=60), variable("cache", holds=20), variable("big", holds=30),
        variable("tiny", holds=1), traceback(2),
    )
    short = judged(found, cell=17)
    assert (short.fits, short.remedy, short.remedy_fits) == (False, "%gpufree cache", True)
    assert "2.0 GiB: 4.3 GiB short; with `%gpufree cache` this request fits." in words(short)
    assert judged(found, needed={"cache"}, cell=17).remedy == "%gpufree big"
    assert judged(found, needed={"cache", "big", "model"}, cell=17).remedy == ""


def test_displayed_values_can_make_room() -> None:
    """What Out keeps is proposed where it is the least that suffices."""
    short = judged(device(variable("model", holds=60), OUT))
    assert (short.remedy, short.remedy_fits) == ("%gpufree --out", True)


def test_a_request_beyond_the_device_never_fits() -> None:
    """A request larger than the device gets no remedy, and nothing is promised."""
    short = judged(text=message("160.00 GiB"))
    assert (short.never, short.fits, short.lasts, short.remedy) == (True, False, False, "")
    assert words(short).endswith("At most 139.8 GiB can be had on GPU 0: this can never fit.")


def test_nothing_to_give_back() -> None:
    """Without tracebacks, cycles and cache, the panel says how much is missing."""
    short = judged(device(variable("model", holds=120)), needed={"model"})
    assert short.gives_back_bytes == 0
    assert words(short) == (
        "16.0 GiB asked for, 9.7 GiB free on GPU 0. The largest holder is `model` (120.0)."
        " `%gpufree` has nothing to give back: 6.3 GiB short."
    )


def test_whole_segments_can_be_asked_for() -> None:
    """A function says what the driver would get; it is given the holders that go."""
    asked: list[list[str]] = []

    def returnable(holders: Sequence[Holder]) -> int:
        asked.append(sorted(h.name for h in holders))
        return gib(5) * len(holders)

    short = judged(device(variable("x", holds=9), CYCLE, traceback(3)), returnable=returnable)
    assert short.gives_back_bytes == gib(10)
    assert asked[0] == ["cycle", "traceback of [17]"]
    # 9.66 + 10.0 hold the request and the 3.0 that come again: nothing else is asked.
    assert (short.lasts, len(asked)) == (True, 1)


def test_an_old_object_is_in_the_way() -> None:
    """A name that is about to be bound again, and holds much, is named with all its holders."""
    found = device(
        variable("model", "optimizer", holds=12), variable("x", holds=99), traceback(2)
    )
    short = judged(found, bound=("x0", "model"), cell=17)
    assert short.rebinding == ("model", gib(12))
    assert (short.remedy, short.remedy_fits) == ("%gpufree model optimizer", True)
    assert words(short) == (
        "16.0 GiB asked for, 9.7 GiB free on GPU 0. The largest holders are `x` (99.0), the old"
        " `model` and `optimizer` (12.0), the traceback of [17] (2.0). The old `model` is still"
        " there while the new one is made: `%gpufree model optimizer` first. `%gpufree` gives back"
        " 2.0 GiB: 4.3 GiB short; without the old `model` this request fits."
    )


def test_a_small_old_object_is_not_in_the_way() -> None:
    """An old loss of a few bytes is no reason."""
    found = device(variable("loss", holds=0.001), variable("x", holds=99))
    assert judged(found, bound=("loss",)).rebinding is None


def test_an_old_object_that_is_not_enough() -> None:
    """Where the old object's memory does not suffice either, that is said."""
    found = device(variable("model", holds=3), variable("x", holds=99))
    short = judged(found, bound=("model",))
    assert (short.rebinding, short.remedy_fits) == (("model", gib(3)), False)
    assert words(short).endswith("6.3 GiB short, and without the old `model` too.")


def test_what_autograd_saved_goes_too() -> None:
    """Where tensors that go have graphs, what they saved may be enough: nothing is promised."""
    found = device(
        traceback(2), variable("x", holds=90),
        storages=[tensor("acts", 2, graph=True)], remainders=[Remainder(UNREACHABLE, gib(20))],
    )
    short = judged(found, cell=17)
    assert (short.saved_bytes, short.fits, short.lasts) == (gib(20), None, None)
    assert words(short).endswith("gives back 2.0 GiB, and up to 20.0 GiB that autograd saved.")
    assert "memory not reachable from Python (20.0)" in words(short)


def test_a_message_without_figures() -> None:
    """Where a library failed, the driver's figures say what is free, and nothing is judged."""
    text = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    short = judged(text=text)
    assert (short.asked_bytes, short.free_bytes) == (None, gib(139.8) - gib(130))
    assert (short.fits, short.lasts) == (None, None)
    assert words(short).startswith("Out of memory on GPU 0: 9.8 GiB free. The largest holders")
    assert words(short).endswith("`%gpufree` gives back 47.6 GiB.")
    bare = judged(device(stats=None), text)
    assert (bare.label, bare.free_bytes, bare.total_bytes) == ("cuda:0", None, None)
    assert words(bare) == "Out of memory on cuda:0. `%gpufree` has nothing to give back."


def test_the_device_is_called_as_the_driver_calls_it() -> None:
    """Where torch and NVML number a GPU differently, both are said."""
    other = AllocatorStats(0, "GPU-1", "NVIDIA H200", 3)
    assert judged(device(stats=other)).label == "GPU 3 (cuda:0)"


def test_small_requests_have_their_own_unit() -> None:
    """Bytes in another unit than the request's carry it."""
    found = device(variable("x", holds=9), traceback(0.5))
    short = judged(found, message("20.00 MiB", "0 bytes"))
    assert words(short).startswith(
        "20.0 MiB asked for, nothing free on GPU 0. The largest holders are `x` (9.0 GiB), the"
        " traceback of [17] (512.0)."
    )


# -- advice ---------------------------------------------------------------------------------


def advice(*args: Any, **given: Any) -> str:
    return " | ".join(judged(*args, **given).advice)


def test_fragments_are_evidence_for_expandable_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache had the room in pieces, the setting of that torch is named, unless on."""
    monkeypatch.setattr("gpumagic.memory.shortage_advice.torch_version", lambda: "2.6.0+cu124")
    text = message(unallocated="18.00 GiB")
    assert advice(text=text) == (
        "18.0 GiB lie cached in pieces between live tensors: set"
        " `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` before torch starts."
    )
    newer = message(unallocated="18.00 GiB", tail=NEW_TAIL)
    assert "`PYTORCH_ALLOC_CONF=expandable" in advice(text=newer)
    on = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}
    assert advice(text=text, environment=on) == ""
    assert advice(text=message(unallocated="6.00 GiB")) == ""
    # torch's cache and what is free make the room together.
    assert "6.5 GiB lie cached" in advice(text=message(unallocated="6.50 GiB"))


def test_a_newer_torch_is_told_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable's new name is used from torch 2.10 on, whatever the message says."""
    monkeypatch.setattr("gpumagic.memory.shortage_advice.torch_version", lambda: "2.10.0+cu130")
    assert "`PYTORCH_ALLOC_CONF=" in advice(text=message(unallocated="18.00 GiB"))


def test_a_fraction_is_named() -> None:
    """Where the process's own limit is in the way, the limit is named, and what is left of it."""
    text = message("3.00 GiB", "60.00 GiB", allowed="120.00 GiB allowed; ")
    short = judged(text=text)
    assert short.advice == (
        "This process may use 120.0 GiB of GPU 0: raise"
        " `torch.cuda.set_per_process_memory_fraction`.",
    )
    # 120.0 - 117.9 - 1.2
    assert short.free_bytes == pytest.approx(gib(0.9), abs=MIB)
    assert short.total_bytes == gib(120)


def test_other_processes_are_named_with_their_bytes() -> None:
    """Another process counts if its memory would make room, or is a tenth of the device."""
    assert advice(others_bytes=gib(40)) == (
        "Other processes hold 40.0 GiB of GPU 0: end them, or take another GPU."
    )
    assert "hold 7.0 GiB" in advice(others_bytes=gib(7))
    assert advice(others_bytes=gib(4.1)) == ""
    text = message().replace("Including", "Process 12 has 30.00 GiB memory in use. Including")
    assert "hold 30.0 GiB" in advice(text=text)


def test_children_are_not_called_others() -> None:
    """Where this process's children hold most of it, they are named with their PIDs."""
    found = device(variable("x", holds=9), children=[ChildProcess(77, "python w.py", gib(30))])
    assert advice(found, others_bytes=gib(31)) == (
        "Children of this process hold 30.0 GiB of GPU 0: PID 77 `python w.py`."
    )


def losses(count: int, shape: tuple[int, ...] = ()) -> list[LiveStorage]:
    return [
        tensor(f"losses[{i}]", 512 / GIB, "losses", shape=shape, graph=True) for i in range(count)
    ]


def test_a_list_that_keeps_graphs_is_named() -> None:
    """A list of tensors with graphs is named where much memory is autograd's, or it has grown."""
    holder = variable("losses", holds=0.001, detail="your variable, list of 40")
    saved = [Remainder(UNREACHABLE, gib(30))]
    expected = (
        "`losses` is a list whose tensors keep the graphs that they came from: append"
        " `loss.item()`."
    )
    assert advice(device(holder, storages=losses(3), remainders=saved)) == expected
    assert "`loss.detach()`" in advice(device(holder, storages=losses(3, (4,)), remainders=saved))
    assert advice(device(holder, storages=losses(1), remainders=saved)) == ""
    assert advice(device(holder, storages=losses(3))) == ""
    one = variable("losses", holds=0.001, detail="your variable, dict of 40")
    assert advice(device(one, storages=losses(3), remainders=saved)) == ""
    plain = [tensor("losses[0]", 1, "losses"), tensor("losses[1]", 1, "losses")]
    assert advice(device(holder, storages=plain, remainders=saved)) == ""


def test_growth_is_evidence_too() -> None:
    """A list that had fewer tensors at each earlier look keeps them, by what was seen."""
    def at(count: int) -> DeviceMemory:
        holder = variable("losses", holds=count, detail=f"your variable, list of {count}")
        return device(holder, storages=losses(count))

    assert "`losses` is a list" in advice(at(3), history=[at(1), at(2)])
    assert advice(at(3), history=[at(3), at(3)]) == ""
    assert advice(at(3), history=[at(1), at(2), at(1), at(2), at(2)]) == ""


ACTS = [tensor(f"acts[{i}]", 10, shape=(64, 1000), graph=True) for i in range(4)]


def test_what_the_batch_fills_is_evidence_for_a_smaller_one() -> None:
    """Where most of the traceback has the same rows, a smaller batch helps; training adds up."""
    found = device(
        variable("model", "optimizer", holds=80), traceback(40), storages=ACTS
    )
    assert judged(found, cell=17).advice == (
        "Halve the batch and accumulate gradients over two: most of the traceback's 40.0 GiB have"
        " 64 rows.",
        "`torch.autocast` would halve most of the traceback's 40.0 GiB of float32.",
    )
    half = [tensor(s.name, 10, shape=s.shape, graph=True, dtype="torch.bfloat16") for s in ACTS]
    short = judged(device(*found.holders, storages=half), cell=17)
    assert len(short.advice) == 1
    # After %gpufree it fits: nothing has to become smaller.
    assert judged(device(traceback(40), storages=ACTS), cell=18).advice == ()


def test_without_gradients_inference_mode_is_advised() -> None:
    """Graphs that nobody seems to want are evidence for inference mode; training is against it."""
    failed = replace(traceback(40), detail="frame main(): acts")
    found = device(variable("net", holds=80), failed, storages=ACTS)
    first = "If nothing is trained here, `torch.inference_mode()` keeps no activations."
    assert judged(found, cell=17).advice[0] == first
    for trains in (
        device(*found.holders, variable("optimizer", holds=1), storages=ACTS),
        device(*found.holders, storages=[*ACTS, tensor("net[0].weight.grad", 1, "net")]),
        device(*found.holders[:1], traceback(40), storages=ACTS),
    ):
        assert first not in judged(trains, cell=17).advice
    without = [tensor(s.name, 10, shape=s.shape) for s in ACTS]
    assert judged(device(*found.holders, storages=without), cell=17).advice == (
        "Halve the batch: most of the traceback's 40.0 GiB have 64 rows.",
    )


def test_the_functions_of_the_traceback_are_evidence() -> None:
    """An error that came through a training step is one of training."""
    def train_step() -> None:
        raise TORCH(message())

    with pytest.raises(TORCH) as caught:
        train_step()
    failed = replace(traceback(40), detail="frame main(): acts")
    found = device(variable("net", holds=80), failed, storages=ACTS)
    short = shortage_of(caught.value, found, cell=17, environment={})
    assert not any("inference_mode" in text for text in short.advice)


def test_tensors_that_share_no_batch_are_no_evidence() -> None:
    """One tensor, or tensors of different lengths, say nothing of a batch."""
    found = [variable("optimizer", holds=80), traceback(40)]
    single = [tensor("weights", 40, shape=(64, 1000))]
    mixed = [tensor(f"t{i}", 10, shape=(60 + i, 10)) for i in range(4)]
    for storages in (single, mixed):
        assert judged(device(*found, storages=storages), cell=17).advice == ()


def test_advice_is_two_sentences_at_most() -> None:
    """The most certain come first."""
    found = device(variable("optimizer", holds=80), traceback(40), storages=ACTS)
    text = message(unallocated="18.00 GiB")
    short = judged(found, text, others_bytes=gib(30), cell=17)
    assert len(short.advice) == 2
    assert short.advice[0].startswith("18.0 GiB lie cached")
    assert short.advice[1].startswith("Other processes hold 30.0 GiB")


# -- the panel ------------------------------------------------------------------------------


def test_the_panel_as_html() -> None:
    """The first sentence is bold after the mark, names are code, a command has its ground."""
    page = shortage_html(judged(returnable=gib(5.8), cell=17))
    assert "<b>16.0 GiB asked for, 9.7 GiB free on GPU 0.</b> The largest holders are" in page
    assert "<code>model</code> and <code>optimizer</code> (36.6), <code>batch</code>" in page
    assert '<code class="c">%gpufree</code> gives back 53.4 GiB' in page
    assert page.count("<i>! </i>") == 1
    assert "<script" not in page


def test_the_panel_escapes_what_comes_from_outside() -> None:
    """Names, commands and advice cannot become markup or break a line."""
    evil = "x<img src=1>\n`y`"
    found = device(
        variable(evil, holds=90), children=[ChildProcess(7, "<b>`w`", gib(30))]
    )
    page = shortage_html(judged(found, others_bytes=gib(31)))
    assert "<img" not in page
    assert "<b>`" not in page
    body = page[page.index("</style>"):]
    assert re.findall(r"<(?!/?(?:style|p|b|i|code|div)\b)", body) == []


def test_the_panel_as_text() -> None:
    """The text is the same words without marks, in lines of at most 100 characters."""
    short = judged(returnable=gib(5.8), others_bytes=gib(40), cell=17)
    assert shortage_text(short) == (
        "! 16.0 GiB asked for, 9.7 GiB free on GPU 0. The largest holders are the traceback of [17]"
        " (41.2),\n"
        "  model and optimizer (36.6), batch (24.8). %gpufree gives back 53.4 GiB, and the 16.0"
        " fit.\n"
        "  Other processes hold 40.0 GiB of GPU 0: end them, or take another GPU."
    )


def test_the_panel_is_short() -> None:
    """Four sentences at most, before the advice."""
    for short in (
        judged(), judged(text=message("160.00 GiB")), judged(bound=("model",)),
        judged(device(traceback(2))), judged(device(), text="CUDA error: out of memory"),
    ):
        assert len(re.findall(r"\.(?: |$)", words(short))) <= 4
