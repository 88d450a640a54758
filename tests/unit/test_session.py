"""The session runs one sampler for all who claim sampling, and none for nobody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

import gpumagic
from fakes import GPU, HOST_DEVICE, OTHER_GPU, FakeSource
from gpumagic import session as module
from gpumagic.devices import Gpu, Pairing, select
from gpumagic.errors import DeviceError, SettingError, SourceUnavailable
from gpumagic.sample import Device
from gpumagic.sampler import Sampler
from gpumagic.session import Session, current, install

GPUS = [Gpu(GPU.id, 0, GPU.name), Gpu(OTHER_GPU.id, 1, OTHER_GPU.name)]
PAIRING = Pairing((GPU.id,))


class Selecting(FakeSource):
    """An nvml source that opens the GPUs selected, or raises as the real one does."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__("nvml")
        self.names = names

    def open(self) -> None:
        ids = select(GPUS, self.names, PAIRING)
        self.told = [d for d in (GPU, OTHER_GPU) if d.id in ids]
        super().open()


class Maker:
    """Make sources, and remember for which selections."""

    def __init__(self) -> None:
        self.selections: list[tuple[str, ...]] = []
        self.sources: list[FakeSource] = []

    def __call__(self, names: Sequence[str]) -> list[FakeSource]:
        self.selections.append(tuple(names))
        made = [Selecting(names), FakeSource("host", period_s=1.0, devices=[HOST_DEVICE])]
        self.sources += made
        return made


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def session(maker: Maker) -> Iterator[Session]:
    made = Session(make=maker)
    yield made
    made.close()


def samplers() -> int:
    return sum(t.name == "gpumagic-sampler" for t in threading.enumerate())


def test_sampling_runs_while_there_is_a_lease(session: Session, maker: Maker) -> None:
    """The first lease starts a sampler, more leases share it, the last one stops it."""
    assert session.sampler is None
    one = session.lease("watch")
    sampler = session.sampler
    assert isinstance(sampler, Sampler)
    with session.lease("profile"):
        assert session.sampler is sampler
        assert session.leases == ("watch", "profile")
        assert samplers() == 1
    assert session.sampler is sampler
    one.release()
    assert session.sampler is None
    assert samplers() == 0
    one.release()
    assert session.leases == ()
    assert maker.selections == [("usable",)]
    assert all(source.opened == source.closed == 1 for source in maker.sources)


def test_a_lease_has_readings_at_once(session: Session) -> None:
    """When a lease is there, the devices have been read."""
    with session.lease("watch"):
        assert session.recording.latest("gpu_power_watts", GPU.id) is not None
        assert session.recording.devices == (GPU, HOST_DEVICE)


def periods(session: Session) -> dict[str, float]:
    assert session.sampler is not None
    found = {source.name: source.period_s for source in session.sampler.sources}
    assert found == session.recording.periods
    return found


def test_the_shortest_interval_holds(session: Session) -> None:
    """Quick sources are read at the shortest interval claimed, slow ones at most once a second."""
    with session.lease("record", interval_s=5.0):
        assert periods(session) == {"nvml": 5.0, "host": 5.0}
        with session.lease("footers"):
            assert periods(session) == {"nvml": 0.1, "host": 1.0}
            with session.lease("profile", interval_s=0.02):
                assert periods(session) == {"nvml": 0.02, "host": 1.0}
            assert periods(session) == {"nvml": 0.1, "host": 1.0}
        assert periods(session) == {"nvml": 5.0, "host": 5.0}


def looking(session: Session) -> set[bool]:
    assert session.sampler is not None
    return {source.looking for source in session.sampler.sources}


def test_a_watch_alone_is_served_at_a_slower_pace() -> None:
    """While nothing is measured a watch gets what can be seen; a profile gets its own rate."""
    names = ["nvml", "nvml_slow", "gpm", "allocator", "host", "cell"]
    session = Session(make=lambda _: [FakeSource(name) for name in names])
    slow = {"nvml_slow": 1.0, "host": 1.0}
    exact = {"nvml": 0.1, "gpm": 0.2, "allocator": 0.1, "cell": 0.1, **slow}
    seen = {"nvml": 0.2, "gpm": 0.2, "allocator": 0.2, "cell": 1.0, **slow}
    with session.lease("watch"):
        assert periods(session) == seen
        assert looking(session) == {True}
        for who in ("profile", "footers", "record"):
            with session.lease(who):
                assert periods(session) == exact
                assert looking(session) == {False}
            assert periods(session) == seen
            assert looking(session) == {True}
        with session.lease("watch", interval_s=0.1):
            assert periods(session) == exact, "an interval that was asked for is kept"
            assert looking(session) == {True}
    session.close()


@pytest.mark.parametrize("interval", [0.02, 0.15, 0.5, 3.0])
def test_a_watch_keeps_the_interval_of_the_settings(session: Session, interval: float) -> None:
    """An interval that was set is kept, be it shorter or longer than what a watch alone gets."""
    with session.lease("watch"):
        session.settings.interval_s = interval
        session.refresh()
        assert periods(session) == {"nvml": interval, "host": max(1.0, interval)}
        with session.lease("watch", interval_s=0.04):
            assert periods(session)["nvml"] == min(interval, 0.04)


def test_a_shorter_interval_is_not_kept_waiting(session: Session, maker: Maker) -> None:
    """A lease with a short interval is served at once though the sampler waits for a far tick."""
    with session.lease("record", interval_s=600.0), session.lease("watch", interval_s=0.02):
        before = len(maker.sources[0].times)
        deadline = time.monotonic() + 5
        while len(maker.sources[0].times) < before + 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(maker.sources[0].times) >= before + 3


@pytest.mark.parametrize("interval", [0, -1, 0.001, 1e9, float("nan")])
def test_an_interval_out_of_bounds_is_refused(session: Session, interval: float) -> None:
    """An interval that cannot be kept is a SettingError, and nothing is started."""
    with pytest.raises(SettingError, match="the interval is"):
        session.lease("watch", interval_s=interval)
    assert session.leases == ()
    assert session.sampler is None


def test_the_gpus_of_all_leases_are_read(session: Session, maker: Maker) -> None:
    """The sampler reads the union of what is claimed, and is made anew only if that changes."""
    first = session.lease("watch", gpus="0")
    second = session.lease("profile", gpus=["0", "1"])
    assert session.recording.device(OTHER_GPU.id) == OTHER_GPU
    third = session.lease("record", gpus="1,0")
    assert maker.selections == [("0",), ("0", "1")]
    third.release()
    second.release()
    assert maker.selections[-1] == ("0",)
    assert samplers() == 1
    first.release()


def test_gpus_can_be_numbers(session: Session, maker: Maker) -> None:
    """A list of integers names GPUs as their texts do; an empty one is refused."""
    with session.lease("profile", gpus=[1, 0]):  # type: ignore[list-item]
        assert maker.selections == [("1", "0")]
    with pytest.raises(SettingError, match="no GPU is named"):
        session.lease("profile", gpus=[])


@pytest.mark.parametrize("name", ["7", "GPU-none", "cuda:3", "bogus"])
def test_a_gpu_that_is_not_there_is_refused(session: Session, maker: Maker, name: str) -> None:
    """Naming an unknown GPU raises DeviceError; who claims sampling already keeps it."""
    with pytest.raises(DeviceError, match=name):
        session.lease("profile", gpus=name)
    assert session.leases == ()
    assert session.sampler is None
    watch = session.lease("watch", gpus="0")
    with pytest.raises(DeviceError, match=name):
        session.lease("profile", gpus=["0", name])
    assert session.leases == ("watch",)
    assert maker.selections[-1] == ("0",)
    assert session.sampler is not None
    assert session.sampler.read_now(timeout_s=5)
    assert session.reasons() == {}
    watch.release()


def test_a_machine_without_gpus_still_reads_the_host() -> None:
    """A source that has nothing to read gives a reason and no error."""
    bad = FakeSource("nvml", open_error=SourceUnavailable("no NVIDIA GPU here"))
    host = FakeSource("host", devices=[HOST_DEVICE])
    session = Session(make=lambda names: [bad, host])
    with session.lease("watch", gpus="0"):
        assert session.reasons() == {"nvml": "no NVIDIA GPU here"}
        assert session.recording.devices == (HOST_DEVICE,)
    assert session.reasons() == {}


def test_sources_that_cannot_be_made_leave_no_lease() -> None:
    """An error while the sampler is made goes to the claimant and leaves nothing behind."""
    def fail(names: Sequence[str]) -> list[FakeSource]:
        raise OSError("no sources")

    session = Session(make=fail)
    with pytest.raises(OSError, match="no sources"):
        session.lease("watch")
    assert session.leases == ()
    assert session.sampler is None


def test_close_ends_everything(session: Session) -> None:
    """close freezes the watch, drops the leases and stops the sampler; a late release is fine."""
    class Watch:
        stopped = 0
        cpu_s = 0.5

        def stop(self) -> None:
            self.stopped += 1

    watch = session.watch = Watch()
    lease = session.lease("watch")
    session.close()
    assert (watch.stopped, session.watch, session.leases, session.sampler) == (1, None, (), None)
    assert samplers() == 0
    lease.release()
    session.close()
    assert watch.stopped == 1
    assert not session.stop_watch()
    assert session.watch_cpu_s >= 0.5, "what the view has used is part of the session's"


def test_processor_time_is_kept_over_samplers(session: Session) -> None:
    """What sampling has used adds up over all samplers of a session."""
    seen = [session.watch_cpu_s]
    for _ in range(3):
        with session.lease("profile"):
            seen.append(session.watch_cpu_s)
        seen.append(session.watch_cpu_s)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] > seen[2] > 0


def test_cells_are_spans_while_somebody_samples(session: Session) -> None:
    """A cell is noted from its begin to its end with its number and how it ended."""
    session.cell_began(1)
    assert session.cell is None
    session.cell_ended("ok")
    with session.lease("watch"):
        session.cell_began(2)
        assert session.cell is not None
        assert session.cell.end is None
        session.cell_ended("error")
        session.cell_ended("ok")
        session.cell_began(3)
        session.cell_began(4)
        session.cell_ended("interrupted")
    noted = [(s.number, s.status) for s in session.recording.spans()]
    assert noted == [(2, "error"), (3, "ok"), (4, "interrupted")]
    assert all(s.end is not None and s.end >= s.start for s in session.recording.spans())


def test_leases_may_come_from_many_threads(session: Session) -> None:
    """Threads that claim and release at once share one sampler and leave none."""
    wrong: list[int] = []

    def work() -> None:
        for _ in range(10):
            with session.lease("profile", interval_s=0.05):
                if samplers() != 1:
                    wrong.append(samplers())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert session.leases == ()
    assert samplers() == 0


def test_gpus_are_found_among_those_recorded(session: Session) -> None:
    """named_gpus takes indices, cuda:N, UUID prefixes, usable, all, and mixes of them."""
    for device in (GPU, OTHER_GPU, HOST_DEVICE):
        session.recording.add_device(device)
    assert session.named_gpus(["0"]) == [GPU.id]
    assert session.named_gpus(["cuda:1"]) == [OTHER_GPU.id]
    assert session.named_gpus(["gpu-bbbb", "0"]) == [GPU.id, OTHER_GPU.id]
    assert session.named_gpus(["all"]) == [GPU.id, OTHER_GPU.id]
    assert session.named_gpus(["7"]) == []


def test_the_current_session_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """current gives the one installed, or makes one; marks go into its recording."""
    monkeypatch.setattr(module, "_current", None)
    made = current()
    assert current() is made
    other = Session(make=lambda names: [])
    install(other)
    assert current() is other
    gpumagic.mark("epoch 3")
    assert [mark.text for mark in other.recording.marks()] == ["epoch 3"]
    assert made.recording.marks() == ()


def test_a_cell_that_changes_the_visible_gpus_is_followed(
    session: Session, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once CUDA_VISIBLE_DEVICES is another, the next cell is sampled by sources made anew."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    lease = session.lease("test")
    session.cell_began(1)
    first = session.sampler
    session.cell_ended("ok")
    session.cell_began(2)
    assert session.sampler is first
    left = Device("GPU-left", "gpu", "H200", 7, 1)
    session.recording.add_device(left)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    session.cell_began(3)
    assert session.sampler is not first
    assert samplers() == 1
    assert session.recording.device(left.id) == replace(left, torch_index=None)
    lease.release()


def test_a_forked_child_leaves_watch_and_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forked child the view and the recording of its parent are neither ended nor closed."""
    session = Session(make=lambda _: [])
    ended: list[str] = []
    session.watch = SimpleNamespace(cpu_s=0.0, stop=lambda: ended.append("watch"))
    session.record = SimpleNamespace(close=lambda: ended.append("record"))
    pid = os.getpid()
    monkeypatch.setattr("gpumagic.session.os.getpid", lambda: pid + 1)
    assert session.stop_watch() is False
    assert session.stop_record() is None
    assert ended == []
