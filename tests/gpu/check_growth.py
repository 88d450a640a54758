"""Check on a real GPU that memory which grows from run to run of a cell is told, with its name.

``python tests/gpu/check_growth.py --out DIR`` on a machine with an NVIDIA GPU, torch and
ipykernel. Each story is a cell that runs five times in a real kernel, with footers on or
measured by ``%%gpuprofile``: the fourth and fifth run have to say what is expected of them, and
all other runs nothing. Exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.manager import start_new_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from memory_player import Checks, Player

RUNS = 5
FIRST_TOLD = 4
TOLD = "memory grew by"

SETUP = """\
import time
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="cuda") for _ in range(4)])
x = torch.ones(2048, 4096, device="cuda")
def big(mib=256):
    return torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
net(x).square().mean().backward()
torch.cuda.synchronize()
from gpumagic.cell_growth import growth_of
from gpumagic.session import current
growth, searches = growth_of(current()), []
found = growth.search
def timed():
    begun = time.perf_counter()
    try:
        return found()
    finally:
        searches.append(time.perf_counter() - begun)
growth.search = timed"""


@dataclass(frozen=True, slots=True)
class Story:
    """A cell that is run again and again; ``says`` is expected of its runs that are told.

    ``between`` is run after each of them; with ``{run}`` in it, it is another cell each time.
    """

    name: str
    cell: str
    says: tuple[str, ...] = ()
    before: str = "pass"
    between: str = ""
    after: str = "pass"


STORIES = (
    Story("losses with their graphs", "losses.append(net(x).square().mean())",
          ("(losses)", ".item()"), "losses = []", after="losses.clear()"),
    Story("losses as numbers", "losses.append(net(x).square().mean().item())",
          before="losses = []"),
    Story("a running sum", "total = total + net(x).square().mean()", ("(total)", ".detach()"),
          "total = torch.zeros((), device='cuda')", after="del total"),
    Story("a list of tensors", "outputs.append(big())", ("(outputs)", "%gpumem --tensors"),
          "outputs = []", after="outputs.clear()"),
    Story("among other cells", "outputs.append(big())", ("(outputs)",), "outputs = []",
          "y = big(64); del y", "outputs.clear()"),
    Story("displayed values", "big()[:4]", ("(Out)", "%gpufree --out"), after="%gpufree --out"),
    Story("a constant", "table.setdefault('mask', big()).sum().item()", before="table = {}",
          after="table.clear()"),
    Story("made anew", "z = big()", after="del z"),
    Story("deleted in between", "z = big()", between="del z", after="pass"),
    Story("other cells that take more", "y = x.sum().item()", before="others = []",
          between="others.append(big())  # {run}", after="others.clear()"),
    Story("a step of training", "net.zero_grad()\nnet(x).square().mean().backward()"),
)


def footers(notebook: Player, story: Story, checks: Checks) -> str:
    """Run a story with footers on; return what was shown."""
    shown = []
    notebook.run(story.before)
    for run in range(1, RUNS + 1):
        status, text = notebook.run(story.cell)
        shown.append(text)
        checks.check(f"  run {run} ends well", status == "ok", text[-300:])
        if run < FIRST_TOLD or not story.says:
            checks.check(f"  run {run} is not told", TOLD not in text, text)
        else:
            told = TOLD in text and f"in {run - 1} runs" in text
            checks.check(f"  run {run} is told", told, text)
            for words in story.says:
                checks.check(f"  run {run} says {words}", words in text, text)
        if story.between:
            _, text = notebook.run(story.between.replace("{run}", str(run)))
            checks.check(f"  what is between {run} is not told", TOLD not in text, text)
    if story.says and not story.between:  # else the last cell is another
        _, report = notebook.run("%gpureport")
        shown.append(report)
        checks.check("  its report tells it", "Live memory grew in each" in report, report[:1500])
    notebook.run(story.after)
    return "\n".join(shown)


def measured(notebook: Player, story: Story, checks: Checks) -> str:
    """Run a story with its cell measured and footers off; return the last findings."""
    notebook.run(story.before)
    text = ""
    for run in range(1, RUNS + 1):
        notebook.run(f"%%gpuprofile -q -o measured\n{story.cell}")
        _, text = notebook.run("print([f.message for f in measured.findings])")
        wanted = bool(story.says) and run >= FIRST_TOLD
        checks.check(f"  run {run}: {wanted}", ("Live memory grew" in text) is wanted, text)
    notebook.run(story.after)
    return text


def main() -> int:
    """Run all stories; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checks = Checks()
    log = []
    manager, client = start_new_kernel(kernel_name="python3")
    notebook = Player(client, "cuda", 1 << 30)
    begun = time.monotonic()
    try:
        notebook.run("%load_ext gpumagic")
        notebook.run("%gpureport on")
        status, text = notebook.run(SETUP)
        checks.check("the setup ends well", status == "ok", text)
        for story in STORIES:
            print(story.name, flush=True)
            log.append(f"==== {story.name}\n{footers(notebook, story, checks)}")
        notebook.run("%gpureport off")
        for story in STORIES[:2]:
            print(f"measured: {story.name}", flush=True)
            log.append(f"==== measured: {story.name}\n{measured(notebook, story, checks)}")
        _, text = notebook.run(
            "print(len(searches), 'searches, the longest took', f'{max(searches):.3f} s')"
        )
        print(text)
        log.append(text)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        (options.out / "growth.txt").write_text("\n\n".join(log))
    print(f"{checks.done} checks in {time.monotonic() - begun:.0f} s, {len(checks.wrong)} wrong")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
