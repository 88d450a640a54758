"""Show that torch's ``cuda:0`` is paired with the GPU that it is, whatever the environment says.

``python tests/gpu/check_devices.py`` on a machine with one or more NVIDIA GPUs and torch. For each
setting of CUDA_VISIBLE_DEVICES a fresh Python notes the pairing before CUDA is initialised, puts
2 GiB on ``cuda:0``, and sees on which GPU the driver counts them. Exits with 1 on a wrong one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pynvml

CHILD = """
import json, time
from gpumagic.session import current
session = current()
lease = session.lease("check", gpus="all")
def pairing():
    found = {d.torch_index: d.id for d in session.recording.devices if d.torch_index is not None}
    assumed = any(d.torch_assumed for d in session.recording.devices)
    return found.get(0), len(found), assumed
before, number, assumed = pairing()
import torch
assert not torch.cuda.is_initialized()
grown, after = None, None
if number:
    def used():
        time.sleep(0.4)
        return {d.id: session.recording.latest("gpu_memory_used_bytes", d.id)[1]
                for d in session.recording.devices if d.kind == "gpu"}
    first = used()
    kept = torch.zeros(1 << 31, dtype=torch.uint8, device="cuda:0")
    last = used()
    grown = max(last, key=lambda uuid: last[uuid] - first[uuid])
    assert last[grown] - first[grown] >= 1 << 31
    after, _, _ = pairing()
    allocated = session.recording.latest("torch_allocated_bytes", grown)
    assert allocated is not None and allocated[1] == 1 << 31, allocated
lease.release()
print(json.dumps([before, after, grown, number, assumed, torch.cuda.device_count()]))
"""


def main() -> int:
    """Try each setting; return the exit status."""
    pynvml.nvmlInit()
    uuids = [
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(pynvml.nvmlDeviceGetCount())
    ]
    last = len(uuids) - 1
    settings: list[dict[str, str]] = [
        {},
        {"CUDA_VISIBLE_DEVICES": str(last)},
        {"CUDA_VISIBLE_DEVICES": uuids[last]},
        {"CUDA_VISIBLE_DEVICES": uuids[last][:12]},
        {"CUDA_VISIBLE_DEVICES": ",".join(str(i) for i in range(last, -1, -1))},
        {"CUDA_VISIBLE_DEVICES": f"{last},-1,0"},
        {"CUDA_VISIBLE_DEVICES": f"{last},99"},
        {"CUDA_VISIBLE_DEVICES": f"{last},{last}"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "-1"},
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": f"{last}"},
    ]
    failed = 0
    for setting in settings:
        done = subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False,
            env={**os.environ, **setting},
        )
        try:
            before, after, grown, number, assumed, count = json.loads(done.stdout)
        except ValueError:
            failed += 1
            print(f"FAILED {setting}: {done.stderr[-600:]}")
            continue
        good = before == after == grown and number == count
        failed += not good
        index = uuids.index(grown) if grown in uuids else None
        print(
            f"{'ok' if good else 'FAILED':6} {setting or 'nothing set'}: cuda:0 is GPU {index},"
            f" paired with {number} of torch's {count}{', assumed' if assumed else ''}"
        )
        if not good:
            print(f"       before {before}, after {after}, truth {grown}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
