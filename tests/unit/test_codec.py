"""A recording survives its file, and a file that is none is refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest

from fakes import GPU, HOST_DEVICE, OTHER_GPU, START, fill, recording_of, ticks
from gpumagic import codec
from gpumagic.errors import RecordingError
from gpumagic.recording import MIN_BYTES, Recording
from gpumagic.sample import HOST, Device, Gap, Mark, Sample, Span
from gpumagic.sinks.jsonl import JsonLines
from gpumagic.summary import summarise
from gpumagic.tracks import MergedSample


def whole() -> Recording:
    """Make a recording with everything that one can hold."""
    recording = recording_of(
        GPU,
        Device(
            OTHER_GPU.id, "gpu", "NVIDIA H200 «2»", 1, 0, True,
            constants={"gpu_memory_total_bytes": 2.0**37},
            absent={"gpu_energy_joules": "not supported by this GPU"},
            notes=("memory used includes the driver's", "second note"),
        ),
        Device("MIG-cccc", "gpu", "slice"),
        HOST_DEVICE,
    )
    times = ticks(START, START + 5)
    fill(recording, times, gpu_power_watts=lambda t: 300 + 10 * math.sin(t),
         gpu_utilization_ratio=0.83, gpu_memory_used_bytes=2.0**33)
    fill(recording, times[10:20], OTHER_GPU, gpu_power_watts=99.5)
    fill(recording, [t + 0.001 for t in times], source="allocator",
         torch_allocated_bytes=lambda t: t // 1)
    fill(recording, times[::10], source="nvml_slow", gpu_energy_joules=lambda t: (t - START) * 300)
    fill(recording, times[::10], HOST_DEVICE, "host", process_cpu_ratio=1.2345, children_count=3)
    recording.end_span(recording.begin_span(START + 1, number=12).id, START + 3)
    recording.end_span(recording.begin_span(START + 2, name="load Ω").id, START + 2.5, "error")
    recording.begin_span(START + 4, name="runs on")
    recording.add_mark(Mark(START + 2, "epoch 3"))
    recording.add_mark(Mark(START + 2.1, ""))
    recording.add_gap(Gap(START + 1, START + 1.5, "nvml", OTHER_GPU.id, "the GPU is lost"))
    recording.open_gap(Gap(START + 6, None, "nvml", None, "driver reloaded"))
    return recording


def values(recording: Recording) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """List all readings by device, source and metric."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for sample in recording.samples():
        for name, value in sample.values.items():
            key = (sample.device, sample.source, name)
            found.setdefault(key, []).append((sample.time, value))
    return found


def same(one: Recording, two: Recording) -> None:
    """Assert that two recordings hold the same, up to the digits that the file keeps."""
    assert one.devices == two.devices
    assert one.spans() == two.spans()
    assert one.marks() == two.marks()
    assert sorted(map(str, one.gaps())) == sorted(map(str, two.gaps()))
    assert one.periods == two.periods
    left, right = values(one), values(two)
    assert left.keys() == right.keys()
    for key, points in left.items():
        assert [v for _, v in right[key]] == pytest.approx([v for _, v in points], abs=1e-3)
        # A shared line takes the time of its first reading.
        assert [t for t, _ in right[key]] == pytest.approx([t for t, _ in points], abs=0.0052)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


HEADER = '{"kind":"recording","version":1}\n'
SAMPLE = f'{{"kind":"sample","time":1.0,"device":"{GPU.id}","gpu_power_watts":100}}\n'


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_everything_comes_back(tmp_path: Path, name: str) -> None:
    """Devices, readings, spans, marks, gaps and periods are the same after save and load."""
    recording = whole()
    count = codec.save(recording, tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    assert (raw[:2] == b"\x1f\x8b") == name.endswith(".gz")
    text = gzip.decompress(raw) if name.endswith(".gz") else raw
    assert text.count(b"\n") == count
    loaded = codec.load(str(tmp_path / name))
    same(recording, loaded)
    codec.save(loaded, tmp_path / "again.jsonl")
    same(loaded, codec.load(tmp_path / "again.jsonl"))


def test_a_streamed_file_holds_the_same(tmp_path: Path) -> None:
    """What JsonLines writes as it comes loads as the recording that it came from."""
    source, copy = whole(), Recording()
    copy.periods.update(source.periods)
    for device in source.devices:
        copy.add_device(device)
    sink = JsonLines(copy, tmp_path / "run.jsonl")
    copy.open_gap(Gap(START - 2, None, "nvml", None, "not there yet"))
    copy.open_gap(Gap(START - 1, None, "nvml", None, "another reason"))
    for span in source.spans():
        copy.add_span(Span(span.id, span.start, number=span.number, name=span.name))
    for sample in source.samples():
        copy.append(sample)
    for span in source.spans():
        copy.add_span(span)
    for mark in source.marks():
        copy.add_mark(mark)
    for gap in source.gaps():
        copy.add_gap(gap)
    sink.close()
    assert sink.error is None
    assert len(lines_of(tmp_path / "run.jsonl")) == sink.lines
    loaded = codec.load(tmp_path / "run.jsonl")
    same(copy, loaded)
    assert [g.reason for g in loaded.gaps() if g.end is None] == ["driver reloaded"]


def test_every_line_is_flat_and_has_a_kind(tmp_path: Path) -> None:
    """Each line is one object of plain values with a kind, finite and without null."""
    codec.save(whole(), tmp_path / "run.jsonl")
    lines = lines_of(tmp_path / "run.jsonl")
    kinds = {line["kind"] for line in lines}
    assert kinds == {"recording", "device", "sample", "span", "mark", "gap"}
    assert lines[0]["kind"] == "recording"
    for line in lines:
        assert all(isinstance(v, (str, int, float)) for v in line.values())
        assert line["kind"] == "recording" or "time" in line or line["kind"] == "device"


def test_pandas_reads_a_file_as_it_is(tmp_path: Path) -> None:
    """read_json(lines=True) gives a row a line, with the metrics as columns."""
    pandas = pytest.importorskip("pandas", reason="the test reads with pandas")
    codec.save(whole(), tmp_path / "run.jsonl")
    frame = pandas.read_json(tmp_path / "run.jsonl", lines=True)
    read = frame[frame["kind"] == "sample"]
    assert len(read[read["gpu_energy_joules"].notna()]) == 6
    power = read[read["device"] == GPU.id]["gpu_power_watts"].dropna()
    assert len(power) == 51
    assert power.between(290, 310).all()


def test_readings_of_one_tick_share_a_line(tmp_path: Path) -> None:
    """Sources that read a device within 5 ms share a line; later or earlier ones do not."""
    recording = recording_of()
    fill(recording, [1.0, 1.1], gpu_power_watts=1)
    fill(recording, [1.004, 1.106], source="allocator", torch_allocated_bytes=1)
    codec.save(recording, tmp_path / "run.jsonl")
    lines = [line for line in lines_of(tmp_path / "run.jsonl") if line["kind"] == "sample"]
    assert [(line["time"], "torch_allocated_bytes" in line) for line in lines] == [
        (1.0, True), (1.1, False), (1.106, True),
    ]


def test_a_late_written_reading_keeps_its_own_time() -> None:
    """A slow source's reading, stamped before the line that waits, does not join that line."""
    encoder = codec.Encoder()
    assert encoder.encode(Sample(1.1, GPU.id, "nvml", {"gpu_power_watts": 1.0})) == []
    late = Sample(1.05, GPU.id, "nvml_slow", {"gpu_energy_joules": 2.0})
    lines = [json.loads(line) for line in encoder.encode(late) + encoder.flush()]
    assert [line["time"] for line in lines] == [1.1, 1.05]


def test_readings_of_one_source_are_never_merged(tmp_path: Path) -> None:
    """Two readings of a source within 5 ms stay two, however close they are."""
    recording = recording_of()
    fill(recording, [1.0, 1.001, 1.002], gpu_power_watts=lambda t: t)
    codec.save(recording, tmp_path / "run.jsonl")
    loaded = codec.load(tmp_path / "run.jsonl")
    assert loaded.times("nvml", GPU.id) == [1.0, 1.001, 1.002]


def test_absent_is_absent(tmp_path: Path) -> None:
    """A value that was not read, or is no finite number, is in no line, not as 0, not as NaN."""
    recording = recording_of()
    recording.append(Sample(1, GPU.id, "nvml", {"gpu_power_watts": 0.0}))
    recording.append(Sample(2, GPU.id, "nvml", {"gpu_temperature_celsius": 50.0}))
    encoder = codec.Encoder()
    for value in (math.nan, math.inf):
        encoder.encode(Sample(3, GPU.id, "nvml", {"gpu_power_watts": value}))
    assert all("watts" not in line for line in encoder.flush())
    codec.save(recording, tmp_path / "run.jsonl")
    loaded = codec.load(tmp_path / "run.jsonl")
    assert list(loaded.series("gpu_power_watts", GPU.id)) == [(1, 0)]
    assert list(loaded.series("gpu_temperature_celsius", GPU.id)) == [(2, 50)]


def test_a_name_that_is_no_unicode_survives(tmp_path: Path) -> None:
    """A lone surrogate, as in a file name that is not UTF-8, neither fails nor changes."""
    recording = recording_of()
    fill(recording, [1.0], gpu_power_watts=1)
    recording.add_mark(Mark(1.0, "caf\udce9"))
    codec.save(recording, tmp_path / "run.jsonl")
    assert codec.load(tmp_path / "run.jsonl").marks() == (Mark(1.0, "caf\udce9"),)


def test_a_cut_last_line_is_passed_over(tmp_path: Path) -> None:
    """A file that was cut anywhere in its last line gives all the lines before it."""
    path = tmp_path / "run.jsonl"
    codec.save(whole(), path)
    raw = path.read_bytes()
    last = raw.rstrip().rfind(b"\n") + 1
    full = len(codec.load(path))
    for cut in (last + 1, last + 20, len(raw) - 2):
        path.write_bytes(raw[:cut])
        assert len(codec.load(path)) == full


def test_a_cut_gzip_gives_what_came(tmp_path: Path) -> None:
    """A compressed file without its end gives every whole line that is in it."""
    path = tmp_path / "run.jsonl.gz"
    recording = recording_of()
    fill(recording, ticks(0, 500), gpu_power_watts=lambda t: math.sin(t * 1e3) * 400)
    codec.save(recording, path)
    raw = path.read_bytes()
    for cut in (len(raw) - 4, len(raw) * 2 // 3, len(raw) // 3):
        path.write_bytes(raw[:cut])
        text = zlib.decompressobj(31).decompress(raw[:cut])
        whole_lines = text[: text.rfind(b"\n")].count(b'"sample"')
        assert len(codec.load(path)) in (whole_lines, whole_lines + 1)


def test_a_gzip_with_another_name_is_read(tmp_path: Path) -> None:
    """Compression is found by the content when reading."""
    recording = whole()
    codec.save(recording, tmp_path / "run.jsonl.gz")
    (tmp_path / "run.jsonl.gz").rename(tmp_path / "run.jsonl")
    same(recording, codec.load(tmp_path / "run.jsonl"))


def test_unknown_kinds_and_keys_are_passed_over(tmp_path: Path) -> None:
    """Lines and keys that a later gpumagic may write do not hinder reading."""
    path = tmp_path / "run.jsonl"
    extra = '{"kind":"weather","time":3,"sun":true}\n\n'
    path.write_text(HEADER + extra + SAMPLE.replace("}", ',"gpu_new_ratio":1}') + extra)
    loaded = codec.load(path)
    assert list(loaded.series("gpu_power_watts", GPU.id)) == [(1, 100)]
    assert loaded.metrics(GPU.id) == ("gpu_power_watts",)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    """A file of a later format says which version it has and what to do."""
    path = tmp_path / "run.jsonl"
    path.write_text('{"kind":"recording","version":99,"strange":{}}\n' + SAMPLE)
    with pytest.raises(RecordingError, match=r"version 99.*pip install --upgrade") as caught:
        codec.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n",
        b"hello\nworld\n",
        b"\x00\xff\xfe\x80" * 50,
        b"[1, 2, 3]\n",
        b'{"time": 1}\n',
        HEADER.encode(),
        b'{"kind":"recording"}\n' + SAMPLE.encode(),
        b'{"kind":"recording","version":"one"}\n' + SAMPLE.encode(),
        b'{"kind":"recording","version":1,"period_nvml_s":"often"}\n' + SAMPLE.encode(),
        HEADER.encode() + b"cut her\n" + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"sample","time":1.0,"gpu_power_watts":1}\n',
        HEADER.encode() + SAMPLE.replace("1.0", '"noon"').encode(),
        HEADER.encode() + SAMPLE.replace("100", '"much"').encode(),
        HEADER.encode() + b'{"kind":"span","time":1}\n' + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"gap","time":1}\n' + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"device"}\n' + SAMPLE.encode(),
        HEADER.encode() + SAMPLE.replace("1.0", "NaN").encode(),
        HEADER.encode() + SAMPLE.replace("1.0", "Infinity").encode(),
        HEADER.encode() + SAMPLE.replace("1.0", "1e18").encode(),
        HEADER.encode() + SAMPLE.replace("1.0", "-1").encode(),
        HEADER.encode() + SAMPLE.replace("1.0", "9" * 400).encode(),
        HEADER.encode() + SAMPLE.replace("1.0", "9" * 5000).encode() + SAMPLE.encode(),
        HEADER.encode() + SAMPLE.replace("100", "9" * 400).encode(),
        HEADER.encode() + b'{"kind":"span","time":1,"id":1e999}\n' + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"span","time":1,"id":1,"end":NaN}\n' + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"span","time":1,"id":1,"number":[]}\n' + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"mark","time":1e300,"text":"x"}\n' + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"mark","time":' + b"[" * 200_000 + b"\n" + SAMPLE.encode(),
        HEADER.encode() + b'{"kind":"device","device":"a","nvml_index":"x"}\n' + SAMPLE.encode(),
        b'{"kind":"recording","version":1,"period_nvml_s":NaN}\n' + SAMPLE.encode(),
        b"\x1f\x8b",
        b"\x1f\x8bnot really gzip",
        gzip.compress(b"hello\n", mtime=0),
        gzip.compress(HEADER.encode(), mtime=0)[:10] + b"\xff" * 30,
    ],
)
def test_garbage_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    """What is no recording raises RecordingError with the file's name, in one line."""
    path = tmp_path / "some file.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as caught:
        codec.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEADER + SAMPLE.replace("1.0", "NaN"), "line 2 .* 'time': nan is no time in seconds"),
        (SAMPLE.replace("1.0", "9" * 400), "line 1 .*too large"),
        ('{"kind":"recording","version":"x"}\n' + SAMPLE, "line 1 .*version as 'x', .* no number"),
    ],
)
def test_what_is_odd_is_named_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    """The error of an odd value says the line's number and what is wrong, in a short text."""
    path = tmp_path / "x"
    path.write_text(content)
    with pytest.raises(RecordingError, match=words) as caught:
        codec.load(path)
    assert len(str(caught.value).removeprefix(str(path))) < 200


def test_a_value_that_is_no_number_is_absent(tmp_path: Path) -> None:
    """NaN and infinity, which some programs write as JSON, count as values that were not read."""
    path = tmp_path / "run.jsonl"
    odd = SAMPLE.replace("1.0", "2.0")
    path.write_text(
        HEADER + f'{{"kind":"device","device":"{GPU.id}","gpu_memory_total_bytes":Infinity}}\n'
        + SAMPLE + odd.replace("100", "Infinity") + odd.replace("100", "NaN")
    )
    loaded = codec.load(path)
    assert list(loaded.series("gpu_power_watts", GPU.id)) == [(1, 100)]
    assert not loaded.devices[0].constants


@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, packed: bool) -> None:
    """A file that an editor saved with a UTF-8 mark at its begin is read as without it."""
    raw = b"\xef\xbb\xbf" + (HEADER + SAMPLE).encode()
    path = tmp_path / "run.jsonl"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert len(codec.load(path)) == 1


def test_a_suffix_in_capitals_compresses(tmp_path: Path) -> None:
    """A name in .GZ is compressed as one in .gz is."""
    codec.save(whole(), tmp_path / "RUN.JSONL.GZ")
    assert (tmp_path / "RUN.JSONL.GZ").read_bytes()[:2] == b"\x1f\x8b"


def test_a_file_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    """Reading and writing where nothing can be raises RecordingError with the reason."""
    with pytest.raises(RecordingError, match=r"none\.jsonl cannot be read: No such file"):
        codec.load(tmp_path / "none.jsonl")
    with pytest.raises(RecordingError, match="cannot be written: No such file"):
        codec.save(whole(), tmp_path / "none" / "run.jsonl")
    with pytest.raises(RecordingError, match="cannot be written: Is a directory"):
        codec.save(whole(), tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told() -> None:
    """A disk that fills up while saving or streaming is an error with its reason."""
    with pytest.raises(RecordingError, match=r"/dev/full cannot be written: No space left"):
        codec.save(whole(), "/dev/full")
    recording = recording_of()
    errors: list[OSError] = []
    sink = JsonLines(recording, "/dev/full", on_error=errors.append, flush_each=True)
    fill(recording, [1.0, 2.0, 3.0], gpu_power_watts=1)
    sink.close()
    assert len(errors) == 1
    assert sink.error is errors[0]
    assert "No space left" in str(sink.error)
    assert len(recording) == 3


# -- the stream ------------------------------------------------------------------------------


def test_a_stream_begins_with_what_is_known() -> None:
    """Header, devices and gaps that are open come first, then each record as it is written."""
    recording = recording_of()
    recording.add_gap(Gap(1, 2, "nvml", None, "over"))
    recording.open_gap(Gap(3, None, "host", None, "lasts"))
    out = io.StringIO()
    sink = JsonLines(recording, out)
    fill(recording, [4.0], gpu_power_watts=1)
    recording.add_mark(Mark(5, "here"))
    recording.add_mark(Mark(6, "there"))
    sink.close()
    sink.close()
    recording.add_mark(Mark(7, "too late"))
    kinds = [json.loads(line)["kind"] for line in out.getvalue().splitlines()]
    assert kinds == ["recording", "device", "device", "gap", "sample", "mark", "mark"]
    assert sink.lines == 7
    assert not out.closed


def test_a_stream_whose_file_was_closed_stops_quietly() -> None:
    """A file that its owner closed ends the stream with an error; the recording goes on."""
    recording = recording_of()
    out = io.StringIO()
    sink = JsonLines(recording, out)
    out.close()
    fill(recording, [1.0, 2.0], gpu_power_watts=1)
    assert "closed" in str(sink.error)
    assert len(recording) == 2
    sink.close()


def test_a_stream_is_flushed_as_it_grows(tmp_path: Path) -> None:
    """After each fifty lines, or each line when asked for, the file has all of them."""
    recording = recording_of()
    seldom = JsonLines(recording, tmp_path / "seldom.jsonl")
    always = JsonLines(recording, tmp_path / "always.jsonl", flush_each=True)
    fill(recording, ticks(1, 30), gpu_power_watts=1)
    on_disk = len((tmp_path / "seldom.jsonl").read_text().splitlines())
    assert seldom.lines - 50 <= on_disk
    assert len(lines_of(tmp_path / "always.jsonl")) == always.lines
    seldom.close()
    always.close()


def test_the_host_keeps_its_kind(tmp_path: Path) -> None:
    """The host is a host after loading, and a MIG slice a GPU."""
    codec.save(whole(), tmp_path / "run.jsonl")
    kinds = {d.id: d.kind for d in codec.load(tmp_path / "run.jsonl").devices}
    assert kinds == {GPU.id: "gpu", OTHER_GPU.id: "gpu", "MIG-cccc": "gpu", HOST: "host"}


def test_merged_readings_survive_a_file(tmp_path: Path) -> None:
    """Rows, how many readings they stand for, their peaks and the breaks are what they were."""
    recording = recording_of(max_bytes=MIN_BYTES)
    for start, end in ((0, 300), (340, 700)):
        fill(recording, ticks(START + start, START + end),
             gpu_power_watts=lambda t: 900.0 if abs(t - START - 77) < 0.01 else 300 + t % 7 // 1,
             gpu_clock_event_reasons_state=lambda t: 4.0 if t % 9 < 1 else 0.0)
    fill(recording, [START + t for t in range(0, 700, 1)], source="nvml_slow",
         gpu_energy_joules=lambda t: (t - START) * 250 // 1)
    file = tmp_path / "merged.jsonl"
    codec.save(recording, file)
    read = codec.load(file)
    for metric in ("gpu_power_watts", "gpu_clock_event_reasons_state", "gpu_energy_joules"):
        one, other = (r.series(metric, GPU.id) for r in (recording, read))
        assert other.merged is not None or metric == "gpu_energy_joules"
        assert other.counts == one.counts
        assert other.times == pytest.approx(one.times, abs=1e-4)
        assert other.starts == pytest.approx(one.starts, abs=1e-4)
        assert other.values == pytest.approx(one.values, abs=1e-3)
        assert other.highs == pytest.approx(one.highs, abs=1e-3)
    assert max(read.series("gpu_power_watts", GPU.id).highs) == 900
    breaks = [r.breaks("nvml", GPU.id, end=START + 700) for r in (recording, read)]
    assert len(breaks[0]) == len(breaks[1]) == 1
    assert breaks[1][0] == pytest.approx(breaks[0][0], abs=1e-4)


def test_a_long_file_is_bounded_as_any_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with more than a recording holds is read whole, its older part merged."""
    recording = recording_of()
    fill(recording, ticks(START, START + 700), gpu_power_watts=300)
    file = tmp_path / "long.jsonl"
    codec.save(recording, file)
    monkeypatch.setattr(codec, "Recording", lambda: Recording(max_bytes=MIN_BYTES))
    read = codec.load(file)
    assert len(read) < 5000 < len(recording)
    assert sum(read.series("gpu_power_watts", GPU.id).counts) == len(recording)
    assert read.bounds == pytest.approx(recording.bounds)


def test_a_merged_row_after_readings_is_one_of_them() -> None:
    """Files that were joined may have merged rows after readings; they count as readings then."""
    recording = recording_of()
    fill(recording, ticks(START, START + 1), gpu_power_watts=1)
    row = MergedSample(START + 9, GPU.id, "nvml", {"gpu_power_watts": 5.0}, START + 5, 40, {})
    recording.append(row)
    series = recording.series("gpu_power_watts", GPU.id)
    assert (series.merged, series.times[-1], series.values[-1]) == (None, START + 9, 5.0)


def test_a_merged_cell_survives_a_file(tmp_path: Path) -> None:
    """A recording that was merged around a cell comes back with what its figures rest on."""
    recording = recording_of(max_bytes=MIN_BYTES)
    recording.add_span(Span(1, START + 10.05, START + 1000.05, 1))
    fill(recording, ticks(START, START + 1200),
         gpu_power_watts=lambda t: 600.0 if round(10 * t) % 50 == 0 else 200.0,
         gpu_clock_event_reasons_state=lambda t: 4.0 if round(10 * t) % 7 == 0 else 0.0)
    file = tmp_path / "cell.jsonl"
    codec.save(recording, file)
    read = codec.load(file)
    for metric in ("gpu_power_watts", "gpu_clock_event_reasons_state"):
        one, other = (r.series(metric, GPU.id) for r in (recording, read))
        assert one.merged is not None
        assert other.merged is not None
        assert 1 in one.counts[:100]
        assert other.counts == one.counts
        assert other.merged.tallies == one.merged.tallies
        assert other.highs == pytest.approx(one.highs, abs=1e-3)
    end = START + 1199
    assert read.breaks("nvml", GPU.id, end=end) == recording.breaks("nvml", GPU.id, end=end) == []
    one, other = (summarise(r, Span(1, START + 10.05, START + 1000.05, 1)).gpus[0]
                  for r in (recording, read))
    assert other.energy.joules == pytest.approx(one.energy.joules)
    assert other.throttling == one.throttling
    assert other.figure("gpu_power_watts").peak == one.figure("gpu_power_watts").peak
    assert other.coverage is not None
    assert one.coverage is not None
    assert other.coverage.samples == one.coverage.samples


@pytest.mark.parametrize(("before", "after"), [(0.1, 1.0), (1.0, 0.1)])
@pytest.mark.parametrize("way", ["stream", "save"])
def test_periods_that_change_survive_a_file(
    tmp_path: Path, way: str, before: float, after: float
) -> None:
    """Readings are joined by the period that they were taken at after loading too."""
    recording = recording_of(GPU)
    recording.periods["nvml"] = before
    file = tmp_path / "run.jsonl"
    sink = JsonLines(recording, file) if way == "stream" else None
    fill(recording, ticks(START, START + 60, before), gpu_power_watts=300)
    recording.periods["nvml"] = after
    fill(recording, ticks(START + 60, START + 80, after), gpu_power_watts=300)
    fill(recording, ticks(START + 82, START + 120, after), gpu_power_watts=300)
    recording.periods["host"] = 7.0
    if sink is not None:
        sink.close()
    else:
        codec.save(recording, file)
    read = codec.load(file)
    assert read.periods == recording.periods
    one, other = (r.breaks("nvml", GPU.id, end=START + 119) for r in (recording, read))
    assert len(one) == (1 if after == 0.1 else 0)
    assert [t for pair in other for t in pair] == pytest.approx([t for p in one for t in p])
    assert read.longest_period("nvml", GPU.id) == 1.0
    changes = [(line["source"], line["period_s"]) for line in lines_of(file)
               if line["kind"] == "period"]
    # The header of a saved recording has the period of what was never read.
    assert changes == [("nvml", after), *([("host", 7.0)] if way == "stream" else [])]


@pytest.mark.parametrize("rest", ['"source":"nvml"', '"source":"nvml","period_s":NaN'])
def test_a_garbled_period_is_named(tmp_path: Path, rest: str) -> None:
    """A line of a period without a number is refused with its own number."""
    file = tmp_path / "bad.jsonl"
    file.write_text(HEADER + f'{{"kind":"period","time":1.0,{rest}}}\n' + SAMPLE, "utf-8")
    with pytest.raises(RecordingError, match=r"line 2 .*period_s"):
        codec.load(file)


@pytest.mark.parametrize("tally", ["0:3 4", "0:9", "x:1", "4:0"])
def test_a_garbled_tally_is_named(tmp_path: Path, tally: str) -> None:
    """A count of bits that is none, or exceeds the row's readings, is refused."""
    file = tmp_path / "bad.jsonl"
    row = {"kind": "sample", "time": 2.0, "device": GPU.id, "start": 1.0, "readings": 4,
           "gpu_clock_event_reasons_state": 4,
           "readings_gpu_clock_event_reasons_state": tally}
    file.write_text(HEADER + json.dumps(row) + "\n", "utf-8")
    with pytest.raises(RecordingError, match="line 2 "):
        codec.load(file)
