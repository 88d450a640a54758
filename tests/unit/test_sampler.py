"""The sampler keeps its time, outlives its sources, ends when told to, and lets others fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time as real_time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

import gpumagic
from fakes import GPU, HOST_DEVICE, OTHER_GPU, START, FakeClock, FakeSource, drive
from gpumagic.clock import Clock
from gpumagic.errors import SourceUnavailable
from gpumagic.recording import MIN_BYTES, Recording
from gpumagic.sample import Device, Gap, Sample
from gpumagic.sampler import Sampler, Ticker


def make(*sources: FakeSource) -> tuple[Sampler, FakeClock]:
    """Make a sampler in fake time, whose sources see that time too."""
    time = FakeClock()
    for source in sources:
        source.clock = time
    return Sampler(Recording(), sources, time), time


def real(*sources: FakeSource) -> Sampler:
    return Sampler(Recording(), sources, Clock().now)


def rounded(times: list[float]) -> list[float]:
    return [round(t - START, 4) for t in times]


# -- time ------------------------------------------------------------------------------------


def test_deadlines_do_not_drift() -> None:
    """After a million ticks the deadline is where a multiplication puts it, and none is missed."""
    ticker = Ticker(START, 0.1, START)
    for _ in range(1_000_000):
        assert ticker.advance(ticker.deadline) == 0
    assert ticker.deadline == pytest.approx(START + 100_000.1, abs=1e-6)


@pytest.mark.parametrize(
    ("late", "missed", "next_tick"),
    [(-0.001, 0, 2), (0.0, 0, 2), (0.99, 0, 2), (1.0, 1, 3), (1.5, 1, 3), (2.0, 2, 4),
     (7.25, 7, 9)],
)
def test_missed_ticks_are_left_out(late: float, missed: int, next_tick: int) -> None:
    """The next deadline is the first tick after now and after the last; others are counted."""
    ticker = Ticker(64.0, 1.0, 64.0)
    assert ticker.deadline == 65.0
    assert ticker.advance(65.0 + late) == missed
    assert ticker.deadline == 64.0 + next_tick


@pytest.mark.parametrize("period", [0.1, 0.2, 0.25, 1.0])
def test_a_deadline_lies_after_now_and_no_further_than_a_period(period: float) -> None:
    """Whenever a ticker is made, its deadline is the next multiple of the period from the start."""
    for n in range(20_000):
        now = START + n * 0.05
        deadline = Ticker(START, period, now).deadline
        assert now < deadline <= now + period + 1e-6
        assert (deadline - START) / period == pytest.approx(round((deadline - START) / period))


def test_each_source_keeps_its_own_period() -> None:
    """A source is read at once and then at multiples of its period, whatever the others do."""
    quick, slow = FakeSource("nvml"), FakeSource("host", period_s=1.0, devices=[HOST_DEVICE])
    sampler, time = make(quick, slow)
    drive(sampler, time, 2.05)
    assert rounded(quick.times) == [round(n * 0.1, 4) for n in range(21)]
    assert rounded(slow.times) == [0, 1, 2]
    assert sampler.stats["nvml"].readings == 21
    assert (sampler.stats["nvml"].late, sampler.stats["nvml"].missed) == (0, 0)
    assert sampler.recording.periods == {"nvml": 0.1, "host": 1.0}


def test_a_late_reading_shifts_no_later_one() -> None:
    """A reading that takes 40 ms each time still begins at multiples of 100 ms."""
    source = FakeSource()
    sampler, time = make(source)
    source.work = lambda: time.advance(0.04)
    drive(sampler, time, 0.95)
    assert rounded(source.times) == [round(n * 0.1, 4) for n in range(10)]
    assert sampler.stats["nvml"].slowest_s == pytest.approx(0.04, abs=1e-6)
    assert sampler.stats["nvml"].missed == 0


def test_a_stall_is_counted() -> None:
    """Ticks that pass while a reading hangs are missed, the next reading is on the grid."""
    source = FakeSource()
    sampler, time = make(source)
    drive(sampler, time, 0.25, lambda: time.advance(0.5), 1.0)
    # Held up from 0.25 to 0.75: the tick at 0.3 is late, those from 0.4 to 0.7 are missed.
    assert rounded(source.times) == [0.0, 0.1, 0.2, 0.75, 0.8, 0.9, 1.0]
    assert sampler.stats["nvml"].late == 1
    assert sampler.stats["nvml"].missed == 4


def test_a_new_period_holds_at_once() -> None:
    """A source that waits for a far deadline does not keep a shorter period waiting."""
    source = FakeSource(period_s=60.0)
    time = FakeClock()
    sampler = Sampler(Recording(), [source], Clock().now)
    sampler.start()
    assert sampler.read_now(timeout_s=5)
    before = len(source.times)
    sampler.set_periods({"nvml": 0.01, "host": 5.0})
    deadline = real_time.monotonic() + 5
    while len(source.times) < before + 3 and real_time.monotonic() < deadline:
        real_time.sleep(0.005)
    sampler.stop()
    assert len(source.times) >= before + 3
    assert sampler.recording.periods == {"nvml": 0.01}
    assert time.now == START


def test_sources_stay_in_step_when_their_periods_change() -> None:
    """However periods have changed, what is due together is read in one wake-up."""
    sources = [FakeSource("nvml"), FakeSource("host", period_s=1.0, devices=[HOST_DEVICE])]
    sampler, time = make(*sources)

    def change(nvml: float, host: float) -> Callable[[], None]:
        def do() -> None:
            sampler.set_periods({"nvml": nvml, "host": host})
            # Only a sampler with a thread is told by itself.
            for worker in sampler._workers:
                worker.schedule()

        return do

    drive(sampler, time, 0.13, change(0.2, 0.4), 1.07, change(0.1, 1.0), 3.05)
    nvml, host = (rounded(source.times) for source in sources)
    assert nvml[:7] == [0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nvml[7:] == [round(1.1 + n * 0.1, 4) for n in range(20)]
    assert host == [0.0, 0.4, 0.8, 1.2, 2.0, 3.0]


def test_a_longer_period_does_not_put_off_the_next_reading() -> None:
    """The reading that was due comes when it was, and says how far it reaches from then on."""
    source = FakeSource()
    sampler, time = make(source)

    def slower() -> None:
        sampler.set_periods({"nvml": 5.0})
        sampler._workers[0].schedule()

    drive(sampler, time, 0.35, slower, 12)
    assert rounded(source.times) == [0.0, 0.1, 0.2, 0.3, 0.4, 5.0, 10.0]
    assert sampler.recording.breaks("nvml", GPU.id, START, START + 12) == []


# -- failures --------------------------------------------------------------------------------


def test_a_failing_source_is_a_gap_and_is_opened_again() -> None:
    """A failure is a gap with its reason; tries follow after 1, 2, 5, 10, 30, 60, 60 s."""
    source = FakeSource(open_error=SourceUnavailable("no driver: install one"))
    sampler, time = make(source)
    drive(sampler, time, 200)
    assert rounded(source.opened_at) == [0, 1, 3, 8, 18, 48, 108, 168]
    assert sampler.recording.gaps() == (Gap(START, None, "nvml", None, "no driver: install one"),)
    assert sampler.reasons == {"nvml": "no driver: install one"}
    assert isinstance(sampler.errors["nvml"], SourceUnavailable)
    assert sampler.errors["nvml"].__traceback__ is None
    assert sampler.stats["nvml"].failures == 8
    assert source.closed == 0


def test_others_go_on_while_one_fails() -> None:
    """A source that raises at each reading does not hold up another one."""
    bad, good = FakeSource("nvml"), FakeSource("host", period_s=1.0, devices=[HOST_DEVICE])
    bad.error = RuntimeError("boom")
    sampler, time = make(bad, good)
    drive(sampler, time, 5.5)
    assert rounded(good.times) == [0, 1, 2, 3, 4, 5]
    assert sampler.reasons == {"nvml": "RuntimeError: boom"}
    assert sampler.errors == {}
    assert bad.opened == bad.closed


def test_a_source_recovers() -> None:
    """Once a reading succeeds the gap ends, the reason goes, and the pauses begin anew."""
    source = FakeSource()
    sampler, time = make(source)

    def fail() -> None:
        source.error = OSError("gone")

    def mend() -> None:
        source.error = None

    drive(sampler, time, 0.15, fail, 0.35, mend, 1.95, fail, 2.05, mend, 3.05)
    gaps = [(round(g.start - START, 3), round((g.end or 0) - START, 3), g.reason)
            for g in sampler.recording.gaps()]
    assert gaps == [(0.2, 1.2, "OSError: gone"), (2.0, 3.0, "OSError: gone")]
    assert sampler.reasons == {}
    assert sampler.stats["nvml"].failures == 2
    assert source.opened == 3


def test_a_device_gap_is_no_failure_of_the_source() -> None:
    """A source that yields a gap for a device is read on at its period."""
    source = FakeSource(devices=[GPU, OTHER_GPU])
    sampler, time = make(source)

    def lose() -> None:
        source.gap = "the GPU is lost"

    def find() -> None:
        source.gap = ""

    drive(sampler, time, 0.15, lose, 0.45, find, 1.0)
    gaps = sampler.recording.gaps()
    assert [(g.device, g.reason) for g in gaps] == [
        (GPU.id, "the GPU is lost"), (OTHER_GPU.id, "the GPU is lost"),
    ]
    assert [round(g.start - START, 3) for g in gaps] == [0.2, 0.2]
    assert [round((g.end or 0) - START, 3) for g in gaps] == [0.5, 0.5]
    assert source.opened == 1
    assert sampler.stats["nvml"].readings == 11


def test_a_reading_on_demand_ends_the_pause_after_a_failure() -> None:
    """A source that read_now finds well again is read at its period from then on."""
    source = FakeSource(open_error=OSError("not yet"))
    sampler = real(source)
    sampler.start()
    try:
        assert sampler.read_now(timeout_s=5)
        source.open_error = None
        assert sampler.read_now(timeout_s=5)
        # The pause after the failure is one second; the next reading comes long before.
        deadline = real_time.monotonic() + 0.8
        while len(source.times) < 3 and real_time.monotonic() < deadline:
            real_time.sleep(0.005)
        assert len(source.times) >= 3
    finally:
        sampler.stop()


def test_a_source_that_fails_to_close_hurts_nobody() -> None:
    """An exception in close neither escapes nor keeps other sources open."""
    bad, good = FakeSource("nvml"), FakeSource("host", devices=[HOST_DEVICE])

    def fail() -> None:
        raise OSError("cannot close")

    bad.close = fail  # type: ignore[method-assign]
    sampler, time = make(bad, good)
    drive(sampler, time, 0.05)
    assert good.closed == 1


# -- devices ---------------------------------------------------------------------------------


def test_what_sources_say_of_a_device_is_joined() -> None:
    """Labels come from the source that has the index; constants and reasons from all, once."""
    other = Device(GPU.id, "gpu", "cuda name", torch_index=0,
                   constants={"gpu_power_limit_watts": 1.0, "gpu_memory_clock_max_hertz": 2.0},
                   absent={"gpu_energy_joules": "not supported"})
    nvml = replace(GPU, absent={"gpu_encoder_utilization_ratio": "not supported"})
    for order in ([0, 1], [1, 0]):
        quick = FakeSource("nvml", devices=[nvml])
        slow = FakeSource("nvml_slow", period_s=0.2, devices=[other])
        sources = [quick, slow]
        sampler, time = make(*(sources[n] for n in order))
        heard: list[Device] = []
        sampler.recording.subscribe(
            lambda r, heard=heard: heard.append(r) if isinstance(r, Device) else None
        )
        drive(sampler, time, 1.0)
        (device,) = sampler.recording.devices
        assert (device.name, device.nvml_index) == (GPU.name, 0)
        assert device.constants["gpu_power_limit_watts"] == 700.0
        assert device.constants["gpu_memory_clock_max_hertz"] == 2.0
        assert set(device.absent) == {"gpu_energy_joules", "gpu_encoder_utilization_ratio"}
        assert len(heard) == 2, "a device that does not change is told again and again"


def test_a_reason_that_no_longer_holds_goes() -> None:
    """When a source no longer calls a metric absent, the recorded device does not either."""
    slow = FakeSource("nvml_slow", devices=[replace(OTHER_GPU, nvml_index=None,
                                                    absent={"gpu_energy_joules": "no"})])
    quick = FakeSource("nvml", devices=[OTHER_GPU])
    sampler, time = make(quick, slow)

    def offer() -> None:
        slow.told = [replace(OTHER_GPU, nvml_index=None)]

    drive(sampler, time, 0.25, offer, 0.5)
    assert sampler.recording.devices == (OTHER_GPU,)


# -- the thread ------------------------------------------------------------------------------


def test_a_sampler_is_started_once() -> None:
    """A second start is refused, also after a stop."""
    sampler = real(FakeSource())
    sampler.start()
    try:
        with pytest.raises(RuntimeError, match="make a new one"):
            sampler.start()
    finally:
        sampler.stop()
    with pytest.raises(RuntimeError, match="make a new one"):
        sampler.start()


def test_a_start_can_wait_for_the_first_readings() -> None:
    """With a time to wait, each source has been read once when start returns, also in vain."""
    good, bad = FakeSource("nvml", period_s=100), FakeSource("host", open_error=OSError("no"))
    sampler = real(good, bad)
    sampler.start(timeout_s=5)
    try:
        assert len(good.times) == 1
        assert sampler.reasons == {"host": "OSError: no"}
    finally:
        sampler.stop()


def test_stop_joins_the_thread_and_closes_the_sources() -> None:
    """After stop no thread is left, all sources are closed, and a second stop is harmless."""
    sources = [FakeSource("nvml"), FakeSource("host", devices=[HOST_DEVICE])]
    sampler = real(*sources)
    assert not sampler.running
    sampler.stop()
    sampler.start()
    assert sampler.running
    assert [t.daemon for t in threading.enumerate() if t.name == "gpumagic-sampler"] == [True]
    assert sampler.read_now(timeout_s=5)
    sampler.stop()
    sampler.stop()
    assert not sampler.running
    assert not [t for t in threading.enumerate() if t.name == "gpumagic-sampler"]
    assert [(s.opened, s.closed) for s in sources] == [(1, 1), (1, 1)]


def test_a_stop_right_after_the_start_is_heard() -> None:
    """Starting and stopping in one breath ends the thread, each time."""
    for _ in range(30):
        sampler = real(FakeSource())
        sampler.start()
        sampler.stop()
        assert not sampler.running


def test_read_now_reads_the_named_sources() -> None:
    """read_now takes one reading of each source named, and of all without names."""
    nvml = FakeSource("nvml", period_s=100)
    host = FakeSource("host", period_s=100, devices=[HOST_DEVICE])
    sampler = real(nvml, host)
    assert not sampler.read_now(), "nothing can be read before the start"
    sampler.start()
    assert sampler.read_now(timeout_s=5)
    read = len(nvml.times), len(host.times)
    assert sampler.read_now(["nvml"], timeout_s=5)
    assert (len(nvml.times), len(host.times)) == (read[0] + 1, read[1])
    sampler.stop()
    assert not sampler.read_now(), "nothing can be read after the stop"


def test_a_slow_reading_lets_the_quick_ones_in() -> None:
    """Between the steps of a long reading, what comes due is read."""
    quick, slow = FakeSource("nvml"), FakeSource("host", period_s=10.0, devices=[HOST_DEVICE])
    sampler, time = make(quick, slow)

    async def read(now: Callable[[], float]) -> AsyncIterator[Sample | Gap]:
        for _ in range(10):
            time.advance(0.05)
            await asyncio.sleep(0)
        yield Sample(now(), HOST_DEVICE.id, "host", {"host_cpu_ratio": 1.0})

    slow.read = read  # type: ignore[method-assign]
    drive(sampler, time, 0.55)
    assert rounded(quick.times) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert sampler.stats["nvml"].missed == 0
    assert sampler.stats["host"].slowest_s == pytest.approx(0.5, abs=1e-6)


def test_a_source_that_waits_for_an_event_loop_fails_with_a_reason() -> None:
    """Nothing but sleep(0) can be awaited in a reading: the reason says so."""
    source = FakeSource()

    async def read(now: Callable[[], float]) -> AsyncIterator[Sample | Gap]:
        await asyncio.sleep(0.1)
        yield Sample(now(), GPU.id, "nvml", {})

    source.read = read  # type: ignore[method-assign]
    sampler, time = make(source)
    drive(sampler, time, 0.05)
    assert sampler.reasons == {"nvml": "RuntimeError: no running event loop"}


def test_what_is_only_looked_at_is_told_to_the_sources() -> None:
    """set_periods passes on whether anything is measured, also where no period changes."""
    source = FakeSource()
    sampler, _ = make(source)
    sampler.set_periods({}, looking=True)
    assert source.looking
    sampler.set_periods({"nvml": 0.1})
    assert not source.looking


def test_read_now_waits_no_longer_than_it_may() -> None:
    """A reading that takes too long gives False in time, and comes late rather than never."""
    go_on = threading.Event()
    source = FakeSource(period_s=100)
    sampler = real(source)
    sampler.start()
    assert sampler.read_now(timeout_s=5)
    source.work = lambda: go_on.wait(5)
    before = real_time.monotonic()
    assert not sampler.read_now(timeout_s=0.05)
    assert real_time.monotonic() - before < 2
    had = len(sampler.recording)
    go_on.set()
    assert sampler.read_now(timeout_s=5)
    assert len(sampler.recording) == had + 2
    sampler.stop()


def test_read_now_and_the_periodic_reading_do_not_overlap() -> None:
    """However often read_now is called, a source is never read twice at once."""
    inside, most = 0, 0

    class Slow(FakeSource):
        async def read(self, now: Callable[[], float]):  # type: ignore[no-untyped-def]
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            async for record in super().read(now):
                yield record
            inside -= 1

    sampler = real(Slow(period_s=0.002))
    sampler.start()
    threads = [
        threading.Thread(target=lambda: [sampler.read_now(timeout_s=5) for _ in range(30)])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sampler.stop()
    assert most == 1
    # Those who ask at the same time may share a reading.
    assert sampler.stats["nvml"].readings >= 30


def test_processor_time_is_counted() -> None:
    """cpu_s grows with what the sampler's thread computes, not with what others do."""
    def burn() -> None:
        end = real_time.thread_time() + 0.05
        while real_time.thread_time() < end:
            pass

    source = FakeSource(period_s=100, work=burn)
    sampler = real(source)
    sampler.start()
    assert sampler.read_now(timeout_s=5)
    before = sampler.cpu_s
    burn()
    assert sampler.read_now(timeout_s=5)
    assert 0.05 <= sampler.cpu_s - before < 0.095
    sampler.stop()
    assert sampler.cpu_s >= before + 0.05


def test_long_runs_leave_nothing_behind() -> None:
    """Thousands of readings beyond the recording's bound take no more memory."""
    source = FakeSource()
    time = FakeClock()
    sampler = Sampler(Recording(max_bytes=MIN_BYTES), [source], time)
    sizes: list[int] = []

    def weigh() -> None:
        source.times.clear()
        sizes.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        # The bound is reached after 4,000 readings; then the recording breathes by some kB.
        drive(sampler, time, 420, weigh, 600, weigh)
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 10_000


# -- fork ------------------------------------------------------------------------------------

PROLOGUE = f"""
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
sys.path[:0] = {[str(Path(gpumagic.__file__).parents[1]), str(Path(__file__).parents[1])]!r}
from fakes import FakeSource, HOST_DEVICE
from gpumagic.clock import Clock
from gpumagic.recording import MIN_BYTES, Recording
from gpumagic.sampler import Sampler

def code(pid, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hung"
"""

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def script(text: str) -> str:
    """Run a script beside the fakes; return what it printed."""
    outcome = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(text)],
        capture_output=True, text=True, timeout=60,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == ""
    return outcome.stdout.strip()


@forks
def test_a_forked_child_has_no_sampler_and_ends() -> None:
    """In a child the sampler does not run, stop and read_now return at once, exit is normal."""
    assert script("""
        sampler = Sampler(Recording(), [FakeSource(period_s=0.01)], Clock().now)
        sampler.start()
        sampler.read_now(timeout_s=5)
        pid = os.fork()
        if not pid:
            assert not sampler.running
            assert not sampler.read_now(timeout_s=5)
            sampler.stop()
            own = Sampler(sampler.recording, [FakeSource()], Clock().now)
            own.start()
            assert own.read_now(timeout_s=5)
            own.stop()
            sys.exit(7)
        ended = code(pid)
        assert sampler.running and sampler.read_now(timeout_s=5)
        sampler.stop()
        print(ended, sampler.running)
    """) == "7 False"


@forks
def test_forks_while_sampling_never_deadlock() -> None:
    """Children forked in the middle of readings use the recording freely, and so does the parent.

    A source that holds a lock without the GIL, as a driver's call does, is never forked in it.
    """
    assert script("""
        lock = threading.Lock()
        def call():
            with lock:
                time.sleep(0.0005)  # releases the GIL with the lock held
        sources = [FakeSource("nvml", period_s=0.001, work=call),
                   FakeSource("host", period_s=0.001, devices=[HOST_DEVICE])]
        sampler = Sampler(Recording(max_bytes=MIN_BYTES), sources, Clock().now)
        sampler.start()
        codes = set()
        for n in range(150):
            pid = os.fork()
            if not pid:
                with lock:
                    sampler.recording.begin_span(1.0)
                    list(sampler.recording.samples())
                os._exit(0)
            codes.add(code(pid))
        alive = sampler.read_now(timeout_s=5)
        sampler.stop()
        print(codes, alive)
    """) == "{0} True"


@forks
def test_a_block_that_ends_in_a_forked_child_ends() -> None:
    """A child forked inside a profiled block can leave the block and exit."""
    assert script("""
        import gpumagic
        from gpumagic import session
        made = session.Session(make=lambda names: [FakeSource(period_s=0.002)])
        session.install(made)
        with gpumagic.profile("outer"):
            pids = []
            for n in range(20):
                pids.append(os.fork())
                if not pids[-1]:
                    break
                time.sleep(0.003)
        if not pids[-1]:
            assert made.sampler is None
            sys.exit(3)
        print({code(pid) for pid in pids}, made.leases, made.sampler)
    """) == "{3} () None"


@forks
def test_a_reading_that_hangs_does_not_stop_a_fork() -> None:
    """While a source hangs in a call, a fork waits a moment and then goes on."""
    assert script("""
        stuck, go_on = threading.Event(), threading.Event()
        def hang():
            stuck.set()
            go_on.wait(30)
        sampler = Sampler(Recording(), [FakeSource(work=hang)], Clock().now)
        sampler.start()
        stuck.wait(5)
        begun = time.monotonic()
        pid = os.fork()
        if not pid:
            os._exit(0)
        took = time.monotonic() - begun
        ended = code(pid)
        go_on.set()
        sampler.stop()
        print(ended, took < 2, sampler.running)
    """) == "0 True False"


def test_a_clock_of_tests_stands_still() -> None:
    """The real clock tells today's time and never runs backwards; the fake one is moved."""
    clock = Clock()
    assert clock.now() == pytest.approx(real_time.time(), abs=1)
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)
    fake = FakeClock(5)
    fake.advance(2)
    assert fake() == 7
