"""A Profile tells all that was measured of a block, and the block never notices."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from traitlets import TraitError

import gpumagic
from fakes import GIB, GPU, HOST_DEVICE, OTHER_GPU, START, FakeSource, fill, recording_of, ticks
from gpumagic import measurement, session
from gpumagic.diagnosis import Finding
from gpumagic.errors import DeviceError, SettingError
from gpumagic.metrics import METRICS
from gpumagic.profiles import Profile
from gpumagic.sample import Device, Span
from gpumagic.session import Session
from gpumagic.summary import summarise
from gpumagic.waterfall import MemoryState, Part, Waterfall

SPAN = Span(1, START + 2, START + 8, number=12, name="train", status="ok")


def filled(**options: Any) -> Profile:
    """Make a profile of six seconds with figures of all sources."""
    recording = recording_of(GPU, OTHER_GPU, HOST_DEVICE)
    times = ticks(START, START + 10)
    for device in (GPU, OTHER_GPU):
        fill(recording, times, device, gpu_power_watts=300, gpu_utilization_ratio=0.5,
             gpu_clock_event_reasons_state=4, gpu_memory_used_bytes=GIB)
        fill(recording, [START + 2, START + 8], device, "nvml_slow",
             gpu_energy_joules=lambda t: 300 * (t - START))
    fill(recording, times, source="allocator", torch_allocated_bytes=1,
         torch_allocated_peak_bytes=9)
    fill(recording, times[::10], HOST_DEVICE, "host", process_cpu_ratio=1,
         process_cpu_seconds=lambda t: t - START)
    return Profile(SPAN, summarise(recording, SPAN, watch_cpu_s=0.01), **options)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def test_a_profile_is_plain_values() -> None:
    """to_dict survives JSON unchanged and holds no NaN."""
    found = filled(reasons={"nvml_slow": "no"}, streams="busy", synchronised=True).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(not isinstance(v, float) or math.isfinite(v) for v in leaves(found))
    assert (found["name"], found["number"], found["exit"]) == ("train", 12, "ok")
    assert found["wall_s"] == pytest.approx(6)
    assert found["started"] == "2025-11-30T15:12:02+00:00"
    assert (found["streams_at_end"], found["synchronised"]) == ("busy", True)
    assert found["reasons"] == {"nvml_slow": "no"}


def test_metrics_have_the_names_of_the_table() -> None:
    """Each device lists its figures under the names of METRICS, the constants too."""
    found = filled().to_dict()
    assert [d["device"] for d in found["devices"]] == [GPU.id, OTHER_GPU.id, "host"]
    for device in found["devices"]:
        assert set(device["metrics"]) <= set(METRICS)
        assert set(device["constants"]) <= set(METRICS)
        assert device["samples"] > 0
    gpu = found["devices"][0]
    assert gpu["torch"] == "cuda:0"
    assert gpu["metrics"]["gpu_power_watts"]["mean"] == pytest.approx(300)
    assert gpu["metrics"]["gpu_energy_joules"]["joules"] == pytest.approx(1800)
    assert gpu["throttled"]["by_reason"] == {"power cap": 1.0}
    assert gpu["metrics"]["torch_allocated_bytes"]["peak_exact"] is False


def test_what_is_absent_is_no_key() -> None:
    """A figure that was not measured has a reason and no value at all."""
    gpu = filled().to_dict()["devices"][0]
    figure = gpu["metrics"]["gpu_temperature_celsius"]
    assert set(figure) == {"samples", "reason"}
    assert figure["samples"] == 0


def test_energy_of_several_gpus_is_added_only_if_all_are_known() -> None:
    """The sum of a part would pass for the whole."""
    profile = filled()
    assert profile.energy_joules == pytest.approx(3600)
    gpus = profile.summary.gpus
    unknown = replace(gpus[1], energy=replace(gpus[1].energy, joules=None))
    partial = replace(profile.summary, devices=(gpus[0], unknown))
    assert replace(profile, summary=partial).energy_joules is None
    assert replace(profile, summary=replace(partial, devices=())).energy_joules is None


def test_a_profile_names_itself() -> None:
    """The name is the user's, or the cell's number; the repr is one line."""
    assert repr(filled()) == "<Profile train 6.000 s ok>"
    hidden = replace(filled(), span=replace(SPAN, name="a\x1b[2J\u202eb\nc"))
    assert repr(hidden) == "<Profile a [2J b c 6.000 s ok>"
    unnamed = replace(filled(), span=replace(SPAN, name=""))
    assert (unnamed.name, unnamed.number) == ("[12]", 12)


def test_a_profile_is_equal_to_itself_only() -> None:
    """Profiles can be keys and members of sets: each is an object of its own."""
    one, other = filled(), filled()
    assert {one: 1}[one] == 1
    assert len({one, other, one}) == 2
    assert one != other


def test_depth_is_plain_values_too() -> None:
    """Findings, the peak's method and each GPU's waterfall are in to_dict, in base units."""
    waterfall = Waterfall(
        GPU, 3.0, (MemoryState("after", START, (Part("cached", 2.0, 1.0), Part("free", 1.0))),)
    )
    finding = Finding("starved", "limit", "The GPU waited.")
    found = filled(
        findings=(finding,), waterfalls=(waterfall,), peak_method="by counters"
    ).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["findings"] == [finding.to_dict()]
    assert found["peak_method"] == "by counters"
    gpu, other, host = found["devices"]
    assert gpu["waterfall"] == {"after": {"cached": 2.0, "free": 1.0}}
    assert "waterfall" not in other
    assert "waterfall" not in host


# -- with gpumagic.profile() -----------------------------------------------------------------


class Torchless(FakeSource):
    """An nvml source of one usable GPU and one that is not."""

    def __init__(self) -> None:
        super().__init__("nvml", devices=[GPU, replace(OTHER_GPU, torch_index=None)])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    host = FakeSource("host", devices=[HOST_DEVICE], values={"process_rss_bytes": 5.0})
    made = Session(make=lambda names: [Torchless(), host])
    monkeypatch.setattr(session, "_current", made)
    yield made
    made.close()


def test_a_block_gives_a_profile(made: Session) -> None:
    """After the block its handle stands for the profile, and the session remembers it."""
    with gpumagic.profile("load") as p:
        assert repr(p) == "<Profile in progress>"
        assert p.result is None
        assert made.leases == ("profile load",)
        with pytest.raises(AttributeError, match="wall_s yet: the block has not ended"):
            _ = p.wall_s
    assert p.result is made.profiles[-1]
    assert (p.name, p.exit, p.number) == ("load", "ok", None)
    assert p.wall_s > 0  # type: ignore[operator]
    assert made.leases == ()
    assert made.sampler is None
    (noted,) = made.recording.spans()
    assert (noted.name, noted.status, noted.end) == ("load", "ok", p.result.span.end)
    assert [d.device.id for d in p.result.summary.devices] == [GPU.id, "host"]
    assert "text/html" in p._repr_mimebundle_()
    assert json.dumps(p.result.to_dict(), allow_nan=False)


def test_each_gpu_has_its_waterfall(made: Session) -> None:
    """A block tells where each measured GPU's memory was, or why not."""
    with gpumagic.profile("load") as p:
        pass
    assert p.result is not None
    (waterfall,) = p.result.waterfalls
    assert waterfall.device.id == GPU.id
    assert waterfall.reason == "the GPU's memory was not read near the cell"
    assert p.result.to_dict()["devices"][0]["waterfall"] == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("mine"), "error"),
        (SystemExit(3), "error"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_an_exception_goes_on(made: Session, error: BaseException, status: str) -> None:
    """The block's own exception leaves it, and the profile says how it ended."""
    handle = None

    def fail() -> None:
        nonlocal handle
        with gpumagic.profile("bad") as handle:
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert handle is not None
    assert handle.exit == status
    assert made.recording.spans()[0].status == status
    assert made.leases == ()


def test_a_failure_of_ours_does_not_hide_the_users(
    made: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the measurement fails in a block that fails, the user sees the block's exception."""
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(measurement, "profile_of", fail)
    with pytest.raises(ValueError, match="mine"), gpumagic.profile("bad"):
        raise ValueError("mine")
    with pytest.raises(RuntimeError, match="ours"), gpumagic.profile("good"):
        pass
    assert made.leases == ()
    assert all(span.end is not None for span in made.recording.spans())


def test_an_interrupted_wait_leaves_nothing_open(
    made: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the end waits for the GPU ends the span and gives the lease back."""
    def interrupt() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(measurement, "synchronise", interrupt)
    with pytest.raises(KeyboardInterrupt), gpumagic.profile("slow", sync=True):
        pass
    assert made.leases == ()
    assert [s.status for s in made.recording.spans()] == ["interrupted"]


def test_a_failed_kernel_is_not_raised_by_the_wait(
    made: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that CUDA reports while the end waits does not come out of the profile."""
    def fail() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(measurement, "synchronise", fail)
    with gpumagic.profile("wrong", sync=True) as p:
        pass
    assert p.synchronised is False


def test_blocks_nest(made: Session) -> None:
    """A block in a block has a profile of its own, and sampling goes on for the outer one."""
    with gpumagic.profile("outer") as outer:
        sampler = made.sampler
        with gpumagic.profile("inner") as inner:
            assert made.sampler is sampler
        assert made.sampler is sampler
    assert outer.result is not None
    assert inner.result is not None
    assert outer.result.span.start <= inner.result.span.start
    assert outer.result.span.end >= inner.result.span.end  # type: ignore[operator]
    assert [p.name for p in made.profiles] == ["inner", "outer"]


def test_wrong_arguments_start_nothing(made: Session) -> None:
    """A bad interval fails before the block runs, with nothing left open."""
    ran = False
    with pytest.raises(SettingError), gpumagic.profile(interval_s=0):
        ran = True
    assert not ran
    assert made.leases == ()
    assert made.recording.spans() == ()


def test_a_name_is_a_string(made: Session) -> None:
    """A name that is no string is a TypeError before the block runs, with nothing left open."""
    wrong: Any = 5
    with pytest.raises(TypeError, match="is a string, not 5"), gpumagic.profile(wrong):
        pytest.fail("the block ran")
    assert made.leases == ()


@pytest.mark.parametrize(
    ("gpus", "name"), [(0, "0"), ([0], "0"), ("00", "0"), (["cuda:00"], "cuda:0")]
)
def test_a_gpu_can_be_named_by_a_number(
    monkeypatch: pytest.MonkeyPatch, gpus: Any, name: str
) -> None:
    """gpus takes an index as a number, alone or in a list, and writes it as NVML does."""
    asked: list[str] = []

    def make(names: Any) -> list[Any]:
        asked.extend(names)
        return [FakeSource("nvml")]

    monkeypatch.setattr(session, "_current", Session(make=make))
    with gpumagic.profile("x", gpus=gpus):
        pass
    assert asked == [name]


def test_an_unknown_gpu_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not there fails before the block runs."""
    bad = FakeSource("nvml", open_error=DeviceError("'7' is not a GPU of this machine"))
    made = Session(make=lambda names: [bad])
    monkeypatch.setattr(session, "_current", made)
    with pytest.raises(DeviceError, match="'7'"), gpumagic.profile(gpus="7"):
        pytest.fail("the block ran")
    assert made.leases == ()


def test_a_handle_can_be_copied(made: Session) -> None:
    """copy, and what asks a handle for its attributes, meets no recursion."""
    with gpumagic.profile("a") as p:
        early = copy.copy(p)
    assert early.result is None
    late = copy.copy(p)
    assert late.name == "a"
    assert not hasattr(p, "_ipython_canary_method_should_not_exist_")


def test_a_block_can_be_measured_in_a_coroutine(made: Session) -> None:
    """The user's own event loop is not in the way of the sampler's."""
    async def work() -> Profile | None:
        with gpumagic.profile("async") as p:
            await asyncio.sleep(0)
        return p.result

    result = asyncio.run(work())
    assert result is not None
    assert result.exit == "ok"


def test_a_device_label_is_short() -> None:
    """GPUs are labelled by NVML's index and torch's, or by their UUID."""
    assert GPU.label == "GPU 0"
    assert HOST_DEVICE.label == "Host"
    assert Device("MIG-0123456789abc", "gpu", "slice").label == "MIG 0123"
    assert Device("MIG-1a2b3c4d-0000", "gpu", "slice", 3).label == "GPU 3 MIG 1a2b"
    assert Device("MIG-GPU-1a2b3c4d/7/0", "gpu", "slice", 3).label == "GPU 3 MIG 7/0"
    assert GPU.torch_label == "cuda:0"
    assert replace(GPU, torch_assumed=True).torch_label == "cuda:0 (assumed)"
    assert replace(GPU, torch_index=None).torch_label == ""


def test_thresholds_of_the_settings_reach_the_findings(made: Session) -> None:
    """A threshold that is set decides whether a finding is reported; a wrong one is refused."""
    def rules() -> list[str]:
        with gpumagic.profile() as p:
            pass
        assert p.result is not None
        return [finding.rule for finding in p.result.findings]

    host = replace(HOST_DEVICE, constants={"host_memory_limit_bytes": 10.0})
    values = {"host_memory_used_bytes": 5.0}
    made._make = lambda names: [FakeSource("host", devices=[host], values=values)]
    assert rules() == []
    made.settings.thresholds = {"host_memory_ratio": 0.4}
    assert rules() == ["host-memory"]
    with pytest.raises(TraitError, match="no threshold is called 'x'"):
        made.settings.thresholds = {"x": 1}
    assert made.settings.thresholds == {"host_memory_ratio": 0.4}
    made.settings.thresholds["host_memory_ratio"] = "much"  # past its check
    assert rules() == []
