"""The report of a cell, as HTML and as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import report_examples as examples
from gpumagic.profiles import Profile
from gpumagic.sample import HOST, Gap
from gpumagic.views.report_model import build_report
from gpumagic.views.report_rows import scale_for
from gpumagic.views.spark import bars
from report_examples import GIB, feed, gpu, host, idle, on_host, profile, recording, training

HOSTILE = "<script>alert('x')</script>\"&\n\t" * 8
VOID = {"br"}


class Page(HTMLParser):
    """What a browser would make of a report: its texts, and whether all tags are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)


def idle_gpu(**more: object) -> Profile:
    found = recording(gpu(), host())
    feed(found, "GPU-0", "nvml", idle, 3.2)
    feed(found, HOST, "host", examples.working(0), 3.2)
    return profile(found, 3.2, name="", streams="unknown", **more)  # type: ignore[arg-type]


def lost_gpu() -> Profile:
    reason = "the GPU has fallen off the bus (GPU is lost)"
    found = recording(gpu(), host())
    feed(found, HOST, "host", examples.working(0), 3.2)
    reasons = dict.fromkeys(("nvml", "nvml_slow", "allocator"), reason)
    return profile(found, 3.2, streams="unknown", reasons=reasons)


def hostile() -> Profile:
    device = gpu(name=HOSTILE, torch_assumed=True, notes=(HOSTILE,))
    return training([device], name=HOSTILE, reasons={"nvml_slow": HOSTILE})


def eight_busy() -> Profile:
    devices = [gpu(index) for index in range(8)]
    found = recording(*devices)
    for index, device in enumerate(devices):
        use = {"gpu_utilization_ratio": 0.79 + index / 100, "gpu_memory_used_bytes": 40 * GIB}
        feed(found, device.id, "nvml", lambda _, use=use: use, 12.4)
    return profile(found, 12.4)


CASES: dict[str, Callable[[], Profile]] = {
    "training": training,
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
! Clocks were held back 38 % of the time by the power cap.

                   start    mean    peak     end  limit
GPU-Util                      76      99          100 %
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

energy 6.7 kJ, mean 542 W   throttled 38 %, power cap   SM clock 1.97 GHz, mean
allocator retries 0
124 samples at 10 Hz, longest gap 100 ms, watching cost 0.3 % of a core; peak exact; energy from the
counter, ±96 J; current streams idle at the end"""

IDLE = """\
[14]  3.2 s  ok                                                                GPU 0 · H200 · cuda:0
The GPU was not used: GPU-Util 0 % throughout, memory steady at 409.6 MiB.

                                               start    mean    peak     end  limit
GPU-Util             ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁               0       0          100 %
memory used MiB      ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂   409.6           409.6   409.6  139.8 GiB, top 2.2 GiB
reserved, allocated  n/a: torch has not initialised CUDA on this GPU in this process
power                ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁      71      71      71      71  700 W cap
temperature          ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃      31      31      31      31  87 °C slowdown
CPU                  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁             0.9     0.9          8 cores
RAM, container       ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃    21.9            22.0    22.0  64 GiB
this process                                     9.5             9.5     9.5

energy n/a: the driver refuses (no permission)   throttled 0 %   SM clock 345 MHz, mean
32 samples at 10 Hz, longest gap 100 ms, watching cost 0.3 % of a core"""


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
    """The report of one GPU takes less than 15 kB."""
    assert len(training().to_html().encode()) < 15_000


def test_whole_table_of_training() -> None:
    """Without a picture, a training cell's text is the verdict, the table and the evidence."""
    assert training(scene=False).to_text() == TRAINING


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
    assert "\nGPU-Util, power, temperature, CPU  n/a: too short to say\n" in text
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


def test_throttling_is_said_from_a_twentieth_on() -> None:
    """Clocks held back are a sentence with the reason; a cell without them has none."""
    assert "! Clocks were held back 38 % of the time by the power cap." in training().to_text()
    assert "held back" not in idle_gpu().to_text()


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


def test_a_truncated_recording_is_a_finding() -> None:
    """Where the oldest samples have left the recording, the report says how much is missing."""
    shown = training()
    shown = replace(shown, summary=replace(shown.summary, truncated_s=31.0))
    assert "! The first 31.0 s are missing" in shown.to_text()


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


LOST = "the GPU is lost (fallen off the bus, or reset)"


def losing(gpus: int, at: float, wall: float) -> Profile:
    """Return a cell in which GPU 0 was lost at a time."""
    found = recording(*(gpu(index) for index in range(gpus)), host())
    feed(found, HOST, "host", examples.working(0), wall)
    for index in range(gpus):
        for tick in range(-10, round(wall * 10) + 2):
            if index > 0 or tick < at * 10:
                values = {**examples.idle(0), "gpu_utilization_ratio": 0.7}
                time = examples.START + tick / 10 + 0.02
                found.append(examples.Sample(time, f"GPU-{index}", "nvml", values))
    found.add_gap(Gap(examples.START + at, None, "nvml", "GPU-0", LOST))
    return profile(found, wall, streams="unknown")


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
