"""The NVML sources against a stub driver, met through the real nvidia-ml-py.

Each script runs in a process of its own, in which the stub is the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nvml_stub
from gpumagic.metrics import of_source
from gpumagic.sources.nvml_library import SLOW_CALL_S, QuickCall, reason_of
from gpumagic.sources.nvml_processes import split_memory
from gpumagic.sources.nvml_rings import place, thin
from stub_script import run_script

needs_stub = pytest.mark.skipif(nvml_stub.compiler() is None, reason="needs Linux and gcc")
pytest.importorskip("pynvml")

PROLOGUE = """
import asyncio, json, os, sys, time
from pathlib import Path
from nvml_stub import H200, LEGACY, UNIFIED, NvmlStub
from fakes import FakeClock, drive
from gpumagic.errors import GpuMagicError
from gpumagic.recording import Recording
from gpumagic.sample import Gap, Sample
from gpumagic.sampler import Sampler
from gpumagic.sources.nvml import NvmlSource
from gpumagic.sources.nvml_slow import NvmlSlowSource

LIBRARIES, HERE = Path(sys.argv[1]), Path(sys.argv[2])
os.environ.pop("CUDA_VISIBLE_DEVICES", None)

def make(gpus=1, **options):
    return NvmlStub(HERE, gpus, libraries=LIBRARIES, **options)

def said(*values):
    print(json.dumps(values[0] if len(values) == 1 else values))

def records(source, now=time.time):
    async def take():
        return [record async for record in source.read(now)]
    return asyncio.run(take())

def values(source):
    (sample,) = records(source)
    assert isinstance(sample, Sample), sample
    assert sample.source == source.name
    return dict(sample.values)

def opened(kind=NvmlSource, *names):
    source = kind(names or ("usable",))
    source.open()
    return source

def refusal(*names):
    try:
        opened(NvmlSource, *names).close()
    except GpuMagicError as error:
        return type(error).__name__ + ": " + str(error)
    return "opened"
"""

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, libraries: Path) -> Run:
    """Run a script with the stub at hand; return what it said."""
    return partial(_run, libraries, tmp_path)


def _run(libraries: Path, folder: Path, script: str, **more: Any) -> Any:
    return run_script(PROLOGUE, script, libraries, folder, **more)


# -- which GPUs ------------------------------------------------------------------------------


@needs_stub
@pytest.mark.parametrize("count", [1, 4, 8])
def test_each_gpu_is_a_device_with_its_samples(run: Run, count: int) -> None:
    """Every GPU is told once, in NVML's order, with constants, and read at each reading."""
    found = run(f"""
        stub = make({count})
        with stub.load_in_process():
            source = opened()
            devices = source.devices()
            samples = records(source)
            said([d.nvml_index for d in devices], [d.torch_index for d in devices],
                 len(set(d.id for d in devices)), [d.id for d in devices] ==
                 [s.device for s in samples], sorted(devices[-1].constants),
                 [sorted(s.values) for s in samples], [dict(d.absent) for d in devices])
            source.close()
    """)
    indices, torch, different, same, constants, read, absent = found
    assert indices == torch == list(range(count))
    assert (different, same) == (count, True)
    assert constants == sorted(m.name for m in of_source("nvml", kinds=["constant"]))
    assert read == [sorted(m.name for m in of_source("nvml"))] * count
    assert absent == [{}] * count


@needs_stub
def test_no_gpu_is_a_reason(run: Run) -> None:
    """A driver without GPUs, and one whose GPUs cannot be opened, each say so."""
    none, closed, balance = run("""
        stub = make(0)
        with stub.load_in_process():
            none = refusal("all")
            stub.write(count=2)
            stub = make(2)
            stub.fail("nvmlDeviceGetHandleByIndex_v2", 4)
            said(none, refusal("all"), stub.init_balance)
    """)
    assert none == "SourceUnavailable: no NVIDIA GPU here: the driver lists none"
    assert closed == (
        "SourceUnavailable: the driver lists 2 GPUs, but none can be opened: no permission"
    )
    assert balance == 0


@needs_stub
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (9, "the NVIDIA driver is not loaded: run nvidia-smi"),
        (12, "no NVIDIA GPU here: the NVIDIA driver's library"),
        (18, "the driver and its library have different versions: run nvidia-smi"),
        (999, "the driver gives no reason"),
    ],
)
def test_a_driver_that_does_not_start_is_a_reason(run: Run, code: int, text: str) -> None:
    """An error of nvmlInit becomes words and a remedy."""
    said = run(f"""
        stub = make(1, init_error={code})
        with stub.load_in_process():
            said(refusal())
    """)
    assert said.startswith(f"SourceUnavailable: {text}")


@needs_stub
def test_the_environment_decides_what_is_usable(run: Run) -> None:
    """Indices, UUIDs and an empty CUDA_VISIBLE_DEVICES select and number the GPUs."""
    found = run("""
        stub = make(4)
        with stub.load_in_process():
            every = opened(NvmlSource, "all")
            uuids = [d.id for d in every.devices()]
            every.close()
            found = []
            for value in ("2,0", uuids[3] + "," + uuids[1], uuids[2][:12]):
                os.environ["CUDA_VISIBLE_DEVICES"] = value
                for name in ("usable", "all"):
                    source = opened(NvmlSource, name)
                    found.append([(d.nvml_index, d.torch_index) for d in source.devices()])
                    source.close()
            for value in ("", "-1", "1,1"):
                os.environ["CUDA_VISIBLE_DEVICES"] = value
                found.append(refusal())
            os.environ["CUDA_VISIBLE_DEVICES"] = "3"
            found += [refusal("cuda:0"), refusal("cuda:1"), refusal("9")]
            said(found, stub.init_balance)
    """)
    lists, balance = found
    assert lists[0] == [[0, 1], [2, 0]]
    assert lists[1] == [[0, 1], [1, None], [2, 0], [3, None]]
    assert lists[2] == [[1, 1], [3, 0]]
    assert lists[4] == [[2, 0]]
    tail = "; --gpus all shows the machine's 4"
    assert lists[6] == (
        f"SourceUnavailable: CUDA_VISIBLE_DEVICES is empty: this process may use no GPU{tail}"
    )
    assert lists[7].startswith("SourceUnavailable: CUDA_VISIBLE_DEVICES=-1: this process may")
    assert lists[8] == f"SourceUnavailable: CUDA_VISIBLE_DEVICES=1,1 names a GPU twice{tail}"
    assert lists[9] == "opened"
    assert lists[10] == "DeviceError: no cuda:1: this process may use 1 GPU"
    assert lists[11].startswith("DeviceError: '9' is not a GPU of this machine (there are: 0, 1,")
    assert balance == 0


@needs_stub
def test_torch_corrects_the_numbering(run: Run) -> None:
    """Unlike GPUs are numbered by assumption until CUDA is up, and then by torch's word."""
    before, after = run("""
        from importlib.util import spec_from_loader
        from types import ModuleType, SimpleNamespace
        stub = make([{**H200}, {**H200, "name": "NVIDIA T4"}])
        with stub.load_in_process():
            source = opened()
            def labels():
                return [d.torch_label for d in source.devices()]
            before = labels()
            uuids = [d.id for d in source.devices()][::-1]
            torch, cuda = ModuleType("torch"), ModuleType("torch.cuda")
            torch.__spec__ = spec_from_loader("torch", None)
            cuda.is_initialized = lambda: True
            cuda.device_count = lambda: 2
            cuda.get_device_properties = lambda i: SimpleNamespace(
                uuid=uuids[i].removeprefix("GPU-"))
            sys.modules.update({"torch": torch, "torch.cuda": cuda})
            said(before, labels())
            source.close()
    """)
    assert before == ["cuda:0 (assumed)", "cuda:1 (assumed)"]
    assert after == ["cuda:1", "cuda:0"]


@needs_stub
def test_mig_slices_are_devices(run: Run) -> None:
    """A slice is found by its UUID and has its own memory; what it lacks has a reason."""
    names, torch, memory, absent = run("""
        stub = make(2)
        stub.gpu(0, mig=2)
        stub.slice(0, 1, memory_used=5 << 30)
        with stub.load_in_process():
            every = opened(NvmlSource, "all")
            slices = [d.id for d in every.devices() if d.id.startswith("MIG-")]
            every.close()
            os.environ["CUDA_VISIBLE_DEVICES"] = slices[1]
            source = opened()
            (device,) = source.devices()
            said([len(slices), device.id == slices[1]], device.torch_index,
                 values(source).get("gpu_memory_used_bytes"), dict(device.absent))
            source.close()
    """)
    assert names == [2, True]
    assert torch == 0
    assert memory == 5 << 30
    assert absent["gpu_utilization_ratio"]


# -- values ----------------------------------------------------------------------------------


@needs_stub
def test_values_arrive_in_base_units(run: Run) -> None:
    """Milliwatts, megahertz and percent become watts, hertz and ratios."""
    read, slow, constants = run("""
        stub = make(clock_us=1_000_000)
        stub.gpu(0, utilization=73, memory_utilization=21, memory_used=10 << 30, temperature=64,
                 power_mw=612_345, sm_clock_mhz=1755, clock_event_reasons=4, pstate=2,
                 encoder=11, decoder=12, energy_mj=5_000)
        with stub.load_in_process():
            source, slow = opened(), opened(NvmlSlowSource)
            said(values(source), values(slow), dict(source.devices()[0].constants))
            source.close(); slow.close()
    """)
    assert read == pytest.approx({
        "gpu_utilization_ratio": 0.73, "gpu_memory_utilization_ratio": 0.21,
        "gpu_memory_used_bytes": 10 << 30,
        "gpu_memory_free_bytes": (143771 << 20) - 644_939_776 - (10 << 30),
        "gpu_memory_reserved_bytes": 644_939_776,
        "gpu_power_watts": 612.345, "gpu_temperature_celsius": 64, "gpu_sm_clock_hertz": 1.755e9,
        "gpu_memory_clock_hertz": 3.201e9, "gpu_clock_event_reasons_state": 4,
        "gpu_performance_state": 2, "gpu_encoder_utilization_ratio": 0.11,
        "gpu_decoder_utilization_ratio": 0.12,
    })
    assert slow["gpu_energy_joules"] == pytest.approx(5.0)
    assert constants == pytest.approx({
        "gpu_memory_total_bytes": 143771 << 20, "gpu_power_limit_watts": 700,
        "gpu_temperature_slowdown_celsius": 89, "gpu_sm_clock_max_hertz": 1.98e9,
        "gpu_memory_clock_max_hertz": 3.201e9,
    })


@needs_stub
def test_memory_of_version_one_is_labelled(run: Run) -> None:
    """An old driver's used memory includes the reserved, and the device's notes say so."""
    read, notes, absent = run("""
        stub = make(without=["nvmlDeviceGetMemoryInfo_v2"])
        stub.gpu(0, memory_used=10 << 30)
        with stub.load_in_process():
            source = opened()
            (device,) = source.devices()
            said(values(source), device.notes, dict(device.absent))
            source.close()
    """)
    assert read["gpu_memory_used_bytes"] == (10 << 30) + 644_939_776
    assert "gpu_memory_reserved_bytes" not in read
    assert notes == ["memory used includes what the driver reserves (this driver has no version 2)"]
    assert absent == {"gpu_memory_reserved_bytes": "this driver has no version 2 of the call"}


@needs_stub
def test_clock_event_reasons_have_an_old_name(run: Run) -> None:
    """The function's old name is taken where the new one is missing; with neither it is absent."""
    script = """
        stub = make(without={without})
        stub.gpu(0, clock_event_reasons=4)
        with stub.load_in_process():
            source = opened()
            said(values(source).get("gpu_clock_event_reasons_state"),
                 dict(source.devices()[0].absent))
            source.close()
    """
    new, old = (
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    )
    assert run(script.format(without=[new])) == [4.0, {}]
    assert run(script.format(without=[new, old])) == [
        None, {"gpu_clock_event_reasons_state": f"this driver does not know {new}"},
    ]


@needs_stub
def test_what_a_gpu_lacks_is_absent_with_its_reason(run: Run) -> None:
    """A unified-memory GPU has no memory figures, an old one no power or energy, and why."""
    unified, legacy, slow = run("""
        stub = make([UNIFIED, LEGACY])
        with stub.load_in_process():
            source, slow = opened(NvmlSource, "all"), opened(NvmlSlowSource, "all")
            list(records(slow))
            said(*[[sorted(sample.values), dict(device.absent)]
                   for device, sample in zip(source.devices(), records(source))],
                 [dict(device.absent) for device in slow.devices()])
            source.close(); slow.close()
    """)
    gauges = {m.name for m in of_source("nvml")}
    constants = {m.name for m in of_source("nvml", kinds=["constant"])}
    why = "not supported by this GPU"
    for read, absent in (unified, legacy):
        assert gauges - set(read) == set(absent) - constants
        assert set(absent.values()) == {why}
    memory = {f"gpu_memory_{part}_bytes" for part in ("used", "free", "reserved", "total")}
    assert memory <= set(unified[1])
    assert "gpu_power_watts" in unified[0]
    assert {"gpu_power_watts", "gpu_power_limit_watts"} <= set(legacy[1])
    assert "gpu_memory_used_bytes" in legacy[0]
    assert "gpu_energy_joules" not in slow[0]
    assert slow[1]["gpu_energy_joules"] == why


@needs_stub
def test_a_value_refused_later_is_absent_while_it_is(run: Run) -> None:
    """A query that stops working is absent with its reason from then on, and comes back."""
    assert run("""
        stub = make()
        with stub.load_in_process():
            source = opened()
            seen = []
            for code in (None, 4, None):
                stub.fail("nvmlDeviceGetPowerUsage", code)
                read = values(source)
                absent = dict(source.devices()[0].absent)
                seen.append(["gpu_power_watts" in read, len(read), absent])
            source.close()
            said(seen)
    """) == [
        [True, 13, {}],
        [False, 12, {"gpu_power_watts": "no permission"}],
        [True, 13, {}],
    ]


# -- failures --------------------------------------------------------------------------------


@needs_stub
def test_a_lost_gpu_is_a_gap_until_it_is_back(run: Run) -> None:
    """One GPU falls off the bus: it has a gap in both sources, the other one is read on."""
    gaps, counts, reasons = run("""
        stub = make(2)
        with stub.load_in_process():
            time_ = FakeClock(1000.0)
            quick, slow = NvmlSource(["all"]), NvmlSlowSource(["all"])
            sampler = Sampler(Recording(), [quick, slow], time_)
            drive(sampler, time_, 2.05, lambda: stub.lose(1), 4.05, lambda: stub.find(1), 6.05)
            recording = sampler.recording
            ids = [d.id for d in recording.devices]
            said(sorted([g.source, ids.index(g.device), round(g.start, 3), round(g.end, 3),
                         g.reason] for g in recording.gaps()),
                 [len(recording.times("nvml", i)) for i in ids] +
                 [len(recording.times("nvml_slow", i)) for i in ids], sampler.reasons)
            assert stub.init_balance == 0
    """)
    why = "the GPU is lost (fallen off the bus, or reset)"
    assert gaps == [["nvml", 1, 1002.1, 1004.1, why], ["nvml_slow", 1, 1003.0, 1005.0, why]]
    assert counts == [61, 41, 7, 5]
    assert reasons == {}


@needs_stub
def test_nvml_that_somebody_shut_down_is_opened_again(run: Run) -> None:
    """A library that shuts NVML down for all makes a gap, after which both sources go on."""
    gaps, last, balance = run("""
        import pynvml
        stub = make()
        with stub.load_in_process():
            time_ = FakeClock(1000.0)
            sources = [NvmlSource(), NvmlSlowSource()]
            sampler = Sampler(Recording(), sources, time_)
            def shut():
                pynvml.nvmlShutdown()
                pynvml.nvmlShutdown()
            drive(sampler, time_, 1.55, shut, 9.05)
            recording = sampler.recording
            (device,) = recording.devices
            said([[g.source, g.device, g.reason] for g in recording.gaps()],
                 [recording.times(s.name, device.id)[-1] for s in sources], stub.init_balance)
    """)
    why = "somebody shut NVML down in this process"
    assert ["nvml", None, why] in gaps
    assert all(gap[2] == why for gap in gaps)
    assert last == [pytest.approx(1009.0, abs=0.06), pytest.approx(1008.6, abs=0.5)]
    assert balance == 0


@needs_stub
def test_inits_and_shutdowns_are_balanced(run: Run) -> None:
    """However often sources are opened, closed or refused, no reference is left, nor taken away."""
    assert run("""
        import pynvml
        stub = make(2)
        with stub.load_in_process():
            pynvml.nvmlInit()  # the user's own
            for _ in range(3):
                for kind in (NvmlSource, NvmlSlowSource):
                    source = opened(kind)
                    records(source)
                    source.close()
                    source.close()
            refusal("7")
            refusal("GPU-none")
            quick = NvmlSource()
            quick.open()
            try:
                quick.open()
            finally:
                quick.close()
            pynvml.nvmlDeviceGetCount()
            balance = stub.init_balance
            pynvml.nvmlShutdown()
            said(balance, stub.init_balance)
    """) == [1, 0]


@needs_stub
def test_a_forked_child_does_not_use_its_parents_nvml(run: Run) -> None:
    """In a child the source counts as closed, and closing it there shuts nothing down."""
    assert run("""
        stub = make()
        with stub.load_in_process():
            source = opened()
            pid = os.fork()
            if not pid:
                try:
                    records(source)
                except GpuMagicError as error:
                    source.close()
                    os._exit(5 if "closed in this process" in str(error) else 6)
                os._exit(7)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            still = len(values(source))
            source.close()
            said(code, still, stub.init_balance)
    """) == [5, 13, 0]


@needs_stub
def test_nothing_that_blocks_is_called(run: Run) -> None:
    """PCIe throughput, which blocks for 20 ms, is never asked; constants are asked once."""
    asked, again = run("""
        stub = make(log_calls=True)
        with stub.load_in_process():
            source, slow = opened(), opened(NvmlSlowSource)
            for _ in range(3):
                records(source)
                records(slow)
            asked = sorted({call.symbol for call in stub.calls()})
            stub.forget_calls()
            records(source)
            said(asked, sorted(call.symbol for call in stub.calls()))
            source.close(); slow.close()
    """)
    assert "nvmlDeviceGetPcieThroughput" not in asked
    assert "nvmlDeviceGetUtilizationRates" in asked
    assert len(again) == 10
    for constant in ("MaxClock", "Threshold", "PowerLimit", "Energy", "Processes", "UUID", "Name"):
        assert not [symbol for symbol in again if constant in symbol]


@pytest.mark.parametrize("kind", ["package", "module"])
def test_an_impostor_is_named_with_its_remedy(run: Run, tmp_path: Path, kind: str) -> None:
    """A package that hides nvidia-ml-py, or a module that is not it, is told how to remove."""
    if kind == "package":
        (tmp_path / "site" / "pynvml").mkdir(parents=True)
        (tmp_path / "site" / "pynvml" / "__init__.py").write_text(
            "def nvmlDeviceGetMemoryInfo(handle): ...\n"
        )
    else:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "pynvml.py").write_text("")
    said = run("said(refusal())", first_on_path=tmp_path / "site")
    assert said == (
        "SourceUnavailable: the abandoned package pynvml hides nvidia-ml-py: pip uninstall -y"
        " pynvml && pip install --force-reinstall nvidia-ml-py"
    )


def test_without_nvidia_ml_py_the_remedy_is_named(run: Run, tmp_path: Path) -> None:
    """A missing binding says what to install."""
    said = run("""
        sys.modules["pynvml"] = None
        said(refusal())
    """)
    assert said == (
        "SourceUnavailable: nvidia-ml-py is not installed: pip install nvidia-ml-py"
    )


# -- quick calls -----------------------------------------------------------------------------


class Times:
    """A clock in whose time each call takes what was planned."""

    def __init__(self, *takes: float) -> None:
        self.now = 0.0
        self.takes = iter(takes)

    def __call__(self) -> float:
        return self.now

    def work(self, *_: object) -> int:
        self.now += next(self.takes)
        return 0


SLOW, QUICK = SLOW_CALL_S * 1.01, SLOW_CALL_S * 0.99


def _call_with(*takes: float) -> tuple[QuickCall, Times]:
    clock = Times(*takes)
    return QuickCall("nvmlX", keep=clock.work, release=lambda *_: 7, clock=clock), clock


def test_a_call_that_was_slow_once_releases_the_gil() -> None:
    """Over 5 ms once, and the next call releases the GIL; below, it goes on keeping it."""
    call, _ = _call_with(QUICK, QUICK, SLOW)
    assert [call(1, 2) for _ in range(3)] == [0, 0, 0]
    assert call.demoted
    assert call(1, 2) == 7


def test_a_demoted_call_is_tried_again_after_a_minute() -> None:
    """A slow call can be the scheduler's doing: after a minute the GIL is kept again."""
    call, clock = _call_with(SLOW, QUICK)
    call()
    clock.now += 59
    assert call() == 7
    clock.now += 1.1
    assert call() == 0
    assert not call.demoted


@needs_stub
def test_a_slow_driver_call_is_demoted(run: Run) -> None:
    """A call that takes 6 ms at each reading releases the GIL, alone."""
    demoted, read = run("""
        stub = make()
        with stub.load_in_process():
            source = opened()
            stub.delay({"nvmlDeviceGetPowerUsage": 6_000})
            records(source)
            said(source.demoted, len(values(source)))
            source.close()
    """)
    assert demoted == ["nvmlDeviceGetPowerUsage"]
    assert read == 13


def test_codes_have_words() -> None:
    """A known code is told in words, an unknown one by its number."""
    assert reason_of(3) == "not supported by this GPU"
    assert reason_of(12345) == "NVML error 12345"


# -- time held back ----------------------------------------------------------------------------

HELD = [f"gpu_{name}_limited_seconds" for name in ("power", "thermal", "sync_boost", "power_brake")]


@needs_stub
def test_the_drivers_counters_of_limits_are_read(run: Run) -> None:
    """Nanoseconds become seconds; a field that the driver lacks is absent with its reason."""
    read, absent, calls = run("""
        stub = make(clock_us=1_000_000)
        stub.gpu(0, power_violation_ns=12_500_000_000, thermal_violation_ns=0)
        stub.fail_field(0, 76, 3)
        stub.fail_field(0, 271, 2)
        with stub.load_in_process():
            source = opened(NvmlSlowSource)
            stub.write(log_calls=True)
            read = values(source)
            said(read, dict(source.devices()[0].absent),
                 len(stub.calls("nvmlDeviceGetFieldValues")))
            source.close()
    """)
    assert [read.get(name) for name in HELD] == [pytest.approx(12.5), 0, None, None]
    assert [absent.get(name) for name in HELD] == [
        None, None, "not supported by this GPU", "this driver does not know field 271",
    ]
    assert calls == 1


@needs_stub
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ('make(without=["nvmlDeviceGetFieldValues"])', "this driver does not know the call"),
        ('make(); stub.fail("nvmlDeviceGetFieldValues", 4)', "no permission"),
    ],
)
def test_without_the_call_all_limits_are_absent(run: Run, setting: str, reason: str) -> None:
    """A driver that lacks or refuses the call leaves the energy counter, and says why."""
    read, absent = run(f"""
        stub = {setting}
        with stub.load_in_process():
            source = opened(NvmlSlowSource)
            said(sorted(values(source)), dict(source.devices()[0].absent))
            source.close()
    """)
    assert "gpu_energy_joules" in read
    assert not set(read) & set(HELD)
    assert {absent[name] for name in HELD} == {reason}


@needs_stub
def test_energy_is_read_once_a_minute_while_it_is_only_looked_at(run: Run) -> None:
    """The dear counter is left out between, with the same reason if it is absent, else in place.

    Measuring has it in each reading at once; a GPU that was lost has it in its first one.
    """
    seen, there, reasons = run("""
        stub = make(log_calls=True)
        now = 1000.0
        def reading(source):
            stub.forget_calls()
            found = records(source, lambda: now)
            asked = len(stub.calls("nvmlDeviceGetTotalEnergyConsumption"))
            held = [sorted(one.values) for one in found if isinstance(one, Sample)]
            return [asked, *(["gpu_energy_joules" in names and len(names) for names in held])]
        with stub.load_in_process():
            source = opened(NvmlSlowSource)
            source.looking = True
            seen = []
            for now in (1000.0, 1001.0, 1059.0, 1060.5, 1061.5):
                seen.append(reading(source))
            source.looking = False
            seen.append(reading(source))
            source.looking = True
            seen.append(reading(source))
            there = ["gpu_power_limited_seconds" in one.values
                     for one in records(source, lambda: now)]
            stub.lose(0)
            seen.append(reading(source))
            stub.find(0)
            seen.append(reading(source))
            source.close()
            stub.fail("nvmlDeviceGetTotalEnergyConsumption", 3)
            source = opened(NvmlSlowSource)
            source.looking = True
            reasons = []
            for now in (2000.0, 2001.0):
                records(source, lambda: now)
                reasons.append(source.devices()[0].absent.get("gpu_energy_joules"))
            source.close()
            said(seen, there, reasons)
    """)
    with_energy, without = seen[0], seen[1]
    assert with_energy[0] == 1
    assert with_energy[1] > 1
    assert without == [0, False]
    assert seen[2:7] == [without, with_energy, without, with_energy, without]
    assert there == [True]
    assert seen[7:] == [[0], with_energy]
    assert reasons == ["not supported by this GPU"] * 2


# -- after a stall -----------------------------------------------------------------------------

STALL = """
    stub = make(clock_us=1_000_000_000)
    now = 1000.0
    def at(time):
        global now
        now = time
        stub.write(clock_us=round((now + {driver_ahead}) * 1e6))
    def read():
        async def take():
            return [record async for record in source.read(lambda: now)]
        return asyncio.run(take())
    stub.gpu(0, power_mw=300_000, utilization=40)
"""


@needs_stub
@pytest.mark.parametrize("driver_ahead", [0, -900, 5000])
def test_rings_fill_a_stall(run: Run, driver_ahead: int) -> None:
    """After a stall power and utilization come at their own times, whatever the driver's clock."""
    before, found, after, asked = run(STALL.format(driver_ahead=driver_ahead) + """
    with stub.load_in_process():
        source = opened()
        at(1000.05)
        before = [len(read()) for _ in range(2)]
        at(1002.05)
        found = [[r.time, dict(r.values)] for r in read()]
        at(1002.15)
        stub.write(log_calls=True)
        after = len(read())
        said(before, found, after, [c.symbol for c in stub.calls("nvmlDeviceGetSamples")])
        source.close()
    """)
    assert before == [1, 1]
    *kept, (time, present) = found
    assert time == 1002.05
    assert len(present) == 13
    times = [time for time, _ in kept]
    assert times == sorted(set(times))
    assert 1000.05 < times[0] < 1000.3
    assert 1001.8 < times[-1] < 1002.05
    power = [(t, v["gpu_power_watts"]) for t, v in kept if "gpu_power_watts" in v]
    use = [(t, v["gpu_utilization_ratio"]) for t, v in kept if "gpu_utilization_ratio" in v]
    assert all(set(v) <= {"gpu_power_watts", "gpu_utilization_ratio"} for _, v in kept)
    assert 19 <= len(power) <= 21
    assert 9 <= len(use) <= 10
    assert {round(v) for _, v in power} == {300}
    assert {v for _, v in use} == {0.4}
    assert after == 1
    assert asked == []


@needs_stub
def test_a_long_stall_is_filled_as_far_as_the_rings_go(run: Run) -> None:
    """Power goes back 2.4 s and utilization 14 s; before that there is nothing."""
    power, use = run(STALL.format(driver_ahead=0) + """
    with stub.load_in_process():
        source = opened()
        read()
        at(1060.0)
        found = read()[:-1]
        said(*[[r.time for r in found if name in r.values]
               for name in ("gpu_power_watts", "gpu_utilization_ratio")])
        source.close()
    """)
    assert power[0] == pytest.approx(1057.7, abs=0.15)
    assert use[0] == pytest.approx(1046.0, abs=0.5)


@needs_stub
@pytest.mark.parametrize(
    "setting",
    [
        'stub.fail("nvmlDeviceGetSamples", 3)',
        'stub.fail("nvmlDeviceGetSamples", 6)',
        'stub.gpu(0, power_mw=None, utilization=None)',
    ],
)
def test_a_ring_that_does_not_answer_gives_nothing(run: Run, setting: str) -> None:
    """Not supported and not found leave the present reading alone; the stall stays a hole."""
    assert run(STALL.format(driver_ahead=0) + f"""
    {setting}
    with stub.load_in_process():
        source = opened()
        read()
        at(1003.0)
        said([r.time for r in read()])
        source.close()
    """) == [1003.0]


@needs_stub
def test_a_ring_that_gives_one_thing_gives_that(run: Run) -> None:
    """Where only utilization is known, its readings come without power."""
    assert run(STALL.format(driver_ahead=0) + """
    stub.gpu(0, power_mw=None)
    with stub.load_in_process():
        source = opened()
        read()
        at(1003.0)
        said(sorted({name for r in read()[:-1] for name in r.values}))
        source.close()
    """) == ["gpu_utilization_ratio"]


@needs_stub
def test_large_intervals_are_no_stall(run: Run) -> None:
    """At a reading every 5 s, 5 s without one are as planned; 16 s are a stall."""
    assert run(STALL.format(driver_ahead=0) + """
    with stub.load_in_process():
        source = opened()
        source.period_s = 5.0
        read()
        counts = []
        for time in (1005.0, 1010.1, 1026.2):
            at(time)
            counts.append(len(read()) > 1)
        said(counts)
        source.close()
    """) == [False, False, True]


@needs_stub
def test_a_loss_is_not_filled(run: Run) -> None:
    """What the driver kept while a GPU was lost does not end its gap early."""
    assert run(STALL.format(driver_ahead=0) + """
    with stub.load_in_process():
        source = opened()
        read()
        at(1000.1)
        stub.lose(0)
        kinds = [type(r).__name__ for r in read()]
        at(1003.0)
        stub.find(0)
        said(kinds, [type(r).__name__ for r in read()])
        source.close()
    """) == [["Gap"], ["Sample"]]


def test_a_rings_stamps_are_put_on_our_clock() -> None:
    """Stamps near to now are taken; others are moved so that the newest one is now."""
    epoch = [(1000.0, 1.0), (998.0, 3.0), (999.0, 2.0), (997.0, 4.0)]
    assert place(epoch, 997.5, 1001.5) == [(998.0, 3.0), (999.0, 2.0), (1000.0, 1.0)]
    boot = [(t - 950, v) for t, v in epoch]
    assert place(boot, 998.0, 1001.5) == [(998.5, 4.0), (999.5, 3.0), (1000.5, 2.0)]
    # What is stamped after now is left to the present reading.
    assert place(epoch, 997.5, 999.5) == [(998.0, 3.0), (999.0, 2.0)]
    assert place([], 0, 1) == []


def test_points_are_thinned_to_their_means() -> None:
    """All points of a tenth of a second become one, at the time of the last of them."""
    points = [(10.0 + 0.02 * n + 0.001, float(n)) for n in range(10)]
    assert thin(points, 0.1) == [
        (pytest.approx(10.081), pytest.approx(2)), (pytest.approx(10.181), pytest.approx(7)),
    ]
    assert thin(points, 0) == points


# -- processes -------------------------------------------------------------------------------

OWN, OTHERS = "gpu_process_memory_bytes", "gpu_other_processes_memory_bytes"


@pytest.mark.parametrize(
    ("processes", "visible", "split"),
    [
        ([(1, 100)], [1], {OWN: 100, OTHERS: 0}),
        ([(1, 100), (2, 30), (3, 4)], [1, 2, 3], {OWN: 100, OTHERS: 34}),
        ([(2, 30)], [2], {OTHERS: 30}),
        ([(1, 100)], [], {OWN: 100, OTHERS: 0}),
        ([(900, 50)], [], {}),
        ([(1, 100), (900, 50)], [1], {}),
        ([(1, None)], [1], {}),
        ([(1, 100), (2, None)], [1, 2], {}),
        ([(0, 10)], [], {}),
        ([(4294967295, 10)], [], {}),
    ],
)
def test_memory_is_split_only_if_every_process_is_known(
    processes: list[tuple[int, int | None]], visible: list[int], split: dict[str, float]
) -> None:
    """Hidden sizes and PIDs of another namespace make both figures absent, not zero."""
    assert split_memory(processes, own_pid=1, visible=visible) == split


@needs_stub
def test_processes_are_told_apart(run: Run) -> None:
    """Our own memory and others' come from the driver's list; the host's PIDs make them absent."""
    own, hidden, unsized, refused = run("""
        stub = make()
        with stub.load_in_process():
            source = opened(NvmlSlowSource)
            found = []
            for processes in (f"self:1000,{os.getppid()}:500", "self:1000,4194399:500", "self:na"):
                stub.gpu(0, processes=processes)
                read = values(source)
                found.append([{name: read[name] for name in read if "memory" in name},
                              {name: why for name, why in source.devices()[0].absent.items()
                               if "memory" in name}])
            stub.gpu(0, processes="self:1000")
            stub.fail("nvmlDeviceGetComputeRunningProcesses_v3", 4)
            values(source)
            said(*found, {name: why for name, why in source.devices()[0].absent.items()
                          if "memory" in name})
            source.close()
    """)
    assert own == [{OWN: 1000, OTHERS: 500}, {}]
    for read, absent in (hidden, unsized):
        assert read == {}
        assert set(absent) == {OWN, OTHERS}
        assert set(absent.values()) == {
            "the driver gives no process of this PID namespace (a container, or WSL)"
        }
    assert refused == {OWN: "no permission", OTHERS: "no permission"}


@needs_stub
def test_the_load_of_other_processes_is_told(run: Run) -> None:
    """Others' kernels count as their share of the time, ours do not; at first nothing is known."""
    first, shared, absurd, idle, unknown, alone = run("""
        LOAD = "gpu_other_processes_utilization_ratio"
        stub = make()
        other = os.getppid()

        def load(source):
            time.sleep(0.002)  # entries have stamps of the driver's own clock, in microseconds
            found = values(source).get(LOAD)
            return found if found is not None else source.devices()[0].absent.get(LOAD)

        with stub.load_in_process():
            source = opened(NvmlSlowSource)
            stub.gpu(0, processes=f"self:1000,{other}:500",
                     process_utilization=f"self:40,{other}:30")
            found = [load(source), load(source)]
            stub.gpu(0, process_utilization=f"{other}:250")
            found.append(load(source))
            stub.gpu(0, process_utilization="")
            found.append(load(source))
            stub.gpu(0, process_utilization=None)
            found.append(load(source))
            stub.gpu(0, processes="self:1000")
            said(*found, load(source))
            source.close()
    """)
    assert first == "its first reading speaks of an unknown time"
    assert shared == pytest.approx(0.3)
    assert absurd == 0.0
    assert idle == 0.0
    assert unknown == "not supported by this GPU"
    assert alone is None
