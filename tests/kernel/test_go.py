"""Go programs, by their runtime's own records: real programs, of each installed Go version."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.clean_programs import prometheus

from bpfleakd.model.site import SiteKey
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.runtimes.go.pacer import Pacing
from bpfleakd.runtimes.go.program import GoProgram, find_go
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.go.profile import GoProfile

from .daemons import ControlFailed
from .machine import cannot_run
from .waiting import wait_until
from .workloads import BUILD, SOURCES, Workload, building_alone

RATE = 524_288
# Distributions' packages unpacked below build/, to try other releases than the one that is installed.
OTHERS = Path(__file__).parents[2] / "build" / "go"

FORMS: dict[str, list[str]] = {
    "plain": [],
    "stripped": ["-ldflags=-s -w"],
    "pie": ["-buildmode=pie", "-ldflags=-s -w"],
}
LIBRARIES = {
    "library": ["-buildmode=c-shared", "-ldflags=-s -w"],
    "archive": ["-buildmode=c-archive"],
    "plugin": ["-buildmode=plugin"],
}
# A program in another language that loads a Go library and calls it on request.
HOST = """
import ctypes, sys
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "load":
        library = ctypes.CDLL(rest[0])
    else:
        getattr(library, word)(*(int(one) if one.isdigit() else one.encode() for one in rest))
    print("ok", flush=True)
"""


def compilers() -> list[str]:
    """The Go that is installed, and others below build/go."""
    found = [shutil.which("go"), *map(str, sorted(OTHERS.glob("*/bin/go")))]
    return [path for path in found if path] or ["go"]


def built(program: str, form: str, go: str | None = None) -> Path:
    """A program of tests/workloads/go, made by the Go that is installed."""
    go = shutil.which(go or "go")
    if go is None:
        cannot_run("Go is not installed")
    directory = BUILD / "go" / Path(go).resolve().parents[1].name
    path = directory / (f"{program}-{form}.a" if form == "archive" else f"{program}-{form}")
    with building_alone():
        directory.mkdir(parents=True, exist_ok=True)
        command = [go, "build", "-o", path, *(FORMS | LIBRARIES)[form], f"./{program}"]
        done = subprocess.run(command, cwd=SOURCES / "go", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


def linked(archive: Path, *flags: str) -> Path:
    """A program in C with an archive of Go."""
    path = archive.with_name("".join(("archive-host", *flags)))
    source = SOURCES / "go" / "archive_host.c"
    command = ["gcc", "-g", *flags, f"-I{archive.parent}", source, archive, "-o", path, "-lpthread"]
    with building_alone():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


class Service(Workload):
    """A program that prints its address and obeys HTTP requests."""

    def wait_ready(self, timeout_s: float = 10.0) -> None:
        self.address = self._read_line(timeout_s)

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
            text: str = answer.read().decode()
        return text


class Obedient(Workload):
    """A program that obeys lines, and answers each."""

    def tell(self, *words: object) -> None:
        self._write(" ".join(map(str, words)))
        assert self._read_line(30) == "ok"


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """A factory of running programs, which are killed at the end."""
    started: list[Workload] = []

    def start(kind: type[Workload], *command: Path | str) -> Workload:
        started.append(kind(command))
        return started[-1]

    yield start
    for program in started:
        program.kill()


@pytest.fixture
def opened() -> Iterator[Callable[[int], GoProgram]]:
    """A factory of Go programs that are read, and closed at the end."""
    programs: list[GoProgram] = []

    def open_one(pid: int) -> GoProgram:
        program = find_go(open_code(pid, read_mappings(pid))).program
        assert program is not None
        programs.append(program)
        return program

    yield open_one
    for program in programs:
        program.close()


def of_pprof(text: str) -> Counter[tuple[Any, ...]]:
    """Raw figures of each bucket of /debug/pprof/heap?debug=1: live blocks and bytes, all, and the stack."""
    rows = re.finditer(r"^(\d+): (\d+) \[(\d+): (\d+)\] @(.*)$", text, re.MULTILINE)
    found = (
        (*map(int, row.groups()[:4]), tuple(int(address, 16) for address in row[5].split())) for row in rows
    )
    return Counter(bucket for bucket in found if bucket[2])


def of_memory(program: GoProgram) -> Counter[tuple[Any, ...]]:
    """The same, read from outside."""
    profile = program.heap_profile()
    read = profile.buckets()
    assert profile.damaged == 0
    found: Counter[tuple[Any, ...]] = Counter()
    for row, size, allocs, frees in zip(
        read.rows.tolist(), read.sizes.tolist(), read.allocs.tolist(), read.frees.tolist(), strict=True
    ):
        live, stack = allocs - frees, profile.stack(read.stack_ids[row])
        if allocs:
            found[live, live * size, allocs, allocs * size, stack] += 1
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("go", compilers())
def test_raw_figures_and_names_are_those_of_pprof(run, opened, go: str, form: str) -> None:
    """For every stack, whatever was stripped, wherever the program was loaded."""
    service = run(Service, built("service", form, go))
    service.ask("/remember?count=3000&bytes=4096")
    service.ask("/remember?count=300000&bytes=40")
    service.ask("/park?count=1000")
    service.ask("/forget")
    service.ask("/remember?count=4000&bytes=8192")
    service.ask("/collect")
    program = opened(service.pid)
    ours = of_memory(program)
    text = service.ask("/debug/pprof/heap?debug=1")
    assert ours == of_pprof(text)
    # The sample has about 64 blocks of 32 MiB.
    assert sum(bucket[0] for bucket in ours) > 20
    # "#	0x648fa4	main.newOrder+0xe4	/src/main.go:39"
    named = re.findall(r"^#\t0x([0-9a-f]+)\t(\S+)\+0x[0-9a-f]+\s+(\S+):(\d+)$", text, re.MULTILINE)
    assert any(name == "main.newOrder" for _pc, name, _file, _line in named)
    for address, name, file, line in named:
        method = program.method(int(address, 16) + 1)
        assert method is not None
        # pprof leaves out type arguments.
        shown = re.sub(r"\[.*\]", "[...]", method.name)
        assert (shown, method.location) == (name, f"{file}:{line}")


@pytest.mark.parametrize("go", compilers())
def test_goroutines_by_place_and_reason(run, opened, go: str) -> None:
    """All of them, as the runtime counts them itself."""
    service = run(Service, built("service", "stripped", go))
    service.ask("/park?count=1500")
    program = opened(service.pid)
    goroutines = program.goroutines()
    assert goroutines is not None
    reading = wait_until(
        lambda: (
            (read := goroutines.read())
            and any(states["chan receive"] == 1500 for states in read.states.values())
            and read
        )
    )
    (parked,) = (place for place, states in reading.states.items() if states["chan receive"] == 1500)
    statement = program.method(parked.go_address)
    assert statement is not None
    assert statement.name == "main.park"
    assert statement.location is not None
    assert statement.location.endswith("service/main.go:65")
    assert reading.left_out == 0


@pytest.mark.parametrize("go", compilers())
def test_when_the_collector_runs(run, opened, go: str) -> None:
    """As it is now, whether the environment or the program has set it."""
    program = run(Obedient, built("pacing", "stripped", go))
    pacer = opened(program.pid).pacer()
    assert pacer is not None
    assert pacer.read() == Pacing(100, None)
    program.tell("percent", 37)
    assert pacer.read() == Pacing(37, None)
    program.tell("percent", -1)
    assert pacer.read() == Pacing(None, None)
    program.tell("limit", 1 << 30)
    assert pacer.read() == Pacing(None, 1 << 30)


def test_another_rate_is_no_growth(run, opened) -> None:
    """Blocks count at the rate at which they were drawn, in both directions."""
    program = run(Obedient, built("pacing", "stripped"))
    profile = GoProfile(opened(program.pid), program.pid, time.monotonic_ns)

    def live_bytes(rate: int, *step: object) -> int:
        program.tell("rate", rate)
        program.tell(*step)
        program.tell("collect")
        keys, counters = profile.read_now()
        for key, row in zip(keys, counters.tolist(), strict=True):
            functions = [frame.function for frame in profile.named_stack(key).stack.frames]
            # Only its own allocations: the runtime may begin a collection in between.
            if functions[:1] == ["main.keep"]:
                kept[key] = row[COUNTERS.index("live_bytes")]
        return sum(kept.values())

    kept: dict[SiteKey, int] = {}
    assert live_bytes(1, "keep", 1000, 4096) == 1000 * 4096
    assert live_bytes(RATE, "garbage", 10, 4096) == 1000 * 4096
    assert abs(live_bytes(RATE, "keep", 64, 1 << 20) - 1000 * 4096 - (64 << 20)) < 16 << 20
    before = sum(kept.values())
    assert live_bytes(1, "keep", 100, 4096) == before + 100 * 4096
    assert any("has changed the rate" in note for note in profile.notes)


@pytest.mark.long
def test_a_heap_that_is_not_collected_does_not_leak(daemon, run) -> None:
    """The collector is off: all that is known is that the memory grows."""
    tracer = daemon(history={"leak_after_s": 10})
    program = run(Obedient, built("pacing", "stripped"))
    program.tell("percent", -1)
    tracer.attach(program.pid)

    def grown() -> dict[str, Any] | None:
        program.tell("garbage", 20, 1 << 16)
        report: dict[str, Any] = tracer.top(program.pid)
        assert [site["function"] for site in report["sites"] if site["verdict"] == "leak"] == []
        assert report["process_verdict"]["verdict"] != "leak"
        return report if report["process"]["attached_s"] > 12 else None

    report = wait_until(grown, 60)
    assert re.search(
        r"garbage collector is off \(GOGC=off, or .*\); its Go heap has not been collected for \d+s",
        " ".join(report["process"]["notes"]),
    )


def check_library(host: Obedient, program_of: Callable[[int], GoProgram], profile: Path) -> GoProgram:
    """That the figures and names of a library's heap are those of pprof."""
    host.tell("KeepGo", 3000, 4096)
    host.tell("Collect")
    host.tell("Profile", profile)
    program = program_of(host.pid)
    # Writing the profile allocates, and that profile does not include these allocations.
    assert of_pprof(profile.read_text()) - of_memory(program) == Counter()
    ours = {
        method.name for bucket in of_memory(program) for one in bucket[4] if (method := program.method(one))
    }
    assert "main.remember" in ours
    return program


@pytest.mark.parametrize("go", compilers())
def test_a_library_for_another_language(run, opened, tmp_path: Path, go: str) -> None:
    """Its figures and names are those of pprof, as of a program."""
    host = run(Obedient, sys.executable, "-c", HOST)
    host.tell("load", built("library", "library", go))
    assert check_library(host, opened, tmp_path / "profile").is_library


@pytest.mark.parametrize("flags", [[], ["-no-pie"], ["-s"]], ids=["pie", "fixed", "stripped"])
@pytest.mark.parametrize("go", compilers())
def test_an_archive_in_a_program_in_c(run, opened, tmp_path: Path, go: str, flags: list[str]) -> None:
    """The program is the linker's, and Go's runtime is a part of it."""
    host = run(Obedient, linked(built("library", "archive", go), *flags))
    assert check_library(host, opened, tmp_path / "profile").is_library


@pytest.mark.parametrize("go", compilers())
def test_a_plugin_has_names(run, opened, go: str) -> None:
    """Go code in another file, which uses the program's runtime."""
    program = run(Obedient, built("plugs", "plain", go))
    program.tell("load", built("plugged", "plugin", go))
    program.tell("keep", 500, 1 << 16)
    program.tell("collect")
    # Nearly all stacks begin in the plugin.
    found = opened(program.pid)
    assert [module.name for module in found.modules] == ["plugs-plain", "plugged-plugin"]
    names = {method.name for bucket in of_memory(found) for one in bucket[4] if (method := found.method(one))}
    assert {"example.org/shop/plugged.remember", "main.main"} <= names


@pytest.mark.long
def test_a_library_that_is_loaded_later(daemon, run) -> None:
    """The Go heap of a Python program, by the library's own records, beside C memory, which is recorded."""
    tracer = daemon()
    host = run(Obedient, sys.executable, "-c", HOST)
    tracer.attach(host.pid)
    host.tell("load", built("library", "library"))
    host.tell("KeepGo", 500, 1 << 16)

    def site_of(kind: str, function: str) -> dict[str, Any] | None:
        host.tell("Collect")
        for one in tracer.top(host.pid)["sites"]:
            if one["kind"] == kind and function in [frame["function"] for frame in one["stack"]]:
                return one
        return None

    # By then the tables of the library are there, too, by which its C code is walked.
    go_site = wait_until(lambda: site_of("go-heap", "main.remember"), 60)
    assert abs(go_site["live_bytes"] - (500 << 16)) < 5 * go_site["live_bytes_stderr"]
    host.tell("KeepC", 300, 4096)
    c_site = wait_until(lambda: site_of("heap", "runtime.asmcgocall"), 60)
    assert (c_site["live_count"], c_site["live_bytes"], c_site["truncated"]) == (300, 300 * 4096, "go-stack")
    process = tracer.process(host.pid)["process"]
    assert process["mode"] == "exact"
    assert any("of kind go-heap are estimates" in note for note in process["notes"])
    tracer.detach(host.pid)
    assert host.is_alive


def test_a_leak_of_memory_and_of_goroutines(daemon, run) -> None:
    """Attached like any other, with verdicts, and the answers that are made of call sites."""
    tracer = daemon(history={"leak_after_s": 10})
    service = run(Service, built("service", "stripped"))
    service.ask("/remember?count=500&bytes=65536")
    service.ask("/collect")
    tracer.attach(service.pid)
    first = tracer.top(service.pid)
    # It makes two blocks; one of the small ones may have been drawn, too.
    known = max(
        (site for site in first["sites"] if site["function"] == "main.newOrder"),
        key=lambda site: site["live_bytes"],
    )
    assert known["kind"] == "go-heap"
    assert abs(known["live_bytes"] - (500 << 16)) < 5 * known["live_bytes_stderr"]
    assert not first["process"]["growth_bytes_per_s"]

    def has_leaked() -> dict[str, Any] | None:
        service.ask("/remember?count=30&bytes=65536")
        service.ask("/park?count=10")
        service.ask("/collect")
        report: dict[str, Any] = tracer.top(service.pid)
        leaks = [site["function"] for site in report["sites"] if site["verdict"] == "leak"]
        goroutines = "goroutine leak: " in report["process_verdict"]["reason"]
        return report if "main.newOrder" in leaks and goroutines else None

    report = wait_until(has_leaked, 90)
    process = report["process"]
    assert (process["mode"], process["sample_interval_bytes"], process["notes"]) == ("go-profile", RATE, [])
    leak = max(
        (site for site in report["sites"] if site["verdict"] == "leak"), key=lambda site: site["live_bytes"]
    )
    functions = [frame["function"] for frame in leak["stack"]]
    assert functions[functions.index("main.newOrder") :][1] == "main.(*store).remember"
    assert leak["location"].endswith("service/main.go:39")
    assert leak["live_bytes_stderr"] > 0
    assert leak["growth_bytes_per_s"] > 0
    said = report["process_verdict"]["reason"]
    assert re.search(r"goroutine leak: [\d,]+ more in \d+s, started at main\.park main\.go:65", said)
    assert said.endswith("waiting on chan receive")
    assert report["goroutines"][0]["verdict"] == "leak"
    # A site is known by its stack in every answer.
    assert "main.newOrder" in tracer.control("export", "--format", "collapsed", "--pid", service.pid)
    assert "main.newOrder" in tracer.control("diff", "--pid", service.pid, "--from", "10s")
    assert any(
        use["use"] == "heap"
        for use in json.loads(tracer.control("maps", "--json", "--pid", service.pid))["uses"]
    )
    service.kill()
    wait_until(lambda: tracer.process(service.pid)["process"]["state"] == "exited")
    assert any(site["function"] == "main.newOrder" for site in tracer.top(service.pid)["sites"])


@pytest.mark.long
def test_a_profile_is_turned_on_and_off_again(daemon, run, opened) -> None:
    """After a yes, over the death of the daemon, until the detach."""
    tracer = daemon()
    program = run(Workload, built("unprofiled", "stripped"))
    rate = opened(program.pid).heap_profile()
    assert rate.rate_bytes == 0
    said = tracer.control("attach", program.pid)
    assert "its Go heap is not visible: the heap profile is off" in said
    assert f"bpfleakctl attach --enable-profile {program.pid}" in said
    assert rate.rate_bytes == 0
    tracer.control("attach", "--enable-profile", "--yes", program.pid)
    assert rate.rate_bytes == RATE
    tracer.kill()
    assert rate.rate_bytes == RATE
    tracer.start()
    wait_until(
        lambda: any(site["function"] == "main.remember" for site in tracer.top(program.pid)["sites"]), 90
    )
    assert tracer.process(program.pid)["process"]["notes"] == []
    tracer.detach(program.pid)
    assert rate.rate_bytes == 0
    assert program.is_alive


@pytest.mark.long
def test_c_beside_moving_stacks(daemon, run) -> None:
    """C allocates on the system's stacks, which never move: return probes there are as safe as anywhere."""
    tracer = daemon()
    program = run(Workload, built("cgo", "plain"))
    tracer.attach(program.pid)

    def c_site() -> dict[str, Any] | None:
        sites = tracer.top(program.pid)["sites"]
        found = [site for site in sites if site["kind"] == "heap" and site["live_count"] > 300]
        # The C library's names may come after the first answers.
        return found[0] if found and found[0]["stack"][0]["function"] else None

    leak = wait_until(c_site, 60)
    functions = [frame["function"] for frame in leak["stack"]]
    assert functions[0] == "malloc"
    assert functions[-1].startswith("runtime.asmcgocall")
    assert leak["truncated"] == "go-stack"
    assert "_Cfunc_leak" in " ".join(filter(None, functions))
    assert leak["live_bytes"] == 4096 * leak["live_count"]
    assert program.is_alive
    tracer.detach(program.pid)
    assert program.is_alive


def test_another_version_is_refused_with_what_it_is(daemon, run, tmp_path: Path) -> None:
    """It is not guessed at, and nothing is done to it."""
    tracer = daemon()
    data = built("unprofiled", "plain").read_bytes()
    version = re.search(
        rb"go1\.\d+(?:\.\d+)?(?=\x00|path|\n|[^\d.])", data[data.index(b"\xff Go buildinf:") :]
    )
    assert version is not None
    later = tmp_path / "later"
    later.write_bytes(data.replace(version[0], b"go1.99".ljust(len(version[0]), b"x")))
    later.chmod(0o755)
    program = run(Workload, later)
    with pytest.raises(ControlFailed, match=r"built with go1\.99x*; supported is Go 1\.18 to 1\.27"):
        tracer.control("attach", program.pid)


@pytest.mark.long
def test_prometheus_under_load(daemon, tmp_path: Path) -> None:
    """Stripped, with cgo, and no leak. `make verdicts` watches it for ten minutes."""
    tracer = daemon(history={"leak_after_s": 10})
    with prometheus() as pid:
        tracer.attach(pid)
        report = wait_until(lambda: (found := tracer.top(pid))["process"]["attached_s"] > 25 and found, 60)
        assert [site["function"] for site in report["sites"] if site["verdict"] == "leak"] == []
        assert any((site["function"] or "").startswith("github.com/prometheus/") for site in report["sites"])
        assert report["losses"]["profile_damaged"] == 0
        assert sum(group["count"] for group in report["goroutines"]) > 10
