"""What sampling costs: the share of a core, by source and for a wake-up that reads nothing.

``python benchmarks/sampling_cost.py OUT_DIR [--gpus N] [--seconds S]`` takes about a minute. It
reads this machine's GPUs (and torch's allocator where torch can be imported), or without a GPU
the tests' stub library and a constant answer for the allocator (Linux and a C compiler). The
table is printed and written to ``OUT_DIR/sampling_cost.json``.

A session samples for a live view alone, and for one beside a profile. Of each:

* *thread*: processor time of the sampler's thread; *process*: of the whole process, whose other
  threads wait. Both are shares of a core.
* by source: the processor time of its readings alone, in microseconds a reading and as a share;
  *append* is the recording's part, and *the rest* is waking up and keeping time.
* *wake-ups*: how often the thread was put to sleep in a second, where the system counts it.

*empty* is a sampler whose one source reads nothing: what a wake-up costs at that pace.

Figures of one run compare with each other; those of two machines do not.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from watching import stub_machine, wake_torch

from gpumagic.clock import Clock
from gpumagic.recording import Recording
from gpumagic.sample import Device, Gap, Sample
from gpumagic.sampler import Sampler
from gpumagic.session import Session
from gpumagic.sources import Source, make_sources

SETTLE_S = 2.5


class Meter:
    """Counts readings and their processor time."""

    def __init__(self) -> None:
        self.used_s = 0.0
        self.count = 0


class Metered:
    """An awaitable whose steps a meter counts, without what runs while it waits."""

    def __init__(self, awaitable: Awaitable[Any], meter: Meter) -> None:
        self._awaitable = awaitable
        self._meter = meter

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._awaitable.__await__()
        while True:
            begun = time.thread_time()
            try:
                waits = steps.send(None)  # type: ignore[attr-defined]
            except StopIteration as end:
                return end.value
            finally:
                self._meter.used_s += time.thread_time() - begun
            yield waits


class MeteredSource:
    """A source whose readings a meter counts."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.name = source.name
        self.period_s = source.period_s
        self.meter = Meter()
        self.open, self.close, self.devices = source.open, source.close, source.devices

    async def read(self, now: Callable[[], float]) -> AsyncIterator[Sample | Gap]:
        """Yield what the source yields."""
        # The source looks at its period to tell a stall.
        self.source.period_s = self.period_s
        self.meter.count += 1
        steps = aiter(self.source.read(now))
        while True:
            try:
                record = await Metered(anext(steps), self.meter)
            except StopAsyncIteration:
                return
            yield record


class Empty:
    """A source that reads nothing."""

    name = "empty"

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s

    def open(self) -> None:
        """Do nothing."""

    def devices(self) -> Sequence[Device]:
        """Return no device."""
        return ()

    async def read(self, now: Callable[[], float]) -> AsyncIterator[Sample | Gap]:
        """Yield nothing."""
        return
        yield

    def close(self) -> None:
        """Do nothing."""


def wake_ups(sampler: Sampler) -> int | None:
    """Return how often a sampler's thread has been put to sleep, or ``None``."""
    thread = sampler._thread
    try:
        text = Path(f"/proc/self/task/{thread.native_id if thread else 0}/status").read_text()
    except OSError:
        return None
    found = [line.split()[1] for line in text.splitlines() if line.startswith("voluntary")]
    return int(found[0]) if found else None


def watched(sampler: Sampler, seconds: float) -> dict[str, Any]:
    """Let a sampler run; return what its thread and the process have used, as shares."""
    sampler.read_now([], 5.0)  # brings the count of processor time up to date
    slept = wake_ups(sampler)
    begun, thread, process = time.perf_counter(), sampler.cpu_s, time.process_time()
    time.sleep(seconds)
    woken = wake_ups(sampler)
    sampler.read_now([], 5.0)
    passed = time.perf_counter() - begun
    return {
        "thread": (sampler.cpu_s - thread) / passed,
        "process": (time.process_time() - process) / passed,
        "wake_ups_per_s": None if None in (slept, woken) else (woken - slept) / passed,
    }


def empty(period_s: float, seconds: float) -> dict[str, Any]:
    """Measure wake-ups that read nothing."""
    sampler = Sampler(Recording(), [Empty(period_s)], Clock().now)
    sampler.start()
    time.sleep(0.5)
    found = {"period_s": period_s, **watched(sampler, seconds)}
    sampler.stop()
    return found


def sampled(selection: Sequence[str], holders: Sequence[str], seconds: float) -> dict[str, Any]:
    """Measure a session's sampling for some holders, as a whole and by source."""
    made: list[MeteredSource] = []

    def make(names: Sequence[str]) -> list[Source]:
        made.extend(MeteredSource(source) for source in make_sources(names))
        return list(made)

    def run(session: Session) -> Sampler:
        for holder in holders:
            session.lease(holder, gpus=selection)
        time.sleep(SETTLE_S)
        assert session.sampler is not None
        return session.sampler

    session = Session()
    try:  # nothing stands between: this is the cost that counts
        found = watched(run(session), seconds)
    finally:
        session.close()
    session = Session(make=make)
    try:
        sampler = run(session)
        appends, append = Meter(), session.recording.append

        def timed_append(sample: Sample) -> None:
            begun = time.thread_time()
            append(sample)
            appends.used_s += time.thread_time() - begun
            appends.count += 1

        session.recording.append = timed_append  # type: ignore[method-assign]
        before = {one.name: (one.meter.used_s, one.meter.count) for one in made}
        begun = time.perf_counter()
        time.sleep(seconds)
        passed = time.perf_counter() - begun
        found["sources"] = {
            one.name: {
                "period_s": one.period_s, "reason": sampler.reasons.get(one.name, ""),
                **table_row(one.meter.used_s - used, one.meter.count - count, passed),
            }
            for one in made for used, count in [before[one.name]]
        }
        found["append"] = table_row(appends.used_s, appends.count, passed)
    finally:
        session.close()
    parts = [*found["sources"].values(), found["append"]]
    found["rest"] = found["thread"] - sum(part["share"] for part in parts)
    return found


def table_row(used_s: float, count: int, passed: float) -> dict[str, float]:
    """Return microseconds a reading, readings a second and the share of a core."""
    return {
        "each_us": used_s / count * 1e6 if count else 0.0, "per_s": count / passed,
        "share": used_s / passed,
    }


def percent(share: float) -> str:
    """Write a share of a core."""
    return f"{share * 100:7.3f} %"


def show(name: str, found: dict[str, Any]) -> None:
    """Print what was measured of one case."""
    woken = found["wake_ups_per_s"]
    print(
        f"{name}: thread {percent(found['thread'])}, process {percent(found['process'])}"
        + ("" if woken is None else f", {woken:.1f} wake-ups/s"), flush=True,
    )
    for part, row in [*found.get("sources", {}).items(), ("append", found.get("append"))]:
        if row is None:
            continue
        every = f"every {row['period_s']:g} s" if "period_s" in row else ""
        print(
            f"  {part:10} {percent(row['share'])}  {row['each_us']:8.1f} us  "
            f"{row['per_s']:5.1f}/s  {every} {row.get('reason', '')}".rstrip()
        )
    if "rest" in found:
        print(f"  {'the rest':10} {percent(found['rest'])}", flush=True)


def gpus_here() -> int:
    """Count the GPUs of this machine."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count: int = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception:
        return 0
    return count


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for sampling_cost.json")
    parser.add_argument("--gpus", type=int, help="number of GPUs (those here, 2 of the stub)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each run")
    options = parser.parse_args()
    here = gpus_here()
    gpus = options.gpus or here or 2
    if here:
        wake_torch()
    results: dict[str, Any] = {
        "python": platform.python_version(), "machine": platform.machine(),
        "driver": "real" if here else "stub", "gpus": gpus,
    }
    print(f"{gpus} GPUs, {results['driver']} driver, Python {results['python']}")
    with nullcontext() if here else stub_machine(gpus):
        selection = [str(index) for index in range(gpus)]
        for name, holders in (
            ("live view", ("watch",)), ("live view and profile", ("watch", "profile")),
        ):
            results[name] = sampled(selection, holders, options.seconds)
            show(name, results[name])
    for period in (0.1, 0.2):
        name = f"empty, every {period:g} s"
        results[name] = empty(period, min(options.seconds, 6.0))
        show(name, results[name])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sampling_cost.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
