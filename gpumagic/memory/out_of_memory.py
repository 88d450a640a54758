"""Errors that say that a GPU's memory ran out, and the figures that torch puts into them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Request", "errors_behind", "find_out_of_memory", "is_out_of_memory", "message_of", "parse",
]

_MOST_ERRORS = 32
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"(-?[\d.]+) (bytes|KiB|MiB|GiB)"
# torch computes this one by a subtraction without a sign, which has been seen to go below zero.
_LARGEST = 1 << 50

# What CUDA and its libraries say without torch's allocator; NCCL quotes CUDA.
_TEXTS = re.compile(
    r"(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory|[Cc]uda failure .{0,4}out of memory"
    r"|\b(CUBLAS|CUBLASLT|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|MIOPEN)_\w*ALLOC(ATION)?_FAILED"
)


@dataclass(frozen=True, slots=True)
class Request:
    """The figures of a message in bytes, to the two decimals that torch writes.

    ``allowed_bytes`` is the limit of ``set_per_process_memory_fraction``; ``allocated_bytes``
    is in live tensors, ``private_bytes`` lies free in CUDA graphs' pools, and
    ``unallocated_bytes`` in the cache besides. ``others_bytes`` is what other processes use, as
    far as the message tells them from this one. ``new_variable`` says that it speaks of
    ``PYTORCH_ALLOC_CONF``, as torch 2.10 does.
    """

    asked_bytes: int | None = None
    device_index: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    allowed_bytes: int | None = None
    allocated_bytes: int | None = None
    private_bytes: int | None = None
    unallocated_bytes: int | None = None
    own_bytes: int | None = None
    others_bytes: int | None = None
    new_variable: bool = False


# -- which errors ---------------------------------------------------------------------------


def errors_behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it, as a traceback shows them, members of groups too."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_ERRORS:
        one = waiting.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.append(one.__cause__)
        if not one.__suppress_context__:
            waiting.append(one.__context__)
        members = getattr(one, "exceptions", ())
        waiting += members if isinstance(members, tuple) else ()


def find_out_of_memory(error: BaseException) -> BaseException | None:
    """Return the error among those behind one that says that a GPU's memory ran out."""
    return next(filter(_says_so, errors_behind(error)), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error, or one that led to it, says that a GPU's memory ran out.

    By the type's name (``torch.OutOfMemoryError``, ``torch.cuda.OutOfMemoryError``) or the text
    of a RuntimeError; torch is not needed for it.
    """
    return find_out_of_memory(error) is not None


def _says_so(error: BaseException) -> bool:
    for kind in type(error).__mro__:
        if kind.__name__ == "OutOfMemoryError" and kind.__module__.partition(".")[0] == "torch":
            return True
    return isinstance(error, RuntimeError) and _TEXTS.search(message_of(error)) is not None


def message_of(error: BaseException) -> str:
    """Return an error's text, empty where it has none that can be had."""
    try:
        return str(error)
    except Exception:
        return ""


# -- what they tell -------------------------------------------------------------------------


def parse(message: str) -> Request:
    """Read the figures of torch's message; what it does not tell is ``None``.

    Knows the texts of torch 2.1 to 2.13, the one before 2.1, and cudaMallocAsync's.
    """
    own = _size(message, rf"this process has {_SIZE} memory in use")
    others = [_bytes(*found) for found in re.findall(rf"Process \d+ has {_SIZE}", message)]
    left = _size(message, rf"{_SIZE} is reserved by PyTorch but unallocated")
    allocated = _size(
        message, rf"{_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated",
        rf"Currently allocated\s*: {_SIZE}",
    )
    reserved = _size(message, rf"{_SIZE} reserved in total by PyTorch")
    if left is None and reserved is not None and allocated is not None:
        left = reserved - allocated
    private = _size(message, rf"with {_SIZE} allocated in private pools")
    if allocated is not None and private is not None:
        allocated -= private
    return Request(
        asked_bytes=_size(message, rf"Tried to allocate {_SIZE}", rf"Requested\s*: {_SIZE}"),
        device_index=_index(message),
        free_bytes=_size(
            message, rf"of which {_SIZE} is free", rf"; {_SIZE} free",
            rf"Free \(according to CUDA\): {_SIZE}",
        ),
        total_bytes=_size(
            # torch 2.1 misspells it.
            message, rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity",
            rf"Device limit\s*: {_SIZE}",
        ),
        allowed_bytes=_size(message, rf"{_SIZE} allowed;", rf"memory fraction\)\s*: {_SIZE}"),
        allocated_bytes=allocated,
        private_bytes=private,
        unallocated_bytes=left if left is not None and 0 <= left < _LARGEST else None,
        own_bytes=own,
        # Without a word of this process, one of the others can be this one by the host's PID.
        others_bytes=sum(others) if own is not None else None,
        new_variable="PYTORCH_ALLOC_CONF" in message,
    )


def _size(message: str, *patterns: str) -> int | None:
    for pattern in patterns:
        found = re.search(pattern, message)
        if found is not None:
            return _bytes(found[1], found[2])
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _index(message: str) -> int | None:
    # torch 2.2 and 2.3 write the number as a character, not as its digits.
    found = re.search(r"GPU ([\x00-\x1f]|\d+)(?: has a total|;)|on device (\d+)", message)
    if found is None:
        return None
    text: str = found[1] or found[2]
    return int(text) if text.isdecimal() else ord(text)
