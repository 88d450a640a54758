"""Load gpumagic in each kernel: a start-up file where IPython finds it, put there on request.

IPython runs ``<sys.prefix>/etc/ipython/startup/*.py`` and those of the profile, beside
whatever the user's own configuration loads. Installing gpumagic puts nothing there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .errors import SettingError

__all__ = ["FILE_NAME", "MARKER", "is_ours", "places", "source", "status", "turn_off", "turn_on"]

FILE_NAME = "50-gpumagic.py"

MARKER = "# Written by: gpumagic autoload on"
"""The line by which ``off`` knows that a file is gpumagic's."""


def source() -> Path:
    """Return the start-up file that is shipped: in the wheel, or in a checkout of the source.

    Raises :class:`~gpumagic.errors.SettingError` where it is missing.
    """
    package = Path(__file__).parent
    for path in (
        package / "data" / FILE_NAME,
        package.parent / "jupyter-config" / "startup" / FILE_NAME,
    ):
        if path.is_file():
            return path
    raise SettingError(
        f"this installation lacks {FILE_NAME}: pip install --force-reinstall gpumagic"
    )


def _place(user: bool) -> Path:
    if not user:
        return Path(sys.prefix, "etc", "ipython", "startup", FILE_NAME)
    try:
        from IPython.paths import get_ipython_dir
    except ImportError:
        raise SettingError("IPython is not installed here: pip install ipython") from None
    return Path(get_ipython_dir(), "profile_default", "startup", FILE_NAME)


def places() -> tuple[Path, Path]:
    """Return where the file would lie for this environment and for the user."""
    return _place(False), _place(True)


def is_ours(path: Path) -> bool:
    """Tell whether a file bears gpumagic's marker."""
    try:
        return MARKER in path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False


def turn_on(*, user: bool = False) -> str:
    """Put the start-up file into its place; return a sentence that says where.

    Raises :class:`~gpumagic.errors.SettingError` where a file that is not gpumagic's lies
    there, or where it cannot be written.
    """
    path = _place(user)
    if path.exists() and not is_ours(path):
        raise SettingError(f"{path} is not gpumagic's: move it away first")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source().read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        why = error.strerror or error
        remedy = "" if user else "; --user needs no rights of others"
        raise SettingError(f"{path} cannot be written: {why}{remedy}") from None
    return f"autoload is on: {path} loads gpumagic in each new kernel"


def turn_off(*, user: bool = False) -> str:
    """Take the start-up file away if it is gpumagic's; return a sentence that says so.

    Raises :class:`~gpumagic.errors.SettingError` where a file that is not gpumagic's lies
    there, or where it cannot be removed.
    """
    path = _place(user)
    if not path.exists():
        other = _place(not user)
        option = "--sys-prefix" if user else "--user"
        hint = f"; {other} is on: autoload off {option}" if is_ours(other) else ""
        return f"autoload was off: there is no {path}{hint}"
    if not is_ours(path):
        raise SettingError(f"{path} is not gpumagic's and stays: remove it by hand")
    try:
        path.unlink()
    except OSError as error:
        raise SettingError(f"{path} cannot be removed: {error.strerror or error}") from None
    return f"autoload is off: {path} is removed"


def status() -> str:
    """Return a line for the environment and one for the user."""
    lines = []
    for title, path in zip(("environment", "user"), places(), strict=True):
        if not path.exists():
            state = "off"
        elif not is_ours(path):
            state = "off; the file there is not gpumagic's"
        elif path.read_bytes() == source().read_bytes():
            state = "on"
        else:
            state = "on, by another version's file: autoload on renews it"
        lines.append(f"{title + ':':<13}{state} ({path})")
    return "\n".join(lines)
