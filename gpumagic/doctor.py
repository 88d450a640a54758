"""Say what gpumagic finds here, what is missing, and what helps.

Works without a GPU, without torch and without a kernel; imports no torch, makes no CUDA context
and never raises.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .devices import Gpu, Pairing, cuda_module, pair, parse_visible_devices
from .errors import GpuMagicError
from .memory.stats import CUDA_BUILD, is_cpu_build, torch_version
from .sources.nvml_library import Nvml
from .units import bytes_text

__all__ = ["Check", "checks", "report"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    ``ok`` is ``None`` where the thing is optional and absent, or could not be told; ``remedy``
    says what to do where something is missing.
    """

    name: str
    ok: bool | None
    text: str
    remedy: str = ""


def report() -> str:
    """Return the checks as text: a line each, and a line for each remedy."""
    marks = {True: "ok", False: "!!", None: "--"}
    lines = []
    for check in checks():
        lines.append(f"{marks[check.ok]}  {check.name:<11}{check.text}")
        if check.remedy:
            lines.append(f"{'':15}-> {check.remedy}")
    return "\n".join(lines)


def checks() -> list[Check]:
    """Look at everything once, in the order in which one thing needs the other."""
    driver = _Driver()
    try:
        looks: tuple[tuple[str, Callable[[], Check]], ...] = (
            ("versions", _versions),
            ("nvml", driver.library),
            ("pynvml", _pynvml),
            ("gpus", driver.gpus),
            ("usable", driver.usable),
            ("counters", driver.counters),
            ("torch", driver.torch),
            ("widgets", _widgets),
            ("limits", _limits),
            ("autoload", _autoload),
        )
        return [_looked(name, look) for name, look in looks]
    finally:
        driver.close()


def _looked(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except GpuMagicError as error:
        return Check(name, None, str(error))
    except Exception as error:
        return Check(name, None, f"could not be looked at: {type(error).__name__}: {error}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    found = []
    for part in version.split(".")[:2]:
        digits = "".join(c for c in part if c.isdigit())
        found.append(int(digits or 0))
    return tuple(found)


# -- Python and what is installed ------------------------------------------------------------


def _versions() -> Check:
    from . import __version__

    ipython, ipykernel = _version("ipython"), _version("ipykernel")
    text = (
        f"gpumagic {__version__}, Python {platform.python_version()},"
        f" IPython {ipython or 'missing'}, ipykernel {ipykernel or 'missing'}"
    )
    if ipython is None or _numbers(ipython) < (8, 12):
        return Check("versions", False, text, "pip install 'ipython>=8.12'")
    if ipykernel is None:
        return Check("versions", None, text, "for notebooks: pip install 'ipykernel!=7.0.*'")
    if _numbers(ipykernel) == (7, 0):
        text += ", which loses widgets' updates from threads (gpumagic works round it)"
        return Check("versions", False, text, "pip install 'ipykernel!=7.0.*'")
    return Check("versions", True, text)


def _pynvml() -> Check:
    binding, other = _version("nvidia-ml-py"), _version("pynvml")
    if binding is None and other is None:
        text = "nvidia-ml-py is not installed"
        return Check("pynvml", False, text, "pip install nvidia-ml-py")
    # nvidia-ml-py is one file; the abandoned distribution is a package of the same name.
    loaded = sys.modules.get("pynvml")
    if loaded is not None:
        package = hasattr(loaded, "__path__")
    else:
        spec = importlib.util.find_spec("pynvml")
        package = spec is not None and spec.submodule_search_locations is not None
    if package:
        text = f"the abandoned package pynvml {other or ''} hides nvidia-ml-py".replace("  ", " ")
        remedy = "pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py"
        return Check("pynvml", False, text, f"{remedy}, then restart the kernel")
    return Check("pynvml", True, f"nvidia-ml-py {binding or 'of unknown version'}")


def _widgets() -> Check:
    names = ("ipywidgets", "bqplot", "jupyterlab-widgets")
    found = {name: _version(name) for name in names}
    text = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    missing = [name for name in ("ipywidgets", "bqplot") if found[name] is None]
    if missing:
        return Check("widgets", False, text, f"pip install {' '.join(missing)}")
    if found["jupyterlab-widgets"] is None:
        remedy = "pip install jupyterlab-widgets bqplot where JupyterLab is installed"
        return Check("widgets", None, text, remedy)
    return Check("widgets", True, text)


def _limits() -> Check:
    from .sources.host import HostSource

    source = HostSource()
    source.open()
    try:
        limits = source.devices()[0].constants
    finally:
        source.close()
    cores, machine = limits["host_cpu_limit_ratio"], limits["host_cpu_count"]
    memory, total = limits["host_memory_limit_bytes"], limits["host_memory_total_bytes"]
    if cores >= machine and memory >= total:
        text = f"none below the machine's {machine:g} cores and {bytes_text(total)}"
    else:
        text = (
            f"this process may use {cores:g} of the machine's {machine:g} cores and"
            f" {bytes_text(memory)} of its {bytes_text(total)} (control group or affinity)"
        )
    return Check("limits", True, text)


def _autoload() -> Check:
    from .autoload import places

    on = [str(place) for place in places() if place.is_file()]
    if on:
        return Check("autoload", True, f"on, by {', '.join(on)}")
    return Check("autoload", True, "off; gpumagic autoload on loads gpumagic in each kernel")


# -- the driver and its GPUs -----------------------------------------------------------------


class _Driver:
    """NVML for the length of the checks, or the reason why there is none."""

    def __init__(self) -> None:
        self._nvml = Nvml()
        self._cards: list[tuple[Gpu, Any]] = []
        self._error = ""
        try:
            self._nvml.open()
            self._cards = self._nvml.gpus()
        except GpuMagicError as error:
            self._error = str(error)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def close(self) -> None:
        self._nvml.close()

    @property
    def _gpus(self) -> list[Gpu]:
        return [gpu for gpu, _ in self._cards]

    def library(self) -> Check:
        if not self._nvml.is_open:
            what, _, remedy = self._error.rpartition(": ")
            if remedy.startswith(("pip ", "run ")):
                return Check("nvml", False, what, remedy)
            return Check("nvml", False, self._error, "install NVIDIA's driver, or in a container"
                         " start it with --gpus all; without a GPU the host alone is shown")
        driver, _ = self._nvml.ask("nvmlSystemGetDriverVersion")
        library, _ = self._nvml.ask("nvmlSystemGetNVMLVersion")
        cuda, _ = self._nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
        text = f"driver {driver or 'of unknown version'}, NVML {library or 'of unknown version'}"
        if cuda:
            text += f", CUDA up to {cuda // 1000}.{cuda % 1000 // 10}"
        return Check("nvml", True, text)

    def gpus(self) -> Check:
        if not self._cards:
            if not self._nvml.is_open:
                return Check("gpus", None, "none known without NVML")
            text = f"none found{': ' if self._error else ''}{self._error}"
            return Check("gpus", False, text, "run nvidia-smi; start a container with --gpus all")
        whole = [gpu for gpu in self._gpus if gpu.parent is None]
        kinds = [(str(gpu.index), self._kind(gpu)) for gpu in whole]
        text = "; ".join(
            f"GPU {_ranges([index for index, _ in same])} {kind}"
            for kind, same in groupby(kinds, key=lambda pair: pair[1])
        )
        count, _ = self._nvml.ask("nvmlDeviceGetCount")
        if count and count > len(whole):
            text += f"; {count - len(whole)} more do not answer"
            return Check("gpus", False, text, "run nvidia-smi; a lost GPU needs a reset")
        return Check("gpus", True, text)

    def _kind(self, gpu: Gpu) -> str:
        handle = next(handle for known, handle in self._cards if known is gpu)
        memory, reason = self._nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        size = bytes_text(memory.total) if memory and memory.total else f"memory n/a ({reason})"
        parts = [part for part in self._gpus if part.parent == gpu.uuid]
        mode, _ = self._nvml.ask("nvmlDeviceGetMigMode", handle)
        mig = ""
        if mode:
            mig = f", MIG on with {len(parts)} slices" if mode[0] else ", MIG off"
        return f"{gpu.name}, {size}{mig}"

    def usable(self) -> Check:
        if not self._cards:
            return Check("usable", None, "no GPU to use")
        pairing = pair(self._gpus, os.environ)
        if not pairing.order:
            why = pairing.reason or "this process may use no GPU"
            return Check("usable", False, why, "set CUDA_VISIBLE_DEVICES before the kernel starts,"
                         " e.g. to 0, or unset it")
        text = self._order(pairing)
        variable = os.environ.get("CUDA_VISIBLE_DEVICES")
        if variable is not None:
            text += f" (CUDA_VISIBLE_DEVICES={variable})"
        if pairing.assumed:
            return Check("usable", None, f"{text}, an assumed order: the GPUs differ",
                         "set CUDA_DEVICE_ORDER=PCI_BUS_ID before the kernel starts")
        return Check("usable", True, text)

    def _order(self, pairing: Pairing) -> str:
        labels = {
            gpu.uuid: f"GPU {gpu.index}" if gpu.parent is None else gpu.uuid for gpu in self._gpus
        }
        if [labels.get(uuid) for uuid in pairing.order] == [
            f"GPU {index}" for index in range(len(pairing.order))
        ]:
            names = _ranges([str(index) for index in range(len(pairing.order))])
            return f"cuda:{names} {'is' if len(pairing.order) == 1 else 'are'} GPU {names}"
        return ", ".join(
            f"cuda:{i} is {labels.get(uuid, uuid)}" for i, uuid in enumerate(pairing.order)
        )

    def counters(self) -> Check:
        if not self._cards:
            return Check("counters", None, "no GPU to ask")
        texts = [(str(gpu.index), self._counters(handle))
                 for gpu, handle in self._cards if gpu.parent is None]
        text = "; ".join(
            f"GPU {_ranges([index for index, _ in same])}: {kind}"
            for kind, same in groupby(texts, key=lambda pair: pair[1])
        )
        return Check("counters", True, text)

    def _counters(self, handle: Any) -> str:
        energy, why_energy = self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        gpm, why_gpm = self._nvml.ask("nvmlGpmQueryDeviceSupport", handle)
        if gpm is not None and not gpm.isSupportedDevice:
            gpm, why_gpm = None, "Hopper or newer has it"
        first = "energy counter" if energy is not None else f"no energy counter ({why_energy})"
        second = "GPM (SM and tensor activity)" if gpm is not None else f"no GPM ({why_gpm})"
        return f"{first}, {second}"

    def torch(self) -> Check:
        version = torch_version()
        if version is None:
            return Check("torch", None, "not installed: its memory is not shown",
                         "if you use it: pip install torch")
        if is_cpu_build():
            return Check("torch", False, f"torch {version} is a CPU build", CUDA_BUILD)
        build = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
        text = f"torch {version}" + (f" for CUDA {build}" if build else "")
        if "torch" not in sys.modules:
            return Check("torch", True, f"{text} is installed, and not imported here")
        if cuda_module() is None:
            return Check("torch", True, f"{text} is imported; CUDA is not initialised")
        return self._torch_order(text)

    def _torch_order(self, text: str) -> Check:
        """Compare the GPUs of a torch that has initialised CUDA with NVML's."""
        if not self._cards:
            return Check("torch", None, f"{text} uses a GPU that NVML does not show")
        told = pair(self._gpus, os.environ).order
        strange = [uuid for uuid in told if uuid not in {gpu.uuid for gpu in self._gpus}]
        if strange:
            return Check("torch", False, f"{text} uses {', '.join(strange)}, which NVML does not"
                         " list", "restart the kernel; in a container, start it anew")
        read = parse_visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), self._gpus).order
        if set(read) != set(told):
            text += f" uses {self._order(Pairing(told))}; CUDA_VISIBLE_DEVICES now differs"
            return Check("torch", False, text, "restart the kernel to make a change of it count")
        return Check("torch", True, f"{text} and NVML agree on the GPUs: "
                     f"{self._order(Pairing(told))}")


def _ranges(indices: Sequence[str]) -> str:
    """Write ``["0", "1", "2"]`` as ``0-2``; the indices come in order."""
    runs: list[list[int]] = []
    for index in map(int, indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
