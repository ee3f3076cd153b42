"""Ten million live blocks in fifty processes: all are counted, and those above a limit are refused."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_program, own_libc
from bench.tracing import RunningDaemon
from bpfleakd.model.report import LeakReport

_PROCESSES = 50
_LIVE_EACH = 200_000
_OVER_THE_LIMIT = 1_009
_SITES_EACH = 100
_CALLS = 8
_TOP_LIMIT = 20
_STEP_TIMEOUT_S = 600.0


def measure(short: bool) -> Benchmark:
    """Fill the processes one by one; then one exceeds its limit."""
    benchmark = Benchmark("many_live", "Many live blocks in many processes", short)
    processes, each = (3, 10_000) if short else (_PROCESSES, _LIVE_EACH)
    where = f"{processes} processes of {each:,} live blocks"
    with RunningDaemon(limits={"live_blocks": each}) as daemon, _targets(processes) as targets:
        empty_mb = _tables_mb(daemon)
        for target in targets:
            daemon.client.attach(target.pid)
            target.step(each, timeout_s=_STEP_TIMEOUT_S)
        daemon.wait_ticks(2)
        _expect(daemon.client.report(target.pid, limit=_TOP_LIMIT) for target in targets)
        found = sum(traced.process.live_count for traced in daemon.client.processes())
        if found != processes * each:
            raise RuntimeError(f"{found:,} live blocks instead of {processes * each:,}")
        answers_s = [_answer_s(daemon, target) for target in targets[:10]]
        benchmark.add(f"{where}: an answer (`top` of one)", "s", answers_s)
        ticks = [stats.last_tick_s * 1e3 for stats in daemon.wait_ticks(2 if short else 5)]
        benchmark.add(f"{where}: tick, nothing has changed", "ms", ticks)
        benchmark.add(f"{where}: daemon resident", "MB", [daemon.resident_mb()["VmRSS"]])
        benchmark.add(f"{where}: tables in the kernel", "MB", [_tables_mb(daemon) - empty_mb])
        _expect_refusal(daemon, targets[0], each)
    benchmark.notes.append(
        f"Exact mode, {_SITES_EACH} call sites each, blocks of 16 bytes. All were counted; then one process"
        f" took {_OVER_THE_LIMIT:,} more than its limit, which were refused, and counted as `live_full`."
    )
    return benchmark


@contextlib.contextmanager
def _targets(count: int) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        libc = stack.enter_context(own_libc())
        command = [build_program("growth"), _SITES_EACH, _CALLS]
        yield [stack.enter_context(contextlib.closing(Target(command, libc))) for _ in range(count)]


def _expect(reports: Iterator[LeakReport]) -> None:
    for report in reports:
        if lost := {reason: count for reason, count in report.losses.items() if count}:
            raise RuntimeError(f"process {report.process.pid}: {lost}")


def _expect_refusal(daemon: RunningDaemon, target: Target, limit: int) -> None:
    target.step(_OVER_THE_LIMIT)
    report = daemon.client.report(target.pid, limit=_TOP_LIMIT)
    refused, live = report.losses["live_full"], report.process.live_count
    if (refused, live) != (_OVER_THE_LIMIT, limit):
        raise RuntimeError(f"{live:,} live and {refused:,} refused at a limit of {limit:,}")


def _answer_s(daemon: RunningDaemon, target: Target) -> float:
    began_s = time.monotonic()
    daemon.client.report(target.pid, limit=_TOP_LIMIT)
    return time.monotonic() - began_s


def _tables_mb(daemon: RunningDaemon) -> float:
    """The memory of the daemon's maps, according to the kernel."""
    taken: dict[str, int] = {}
    for path in Path(f"/proc/{daemon.pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            info = dict(re.findall(r"^(map_id|memlock):\s+(\d+)$", path.read_text(), re.MULTILINE))
            if "map_id" in info:
                taken[info["map_id"]] = int(info["memlock"])
    return sum(taken.values()) / (1 << 20)


if __name__ == "__main__":
    run_alone(measure)
