"""What it costs a .NET process to list its methods and to report its collections."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Benchmark, Figure
from bench.runner import run_alone
from bench.serving import tool
from bench.targets import cpu_percent, process_cpu_ns
from bpfleakd.process.process import read_process
from bpfleakd.runtimes.dotnet import line_jobs, stream_jobs
from bpfleakd.runtimes.dotnet.diagnostics import Endpoint, find_endpoint
from bpfleakd.runtimes.dotnet.live_heap import DotnetLiveHeap
from bpfleakd.runtimes.dotnet.method_look import Methods, take_rundown
from bpfleakd.sandbox.helpers import Helpers

_FEW, _MANY = 300, 10_000
_ROUNDS = 7
_WATCHED_S = 10.0
_TIMEOUT_S = 60.0
_SETTLED_S = 5.0
_FEW_MS, _MANY_MS, _COLLECTIONS_PERCENT = 50.0, 500.0, 0.1
_DOTNET = Path(__file__).parents[1] / "build/dotnetcore2/dotnetcore2/bin/dotnet"
_SETTINGS = '{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"}}}\n'
_METHODS_A_CLASS = 500
# The runtime's own methods, which every program has.
_METHODS_OF_ANY = 100
_PROGRAM = """
static class Program {
    static void Main(string[] arguments) {
        long sum = 0;
%s
        System.Console.WriteLine("ready");
        while (true) {
            System.Threading.Thread.Sleep(arguments.Length > 0 ? 1000 / int.Parse(arguments[0]) : 1000);
            if (arguments.Length > 0) System.GC.Collect(0);
        }
    }
}
"""


def measure(short: bool) -> Benchmark:
    """Query a program with few methods and one with many; follow one that collects ten times a second."""
    benchmark = Benchmark("dotnet", "A .NET process that is asked", short)
    rounds, watched_s = (2, 2.0) if short else (_ROUNDS, _WATCHED_S)
    helpers = Helpers([stream_jobs.__name__, line_jobs.__name__])
    with contextlib.closing(helpers), tempfile.TemporaryDirectory(prefix="bpfleakd-dotnet-") as directory:
        few_program, many_program = (_build(Path(directory), count) for count in (_FEW, _MANY))
        few = _look(benchmark, helpers, few_program, f"{_FEW} methods", rounds)
        many = _look(benchmark, helpers, many_program, f"{_MANY:,} methods", rounds)
        collections = _follow(benchmark, helpers, few_program, 1, watched_s, rounds)
        _follow(benchmark, helpers, few_program, 10, watched_s, rounds)
    benchmark.demand(few.name, _FEW_MS, few, "ms")
    benchmark.demand(many.name, _MANY_MS, many, "ms")
    benchmark.demand(collections.name, _COLLECTIONS_PERCENT, collections, "%")
    benchmark.notes.append(
        "All is processor time of the .NET process. It waits meanwhile; what it uses without being asked was"
        " measured before, and is subtracted."
    )
    return benchmark


def _look(benchmark: Benchmark, helpers: Helpers, program: Path, title: str, rounds: int) -> Figure:
    """The cost of the list of methods, requested repeatedly as the daemon does."""
    costs, times = [], []
    found = Methods()
    with _running(program) as pid:
        endpoint = _endpoint(pid)
        idle_ns_per_s = 1e7 * statistics.median(cpu_percent(pid, 0.5, 3))
        for _ in range(rounds):
            before_ns, began_s = process_cpu_ns(pid), time.monotonic()
            found = take_rundown(helpers, endpoint, _TIMEOUT_S)
            times.append(time.monotonic() - began_s)
            costs.append((process_cpu_ns(pid) - before_ns - idle_ns_per_s * times[-1]) / 1e6)
    benchmark.add(f"{title}: until their names are there", "ms", [1e3 * took for took in times])
    benchmark.notes.append(f"The program with {title} had {len(found.code):,} versions of methods to tell.")
    return benchmark.add(f"{title}: processor time of the process", "ms", costs)


def _follow(
    benchmark: Benchmark, helpers: Helpers, program: Path, per_s: int, watched_s: float, rounds: int
) -> Figure:
    """The cost of reporting this many collections a second: spans with and without a session in turns."""
    shares = []
    with _running(program, str(per_s)) as pid:
        for _ in range(rounds):
            (alone,) = cpu_percent(pid, watched_s, 1)
            heap = DotnetLiveHeap(helpers, lambda: _endpoint(pid), 0)
            with contextlib.closing(heap):
                while heap.watched_since_ns is None:
                    heap.read(time.monotonic_ns())
                    time.sleep(0.05)
                (followed,) = cpu_percent(pid, watched_s, 1)
                told = len(heap.read(time.monotonic_ns()))
            if told < per_s * watched_s / 2:
                raise RuntimeError(f"{told} collections in {watched_s:.0f} s")
            shares.append(followed - alone)
    return benchmark.add(f"told of {per_s} collections a second", "%", shares)


def _build(directory: Path, methods: int) -> Path:
    """A program with this many methods, including the runtime's, which has called them all."""
    own = methods - _METHODS_OF_ANY
    lines, calls = [], []
    for first in range(0, own, _METHODS_A_CLASS):
        lines.append(f"static class Part{first} {{")
        numbers = range(first, min(first + _METHODS_A_CLASS, own))
        lines += [f"    public static long Method{n}(long sum) {{ return sum * {n} + 1; }}" for n in numbers]
        inside = " ".join(f"sum += Method{n}(sum);" for n in numbers)
        lines.append(f"    public static long All(long sum) {{ {inside} return sum; }}\n}}")
        calls.append(f"        sum += Part{first}.All(sum);")
    source = directory / f"Methods{methods}.cs"
    source.write_text("\n".join(lines) + _PROGRAM % "\n".join(calls))
    program = source.with_suffix(".dll")
    # Unoptimised, so that no method is inlined into its caller.
    subprocess.run([tool("mcs"), "-nologo", "-target:exe", f"-out:{program}", source], check=True)
    source.with_suffix(".runtimeconfig.json").write_text(_SETTINGS)
    return program


@contextlib.contextmanager
def _running(program: Path, *arguments: str) -> Iterator[int]:
    if not _DOTNET.exists():
        raise RuntimeError(f"no {_DOTNET}: make setup FOR=test")
    environment = {**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"}
    command = [_DOTNET, program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("the program has ended")
            # It compiles for a while after its start.
            time.sleep(_SETTLED_S)
            yield process.pid
        finally:
            process.kill()


def _endpoint(pid: int) -> Endpoint:
    process = read_process(pid)
    return find_endpoint(pid, process.namespace_pid, process.id.start_ticks)


if __name__ == "__main__":
    run_alone(measure)
