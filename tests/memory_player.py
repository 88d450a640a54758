"""Play a scenario of ``memory_scenarios.py`` in a real kernel, and check what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from memory_scenarios import SETUP, Scenario, for_device

__all__ = ["Checks", "Player", "play"]

PROBE = Path(__file__).parent / "gpu"
"""Where the kernel finds ``memory_probe``."""

# What torch takes from the driver is in pieces of 2 MiB, of large blocks 20 MiB.
_PIECE = 20 << 20
_MIB = 1 << 20
_TIMEOUT_S = 60


class Checks:
    """Note and print what holds and what does not."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.done = 0

    def check(self, what: str, good: bool, detail: object = "") -> None:
        self.done += 1
        if not good:
            self.wrong.append(f"{what.strip()}: {detail}")
        print(f"{'ok' if good else 'WRONG':6} {what}" + ("" if good else f": {detail}"), flush=True)


class Player:
    """A notebook for one device, in which cells run and answer what they show.

    ``unit`` is the size in bytes in which the scenarios count.
    """

    def __init__(self, client: BlockingKernelClient, device: str, unit: int) -> None:
        self._client = client
        self.device = device
        self.unit = unit

    def begin(self) -> None:
        """Load gpumagic and run the first cell."""
        self.run(f"import sys\nsys.path.insert(0, {str(PROBE)!r})\n%load_ext gpumagic")
        status, text = self.run(SETUP.format(device=self.device, unit=self.unit))
        assert status == "ok", text
        self.run("warm = big(0.001)\ndel warm")

    def run(self, cell: str, stdin: tuple[str, ...] = ()) -> tuple[str, str]:
        """Run a cell; return its status and all text that it shows."""
        answers = list(stdin)
        texts: list[str] = []
        streams: list[bool] = []

        def output(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                if streams and streams[-1]:  # how text is split depends on timing
                    texts[-1] += content["text"]
                    return
                texts.append(content["text"])
            elif kind in ("display_data", "execute_result"):
                texts.append(content["data"].get("text/plain", ""))
            elif kind == "error":
                texts.append(f"{content['ename']}: {content['evalue']}"[:200])
            else:
                return
            streams.append(kind == "stream")

        def asked(message: dict[str, Any]) -> None:
            self._client.input(answers.pop(0) if answers else "q")

        reply = self._client.execute_interactive(
            for_device(cell, self.device), allow_stdin=bool(stdin), output_hook=output,
            stdin_hook=asked, timeout=_TIMEOUT_S, store_history=True,
        )
        return reply["content"]["status"], "\n".join(texts)

    def state(self) -> dict[str, Any]:
        """Return what the kernel tells of its memory; on the CPU all is what holders hold."""
        _, text = self.run("print('STATE', __import__('memory_probe').state(DEVICE))")
        assert "STATE " in text, text
        found: dict[str, Any] = json.loads(text.split("STATE ", 1)[1])
        if self.device == "cpu":
            found["allocated"] = sum(holder["bytes"] for holder in found["holders"])
        return found


def play(player: Player, scenario: Scenario, checks: Checks) -> str:
    """Run a scenario and check it; return what was shown."""
    start = player.state()
    shown = []
    for number, cell in enumerate(scenario.cells):
        status, text = player.run(cell, scenario.stdin if cell == "%debug" else ())
        shown.append(text)
        wanted = "error" if number in scenario.fails else "ok"
        checks.check(f"  cell {number} ends as it should", status == wanted, text[-300:])
    before = player.state()
    _named(player, scenario, before, checks)
    if player.device == "cuda":
        _explained(before, checks)
    _, dry = player.run(f"{scenario.free} --dry-run")
    same = player.state()
    checks.check("  a dry run changes nothing", same["allocated"] == before["allocated"])
    _, said = player.run(scenario.free)
    end = _released(player, scenario, before, checks)
    if scenario.left:
        for cell in scenario.last:
            player.run(cell)
        player.run("%gpufree --out")
        end = player.state()
    checks.check(
        "  nothing is left in the end", abs(end["allocated"] - start["allocated"]) < _MIB,
        end["holders"],
    )
    return "\n".join([*shown, "--- --dry-run", dry, f"--- {scenario.free}", said])


def _named(
    player: Player, scenario: Scenario, before: dict[str, Any], checks: Checks
) -> None:
    """Check that the true holder is named, with its bytes, and the tensor and its place."""
    size = scenario.units * player.unit
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


def _explained(before: dict[str, Any], checks: Checks) -> None:
    """Check that what was found and what was not make up what torch has allocated."""
    explained = sum(h["bytes"] for h in before["holders"]) + sum(
        r["bytes"] for r in before["remainders"]
    )
    checks.check(
        "  holders and remainders are what torch has allocated",
        abs(explained - before["allocated"]) < _MIB, (explained, before["allocated"]),
    )


def _released(
    player: Player, scenario: Scenario, before: dict[str, Any], checks: Checks
) -> dict[str, Any]:
    """Check that what should go went, by torch's and by the driver's account; return the rest."""
    after = player.state()
    gone = (scenario.units - scenario.left) * player.unit
    torchs = before["allocated"] - after["allocated"]
    checks.check("  that much less is held", abs(torchs - gone) < _MIB / 2, (torchs, gone))
    if player.device == "cuda":
        drivers = before["nvml_used"] - after["nvml_used"]
        most = gone + (before["reserved"] - before["allocated"]) + 4 * _PIECE
        checks.check("  the driver got it back", gone - _PIECE <= drivers <= most, (drivers, gone))
    return after
