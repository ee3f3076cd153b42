"""Released programs, and loads that show how fast they are and how long a request takes.

Each leaks: by itself, or because a leak was planted into it (programs/planted.c).
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.kernel.building import build_directory
from tests.kernel.workloads import SOURCES

from bench.launchers import Launcher
from bench.serving import connected, tool
from bench.targets import Target, build_program
from bench.tracing import ended_with_us, free_port

_CONNECTIONS = 8
_KEYS, _VALUE_BYTES = 1_000, 100
_VALGRIND = "valgrind (memcheck)"
_LOOPBACK = "127.0.0.1"
# planted_leak() or planted_call(), of which heaptrack now and then sees only the latter.
_PLANTED = ("planted_",)
_STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """Units of work a second and in all, and what 99 of 100 took at most (None where that says nothing)."""

    per_s: float
    units: float
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Running:
    """A program that waits for work; `load` gives it some for about so many seconds."""

    pid: int
    load: Callable[[float], Load]


@dataclass(frozen=True, slots=True)
class Program:
    """How to start one. `leaks` are the functions that leak, each as much as the others.

    `unit` is what `Load.per_s` counts; `library` its allocator, by the name of the file. What ends with its
    work (`once`) waits before main() for its only load. `not_under` are ways that are not tried, and why.
    """

    name: str
    unit: str
    leaks: tuple[str, ...]
    start: Callable[[Launcher], contextlib.AbstractContextManager[Running]]
    library: str = "libc.so.6"
    once: bool = False
    not_under: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def _memcached(launcher: Launcher) -> Iterator[Running]:
    port = free_port()
    command = [tool("memcached"), "-u", "root", "-l", _LOOPBACK, "-p", port, "-m", 64, "-t", 2]

    def load(seconds: float) -> Load:
        loader = [build_program("memcached_load"), port, seconds, _CONNECTIONS]
        per_s, p99_ms = _output(loader).split()
        return Load(float(per_s), float(per_s) * seconds, float(p99_ms))

    with _process(_planted(launcher, "memcached").command(command)) as process:
        connected(port).close()
        yield Running(process.pid, load)


@contextlib.contextmanager
def _redis(launcher: Launcher) -> Iterator[Running]:
    port = free_port()
    command = [tool("redis-server"), "--port", port, "--save", "", "--appendonly", "no"]
    benchmark = [tool("redis-benchmark"), "--csv", "-p", port, "-t", "set", "-c", _CONNECTIONS]
    benchmark += ["-r", _KEYS, "-d", _VALUE_BYTES]

    def requests(number: int) -> Load:
        (row,) = csv.DictReader(_output([*benchmark, "-n", number]).splitlines())
        return Load(float(row["rps"]), number, float(row["p99_latency_ms"]))

    per_s = 0.0

    def load(seconds: float) -> Load:
        nonlocal per_s
        done = requests(int((per_s or requests(1_000).per_s) * seconds) + 100)
        per_s = done.per_s
        return done

    with _process(_planted(launcher, "redis-server").command(command)) as process:
        connected(port).close()
        yield Running(process.pid, load)


@contextlib.contextmanager
def _nginx(launcher: Launcher) -> Iterator[Running]:
    port = free_port()
    wrk = tool("wrk")

    def load(seconds: float) -> Load:
        whole_s = max(1, round(seconds))
        options = ["-t", 1, "-c", _CONNECTIONS, "-d", f"{whole_s}s", "--latency"]
        said = _output([wrk, *options, f"http://{_LOOPBACK}:{port}/"])
        p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)\b", said)
        per_s = re.search(r"Requests/sec:\s+([\d.]+)", said)
        if not p99 or not per_s:
            raise RuntimeError(f"wrk said something else: {said}")
        p99_ms = float(p99[1]) * {"us": 1e-3, "ms": 1, "s": 1e3}[p99[2]]
        return Load(float(per_s[1]), float(per_s[1]) * whole_s, p99_ms)

    with tempfile.TemporaryDirectory(prefix="bpfleakd-nginx-") as directory:
        Path(directory, "index.html").write_text("x" * 10_000)
        Path(directory, "nginx.conf").write_text(
            "daemon off; master_process off; error_log stderr; pid nginx.pid; events {}\n"
            "http { access_log off; keepalive_requests 100;"
            f" server {{ listen {_LOOPBACK}:{port}; root {directory}; }} }}\n"
        )
        command = [tool("nginx"), "-p", directory, "-c", "nginx.conf"]
        with _process(_planted(launcher, "nginx").command(command)) as process:
            connected(port).close()
            yield Running(process.pid, load)


_PYTHON = """
import json, os, sys, time
zero = os.open("/dev/zero", os.O_RDONLY)
for line in sys.stdin:
    until_s, took_s = time.monotonic() + float(line), []
    ended_s = time.monotonic()
    while not took_s or ended_s < until_s:
        began_s = ended_s
        number = 1 + os.read(zero, 1)[0] + len(took_s) % 50
        json.loads(json.dumps({"number": number, "text": "x" * number, "list": list(range(number))}))
        ended_s = time.monotonic()
        took_s.append(ended_s - began_s)
    print(len(took_s), sorted(took_s)[len(took_s) * 99 // 100] * 1e3, flush=True)
"""


@contextlib.contextmanager
def _python(launcher: Launcher, *, malloc_only: bool = False) -> Iterator[Running]:
    """`malloc_only`: small objects come from malloc, too, instead of Python's own arenas."""
    variables = {**launcher.variables, **({"PYTHONMALLOC": "malloc"} if malloc_only else {})}
    # Not the environment's: memory is to be allocated by this program's own path alone.
    program = os.path.realpath(sys.executable)
    planted = _planted(replace(launcher, variables=variables), Path(program).name)
    # -I would ignore PYTHONMALLOC.
    with _process(planted.command([program, "-P", "-s", "-S", "-c", _PYTHON]), is_asked=True) as process:
        yield Running(process.pid, lambda seconds: _asked(process, seconds))


@contextlib.contextmanager
def _sqlite(launcher: Launcher) -> Iterator[Running]:
    """The shell, which builds a table of 2,000 rows with an index in a file, again and again."""
    sql = (
        "DROP TABLE IF EXISTS t; CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, hash TEXT);"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        " INSERT INTO t SELECT i, 'name ' || i, hex(i * 2654435761 % 4294967296) FROM n;"
        "CREATE INDEX t_hash ON t(hash); SELECT count(*) FROM t;\n"
    )

    def load(seconds: float) -> Load:
        began_s = time.monotonic()
        count = 0
        while time.monotonic() < began_s + seconds:
            assert _answer(process, sql) == "2000"
            count += 1
        return Load(count / (time.monotonic() - began_s), count, None)

    with tempfile.TemporaryDirectory(prefix="bpfleakd-sqlite-") as directory:
        command = [tool("sqlite3"), "-batch", f"{directory}/database"]
        with _process(_planted(launcher, "sqlite3").command(command), is_asked=True) as process:
            # What is kept for good is there before anybody looks: a small cache, and no journal.
            _answer(process, "PRAGMA synchronous=OFF; PRAGMA cache_size=20; PRAGMA journal_mode=OFF;\n")
            _answer(process, sql)
            yield Running(process.pid, load)


@contextlib.contextmanager
def _compiler(launcher: Launcher) -> Iterator[Running]:
    """The compiler proper, on a C file of 300 lines; it stops before main() until the load starts."""
    source = SOURCES / "every_function.c"
    program = _output([tool("gcc"), "-print-prog-name=cc1"]).strip()

    with tempfile.TemporaryDirectory(prefix="bpfleakd-compiler-") as directory:
        preprocessed = Path(directory, "every_function.i")
        subprocess.run([tool("gcc"), "-E", source, "-o", preprocessed], check=True)
        command = [program, "-quiet", "-O2", "-fpreprocessed", preprocessed, "-o", "/dev/null"]
        planted = _planted(launcher, "cc1", stop=True)

        def load(_seconds: float) -> Load:
            process.send_signal(signal.SIGCONT)
            _pid, status, used = os.wait4(process.pid, 0)
            # Popen must not wait for it, too.
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"the compiler ended with {process.returncode}")
            return Load(1 / (used.ru_utime + used.ru_stime), 1, None)

        with _process(planted.command(command)) as process:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            yield Running(process.pid, load)


@contextlib.contextmanager
def _java(launcher: Launcher) -> Iterator[Running]:
    """tests/workloads/runtimes/Shop.java, which leaks through JNI and through Unsafe."""
    home = Path(tool("javac")).resolve().parents[1]
    directory = build_directory("runtimes", "libjavasessions.so", "Shop.class", JAVA_HOME=home)
    command = [home / "bin/java", "-XX:+PreserveFramePointer", "-Xmx64m", "-cp", directory, "Shop", directory]

    def load(seconds: float) -> Load:
        began_s = ended_s = time.monotonic()
        took_s = []
        while ended_s < began_s + seconds:
            asked_s = ended_s
            target.step()
            ended_s = time.monotonic()
            took_s.append(ended_s - asked_s)
        return Load(len(took_s) / (ended_s - began_s), len(took_s), _p99_ms(took_s))

    with contextlib.closing(Target(ended_with_us(*launcher.command(command)))) as target:
        yield Running(target.pid, load)
        target.exit()


PROGRAMS = (
    Program(
        "memcached",
        "requests",
        _PLANTED,
        _memcached,
        not_under={_VALGRIND: "memcached sets a limit of open files that valgrind refuses"},
    ),
    Program("redis", "requests", _PLANTED, _redis, library="libjemalloc.so.2"),
    Program("nginx", "requests", _PLANTED, _nginx),
    Program("sqlite", "tables", _PLANTED, _sqlite),
    Program("python", "JSON documents", _PLANTED, _python),
    Program("python, malloc only", "JSON documents", _PLANTED, partial(_python, malloc_only=True)),
    Program(
        "gcc -O2", "runs", (), _compiler, once=True, not_under={_VALGRIND: "it takes a hundred times as long"}
    ),
    Program(
        "OpenJDK",
        "steps",
        ("session_keep", "Unsafe_AllocateMemory"),
        _java,
        not_under={_VALGRIND: "it does not run OpenJDK as it is"},
    ),
)


def _planted(launcher: Launcher, comm: str, *, stop: bool = False) -> Launcher:
    """The same with a leak in the program of this name."""
    variables: Mapping[str, str] = {**launcher.variables, "PLANTED_IN": comm}
    if stop:
        variables = {**variables, "PLANTED_STOP": "1"}
    return replace(launcher, preload=(*launcher.preload, build_program("libplanted.so")), variables=variables)


@contextlib.contextmanager
def _process(command: list[str], *, is_asked: bool = False) -> Iterator[subprocess.Popen]:
    """A program that is asked by lines on its standard input, or not at all; it is let end by itself."""
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(
        ended_with_us(*command),
        stdin=pipe if is_asked else quiet,
        stdout=pipe if is_asked else quiet,
        stderr=quiet,
        text=True,
    )
    try:
        yield process
    finally:
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
        if not is_asked:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answer(process: subprocess.Popen, question: str) -> str:
    """The last line of what sqlite3 says."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{question}.print --end--\n")
    process.stdin.flush()
    last = ""
    for line in iter(process.stdout.readline, ""):
        if line == "--end--\n":
            return last
        last = line.strip()
    raise RuntimeError(f"sqlite3 ended at: {question}")


def _asked(process: subprocess.Popen, seconds: float) -> Load:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    count, p99_ms = process.stdout.readline().split()
    return Load(int(count) / seconds, int(count), float(p99_ms))


def _p99_ms(took_s: list[float]) -> float:
    return sorted(took_s)[len(took_s) * 99 // 100] * 1e3


def _output(command: list[object]) -> str:
    return subprocess.run(
        ended_with_us(*command), check=True, capture_output=True, text=True, timeout=300
    ).stdout
