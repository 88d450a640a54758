"""Write docs/alerts.md from ALERTS and AlertThresholds: ``python docs/make_alerts.py``."""

from __future__ import annotations

from pathlib import Path

import thresholds

from gpumagic.alerts import ALERTS, AlertThresholds

HEAD = """# Alerts of the live view

While `%gpuwatch` shows this machine, the last seconds of every GPU in it are judged once a
second. What goes wrong stands in one line below the view; where several things do, the gravest
one, and of two that are as grave the one further up here. A line stays for 5 s at least, and
until what it says has not been found for 3 s.

| alert | speaks when | while it holds, not told of the same GPU |
|---|---|---|
"""

BODY = """
Nothing is concluded from values that are missing or not of the present: silence begins no alert,
and ends one only after 15 s. Where readings come rarely, more time is looked at. What takes
memory inside torch's cache is no growth, nor is what slows down and levels off; in how long the
memory is full is said from 90 s on. The power cap alone is no alert: a GPU that is used well
meets it most of the time. Memory that torch holds as cache is not counted as needed, since torch
uses it again and gives it back before it fails. What a finished cell was held back by is told by
its report: see [findings](findings.md).

## Be told

Each alert is a record of the logger `gpumagic` when it begins (WARNING, or INFO for a hint) and
one more (INFO) when it is over. The logger prints nothing by itself; to collect its records in a
file:

```python
import logging

logger = logging.getLogger("gpumagic")
logger.addHandler(logging.FileHandler("gpu.log"))
logger.setLevel("INFO")
```

Or have a function called with each `Alert`:

```python
import gpumagic

def tell(alert):
    if alert.state == "begun" and alert.kind == "filling":
        ...  # alert.text, alert.device, alert.evidence["seconds_to_full"]

stop = gpumagic.on_alert(tell)  # stop() ends it
```

It runs on gpumagic's own thread, beside the cell; for alerts that still hold when `%gpuwatch stop`
ends the view, on the thread of the cell that stops it. What it raises is logged, once for each kind
of alert, and never breaks the view. An alert has these fields:

| field | what it is |
|---|---|
| `kind`, `device` | the alert's name and the GPU's UUID |
| `text` | the line, with code between backticks |
| `severity` | `failed`; `limit`: it soon will, or is held back; `hint`: it could be better |
| `since`, `until` | epoch seconds from which it holds and at which it was over |
| `strips` | the (GPU, strip) in the view that it speaks of |
| `evidence` | the numbers that it rests on, in base units |
| `state` | `begun` or `over` |

## Thresholds

Change some with `%config GpuMagic.alerts = {"near_full_ratio": 0.98, "idle_minutes": 10}`, or in
a config file. A ratio of 2 is never reached and silences its alert; for `capped_clock_ratio`, 0
does.

| name | default | meaning |
|---|---|---|
"""


def page() -> str:
    """Return the page's text."""
    kinds = [
        f"| `{kind.name}` | {kind.when} | "
        f"{', '.join(f'`{name}`' for name in sorted(kind.hides))} |\n"
        for kind in ALERTS
    ]
    return HEAD + "".join(kinds) + BODY + thresholds.rows(AlertThresholds)


if __name__ == "__main__":
    Path(__file__).with_name("alerts.md").write_text(page(), encoding="utf-8")
