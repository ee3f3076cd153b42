"""From a pid to probes in that process.

Order matters, and all of it is undone if a step fails:
  1. The process is identified and held by a pidfd, so that its pid cannot come to mean another.
  2. Its tables are made, stopped, and the walker gets the unwind tables of its files.
  3. The probes are linked. Those already there see calls and record nothing.
  4. Recording starts with one write: no free can be missed between a malloc's probe and its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from bpfleakd import errors
from bpfleakd.elf.image import EM_X86_64, ElfImage
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.links import Linker, close_all
from bpfleakd.kernel.maps import Maps
from bpfleakd.model import FunctionRole, Mapping, ProbedFunction
from bpfleakd.monitor.discovery import Discovery, FileId, ProbedFile
from bpfleakd.monitor.unwinding import Unwinding
from bpfleakd.target.allocators import ALLOCATORS
from bpfleakd.target.mappings import read_mappings
from bpfleakd.target.process import ProcessInfo, check_traceable, read_process

__all__ = ["Attacher", "Attachment"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attached process. `pidfd` and `links` are open descriptors; `files` hold the `probes`."""

    process: ProcessInfo
    pidfd: int
    links: tuple[int, ...]
    probes: tuple[ProbedFunction, ...]
    mappings: tuple[Mapping, ...]
    files: frozenset[FileId] = frozenset()


class Attacher:
    """Attaches and detaches."""

    def __init__(self, maps: Maps, linker: Linker, unwinding: Unwinding, live_blocks: int) -> None:
        self._maps = maps
        self._unwinding = unwinding
        self._linker = linker
        self._live_blocks = live_blocks
        self._discovery = Discovery()

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
            files = self._discovery.files(pid, mappings)
            if not any(file.has_allocator for file in files):
                raise _no_allocator(process)
            links = self._link_all(pid, files, mappings)
        except BaseException:
            os.close(pidfd)
            raise
        file_ids = frozenset(file.id for file in files)
        return Attachment(process, pidfd, tuple(links), _shown(files), mappings, file_ids)

    def follow(self, attachment: Attachment, mappings: tuple[Mapping, ...]) -> Attachment:
        """Probe the allocators that have come with new libraries.

        What cannot be probed is left out and logged: the rest of the process goes on being recorded.
        """
        pid = attachment.process.id.pid
        links = list(attachment.links)
        followed: list[ProbedFile] = []
        try:
            files = self._discovery.files(pid, mappings, passed_over=attachment.files)
        except errors.BpfleakdError as error:
            log.warning("allocator.not-followed", pid=pid, reason=str(error))
            return attachment
        for file in files:
            try:
                links += self._linker.link(file.path, file.points, pid)
                followed.append(file)
            except OSError as error:
                module = file.functions[0].module
                log.warning("allocator.not-followed", pid=pid, path=module, reason=str(error))
        for file in followed:
            log.info("allocator.followed", pid=pid, path=file.functions[0].module, probes=len(file.points))
        return replace(
            attachment,
            links=tuple(links),
            probes=attachment.probes + _shown(followed),
            mappings=mappings,
            files=attachment.files | {file.id for file in followed},
        )

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

    def _link_all(self, pid: int, files: Sequence[ProbedFile], mappings: Sequence[Mapping]) -> list[int]:
        links: list[int] = []
        self._maps.add_process(pid, self._live_blocks)
        try:
            self._unwinding.follow(pid, mappings)
            for file in files:
                links += self._linker.link(file.path, file.points, pid)
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


def _shown(files: Sequence[ProbedFile]) -> tuple[ProbedFunction, ...]:
    """The allocators' functions; the dynamic loader's is our own affair."""
    return tuple(
        function
        for file in files
        for function in file.functions
        if function.role is not FunctionRole.LIBRARIES_CHANGED
    )


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


def _no_allocator(process: ProcessInfo) -> errors.TargetError:
    pid = process.id.pid
    try:
        with ElfImage.open(f"/proc/{pid}/exe") as image:
            machine, is_bare = image.machine, image.is_static and image.section(".symtab") is None
    except errors.BadElf:
        machine, is_bare = EM_X86_64, False
    except OSError:
        return errors.NoSuchProcess(f"process {pid} ended during the attach")
    if machine != EM_X86_64:
        return errors.BadElf(
            f"process {pid} ({process.comm}) is a program for another machine ({machine}) than x86-64",
            "32-bit programs cannot be traced",
        )
    if is_bare:
        return errors.NoAllocator(
            f"process {pid} ({process.comm}) is a statically linked program without symbols: nothing says "
            "where its allocator is",
            "install its debug symbols (a separate debug file will do), or build it without stripping",
        )
    known = ", ".join(dict.fromkeys(allocator.name for allocator in ALLOCATORS))
    return errors.NoAllocator(
        f"process {pid} ({process.comm}) has no allocator that is known mapped (known: {known})",
        "one under names of its own is made known by rows in target/allocators.py",
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
