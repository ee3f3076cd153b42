"""C++ and Rust names as their authors wrote them, by a c++filt that stays open.

c++filt (binutils 2.37 or later, for Rust v0) answers every line at once, 7 µs a name. It is asked one
name at a time and given a time limit and a memory limit: a hostile name of 200 characters can stand for
gigabytes of text. Names that it does not know stay as they are.

`-i` gives what `nm -C` and `addr2line -C` give: std::string for the standard strings, Rust paths without
hashes.
"""

from __future__ import annotations

import os
import re
import resource
import select
import subprocess
import time
from collections.abc import Collection

import structlog

from bpfleakd.printable import printable, shortened
from bpfleakd.symbols.bounded_cache import BoundedCache

__all__ = ["Demangler"]

log = structlog.get_logger()

NAME_LIMIT_CHARACTERS = 4_096
ANSWER_LIMIT_BYTES = 64 << 10
ANSWER_TIMEOUT_S = 2.0
MEMORY_LIMIT_BYTES = 512 << 20

# A child that was killed is started again, but not by a program that does it on purpose all the time.
FAILURES_MAX = 20

# Itanium C++ and legacy Rust; the same with the underscore of other platforms' compilers; Rust v0.
_MANGLED = re.compile(r"_Z[\w.$@]+|__Z[\w.$@]+|_R[\w.$@]+", re.ASCII)
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}(?=$| \[clone )")


class Demangler:
    """Demangles names. `failures` counts those on which c++filt failed or took too long."""

    def __init__(self, program: str = "c++filt", cache_limit: int = 4_096) -> None:
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None
        self._known: BoundedCache[str, str] = BoundedCache(cache_limit)
        self._available = True
        self.failures = 0

    def demangle_all(self, names: Collection[str]) -> dict[str, str]:
        """Return each name's readable form, which is the name itself where there is no other."""
        return {name: self._demangled(name) for name in names}

    def close(self) -> None:
        """End the child. It is started again if the demangler is used after that."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()

    def _demangled(self, name: str) -> str:
        if not _MANGLED.fullmatch(name) or len(name) > NAME_LIMIT_CHARACTERS:
            return name
        readable = self._known.get(name)
        if readable is None:
            readable = self._readable(self._answer(name), name)
            self._known.put(name, readable)
        return readable

    def _readable(self, answer: str, name: str) -> str:
        if answer == name or answer == name[1:]:
            return name
        return shortened(printable(_RUST_HASH.sub("", answer)), NAME_LIMIT_CHARACTERS)

    def _answer(self, name: str) -> str:
        child = self._running()
        if child is None:
            return name
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            os.write(child.stdin.fileno(), name[name.startswith("__Z") :].encode() + b"\n")
            return _read_line(child.stdout.fileno(), ANSWER_TIMEOUT_S).decode(errors="surrogateescape")
        except OSError:
            self.failures += 1
            self.close()
            if self.failures == FAILURES_MAX:
                self._give_up(f"{self._program} failed {self.failures} times")
            return name

    def _running(self) -> subprocess.Popen[bytes] | None:
        if self._child is None and self._available:
            try:
                self._child = _start(self._program)
            except OSError as error:
                self._give_up(f"{self._program} cannot be run: {error.strerror}")
        return self._child

    def _give_up(self, reason: str) -> None:
        self._available = False
        log.warning("demangle.unavailable", reason=reason, hint="install binutils: C++ names stay mangled")


def _start(program: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [program, "-i"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
    )
    resource.prlimit(child.pid, resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    return child


def _read_line(descriptor: int, timeout_s: float) -> bytes:
    """Read up to a line break. Raises `OSError` at the end of the file, of the time or of the limit."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    line = b""
    deadline_s = time.monotonic() + timeout_s
    while not line.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            raise TimeoutError("no answer in time")
        part = os.read(descriptor, ANSWER_LIMIT_BYTES)
        line += part
        if not part or len(line) > ANSWER_LIMIT_BYTES:
            raise OSError("no whole answer")
    return line[:-1]
