"""Ways in which a notebook holds memory, each with its true holder: for a GPU and for the CPU.

The cells run in a real kernel. Memory is in units of ``UNIT`` bytes, so that the same story is
told with gigabytes on a GPU and with megabytes on the CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["SCENARIOS", "SETUP", "Scenario", "for_device"]

SETUP = """\
import gc, json, signal, sys, threading
import torch
import gpumagic
DEVICE, UNIT = {device!r}, {unit}
def big(units=1):
    return torch.zeros(int(units * UNIT), dtype=torch.uint8, device=DEVICE)
def out_of_memory():
    if DEVICE == "cuda":
        torch.empty(1 << 42, dtype=torch.uint8, device=DEVICE)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0 has a"
        " total capacity of 139.80 GiB of which 9.66 GiB is free.")
gc.disable()
"""
"""The first cell; the collector is off, so that a cycle stays until somebody collects it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Some cells, who holds memory after them, and what gives it back.

    ``kind``, ``holder`` and ``tensor`` are of the true holder: its kind, and texts that its
    names and its tensor's name begin with. ``units`` is what it holds. ``free`` is what is run
    then: afterwards ``left`` units are still held. ``last`` cells end what runs. ``fails`` are
    the numbers of cells that are meant to fail, ``where`` is in the tensor's place, ``pins`` says
    that the tensor is a small part of its storage, and ``stdin`` answers ``%debug``.
    """

    name: str
    cells: tuple[str, ...]
    kind: str
    holder: str
    tensor: str
    units: float
    free: str = "%gpufree"
    left: float = 0
    last: tuple[str, ...] = ()
    fails: tuple[int, ...] = ()
    where: str = ""
    pins: bool = False
    stdin: tuple[str, ...] = field(default=())


_MAGIC = re.compile(r"(?m)^(%gpu(?:free|mem)\b.*)$")


def for_device(cell: str, device: str) -> str:
    """Return a cell whose lines of ``%gpufree`` and ``%gpumem`` are for a device."""
    return cell if device == "cuda" else _MAGIC.sub(r"\1 --cpu", cell)


_NESTED = """\
def inner(x):
    acts = [big(), big()]
    out_of_memory()
def outer(x):
    hidden = big()
    inner(x)
outer(1)"""

_TRAIN = """\
def train(steps):
    for step in range(steps):
        loss = big()
        if step == 2:
            signal.raise_signal(signal.SIGINT)
train(5)"""

_CHAIN = """\
def load():
    raw = big(2)
    out_of_memory()
def prepare():
    scratch = big()
    try:
        load()
    except torch.OutOfMemoryError as error:
        raise RuntimeError("no room") from error
prepare()"""

_CYCLE = """\
class Trainer: pass
class LossLog: pass
def run():
    trainer, log = Trainer(), LossLog()
    trainer.log, log.trainer = log, trainer
    log.acts = big(3)
run()"""

_CLOSURE = """\
def make_step():
    cache = {"acts": big(2)}
    def step(x):
        return cache, x
    return step
step = make_step()"""

_GENERATOR = """\
def batches():
    pool = big(2)
    for i in range(3):
        yield pool, i
stream = batches()
index = next(stream)[1]"""

_THREAD = """\
ready, done = threading.Event(), threading.Event()
def worker():
    buffer = big(2)
    ready.set()
    done.wait()
thread = threading.Thread(target=worker, name="loader")
thread.start()
ready.wait()"""

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "out of memory inside nested functions", (_NESTED,), "traceback", "traceback of [",
        "acts[", 3, fails=(0,), where="inner()",
    ),
    Scenario(
        "an interrupted training loop", (_TRAIN,), "traceback", "traceback of [", "loss", 1,
        fails=(0,), where="train()",
    ),
    Scenario(
        "%debug was visited", (_NESTED, "%debug"), "traceback", "traceback of [", "acts[", 3,
        fails=(0,), stdin=("up", "p hidden.shape", "q"),
    ),
    Scenario(
        "a chain of errors", (_CHAIN,), "traceback", "traceback of [", "raw", 3, fails=(0,),
        where="load()",
    ),
    Scenario(
        "an error raised while another was handled",
        (_CHAIN.replace(" from error", ""),), "traceback", "traceback of [", "raw", 3,
        fails=(0,),
    ),
    Scenario(
        "a displayed tensor", ("x = big(2)\nx", "del x"), "output", "Out[", "Out[", 2,
        free="%gpufree --out",
    ),
    Scenario(
        "a displayed tensor stays without --out", ("x = big(2)\nx", "del x"), "output", "Out[",
        "Out[", 2, left=2,
    ),
    Scenario(
        "what %reset -f out leaves", ("x = big(2)\nx", "%reset -f out", "del x"), "output", "_",
        "_", 2, free="%gpufree --out",
    ),
    Scenario("a cycle", (_CYCLE,), "cycle", "cycle", "LossLog.acts", 3),
    Scenario(
        "a closure", (_CLOSURE,), "variable", "step", "cache['acts']", 2, free="%gpufree step",
        where="the closure of step()",
    ),
    Scenario(
        "a generator", (_GENERATOR,), "variable", "stream", "pool", 2, free="%gpufree stream",
        where="batches()",
    ),
    Scenario(
        "a thread's local", (_THREAD,), "frame", "worker()", "buffer", 2, left=2,
        last=("done.set()\nthread.join()",), where="worker()",
    ),
    Scenario(
        "a model bound twice", ("model = torch.nn.Linear(16, 16)\nmodel.extra = big(2)\n"
                                "net = model",),
        "variable", "model, net", "model.extra", 2, free="%gpufree model", left=2,
        last=("%gpufree net",),
    ),
    Scenario(
        "a slice that pins a storage", ("row = big(4)[:1024]",), "variable", "row", "row", 4,
        free="%gpufree row", pins=True,
    ),
    Scenario(
        "an element of a list of results",
        ("results = [{'logits': big(0.5)} for _ in range(4)]",), "variable", "results",
        "results[", 2, free="%gpufree results",
    ),
    Scenario(
        "an error that the user keeps",
        (f"{_NESTED.rsplit(chr(10), 1)[0]}\ntry:\n    outer(1)\n"
         "except torch.OutOfMemoryError as error:\n    kept = error",),
        "variable", "kept", "acts[", 3, left=3, where="inner()",
        last=("%gpufree kept",),
    ),
)
"""The cells are given for a GPU; see :func:`for_device`."""
