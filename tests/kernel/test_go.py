"""Go programs, by the books of their own runtime: real programs, of each Go that is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.clean_programs import prometheus

from bpfleakd.process.mappings import read_mappings
from bpfleakd.runtimes.go.program import GoProgram, open_go_program

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
    path = directory / f"{program}-{form}"
    with building_alone():
        directory.mkdir(parents=True, exist_ok=True)
        command = [go, "build", "-o", path, *FORMS[form], f"./{program}"]
        done = subprocess.run(command, cwd=SOURCES / "go", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


class Service(Workload):
    """A program that says where it serves, and obeys by HTTP."""

    def wait_ready(self, timeout_s: float = 10.0) -> None:
        self.address = self._read_line(timeout_s)

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
            text: str = answer.read().decode()
        return text


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """A factory of running programs, which are killed at the end."""
    started: list[Workload] = []

    def start(kind: type[Workload], path: Path) -> Workload:
        started.append(kind([path]))
        return started[-1]

    yield start
    for program in started:
        program.kill()


@pytest.fixture
def opened() -> Iterator[Callable[[int], GoProgram]]:
    """A factory of Go programs that are read, and closed at the end."""
    programs: list[GoProgram] = []

    def open_one(pid: int) -> GoProgram:
        program = open_go_program(pid, read_mappings(pid))
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
    """Of every stack, whatever was stripped, wherever the program was loaded."""
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
    # Of 32 MiB about 64 blocks are in the sample.
    assert sum(bucket[0] for bucket in ours) > 20
    # "#	0x648fa4	main.newOrder+0xe4	/src/main.go:39"
    named = re.findall(r"^#\t0x([0-9a-f]+)\t(\S+)\+0x[0-9a-f]+\s+(\S+):(\d+)$", text, re.MULTILINE)
    assert any(name == "main.newOrder" for _pc, name, _file, _line in named)
    for address, name, file, line in named:
        method = program.method(int(address, 16) + 1)
        assert method is not None
        assert (method.name, method.location) == (name, f"{file}:{line}")


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
    assert re.search(r"goroutine leak: \d+ more in \d+s, started at main\.park main\.go:65", said)
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
