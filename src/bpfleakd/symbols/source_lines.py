"""Source lines and inlined functions, from DWARF, by addr2line (binutils).

One child answers for all addresses of a file; it has a time limit and a memory limit, since DWARF of
hostile or merely huge programs takes minutes and gigabytes. A file on which it failed is not tried
again. Its output goes into an anonymous file rather than a pipe, so that nobody waits for anybody and
its size can be limited too.

A wart of binutils (2.40): an inlined function without linkage name (a static one in C) whose code is the
first of the function that holds it is given the holder's name. Its line is right nevertheless.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import structlog

from bpfleakd.printable import printable, shortened
from bpfleakd.symbols.bounded_cache import BoundedCache

__all__ = ["SourceFrame", "SourceLines"]

log = structlog.get_logger()

TEXT_LIMIT_CHARACTERS = 4_096
OUTPUT_LIMIT_BYTES = 8 << 20
BATCH_MAX = 512


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """A function at an address and "file:line" of what it does there; None is not known."""

    function: str | None
    location: str | None


class SourceLines:
    """Asks addr2line and remembers. `failures` counts the children that failed or took too long."""

    def __init__(
        self,
        program: str = "addr2line",
        *,
        timeout_s: float = 10.0,
        memory_limit_bytes: int = 2 << 30,
        cache_limit: int = 8_192,
    ) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._memory_limit_bytes = memory_limit_bytes
        self._known: BoundedCache[tuple[str, int], tuple[SourceFrame, ...]] = BoundedCache(cache_limit)
        self._given_up: BoundedCache[str, bool] = BoundedCache(1_024)
        self._available = True
        self.failures = 0

    def resolve(
        self, path: str, vaddrs: Collection[int], identity: str | None = None
    ) -> dict[int, tuple[SourceFrame, ...]]:
        """Return the frames at each address, the innermost inlined one first; none where nothing is known.

        `path` is the file with the DWARF. `identity` says that another path is the same file (never a
        build-id, which anybody can forge); without it the file is known by its inode and time.
        """
        identity = identity or _identity(path)
        found = {vaddr: self._known.get((identity, vaddr)) for vaddr in vaddrs}
        missing = [vaddr for vaddr, frames in found.items() if frames is None]
        for first in range(0, len(missing), BATCH_MAX):
            batch = missing[first : first + BATCH_MAX]
            if not self._available or self._given_up.get(identity):
                break
            for vaddr, frames in self._ask(path, identity, batch).items():
                found[vaddr] = frames
                self._known.put((identity, vaddr), frames)
        return {vaddr: frames or () for vaddr, frames in found.items()}

    def _ask(self, path: str, identity: str, vaddrs: Sequence[int]) -> dict[int, tuple[SourceFrame, ...]]:
        try:
            output = self._run(path, vaddrs)
        except FileNotFoundError:
            self._available = False
            log.warning("source-lines.unavailable", program=self._program, hint="install binutils")
            return {}
        except (OSError, subprocess.SubprocessError) as error:
            self.failures += 1
            self._given_up.put(identity, True)
            log.warning("source-lines.failed", path=path, reason=str(error))
            return {}
        return dict.fromkeys(vaddrs, ()) | _parse(output, frozenset(vaddrs))

    def _run(self, path: str, vaddrs: Sequence[int]) -> str:
        output = os.memfd_create("source-lines", os.MFD_CLOEXEC)
        try:
            arguments = [self._program, "-a", "-f", "-i", "-C", "-e", path, *map(hex, vaddrs)]
            with subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
            ) as child:
                self._wait(child)
            return os.pread(output, OUTPUT_LIMIT_BYTES, 0).decode(errors="surrogateescape")
        finally:
            os.close(output)

    def _wait(self, child: subprocess.Popen[bytes]) -> None:
        try:
            self._limit(child.pid)
            status = child.wait(self._timeout_s)
        except BaseException:
            child.kill()
            raise
        if status:
            raise subprocess.CalledProcessError(status, self._program)

    def _limit(self, pid: int) -> None:
        memory = (self._memory_limit_bytes, self._memory_limit_bytes)
        try:
            resource.prlimit(pid, resource.RLIMIT_AS, memory)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (OUTPUT_LIMIT_BYTES, OUTPUT_LIMIT_BYTES))
        except ProcessLookupError:
            return  # it has ended already


def _identity(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return path
    return f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}:{status.st_size}"


def _parse(output: str, vaddrs: frozenset[int]) -> dict[int, tuple[SourceFrame, ...]]:
    """Read groups of a line with the address and pairs of a function's line and a location's line."""
    frames: dict[int, list[SourceFrame]] = {}
    current: list[SourceFrame] = []
    lines = iter(output.split("\n"))
    for line in lines:
        vaddr = _address(line)
        if vaddr in vaddrs:
            current = frames.setdefault(vaddr, [])
        elif (location := next(lines, None)) is not None:
            current.append(SourceFrame(_text(line, ("", "??")), _location(location)))
    known = SourceFrame(None, None)
    return {vaddr: tuple(found) for vaddr, found in frames.items() if found and found != [known]}


def _address(line: str) -> int | None:
    try:
        return int(line, 16) if line.startswith("0x") else None
    except ValueError:
        return None


def _location(line: str) -> str | None:
    # "/src/a.c:12 (discriminator 3)"; an unknown file is "??", an unknown line "?" or 0.
    place = line.partition(" (discriminator")[0]
    file, _, number = place.rpartition(":")
    return _text(place, ()) if file not in ("", "??") and number not in ("", "?", "0") else None


def _text(text: str, unknown: Collection[str]) -> str | None:
    return None if text in unknown else shortened(printable(text), TEXT_LIMIT_CHARACTERS)
