"""The cases that this project was started for, those of managed programs; tests/workloads/runtimes/Leaks.cs.

The others are test_shares_of_functions_and_threads (three exported functions, three threads) and
test_the_blocks_of_who_leaks_through_a_wrapper (20 blocks of 1 MiB, an innocent caller) in test_blocks.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemons import Daemon
from .dotnet import dotnet_command, named_top
from .truth import by_function, expect_no_losses, expect_order, expect_whole, names, site_of
from .waiting import PATIENCE, wait_until
from .workloads import Workload

MIB = 1 << 20
# Step 5 generates 101 assemblies, dynamic methods and lambdas, each with a method.
GENERATED = {
    "Generated0": 34,
    "Generated1": 34,
    "Generated2": 33,
    "Anonymously Hosted DynamicMethods Assembly": 2 * 101,
}
GENERATORS = ("RunGeneratedAssembly", "RunDynamicMethod", "RunCompiledLambda")
BOTTOM = ("coreclr_execute_assembly", "__libc_start_main", "_start")


@pytest.fixture
def program(tracer: Daemon, tmp_path: Path) -> Iterator[Workload]:
    """The .NET program, traced."""
    running = Workload(dotnet_command("Leaks", "libleaks.so"), cwd=tmp_path)
    try:
        tracer.attach_with_tables(running.pid)
        yield running
    finally:
        running.kill()


@pytest.fixture
def program_with_perf_map(tracer: Daemon, tmp_path: Path) -> Iterator[Workload]:
    """The same with a perf map; its files in /tmp are removed at the end."""
    running = Workload(dotnet_command("Leaks", "libleaks.so", perf_map=True), cwd=tmp_path)
    try:
        tracer.attach_with_tables(running.pid)
        yield running
    finally:
        running.kill()
        for name in ("perf", "perfinfo"):
            Path(f"/tmp/{name}-{running.pid}.map").unlink(missing_ok=True)


def maps_of(tracer: Daemon, pid: int) -> dict:
    report = json.loads(tracer.control("maps", "--pid", pid, "--json"))
    return report | {"uses": {use["use"]: use for use in report["uses"]}}


@pytest.mark.long
def test_a_c_library_leaks_by_pinvoke(tracer, program):
    """10 KiB blocks: Main, the P/Invoke stub, heapmalloc, live and to the byte."""
    ledger = program.step(1)

    report = named_top(tracer, program.pid, "heapmalloc")
    assert by_function(report)["heapmalloc"] == ledger["sites"]["heapmalloc"]
    site = site_of(report, "heapmalloc")
    assert (site["kind"], site["live_bytes"], site["live_count"]) == ("heap", 1009 * 10240, 1009)
    assert names(site)[:4] == [
        "malloc",
        "heapmalloc",
        "dynamicClass.IL_STUB_PInvoke",
        "Leaks.Program.Main",
    ]
    expect_order(site, BOTTOM)
    expect_whole(site, "_start")
    expect_no_losses(report)


def test_a_c_library_leaks_mappings(tracer, program):
    """256 mappings of 4 MiB: Main, MyTest, Allocate, the stub, mmap_allocation, mmap."""
    ledger = program.step(2)

    report = named_top(tracer, program.pid, "mmap_allocation")
    assert by_function(report)["mmap_allocation"] == ledger["sites"]["mmap_allocation"]
    site = site_of(report, "mmap_allocation")
    assert (site["kind"], site["live_bytes"], site["live_count"]) == ("mmap", 256 * 4 * MIB, 256)
    managed = ("IL_STUB_PInvoke", "Leaks.Program.Allocate", "Leaks.Program.MyTest", "Leaks.Program.Main")
    expect_order(site, ("mmap", "mmap_allocation", *managed, *BOTTOM))
    expect_whole(site, "_start")
    expect_no_losses(report)
    maps = maps_of(tracer, program.pid)
    assert maps["uses"]["mmap"]["virtual_growth_bytes"] > 250 * 4 * MIB  # the runtime gives some back
    assert maps["shares"]["tracked_mmap_bytes"] >= 256 * 4096  # a page of each is in memory


@pytest.mark.long
def test_memory_that_the_class_library_takes_is_its_callers(tracer, program):
    """Marshal.AllocHGlobal ends in malloc, by way of the run-time: blamed is the method that called it."""
    program.step(3)

    report = named_top(tracer, program.pid, "Leaks.Program.KeepNative")
    site = site_of(report, "Leaks.Program.KeepNative")
    assert (site["live_bytes"], site["live_count"], site["module"]) == (23 * 601, 23, "Leaks")
    expect_order(site, ("malloc", "Leaks.Program.KeepNative", "Leaks.Program.Main", *BOTTOM))


@pytest.mark.long
def test_a_managed_heap_grows_by_large_arrays(tracer, program):
    """30 arrays made in one method: maps says how much the managed heap grew, commit sites say by whom."""
    ledger = program.step(4)

    # The runtime's count; it commits a little in advance.
    managed_bytes = ledger["managed_bytes"]
    assert managed_bytes >= 30 * 3 * MIB
    report = named_top(tracer, program.pid, "Leaks.Program.KeepArrays")
    commits = [site for site in report["sites"] if site["kind"] == "commit"]
    (largest,) = {site["function"] for site in commits if site["live_bytes"] >= MIB}
    assert largest == "Leaks.Program.KeepArrays"
    committed = sum(site["live_bytes"] for site in commits if site["function"] == largest)
    assert managed_bytes <= committed <= managed_bytes + 4 * MIB
    # Sampled objects have separate sites.
    site = site_of({"sites": commits}, "Leaks.Program.KeepArrays")
    expect_order(site, ("mprotect", "JIT_NewArr1", "Leaks.Program.KeepArrays", "Leaks.Program.Main", *BOTTOM))
    expect_whole(site, "_start")

    maps = maps_of(tracer, program.pid)
    assert maps["uses"]["commit"]["virtual_growth_bytes"] == sum(site["live_bytes"] for site in commits)
    assert managed_bytes <= maps["uses"]["commit"]["resident_growth_bytes"] <= committed
    assert maps["shares"]["tracked_commit_bytes"] >= managed_bytes


def test_code_that_is_generated_over_and_over(tracer, program):
    """Assemblies, dynamic methods and compiled lambdas: what grows, by how many methods, and which method
    causes it.
    """
    program.step(1)
    named_top(tracer, program.pid, "heapmalloc")
    # The methods are known now.
    program.step(5)

    def new_methods() -> dict[str, int]:
        modules = maps_of(tracer, program.pid)["jit_modules"]
        return {module["module"]: module["new_methods"] for module in modules}

    wait_until(lambda: GENERATED.items() <= new_methods().items(), 45 * PATIENCE)
    managed = {name for site in tracer.top(program.pid)["sites"] for name in names(site)}
    assert {f"Leaks.Program.{name}" for name in GENERATORS} <= managed


def test_generated_code_by_its_perf_map(tracer, program_with_perf_map):
    """The same, to the byte."""
    program = program_with_perf_map
    perf_map = Path(f"/tmp/perf-{program.pid}.map")
    before = perf_map.read_text()
    grown_bytes = 0

    for rounds in (1, 2):
        program.step(5)

        maps = maps_of(tracer, program.pid)
        modules = {module["module"]: module for module in maps["jit_modules"]}
        written = [line.split(" ", 2) for line in perf_map.read_text().removeprefix(before).splitlines()]
        for name, count in GENERATED.items():
            sizes = [int(size, 16) for _start, size, method in written if f"[{name}] " in method]
            assert (name, len(sizes)) == (name, rounds * count)
            expected = {"module": name, "new_methods": rounds * count, "new_bytes": sum(sizes)}
            assert modules[name] == expected
        assert sum(module["new_methods"] for module in modules.values()) == len(written)
        assert [name for name in modules if set(name) & set("[]/:`")] == []
        # The memory of the code is mapped again, too.
        assert maps["uses"]["jit"]["resident_growth_bytes"] > grown_bytes
        grown_bytes = maps["uses"]["jit"]["resident_growth_bytes"]
    assert maps["uses"]["commit"]["resident_growth_bytes"] > 0
