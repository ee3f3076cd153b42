"""A scan for lost blocks: how long it takes, how long it stops the process, how much memory it needs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_program
from bench.tracing import RunningDaemon
from bpfleakd.api.service import STOP_LIMIT_MAX_S
from bpfleakd.model.scan import ScanReport

_BLOCKS = 1_000_000
_SCAN_S = 10
_MEMORY_MB = 300
_POLL_S = 0.02


def measure(short: bool) -> Benchmark:
    """Scan a million blocks in 1 GB: in one stop, within the usual limit, and without stopping."""
    benchmark = Benchmark("scan", "A scan for lost blocks", short)
    count = _BLOCKS // 20 if short else _BLOCKS
    with RunningDaemon() as daemon, contextlib.closing(Target([build_program("linked")])) as target:
        daemon.client.attach(target.pid)
        target.step(count)
        for name, options in (
            ("in one stop", {"stop_limit_s": STOP_LIMIT_MAX_S}),
            ("stop of 200 ms at most", {}),
            ("without a stop", {"stop": False}),
        ):
            began_s = time.monotonic()
            with _highest_resident_mb(daemon.pid) as highest:
                report = daemon.client.scan(target.pid, older_than_s=0.0, **options)
            took_s = time.monotonic() - began_s
            _expect(report, count)
            took = benchmark.add(f"{count:,} blocks of 1,000 B, {name}", "s", [took_s])
            benchmark.add(f"of this the process stood still, {name}", "ms", [report.stopped_s * 1e3])
            memory = benchmark.add(f"memory of the child, {name}", "MB", [max(highest)])
            benchmark.demand(took.name, _SCAN_S, took, "s")
            benchmark.demand(memory.name, _MEMORY_MB, memory, "MB")
    return benchmark


def _expect(report: ScanReport, count: int) -> None:
    """Every tenth block is lost; registers may hold the last one."""
    lost = report.sums.directly_lost_count
    assert abs(lost - count // 10) <= 1, report.sums
    assert abs(report.sums.still_reachable_count - (count - lost)) <= 1, report.sums


@contextlib.contextmanager
def _highest_resident_mb(pid: int) -> Iterator[list[float]]:
    """The peak resident memory (VmHWM) of a child of the process, until the block ends."""
    seen = [0.0]
    over = threading.Event()

    def look() -> None:
        while not over.wait(_POLL_S):
            for child in _children(pid):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    status = Path(f"/proc/{child}/status").read_text()
                    seen.append(int(status.split("VmHWM:")[1].split()[0]) / 1024)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def _children(pid: int) -> Iterator[str]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from children.read_text().split()


if __name__ == "__main__":
    run_alone(measure)
