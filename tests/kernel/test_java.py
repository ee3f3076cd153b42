"""Unprepared Java services: what leaks, which method causes it, and what a healthy service looks like."""

from __future__ import annotations

import json
import operator
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .daemons import ControlFailed, Daemon
from .java import java_home, java_program
from .waiting import PATIENCE, wait_until

# Like any service that has a limit of memory; so collections are frequent.
OPTIONS = ("-Xmx64m",)
# G1 marks all objects when the heap is a little full, not at about half.
MARKS_EARLY = ("-XX:InitiatingHeapOccupancyPercent=8", "-XX:-G1UseAdaptiveIHOP")


@pytest.fixture
def leaking(service: Callable[..., subprocess.Popen]) -> Callable[..., int]:
    """A factory of running services of JavaLeaks.java, by their way, with further options; returns pids."""

    def start(way: str, *options: str) -> int:
        return service(*java_program("JavaLeaks", options=(*OPTIONS, *options)), way).pid

    return start


def leaks(report: dict[str, Any]) -> set[str]:
    return {site["function"] for site in report["sites"] if site["verdict"] == "leak"}


@pytest.mark.long
def test_each_leaks_in_its_way(daemon: Callable[..., Daemon], leaking: Callable[[str], int]) -> None:
    """Buffers and classes by their method, a map and thread-locals by the heap; the healthy one never."""
    tracer = daemon(history={"leak_after_s": 10})
    ways = ("direct", "classes", "map", "threads", "healthy")
    pids = {way: leaking(way, *MARKS_EARLY) for way in ways}
    for pid in pids.values():
        tracer.attach(pid)

    def are_found() -> bool:
        reports = {way: tracer.top(pid) for way, pid in pids.items()}
        assert reports["healthy"]["process_verdict"]["verdict"] != "leak"
        return (
            "JavaLeaks$Buffers.take" in leaks(reports["direct"])
            and "JavaLeaks$Plugins$Loader.define" in leaks(reports["classes"])
            and "most of that is metaspace" in reports["classes"]["process_verdict"]["reason"]
            and all(reports[way]["process_verdict"]["verdict"] == "leak" for way in ("map", "threads"))
        )

    wait_until(are_found, 240 * PATIENCE)

    # a leak outside of the heap is not a leak of the heap, and vice versa
    reports = {way: tracer.top(pid) for way, pid in pids.items()}
    # A class loader has objects in the heap, too.
    heaps = {way for way, report in reports.items() if report["managed"]["verdict"] == "leak"}
    assert heaps - {"classes"} == {"map", "threads"}
    assert reports["map"]["managed"]["limit_bytes"] == 64 << 20
    assert reports["map"]["process_verdict"]["limit"]["kind"] == "managed-heap"
    assert leaks(reports["direct"]) == {"JavaLeaks$Buffers.take"}
    said = [site["reason"] for site in reports["classes"]["sites"] if site["kind"] == "mmap"]
    assert any(reason.startswith("metaspace: ") for reason in said)
    # Interpreted, then compiled by one compiler and another, it is one site.
    taken = [s["live_bytes"] for s in reports["direct"]["sites"] if s["function"] == "JavaLeaks$Buffers.take"]
    assert max(taken) >= 0.8 * sum(taken)
    assert leaks(reports["healthy"]) == set()
    assert all(report["process"]["notes"] == [] for report in reports.values())

    def bill() -> dict[str, dict[str, Any]]:
        report = json.loads(tracer.control("maps", pids["classes"], "--json"))
        return {line["kind"]: line for line in report["bill"]}

    # The verdicts may come before much is compiled.
    wait_until(lambda: bill()["jit"]["bytes"] > 1 << 20)
    areas = {area["kind"]: area for area in tracer.top(pids["classes"])["managed"]["areas"]}
    assert bill()["metaspace"]["bytes"] >= areas["metaspace"]["used_bytes"] > 1 << 20
    assert areas["code_cache"]["committed_bytes"] >= areas["code_cache"]["used_bytes"] > 1 << 20
    assert areas["code_cache"]["committed_bytes"] >= bill()["jit"]["bytes"] > 1 << 20


def test_what_the_class_library_has_native_code_for(tracer: Daemon, leaking: Callable[..., int]) -> None:
    """Memory of zlib is the program's method's that opened the stream, and no function's of zlib."""
    pid = leaking("gzip")
    tracer.attach(pid)

    def of_zlib() -> list[dict[str, Any]]:
        """Sites with complete Java stacks."""
        return [
            site
            for site in tracer.top(pid)["sites"]
            if any((frame["module"] or "").startswith("libz.so") for frame in site["stack"])
            and site["stack"][-1]["module"] == "libc.so.6"
            and all(frame["function"] not in (None, "Interpreter") for frame in site["stack"])
        ]

    wait_until(lambda: sum(site["live_bytes"] for site in of_zlib()) > 2 << 20, 60 * PATIENCE)
    assert {site["function"] for site in of_zlib()} == {"JavaLeaks$Archives.open"}


def test_what_a_collection_would_free(daemon: Callable[..., Daemon], leaking: Callable[..., int]) -> None:
    """Streams that nobody closes or keeps grow like a leak, and are none; those that are kept are."""
    tracer = daemon(history={"leak_after_s": 10})
    dropped, kept = leaking("dropped", "-Xmn48m"), leaking("gzip")
    for pid in (dropped, kept):
        tracer.attach(pid)

    def of_zlib() -> list[dict[str, Any]]:
        report = tracer.top(dropped)
        assert leaks(report) == set()
        assert report["process_verdict"]["verdict"] != "leak"
        return [site for site in report["sites"] if site["function"] == "JavaLeaks.openAndDrop"]

    why = "it may be garbage, which only a full collection frees"
    wait_until(lambda: any(why in site["reason"] for site in of_zlib()), 120 * PATIENCE)

    # it is garbage
    before = sum(site["live_bytes"] for site in of_zlib())
    subprocess.run([java_home() / "bin/jcmd", str(dropped), "GC.run"], check=True, capture_output=True)

    def freed_bytes() -> int:
        return sum(site["allocated_bytes"] - site["live_bytes"] for site in of_zlib())

    # More streams come meanwhile, so that what is live may soon be as much as before.
    wait_until(lambda: freed_bytes() > before / 2, 60 * PATIENCE)
    # Collections of the young generation have left these.
    wait_until(lambda: "JavaLeaks$Archives.open" in leaks(tracer.top(kept)), 240 * PATIENCE)


@pytest.mark.long
def test_a_map_that_grows_under_other_collectors(
    daemon: Callable[..., Daemon], leaking: Callable[..., int]
) -> None:
    """Full collections of Serial and Parallel confirm a leak; ZGC and Shenandoah report only used memory."""
    tracer = daemon(history={"leak_after_s": 10})
    confirms = {"Serial": True, "Parallel": True, "Z": False, "Shenandoah": False}
    pids = {name: leaking("map", f"-XX:+Use{name}GC", "-DcollectEvery=200") for name in confirms}
    for pid in pids.values():
        tracer.attach(pid)

    def verdicts() -> dict[str, str]:
        return {name: tracer.top(pid)["managed"]["verdict"] for name, pid in pids.items()}

    wait_until(lambda: all(tracer.top(pid)["managed"] for pid in pids.values()), 60 * PATIENCE)
    expected = {name: "leak" if is_confirmed else "growing" for name, is_confirmed in confirms.items()}
    wait_until(lambda: verdicts() == expected, 120 * PATIENCE)


def test_types_on_request(tracer: Daemon, leaking: Callable[..., int]) -> None:
    """The command states its price first; the second count shows which types grow. Nothing remains."""
    pid = leaking("map", "-Xms256m", "-Xmx256m")
    tracer.attach(pid)
    wait_until(lambda: tracer.top(pid)["managed"] is not None, 60 * PATIENCE)
    assert tracer.top(pid)["managed"]["limit_bytes"] == 256 << 20

    with pytest.raises(ControlFailed, match=r"will be stopped for about .* for a walk over all objects"):
        tracer.control("types", "--pid", pid)
    first = json.loads(tracer.control("types", "--pid", pid, "--yes", "--json"))
    again = json.loads(tracer.control("types", "--pid", pid, "--yes", "--json"))

    before, after = (
        next(row for row in counted["types"] if row["type"] == "JavaLeaks$Order")
        for counted in (first, again)
    )
    assert (first["runtime"], first["includes_garbage"], before["change_bytes"]) == ("JVM", True, None)
    assert before["live_bytes"] == 24 * before["live_count"]
    assert after["change_count"] == after["live_count"] - before["live_count"]
    assert not Path(f"/proc/{pid}/root/tmp/.attach_pid{pid}").exists()


def test_who_is_asked_and_nothing_is_left(tracer: Daemon, leaking: Callable[..., int]) -> None:
    """The command states its price first; afterwards the recording has ended, and its file is removed."""
    pid = leaking("map")
    tracer.attach(pid)
    wait_until(lambda: tracer.top(pid)["managed"] is not None, 60 * PATIENCE)

    with pytest.raises(ControlFailed, match=r"sample allocations for 2 s, and then be stopped for about"):
        tracer.control("types", "--pid", pid, "--who", "--for", "2s")
    report = json.loads(tracer.control("types", "--pid", pid, "--who", "--for", "2s", "--yes", "--json"))

    check = [java_home() / "bin/jcmd", str(pid), "JFR.check"]
    assert "No available recordings" in subprocess.check_output(check, text=True)
    assert list(Path("/proc", str(pid), "root/tmp").glob("bpfleakd-*.jfr")) == []
    assert report["sampled_s"] >= 2
    assert report["samples"] == sum(row["samples"] for row in report["survivors"])


def test_who_leaks_in_a_program_that_allocates_slowly(tracer: Daemon, leaking: Callable[..., int]) -> None:
    """Its thread takes few new buffers to allocate from: it is sampled until there is enough, and named."""
    pid = leaking("slowly", "-XX:TLABSize=256k", "-XX:-ResizeTLAB")
    tracer.attach(pid)

    def found() -> dict[str, Any] | None:
        report = json.loads(tracer.control("types", "--pid", pid, "--who", "--for", "3s", "--yes", "--json"))
        named = any(row["function"] == "JavaLeaks$Sessions.remember" for row in report["survivors"])
        return report if named else None

    report = wait_until(found, 120 * PATIENCE)
    assert report["sampled_s"] > 2 * 3
    assert list(Path("/proc", str(pid), "root/tmp").glob("bpfleakd-*.jfr")) == []


# Its classes at /mnt, a private /tmp, another user, pid 1.
IN_ITS_OWN_PLACE = """
mount --bind {classes} /mnt && mount -t tmpfs -o mode=1777 tmpfs /tmp && cd / || exit 1
exec setpriv --reuid=12345 --regid=12345 --clear-groups {java} -Xmx64m -cp /mnt JavaLeaks direct
"""


@pytest.fixture
def contained() -> Iterator[int]:
    """The pid of a service that has its own mount and pid namespaces, and is another user's."""
    java, *_options, classes, _name = map(str, java_program("JavaLeaks"))
    script = IN_ITS_OWN_PLACE.format(java=java, classes=classes)
    unshare = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    with subprocess.Popen(unshare, stdout=subprocess.PIPE) as process:
        # It becomes another user's, and would outlive its parent's death.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            assert process.stdout.readline() == b"ready\n"
            yield int(children.read_text())
        finally:
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)


def test_one_in_a_container_of_another_user(tracer: Daemon, contained: int) -> None:
    """Names, collections and types as of any other JVM; the files for the requests are removed."""
    tracer.attach(contained)

    def is_named() -> bool:
        report = tracer.top(contained)
        heap = report["managed"]
        names = {site["function"] for site in report["sites"]}
        return "JavaLeaks$Buffers.take" in names and heap is not None and heap["collections"] > 0

    wait_until(is_named, 60 * PATIENCE)
    types = json.loads(tracer.control("types", "--pid", contained, "--yes", "--json"))["types"]
    assert "java.nio.DirectByteBuffer" in {row["type"] for row in types}
    assert not Path(f"/proc/{contained}/root/tmp/.attach_pid1").exists()
    assert tracer.top(contained)["process"]["notes"] == []


def test_one_that_may_not_be_asked(
    tracer: Daemon, leaking: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGQUIT would make it print its threads, so it gets none, however its attach mechanism is disabled."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+DisableAttachMechanism")
    pid = leaking("healthy")
    tracer.attach(pid)
    wait_until(lambda: tracer.top(pid)["managed"] is not None, 60 * PATIENCE)

    with pytest.raises(ControlFailed, match="it was started with DisableAttachMechanism"):
        tracer.control("types", "--pid", pid, "--yes")

    assert not any(
        Path(f"/proc/{pid}/root/tmp/{name}{pid}").exists() for name in (".java_pid", ".attach_pid")
    )


def test_one_that_does_not_catch_the_signal(
    tracer: Daemon, leaking: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGQUIT would end it; such a machine listens from its start."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xrs")
    pid = leaking("healthy")
    tracer.attach(pid)

    report = json.loads(tracer.control("types", "--pid", pid, "--yes", "--json"))

    assert "JavaLeaks$Order" in {row["type"] for row in report["types"]}
    assert tracer.top(pid)["process"]["state"] == "traced"


STACKS = 2_000
# Differs from run to run, so bpfleakd omits it.
NUMBERED = re.compile(r"(\$\$Lambda|GeneratedMethodAccessor)\$?\d+(?:/0x[0-9a-f]+)?")


@pytest.mark.long
def test_stacks_are_those_of_the_machine(tracer: Daemon, tmp_path: Path) -> None:
    """Blocks allocated by JNI below interpreted, compiled, inlined, reflective calls: frame by frame."""
    command = [*map(str, java_program("JavaStacks", "libjavastacks.so")), str(STACKS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "ready\n"
            tracer.attach_with_tables(program.pid)
            go_on(program)
            said = {}
            for line in iter(program.stdout.readline, "done\n"):
                if line == "part\n":
                    # New compiled code is known a tick later.
                    tracer.wait_for_ticks(4)
                    go_on(program)
                else:
                    said |= [expected_stack(line)]
            tracer.top_after_tick(program.pid)
            blocks = tracer.blocks(program.pid, "--limit", 100_000)
        finally:
            program.kill()

    assert len(said) == STACKS
    seen = dict(seen_stacks(blocks))
    frames = right = whole = 0
    for size, expected in said.items():
        found, is_whole = seen.get(size, ((), True))
        # A stack of more words than are kept is compared as far as it goes.
        expected = expected if is_whole else expected[: len(found)]
        frames += max(len(expected), len(found))
        right += sum(map(operator.eq, expected, found))
        whole += is_whole and expected == found
    assert right >= 0.99 * frames, f"{right} of {frames} frames"
    # Others lead through code that is a moment old, and end there.
    assert whole >= STACKS // 2, f"{whole} of {STACKS} stacks are whole"


def go_on(program: subprocess.Popen) -> None:
    program.stdin.write("\n")
    program.stdin.flush()


def expected_stack(line: str) -> tuple[int, tuple[str, ...]]:
    """The size of a block, and the methods below getStackTrace, as the program has printed them."""
    size, _own, *frames = line.split()
    return int(size), tuple(NUMBERED.sub(r"\1", frame.rsplit(":", 1)[0]) for frame in frames)


def seen_stacks(blocks: dict[str, Any]) -> Iterator[tuple[int, tuple[tuple[str, ...], bool]]]:
    """For each block of the native method: its size, the methods that called it, whether these are all."""
    for site in blocks["sites"]:
        if any(frame["function"] == "Java_JavaStacks_keep" for frame in site["stack"]):
            native, *callers = [frame["function"] for frame in site["stack"] if frame["kind"] == "jit"]
            assert native == "JavaStacks.keep"
            for block in site["blocks"]:
                yield block["size_bytes"], (tuple(callers), site["truncated"] is None)
