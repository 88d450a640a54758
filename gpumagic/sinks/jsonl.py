"""Write each record of a recording to a file of JSON lines as it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..codec import Encoder, header_line, open_for_writing
from ..recording import Record, Recording
from ..sample import Sample

__all__ = ["JsonLines"]

_FLUSH_LINES = 50


class JsonLines:
    """Stream a recording into a file, from now on; devices known already come first.

    ``target`` is a path (``.gz`` compresses) or an open text file, which is left open. A file
    that cannot be written any more (disk full, pipe closed) ends the stream: ``error`` then
    says why and ``on_error`` is called; the recording goes on.
    """

    def __init__(
        self,
        recording: Recording,
        target: str | Path | IO[str],
        *,
        on_error: Callable[[OSError], None] | None = None,
        flush_each: bool = False,
    ) -> None:
        self.error: OSError | None = None
        self.lines = 0
        self._owned = isinstance(target, (str, Path))
        self._file = (
            open_for_writing(target) if isinstance(target, (str, Path)) else target
        )
        self._encoder = Encoder()
        self._lock = threading.Lock()
        self._on_error = on_error
        self._flush_each = flush_each
        self._flushed = 0
        self._open = True
        self._recording = recording
        self._periods = dict(recording.periods)
        self._write([header_line(self._periods)])
        for device in recording.devices:
            self._write(self._encoder.encode(device))
        for gap in recording.gaps():
            if gap.end is None:
                self._write(self._encoder.encode(gap))
        self._unsubscribe = recording.subscribe(self._take)

    def _take(self, record: Record) -> None:
        with self._lock:
            if self._open:  # a record can be on its way while the stream is closed
                if isinstance(record, Sample):
                    self._write_period(record.source, record.time)
                self._write(self._encoder.encode(record))

    def _write_period(self, source: str, time: float) -> None:
        """Write the period of a source before the first reading for which it is another one."""
        period = self._recording.periods.get(source)
        if period is not None and self._periods.get(source) != period:
            self._periods[source] = period
            self._write(self._encoder.period(time, source, period))

    def _write(self, lines: list[str]) -> None:
        if self.error is not None or not lines:
            return
        try:
            for line in lines:
                self._file.write(line + "\n")
                self.lines += 1
            if self._flush_each or self.lines - self._flushed >= _FLUSH_LINES:
                self._flushed = self.lines
                self._file.flush()
        except (OSError, ValueError) as error:  # ValueError: closed by its owner
            self.error = error if isinstance(error, OSError) else OSError(str(error))
            if self._on_error is not None:
                self._on_error(self.error)

    def flush(self) -> None:
        """Write what waits for a companion of its tick, and what the file's buffer holds."""
        with self._lock:
            if self._open:
                self._write(self._encoder.flush())
                self._finish(self._file.flush)

    def close(self) -> None:
        """End the stream: write what waits and close a file of our own."""
        self._unsubscribe()
        with self._lock:
            if not self._open:
                return
            self._open = False
            bounds = self._recording.bounds
            for source in tuple(self._recording.periods):
                self._write_period(source, 0.0 if bounds is None else bounds[1])
            self._write(self._encoder.flush())
            self._finish(self._file.flush)
            if self._owned:
                self._finish(self._file.close)

    def _finish(self, end: Callable[[], None]) -> None:
        try:
            end()
        except OSError as error:
            self.error = self.error or error
        except ValueError as error:  # closed by its owner
            self.error = self.error or OSError(str(error))
