"""The cell source tells where the main thread is, by files and functions on its stack only."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from fakes import START, FakeClock
from gpumagic.metrics import CELL_PLACES
from gpumagic.sample import HOST, Sample
from gpumagic.sources import cell
from gpumagic.sources.cell import DEEPEST, CellSource, Places, main_thread_stack
from needs import cannot

TORCH, IPYTHON = "/env/site-packages/torch", "/env/site-packages/IPython"
USER = ("/tmp/ipykernel_7/1.py", "<module>", "")
LOADER = f"{TORCH}/utils/data/dataloader.py"
# The bodies have what torch's have: a call of _get_data, or of the fetcher.
WAITING = [
    (LOADER, "_try_get_data", "self._data_queue.get()"),
    (LOADER, "_get_data", "self._try_get_data()"),
    (LOADER, "_next_data", "self._get_data()"),
]
LOADING = (LOADER, "_next_data", "self._dataset_fetcher.fetch(1)")
STEP = (f"{TORCH}/optim/adam.py", "step", "")
RUN_CODE = (f"{IPYTHON}/core/interactiveshell.py", "run_code", "")
KERNEL = [("/lib/asyncio/base_events.py", "run_forever", ""), ("/lib/runpy.py", "_run_code", "")]


def code(filename: str, name: str, body: str = "") -> CodeType:
    """Make the code of a function in a file."""
    if name == "<module>":
        return compile("pass", filename, "exec")
    made = compile(f"def {name}(self=None):\n    {body or 'pass'}", filename, "exec")
    return next(const for const in made.co_consts if isinstance(const, CodeType))


def stack(*frames: tuple[str, str, str]) -> list[CodeType]:
    return [code(*frame) for frame in frames]


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([USER], 0),
        ([*WAITING, USER], 1),
        ([WAITING[1], USER], 1),
        ([WAITING[2], USER], 1),
        ([("/lib/dataset.py", "__getitem__", ""), LOADING, USER], 2),
        ([(LOADER, "__next__", "self._next_data()"), USER], 0),
        ([(f"{TORCH}/cuda/__init__.py", "synchronize", ""), USER], 3),
        ([(f"{TORCH}/cuda/streams.py", "synchronize", ""), USER], 3),
        ([(f"{TORCH}/accelerator/__init__.py", "synchronize", ""), USER], 3),
        ([(f"{TORCH}/cuda/streams.py", "wait_event", ""), USER], 0),
        ([(f"{TORCH}/cuda/__init__.py", "device_count", ""), USER], 0),
        ([(f"{TORCH}/nn/modules/module.py", "_call_impl", ""), USER], 4),
        ([(f"{TORCH}/autograd/__init__.py", "backward", ""), USER], 4),
        ([(f"{TORCH}/_dynamo/eval_frame.py", "compile_wrapper", ""), USER], 4),
        ([(f"{TORCH}/_inductor/output_code.py", "__call__", ""), USER], 4),
        ([STEP, USER], 4),
        ([(f"{TORCH}/serialization.py", "load", ""), USER], 0),
        ([(f"{TORCH}ish/nn/module.py", "forward", ""), USER], 0),
        ([("/home/me/torch/nn/module.py", "forward", ""), USER], 0),
        ([STEP, *WAITING, USER], 1),
        ([*WAITING, LOADING, STEP, USER], 1),
        ([STEP, LOADING, USER], 2),
        ([(f"{TORCH}/cuda/__init__.py", "synchronize", ""), STEP, USER], 3),
    ],
)
def test_the_first_place_that_applies_counts(
    frames: list[tuple[str, str, str]], place: int
) -> None:
    """Waiting for workers goes before loading, loading before the GPU, and that before a model."""
    assert Places(TORCH).of(stack(*frames)) == place
    assert place in CELL_PLACES
    with_shell = Places(TORCH, IPYTHON, shell=True)
    assert with_shell.of(stack(*frames, RUN_CODE, *KERNEL)) == place


def test_paths_of_windows_are_read() -> None:
    """Backslashes separate folders as slashes do."""
    folder = r"C:\env\Lib\site-packages\torch"
    places = Places(folder, r"C:\env\Lib\site-packages\IPython", shell=True)
    run_code = (r"C:\env\Lib\site-packages\IPython\core\interactiveshell.py", "run_code", "")
    windows = [(name.replace("/", "\\"), function, body) for name, function, body in (
        *(("utils/data/dataloader.py", f, b) for _, f, b in WAITING), ("nn/modules/a.py", "f", ""),
    )]
    frames = [(f"{folder}\\{name}", function, body) for name, function, body in windows]
    assert places.of(stack(*frames, run_code)) == 1
    assert places.of(stack(frames[-1], run_code)) == 4


def test_with_a_shell_a_cell_runs_while_its_code_is_on_the_stack() -> None:
    """Between cells nothing is told; what lies beneath the cell's code is not in the cell."""
    places = Places(TORCH, IPYTHON, shell=True)
    assert places.of(stack(*KERNEL)) is None
    assert places.of(stack(STEP, *KERNEL)) is None
    assert places.of(stack((RUN_CODE[0], "run_cell", ""), *KERNEL)) is None
    assert places.of(stack(USER, RUN_CODE, *KERNEL)) == 0
    assert places.of(stack(USER, RUN_CODE, STEP, *KERNEL)) == 0


def test_without_a_shell_the_program_is_a_script() -> None:
    """A script runs all the time, in an event loop of its own too."""
    assert Places(TORCH).of(stack(STEP, *KERNEL)) == 4
    assert Places().of(stack(*KERNEL)) == 0


def test_a_stack_that_is_cut_off_is_a_cells() -> None:
    """A kernel that waits has no such depth, so the place counts though run_code is not seen."""
    places = Places(TORCH, IPYTHON, shell=True)
    deep = stack(STEP, *[USER] * (DEEPEST - 1))
    assert places.of(deep) == 4
    assert places.of(deep[:-1]) is None


def test_the_known_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook has a file for each cell that was run; no more than so many are remembered."""
    monkeypatch.setattr(cell, "_MOST_FILES", 3)
    places = Places(TORCH)
    for number in range(10):
        assert places.of(stack((f"/tmp/{number}.py", "f", ""), STEP)) == 4
        assert len(places._kinds) <= 3


def package(folder: str, **more: object) -> SimpleNamespace:
    return SimpleNamespace(__file__=f"{folder}/__init__.py", **more)


def test_what_is_imported_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once torch is imported or a shell started, files seen before are looked at anew."""
    for name in ("torch", "IPython", "IPython.core.interactiveshell"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    places = Places()
    places.follow_imports()
    assert places.of(stack(STEP)) == 0
    monkeypatch.setitem(sys.modules, "torch", package(TORCH))
    places.follow_imports()
    assert places.of(stack(STEP)) == 4
    started = SimpleNamespace(initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "IPython", package(IPYTHON))
    monkeypatch.setitem(
        sys.modules, "IPython.core.interactiveshell", SimpleNamespace(InteractiveShell=started)
    )
    places.follow_imports()
    assert places.of(stack(STEP)) is None
    assert places.of(stack(STEP, RUN_CODE)) == 4
    started.initialized = lambda: False
    places.follow_imports()
    assert places.of(stack(STEP)) == 4


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Run something in another thread, as the sampler does, and return what it returns."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


async def take(source: CellSource) -> list[Any]:
    return [record async for record in source.read(FakeClock())]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a shell that another test has left in this process."""
    monkeypatch.delitem(sys.modules, "IPython.core.interactiveshell", raising=False)


@pytest.mark.usefixtures("script")
def test_a_reading_is_one_sample_of_the_host() -> None:
    """The main thread of a script is in other code, at the time of the clock."""
    source = CellSource()
    assert source.devices() == []
    source.open()
    (device,) = source.devices()
    assert (device.id, device.absent) == (HOST, {})
    (sample,) = in_a_thread(lambda: asyncio.run(take(source)))
    assert sample == Sample(START, HOST, "cell", {"cell_place_state": 0.0})
    source.close()
    source.close()


def test_the_stack_is_the_main_threads_innermost_first() -> None:
    """Read from another thread, the stack has this test's frame, and DEEPEST frames at most."""
    def down(depth: int) -> list[CodeType]:
        return down(depth - 1) if depth else in_a_thread(main_thread_stack)

    names = [code.co_name for code in down(5)]
    assert names.count("down") == 6
    assert names.index("in_a_thread") < names.index("down") < len(names)
    assert len(down(DEEPEST)) == DEEPEST


class Thing:
    """Stands for a tensor of the user's."""


@pytest.mark.usefixtures("script")
def test_a_reading_keeps_nothing_of_the_users_alive() -> None:
    """What a function of the user's held is gone when it returns, in the middle of a reading."""
    looked, done = threading.Event(), threading.Event()
    source = CellSource()
    source.open()
    samples: list[Any] = []

    async def look() -> None:
        reading = source.read(FakeClock())
        samples.append(await reading.__anext__())
        looked.set()
        done.wait(20)
        await reading.aclose()  # type: ignore[attr-defined]

    def work() -> weakref.ref[Thing]:
        thing = Thing()
        thread.start()
        looked.wait(20)
        return weakref.ref(thing)

    thread = threading.Thread(target=lambda: asyncio.run(look()))
    left = work()
    alive = left() is not None
    done.set()
    thread.join()
    assert len(samples) == 1
    assert not alive


def test_without_the_gil_the_place_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's frames may go away while they are followed, so they are left alone."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    source = CellSource()
    source.open()
    (device,) = source.devices()
    assert "GIL" in device.absent["cell_place_state"]
    assert asyncio.run(take(source)) == []


LOOK = """
import asyncio, json, multiprocessing, sys, threading, time
from gpumagic.sources.cell import CellSource, Places
from gpumagic.sources.host import HostSource

def read(source):
    async def take():
        return [record.values async for record in source.read(time.time)]
    return asyncio.run(take())

def in_a_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]

source = CellSource()
source.open()

def place():
    # The main thread waits for the thread that looks.
    values = in_a_thread(lambda: read(source))
    return values[0]["cell_place_state"] if values else None
"""

TORCH_SCRIPT = LOOK + """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, go=None):
        self.go, self.seen = go, []
    def __len__(self):
        return 2
    def __getitem__(self, index):
        if self.go is None:
            self.seen.append(place())
        else:
            self.go.wait(60)
            begun = time.process_time()
            while index and time.process_time() - begun < 0.5:
                pass
        return float(index)

class Model(torch.nn.Linear):
    def forward(self, batch):
        seen["model"] = place()
        return super().forward(batch)

class Optimizer(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.register_step_pre_hook(lambda *_: seen.update(optimizer=place()))

def wait_for_workers(method, seen):
    context = multiprocessing.get_context(method)
    go = context.Event()
    batches = iter(DataLoader(Numbers(go), num_workers=2, multiprocessing_context=context))
    host = HostSource()

    def look():
        until = time.time() + 60
        host.open()
        count = 0
        while count < 2 and time.time() < until:
            count = read(host)[0]["workers_count"]
            time.sleep(0.1)
        seen["count"] = count
        host.open()
        read(host)
        while seen.get("waiting") != 1 and time.time() < until:
            values = read(source)
            seen["waiting"] = values[0]["cell_place_state"] if values else None
        go.set()

    thread = threading.Thread(target=look)
    thread.start()
    next(batches)
    thread.join()
    next(batches)
    time.sleep(0.3)
    seen["shares"] = in_a_thread(lambda: read(host))[0]
    del batches

if __name__ == "__main__":
    seen = {}
    wait_for_workers(sys.argv[1], seen)
    numbers = Numbers()
    list(DataLoader(numbers))
    seen["loading"] = numbers.seen
    model = Model(1, 1)
    model(torch.ones(1)).backward()
    Optimizer(model.parameters()).step()
    # The functions are there, GPU or not.
    places = Places()
    places.follow_imports()
    seen["gpu"] = [
        places.of([function.__code__])
        for function in (
            torch.cuda.synchronize, torch.cuda.Stream.synchronize, torch.cuda.Event.synchronize
        )
    ]
    seen["user"] = place()
    print(json.dumps(seen))
"""


def run(text: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a script in a process of its own and return what it prints."""
    file = folder / "script.py"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, str(file), *arguments], capture_output=True, text=True, timeout=180,
        env={**os.environ, "PYTHONPATH": str(Path(cell.__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="names of processes on Linux only")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_real_dataloader_is_seen(tmp_path: Path, method: str) -> None:
    """torch's own code leads to each place, and its workers are counted and compared."""
    if importlib.util.find_spec("torch") is None:
        cannot("needs torch")
    seen = run(TORCH_SCRIPT, tmp_path, method)
    assert (seen["count"], seen["waiting"]) == (2, 1)
    assert seen["loading"] == [2, 2]
    assert seen["gpu"] == [3, 3, 3]
    assert (seen["model"], seen["optimizer"], seen["user"]) == (4, 4, 0)
    shares = seen["shares"]
    assert shares["workers_busiest_cpu_ratio"] > shares["workers_idlest_cpu_ratio"]
    assert shares["workers_cpu_ratio"] == pytest.approx(
        shares["workers_busiest_cpu_ratio"] + shares["workers_idlest_cpu_ratio"]
    )


SHELL_SCRIPT = LOOK + """
from IPython.core.interactiveshell import InteractiveShell
seen = {"script": place()}
shell = InteractiveShell.instance()
shell.user_ns.update(place=place, seen=seen, source=source, read=read)
seen["between"] = place()
cells = '''
seen["cell"] = place()
---
def down(depth):
    return down(depth - 1) if depth else place()
seen["deep"] = down(90)
---
import asyncio
await asyncio.sleep(0)
seen["resumed"] = place()
loop = asyncio.get_running_loop()
seen["awaiting"] = await loop.run_in_executor(None, lambda: (time.sleep(0.2), read(source))[1])
'''
shell.user_ns["time"] = time
for text in cells.split("---"):
    shell.run_cell(text).raise_error()
print(json.dumps(seen))
"""


def test_a_real_shell_runs_cells(tmp_path: Path) -> None:
    """IPython's cells are seen while they run, async ones included, and nothing else is."""
    if importlib.util.find_spec("IPython") is None:
        cannot("needs IPython")
    assert run(SHELL_SCRIPT, tmp_path) == {
        "script": 0, "between": None, "cell": 0, "deep": 0, "resumed": 0, "awaiting": [],
    }
