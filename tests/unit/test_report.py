"""The report of a cell, as HTML and as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

import report_examples as examples
from gpumagic.profiles import Profile
from gpumagic.recording import MIN_BYTES
from gpumagic.sample import HOST, Span
from gpumagic.summary import Energy, Figure, Throttling, summarise
from gpumagic.units import MIB
from gpumagic.views.report_model import build_report
from gpumagic.views.report_rows import scale_for
from gpumagic.views.spark import bars, bracket_text
from gpumagic.waterfall import Waterfall
from html_page import Page
from report_examples import (
    GIB,
    LOST,
    diagnosed,
    feed,
    gpu,
    healthy,
    host,
    idle,
    idle_gpm,
    losing,
    memory,
    on_host,
    out_of_memory,
    profile,
    recording,
    slices,
    starved,
    state,
    throttled,
    training,
)

HOSTILE = "<script>alert('x')</script>\"&\n\t" * 8


def idle_gpu(**more: object) -> Profile:
    found = recording(gpu(), host())
    feed(found, "GPU-0", "nvml", idle, 3.2)
    feed(found, "GPU-0", "gpm", idle_gpm, 3.2)
    feed(found, HOST, "host", examples.working(0), 3.2)
    return profile(found, 3.2, name="", streams="unknown", **more)  # type: ignore[arg-type]


def lost_gpu() -> Profile:
    reason = "the GPU has fallen off the bus (GPU is lost)"
    found = recording(gpu(), host())
    feed(found, HOST, "host", examples.working(0), 3.2)
    reasons = dict.fromkeys(("nvml", "nvml_slow", "gpm", "allocator"), reason)
    return profile(found, 3.2, streams="unknown", reasons=reasons)


def hostile() -> Profile:
    device = gpu(name=HOSTILE, torch_assumed=True, notes=(HOSTILE,))
    shown = training([device], name=HOSTILE, reasons={"nvml_slow": HOSTILE})
    finding = starved(lead=HOSTILE, evidence=HOSTILE, advice=HOSTILE + "`", label=HOSTILE)
    return replace(
        shown, findings=(finding,), peak_method=HOSTILE,
        waterfalls=(memory(device, notes=(HOSTILE,)),),
    )


def eight_busy() -> Profile:
    devices = [gpu(index) for index in range(8)]
    found = recording(*devices)
    for index, device in enumerate(devices):
        use = {"gpu_utilization_ratio": 0.79 + index / 100, "gpu_memory_used_bytes": 40 * GIB}
        feed(found, device.id, "nvml", lambda _, use=use: use, 12.4)
    return profile(found, 12.4)


def whole() -> Profile:
    """A cell with all that a report can hold."""
    shown = training(workers=4, loaders=True, held=True, streams="busy")
    return diagnosed(shown, starved(), throttled())


def failed_for_memory() -> Profile:
    shown = diagnosed(training(status="error"), out_of_memory())
    states = (
        state("before", 20.6, 0.0),
        state("highest", 100.0, 30.0, 9.8, remainder=1.2),
    )
    return replace(shown, waterfalls=(memory(gpu(), *states),))


def eight_full() -> Profile:
    shown = eight_busy()
    devices = [summary.device for summary in shown.summary.gpus]
    return replace(
        shown, findings=tuple(throttled(device.id) for device in devices),
        waterfalls=tuple(memory(device) for device in devices),
    )


CASES: dict[str, Callable[[], Profile]] = {
    "training": training,
    "whole": whole,
    "out of memory": failed_for_memory,
    "healthy": lambda: diagnosed(training(), healthy()),
    "eight full": eight_full,
    "two GPUs, one starved": lambda: diagnosed(training([gpu(0), gpu(1)]), starved()),
    "two GPUs": lambda: training([gpu(0), gpu(1)]),
    "eight GPUs": lambda: training([gpu(index) for index in range(8)]),
    "eight busy": eight_busy,
    "no GPU": on_host,
    "too short": lambda: training(wall=0.05),
    "failed": lambda: training(status="error"),
    "interrupted": lambda: training(status="interrupted"),
    "busy streams": lambda: training(streams="busy"),
    "bound": lambda: training(old_peak=70),
    "hostile": hostile,
    "no scene": lambda: training(scene=False),
    "idle": idle_gpu,
    "lost": lost_gpu,
}

TRAINING = """\
train one epoch  [14]  12.4 s  ok                                              GPU 0 · H200 · cuda:0
The GPU was busy 76 % of 12.4 s (GPU-Util); tensors took at most 58.8 of 139.8 GiB.

                   start    mean    peak     end  limit
GPU-Util                      76      99          100 %
SM active                     65      85
memory used         25.4            66.8    66.8  139.8 GiB
reserved            20.6            62.0    62.0
allocated           20.6            58.8    48.8
power                196     541     686     686  700 W cap
temperature           46      62      66      66  87 °C slowdown
CPU                          1.6     1.6          8 cores
1 child                      0.7     0.7
RAM, container      21.9            22.4    22.4  64 GiB
this process         9.5             9.5     9.5
1 child              2.5             2.5     2.5

energy 6.7 kJ, mean 542 W   throttled 38 %, power cap   allocator retries 0
on average: SM clock 1.97 GHz   tensor cores 58 %   memory bandwidth 16 %   occupancy 13 %
            PCIe to GPU 2.1 GiB/s   main thread 0.85 of a core
124 samples at 10 Hz, longest gap 100 ms, watching cost 0.3 % of a core; peak exact; energy from the
counter, ±72 J; throttling from samples; current streams idle at the end"""

WHOLE = """\
train one epoch  [14]  12.4 s  ok                                              GPU 0 · H200 · cuda:0
! The GPU waited for data for 5.9 of 12.4 s. SM active was 41 % there and 85 % after; the one loader
  worker filled its core (1.0) while 6 of 8 cores were idle. Try DataLoader(…, num_workers=4).
! The power cap held the clocks back 38 % of the time. SM clock 1.95 GHz there and 1.98 GHz else.
The GPU was busy 76 % of 12.4 s (GPU-Util); tensors took at most 58.8 of 139.8 GiB.
! Kernels were still running when the cell ended; the time is that of launching them: --sync waits.

                  waits for data, 5.9 s
                  ┌─────────┐                start    mean    peak     end  limit
GPU-Util          ▆▄▅▆▆▅▄▅▆▆▅█████████████              76      99          100 %
SM active         ▅▃▄▅▅▄▃▄▅▅▄▇▇▇▇▇▇▇▇▇▇▇▇▇              65      85
memory used       ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄    25.4            66.8    66.8  139.8 GiB
reserved          ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄    20.6            62.0    62.0
allocated         ▃▃▃▃▃▃▃▃▃▃▃▃▄▃▃▃▃▃▃▃▃▃▃▃    20.6            58.8    48.8
power             ▄▅▅▅▅▅▅▅▅▅▅▆████████████     196     541     686     686  700 W cap
temperature       ▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇▇▇▇▇▇      46      62      66      66  87 °C slowdown
CPU               ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄             3.7     3.7          8 cores
4 workers         ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃             2.8     2.8
RAM, container    ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃    21.9            22.4    22.4  64 GiB
this process                                   9.5             9.5     9.5
4 workers                                     10.0            10.0    10.0

GPU memory of 139.8 GiB  live  cached (fragmented)  context  others  driver   free
before                   20.6          0.0              0.7     4.1     0.6  113.8
highest                  58.8          3.2   (1.1)      0.7     4.1     0.6   72.4
after                    48.8         13.2   (4.1)      0.7     4.1     0.6   72.4

energy 6.7 kJ, mean 542 W   throttled 38 %, power cap   allocator retries 0
held back by the CPU quota 1.2 s
on average: SM clock 1.97 GHz   tensor cores 58 %   memory bandwidth 16 %   occupancy 13 %
            PCIe to GPU 2.1 GiB/s   workers 0.66 to 0.74 of a core each   main thread 0.85 of a core
124 samples at 10 Hz, longest gap 100 ms, watching cost 0.3 % of a core; peak exact; energy from the
counter, ±72 J; throttling from samples; current streams busy at the end"""

IDLE = """\
[14]  3.2 s  ok                                                                GPU 0 · H200 · cuda:0
The GPU was not used: GPU-Util 0 % throughout, memory steady at 409.6 MiB.

                                               start    mean    peak     end  limit
GPU-Util             ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁               0       0          100 %
SM active            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁               0       0
memory used MiB      ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂   409.6           409.6   409.6  139.8 GiB, top 2.2 GiB
reserved, allocated  n/a: torch has not initialised CUDA on this GPU in this process
power                ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁      71      71      71      71  700 W cap
temperature          ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃      31      31      31      31  87 °C slowdown
CPU                  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁             0.9     0.9          8 cores
RAM, container       ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃    21.9            22.0    22.0  64 GiB
this process                                     9.5             9.5     9.5

energy 227 J, mean 71 W, estimate   throttled 0 %
on average: SM clock 345 MHz   tensor cores 0 %   memory bandwidth 0 %   occupancy 0 %
            PCIe to GPU 0 B/s   main thread 0.85 of a core
32 samples at 10 Hz, longest gap 100 ms, watching cost 0.3 % of a core; energy estimated from power
samples, ±0.0 J (the driver refuses (no permission)); throttling from samples"""


@pytest.mark.parametrize("case", CASES)
def test_html_is_one_closed_block_without_script(case: str) -> None:
    """The HTML closes every tag, runs nothing, loads nothing and hides no absent value."""
    html = CASES[case]().to_html()
    page = Page(html)
    assert html.startswith('<div class="gpm">')
    assert html.endswith("</div>")
    assert not page.tags & {"script", "link", "img", "iframe", "object", "use", "image"}
    assert not {a for a in page.attributes if a.startswith("on") or "href" in a or a == "src"}
    assert "<script" not in html
    assert "url(" not in html
    assert "@import" not in html
    assert not re.search(r"\bnan\b|\binf\b|None", html)


@pytest.mark.parametrize("case", CASES)
def test_html_and_text_say_the_same(case: str) -> None:
    """Every figure of the HTML stands in the text, too."""
    shown = CASES[case]()
    text = shown.to_text()
    figures = re.findall(r"\d+(?:\.\d+)?", " ".join(Page(shown.to_html()).texts))
    axis = {"0"}
    assert set(figures) - axis <= set(re.findall(r"\d+(?:\.\d+)?", text))


@pytest.mark.parametrize("case", CASES)
def test_text_is_at_most_100_wide(case: str) -> None:
    """No line of the text is wider than 100 characters or ends in a space."""
    for line in CASES[case]().to_text().splitlines():
        assert len(line) <= 100
        assert line == line.rstrip()


def test_html_is_small() -> None:
    """The report of one GPU, with all that it can hold, takes less than 16 kB."""
    assert len(whole().to_html().encode()) < 16_000


def test_whole_table_of_training() -> None:
    """Without a picture, a training cell's text is the verdict, the table and the evidence."""
    assert training(scene=False).to_text() == TRAINING


def test_whole_report() -> None:
    """All that a report can hold, as text: findings, bracket, rows, memory, facts, evidence."""
    assert whole().to_text() == WHOLE


def test_whole_table_of_an_idle_gpu() -> None:
    """An idle GPU's text says that it was not used and has a bar for every measured row."""
    refused = {"nvml_slow": "the driver refuses (no permission)"}
    assert idle_gpu(reasons=refused).to_text() == IDLE


def test_idle_gpus_share_a_line() -> None:
    """GPUs that did nothing take one line, and the verdict names the one that was used."""
    text = training([gpu(index) for index in range(8)]).to_text()
    assert "Of 8 GPUs one was used: GPU 0 was busy 76 %" in text
    assert "GPU 1 to 7        idle, 409.6 MiB used each" in text
    assert "GPU 3 " not in text


def test_several_busy_gpus_are_told_by_their_spread() -> None:
    """Of several busy GPUs the verdict gives the spread and the busiest one."""
    text = " ".join(eight_busy().to_text().split())
    assert "8 GPUs were busy 79 to 86 % of 12.4 s (GPU-Util), GPU 7 the most" in text
    assert "memory in use reached 40.0 of 139.8 GiB" in text


def test_no_gpu_is_said_once() -> None:
    """On a machine without a GPU the host is described and the reason stands once."""
    text = on_host().to_text()
    assert "This cell ran on the host: 0.9 of 8 cores on average" in text
    assert text.count("no NVIDIA GPU here") == 1
    assert on_host().to_html().count("no NVIDIA GPU here") == 1


def test_a_reason_stands_once_for_all_rows() -> None:
    """A GPU that answered nothing has one row with the reason in place of all its rows."""
    shown = lost_gpu()
    assert shown.to_text().count("fallen off the bus") == 1
    assert re.search(r"^GPU 0 +n/a: the GPU has fallen", shown.to_text(), re.MULTILINE)
    assert "How busy the GPU was is not known." in shown.to_text()


def test_too_short_says_so() -> None:
    """A cell shorter than a reading has one line for what that leaves out, and its memory."""
    text = training(wall=0.05).to_text()
    assert "50 ms is too short to say how busy the GPU was." in text
    assert "\nGPU-Util, SM active, power, temperature, CPU  n/a: too short to say\n" in text
    assert text.count("too short to say") == 2
    assert re.search(r"^memory used .* 25\.4 +30\.2 +30\.2", text, re.MULTILINE)
    assert "energy n/a" in text


@pytest.mark.parametrize(("status", "word"), [("error", "failed"), ("interrupted", "interrupted")])
def test_an_unfinished_cell_says_how_far_it_came(status: str, word: str) -> None:
    """A cell that failed or was interrupted says so first; only failing is marked."""
    report = build_report(training(status=status))
    assert f"The cell {'was ' if status != 'error' else ''}{word}" in report.verdict[0].text
    assert report.exit == status
    assert report.failed == (status == "error")


def test_running_kernels_are_a_finding() -> None:
    """Where kernels still ran at the end, the report says what the time is and the remedy."""
    found = [s for s in build_report(training(streams="busy")).verdict if s.finding]
    assert found[-1].text.startswith("Kernels were still running when the cell ended")
    assert "<code>--sync</code>" in training(streams="busy").to_html()


def test_a_peak_that_is_a_bound() -> None:
    """A peak that is only known within bounds is written with both, without a ring."""
    shown = training(old_peak=70)
    assert re.search(r"^allocated .* 58\.8 to 70\.0 ", shown.to_text(), re.MULTILINE)
    assert "tensors peaked at 58.8 to 70.0 of 139.8 GiB" in shown.to_text()
    assert 'class="ring"' not in shown.to_html()
    assert 'class="ring"' in training().to_html()


def test_hostile_names_stay_text() -> None:
    """Names and reasons from outside are escaped, put on one line and shortened."""
    report = build_report(hostile())
    assert "\n" not in report.name
    assert len(report.name) <= 48
    assert "&lt;script&gt;" in hostile().to_html()


def test_without_a_scene_there_are_figures_only() -> None:
    """A profile without a picture has every figure and no sparkline."""
    assert "<svg" not in training(scene=False).to_html()
    assert "58.8" in training(scene=False).to_html()


def test_a_long_cell_says_how_far_its_readings_are_merged() -> None:
    """Of merged readings the evidence gives the coarsest, and a bound of the gaps."""
    wall = 600.0
    found = recording(gpu(), host(), max_bytes=MIN_BYTES)
    found.add_span(Span(1, examples.START, examples.START + wall, 14, status="ok"))
    feed(found, "GPU-0", "nvml", examples.nvml, wall)
    text = " ".join(profile(found, wall, scene=False).to_text().split())
    assert "6000 samples at 10 Hz, older ones merged over up to 6.3 s, no gap over 250 ms" in text
    assert "longest gap" not in text
    assert "about" not in text


def test_an_end_between_merged_readings_is_not_known() -> None:
    """Where readings are merged across the ends of a cell, none of them alone is beside it."""
    wall = 600.0
    found = recording(gpu(), host(), max_bytes=MIN_BYTES)
    feed(found, "GPU-0", "nvml", examples.nvml, wall)
    span = Span(1, examples.START + 20.7, examples.START + 40.7, 14, status="ok")
    shown = replace(profile(found, wall, scene=False), summary=summarise(found, span), span=span)
    text = " ".join(shown.to_text().split())
    assert "about 200 samples at 10 Hz, older ones merged over" in text
    assert "start n/a: no single reading before the cell" in text
    assert "end n/a: no single reading after the cell" in text


def _without_an_early_reading(cuda_at_start: bool) -> str:
    found = recording(gpu(), host())
    feed(found, "GPU-0", "nvml", examples.nvml, 12.4)
    for time in (1.0, 2.0, 12.42):
        values = dict(examples.allocator(time))
        found.append(examples.Sample(examples.START + time, "GPU-0", "allocator", values))
    return profile(found, 12.4, cuda_at_start=cuda_at_start).to_text()


def test_cuda_that_came_up_in_the_cell() -> None:
    """Where CUDA came up in the cell the allocator held nothing before, and counts are exact."""
    text = _without_an_early_reading(cuda_at_start=False)
    assert re.search(r"^allocated .* 0\.0 +58\.8 +48\.8", text, re.MULTILINE)
    assert "allocator retries 3" in text


def test_no_reading_before_the_cell() -> None:
    """Without a reading before the cell the start is n/a and a counter only an upper bound."""
    text = _without_an_early_reading(cuda_at_start=True)
    assert re.search(r"^allocated .* n/a +[\d.]+ to [\d.]+ +48\.8", text, re.MULTILINE), text
    assert "start n/a: no reading before the cell" in " ".join(text.split())
    assert "allocator retries at most 3" in text


def test_more_workers_make_a_bound_of_the_sum() -> None:
    """The processor time of process and workers is added up; the peak of the sum is a bound."""
    text = training(workers=4).to_text()
    assert re.search(r"^4 children .* 2\.8 +2\.8$", text, re.MULTILINE)
    assert re.search(r"^CPU .* 3\.7 +3\.7 +8 cores$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("values", "unit"),
    [([58.8 * GIB, 3.0], "GiB"), ([0.4 * GIB], "MiB"), ([2048.0], "KiB"), ([0.0, None], "GiB")],
)
def test_a_row_has_one_unit(values: list[float | None], unit: str) -> None:
    """The largest figure of a row chooses the unit for all of them."""
    assert scale_for("torch_allocated_bytes", values).unit == unit


def test_bars_never_bridge_a_gap() -> None:
    """A hole between readings stays a space, however narrow it is beside a cell."""
    assert bars((None, 0.1, 0.1, None, 1.0, 1.0, 0.5, 0.5), 4) == "▁ █▅"
    assert bars((None, None), 2) == "  "


@pytest.mark.parametrize(
    ("gpus", "at", "wall", "headline", "finding"),
    [
        (1, 2.0, 4.0, "The GPU was busy 70 % of the 2.0 s that could be read",
         "GPU 0 could not be read for 2.0 of 4.0 s"),
        (2, 0.35, 5.0, "1 of 2 GPUs was busy 70 % of 5.0 s", "for 4.7 of 5.0 s"),
        (1, -0.3, 3.0, "How busy the GPU was is not known.", "GPU 0 could not be read"),
    ],
)
def test_a_gpu_lost_is_a_finding(
    gpus: int, at: float, wall: float, headline: str, finding: str
) -> None:
    """A report says which GPU was lost, for how long and why, and of which time its means are."""
    report = build_report(losing(gpus, at, wall))
    assert report.verdict[0].text.startswith(headline)
    (found,) = [sentence.text for sentence in report.verdict if sentence.finding]
    assert found.endswith(f"{finding}: {LOST}.")
    assert "too short to say" not in losing(gpus, at, wall).to_text()


# -- findings -------------------------------------------------------------------------------


def test_the_gravest_finding_stands_first() -> None:
    """What held the cell back comes before what it did, what could be better after that."""
    hint = replace(throttled(), severity="hint")
    report = build_report(diagnosed(training(), starved(), hint))
    assert [sentence.lead[:21] for sentence in report.verdict] == [
        "The GPU waited for da", "The GPU was busy 76 %", "The power cap held th",
    ]
    assert [sentence.finding for sentence in report.verdict] == [True, False, True]


def test_a_finding_is_a_paragraph_with_code() -> None:
    """A finding has a square, its lead in bold, its evidence, and its advice with code as code."""
    html = diagnosed(training(), starved()).to_html()
    assert '<p><i class="mark">! </i><b>The GPU waited for data for 5.9 of 12.4 s.</b> SM' in html
    assert "Try <code>DataLoader(…, num_workers=4)</code>.</p>" in html


def test_a_lone_backtick_stays_one() -> None:
    """A backtick in a name of the user's does not turn the rest of the sentence into code."""
    html = diagnosed(training(), starved(lead="`a", evidence="", advice="")).to_html()
    assert "<b>`a</b>" in html


def test_what_is_well_is_no_warning() -> None:
    """A finding that all is well has no square, and the figures that it gives stand once."""
    report = build_report(diagnosed(training(), healthy()))
    plain = [sentence.text for sentence in report.verdict if not sentence.finding]
    assert plain == [
        "Nothing held the GPU back. SM active 85 %, GPU-Util 99 %.",
        "Tensors took at most 58.8 of 139.8 GiB.",
    ]


def test_too_short_is_said_once() -> None:
    """A finding that a cell is too short takes the place of the sentence that says the same."""
    lead = "50 ms is too short to say what held the cell back."
    short = replace(healthy(), lead=lead, evidence="")
    text = diagnosed(training(wall=0.05), short, waterfalls=False).to_text()
    assert "how busy" not in text
    assert "what held the cell back." in text


def test_a_finding_names_its_gpu_among_several() -> None:
    """Of several GPUs a finding names its own once, and further ones of a rule are gathered."""
    both = training([gpu(0), gpu(1)])
    lead = build_report(diagnosed(both, starved())).verdict[0].lead
    assert lead == "GPU 0: The GPU waited for data for 5.9 of 12.4 s."
    lead = build_report(diagnosed(both, starved(lead="GPU 0 waited."))).verdict[0].lead
    assert lead == "GPU 0 waited."
    first, *others = build_report(eight_full()).verdict
    assert first.text.endswith("The same holds for GPU 1 to 7.")
    assert not [sentence for sentence in others if sentence.finding]


def test_figures_of_the_gravest_finding_are_bold() -> None:
    """The figures that the first finding is about are set off, on its device and on the host."""
    report = build_report(whole())
    lines = [line for s in report.sections for strip in s.strips for line in strip.lines]
    assert [line.label for line in lines if line.strong] == ["SM active"]
    facts = [fact.label for group in report.groups for fact in group.facts if fact.strong]
    assert facts == ["workers"]
    assert '<tr class="b"><th scope="row"><i class="inner"></i>SM active</th>' in whole().to_html()
    sections = build_report(diagnosed(training([gpu(0), gpu(1)]), throttled("GPU-1"))).sections
    assert not [x for s in sections for strip in s.strips for x in strip.lines if x.strong]


# -- the bracket ----------------------------------------------------------------------------


def bracketed(*stretches: tuple[float, float], label: str = "waits for data") -> Profile:
    times = tuple((examples.START + a, examples.START + b) for a, b in stretches)
    return diagnosed(training(), starved(stretches=times, label=label), waterfalls=False)


def hairs(html: str) -> int:
    """Count the hairlines of one row."""
    return len(re.findall('class="hair"', html)) // (1 + len(re.findall('class="rule"', html)))


def test_a_bracket_stands_over_its_stretch() -> None:
    """A stretch is drawn with its label, and one line runs down at the end inside the cell."""
    html = bracketed((0, 5.9)).to_html()
    assert '<span style="left:0.0%;max-width:100.0%">waits for data</span>' in html
    (width,) = re.findall(r'<rect class="held" x="0%" y="0" height="3" width="([\d.]+)%"/>', html[
        : html.index("</thead>")
    ])
    assert float(width) == pytest.approx(5.9 / 12.4 * 100, abs=1)
    assert hairs(html) == 1


def test_a_bracket_over_the_whole_cell_has_no_hairlines() -> None:
    """Where a finding is about all of the cell, no line runs down."""
    assert hairs(bracketed((0, 12.4)).to_html()) == 0


def test_a_label_near_the_right_edge_ends_with_its_stretch() -> None:
    """A label that begins late is set to the left of its stretch's end, in HTML and as text."""
    shown = bracketed((10, 12.4), label="waits for data, 2.4 s")
    assert '<span style="right:0.0%;max-width:100.0%">waits' in shown.to_html()
    lines = shown.to_text().splitlines()
    label = next(line for line in lines if line.strip() == "waits for data, 2.4 s")
    bars_of = next(line for line in lines if line.startswith("GPU-Util"))
    assert len(label) == bars_of.rindex("█") + 1


def test_all_stretches_are_drawn() -> None:
    """Of several stretches each is drawn, the longest has the label, and few lines run down."""
    html = bracketed((1, 2), (4, 7), (9, 9.5)).to_html()
    header = html[: html.index("</thead>")]
    assert header.count('class="held"') == 3
    (left,) = re.findall(r"left:([\d.]+)%", header)
    assert float(left) == pytest.approx(4 / 12.4 * 100, abs=1)
    assert hairs(html) == 6
    assert hairs(bracketed(*((t, t + 0.6) for t in range(1, 9)), (10, 11)).to_html()) == 2


def test_a_stretch_beside_the_cell_is_not_drawn() -> None:
    """What lies outside of the time axis has no bracket, and no picture has none."""
    assert build_report(bracketed((-9, -3))).sections[0].bracket is None
    plain = diagnosed(training(scene=False), starved())
    assert all(section.bracket is None for section in build_report(plain).sections)


def test_brackets_as_text() -> None:
    """As text a bracket covers the cells of its stretch, and one cell has a mark of its own."""
    assert bracket_text([(0, 0.5)], 8) == "┌──┐    "
    assert bracket_text([(0, 0.01), (0.4, 0.65), (0.99, 1)], 10) == "┬   ┌─┐  ┬"


def test_the_bracket_of_a_second_gpu_stands_below_its_title() -> None:
    """With several GPUs the bracket belongs to the section of the one that it is about."""
    sections = build_report(eight_full()).sections
    assert [section.bracket is not None for section in sections] == [True] + [False] * 7
    finding = starved(device="GPU-5")
    sections = build_report(diagnosed(eight_busy(), finding, waterfalls=False)).sections
    assert [section.device for section in sections if section.bracket] == ["GPU-5"]


# -- rows and facts -------------------------------------------------------------------------


def test_sm_active_is_drawn_as_it_is() -> None:
    """SM active shares the strip of GPU-Util and is not cut to it where it lies above."""
    found = recording(gpu(), host())
    feed(found, "GPU-0", "nvml", lambda _: {"gpu_utilization_ratio": 0.2}, 4.0)
    feed(found, "GPU-0", "gpm", lambda _: {"gpu_sm_active_ratio": 0.6}, 4.0)
    lines = build_report(profile(found, 4.0)).sections[0].strips[0].lines
    assert [line.label for line in lines] == ["GPU-Util", "SM active"]
    tops = [max(h for h in x.trace.heights if h is not None) for x in lines if x.trace]
    assert tops == [pytest.approx(0.2), pytest.approx(0.6)]


def test_an_older_gpu_says_once_why_sm_active_is_missing() -> None:
    """Without SM activity its reason stands once, and nothing else that the hardware counts."""
    reason = "counted from Hopper on"
    absent = dict.fromkeys(examples.gpm(0), reason)
    found = recording(gpu(absent=absent), host())
    feed(found, "GPU-0", "nvml", examples.nvml, 12.4)
    text = profile(found, 12.4).to_text()
    assert re.search(f"^SM active +n/a: {reason}$", text, re.MULTILINE)
    assert text.count(reason) == 1
    assert "tensor cores" not in text
    assert "on average: SM clock" in text


def test_workers_take_the_place_of_children() -> None:
    """Children that are all workers of a DataLoader are called so; others have their own row."""
    text = training(workers=4, loaders=True).to_text()
    assert "children" not in text
    assert re.search(r"^4 workers +[▁-█]+ +2\.8 +2\.8$", text, re.MULTILINE)
    assert "workers 0.66 to 0.74 of a core each" in text

    def more(time: float) -> dict[str, float]:
        return {**examples.working(4, loaders=True)(time), "children_count": 5.0}

    found = recording(host())
    feed(found, HOST, "host", more, 12.4)
    labels = [
        line.label for section in build_report(profile(found, 12.4)).sections
        for strip in section.strips for line in strip.lines
    ]
    assert labels[1:] == [
        "CPU", "5 children", "4 workers", "RAM, container", "this process", "5 children",
    ]


def test_the_quota_is_told_where_it_bit() -> None:
    """Time that the processor quota took is a fact; without a growing counter there is none."""
    assert "held back by the CPU quota 1.2 s" in training(held=True).to_text()
    assert "quota" not in training().to_text()


def _with(shown: Profile, **more: object) -> Profile:
    """Change what the summary says of the first GPU."""
    first, *others = shown.summary.devices
    devices = (replace(first, **more), *others)  # type: ignore[arg-type]
    return replace(shown, summary=replace(shown.summary, devices=devices))


def test_energy_says_where_it_comes_from() -> None:
    """Estimated energy is called so, and the evidence gives the reason."""
    estimate = Energy(6700.0, 90.0, 540.0, "the counter went back", "estimate")
    text = " ".join(_with(training(), energy=estimate).to_text().split())
    assert "energy 6.7 kJ, mean 540 W, estimate throttled" in text
    assert "energy estimated from power samples, ±90 J (the counter went back);" in text
    assert "estimate" not in training().to_text()


def test_throttling_says_where_it_comes_from() -> None:
    """From the driver's counters, throttling has its seconds; the evidence names the source."""
    one = Throttling(0.38, {"power cap": 0.38}, 124, "", "counters", {"power cap": 4.7})
    text = " ".join(_with(training(), throttling=one).to_text().split())
    assert "throttled 38 %, power cap, 4.7 s " in text
    assert "throttling from the driver's counters;" in text
    two = Throttling(
        0.5, {"power cap": 0.38, "hardware slowdown": 0.2}, 124, "", "counters",
        {"power cap": 4.7}, ("hardware slowdown",),
    )
    text = " ".join(_with(training(), throttling=two).to_text().split())
    assert "throttled 50 %, power cap 4.7 s and hardware slowdown " in text
    assert "from the driver's counters and samples (hardware slowdown);" in text


def test_the_peak_says_how_it_is_known() -> None:
    """The evidence says that a peak is exact from the history, or why it is from the counters."""
    exact = replace(training(old_peak=70), peak_method="exact from the allocator's history")
    assert "; peak exact from the allocator's history;" in " ".join(exact.to_text().split())
    other = replace(training(), peak_method="the user's own memory history is on")
    assert "; peak exact (the user's own memory history" in " ".join(other.to_text().split())


def test_an_exact_peak_that_was_none_is_told_without_torch() -> None:
    """Where torch gave no figures, the evidence still says why the peak asked for is not exact."""
    told = "torch had not initialised CUDA when the cell began: peak by torch's counters"
    text = " ".join(replace(idle_gpu(), peak_method=told).to_text().split())
    assert "; --peak exact: torch had not initialised CUDA when the cell began;" in text
    assert "--peak" not in idle_gpu().to_text()


# -- MIG slices -----------------------------------------------------------------------------


def test_slices_have_names_of_their_own() -> None:
    """Slices of one GPU are told apart wherever GPUs are named, those that were idle too."""
    report = build_report(slices(0.43, 0.3, 0.0, 0.0))
    titles = [section.title for section in report.sections]
    assert [title.partition(" ·")[0] for title in titles] == [
        "GPU 0 MIG 1a2b", "GPU 0 MIG 2a2b", "GPU 0 MIG 3a2b, GPU 0 MIG 4a2b",
    ]


@pytest.mark.parametrize(
    ("active", "text"),
    [
        ([0.43], "The SMs of GPU 0 MIG 1a2b were active 43 % of 6.0 s; memory in use"),
        ([0.0], "GPU 0 MIG 1a2b was not used: SM active 0 % throughout"),
        ([0.43, 0.0], "Of 2 GPUs one was used: the SMs of GPU 0 MIG 1a2b were active 43 % of"),
        ([0.43, 0.3], "The SMs of 2 GPUs were active 30 to 43 % of 6.0 s, GPU 0 MIG 1a2b the"),
        ([0.0, 0.0], "None of the 2 GPUs was used: SM active 0 % throughout."),
    ],
)
def test_without_gpu_util_sm_active_is_told(active: list[float], text: str) -> None:
    """On GPUs without GPU-Util the plain sentence says how much of the SMs was active."""
    found = " ".join(slices(*active).to_text().split())
    assert text in found
    assert "not known" not in found


# -- memory ---------------------------------------------------------------------------------


def test_memory_adds_up_to_the_device() -> None:
    """The parts of each bar fill it exactly, in the order of the names above."""
    for table in build_report(failed_for_memory()).memory:
        for line in table.lines:
            assert sum(part.share for part in line.parts) == pytest.approx(1)
            names = [part.name for part in line.parts]
            assert names == [name for name in table.names if name in names]
    html = failed_for_memory().to_html()
    bar = html[html.index(">highest</th>") :]
    bar = bar[: bar.index("</svg>")]
    assert re.findall('<(?:rect|line) class="([^"]+)"', bar) == [
        "use", "use middle", "hatch", "use outer", "other", "driver", "unknown", "free",
    ]


def test_memory_that_did_not_change_has_one_bar() -> None:
    """Where all moments are within a hundredth of the device, one line stands for them."""
    states = (state("before", 20.6, 0.0), state("highest", 21.6, 0.3), state("after", 20.9, 0.5))
    shown = replace(training(), waterfalls=(memory(gpu(), *states),))
    (table,) = build_report(shown).memory
    assert [line.label for line in table.lines] == ["throughout"]
    assert "fragmented" not in shown.to_html().partition("</style>")[2]


def test_a_remainder_of_nothing_is_left_out() -> None:
    """A remainder has a column only where there is some."""
    little = state("after", 20.6, 0.0, remainder=0.01)
    (table,) = build_report(replace(training(), waterfalls=(memory(gpu(), little),))).memory
    assert "remainder" not in table.names


def test_memory_of_many_gpus_is_one_table() -> None:
    """From three GPUs on each has one line, at its highest use, all on one scale."""
    (table,) = build_report(eight_full()).memory
    assert [line.label for line in table.lines] == [f"GPU {index}" for index in range(8)]
    assert {part.text for line in table.lines if (part := line.part("live tensors"))} == {"58.8"}


def test_without_a_waterfall_there_is_no_bar() -> None:
    """A GPU whose memory was not read has no bar, and says nothing more than the table does."""
    nothing = Waterfall(gpu(), None, (), "not read")
    assert build_report(replace(training(), waterfalls=(nothing,))).memory == ()


def test_without_styles_the_html_reads_in_order() -> None:
    """A place that strips styles and pictures keeps all words, figures and marks, with spaces."""
    assert re.search(r"\.gpm i\{[^}]*font-size:0;overflow:hidden;", whole().to_html())
    lost = r"<style>.*?</style>|</?(?:svg|path|rect|line|circle)[^>]*>"
    bare = re.sub(lost, "", whole().to_html())
    text = " ".join("".join(Page(bare.replace("><", "> <")).texts).split())
    order = [
        "train one epoch [14] 12.4 s ok GPU 0", "! The GPU waited for data for 5.9 of 12.4 s. SM",
        "The GPU was busy 76 %", "waits for data, 5.9 s start mean peak end limit GPU-Util 76 99",
        "RAM, container 21.9", "GPU memory of 139.8 GiB", "before 20.6 0.0",
        "after 48.8 13.2 (4.1)", "energy 6.7 kJ, mean 542 W", "! throttled 38 %",
        "on average: SM clock",
        "124 samples",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_one_core_is_no_plural() -> None:
    """A host of one core is written as that, in the sentence and as the limit."""
    found = recording(replace(host(), constants={"host_cpu_limit_ratio": 1.0}))
    feed(found, HOST, "host", examples.working(0), 3.2)
    text = profile(found, 3.2).to_text()
    assert "0.9 of 1 core on average" in text
    assert re.search(r"^CPU .* 1 core$", text, re.MULTILINE)
    assert "1 cores" not in text


def test_rows_of_a_strip_share_their_unit() -> None:
    """RAM figures that stand together are in one unit, and one far below keeps its own."""
    def ram(rss: float) -> list[str]:
        made = training()
        assert made.summary.host is not None
        host = made.summary.host
        figures = {
            **host.figures,
            "container_memory_used_bytes": Figure(
                "container_memory_used_bytes", 850 * MIB, 850 * MIB, 859 * MIB, 850 * MIB, 9
            ),
            "process_rss_bytes": Figure("process_rss_bytes", rss, rss, rss, rss, 9),
        }
        summary = replace(
            made.summary, devices=(*made.summary.gpus, replace(host, figures=figures))
        )
        text = replace(made, summary=summary).to_text()
        return [line.strip() for line in text.splitlines() if line.startswith(("RAM", "this pro"))]

    container, process = ram(2.0 * GIB)
    assert container.split()[-4:-2] == ["0.8", "0.8"]
    assert process.split()[-2:] == ["2.0", "2.0"]
    container, process = ram(20.0 * MIB)
    assert "0.8" in container
    assert "MiB" in process
    assert process.split()[-1] == "20.0"
