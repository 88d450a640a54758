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
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from memory_scenarios import SCENARIOS, SETUP, Scenario  # noqa: E402

UNIT = 1 << 30
# What torch takes from the driver is in pieces of 2 MiB, of large blocks 20 MiB.
PIECE = 20 << 20
TIMEOUT_S = 60


class Notebook:
    """A kernel that runs cells and answers what they show."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(self, cell: str, stdin: tuple[str, ...] = ()) -> tuple[str, str]:
        """Run a cell; return its status and all text that it shows."""
        answers = list(stdin)
        texts: list[str] = []

        def output(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                texts.append(content["text"])  # a line can come in pieces
            elif message["msg_type"] in ("display_data", "execute_result"):
                texts.append(content["data"].get("text/plain", "") + "\n")
            elif message["msg_type"] == "error":
                texts.append(f"{content['ename']}: {content['evalue']}"[:200] + "\n")

        def asked(message: dict[str, Any]) -> None:
            self.client.input(answers.pop(0) if answers else "q")

        reply = self.client.execute_interactive(
            cell, allow_stdin=bool(stdin), output_hook=output, stdin_hook=asked,
            timeout=TIMEOUT_S, store_history=True,
        )
        return reply["content"]["status"], "".join(texts)

    def state(self) -> dict[str, Any]:
        """Return what the kernel tells of its memory."""
        _, text = self.run("print('STATE', __import__('memory_probe').state(DEVICE))")
        assert "STATE " in text, text
        found: dict[str, Any] = json.loads(text.split("STATE ", 1)[1])
        return found

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Checks:
    """Count and print what holds and what does not."""

    def __init__(self) -> None:
        self.wrong = 0
        self.done = 0

    def check(self, what: str, good: bool, detail: object = "") -> None:
        self.done += 1
        self.wrong += not good
        print(f"{'ok' if good else 'WRONG':6} {what}" + ("" if good else f": {detail}"), flush=True)


def units(found: dict[str, Any]) -> float:
    """Return what is held, in units; small things are the libraries'."""
    return sum(holder["bytes"] for holder in found["holders"]) / UNIT


def play(notebook: Notebook, scenario: Scenario, checks: Checks) -> str:
    """Run a scenario and check it; return what its %gpufree said."""
    start = notebook.state()
    shown = []
    for number, cell in enumerate(scenario.cells):
        status, text = notebook.run(cell, scenario.stdin if cell == "%debug" else ())
        shown.append(text)
        wanted = "error" if number in scenario.fails else "ok"
        checks.check(f"  cell {number} ends as it should", status == wanted, text[-300:])
    before = notebook.state()
    size = scenario.units * UNIT
    fit = [
        holder
        for holder in before["holders"]
        if holder["kind"] == scenario.kind
        and ", ".join(holder["roots"]).startswith(scenario.holder)
    ]
    checks.check("  the holder is named", bool(fit), before["holders"])
    held = sum(holder["bytes"] for holder in fit)
    checks.check("  it holds that much", abs(held - size) < size / 100, (held, size))
    names = [s for s in before["storages"] if s["name"].startswith(scenario.tensor)]
    checks.check("  the tensor is named", bool(names), [s["name"] for s in before["storages"]])
    if scenario.where:
        at = [s["where"] for s in names]
        checks.check("  its place is named", any(scenario.where in w for w in at), at)
    if scenario.pins:
        checks.check("  the slice pins", all(s["own_bytes"] < s["bytes"] / 100 for s in names))
    explained = sum(h["bytes"] for h in before["holders"]) + sum(
        r["bytes"] for r in before["remainders"]
    )
    checks.check(
        "  holders and remainders are what torch has allocated",
        abs(explained - before["allocated"]) < 1 << 20, (explained, before["allocated"]),
    )
    _, dry = notebook.run(f"{scenario.free} --dry-run")
    same = notebook.state()
    checks.check("  a dry run changes nothing", same["allocated"] == before["allocated"])
    _, said = notebook.run(scenario.free)
    after = notebook.state()
    gone = (scenario.units - scenario.left) * UNIT
    torchs = before["allocated"] - after["allocated"]
    checks.check("  torch has that much less", abs(torchs - gone) < 1 << 20, (torchs, gone))
    drivers = before["nvml_used"] - after["nvml_used"]
    most = gone + (before["reserved"] - before["allocated"]) + 4 * PIECE
    checks.check("  the driver got it back", gone - PIECE <= drivers <= most, (drivers, gone))
    for cell in scenario.last:
        notebook.run(cell)
    notebook.run("%gpufree --out")
    end = notebook.state()
    checks.check(
        "  nothing is left in the end", abs(end["allocated"] - start["allocated"]) < 1 << 20,
        end["holders"],
    )
    return "\n".join([*shown, "--- --dry-run", dry, f"--- {scenario.free}", said])


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


def fragmentation(notebook: Notebook, checks: Checks) -> str:
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


def panel(notebook: Notebook, checks: Checks) -> str:
    """Check the panel after a real out-of-memory error, and that its promise holds."""
    _, text = notebook.run(PANEL)
    checks.check("  asked for 60.0 GiB", "60.0 GiB asked for" in text, text[-1500:])
    checks.check("  names old", "old" in text)
    checks.check("  names the old model", "model" in text)
    checks.check("  names the traceback", "traceback" in text)
    _, said = notebook.run("%gpufree")
    notebook.run("%gpufree old model")
    return f"{text}\n{said}"


def other_process(notebook: Notebook, checks: Checks) -> str:
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


def graph(notebook: Notebook, checks: Checks) -> str:
    """Check that what autograd keeps is a named remainder, and who keeps the graph."""
    notebook.run(GRAPH)
    found = notebook.state()
    rest = [r for r in found["remainders"] if "reachable" in r["name"]]
    checks.check("  a remainder is named", bool(rest) and rest[0]["bytes"] > 1 << 28, found)
    checks.check("  losses keep it", bool(rest) and "losses" in rest[0]["detail"], rest)
    _, said = notebook.run("%gpumem --tensors 5")
    _, freed = notebook.run("%gpufree losses")
    after = notebook.state()
    checks.check("  it goes with them", not [r for r in after["remainders"]
                                             if "reachable" in r["name"]], after["remainders"])
    notebook.run("%gpufree net")
    return f"{said}\n{freed}"


def main() -> int:
    """Run all scenarios; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    log = []
    notebook = Notebook()
    begun = time.monotonic()
    try:
        notebook.run(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n%load_ext gpumagic")
        notebook.run(SETUP.format(device="cuda", unit=UNIT))
        notebook.run("warm = big(0.001)\ndel warm")
        for scenario in SCENARIOS:
            print(scenario.name, flush=True)
            log.append(f"==== {scenario.name}\n{play(notebook, scenario, checks)}")
        for special in (fragmentation, graph, panel, other_process):
            print(special.__name__, flush=True)
            log.append(f"==== {special.__name__}\n{special(notebook, checks)}")
        last = notebook.state()
        print(f"the last search: {last['objects']:,} objects in {last['seconds']:.3f} s")
    finally:
        notebook.close()
        (options.out / "holders.txt").write_text("\n\n".join(log))
    print(f"{checks.done} checks in {time.monotonic() - begun:.0f} s, {checks.wrong} wrong")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
