"""Rules about what limits the cell from outside: other processes, clocks, heat, the host."""

from __future__ import annotations

from ..metrics import METRICS, throttle_names
from ..sample import HOST
from ..units import duration, quantity
from .case import Case, Value, mean_of
from .finding import Finding, Severity
from .signals import OTHERS_LOAD, UTIL, inside

__all__ = ["host_limit", "host_memory", "hot", "other_process", "throttled"]

_OTHERS = "gpu_other_processes_memory_bytes"
_CLOCK = "gpu_sm_clock_hertz"
_TEMPERATURE = "gpu_temperature_celsius"
_LOAD_RATIO = 0.05
_LEAST_LOSS = 0.01
_LEAST_UTIL = 0.02
_IN_WORDS = {
    "power cap": "The power cap",
    "hardware slowdown": "A hardware slowdown",
    "sync boost": "Sync boost",
    "thermal": "Heat",
    "thermal (software)": "Heat",
    "thermal (hardware)": "Heat (hardware)",
    "power brake": "The power brake",
}


def other_process(case: Case) -> Finding | None:
    """Another process holds memory of the GPU, or works on it."""
    held, load = case.figure(_OTHERS).peak, case.mean(OTHERS_LOAD)
    if held is None or (
        held < case.thresholds.other_process_bytes and (load is None or load < _LOAD_RATIO)
    ):
        return None
    figures = {_OTHERS: held}
    severity: Severity = "hint"
    children = bool(case.figure("children_count").peak)
    lead = f"Other processes hold {quantity(held, 'bytes')} of {inside(case)}'s memory"
    evidence = "What they do counts in GPU-Util, power and energy here"
    if load is not None:
        figures[OTHERS_LOAD] = load
        if load >= _LOAD_RATIO:
            lead += f" and ran kernels {quantity(load, 'ratio')} of the time"
            evidence = "The figures of this cell contain their load"
            if case.own:
                severity = "limit"
                evidence += ", and it had to share the GPU"
        else:
            evidence = "They ran next to nothing in this cell"
    if children:
        evidence += "; children of this process are among them, if they use the GPU"
    return Finding(
        "other-process", severity, f"{lead}.", f"{evidence}.",
        "`nvidia-smi` lists them; take another GPU with `CUDA_VISIBLE_DEVICES`, or end them."
        if severity == "limit" and not children else "",
        f"others hold {quantity(held, 'bytes')}", case.device,
        metrics=("gpu_memory_used_bytes",), figures=figures,
    )


# -- clocks ---------------------------------------------------------------------------------


def throttled(case: Case) -> Finding | None:
    """Clocks were held back for a good part of the cell, by power, heat, brake or sync boost."""
    if case.gpu is None:
        return None
    shares = case.gpu.throttling.by_reason
    limit = case.thresholds.throttled_ratio
    told = sorted((name for name in shares if shares[name] >= limit), key=lambda n: -shares[n])
    if not told:
        return None
    reason, share = told[0], shares[told[0]]
    whose = "the clocks" if case.subject == "The GPU" else f"{case.subject}'s clocks"
    lead = f"{_IN_WORDS.get(reason, reason)} held {whose} back"
    lead += f" {quantity(share, 'ratio')} of the time."
    only_power = told == ["power cap"]
    clock, most = _clock_held(case), case.constant("gpu_sm_clock_max_hertz")
    evidence = ""
    if clock is not None and most is not None:
        if only_power and clock > (1 - _LEAST_LOSS) * most:
            return None  # nothing was lost by it
        evidence = (
            f"The SM clock was {quantity(clock, 'hertz')} then,"
            f" {quantity(1 - clock / most, 'ratio')} below its highest"
        )
    evidence += _limit_text(case, reason, evidence)
    if len(told) > 1:
        also = " and ".join(f"{n} {quantity(shares[n], 'ratio')}" for n in told[1:])
        evidence += f"; also {also}" if evidence else f"Also {also}"
    advice = (
        "It works as fast as its power allows: lower precision or less work is what is left."
        if only_power
        else "See to its cooling and power: a neighbour, the fans, or the cap (`nvidia-smi -q -d"
        " PERFORMANCE`)."
    )
    return Finding(
        "throttled", "hint" if only_power else "limit", lead, f"{evidence}." if evidence else "",
        advice, f"{reason} {quantity(share, 'ratio')} of the time", case.device,
        metrics=("gpu_power_watts",) if reason == "power cap" else (_TEMPERATURE,),
        figures={"throttled_ratio": share, **({_CLOCK: clock} if clock is not None else {})},
    )


def _clock_held(case: Case) -> Value:
    """Return the mean SM clock of the readings that show that it was held back, or of all."""
    bits = dict(case.readings("gpu_clock_event_reasons_state"))
    held = [v for time, v in case.readings(_CLOCK) if throttle_names(bits.get(time, 0.0))]
    return mean_of(held) if held else case.mean(_CLOCK)


def _limit_text(case: Case, reason: str, before: str) -> str:
    metric = "gpu_power_watts" if reason == "power cap" else _TEMPERATURE
    ceiling = METRICS[metric].ceiling
    limit = case.constant(ceiling) if isinstance(ceiling, str) else None
    if limit is None or reason not in ("power cap", "thermal", "thermal (software)"):
        return ""
    word = "the cap is" if reason == "power cap" else "it slows down at"
    text = f"{word} {quantity(limit, METRICS[metric].unit)}"
    return f"; {text}" if before else text[0].upper() + text[1:]


def hot(case: Case) -> Finding | None:
    """The GPU came near to the temperature at which its hardware slows down."""
    limit = case.constant("gpu_temperature_slowdown_celsius")
    peak = case.figure(_TEMPERATURE).peak
    if limit is None or peak is None or peak < limit - case.thresholds.hot_margin_celsius:
        return None
    return Finding(
        "hot", "limit",
        f"{case.subject} was hot: {quantity(peak, 'celsius')}; it slows down at"
        f" {quantity(limit, 'celsius')}.",
        "", "See to its cooling.", f"hot: {quantity(peak, 'celsius')}", case.device,
        metrics=(_TEMPERATURE,), figures={_TEMPERATURE: peak, "slowdown_celsius": limit},
    )


# -- the host -------------------------------------------------------------------------------


def _busy_cores(case: Case) -> Value:
    own, children = case.mean("process_cpu_ratio"), case.mean("children_cpu_ratio")
    return None if own is None else own + (children or 0.0)


def host_limit(case: Case) -> Finding | None:
    """The container's processor quota was used up, or all cores were busy."""
    limits, cores = case.thresholds, case.cores
    periods = case.grown("container_cpu_periods_count")
    held = case.grown("container_cpu_throttled_periods_count")
    waited = case.grown("container_cpu_throttled_seconds")
    if periods and held is not None and held / periods >= limits.quota_ratio:
        quota = f" of {cores:g} cores" if cores is not None else ""
        evidence = f"Its threads waited {duration(waited)} in all." if waited else ""
        return Finding(
            "host-limit", "limit",
            f"The container used its CPU quota{quota} up in {quantity(held / periods, 'ratio')}"
            " of its periods.",
            evidence,
            "Use fewer workers and threads than cores (`torch.set_num_threads`), or ask for more"
            " CPUs.",
            "CPU quota used up", HOST, metrics=("process_cpu_ratio",),
            figures={"throttled_periods_ratio": held / periods},
        )
    busy = _busy_cores(case)
    if cores is None or busy is None or cores < 2 or busy < limits.host_full_ratio * cores:
        return None
    # A busy GPU lacks nothing, and a cell that leaves it alone is the processor's.
    util = case.mean(UTIL) or 0.0
    if not case.own or case.wall_s < limits.shortest_s:
        return None
    if not _LEAST_UTIL <= util <= limits.idle_util_ratio:
        return None
    return Finding(
        "host-limit", "limit",
        f"All {cores:g} cores that this kernel may use were busy ({busy:.1f}).",
        "", "Do less on the host: cheaper transforms, results kept, or the work on the GPU.",
        "all cores busy", HOST, metrics=("process_cpu_ratio",), figures={"cores_busy": busy},
    )


def host_memory(case: Case) -> Finding | None:
    """The memory that this kernel may use on the host was nearly full."""
    limit = case.constant("host_memory_limit_bytes")
    container = case.figure("container_memory_used_bytes")
    machine = case.figure("host_memory_used_bytes")
    used = container if container.peak is not None else machine
    if limit is None or used.peak is None:
        return None
    if used.peak < case.thresholds.host_memory_ratio * limit:
        return None
    return Finding(
        "host-memory", "limit",
        f"RAM was nearly full: {quantity(used.peak, 'bytes')} of {quantity(limit, 'bytes')}.",
        "A process that asks for more is killed, and a kernel dies without a word.",
        "Delete what is not needed, load less at once, or use fewer workers.",
        f"RAM {quantity(used.peak / limit, 'ratio')} full", HOST, metrics=(used.metric,),
        figures={used.metric: used.peak, "limit_bytes": limit},
    )
