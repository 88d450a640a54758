"""Whether kernels still run, asked without waiting for them."""

from __future__ import annotations

from typing import Any, Literal

from ..devices import cuda_module

__all__ = ["StreamState", "streams_state", "synchronise"]

StreamState = Literal["idle", "busy", "unknown"]


def _used(cuda: Any) -> list[int]:
    # A query of a device that nobody has used would make a context on it.
    return [
        index
        for index in range(cuda.device_count())
        if (cuda.memory_stats_as_nested_dict(index) or {})
        .get("reserved_bytes", {})
        .get("all", {})
        .get("current", 0)
    ]


def streams_state() -> StreamState:
    """Tell if the current stream of any used GPU still has work (``cudaStreamQuery``).

    Only the current streams of this thread are asked; other streams stay unknown. "unknown"
    also where CUDA is not initialised, or where the query fails (a stream capture).
    """
    cuda = cuda_module()
    if cuda is None:
        return "unknown"
    try:
        used = _used(cuda)
        if not used:
            return "unknown"
        if cuda.is_current_stream_capturing():
            return "unknown"
        idle = all(cuda.current_stream(index).query() for index in used)
    except (AttributeError, RuntimeError):
        return "unknown"
    return "idle" if idle else "busy"


def synchronise() -> bool:
    """Wait for all work on the GPUs that torch uses; return whether there was a torch to ask."""
    cuda = cuda_module()
    if cuda is None:
        return False
    for index in _used(cuda):
        cuda.synchronize(index)
    return True
