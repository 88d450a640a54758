"""GPM against a stub driver, met through the real nvidia-ml-py, in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import nvml_stub
from gpumagic.metrics import of_source
from gpumagic.sources.gpm import checked, stamps
from stub_script import run_script

needs_stub = pytest.mark.skipif(nvml_stub.compiler() is None, reason="needs Linux and gcc")
pytest.importorskip("pynvml")

PROLOGUE = """
import asyncio, json, os, sys
from pathlib import Path
from nvml_stub import H200, LEGACY, NvmlStub
from fakes import FakeClock, drive
from gpumagic.errors import GpuMagicError
from gpumagic.recording import Recording
from gpumagic.sample import Gap, Sample
from gpumagic.sampler import Sampler
from gpumagic.sources.gpm import GpmSource

LIBRARIES, HERE = Path(sys.argv[1]), Path(sys.argv[2])
os.environ.pop("CUDA_VISIBLE_DEVICES", None)

class Machine:
    # One stub whose clock the tests move, and a source that reads it.
    def __init__(self, gpus=1, **options):
        self.now = 1000.0
        self.stub = NvmlStub(HERE, gpus, libraries=LIBRARIES, clock_us=self.us(), **options)

    def us(self):
        return round(self.now * 1e6)

    def at(self, now):
        self.now = now
        self.stub.write(clock_us=self.us())

    def open(self, *names):
        self.source = GpmSource(names or ("usable",))
        self.source.open()

    def read(self, now=None):
        if now is not None:
            self.at(now)
        async def take():
            return [record async for record in self.source.read(lambda: self.now)]
        return asyncio.run(take())

    def seen(self, now=None):
        return [[round(r.time, 3), dict(r.values)] if isinstance(r, Sample)
                else ["gap", r.reason, r.source] for r in self.read(now)]

    def absent(self):
        return [dict(device.absent) for device in self.source.devices()]

def said(*values):
    print(json.dumps(values[0] if len(values) == 1 else values))
"""

Run = Callable[[str], Any]
SM, OCCUPANCY, TENSOR, DRAM = (
    f"gpu_{name}_ratio" for name in ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
)
RECEIVE, TRANSMIT = (f"gpu_pcie_{way}_bytes_per_second" for way in ("receive", "transmit"))
ALL = {row.name for row in of_source("gpm")}
LOST = "the GPU is lost (fallen off the bus, or reset)"
UNSUPPORTED = "not supported: SM activity is counted from Hopper on"


@pytest.fixture
def run(tmp_path: Path, libraries: Path) -> Run:
    """Run a script with the stub at hand; return what it said."""
    return lambda script: run_script(PROLOGUE, script, libraries, tmp_path)


# -- values ----------------------------------------------------------------------------------


@needs_stub
def test_a_pair_of_samples_gives_values_in_base_units(run: Run) -> None:
    """Percent and MiB/s become ratios and bytes a second, from the second sample on."""
    first, second, absent, balance = run("""
        machine = Machine()
        machine.stub.gpu(0, utilization=100, pcie_rx_kib_s=2048, pcie_tx_kib_s=1024)
        with machine.stub.load_in_process():
            machine.open()
            found = [machine.seen(), machine.seen(1000.2), machine.absent()]
            machine.source.close()
            said(*found, [machine.stub.init_balance, machine.stub.gpm_balance])
    """)
    assert first == []
    assert second == [[1000.2, {
        SM: pytest.approx(0.89), OCCUPANCY: pytest.approx(0.14), TENSOR: pytest.approx(0.86),
        DRAM: pytest.approx(0.16), RECEIVE: pytest.approx(2 * 2**20),
        TRANSMIT: pytest.approx(2**20),
    }]]
    assert absent == [{}]
    assert balance == [0, 0]


@needs_stub
def test_a_pair_is_at_least_two_tenths_of_a_second(run: Run) -> None:
    """A reading beside a tick, as at a cell's end, is paired with an older sample than the last."""
    taken = run("""
        machine = Machine()
        machine.stub.gpm(0, {2: 10})
        with machine.stub.load_in_process():
            machine.open()
            found = [[now, [r[1].get("gpu_sm_active_ratio") for r in machine.seen(now)]]
                     for now in (1000.0, 1000.1, 1000.15, 1000.25, 1000.3)]
            machine.stub.gpm(0, {2: 30})
            found += [[now, [r[1].get("gpu_sm_active_ratio") for r in machine.seen(now)]]
                      for now in (1000.41, 1000.45)]
            machine.source.close()
            said(found)
    """)
    assert [len(values) for _, values in taken] == [0, 0, 0, 1, 1, 1, 1]
    assert [values[0] for _, values in taken[3:5]] == [pytest.approx(0.1)] * 2


@needs_stub
def test_short_cells_in_a_row_leave_a_sample_that_is_old_enough(run: Run) -> None:
    """Readings every 10 ms, many more than are kept, still give pairs of 0.2 s."""
    times, balance = run("""
        machine = Machine()
        machine.stub.gpu(0, utilization=50)
        with machine.stub.load_in_process():
            machine.open()
            times = [now / 100 for now in range(100000, 100100)
                     if machine.seen(now / 100)]
            balance = machine.stub.gpm_balance
            machine.source.close()
            said(times, [balance, machine.stub.gpm_balance])
    """)
    assert times[0] == pytest.approx(1000.18, abs=0.011)
    assert len(times) > 15
    assert max(b - a for a, b in pairwise(times)) <= 0.2
    assert balance[0] <= 10
    assert balance[1] == 0


@needs_stub
def test_a_stall_leaves_no_hole(run: Run) -> None:
    """A pair over a stall holds for all of it: its values stand every 0.2 s, none before 0.2 s."""
    before, after, later = run("""
        machine = Machine()
        machine.stub.gpu(0, utilization=100)
        with machine.stub.load_in_process():
            machine.open()
            machine.read()
            before = machine.seen(1000.2)
            machine.stub.gpu(0, utilization=50)
            after = machine.seen(1003.3)
            later = machine.seen(1003.5)
            machine.source.close()
            said(before, after, later)
    """)
    assert [time for time, _ in before] == [1000.2]
    times = [time for time, _ in after]
    assert times == pytest.approx([1000.5 + 0.2 * n for n in range(15)])
    assert [values[SM] for _, values in after] == [pytest.approx(0.445)] * 15
    assert [time for time, _ in later] == [1003.5]


@needs_stub
def test_a_machine_that_slept_begins_anew(run: Run) -> None:
    """Over more than ten minutes the counters are not compared."""
    assert run("""
        machine = Machine()
        with machine.stub.load_in_process():
            machine.open()
            machine.read()
            found = [len(machine.seen(now)) for now in (1000.2, 1700.0, 1700.2)]
            machine.source.close()
            said(found, machine.stub.gpm_balance)
    """) == [[1, 0, 1], 0]


@pytest.mark.parametrize(
    ("base", "time", "period", "times"),
    [
        (10.0, 10.2, 0.2, [10.2]),
        (10.0, 10.4, 0.2, [10.4]),
        (10.0, 11.0, 0.2, [10.2, 10.4, 10.6, 10.8, 11.0]),
        (10.0, 11.1, 0.2, [10.3, 10.5, 10.7, 10.9, 11.1]),
        (10.0, 12.0, 1.0, [12.0]),
        (10.0, 15.0, 1.0, [11.0, 12.0, 13.0, 14.0, 15.0]),
        (10.0, 10.3, 0.1, [10.3]),
    ],
)
def test_stamps_fill_a_stall(
    base: float, time: float, period: float, times: list[float]
) -> None:
    """Only a pair over two periods long is told several times, each 0.2 s after its beginning."""
    assert stamps(base, time, period) == pytest.approx(times)


@pytest.mark.parametrize(
    ("metric", "given", "value"),
    [
        (SM, 88.8, 0.888), (SM, 0.0, 0.0), (SM, 103.0, 1.0), (SM, 106.0, None),
        (SM, math.nan, None), (SM, math.inf, None), (SM, -1.0, None), (SM, 1e20, None),
        (RECEIVE, 57344.0, 57344.0 * 2**20), (RECEIVE, -3.07e16, None), (RECEIVE, 3.07e16, None),
        (RECEIVE, math.nan, None),
    ],
)
def test_what_cannot_be_is_no_value(metric: str, given: float, value: float | None) -> None:
    """A little over 1 is 1; NaN, negative and absurd numbers are absent."""
    assert checked(metric, given) == (None if value is None else pytest.approx(value))


@needs_stub
def test_garbage_makes_one_metric_absent(run: Run) -> None:
    """A metric with a bad number or an error of its own is left out, the others stay."""
    garbage, whole, absent = run("""
        machine = Machine(1)
        machine.stub.gpu(0, utilization=100)
        machine.stub.gpm(0, {2: "nan", 10: 130, 21: -3.07e16, 5: 104})
        with machine.stub.load_in_process():
            machine.open()
            machine.read()
            garbage = machine.seen(1000.2)
            machine.stub.gpm(0, {2: None, 10: None, 21: None, 5: None})
            whole = machine.seen(1000.4)
            get = machine.source._cards[0]._get
            get.metrics[2].metricId = 400  # one that this driver does not have
            machine.read(1000.6)
            said(garbage[0][1], whole[0][1], machine.absent()[0])
            machine.source.close()
    """)
    assert set(garbage) == {OCCUPANCY, TENSOR, TRANSMIT}
    assert garbage[TENSOR] == 1.0
    assert set(whole) == ALL
    assert absent == {TENSOR: "NVML error 2"}


# -- what does not count ---------------------------------------------------------------------


@needs_stub
def test_an_old_gpu_says_that_it_does_not_count(run: Run) -> None:
    """Without GPM the metrics are absent with a reason, not 0, and the driver is left alone."""
    seen, absent, asked, balance = run("""
        machine = Machine([LEGACY, {**H200}])
        machine.stub.gpu(1, utilization=100)
        with machine.stub.load_in_process():
            machine.open("all")
            machine.read()
            seen = [len(machine.seen(1000.0 + 0.2 * n)) for n in range(1, 4)]
            absent = machine.absent()
            machine.stub.write(log_calls=True)
            machine.read(1001.0)
            asked = [call.symbol for call in machine.stub.calls() if call.gpu == 0]
            machine.stub.write(log_calls=False)
            machine.source.close()
            said(seen, absent, asked, machine.stub.gpm_balance)
    """)
    assert seen == [1, 1, 1]
    assert absent == [dict.fromkeys(sorted(ALL), UNSUPPORTED) | {}, {}]
    assert asked == []
    assert balance == 0


@needs_stub
@pytest.mark.parametrize(
    ("symbol", "reason"),
    [
        ("nvmlGpmQueryDeviceSupport", "no permission"),
        ("nvmlGpmSampleGet", "no permission"),
        ("nvmlGpmMetricsGet", "no permission"),
    ],
)
def test_a_refusal_is_asked_again_after_a_minute(run: Run, symbol: str, reason: str) -> None:
    """What the driver refuses is absent with its reason, and read again once it is allowed."""
    counts, absent, balance = run(f"""
        machine = Machine()
        with machine.stub.load_in_process():
            machine.open()
            found, absent = [], []
            def look(now):
                found.append(len(machine.seen(now)))
                absent.append(sorted(set(machine.absent()[0].values())))
            machine.stub.fail("{symbol}", 4)
            look(1000.2); look(1000.4)
            machine.stub.fail("{symbol}", None)
            look(1030.0)
            look(1061.0); look(1061.2); look(1061.4)
            machine.source.close()
            said(found, absent, [machine.stub.init_balance, machine.stub.gpm_balance])
    """)
    assert counts[-1] == 1
    assert counts[:3] == [0, 0, 0]
    assert absent[2] == [reason]
    assert absent[-1] == []
    assert balance == [0, 0]


@needs_stub
def test_a_driver_without_gpm_says_so(run: Run, tmp_path: Path) -> None:
    """An older library without the functions makes the metrics absent, not the source fail."""
    assert run("""
        machine = Machine(without=["nvmlGpmQueryDeviceSupport"])
        with machine.stub.load_in_process():
            machine.open()
            found = machine.seen(1000.2)
            said(found, sorted(set(machine.absent()[0].values())))
            machine.source.close()
    """) == [[], ["this driver does not know the call"]]


@needs_stub
def test_a_slice_is_read_through_its_gpu(run: Run) -> None:
    """A MIG slice has samples of its own GPU instance; where it is refused, the reason."""
    seen, asked, absent = run("""
        machine = Machine()
        machine.stub.gpu(0, mig=2, utilization=100)
        with machine.stub.load_in_process():
            machine.open("all")
            ids = [device.id for device in machine.source.devices()]
            machine.stub.write(log_calls=True)
            machine.read()
            seen = [[ids.index(r.device), "gpu_sm_active_ratio" in r.values]
                    for r in machine.read(1000.2)]
            asked = [c.symbol for c in machine.stub.calls("nvmlGpmMigSampleGet",
                                                          "nvmlGpmSampleGet")]
            machine.stub.fail("nvmlGpmMigSampleGet", 3)
            machine.read(1000.4)
            said(seen, asked, [sorted(set(a.values())) for a in machine.absent()])
            machine.source.close()
    """)
    assert seen == [[0, True], [1, True], [2, True]]
    assert asked == ["nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMigSampleGet"] * 2
    assert absent == [[], ["not supported by this GPU"], ["not supported by this GPU"]]


# -- failures --------------------------------------------------------------------------------


@needs_stub
def test_a_lost_gpu_is_a_gap_until_it_is_back(run: Run) -> None:
    """A GPU that is lost has a gap, and no value reaches over the loss; the other is read on."""
    gaps, times, balance = run("""
        machine = Machine(2)
        with machine.stub.load_in_process():
            time_ = FakeClock(1000.0)
            def clock():
                machine.at(time_.now)
                return time_.now
            recording = Recording()
            sampler = Sampler(recording, [GpmSource(["all"])], clock)
            drive(sampler, time_, 2.1, lambda: machine.stub.lose(1),
                  3.1, lambda: machine.stub.find(1), 4.1)
            ids = [d.id for d in recording.devices]
            said([[ids.index(g.device), round(g.start, 3), round(g.end, 3), g.reason]
                  for g in recording.gaps()],
                 [[round(t, 3) for t in recording.times("gpm", i)] for i in ids],
                 [machine.stub.init_balance, machine.stub.gpm_balance])
    """)
    (gap,) = gaps
    assert gap[0] == 1
    assert gap[3] == LOST
    assert (gap[1], gap[2]) == (pytest.approx(1002.2), pytest.approx(1003.4))
    assert len(times[0]) == 20
    assert [t for t in times[1] if 1002.1 < t < 1003.3] == []
    assert times[1][-1] == pytest.approx(1004.0)
    assert balance == [0, 0]


@needs_stub
def test_nvml_that_somebody_shut_down_is_an_error(run: Run) -> None:
    """A library that shuts NVML down for all makes the source fail, to be opened again."""
    assert run("""
        import pynvml
        machine = Machine()
        with machine.stub.load_in_process():
            machine.open()
            machine.read()
            pynvml.nvmlShutdown()
            try:
                machine.read(1000.2)
            except GpuMagicError as error:
                found = [str(error)]
            machine.source.close()
            machine.open()
            machine.read(1000.4)
            found.append(len(machine.seen(1000.6)))
            machine.source.close()
            said(found, machine.stub.init_balance)
    """) == [["somebody shut NVML down in this process", 1], 0]


@needs_stub
def test_a_forked_child_does_not_use_its_parents_nvml(run: Run) -> None:
    """In a child the source counts as closed, and closing it there frees and shuts nothing."""
    assert run("""
        machine = Machine()
        with machine.stub.load_in_process():
            machine.open()
            machine.read()
            pid = os.fork()
            if not pid:
                try:
                    machine.read(1000.2)
                except GpuMagicError:
                    machine.source.close()
                    os._exit(5)
                os._exit(7)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            still = len(machine.seen(1000.4))
            machine.source.close()
            said(code, still, machine.stub.gpm_balance)
    """) == [5, 1, 0]
