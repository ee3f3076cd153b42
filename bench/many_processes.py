"""What the daemon uses to trace 1, 50 and 500 processes, or to sample ten that allocate fast.

And what fifty programs with a sampler inside cost a machine.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from bench import launchers
from bench.figures import Benchmark, Panel, Plot, Series
from bench.launchers import Launcher
from bench.runner import run_alone
from bench.targets import build_program, cpu_percent, own_libc, process_cpu_ns
from bench.tracing import SETTLED_TICK_S, RunningDaemon, ended_with_us, free_port
from bpfleakd.model.process import TracingMode

_COUNTS = (1, 50, 500)
# Little, because a hit on a shared probe runs the filters of all traced processes.
_PAIRS_PER_S = 5
_STEADY_COUNT = 10
_STEADY_PAIRS_PER_S = 50_000
_STEADY_CPU_PERCENT = 2
_STEADY_RESIDENT_MB = 80
_INSIDE_COUNT = 50
_INSIDE_PAIRS_PER_S = 20_000
_INSIDE_BYTES = 100
_INSIDE_CPU_PERCENT = 0.5
_SPAN_S = 10.0
_TOP_LIMIT = 20
_ATTACH_TIMEOUT_S = 300.0

_CPU, _RESIDENT, _TICK, _FIRST, _TOP, _ALL = (
    "processor time of the daemon",
    "resident",
    "tick",
    "start of the daemon until its first answer about one",
    "an answer (`top` of one)",
    "start of the daemon until all are traced",
)
_UNITS = {_CPU: "%", _RESIDENT: "MB", _TICK: "ms", _FIRST: "s", _TOP: "s", _ALL: "s"}


def measure(short: bool) -> Benchmark:
    """Measure crowds of all sizes, then the steady state of a small and busy one."""
    benchmark = Benchmark("many_processes", "The daemon with many traced processes", short)
    counts = (1, 10) if short else _COUNTS
    for count in counts:
        _crowd(benchmark, count, span_s=1 if short else 8, spans=1 if short else 2)
    _steady(benchmark, settle_s=2 if short else 20, span_s=2 if short else 15, spans=1 if short else 3)
    # The sampler's interval is right after 40 s.
    turns, settle_s, quiet_s = (1, 2, 2) if short else (6, 45, 600)
    _always_on(benchmark, 10 if short else _INSIDE_COUNT, turns, settle_s, quiet_s)
    _plot(benchmark, counts)
    benchmark.notes.append(
        f"The crowds are exact, by a rule of the policy; each process makes {_PAIRS_PER_S} malloc+free pairs"
        f" a second, from 32 call sites. The ten make {_STEADY_PAIRS_PER_S:,} a second each, and are sampled"
        " as by default. Percent of a core, with a tick a second and metrics served but not read."
        f" The {_INSIDE_COUNT} that are sampled inside make {_INSIDE_PAIRS_PER_S:,} pairs of"
        f" {_INSIDE_BYTES} bytes a second each, beside as many that are not traced, and are traced in turns:"
        " halves of a crowd differ, and differ more as time goes by. Their daemon reads every"
        f" {SETTLED_TICK_S:g} s, as any daemon does after ten minutes, and is measured after ten minutes."
    )
    return benchmark


def _crowd(benchmark: Benchmark, count: int, span_s: float, spans: int) -> None:
    """This many processes, exact, which started before the daemon."""
    where = _where(count)
    # The path as in the kernel: build/ may be a link.
    program = build_program("crowd").resolve()
    policy = {
        "default": "off",
        "rules": [{"match": {"exe": str(program), "comm": "crowd-member"}, "mode": "exact"}],
    }
    # The benchmark measures the cost of many, not the limit on their number.
    limits = {"processes": 1024}
    with _members(count, _PAIRS_PER_S) as pids:
        began_s = time.monotonic()
        with RunningDaemon(policy=policy, limits=limits, metrics=_metrics()) as daemon:
            daemon.until(
                lambda: daemon.client.report(pids[0], limit=_TOP_LIMIT).sites or None, _ATTACH_TIMEOUT_S
            )
            benchmark.add(f"{where}: {_FIRST}", "s", [time.monotonic() - began_s])
            daemon.until(
                lambda: len(daemon.client.processes()) >= count or None, _ATTACH_TIMEOUT_S, pause_s=0.1
            )
            benchmark.add(f"{where}: {_ALL}", "s", [time.monotonic() - began_s])
            daemon.wait_ticks(2)
            benchmark.add(f"{where}: {_CPU}", "%", cpu_percent(daemon.pid, span_s, spans))
            ticks = [stats.last_tick_s * 1e3 for stats in daemon.wait_ticks(2 if span_s < 2 else 5)]
            benchmark.add(f"{where}: {_TICK}", "ms", ticks)
            benchmark.add(f"{where}: {_TOP}", "s", [_answer_s(daemon, pid) for pid in pids[:10]])
            benchmark.add(f"{where}: {_RESIDENT}", "MB", [daemon.resident_mb()["VmRSS"]])


def _steady(benchmark: Benchmark, settle_s: float, span_s: float, spans: int) -> None:
    """Ten processes that allocate fast, sampled."""
    where = f"{_STEADY_COUNT} sampled, {_STEADY_PAIRS_PER_S:,} allocations/s each"
    with (
        _members(_STEADY_COUNT, _STEADY_PAIRS_PER_S) as pids,
        RunningDaemon(metrics=_metrics()) as daemon,
    ):
        for pid in pids:
            daemon.client.attach(pid, TracingMode.SAMPLED)
        time.sleep(settle_s)
        before = _allocated(daemon)
        began_s = time.monotonic()
        cpu = benchmark.add(f"{where}: {_CPU}", "%", cpu_percent(daemon.pid, span_s, spans))
        made = (_allocated(daemon) - before) / (time.monotonic() - began_s) / _STEADY_COUNT
        benchmark.add(f"{where}: allocations of each, as estimated", "/s", [made])
        ticks = [stats.last_tick_s * 1e3 for stats in daemon.wait_ticks(2 if span_s < 3 else 5)]
        benchmark.add(f"{where}: {_TICK}", "ms", ticks)
        resident = benchmark.add(f"{where}: {_RESIDENT}", "MB", [daemon.resident_mb()["VmRSS"]])
        benchmark.demand(cpu.name, _STEADY_CPU_PERCENT, cpu, "%")
        benchmark.demand(resident.name, _STEADY_RESIDENT_MB, resident, "MB")


def _always_on(benchmark: Benchmark, count: int, turns: int, settle_s: float, quiet_s: float) -> None:
    """This many programs with the sampler inside that are traced in turns, next to as many that are not.

    All are of one crowd, since two crowds differ by up to a percent of a core. Each attach would make ticks
    frequent again for ten minutes: so this daemon's are as rare from the start.
    """
    where = f"{count} sampled inside, {_INSIDE_PAIRS_PER_S:,} allocations/s each"
    inside = launchers.inside(Path())
    with (
        _members(2 * count, _INSIDE_PAIRS_PER_S, _INSIDE_BYTES, inside) as pids,
        RunningDaemon(metrics=_metrics(), tick_s=SETTLED_TICK_S) as daemon,
    ):
        others, traced = pids[::2], pids[1::2]

        def attach() -> None:
            for pid in traced:
                daemon.client.attach(pid, TracingMode.INSIDE)

        without, during = [_more(traced, others)], []
        for _turn in range(turns):
            attach()
            time.sleep(settle_s)
            during.append(_more(traced, others))
            for pid in traced:
                daemon.client.detach(pid)
            daemon.wait_detached()
            without.append(_more(traced, others))
        around = [(before + after) / 2 for before, after in pairwise(without)]
        name = f"{where}: processor time of the programs, more than without"
        more = [one - other for one, other in zip(during, around, strict=True)]
        programs = benchmark.add(name, "%", more)
        attach()
        time.sleep(quiet_s)
        benchmark.add(f"{where}: {_CPU}", "%", cpu_percent(daemon.pid, _SPAN_S, turns))
        benchmark.demand(programs.name, _INSIDE_CPU_PERCENT, programs, "%")


def _more(some: Sequence[int], others: Sequence[int]) -> float:
    """What some processes use more than others in a while, in percent of a core."""
    before, began_s = _cpu_ns(some) - _cpu_ns(others), time.monotonic()
    time.sleep(_SPAN_S)
    return 100 * (_cpu_ns(some) - _cpu_ns(others) - before) / (time.monotonic() - began_s) / 1e9


def _cpu_ns(pids: Sequence[int]) -> int:
    return sum(map(process_cpu_ns, pids))


def _where(count: int) -> str:
    return f"{count} traced"


@contextlib.contextmanager
def _members(
    count: int, pairs_per_s: float, block_bytes: int = 0, launcher: Launcher | None = None
) -> Iterator[list[int]]:
    """Processes that make this many pairs a second; yields their pids. `block_bytes` 0: of many sizes."""
    with own_libc() as libc:
        crowd_command = [build_program("crowd"), count, pairs_per_s, block_bytes]
        command = ended_with_us(
            "env", f"LD_LIBRARY_PATH={libc.parent}", *(launcher or Launcher()).command(crowd_command)
        )
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
            assert crowd.stdout
            said, *pids = crowd.stdout.readline().split()
            if said != "ready" or len(pids) != count:
                raise RuntimeError(f"the crowd did not start: {len(pids)} of {count}")
            yield [int(pid) for pid in pids]


def _metrics() -> dict[str, object]:
    return {"enabled": True, "port": free_port()}


def _allocated(daemon: RunningDaemon) -> int:
    return sum(traced.process.allocated_count for traced in daemon.client.processes())


def _answer_s(daemon: RunningDaemon, pid: int) -> float:
    began_s = time.monotonic()
    daemon.client.report(pid, limit=_TOP_LIMIT)
    return time.monotonic() - began_s


def _plot(benchmark: Benchmark, counts: Sequence[int]) -> None:
    panels = tuple(
        Panel(
            title=title,
            axis="traced processes",
            unit=_UNITS[name],
            places=tuple(map(float, counts)),
            series=(Series("", tuple(f"{_where(count)}: {name}" for count in counts)),),
        )
        for name, title in (
            (_CPU, "processor time"),
            (_RESIDENT, "resident"),
            (_TICK, "tick"),
            (_FIRST, "time to first answer"),
            (_ALL, "until all are traced"),
        )
    )
    benchmark.plots.append(Plot("processes", "The daemon, by the number of traced processes", panels))


if __name__ == "__main__":
    run_alone(measure)
