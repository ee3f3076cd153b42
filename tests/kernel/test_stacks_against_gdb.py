"""Every stack is the one that gdb sees: frame by frame, at the same moment, in programs old and new.

Programs stop right behind an allocation; sample.h says how. A run is small unless VERIFY_STACKS says how
many samples of each program are wanted (make verify-stacks).
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from .building import build_directory
from .daemons import Daemon
from .debugger import Debugger, Sample, expect_same_stacks
from .machine import need_tool
from .waiting import wait_until

SEED = 23
WANTED = int(os.environ.get("VERIFY_STACKS", "0"))
TIMEOUT_S = 60 + WANTED / 10

# gdb takes what lies under the first function of a context for further callers.
NOT_COMPARED = {"context"}
# Keeps a lock, which would block another thread on the same path forever.
ONCE_A_PATH = "dl_iterate_phdr"
LONGEST_PATH = 9


class Target:
    """A program with pipes, which is killed at the end."""

    def __init__(self, *command: str | Path, says_ready: bool = True) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if says_ready else subprocess.DEVNULL,
        )
        if says_ready:
            assert self.process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def go(self) -> None:
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in filter(None, (self.process.stdin, self.process.stdout)):
            stream.close()


@pytest.fixture
def target() -> Iterator[Callable[..., Target]]:
    started: list[Target] = []

    def start(*command: str | Path, says_ready: bool = True) -> Target:
        started.append(Target(*command, says_ready=says_ready))
        return started[-1]

    yield start
    for program in started:
        program.kill()


@pytest.fixture
def debugger(tmp_path) -> Iterator[Callable[..., Debugger]]:
    started: list[Debugger] = []

    def start(pid: int, count: int, sampler_gap: int = 0) -> Debugger:
        started.append(Debugger(pid, count, tmp_path, sampler_gap))
        return started[-1]

    yield start
    for gdb in started:
        gdb.kill()


@pytest.fixture(scope="module")
def programs() -> Path:
    return build_directory("stacks")


def attach(tracer: Daemon, pid: int) -> None:
    """Attach and have all unwind tables: a slow machine may take longer for them than an attach waits."""
    tracer.attach(pid)
    if "unwind.not-ready" in tracer.log:
        wait_until(lambda: tracer.process(pid)["process"]["attached_s"] > 10, 20)


def random_paths(hops: Sequence[str], count: int) -> list[str]:
    """Paths of hops, the same ones every time: each alone, then more and more of them mixed."""
    choice = random.Random(SEED)
    paths = [hop for hop in hops if hop not in NOT_COMPARED]
    hops = list(paths)
    while len(paths) < count:
        path = choice.choices(hops, k=choice.randint(2, LONGEST_PATH))
        if path.count(ONCE_A_PATH) <= 1:
            paths.append(" ".join(path))
    return paths[: max(count, len(hops))]


@pytest.mark.parametrize("walker", ["may_goto", "tail_calls"])
def test_generated_paths(daemon, target, debugger, programs, tmp_path, walker):
    """Through every kind of frame in random order: libraries, callbacks, signals, exceptions, threads."""
    # given a program with paths to walk, the last third of them while it exits
    hops = subprocess.run([programs / "paths"], capture_output=True, text=True, check=True).stdout.split()
    paths = random_paths(hops, WANTED or 150)
    file = tmp_path / "paths"
    lines = [*paths[: len(paths) * 2 // 3], "return", *paths[len(paths) * 2 // 3 :]]
    file.write_text("".join(f"{line}\n" for line in lines))
    program = target(programs / "paths", file)
    tracer = daemon(walker=walker)
    attach(tracer, program.pid)

    # when gdb stops it at the end of each
    gdb = debugger(program.pid, len(paths))
    program.go()
    stacks = gdb.samples(TIMEOUT_S)

    # then both have seen the same
    samples = [Sample(stack, path) for stack, path in zip(stacks, paths, strict=True)]
    expect_same_stacks(tracer.top_after_tick(program.pid), samples)


@pytest.mark.long
def test_python(daemon, target, debugger, programs, tmp_path):
    """An interpreter, called back from sorting, parsing, SQLite and C by way of ctypes, in threads too."""
    count = WANTED or 100
    preload = f"LD_PRELOAD={programs / 'libsampler.so'}"
    script = Path(__file__).parent.parent / "workloads" / "stacks" / "paths.py"
    # It states a version whose frames are not read (Py_Version), so the stack has the interpreter's own
    # frames.
    interpreter = shutil.copy2(Path(sys.executable).resolve(), tmp_path / "interpreter")
    stated, other = (version.to_bytes(8, "little") for version in (sys.hexversion, 0x030800F0))
    # From 3.13 on, the layout that it states has it, too.
    assert stated in interpreter.read_bytes()
    interpreter.write_bytes(interpreter.read_bytes().replace(stated, other))
    program = target("env", preload, interpreter, script)
    tracer = daemon()
    attach(tracer, program.pid)

    gdb = debugger(program.pid, count, sampler_gap=5)
    program.go()
    stacks = gdb.samples(TIMEOUT_S)

    program.process.send_signal(signal.SIGSTOP)
    expect_same_stacks(tracer.top_after_tick(program.pid), [Sample(stack) for stack in stacks])


class Load:
    """Clients that talk to a server on a unix socket until told to stop."""

    def __init__(self, path: Path, clients: Sequence[Callable[[BinaryIO, int], None]]) -> None:
        self._path = path
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(client,), daemon=True) for client in clients
        ]

    def wait_for_server(self) -> None:
        wait_until(self._path.exists)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _run(self, client: Callable[[BinaryIO, int], None]) -> None:
        for number in itertools.count():
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self._path))
                with connection.makefile("rwb") as stream:
                    for turn in range(20):
                        if self._is_over.is_set():
                            return
                        client(stream, 20 * number + turn)


def ask_redis(stream: BinaryIO, number: int) -> None:
    """Commands of all kinds: strings, containers, sorting, scripts."""
    n, text = b"%d" % (number % 97), b"x" * (number * 37 % 3001)
    script = b"local t = {} for i = 1, 9 do t[i] = ARGV[1] .. i end return redis.call('SET', KEYS[1], t[9])"
    commands = (
        (b"SET", b"key" + n, text),
        (b"APPEND", b"key" + n, text),
        (b"HSET", b"hash", n, text),
        (b"ZADD", b"sorted", n, text),
        (b"SADD", b"set", text),
        (b"LPUSH", b"list", n, text),
        (b"SORT", b"list", b"ALPHA", b"LIMIT", b"0", b"5"),
        (b"XADD", b"stream", b"*", b"field", text),
        (b"EVAL", script, b"1", b"lua" + n, text),
        (b"MULTI",),
        (b"INCR", b"counter"),
        (b"EXEC",),
        (b"INFO",),
        (b"FLUSHALL",) if number % 7 == 0 else (b"PING",),
    )
    for command in commands:
        stream.write(b"*%d\r\n" % len(command))
        stream.writelines(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
    stream.write(b"*2\r\n$4\r\nECHO\r\n$3\r\nend\r\n")
    stream.flush()
    while (line := stream.readline()) != b"end\r\n":
        assert line, "redis-server closed the connection"


def ask_memcached(stream: BinaryIO, number: int) -> None:
    """Values of all sizes, and the statistics."""
    value = b"v" * (number * 37 % 5003)
    stream.write(b"set key-%d 0 0 %d\r\n%b\r\n" % (number, len(value), value))
    stream.write(b"get key-%d\r\nstats\r\n" % number)
    stream.flush()
    for _answer in ("get", "stats"):
        while (line := stream.readline()) != b"END\r\n":
            assert line, "memcached closed the connection"


def compare_under_load(tracer: Daemon, program: Target, debugger, load: Load) -> None:
    """Let gdb take samples while clients ask, and compare."""
    count = WANTED or 100
    load.wait_for_server()
    attach(tracer, program.pid)
    with load:
        stacks = debugger(program.pid, count, sampler_gap=11).samples(TIMEOUT_S)
    expect_same_stacks(tracer.top_after_tick(program.pid), [Sample(stack) for stack in stacks])


@pytest.mark.long
def test_redis_under_load(daemon, target, debugger, programs, tmp_path):
    """An event loop with an interpreter in it (Lua). Debian's uses jemalloc: here it gets the C library's."""
    path, server = tmp_path / "redis.sock", need_tool("redis-server")
    if b"mallocx" in Path(server).read_bytes():
        pytest.skip("this Redis (8) calls functions of jemalloc that the C library lacks")
    preload = f"LD_PRELOAD={programs / 'libsampler.so'}:libc.so.6"
    options = ("--port", "0", "--unixsocket", path, "--save", "", "--dir", tmp_path)
    program = target("env", preload, server, *options, says_ready=False)

    compare_under_load(daemon(), program, debugger, Load(path, [ask_redis, ask_redis]))


def test_memcached_under_load(daemon, target, debugger, programs, tmp_path):
    """Threads that allocate at the same time."""
    path = tmp_path / "memcached.sock"
    preload = f"LD_PRELOAD={programs / 'libsampler.so'}"
    options = ("-u", "root", "-s", path, "-t", "4", "-m", "64")
    program = target("env", preload, need_tool("memcached"), *options, says_ready=False)

    compare_under_load(daemon(), program, debugger, Load(path, [ask_memcached] * 4))
