"""What the daemon uses on a host where processes constantly start and end, as in a build."""

from __future__ import annotations

import subprocess
import time

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import process_cpu_ns
from bench.tracing import RunningDaemon

_EVENT_US = 50

# Neither traces anything: a rule only makes the daemon check each process soon after its exec.
_POLICIES = {
    "automatic": {"default": "auto"},
    "a rule that traces other programs": {
        "default": "off",
        "rules": [{"match": {"exe": "/nowhere/*"}, "mode": "exact"}],
    },
}


def measure(short: bool) -> Benchmark:
    """Start thousands of short processes, one after the other."""
    benchmark = Benchmark("process_events", "A host that starts processes all the time", short)
    processes, span_s, spans = (300, 2.0, 1) if short else (5_000, 10.0, 3)
    for name, policy in _POLICIES.items():
        with RunningDaemon(policy=policy) as daemon:
            time.sleep(span_s)
            samples, rates = [], []
            for _span in range(spans):
                idle_ns_per_s = _idle_ns_per_s(daemon.pid, span_s)
                events = daemon.client.stats().process_events.events_total
                before_ns, began_s = process_cpu_ns(daemon.pid), time.monotonic()
                _start(processes)
                rates.append(processes / (time.monotonic() - began_s))
                time.sleep(span_s / 5)
                idle_ns = idle_ns_per_s * (time.monotonic() - began_s)
                took_ns = process_cpu_ns(daemon.pid) - before_ns - idle_ns
                samples.append(took_ns / 1e3 / (daemon.client.stats().process_events.events_total - events))
        event = benchmark.add(f"processor time of the daemon an event: {name}", "us", samples)
        benchmark.add(f"processes a second meanwhile: {name}", "", rates)
        benchmark.demand(event.name, _EVENT_US, event, "us")
    benchmark.notes.append(
        "A process is three events: fork, exec, exit. What the daemon takes idle is subtracted."
    )
    return benchmark


def _idle_ns_per_s(pid: int, span_s: float) -> float:
    before_ns, began_s = process_cpu_ns(pid), time.monotonic()
    time.sleep(span_s)
    return (process_cpu_ns(pid) - before_ns) / (time.monotonic() - began_s)


def _start(processes: int) -> None:
    script = f"i=0; while [ $i -lt {processes} ]; do /bin/true; i=$((i+1)); done"
    subprocess.run(["sh", "-c", script], check=True)


if __name__ == "__main__":
    run_alone(measure)
