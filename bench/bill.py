"""The bill of a process with a heap of 10 GB: the CPU time of the daemon and of its reading process."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_program, process_cpu_ns
from bench.tracing import RunningDaemon
from bpfleakd.model.address_space import BillKind

_BLOCKS = 166_000
_BLOCK_BYTES = 61_500
_READINGS = 7
_CPU_S = 1


def measure(short: bool) -> Benchmark:
    """`maps` of a process that was attached to when the heap existed already, repeatedly."""
    benchmark = Benchmark("bill", "The bill of a large process", short)
    count = _BLOCKS // 20 if short else _BLOCKS
    size = f"{count * _BLOCK_BYTES / 1e9:.1f} GB of heap, {count:,} free chunks"
    with RunningDaemon() as daemon, contextlib.closing(Target([build_program("bloated")])) as target:
        target.step(count)
        benchmark.add(f"{size}: in memory", "MB", [_resident_mb(target.pid)])
        before_ns = _cpu_ns(daemon.pid)
        daemon.client.attach(target.pid)
        attach = benchmark.add("processor time of the attach to it", "s", [_since_s(daemon.pid, before_ns)])
        benchmark.demand(attach.name, _CPU_S, attach, "s")
        took, samples = [], []
        for _ in range(2 if short else _READINGS):
            before_ns, began_s = _cpu_ns(daemon.pid), time.monotonic()
            report = daemon.client.address_space(target.pid)
            took.append(time.monotonic() - began_s)
            samples.append(_since_s(daemon.pid, before_ns))
        free_bytes = sum(line.bytes for line in report.bill if line.kind is BillKind.HEAP_FREE)
        assert free_bytes > 0.1 * report.resident_bytes, report.bill
        benchmark.add("the answer to `maps`", "s", took)
        cpu = benchmark.add("processor time of a bill", "s", samples)
        benchmark.demand(cpu.name, _CPU_S, cpu, "s")
        lines = (f"{line.bytes / 1e6:,.0f} MB {line.kind}" for line in report.bill)
        benchmark.notes.append(f"The bill: {', '.join(lines)}.")
    return benchmark


def _since_s(pid: int, before_ns: int) -> float:
    """CPU time of the daemon since then, beyond what it uses while it traces one idle process."""
    return (_cpu_ns(pid) - before_ns) / 1e9


def _cpu_ns(pid: int) -> int:
    """CPU time of the daemon and of its reading process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    readers = [
        child for child in children if b"reading/server.py" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return sum(map(process_cpu_ns, [pid, *map(int, readers)]))


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


if __name__ == "__main__":
    run_alone(measure)
