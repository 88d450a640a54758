"""The stub driver speaks NVML's ABI, as the real nvidia-ml-py hears it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import nvml_stub
from nvml_stub import H200, LEGACY, MEASURED_DELAYS_US, UNIFIED, NvmlStub

pytestmark = pytest.mark.skipif(nvml_stub.compiler() is None, reason="needs Linux and gcc")
pytest.importorskip("pynvml")

PROLOGUE = """
import json, os, sys, time
import pynvml as n

def failing(call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as error:
        return type(error).__name__
    return "no error"

def said(value):
    print(json.dumps(value), flush=True)

def told():
    return sys.stdin.readline()
"""
READY = "n.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n"
END = "\nn.nvmlShutdown()\n"

MakeStub = Callable[..., NvmlStub]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml-libraries")


@pytest.fixture
def make_stub(tmp_path: Path, libraries: Path) -> MakeStub:
    def make(*arguments: Any, **options: Any) -> NvmlStub:
        return NvmlStub(tmp_path, *arguments, libraries=libraries, **options)

    return make


def start(stub: NvmlStub, script: str, ready: str = READY, end: str = END) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + ready + textwrap.dedent(script) + end],
        env=stub.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(stub: NvmlStub, script: str, ready: str = READY, end: str = END) -> Any:
    """Run a script beside the stub and return the last thing it said."""
    out, errors = start(stub, script, ready, end).communicate(timeout=60)
    assert not errors, errors
    return json.loads(out.splitlines()[-1])


class Talk:
    """A script that answers a line for each line it is told."""

    def __init__(self, stub: NvmlStub, expression: str) -> None:
        self.process = start(stub, f"while told():\n    said({expression})")

    def ask(self) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *raised: object) -> None:
        _, errors = self.process.communicate(timeout=60)
        assert not errors, errors


def test_the_system_answers(make_stub: MakeStub) -> None:
    """Versions and the number of devices are those of the state."""
    stub = make_stub(4)
    script = """
    said([n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(),
          n.nvmlSystemGetCudaDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2(),
          n.nvmlDeviceGetCount(), n.nvmlErrorString(15)])
    """
    assert run(stub, script) == ["580.159.04", "13.580.159.04", 13000, 13000, 4, "GPU is lost"]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_every_gpu_is_found_by_index_uuid_and_bus(make_stub: MakeStub, count: int) -> None:
    """Index, UUID and PCI address each lead to the same device, and no two share one."""
    script = """
    found = []
    for i in range(n.nvmlDeviceGetCount()):
        h = n.nvmlDeviceGetHandleByIndex(i)
        uuid, bus = n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetPciInfo(h).busId
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)) == i
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(bus)) == i
        assert n.nvmlDeviceGetMinorNumber(h) == i
        found.append((uuid, bus))
    said([len(set(found)), failing(n.nvmlDeviceGetHandleByIndex, i + 1),
          failing(n.nvmlDeviceGetHandleByUUID, "GPU-none"),
          failing(n.nvmlDeviceGetHandleByPciBusId, "00000000:FF:00.0")])
    """
    assert run(make_stub(count), script) == [
        count,
        "NVMLError_InvalidArgument",
        "NVMLError_NotFound",
        "NVMLError_NotFound",
    ]


CONSTANTS: dict[str, Any] = {
    "n.nvmlDeviceGetName(h)": "NVIDIA H200",
    "n.nvmlDeviceGetUUID(h)": "GPU-11111111-2222-3333-4444-555555555555",
    "n.nvmlDeviceGetPciInfo(h).busId": "00000000:0B:00.0",
    "n.nvmlDeviceGetPciInfo(h).busIdLegacy": "0000:0B:00.0",
    "n.nvmlDeviceGetPciInfo(h).bus": 0x0B,
    "n.nvmlDeviceGetPciInfo(h).pciDeviceId": 0x233510DE,
    "n.nvmlDeviceGetArchitecture(h)": 9,
    "n.nvmlDeviceGetCudaComputeCapability(h)": [9, 0],
    "n.nvmlDeviceGetPersistenceMode(h)": 1,
    "n.nvmlDeviceGetNumGpuCores(h)": 16896,
    "n.nvmlDeviceGetMemoryBusWidth(h)": 6016,
    "n.nvmlDeviceGetCurrPcieLinkGeneration(h)": 5,
    "n.nvmlDeviceGetMaxPcieLinkGeneration(h)": 5,
    "n.nvmlDeviceGetCurrPcieLinkWidth(h)": 16,
    "n.nvmlDeviceGetMaxPcieLinkWidth(h)": 16,
    "n.nvmlDeviceGetEnforcedPowerLimit(h)": 700_000,
    "n.nvmlDeviceGetPowerManagementLimit(h)": 700_000,
    "n.nvmlDeviceGetPowerManagementDefaultLimit(h)": 700_000,
    "n.nvmlDeviceGetPowerManagementLimitConstraints(h)": [200_000, 700_000],
    "[n.nvmlDeviceGetTemperatureThreshold(h, t) for t in range(4)]": [95, 89, 95, 87],
    "n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)": 1980,
    "n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM)": 3201,
    "n.nvmlDeviceGetSupportedClocksEventReasons(h)": 0x1FF,
    "n.nvmlDeviceGetMigMode(h)": [0, 0],
    "n.nvmlDeviceGetMaxMigDeviceCount(h)": 0,
    "n.nvmlDeviceIsMigDeviceHandle(h).value": 0,
    "n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total": 262144 << 20,
    "n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used": 1_703_936,
    "n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Free": (262144 << 20) - 1_703_936,
}
GIB = 1 << 30
RESERVED = 644_939_776
MEASUREMENTS: dict[str, Any] = {
    "n.nvmlDeviceGetUtilizationRates(h).gpu": 73,
    "n.nvmlDeviceGetUtilizationRates(h).memory": 21,
    "n.nvmlDeviceGetMemoryInfo(h).total": 143771 << 20,
    "n.nvmlDeviceGetMemoryInfo(h).used": 10 * GIB + RESERVED,
    "n.nvmlDeviceGetMemoryInfo(h).free": (143771 << 20) - RESERVED - 10 * GIB,
    "n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).total": 143771 << 20,
    "n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used": 10 * GIB,
    "n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).reserved": RESERVED,
    "n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).free": (143771 << 20) - RESERVED - 10 * GIB,
    "failing(n.nvmlDeviceGetMemoryInfo, h, 0x03000028)": "NVMLError_FunctionNotFound",
    "n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)": 64,
    "n.nvmlDeviceGetTemperatureV(h, n.NVML_TEMPERATURE_GPU)": 64,
    "n.nvmlDeviceGetMarginTemperature(h)": 25,
    "n.nvmlDeviceGetPowerUsage(h)": 612_345,
    "n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)": 1755,
    "n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_GRAPHICS)": 1755,
    "n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)": 3201,
    "n.nvmlDeviceGetCurrentClocksEventReasons(h)": 4,
    "n.nvmlDeviceGetCurrentClocksThrottleReasons(h)": 4,
    "n.nvmlDeviceGetPerformanceState(h)": 2,
    "n.nvmlDeviceGetPowerState(h)": 2,
    "n.nvmlDeviceGetEncoderUtilization(h)": [11, 100_000],
    "n.nvmlDeviceGetDecoderUtilization(h)": [12, 100_000],
    "n.nvmlDeviceGetTotalEnergyConsumption(h)": 5_000,
    "n.nvmlDeviceGetPcieThroughput(h, n.NVML_PCIE_UTIL_TX_BYTES)": 1_000,
    "n.nvmlDeviceGetPcieThroughput(h, n.NVML_PCIE_UTIL_RX_BYTES)": 2_000,
    "n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice": 1,
}
WORKING: dict[str, Any] = {
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "utilization": 73,
    "memory_utilization": 21,
    "memory_used": 10 * GIB,
    "temperature": 64,
    "memory_temperature": 70,
    "power_mw": 612_345,
    "sm_clock_mhz": 1755,
    "graphics_clock_mhz": 1755,
    "clock_event_reasons": 4,
    "pstate": 2,
    "encoder": 11,
    "decoder": 12,
    "energy_mj": 5_000,
    "pcie_tx_kib_s": 1_000,
    "pcie_rx_kib_s": 2_000,
}


def test_constants_and_measurements_come_through(make_stub: MakeStub) -> None:
    """Each struct and each number arrives through nvidia-ml-py as the state has it."""
    stub = make_stub(clock_us=0)
    stub.gpu(0, **WORKING)
    expected = CONSTANTS | MEASUREMENTS
    script = f"said({{text: eval(text) for text in {list(expected)!r}}})"
    assert run(stub, script) == expected


def test_an_absent_key_is_not_supported(make_stub: MakeStub) -> None:
    """A device without a quantity answers not supported, never zero."""
    stub = make_stub([LEGACY, UNIFIED])
    script = """
    g = n.nvmlDeviceGetHandleByIndex(1)
    said([failing(n.nvmlDeviceGetPowerUsage, h), failing(n.nvmlDeviceGetTotalEnergyConsumption, h),
          failing(n.nvmlDeviceGetMigMode, h), failing(n.nvmlDeviceGetEncoderUtilization, h),
          failing(n.nvmlDeviceGetMemoryInfo, g), failing(n.nvmlDeviceGetMemoryInfo, g, 0x02000028),
          n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice,
          n.nvmlDeviceGetFieldValues(h, [83])[0].nvmlReturn])
    """
    assert run(stub, script) == ["NVMLError_NotSupported"] * 6 + [0, 3]


def test_processes_come_through_in_both_versions(make_stub: MakeStub) -> None:
    """Processes have PIDs and bytes, `self` is the asking process, and `na` is None."""
    stub = make_stub(2)
    stub.gpu(0, processes="self:1024,4294967295:na,0:5", graphics_processes="7:8")
    script = """
    def listed(call):
        return [[p.pid - os.getpid() if p.pid == os.getpid() else p.pid, p.usedGpuMemory]
                for p in call(h)]
    said([listed(n.nvmlDeviceGetComputeRunningProcesses_v2),
          listed(n.nvmlDeviceGetComputeRunningProcesses),
          listed(n.nvmlDeviceGetGraphicsRunningProcesses_v2),
          listed(n.nvmlDeviceGetGraphicsRunningProcesses),
          listed(n.nvmlDeviceGetMPSComputeRunningProcesses_v2),
          listed(n.nvmlDeviceGetMPSComputeRunningProcesses),
          n.nvmlDeviceGetComputeRunningProcesses(h)[0].gpuInstanceId])
    """
    compute = [[0, 1024], [4294967295, None], [0, 5]]
    graphics = [[7, 8]]
    assert run(stub, script) == [compute, compute, graphics, graphics, [], [], 0xFFFFFFFF]


def test_field_values_have_types_and_their_own_errors(make_stub: MakeStub) -> None:
    """Each field value has its type, stamp and return code, and counters of bytes have 32 bits."""
    stub = make_stub(clock_us=1_000_000)
    stub.gpu(0, power_violation_ns=11, thermal_violation_ns=22, **WORKING)
    stub.gpu(0, pcie_tx_bytes=33, pcie_rx_bytes=(1 << 32) + 44)
    stub.fail_field(0, 186, 4)
    script = """
    found = n.nvmlDeviceGetFieldValues(h, [74, 75, 82, 83, 185, 186, (197, 0), 198, 190, 191, 9999])
    assert {v.timestamp for v in found[:-1]} == {1_000_000}
    said([[v.fieldId, v.nvmlReturn, v.valueType,
           v.value.ullVal if v.valueType == n.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
           else v.value.uiVal] for v in found])
    """
    assert run(stub, script) == [
        [74, 0, 3, 11],
        [75, 0, 3, 22],
        [82, 0, 1, 70],
        [83, 0, 3, 5_000],
        [185, 0, 1, 612_345],
        [186, 4, 1, 0],
        [197, 0, 1, 33],
        [198, 0, 1, 44],
        [190, 0, 1, 700_000],
        [191, 0, 1, 5_000],
        [9999, 2, 0, 0],
    ]


def test_the_rings_hold_what_the_counters_said(make_stub: MakeStub) -> None:
    """Power has 119 samples 20 ms apart, utilization 71 at 200 ms, and a cursor leaves old out."""
    stub = make_stub(clock_us=100_000_000)
    stub.gpu(0, **WORKING)
    script = """
    kind, power = n.nvmlDeviceGetSamples(h, n.NVML_TOTAL_POWER_SAMPLES, 0)
    _, used = n.nvmlDeviceGetSamples(h, n.NVML_GPU_UTILIZATION_SAMPLES, 0)
    _, new = n.nvmlDeviceGetSamples(h, n.NVML_TOTAL_POWER_SAMPLES, power[-3].timeStamp)
    said([kind, len(power), power[-1].timeStamp, power[1].timeStamp - power[0].timeStamp,
          power[0].sampleValue.uiVal, len(used), used[1].timeStamp - used[0].timeStamp,
          used[0].sampleValue.uiVal, len(new),
          failing(n.nvmlDeviceGetSamples, h, n.NVML_TOTAL_POWER_SAMPLES, power[-1].timeStamp),
          failing(n.nvmlDeviceGetSamples, h, n.NVML_PROCESSOR_CLK_SAMPLES, 0)])
    """
    power = [1, 119, 100_000_000, 20_000, 612_345]
    missing = ["NVMLError_NotFound"] * 2
    assert run(stub, script) == [*power, 71, 200_000, 73, 2, *missing]


GPM = """
def metrics(first, second, ids):
    get = n.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(ids)
    get.sample1, get.sample2 = first, second
    for i, id in enumerate(ids):
        get.metrics[i].metricId = id
    n.nvmlGpmMetricsGet(get)
    return [[m.nvmlReturn, None if m.value != m.value else m.value]
            for m in get.metrics[: len(ids)]]
first, second = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
"""
GPM_END = "\nn.nvmlGpmSampleFree(first)\nn.nvmlGpmSampleFree(second)" + END


def test_gpm_needs_two_samples_100_ms_apart(make_stub: MakeStub) -> None:
    """GPM gives values over 100 ms or more, NaN or 0 over less, and frees what it took."""
    stub = make_stub(clock_us=1_000_000)
    stub.gpu(0, utilization=100, pcie_tx_kib_s=2048)
    stub.gpm(0, {2: 88.5})
    script = """
    before = [metrics(first, second, [1]), failing(metrics, first, first, [1])]
    n.nvmlGpmSampleGet(h, first)
    while told():
        n.nvmlGpmSampleGet(h, second)
        said([*before, metrics(first, second, [1, 2, 10, 20, 470])])
    """
    process = start(stub, script, READY + GPM, GPM_END)
    assert process.stdin is not None
    assert process.stdout is not None
    before = [[[1, 0.0]], "NVMLError_InvalidArgument"]
    steps: list[tuple[int, Any]] = [
        (1_000_000, [[0, 0.0], [0, 0.0], [0, None], [0, 0.0], [2, 0.0]]),
        (1_200_000, [[0, 93.0], [0, 88.5], [0, 16.0], [0, 2.0], [2, 0.0]]),
    ]
    for clock_us, expected in steps:
        stub.write(clock_us=clock_us)
        process.stdin.write("\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == [*before, expected]
    assert process.communicate(timeout=60)[1] == ""
    assert stub.gpm_balance == 0
    assert len(stub.calls("nvmlGpmSampleFree")) == 2


def test_mig_slices_are_devices(make_stub: MakeStub) -> None:
    """A slice has its own UUID and memory, names its parent, and measures no utilization."""
    stub = make_stub()
    stub.gpu(0, mig=2)
    stub.slice(0, 1, memory_total=18 * GIB, memory_used=GIB, processes="self:5", uuid="MIG-one")
    script = """
    one = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 1)
    said([n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h),
          n.nvmlDeviceIsMigDeviceHandle(one).value,
          n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(one))
              == n.nvmlDeviceGetUUID(h),
          n.nvmlDeviceGetUUID(one), n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID("MIG-one")),
          n.nvmlDeviceGetName(one), n.nvmlDeviceGetGpuInstanceId(one),
          n.nvmlDeviceGetComputeInstanceId(one), n.nvmlDeviceGetMemoryInfo(one).used,
          n.nvmlDeviceGetAttributes(one).memorySizeMB,
          n.nvmlDeviceGetComputeRunningProcesses(one)[0].gpuInstanceId,
          n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0))[:4],
          failing(n.nvmlDeviceGetUtilizationRates, h),
          failing(n.nvmlDeviceGetUtilizationRates, one),
          failing(n.nvmlDeviceGetPowerUsage, one),
          failing(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 2),
          failing(n.nvmlDeviceGetGpuInstanceId, h)])
    """
    identity = [[1, 1], 7, 1, True, "MIG-one", 1, "NVIDIA H200 MIG 1g.18gb", 2, 0]
    assert run(stub, script) == [
        *identity,
        GIB,
        18 * 1024,
        2,
        "MIG-",
        *["NVMLError_NotSupported"] * 3,
        "NVMLError_NotFound",
        "NVMLError_InvalidArgument",
    ]


def test_a_change_reaches_a_running_process(make_stub: MakeStub) -> None:
    """Every write is seen at the next call, even two of the same length in one clock tick."""
    stub = make_stub()
    with Talk(stub, "n.nvmlDeviceGetUtilizationRates(h).gpu") as talk:
        for utilization in (10, 20, 30, 40, 50):
            stub.gpu(0, utilization=99)
            stub.gpu(0, utilization=utilization)
            assert talk.ask() == utilization


def test_a_lost_gpu_comes_back(make_stub: MakeStub) -> None:
    """A GPU lost while a process watches raises GpuIsLost, and its neighbour goes on."""
    stub = make_stub(2)
    calls = """[failing(n.nvmlDeviceGetPowerUsage, h), failing(n.nvmlDeviceGetUUID, h),
        failing(n.nvmlDeviceGetHandleByIndex, 0),
        failing(n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetHandleByIndex(1))]"""
    with Talk(stub, calls) as talk:
        assert talk.ask() == ["no error"] * 4
        stub.lose(0)
        assert talk.ask() == ["NVMLError_GpuIsLost"] * 3 + ["no error"]
        stub.find(0)
        assert talk.ask() == ["no error"] * 4


def test_one_call_can_fail(make_stub: MakeStub) -> None:
    """An error is given to one function, on one GPU or on all, and is taken back."""
    stub = make_stub(2)
    calls = """[failing(n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetHandleByIndex(i))
        for i in (0, 1)] + [failing(n.nvmlDeviceGetName, h)]"""
    with Talk(stub, calls) as talk:
        stub.fail("nvmlDeviceGetPowerUsage", 4, gpu=1)
        assert talk.ask() == ["no error", "NVMLError_NoPermission", "no error"]
        stub.fail("nvmlDeviceGetPowerUsage", 999)
        assert talk.ask() == ["NVMLError_Unknown"] * 2 + ["no error"]
        stub.fail("nvmlDeviceGetPowerUsage", None)
        stub.fail("nvmlDeviceGetPowerUsage", None, gpu=1)
        assert talk.ask() == ["no error"] * 3


@pytest.mark.parametrize(
    ("code", "error"), [(9, "NVMLError_DriverNotLoaded"), (12, "NVMLError_LibraryNotFound")]
)
def test_init_can_fail(make_stub: MakeStub, code: int, error: str) -> None:
    """A failed initialisation has its code, and is no open handle."""
    stub = make_stub(init_error=code)
    assert run(stub, "said(failing(n.nvmlInit))", ready="", end="") == error
    assert stub.init_balance == 0


def test_without_a_state_no_driver_is_loaded(make_stub: MakeStub) -> None:
    """A library whose state file is gone answers as a machine without the driver."""
    stub = make_stub()
    stub.state_path.unlink()
    said = run(stub, "said(failing(n.nvmlInit))", ready="", end="")
    assert said == "NVMLError_DriverNotLoaded"


def test_a_function_can_be_left_out(make_stub: MakeStub) -> None:
    """A build without a function raises FunctionNotFound for it and keeps its relatives."""
    stub = make_stub(without=["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues"])
    script = """
    said([failing(n.nvmlDeviceGetMemoryInfo, h, n.nvmlMemory_v2),
          failing(n.nvmlDeviceGetFieldValues, h, [83]), failing(n.nvmlDeviceGetMemoryInfo, h)])
    """
    assert run(stub, script) == ["NVMLError_FunctionNotFound"] * 2 + ["no error"]


def test_builds_are_kept_apart_and_kept(libraries: Path) -> None:
    """The same build is compiled once, another set of functions gives another library."""
    first = nvml_stub.build(libraries)
    written = first.stat().st_mtime_ns
    assert nvml_stub.build(libraries) == first
    assert first.stat().st_mtime_ns == written
    assert nvml_stub.build(libraries, ["nvmlDeviceGetFieldValues"]) != first


def test_handles_are_counted(make_stub: MakeStub) -> None:
    """Inits are counted, one shutdown too many raises, and the log shows what was left open."""
    stub = make_stub()
    script = """
    said([failing(n.nvmlDeviceGetCount), failing(n.nvmlInit), failing(n.nvmlInit),
          failing(n.nvmlShutdown), failing(n.nvmlDeviceGetCount), failing(n.nvmlShutdown),
          failing(n.nvmlDeviceGetCount), failing(n.nvmlShutdown),
          failing(n.nvmlSystemGetNVMLVersion)])
    """
    good, closed = "no error", "NVMLError_Uninitialized"
    said = run(stub, script, ready="", end="")
    assert said == [closed, good, good, good, good, good, closed, closed, good]
    assert stub.init_balance == 0
    run(stub, "said(0)", end="")
    assert stub.init_balance == 1


def test_calls_are_logged_when_asked_for(make_stub: MakeStub) -> None:
    """With log_calls each call is a line with its GPU and its code; without, only inits are."""
    stub = make_stub(2)
    script = (
        "failing(n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetHandleByIndex(1)); said(os.getpid())"
    )
    run(stub, script)
    assert [call.symbol for call in stub.calls()] == ["nvmlInitWithFlags", "nvmlShutdown"]
    stub.forget_calls()
    stub.write(log_calls=True)
    stub.fail("nvmlDeviceGetPowerUsage", 3, gpu=1)
    pid = run(stub, script)
    (power,) = stub.calls("nvmlDeviceGetPowerUsage")
    assert (power.pid, power.gpu, power.code) == (pid, 1, 3)
    assert len(stub.calls("nvmlDeviceGetHandleByIndex_v2")) == 2
    assert stub.calls("nvmlDeviceGetPcieThroughput") == []


def test_a_forked_child_starts_uninitialised(make_stub: MakeStub) -> None:
    """A child of fork has to initialise anew, and leaves its parent's handle alone."""
    stub = make_stub()
    script = """
    child = os.fork()
    if not child:
        closed = failing(n.nvmlDeviceGetCount)
        n.nvmlInit()
        again = n.nvmlDeviceGetCount()
        n.nvmlShutdown()
        os._exit(0 if (closed, again) == ("NVMLError_Uninitialized", 1) else 1)
    said([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), n.nvmlDeviceGetCount()])
    """
    assert run(stub, script) == [0, 1]
    assert stub.init_balance == 0
    assert len({call.pid for call in stub.calls()}) == 2


def test_a_fork_beside_busy_threads_does_not_hang(make_stub: MakeStub) -> None:
    """The lock is free in a child that was forked while other threads were inside the driver."""
    stub = make_stub()
    script = """
    import threading, warnings
    warnings.simplefilter("ignore")
    stop = threading.Event()
    def work():
        while not stop.is_set():
            n.nvmlDeviceGetUtilizationRates(h)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    codes = set()
    for _ in range(20):
        child = os.fork()
        if not child:
            os._exit(0 if failing(n.nvmlDeviceGetCount) == "NVMLError_Uninitialized" else 1)
        codes.add(os.waitpid(child, 0)[1])
    stop.set()
    for thread in threads:
        thread.join()
    said(sorted(codes))
    """
    assert run(stub, script) == [0]


def test_slow_calls_are_slow(make_stub: MakeStub) -> None:
    """PCIe throughput blocks for 20 ms, and any call can be made to take its time."""
    stub = make_stub()
    stub.delay({**MEASURED_DELAYS_US, "nvmlDeviceGetTotalEnergyConsumption": 5_000})
    script = """
    def milliseconds(call, *arguments):
        start = time.perf_counter()
        call(*arguments)
        return (time.perf_counter() - start) * 1e3
    said([milliseconds(n.nvmlDeviceGetPcieThroughput, h, 0),
          milliseconds(n.nvmlDeviceGetTotalEnergyConsumption, h)])
    """
    pcie, energy = run(stub, script)
    assert pcie >= 20
    assert energy >= 5


COUNTERS = """[n.nvmlDeviceGetTotalEnergyConsumption(h)] + [
    v.value.ullVal for v in n.nvmlDeviceGetFieldValues(h, [83, 74, 75, 197, 198])]"""


def test_counters_run_with_time(make_stub: MakeStub) -> None:
    """Energy is power over time, held-back time and bytes run on, each with the values of then."""
    stub = make_stub(clock_us=0)
    stub.gpu(0, energy_mj=0, power_mw=500_000, clock_event_reasons=4, pcie_tx_kib_s=1)
    with Talk(stub, COUNTERS) as talk:
        assert talk.ask() == [0] * 6
        stub.write(clock_us=2_000_000)
        assert talk.ask() == [1_000_000, 1_000_000, 2_000_000_000, 0, 2048, 0]
        stub.gpu(0, power_mw=100_000, clock_event_reasons=0x40, pcie_tx_kib_s=0)
        assert talk.ask() == [1_000_000, 1_000_000, 2_000_000_000, 0, 2048, 0]
        stub.write(clock_us=3_000_000)
        assert talk.ask() == [1_100_000, 1_100_000, 2_000_000_000, 1_000_000_000, 2048, 0]


def test_a_wave_moves_and_its_energy_follows(make_stub: MakeStub) -> None:
    """With wave the values swing within their bounds, and energy is the integral of the power."""
    stub = make_stub(clock_us=0)
    stub.gpu(0, wave=True, utilization=100, power_mw=700_000, energy_mj=0, memory_used=GIB)
    seen = """[n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetPowerUsage(h),
        n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used,
        n.nvmlDeviceGetTotalEnergyConsumption(h)]"""
    rows = []
    with Talk(stub, seen) as talk:
        for step in range(101):
            stub.write(clock_us=step * 100_000)
            rows.append(talk.ask())
    used, power, memory, energy = zip(*rows, strict=True)
    assert (min(used), max(used)) == (10, 100)
    assert 114_000 < min(power) < max(power) <= 700_000
    assert GIB // 2 < min(memory) < max(memory) <= GIB
    assert list(energy) == sorted(energy)
    by_hand = sum((a + b) / 2 * 0.1 for a, b in pairwise(power))
    assert energy[-1] == pytest.approx(by_hand, rel=1e-3)


def test_many_threads_may_ask(make_stub: MakeStub) -> None:
    """Threads that ask while the state changes see only whole states."""
    stub = make_stub(log_calls=True)
    script = """
    import threading
    seen, go = set(), threading.Event()
    def work():
        go.wait()
        for _ in range(300):
            rates = n.nvmlDeviceGetUtilizationRates(h)
            seen.add((rates.gpu, rates.memory))
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    said("going")
    go.set()
    for thread in threads:
        thread.join()
    said(sorted(seen))
    """
    process = start(stub, script)
    assert process.stdout is not None
    process.stdout.readline()
    for value in range(1, 60):
        stub.gpu(0, utilization=value, memory_utilization=value)
    out, errors = process.communicate(timeout=60)
    assert errors == ""
    assert all(gpu == memory for gpu, memory in json.loads(out))
    assert len(stub.calls("nvmlDeviceGetUtilizationRates")) == 8 * 300


def test_it_loads_into_a_running_process(make_stub: MakeStub, tmp_path: Path) -> None:
    """Loaded in process, the stub is what nvidia-ml-py finds, and one stub follows another."""
    stub = make_stub()
    script = f"""
    sys.path.insert(0, {str(Path(nvml_stub.__file__).parent)!r})
    del os.environ["NVML_STUB_STATE"], os.environ["NVML_STUB_LOG"]
    from pathlib import Path
    from nvml_stub import NvmlStub
    libraries, here = Path({str(stub.library.parent.parent)!r}), Path({str(tmp_path)!r})
    said_so_far = []
    for count in (2, 3):
        inner = NvmlStub(here / str(count), count, libraries=libraries)
        with inner.load_in_process():
            n.nvmlInit()
            said_so_far += [n.nvmlDeviceGetCount(), inner.init_balance]
    other = NvmlStub(here / "other", libraries=libraries, without=["nvmlDeviceGetFieldValues"])
    try:
        with other.load_in_process():
            pass
    except RuntimeError as error:
        said_so_far.append(str(error)[:20])
    said(said_so_far + [failing(n.nvmlDeviceGetCount), "NVML_STUB_STATE" in os.environ])
    """
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    outcome = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(script)],
        env={**environment, "NVML_STUB_STATE": "", "NVML_STUB_LOG": ""},
        capture_output=True,
        text=True,
    )
    assert outcome.stderr == ""
    assert json.loads(outcome.stdout) == [
        *[2, 1, 3, 1],
        "this process already",
        "NVMLError_Uninitialized",
        False,
    ]


def test_misspelt_names_are_refused(make_stub: MakeStub) -> None:
    """A key or symbol that the stub would ignore raises instead."""
    stub = make_stub()
    with pytest.raises(ValueError, match="utilisation"):
        stub.gpu(0, utilisation=1)
    with pytest.raises(ValueError, match="cuont"):
        stub.write(cuont=1)
    with pytest.raises(ValueError, match="nvmlDeviceGetPower"):
        stub.fail("nvmlDeviceGetPower", 3)
    with pytest.raises(ValueError, match="at most 16"):
        make_stub([H200] * 17)
