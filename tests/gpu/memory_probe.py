"""What a kernel tells of its memory, as JSON: holders by name, torch's figures and NVML's."""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["state"]


def state(device: str) -> str:
    """Return holders, remainders and figures of the first device of a type, as JSON."""
    import gpumagic

    report = gpumagic.memory_report(cpu=device == "cpu", count=20)
    found: dict[str, Any] = {"reason": report.reason, "cut": report.cut, "holders": [],
                             "storages": [], "remainders": [], "seconds": report.seconds,
                             "objects": report.objects}
    for one in report.devices[:1]:
        known = one.__class__.__dataclass_fields__
        assert "holders" in known
        plain = report.to_dict()["devices"][0]
        found |= {name: plain[name] for name in ("holders", "storages", "remainders", "pinned",
                                                  "children")}
    if device == "cuda":
        found |= _figures(sys.modules["torch"])
    return json.dumps(found)


def _figures(torch: Any) -> dict[str, int]:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "nvml_used": info.used,
    }
