"""A Chromium that is driven and measured by raw calls of its DevTools protocol.

Playwright would listen to every message that a page receives and keep its tabs "visible"; both
change what is measured here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import websocket

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from browser.lab import find_chromium, until  # noqa: E402

__all__ = ["PATIENCE_S", "Chromium", "Machine", "Page", "cpu_s", "screen"]

PATIENCE_S = 120.0
"""How long anything may take: others may use the machine."""

_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--password-store=basic",
    "--enable-precise-memory-info", "--remote-debugging-port=0", "--remote-allow-origins=*",
    "--window-size=1280,1500", "--window-position=0,0",
)
def cpu_s(processes: Sequence[psutil.Process]) -> dict[int, float]:
    """Return the processor seconds of some processes, by id; those that ended are left out."""
    found = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


class Machine:
    """How busy the whole machine was from one moment on."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._before = self._busy()

    @staticmethod
    def _busy() -> tuple[float, float]:
        times = psutil.cpu_times()
        stolen = getattr(times, "steal", 0.0)
        return times.user + times.nice + times.system, stolen

    def since(self) -> dict[str, float]:
        """Return the cores that were busy and stolen, and the load average now."""
        passed = time.monotonic() - self._begun
        busy, stolen = (now - then for now, then in zip(self._busy(), self._before, strict=True))
        return {
            "machine_busy_cores": round(busy / passed, 3),
            "machine_stolen_cores": round(stolen / passed, 3),
            "load_average": round(os.getloadavg()[0], 2),
        }


# -- the browser ----------------------------------------------------------------------------


class Page:
    """One tab, by the DevTools protocol."""

    def __init__(self, target: str, address: str) -> None:
        self.target = target
        self._socket = websocket.create_connection(address, timeout=PATIENCE_S)
        self._id = 0
        self.received: list[tuple[float, int]] = []

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method and return its result."""
        self._id += 1
        self._socket.settimeout(PATIENCE_S)
        self._socket.send(json.dumps({"id": self._id, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.webSocketFrameReceived":
            frame = event["params"]["response"]
            data = frame["payloadData"]
            # A binary frame is written in base64; text is counted as UTF-8.
            binary = frame["opcode"] == 2
            size = len(data) * 3 // 4 - data[-2:].count("=") if binary else len(data.encode())
            self.received.append((time.monotonic(), size))

    def listen(self, seconds: float) -> None:
        """Take in events for a time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            with suppress(websocket.WebSocketTimeoutException):
                self._hear(json.loads(self._socket.recv()))

    def value(self, expression: str) -> Any:
        """Evaluate JavaScript; a promise is awaited."""
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression[:200]}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def memory(self) -> dict[str, float]:
        """Collect garbage; return the bytes of the heap, and how many DOM nodes there are."""
        for _ in range(2):
            self.send("HeapProfiler.collectGarbage")
        used = self.send("Runtime.getHeapUsage")["usedSize"]
        counters = self.send("Memory.getDOMCounters")
        return {
            "heap_bytes": used, "nodes": counters["nodes"],
            "elements": self.value("document.querySelectorAll('*').length"),
        }

    def close(self) -> None:
        """Let go of the tab without closing it."""
        self._socket.close()


class Chromium:
    """One Chromium of its own, headless or on an X display."""

    def __init__(self, directory: Path, display: str | None = None) -> None:
        executable = find_chromium()
        if executable is None:
            sys.exit("No Chromium: apt-get install chromium, or name one in GPUMAGIC_CHROMIUM.")
        profile = directory / f"chromium-{uuid4().hex[:8]}"
        head = ["--headless=new"] if display is None else []
        environment = {**os.environ, **({} if display is None else {"DISPLAY": display})}
        with (directory / "chromium.log").open("ab") as log:
            self._process = subprocess.Popen(
                [executable, *_ARGUMENTS, *head, f"--user-data-dir={profile}", "about:blank"],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        port = profile / "DevToolsActivePort"
        try:
            until(lambda: port.exists() and port.read_text().count("\n"), "Chromium is up",
                  PATIENCE_S)
            self._address = f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
            self.version = self._ask("GET", "/json/version")["Browser"]
        except BaseException:
            self.stop()
            raise

    def _ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self._address + path, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            text = answer.read()
        try:
            return json.loads(text)
        except ValueError:
            return text.decode()

    def open(self, url: str) -> Page:
        """Open a tab in front of all others."""
        target = self._ask("PUT", f"/json/new?{url}")
        return Page(target["id"], target["webSocketDebuggerUrl"])

    def front(self, page: Page) -> None:
        """Bring a tab to the front."""
        self._ask("GET", f"/json/activate/{page.target}")

    def processes(self) -> list[psutil.Process]:
        """Return all its processes."""
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def rss_bytes(self) -> int:
        """Return the memory of all its processes; shared pages count in each."""
        found = 0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                found += process.memory_info().rss
        return found

    def stop(self) -> None:
        """End it and its children."""
        with suppress(psutil.NoSuchProcess):
            started = self.processes()
            self._process.terminate()
            _, alive = psutil.wait_procs(started, timeout=5)
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()


@contextmanager
def screen() -> Iterator[str]:
    """Run an X server without a screen, for a Chromium whose tabs are really hidden."""
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1400x1600x24"]
    try:
        process = subprocess.Popen(
            command, pass_fds=[writing], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError:
        sys.exit("No Xvfb: apt-get install xvfb.")
    os.close(writing)
    try:
        with os.fdopen(reading) as pipe:
            yield f":{pipe.readline().strip()}"
    finally:
        process.terminate()
        process.wait()
