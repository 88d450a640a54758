"""Run workloads that each have one thing wrong with them, under ``gpumagic.profile``.

On a machine with an NVIDIA GPU and torch: ``python tests/gpu/scenarios.py [--out DIR] [NAME ...]``
(``--list`` says what there is). Writes DIR/scenarios.tar.gz with each one's report as text, JSON
and HTML, and a recording of its span. Takes about 140 s; exits with 1 if a scenario broke.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tarfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpumagic
from gpumagic import codec
from gpumagic.diagnosis import Finding
from gpumagic.profiles import Profile
from gpumagic.recording import Recording
from gpumagic.sample import Span
from gpumagic.session import current
from workloads import SCENARIOS, Scenario

MARGIN_S = 2.0
"""Seconds before and after a span that its recording keeps, where they were recorded."""

_BEFORE_S = 0.4
_AFTER_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """What one scenario gave; ``error`` is the traceback where it broke."""

    name: str
    profile: Profile | None = None
    error: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found, the gravest first."""
        return self.profile.findings if self.profile is not None else ()

    @property
    def grown_bytes(self) -> float | None:
        """How far torch's allocated memory rose above its start, by the report."""
        if self.profile is None:
            return None
        for gpu in self.profile.summary.gpus:
            figure = gpu.figures.get("torch_allocated_bytes")
            if figure is not None and figure.peak is not None and figure.start is not None:
                return figure.peak - figure.start
        return None


def cut(recording: Recording, span: Span, *, margin_s: float = MARGIN_S) -> Recording:
    """Return a recording of one span: its samples, gaps and marks, and no other span."""
    assert span.end is not None
    start, end = span.start - margin_s, span.end + margin_s
    part = Recording()
    part.periods.update(recording.periods)
    for device in recording.devices:
        part.add_device(device)
    for sample in recording.samples(start, end):
        part.append(sample)
    for gap in recording.gaps(start, end):
        part.add_gap(replace(gap, start=max(gap.start, start)))
    for mark in recording.marks(start, end):
        part.add_mark(mark)
    part.add_span(span)
    return part


def _clear() -> None:
    """Free what the scenario before has left, and let the peaks begin anew."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure(scenario: Scenario, *, scale: float = 1.0) -> Profile:
    """Run one scenario and return its profile; raises what its cell raised unexpectedly."""
    failed = False
    with scenario.prepare(scenario.seconds * scale) as work:
        time.sleep(_BEFORE_S)
        try:
            with gpumagic.profile(scenario.name, sync=True) as handle:
                work()
        except torch.cuda.OutOfMemoryError:
            if not scenario.fails:
                raise
            failed = True
        del work
        time.sleep(_AFTER_S)
    if scenario.fails and not failed:
        raise RuntimeError("the cell ended well, though it was to run out of memory")
    if handle.result is None:
        raise RuntimeError("the block gave no profile")
    return handle.result


def save(profile: Profile, folder: Path) -> None:
    """Write a profile's report as text, JSON and HTML, and the recording of its span."""
    (folder / "recordings").mkdir(parents=True, exist_ok=True)
    name = profile.name
    part = cut(current().recording, profile.span)
    codec.save(part, folder / "recordings" / f"{name}.jsonl.gz")
    (folder / f"{name}.json").write_text(json.dumps(profile.to_dict(), indent=1, default=str))
    (folder / f"{name}.txt").write_text(profile.to_text())
    (folder / f"{name}.html").write_text(profile.to_html())


def pack(folder: Path, out: Path) -> Path:
    """Put a folder into OUT/scenarios.tar.gz and return its path."""
    path = out / "scenarios.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname="scenarios")
    return path


def run(names: Iterable[str], out: Path, *, scale: float = 1.0) -> list[Outcome]:
    """Run scenarios one after the other and pack what they gave; one that breaks is noted."""
    out.mkdir(parents=True, exist_ok=True)
    folder = out / "scenarios"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    outcomes = []
    # The lease keeps one sampler running, so that recordings hold what was around each span.
    with current().lease("scenarios"):
        for name in names:
            begun = time.monotonic()
            error = ""
            profile: Profile | None = None
            try:
                _clear()
                profile = measure(SCENARIOS[name], scale=scale)
                save(profile, folder)
            except Exception:
                error = traceback.format_exc()
                (folder / f"{name}.error.txt").write_text(error)
            outcomes.append(Outcome(name, profile, error))
            pack(folder, out)  # each time: a run that is cut off leaves what it had
            found = ", ".join(finding.rule for finding in outcomes[-1].findings) or "no finding"
            what = f"broke: {error.strip().splitlines()[-1]}" if error else found
            print(f"{name:20} {time.monotonic() - begun:5.1f} s  {what}", flush=True)
    shutil.rmtree(folder)
    return outcomes


def arguments(text: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options that this script and check_findings share."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # No choices=: an empty list would not pass them.
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; all if none is given")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--scale", type=float, default=1.0, help="length of the cells")
    parser.add_argument("--list", action="store_true", help="say what there is and end")
    return parser


def chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Return the names asked for; ends the program for an unknown one, and after --list."""
    if options.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:20} {scenario.seconds:5g} s  {scenario.text}")
        parser.exit()
    unknown = [name for name in options.names if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return options.names or list(SCENARIOS)


def main() -> int:
    """Run the scenarios; return the exit status."""
    parser = arguments(__doc__)
    options = parser.parse_args()
    begun = time.monotonic()
    outcomes = run(chosen(parser, options), options.out, scale=options.scale)
    for outcome in outcomes:
        if outcome.profile is not None:
            print(f"\n==== {outcome.name}\n{outcome.profile.to_text()}")
        if outcome.error:
            print(f"\n==== {outcome.name} broke\n{outcome.error}")
    print(f"{len(outcomes)} scenarios in {time.monotonic() - begun:.0f} s")
    return 1 if any(outcome.error for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
