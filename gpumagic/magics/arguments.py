"""The arguments of magics: parsed as a shell would, with one-line errors."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

from IPython.core.error import UsageError
from IPython.utils.process import arg_split  # type: ignore[attr-defined]

from ..errors import GpuMagicError

__all__ = ["MagicParser", "interval", "one_line_errors", "window"]


class MagicParser(argparse.ArgumentParser):
    """An argument parser whose errors are one-line usage errors and which never exits."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog, description=description, add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} ({self.prog}? shows the options)")

    def parse_line(self, line: str) -> argparse.Namespace:
        """Parse what stands behind the magic's name."""
        try:
            words = arg_split(line, posix=os.name != "nt")
        except ValueError as error:
            self.error(f"{error}".lower())
        return self.parse_args(words)


class one_line_errors:
    """Turn gpumagic's own errors into usage errors: one line, no traceback.

    IPython keeps the last error. The one that was replaced is behind it (``__context__``), so
    its traceback is dropped: the frames in it may hold what the user wants to be rid of.
    """

    def __init__(self, prog: str) -> None:
        self._prog = prog

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del traceback  # this frame will be in a traceback itself
        if isinstance(error, GpuMagicError):
            error.__traceback__ = error.__context__ = None
            raise UsageError(f"{self._prog}: {error}") from None


@contextmanager
def _wrong_arguments() -> Iterator[None]:
    """Turn gpumagic's own errors into those that argparse reports with the option's name."""
    try:
        yield
    except GpuMagicError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def interval(text: str) -> float:
    """Read a sampling interval in seconds."""
    from ..options import check_interval

    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    with _wrong_arguments():
        return check_interval(value)


def window(text: str) -> float:
    """Read a window: seconds, ``10min``, ``1h``, or ``all``, which is infinite."""
    from ..options import parse_window

    with _wrong_arguments():
        return parse_window(text)
