"""Managed runtimes and late libraries: whole stacks, named, whatever compiled the code and when.

The programs are in tests/workloads/runtimes; all leak through the same C library, which keeps the ledger.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfleakd.kernel.abi import MAX_FRAMES

from .building import build_directory
from .daemons import Daemon
from .dotnet import dotnet_command
from .machine import cannot_run, need_tool
from .truth import by_function, expect_no_losses, expect_order, expect_whole, names, site_of
from .waiting import PATIENCE, wait_until
from .workloads import BUILD, SOURCES, Workload

KEPT, FREED = 23, 101
SETUP = "make setup FOR=test"


# -- the programs ------------------------------------------------------------------------------------------


def dotnet_shop(*, perf_map: bool = False) -> list[str | Path]:
    """.NET Core 3.1, without any flag."""
    return dotnet_command("Shop", "libsessions.so", perf_map=perf_map)


def node_command() -> list[str | Path]:
    """Node.js, with a perf map from the start."""
    program = Path(need_tool_of("node", "nodejs")).resolve()
    found = [
        path
        for path in (program.parents[1] / "include/node", Path("/usr/include/nodejs/src"))
        if path.exists()
    ]
    if not found:
        cannot_run(
            "Node.js has no headers to build an addon with: apt install nodejs of NodeSource, or libnode-dev"
        )
    directory = build_directory("runtimes", "sessions.node", NODE_INCLUDE=found[0])
    return [program, "--perf-basic-prof", SOURCES / "runtimes" / "shop.js", directory]


def java_command() -> list[str | Path]:
    """OpenJDK, without any flag that has to do with profiling."""
    home = Path(need_tool_of("javac", "openjdk-17-jdk-headless")).resolve().parents[1]
    directory = build_directory("runtimes", "libjavasessions.so", "Shop.class", JAVA_HOME=home)
    return [home / "bin/java", "-cp", directory, "Shop", directory]


def python_command() -> list[str | Path]:
    """CPython without a perf map: the stack has the interpreter's C functions."""
    directory = build_directory("runtimes", "libsessions.so")
    return ["/usr/bin/python3", SOURCES / "runtimes" / "deep.py", directory]


def need_tool_of(name: str, package: str) -> str:
    """Return the path of a program; without it the test cannot run."""
    path = shutil.which(name)
    return path or cannot_run(f"{name} is not installed: apt install {package}, or {SETUP}")


@pytest.fixture
def run(tmp_path) -> Iterator[Callable[..., Workload]]:
    """A factory of running programs. They are killed at the end, and their files in /tmp are removed."""
    started: list[Workload] = []

    def start(*command: str | Path) -> Workload:
        started.append(Workload(command, cwd=tmp_path))
        return started[-1]

    yield start
    for program in started:
        program.kill()
        for name in ("perf", "perfinfo"):
            Path(f"/tmp/{name}-{program.pid}.map").unlink(missing_ok=True)


# -- expectations ------------------------------------------------------------------------------------------


def expect_ledger(report: dict[str, Any], ledger: dict[str, Any]) -> None:
    """Fail unless the functions of the ledger have its figures; a runtime allocates elsewhere, too."""
    actual = by_function(report)
    assert {name: actual.get(name) for name in ledger["sites"]} == ledger["sites"]
    expect_no_losses(report)


def last_report(tracer: Daemon, program: Workload, pid: int | None = None) -> dict[str, Any]:
    """End the program; return the report that is kept of it (of the process `pid` in it)."""
    pid = pid or program.pid
    program.exit()
    wait_until(lambda: tracer.process(pid)["process"]["state"] == "exited")
    return tracer.top(pid)


def wait_for_names(tracer: Daemon, pid: int) -> None:
    """Wait until all methods of .NET that are on the stack of session_keep have names."""

    def has_names() -> bool:
        site = site_of(tracer.top(pid), "session_keep")
        managed = [frame for frame in site["stack"] if frame["kind"] in ("jit", "unknown")]
        return all(frame["function"] for frame in managed)

    wait_until(has_names, 45 * PATIENCE)


def managed_frames(site: dict[str, Any]) -> list[str]:
    return [frame["function"] for frame in site["stack"] if frame["kind"] == "jit"]


# -- .NET --------------------------------------------------------------------------------------------------


def test_dotnet(tracer, run):
    """C library ← managed methods ← C ← Main ← native host ← _start, with exact figures, also afterwards."""
    program = run(*dotnet_shop())
    tracer.attach_with_tables(program.pid)

    ledger = program.step()

    wait_for_names(tracer, program.pid)
    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    site = site_of(report, "session_keep")
    expect_order(
        site,
        (
            "malloc",
            "session_keep",
            "Shop.Cart.Remember",
            "Shop.Program.Checkout",
            "System.Collections.Generic.List<__Canon>.ForEach",
            "Shop.Program.Main.<lambda 0>",
            "sessions_serve",
            "Shop.Program.Main",
            "coreclr_execute_assembly",
            "__libc_start_main",
            "_start",
        ),
    )
    expect_whole(site, "_start")
    assert site["live_count"] == KEPT
    assert site_of(report, "session_turn_over")["allocated_count"] == FREED

    # and after its end the names are those that it had
    final = site_of(last_report(tracer, program), "session_keep")
    assert names(final) == names(site)
    assert final["live_bytes"] == site["live_bytes"]


@pytest.mark.parametrize("perf_map", [True, False])
def test_names_are_kept_of_a_container_that_ended(tracer, run, perf_map):
    """In private namespaces, which end with it, together with its files, its perf map or its socket."""
    # given a program that is process 1 and has a /tmp of its own, where its perf map or its socket is; what
    # is built may lie in our /tmp, so that it gets another place before
    places = f'mount --bind "{BUILD.parent}" /mnt && mount -t tmpfs none /tmp && exec "$@"'
    program = run(
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", places, "sh"),
        *(str(word).replace(str(BUILD.parent), "/mnt") for word in dotnet_shop(perf_map=perf_map)),
    )
    pid = int(Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text())
    tracer.attach_with_tables(pid)

    ledger = program.step()

    if perf_map:
        # The step loaded the library that allocates; its file is opened when the daemon sees that.
        wait_until(lambda: "session_keep" in by_function(tracer.top(pid)), 45 * PATIENCE)
    else:
        wait_for_names(tracer, pid)
    site = site_of(last_report(tracer, program, pid), "session_keep")
    assert (site["live_count"], site["live_bytes"]) == (ledger["live_count"], ledger["live_bytes"])
    expect_order(site, ("Shop.Cart.Remember", "Shop.Program.Main", "__libc_start_main", "_start"))
    expect_whole(site, "_start")


@pytest.mark.parametrize("command", [dotnet_shop, python_command])
def test_the_same_program_has_the_same_fingerprints(tracer, run, command):
    """Two runs at other addresses: a site is known by build-ids and offsets, and by names of methods."""
    programs = [run(*command()) for _ in range(2)]
    for program in programs:
        tracer.attach_with_tables(program.pid)

    for program in programs:
        program.step()

    for program in programs:
        wait_for_names(tracer, program.pid)
    sites = [site_of(tracer.top_after_tick(program.pid), "session_keep") for program in programs]
    assert sites[0]["site"] == sites[1]["site"]
    assert [frame["address"] for frame in sites[0]["stack"]] != [
        frame["address"] for frame in sites[1]["stack"]
    ]


# -- Node.js -----------------------------------------------------------------------------------------------


def test_node(tracer, run):
    """Addon ← JavaScript functions with file and line ← engine ← _start, figures exact, also afterwards."""
    program = run(*node_command())
    tracer.attach_with_tables(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    # More than one if the engine compiled the function again meanwhile.
    sites = [site for site in report["sites"] if site["function"] == "session_keep"]
    for site in sites:
        expect_order(
            site, ("malloc", "session_keep", ":checkout ", "sessions_serve", "node::Start(", "_start")
        )
        expect_whole(site, "_start")
        assert any("shop.js:" in function for function in managed_frames(site))

    final = last_report(tracer, program)
    expect_ledger(final, ledger)
    assert managed_frames(site_of(final, "session_keep")) == managed_frames(site_of(report, "session_keep"))


# -- Java --------------------------------------------------------------------------------------------------


def test_java(tracer, run):
    """JNI and Unsafe, in compiled code without frame pointers and with inlined methods, also afterwards."""
    program = run(*java_command())
    tracer.attach_with_tables(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    bottom = ("JavaCalls::call_helper", "JavaMain", "start_thread", "clone3")
    sites = [site for site in report["sites"] if site["function"] == "session_keep"]
    for site in sites:
        managed = ("Shop.keep", "Shop.addToCart", "Shop.checkout")
        expect_order(site, ("malloc", "session_keep", "Java_Shop_keep", *managed, "sessions_serve", *bottom))
        expect_whole(site, "clone3")
    assert sum(site["live_count"] for site in sites) == KEPT
    (cache,) = (site for site in report["sites"] if "Shop.fillCache" in names(site))
    expect_order(cache, ("malloc", "os::malloc", "Shop.fillCache", "Shop.checkout", *bottom))
    assert (cache["function"], cache["live_count"], cache["live_bytes"]) == ("Shop.fillCache", 17, 17 * 808)

    final = site_of(last_report(tracer, program), "session_keep")
    assert names(final) == names(site_of(report, "session_keep"))


# -- CPython -----------------------------------------------------------------------------------------------


def test_python_recursion(tracer, run):
    """Some turns from Python to C and back are on the stack as they were made, down to _start."""
    program = run(*python_command())
    tracer.attach_with_tables(program.pid)
    turns = 5

    ledger = program.step(turns)

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    site = site_of(report, "session_keep")
    expect_whole(site, "_start")
    assert names(site).count("sessions_call") == turns
    expect_order(site, ["session_keep", *["descend", "sessions_call"] * turns, "Py_RunMain"])


def test_a_language_that_is_only_recognised(tracer, run):
    """Its call sites are C functions, which the process' notes state."""
    program = run("/usr/bin/perl", "-e", '$| = 1; print "ready\\n"; <STDIN>;')
    tracer.attach(program.pid)
    assert any("does not read Perl" in note for note in tracer.top(program.pid)["process"]["notes"])


def test_recursion_deeper_than_a_stack_is_kept(tracer, run):
    """The innermost frames of 60 turns are kept, the figures are exact, and the truncation is named."""
    program = run(*python_command())
    tracer.attach_with_tables(program.pid)

    ledger = program.step(60)

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    site = site_of(report, "session_keep")
    assert site["truncated"] == "depth"
    assert len([frame for frame in site["stack"] if not frame["inlined"]]) == MAX_FRAMES
    assert names(site)[:2] == ["malloc", "session_keep"]


# -- libraries that come and go ----------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path) -> Path:
    """A private copy of a library."""
    directory = build_directory("runtimes", "libcatalog.so", "opens_late")
    return Path(shutil.copy2(directory / "libcatalog.so", tmp_path))


def expect_catalog(report: dict[str, Any], ledger: dict[str, Any]) -> None:
    """Fail unless the library's site is whole, and blamed is the function that was inlined."""
    expect_ledger(report, ledger)
    site = site_of(report, "catalog::reserve")
    expect_whole(site, "_start")
    expect_order(site, ("malloc", "catalog::reserve", "catalog::load", "catalog_open", "use_library", "main"))
    blamed, holder = site["stack"][1:3]
    assert (blamed["inlined"], holder["inlined"]) == (True, False)
    assert blamed["address"] == holder["address"]
    assert site["location"].partition(":")[0].endswith("catalog.cpp")
    assert blamed["module"].startswith("libcatalog.so")


def test_library_opened_after_the_attach(tracer, run, library):
    """The dynamic loader tells: soon, stacks through a new library are whole and named."""
    program = run(BUILD / "runtimes" / "opens_late", library)
    tracer.attach_with_tables(program.pid)
    program.step()
    # The child that builds its unwind table takes longer on a busy machine.
    tracer.tick_for_s(3 * PATIENCE)

    ledger = program.step()

    expect_catalog(tracer.top_after_tick(program.pid), ledger)


def test_library_that_was_deleted(tracer, run, library):
    """An upgrade has put another file under its name: the mapped one is unwound and named."""
    program = run(BUILD / "runtimes" / "opens_late", library)
    program.step()
    library.unlink()
    shutil.copy2(BUILD / "runtimes" / "libsessions.so", library)
    tracer.attach_with_tables(program.pid)

    ledger = program.step()

    expect_catalog(tracer.top_after_tick(program.pid), ledger)


# -- redis -------------------------------------------------------------------------------------------------


def test_redis(tracer, tmp_path):
    """Every stack of a server under load is whole, also in its own allocator."""
    socket = tmp_path / "redis.sock"
    server, client = need_tool("redis-server"), need_tool("redis-cli")
    options = ("--port", "0", "--unixsocket", socket, "--save", "", "--dir", tmp_path)
    with subprocess.Popen([server, *options], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(socket.exists)
            tracer.attach(process.pid)

            commands = "".join(
                f"SET key{i} {'x' * i}\nZADD sorted {i} member{i}\nEVAL 'return redis.call(\"INFO\")' 0\n"
                for i in range(300)
            )
            subprocess.run(
                [client, "-s", socket], input=commands.encode(), check=True, stdout=subprocess.DEVNULL
            )

            report = tracer.top_after_tick(process.pid)
        finally:
            process.kill()
    expect_no_losses(report)
    assert len(report["sites"]) > 50
    assert {site["truncated"] for site in report["sites"]} == {None}
    assert {site["stack"][-1]["function"] for site in report["sites"]} <= {"_start", "clone3"}
    assert any("luaCallFunction" in names(site) for site in report["sites"])
