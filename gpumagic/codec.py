"""Recording <-> flat JSON lines.

Each line is one flat object with a ``kind``, so that pandas (``read_json(lines=True)``) and log
shippers read a file as it is::

    {"kind": "recording", "version": 1, "gpumagic": "...", "period_nvml_s": 0.1, ...}
    {"kind": "device", "device": "GPU-...", "name": "NVIDIA H200", "nvml_index": 0, ...}
    {"kind": "period", "time": ..., "source": "nvml", "period_s": 1.0}
    {"kind": "sample", "time": 1764515520.1, "device": "GPU-...", "gpu_power_watts": 610, ...}
    {"kind": "span", "time": ..., "end": ..., "id": 1, "number": 12, "status": "ok"}
    {"kind": "mark", "time": ..., "text": "epoch 3"}
    {"kind": "gap", "time": ..., "end": ..., "source": "nvml", "reason": "..."}

Readings of one device within 5 ms share a line, which takes the first one's time. Readings that
a recording has merged are a line of their own with two more keys, ``start`` (the time of the
first) and ``readings`` (how many), and a ``highest_`` key for each metric whose highest is not
its value, which is their mean. Where readings of bits in them differ, a
``readings_`` key says how many there were of each (``"0:3 4:1"``). The header gives the period
of each source at the start of the file; a ``period`` line says that from the next sample of a
source on it is another one. A value that was not read is an absent key. An unknown ``kind`` is
passed over, as is a cut last line, and a value that is no finite number counts as not read.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from .errors import RecordingError
from .metrics import METRICS
from .recording import Record, Recording, period_changes
from .sample import HOST, Device, Gap, Mark, Sample, Span, SpanStatus
from .tracks import BITS, MergedSample, Tally

__all__ = ["VERSION", "Encoder", "decode", "header_line", "load", "open_for_writing", "save"]

VERSION = 1
"""Version of the format; a reader refuses a newer one."""

_TICK_S = 0.005
_HIGHEST = "highest_"
_TALLY = f"readings_{BITS}"
_LATEST_S = 1e11  # the year 5138: what lies beyond is no time, and no calendar can show it
_SPAN_STATUS: tuple[SpanStatus, ...] = ("running", "ok", "error", "interrupted")


def _version() -> str:
    from . import __version__

    return __version__


def _round(value: float, unit: str) -> float | int:
    """Drop digits that no device measures, so that lines stay short."""
    value = float(value)  # a constant can be an int, which has no is_integer before 3.12
    if value.is_integer():
        return int(value)
    return round(value, 4 if unit in ("ratio", "cores") else 3)


def header_line(periods: dict[str, float]) -> str:
    """Return the first line; ``periods`` are the seconds between readings by source."""
    line: dict[str, Any] = {"kind": "recording", "version": VERSION, "gpumagic": _version()}
    line.update({f"period_{name}_s": period for name, period in periods.items()})
    return _dump(line)


def _device_line(device: Device) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": "device", "device": device.id, "name": device.name}
    if device.nvml_index is not None:
        line["nvml_index"] = device.nvml_index
    if device.torch_index is not None:
        line["torch_index"] = device.torch_index
        line["torch_assumed"] = device.torch_assumed
    line.update({k: _round(v, METRICS[k].unit) for k, v in device.constants.items()})
    line.update({f"absent_{name}": reason for name, reason in device.absent.items()})
    if device.notes:
        line["notes"] = " | ".join(device.notes)
    return line


class Encoder:
    """Turn records into lines, one a device and tick.

    Feed it records in the order in which they were written; ``flush`` gives what waits for a
    companion of the same tick.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, Any]] = {}

    def encode(self, record: Record) -> list[str]:
        """Return the lines that are complete now, without line ends."""
        match record:
            case MergedSample():
                return self._merged(record)
            case Sample():
                return self._sample(record)
            case Device():
                return [*self.flush(), _dump(_device_line(record))]
            case Span():
                line = {"kind": "span", "time": _time(record.start), "end": _time(record.end),
                        "id": record.id, "number": record.number, "name": record.name,
                        "status": record.status}
            case Mark():
                line = {"kind": "mark", "time": _time(record.time), "text": record.text}
            case Gap():
                line = {"kind": "gap", "time": _time(record.start), "end": _time(record.end),
                        "source": record.source, "device": record.device,
                        "reason": record.reason}
        return [*self.flush(), _dump({k: v for k, v in line.items() if v not in (None, "")})]

    def _merged(self, sample: MergedSample) -> list[str]:
        waiting = self._waiting.pop(sample.device, None)
        line = {"kind": "sample", "time": _time(sample.time), "device": sample.device,
                "start": _time(sample.start), "readings": sample.count}
        line |= {name: _round(v, METRICS[name].unit) for name, v in sample.values.items()}
        for name, value in sample.highs.items():
            high = _round(value, METRICS[name].unit)
            if high != line[name]:
                line[_HIGHEST + name] = high
        if sample.tally:
            line[_TALLY] = " ".join(f"{bits}:{count}" for bits, count in sample.tally)
        return [*([] if waiting is None else [_dump(waiting)]), _dump(line)]

    def _sample(self, sample: Sample) -> list[str]:
        done = []
        line = self._waiting.get(sample.device)
        if line is not None and (
            abs(sample.time - line["time"]) > _TICK_S or not line.keys().isdisjoint(sample.values)
        ):
            done.append(_dump(self._waiting.pop(sample.device)))
            line = None
        if line is None:
            line = {"kind": "sample", "time": _time(sample.time), "device": sample.device}
            self._waiting[sample.device] = line
        for name, value in sample.values.items():
            if math.isfinite(value):  # JSON has no NaN
                line[name] = _round(value, METRICS[name].unit)
        return done

    def period(self, time: float, source: str, period: float) -> list[str]:
        """Return the lines that say how many seconds lie between a source's next readings."""
        line = {"kind": "period", "time": _time(time), "source": source, "period_s": period}
        return [*self.flush(), _dump(line)]

    def flush(self) -> list[str]:
        """Return the lines that still wait."""
        lines = [_dump(line) for line in self._waiting.values()]
        self._waiting.clear()
        return lines


def _time(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _dump(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def decode(lines: Iterable[str]) -> Iterator[tuple[dict[str, Any], Record | None]]:
    """Yield each line's object with the record in it (several for a shared tick).

    Raises :class:`~gpumagic.errors.RecordingError` for a newer version and for a line that is
    no JSON, unless it is the last one (a file that was cut off).
    """
    broken = ""
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        if broken:
            raise RecordingError(broken)
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or "kind" not in line:
                raise ValueError("no kind")
        except (ValueError, RecursionError):  # the latter for lists within lists without end
            broken = f"line {number} is not a line of a gpumagic recording"
            continue
        yield from ((line, record) for record in _records(line, number))
    if broken and broken.startswith("line 1 "):
        raise RecordingError(broken)


def _records(line: dict[str, Any], number: int) -> Iterator[Record | None]:
    try:
        match line["kind"]:
            case "recording":
                version = line["version"]
                if not isinstance(version, (int, float)):
                    raise RecordingError(
                        f"line {number} gives the recording's version as"
                        f" {_short(repr(version))}, which is no number"
                    )
                if version > VERSION:
                    raise RecordingError(
                        f"the recording has version {_short(str(version))}; this gpumagic reads"
                        f" up to {VERSION}: pip install --upgrade gpumagic"
                    )
                for key, value in line.items():
                    if key.startswith("period_") and not math.isfinite(float(value)):
                        raise ValueError(f"{key!r}: {value}")
                yield None
            case "period":
                str(line["source"])
                if not math.isfinite(float(line["period_s"])):
                    raise ValueError(f"'period_s': {line['period_s']}")
                yield None
            case "sample":
                yield from _samples(line)
            case "device":
                yield _device(line)
            case "span":
                said = line.get("status")
                status: SpanStatus = next((s for s in _SPAN_STATUS if s == said), "ok")
                yield Span(
                    int(line["id"]), _seconds(line, "time"), _optional(line, "end"),
                    _index(line, "number"), str(line.get("name") or ""),
                    status,
                )
            case "mark":
                yield Mark(_seconds(line, "time"), str(line.get("text", "")))
            case "gap":
                device = line.get("device")
                yield Gap(
                    _seconds(line, "time"), _optional(line, "end"), str(line["source"]),
                    None if device is None else str(device), str(line.get("reason", "")),
                )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = _short(str(error))
        raise RecordingError(f"line {number} of the recording lacks or garbles {what}") from None


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _seconds(line: dict[str, Any], key: str) -> float:
    value = float(line[key])
    if not 0 <= value < _LATEST_S:  # also turns NaN away
        raise ValueError(f"{key!r}: {value:g} is no time in seconds since 1970")
    return value


def _optional(line: dict[str, Any], key: str) -> float | None:
    return None if line.get(key) is None else _seconds(line, key)


def _index(line: dict[str, Any], key: str) -> int | None:
    value = line.get(key)
    return None if value is None else int(value)


def _finite(value: Any) -> float | None:
    """Read a value; one that is no finite number was not read, as when it is written."""
    number = float(value)
    return number if math.isfinite(number) else None


def _samples(line: dict[str, Any]) -> Iterator[Sample]:
    by_source: dict[str, dict[str, float]] = {}
    for name, value in line.items():
        metric = METRICS.get(name)
        if metric is not None and value is not None:
            number = _finite(value)
            if number is not None:
                by_source.setdefault(metric.source, {})[name] = number
    time, device = _seconds(line, "time"), str(line["device"])
    start = _optional(line, "start")
    for source, values in by_source.items():
        if start is None:
            yield Sample(time, device, source, values)
        else:
            highs = {name: number for name in values if (
                number := _finite(line.get(_HIGHEST + name, values[name]))) is not None}
            count = max(1, int(line["readings"]))
            yield MergedSample(
                time, device, source, values, min(start, time), count, highs,
                _tally(line.get(_TALLY), count) if BITS in values else (),
            )


def _tally(text: Any, most: int) -> Tally:
    """Read how many readings of bits there were of each value, at most ``most`` in all."""
    pairs = (pair.partition(":") for pair in str(text or "").split())
    found = tuple((int(bits), int(count)) for bits, _, count in pairs)
    if any(bits < 0 or count < 1 for bits, count in found) or sum(n for _, n in found) > most:
        raise ValueError(f"{_TALLY!r}: {text}")
    return found


def _device(line: dict[str, Any]) -> Device:
    name = str(line["device"])
    return Device(
        name,
        "host" if name == HOST else "gpu",
        str(line.get("name", "")),
        _index(line, "nvml_index"),
        _index(line, "torch_index"),
        bool(line.get("torch_assumed", False)),
        constants={k: number for k, v in line.items()
                   if k in METRICS and (number := _finite(v)) is not None},
        absent={k.removeprefix("absent_"): str(v) for k, v in line.items()
                if k.startswith("absent_")},
        notes=tuple(str(line["notes"]).split(" | ")) if line.get("notes") else (),
    )


def open_for_writing(path: str | Path) -> IO[str]:
    """Open a file for lines, compressed if its name ends in ``.gz``.

    Raises :class:`~gpumagic.errors.RecordingError` where it cannot be written.
    """
    path = Path(path).expanduser()
    try:
        # A lone surrogate in a name becomes the JSON escape that stands for it.
        if path.suffix.lower() == ".gz":
            return gzip.open(path, "wt", encoding="utf-8", errors="backslashreplace")
        return path.open("w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror or error}") from None


def save(recording: Recording, path: str | Path) -> int:
    """Write a whole recording; return the number of lines.

    Readings that it has merged are written as they are, one line for several of them.
    Raises :class:`~gpumagic.errors.RecordingError` where the file cannot be written.
    """
    encoder = Encoder()
    # The period in force is said before the first reading that was taken at it.
    present = dict(recording.periods)
    changes = period_changes(recording)
    first = present | {source: period for _, source, period in reversed(changes)}
    records: list[tuple[float, Record | tuple[str, float]]] = [
        (time, (source, period)) for time, source, period in changes
    ]
    records += [(s.time, s) for s in recording.samples()]
    records += [(s.start, s) for s in recording.spans()]
    records += [(m.time, m) for m in recording.marks()]
    records += [(g.start, g) for g in recording.gaps()]
    records.sort(key=lambda pair: pair[0])
    lines = [header_line(first)]
    lines += [_dump(_device_line(device)) for device in recording.devices]
    written = dict(first)
    newest = records[-1][0] if records else 0.0
    for time, record in [*records, *((math.inf, pair) for pair in present.items())]:
        if not isinstance(record, tuple):
            lines += encoder.encode(record)
        elif written.get(record[0]) != record[1]:
            written[record[0]] = record[1]
            lines += encoder.period(min(time, newest), *record)
    lines += encoder.flush()
    try:
        with open_for_writing(path) as file:
            file.writelines(line + "\n" for line in lines)
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror or error}") from None
    return len(lines)


def load(path: str | Path) -> Recording:
    """Read a recording from JSON lines, plain or gzip, whatever its name.

    It has the bound of every recording: of a long file, the older part is merged.
    Raises :class:`~gpumagic.errors.RecordingError` where it cannot be read.
    """
    path = Path(path).expanduser()
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from None
    text = _text(raw, path)
    recording = Recording()
    try:
        for line, record in decode(io.StringIO(text)):
            _put(recording, line, record)
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from None
    if recording.bounds is None:
        raise RecordingError(f"{path} holds no samples")
    return recording


def _text(raw: bytes, path: Path) -> str:
    if raw[:2] != b"\x1f\x8b":
        return raw.decode("utf-8-sig", errors="replace")  # editors put a mark before the text
    kept = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            # read() would lose what it has of its chunk when the stream ends too early.
            while chunk := file.read1(1 << 16):
                kept += chunk
    except (EOFError, OSError, zlib.error) as error:
        # A recorder that was killed leaves a stream without its end; what came is good.
        if not kept:
            raise RecordingError(f"{path} cannot be read: {error}") from None
    return kept.decode("utf-8-sig", errors="replace")


def _put(recording: Recording, line: dict[str, Any], record: Record | None) -> None:
    match record:
        case Device():
            recording.add_device(record)
        case Sample():
            recording.append(record)
        case Span():
            recording.add_span(record)
        case Mark():
            recording.add_mark(record)
        case Gap():
            recording.add_gap(record)
        case None if line["kind"] == "period":
            recording.periods[str(line["source"])] = float(line["period_s"])
        case None:
            for key, value in line.items():
                if key.startswith("period_") and key.endswith("_s"):
                    recording.periods[key.removeprefix("period_").removesuffix("_s")] = float(value)
