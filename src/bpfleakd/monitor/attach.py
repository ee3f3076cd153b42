"""From a pid to probes in that process.

Order matters, and all of it is undone if a step fails:
  1. The process is identified and held by a pidfd, so that its pid cannot come to mean another.
  2. Its tables are made, stopped, and the walker gets the unwind tables of its files.
  3. The probes are linked. Those already there see calls and record nothing.
  4. Recording starts with one write: no free can be missed between a malloc's probe and its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from bpfleakd import errors
from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.links import Linker, close_all
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.probe_points import FunctionProbe, find_probe_points
from bpfleakd.model import FunctionRole, Mapping, ProbedFunction
from bpfleakd.monitor.unwinding import Unwinding
from bpfleakd.target.allocators import ALLOCATORS, Allocator, allocators_in, loader_in
from bpfleakd.target.mappings import mapped_file, read_mappings
from bpfleakd.target.process import ProcessInfo, check_traceable, read_process

__all__ = ["Attacher", "Attachment"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attached process. `pidfd` and `links` are open descriptors."""

    process: ProcessInfo
    pidfd: int
    links: tuple[int, ...]
    probes: tuple[ProbedFunction, ...]
    mappings: tuple[Mapping, ...]


class Attacher:
    """Attaches and detaches; remembers the probe points of files it has seen."""

    def __init__(self, maps: Maps, linker: Linker, unwinding: Unwinding, live_blocks: int) -> None:
        self._maps = maps
        self._unwinding = unwinding
        self._linker = linker
        self._live_blocks = live_blocks
        self._known_points: dict[tuple[int, ...], list[FunctionProbe]] = {}

    def attach(self, pid: int) -> Attachment:
        """Start recording process `pid`.

        Raises NoSuchProcess, TargetRefused, NoAllocator, BadElf, AccessDenied, CapacityError or
        KernelError; then nothing is left behind.
        """
        pidfd = _hold(pid)
        try:
            process = read_process(pid)
            check_traceable(process, os.getpid(), os.uname().release)
            mappings = read_mappings(pid)
            _refuse_go(process)
            allocators = allocators_in(mappings)
            if not allocators:
                raise _no_allocator(process)
            files = self._files(pid, allocators)
            with contextlib.suppress(errors.TargetError):
                files += self._files(pid, loader_in(mappings))
            links = self._link(pid, files, mappings)
        except BaseException:
            os.close(pidfd)
            raise
        probes = tuple(
            probe
            for _path, points in files
            for probe in points
            if probe.role is not FunctionRole.LIBRARIES_CHANGED
        )
        return Attachment(process, pidfd, tuple(links), probes, mappings)

    def stop(self, attachment: Attachment) -> None:
        """Stop recording and take the breakpoints out; the tables stay to be read."""
        self._maps.set_state(attachment.process.id.pid, RecordingState.STOPPED)
        close_all((*attachment.links, attachment.pidfd))

    def clear(self, attachment: Attachment) -> None:
        """Drop the tables of a process that was stopped."""
        self._clear(attachment.process.id.pid)

    def _clear(self, pid: int) -> None:
        self._maps.remove_process(pid)
        self._unwinding.release(pid)

    def _link(
        self, pid: int, files: Iterable[tuple[str, list[ProbedFunction]]], mappings: Sequence[Mapping]
    ) -> list[int]:
        links: list[int] = []
        self._maps.add_process(pid, self._live_blocks)
        try:
            self._unwinding.follow(pid, mappings)
            for path, points in files:
                links += self._linker.link(path, points, pid)
            if self._maps.process(pid).state is RecordingState.EXECED:
                raise errors.NoSuchProcess(f"process {pid} called exec during the attach", "attach once more")
            self._maps.set_state(pid, RecordingState.RECORDING)
        except BaseException as error:
            close_all(links)
            self._clear(pid)
            if isinstance(error, OSError):
                raise _link_error(pid, error) from error
            raise
        return links

    def _files(
        self, pid: int, allocators: Sequence[tuple[Allocator, Mapping]]
    ) -> list[tuple[str, list[ProbedFunction]]]:
        """The files to probe. One that cannot be understood is left out while there is another."""
        files = []
        failures = []
        for allocator, mapping in allocators:
            try:
                files.append((mapped_file(pid, mapping), self._probes(pid, allocator, mapping)))
            except (errors.BadElf, errors.NoAllocator) as failure:
                log.warning("allocator.left-out", pid=pid, path=mapping.path, reason=failure.message)
                failures.append(failure)
        if failures and not files:
            raise failures[0]
        return files

    def _probes(self, pid: int, allocator: Allocator, mapping: Mapping) -> list[ProbedFunction]:
        path = mapped_file(pid, mapping)
        try:
            points = self._points(path, allocator)
        except FileNotFoundError as error:
            raise errors.NoSuchProcess(f"process {pid} has ended") from error
        roles = {function.name: function.role for function in allocator.functions}
        found = {point.function for point in points}
        missing = [
            function.name
            for function in allocator.functions
            if function.required and function.name not in found
        ]
        if missing:
            raise errors.NoAllocator(
                f"{mapping.path} of process {pid} does not define {', '.join(missing)}",
                "it has the name of an allocator, but is not one that is known",
            )
        module = mapping.path.rsplit("/", 1)[-1]
        return [
            ProbedFunction(
                allocator.name, point.function, roles[point.function], module, point.offset, point.emulated
            )
            for point in points
        ]

    def _points(self, path: str, allocator: Allocator) -> list[FunctionProbe]:
        status = os.stat(path)
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if identity not in self._known_points:
            releases = [f.name for f in allocator.functions if f.role is FunctionRole.RELEASE]
            entries = [f.name for f in allocator.functions if f.name not in releases]
            self._known_points[identity] = find_probe_points(path, entries, releases)
        return self._known_points[identity]


def _hold(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise errors.NoSuchProcess(f"there is no process {pid}", "`ps -e` lists those that exist") from error
    except OSError as error:
        # A tid: read_process says whose. ENOENT since Linux 6.16.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            read_process(pid)
        raise errors.KernelError(f"process {pid} cannot be held by a pidfd: {error.strerror}") from error


def _refuse_go(process: ProcessInfo) -> None:
    """Go moves its stacks, with the return addresses that a return probe put there."""
    pid = process.id.pid
    try:
        with ElfImage.open(f"/proc/{pid}/exe") as image:
            is_go = image.is_go
    except OSError as error:
        raise errors.NoSuchProcess(f"process {pid} has ended, or has no executable file") from error
    if is_go:
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) is a Go program",
            "Go moves its stacks, which return probes do not survive; its own pprof heap profile shows leaks",
        )


def _no_allocator(process: ProcessInfo) -> errors.NoAllocator:
    known = ", ".join(allocator.name for allocator in ALLOCATORS)
    return errors.NoAllocator(
        f"process {process.id.pid} ({process.comm}) has no allocator that is known mapped (known: {known})",
        "a statically linked program, or one with an allocator of its own, cannot be traced yet",
    )


def _link_error(pid: int, error: OSError) -> errors.BpfleakdError:
    if error.errno in (errno.ESRCH, errno.ENOENT):
        return errors.NoSuchProcess(f"process {pid} ended during the attach")
    if error.errno in (errno.EPERM, errno.EACCES):
        return errors.AccessDenied(
            f"the kernel refuses probes in process {pid}: {error.strerror}",
            "the daemon needs CAP_SYS_ADMIN and CAP_SYS_PTRACE; `bpfleakctl doctor` shows what it has",
        )
    hint = ""
    if error.errno == errno.EINVAL:
        # bcc 0.26 passes a reference counter's offset that it never set, and the kernel wants the same
        # one from everybody at that address (dmesg: "ref_ctr_offset mismatch").
        hint = "does another tracer probe the same functions? Older bcc tools (memleak) do not allow others"
    return errors.KernelError(f"probes in process {pid} failed: {error.strerror or error}", hint)
