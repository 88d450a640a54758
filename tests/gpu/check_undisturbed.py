"""Show that a running watch and profile disturb nothing: no CUDA context, no poisoned fork.

Run with torch, with or without a GPU: ``python tests/gpu/check_undisturbed.py``. Each check runs
in a process of its own, as CUDA's state cannot be undone. Prints a line a check and exits with
1 if one fails.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time


class Squares:
    """A data set whose items tell which threads their worker has."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[int, int]:
        ours = sum(t.name.startswith("gpumagic") and t.is_alive() for t in threading.enumerate())
        return index * index, ours


def _watched() -> object:
    from gpumagic.session import current

    session = current()
    lease = session.lease("check", gpus="usable")
    assert session.sampler is not None
    assert session.sampler.running
    return lease


def loader(method: str) -> None:
    """Load with four workers under a watch and a profile; all items come, workers are clean."""
    import torch
    from torch.utils.data import DataLoader

    import gpumagic

    _watched()
    with gpumagic.profile("load"):
        for _ in range(2):
            items = DataLoader(
                Squares(), batch_size=8, num_workers=4, multiprocessing_context=method
            )
            squares, ours = [], 0
            for batch, threads in items:
                squares += batch.tolist()
                ours += int(threads.sum())
            assert sorted(squares) == [i * i for i in range(64)], squares
            assert ours == 0, f"{ours} items came from workers with a thread of ours"
    assert not torch.cuda.is_initialized(), "CUDA was initialised"


def no_context() -> None:
    """Watch and profile, then see that torch has not initialised CUDA and a fork can."""
    import torch

    import gpumagic

    _watched()
    with gpumagic.profile("nothing"):
        time.sleep(1.0)
    print(gpumagic.allocator_stats())
    print(gpumagic.free_memory())
    assert not torch.cuda.is_initialized(), "CUDA was initialised"
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_use_cuda, args=(queue,))
    child.start()
    result = queue.get(timeout=120)
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    assert result in ("cuda works", "no GPU"), result


def _use_cuda(queue: object) -> None:
    import torch

    try:
        if os.path.exists("/dev/nvidia0"):
            text = "cuda works" if int(torch.ones(4, device="cuda").sum()) == 4 else "wrong sum"
        else:
            text = "no GPU"
    except RuntimeError as error:
        text = f"{error}"
    queue.put(text)  # type: ignore[attr-defined]


def import_in_cell() -> None:
    """Import torch under a running sampler, which meets the half-imported module."""
    lease = _watched()
    assert "torch" not in sys.modules
    import torch

    from gpumagic.session import current

    sampler = current().sampler
    assert sampler is not None
    time.sleep(0.5)
    reasons = {k: v for k, v in sampler.reasons.items() if k == "allocator"}
    assert not reasons, reasons
    if os.path.exists("/dev/nvidia0"):
        kept = torch.ones(1 << 28, device="cuda")
        time.sleep(0.5)
        recording = current().recording
        gpu = next(d for d in recording.devices if d.torch_index == 0)
        latest = recording.latest("torch_allocated_bytes", gpu.id)
        assert latest is not None
        assert latest[1] == torch.cuda.memory_allocated(), latest
        del kept
    lease.release()  # type: ignore[attr-defined]


def plain_forks() -> None:
    """Fork fifty times beside a fast sampler; every child ends and has no sampler."""
    from gpumagic.session import current

    lease = current().lease("check", interval_s=0.02)
    for _ in range(50):
        pid = os.fork()
        if pid == 0:
            session = current()
            clean = session.sampler is None and not any(
                t.name.startswith("gpumagic") and t.is_alive() for t in threading.enumerate()
            )
            os._exit(0 if clean else 3)
        deadline = time.monotonic() + 20
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert status == 0, status
                break
            assert time.monotonic() < deadline, "a forked child hangs"
            time.sleep(0.002)
    sampler = current().sampler
    assert sampler is not None
    assert sampler.running
    lease.release()


CHECKS = {
    "loader fork": lambda: loader("fork"),
    "loader spawn": lambda: loader("spawn"),
    "no context": no_context,
    "import in a cell": import_in_cell,
    "plain forks": plain_forks,
}


def main() -> int:
    """Run all checks, or the one named; return the exit status."""
    if len(sys.argv) > 1:
        CHECKS[sys.argv[1]]()
        return 0
    failed = 0
    for name in CHECKS:
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", __file__, name],
            capture_output=True, text=True, timeout=300, check=False,
        )
        verdict = "ok" if done.returncode == 0 else "FAILED"
        failed += done.returncode != 0
        print(f"{name:18} {verdict}  {time.monotonic() - begun:.1f} s", flush=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-4000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
