"""Check on a real GPU that each way of holding memory is named, and that it comes back.

``python tests/gpu/check_holders.py --out DIR`` on a machine with an NVIDIA GPU, torch and
ipykernel. Each scenario of ``tests/memory_scenarios.py`` runs in a real kernel: the named holder
has to be the true one, the bytes have to agree with torch's allocator and with NVML, and what
``%gpufree`` says is gone has to be gone by NVML's account. Exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from memory_player import Checks, Player, play  # noqa: E402
from memory_scenarios import SCENARIOS  # noqa: E402

UNIT = 1 << 30


# -- what only a GPU has -------------------------------------------------------------------

FRAGMENTS = """\
pieces = [torch.zeros(24 << 20, dtype=torch.uint8, device="cuda") for _ in range(40)]
keep = [torch.zeros(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(200)]
kept = keep[::10]
del pieces, keep"""

PANEL = """\
old = big(60)
model = big(30)
def step():
    acts = [big(5) for _ in range(4)]
    return torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
model = step()"""

OTHER = """\
import subprocess
child = subprocess.Popen([sys.executable, "-c", '''
import torch, sys
x = torch.zeros(3 << 30, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.readline()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()"""

GRAPH = """\
net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="cuda") for _ in range(4)])
losses = []
for _ in range(3):
    losses.append(net(torch.ones(8192, 4096, device="cuda")).square().mean())"""


def fragmentation(notebook: Player, checks: Checks) -> str:
    """Check that cached blocks which live ones pin are told, with who pins them."""
    notebook.run(FRAGMENTS)
    found = notebook.state()
    pinned = found["pinned"]
    checks.check("  pinned cache is told", bool(pinned and pinned["bytes"]), found)
    checks.check("  by kept", bool(pinned and any("kept[" in n for n in pinned["names"])), pinned)
    _, said = notebook.run("%gpufree")
    after = notebook.state()
    checks.check("  it is what stays cached", bool(after["pinned"]) and
                 after["pinned"]["bytes"] == after["reserved"] - after["allocated"], after)
    notebook.run("%gpufree kept")
    return said


def panel(notebook: Player, checks: Checks) -> str:
    """Check the panel after a real out-of-memory error, and that its promise holds."""
    _, text = notebook.run(PANEL)
    checks.check("  asked for 60.0 GiB", "60.0 GiB asked for" in text, text[-1500:])
    checks.check("  names old", "old" in text)
    checks.check("  names the old model", "model" in text)
    checks.check("  names the traceback", "traceback" in text)
    _, said = notebook.run("%gpufree")
    notebook.run("%gpufree old model")
    return f"{text}\n{said}"


def other_process(notebook: Player, checks: Checks) -> str:
    """Check that a child which holds the GPU is named."""
    notebook.run("x = big(1)")
    notebook.run(OTHER)
    found = notebook.state()
    checks.check("  the child is named", any(
        child["bytes"] is None or child["bytes"] >= 3 << 30 for child in found["children"]
    ), found["children"])
    _, said = notebook.run("%gpumem")
    _, freed = notebook.run("%gpufree --dry-run")
    notebook.run("child.stdin.close(); child.wait(); child.stdout.close()")
    notebook.run("%gpufree x")
    return f"{said}\n{freed}"


def _unnamed(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what no name leads to: tensors that Python knows, and blocks that it does not."""
    yield from (holder for holder in found["holders"] if holder["kind"] == "unknown")
    yield from (rest for rest in found["remainders"] if "reachable" in rest["name"])


def graph(notebook: Player, checks: Checks) -> str:
    """Check that what autograd keeps is a named remainder, and who keeps the graph."""
    notebook.run(GRAPH)
    found = notebook.state()
    rest = [*_unnamed(found)]
    size = sum(one["bytes"] for one in rest)
    checks.check("  what no name leads to is told", size > 1 << 30, found["holders"])
    checks.check("  losses keep it", all("losses" in one["detail"] for one in rest), rest)
    _, said = notebook.run("%gpumem --tensors 5")
    _, freed = notebook.run("%gpufree losses")
    left = sum(one["bytes"] for one in _unnamed(notebook.state()))
    checks.check("  it goes with them, but for cuBLAS's work space", left < 64 << 20, left)
    notebook.run("%gpufree net")
    return f"{said}\n{freed}"


SNAPSHOT = """\
import json, pickle
with open({path!r}, "rb") as file:
    kept = pickle.load(file)
print("SNAPSHOT", json.dumps({{
    "segments": sum(s["total_size"] for s in kept["segments"]),
    "live": sum(b["size"] for s in kept["segments"] for b in s["blocks"]
                if b["state"] == "active_allocated"),
    "frames": any(b.get("frames") for s in kept["segments"] for b in s["blocks"]),
    "reserved": torch.cuda.memory_reserved(), "allocated": torch.cuda.memory_allocated(),
    "sections": sorted(kept)}}))
del kept"""


def snapshot(notebook: Player, checks: Checks) -> str:
    """Check that the allocator's snapshot on disk is the state that torch's counters tell."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mem.pickle"
        notebook.run("x = big(1)\ny = big(2)\ndel y")
        status, said = notebook.run(f"%gpumem --snapshot {path}")
        checks.check("  a snapshot is written", status == "ok" and path.is_file(), said)
        _, text = notebook.run(SNAPSHOT.format(path=str(path)))
        kept = json.loads(text.split("SNAPSHOT ", 1)[1])
        checks.check("  its segments are torch's reserved",
                     kept["segments"] == kept["reserved"] > 0, kept)
        checks.check("  its live blocks are torch's allocated",
                     kept["live"] == kept["allocated"] > 0, kept)
        checks.check("  it has what memory_viz reads",
                     {"segments", "device_traces"} <= {*kept["sections"]}, kept)
        _, again = notebook.run(f"%gpumem --snapshot {path}")
    notebook.run("%gpufree x")
    return f"{said}\n{kept}\n{again}"


def main() -> int:
    """Run all scenarios; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    log = []
    manager, client = start_new_kernel(kernel_name="python3")
    notebook = Player(client, "cuda", UNIT)
    begun = time.monotonic()
    try:
        notebook.begin()
        for scenario in SCENARIOS:
            print(scenario.name, flush=True)
            log.append(f"==== {scenario.name}\n{play(notebook, scenario, checks)}")
        for special in (fragmentation, graph, panel, other_process, snapshot):
            print(special.__name__, flush=True)
            log.append(f"==== {special.__name__}\n{special(notebook, checks)}")
        last = notebook.state()
        print(f"the last search: {last['objects']:,} objects in {last['seconds']:.3f} s")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        (options.out / "holders.txt").write_text("\n\n".join(log))
    print(f"{checks.done} checks in {time.monotonic() - begun:.0f} s, {len(checks.wrong)} wrong")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
