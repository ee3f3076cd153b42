"""From a pid to probes in that process.

Order matters, and all of it is undone if a step fails:
  1. The process is identified and held by a pidfd, so that its pid cannot come to mean another.
  2. Its tables are made, stopped.
  3. The probes are linked, while the unwind tables of its files are built. Those already there see calls and
     record nothing.
  4. The walker gets the unwind tables.
  5. What the next daemon has to know is written down, then the links get their final names.
  6. Recording starts with one write: no free can be missed between a malloc's probe and its own.

Whatever is found pinned of a process that is not recording was not finished, by an attach or by a detach.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from bpfleakd import errors
from bpfleakd.elf.image import EM_X86_64, ElfImage
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pins import PinnedSet, ProcessPins
from bpfleakd.kernel.probes.announced import ARGUMENT_COUNTS
from bpfleakd.kernel.probes.links import Linker, SampledPoint, close_all
from bpfleakd.kernel.probes.operands import packed_operands
from bpfleakd.model.mapping import Mapping
from bpfleakd.model.probe import FunctionRole, ProbedFunction
from bpfleakd.model.process import ProcessId, TracingMode, TracingRequest
from bpfleakd.process.allocators import ALLOCATORS
from bpfleakd.process.breakpoints import missing_breakpoints
from bpfleakd.process.mapped_files import FileKey
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import ProcessInfo, check_traceable, is_hosts_init, read_process
from bpfleakd.runtimes.go.program import GoProgram, open_go_program
from bpfleakd.tracing.checkpoint import read_checkpoint, write_checkpoint, write_request
from bpfleakd.tracing.discovery import SEARCH_WAIT_S, Discovery, ProbedFile
from bpfleakd.tracing.go.profile_switch import turn_off_profile
from bpfleakd.tracing.inside import has_sampler, part_of, parts_of
from bpfleakd.tracing.sampling import SAMPLED_LIVE_BLOCKS
from bpfleakd.tracing.unwinding import Unwinding

__all__ = ["GONE", "IMPATIENT", "PATIENT", "UNHURRIED", "AttachWait", "Attacher", "Attachment", "LinkedFile"]

log = structlog.get_logger()


# In place of a pidfd: the process has ended, or is another program by now.
GONE = -1

_RECORD = "attachment"

_COMMON_LIBRARIES = ("libc.", "libc-", "ld-", "libstdc++.")


@dataclass(frozen=True, slots=True)
class AttachWait:
    """How long the tracing loop stands still for an attach at most, all others with it.

    `for_tables`: not to begin before the unwind tables are there; else those that take longer follow.
    """

    wait_s: float
    for_tables: bool = False


IMPATIENT = AttachWait(0.05)
"""A program that starts is recorded at once, the first stacks without tables if need be."""
PATIENT = AttachWait(0.05, for_tables=True)
"""Whoever can ask again is told NotYet until the tables are there."""
UNHURRIED = AttachWait(SEARCH_WAIT_S)
"""Nobody else waits."""


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file with probes in it, and the number that its links are pinned under; `links` are so many.

    `ranges` are where the allocator's functions are, as file offsets. `unprobed` are those that have no
    probe, since a sampler inside announces their blocks.
    """

    id: FileKey
    number: int
    probes: tuple[ProbedFunction, ...]
    ranges: tuple[tuple[int, int], ...] = ()
    unprobed: tuple[ProbedFunction, ...] = ()
    links: int = 0

    @property
    def module(self) -> str | None:
        """The path of the file, as the process has it; None if it has no function of an allocator."""
        functions = (*self.probes, *self.unprobed)
        return functions[0].module if functions else None


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attached process. `pidfd` (or GONE), `links` and `go` (what Go made) are open."""

    process: ProcessInfo
    pidfd: int
    links: tuple[int, ...]
    mappings: tuple[Mapping, ...]
    files: tuple[LinkedFile, ...]
    pins: ProcessPins
    go: GoProgram | None = None

    @property
    def probes(self) -> tuple[ProbedFunction, ...]:
        """The allocators' functions under a probe, or a sampler's own probes."""
        return tuple(probe for file in self.files for probe in file.probes)

    @property
    def allocator_functions(self) -> tuple[ProbedFunction, ...]:
        """All that is known of the process' allocators, with a probe or without."""
        return tuple(function for file in self.files for function in (*file.probes, *file.unprobed))

    @property
    def is_inside(self) -> bool:
        """Whether a sampler inside the process announces its blocks."""
        return any(probe.role is FunctionRole.SAMPLED_ALLOC for probe in self.probes)


@dataclass(frozen=True, slots=True)
class _AttachmentCheckpoint:
    """What the next daemon has to know of an attachment."""

    process: ProcessInfo
    mappings: tuple[Mapping, ...]
    files: tuple[LinkedFile, ...]


@dataclass(frozen=True, slots=True)
class _Making:
    """An attachment before anything is linked."""

    process: ProcessInfo
    pidfd: int
    mappings: tuple[Mapping, ...]
    files: Sequence[ProbedFile]
    request: TracingRequest


class Attacher:
    """Attaches and detaches."""

    def __init__(
        self,
        maps: Maps,
        linker: Linker,
        unwinding: Unwinding,
        pins: PinnedSet,
        discovery: Discovery,
        live_blocks: int,
    ) -> None:
        self._maps = maps
        self._pins = pins
        self._unwinding = unwinding
        self._linker = linker
        self._live_blocks = live_blocks
        self._discovery = discovery

    def prepare(self) -> None:
        """Look through the libraries that most processes share with this one: the first need not wait.

        Raises NoSuchProcess or KernelError.
        """
        pid = os.getpid()
        shared = (m for m in read_mappings(pid) if os.path.basename(m.path).startswith(_COMMON_LIBRARIES))
        self._discovery.files(pid, shared)

    def attach(
        self,
        pid: int,
        request: TracingRequest,
        *,
        expected: ProcessId | None = None,
        wait: AttachWait = UNHURRIED,
    ) -> Attachment:
        """Start recording process `pid`, if it is the one `expected`, with the room that is requested.

        Raises NotYet if its files take longer to read than `wait` says, then this is to be called again;
        NoSuchProcess, TargetRefused, NoAllocator, BadElf, AccessDenied, CapacityError or KernelError. Then
        nothing is left behind.
        """
        if unmounted := self._unmounted():
            raise unmounted
        due_s = time.monotonic() + wait.wait_s
        pidfd = _hold(pid)
        try:
            process = read_process(pid)
            if expected is not None and process.id != expected:
                raise errors.NoSuchProcess(f"process {pid} has exited and its PID was reused")
            check_traceable(process, os.getpid(), os.uname().release, is_init=is_hosts_init(pid))
            mappings = read_mappings(pid)
            go = open_go_program(pid, mappings)
            try:
                files = self._probed_files(process, mappings, request.mode, wait.wait_s, needed=go is None)
                if wait.for_tables and not self._unwinding.build_ahead(pid, mappings, _left_s(due_s)):
                    raise errors.NotYet(f"the unwind tables of process {pid} are still being built")
                room = request.live_blocks or self._live_blocks
                if request.mode is TracingMode.SAMPLED or any(file.sampled for file in files):
                    room = min(room, SAMPLED_LIVE_BLOCKS)
                making = _Making(process, pidfd, mappings, files, request)
                return replace(self._link_all(making, room, due_s), go=go)
            except BaseException:
                if go is not None:
                    go.close()
                raise
        except BaseException:
            os.close(pidfd)
            raise

    def adopt(self, pins: ProcessPins) -> Attachment:
        """Go on with a process that an earlier daemon attached to.

        GONE is its pidfd if it has ended or called exec: then the tables are to be read and dropped. Raises
        ValueError if what is pinned is not whole, OSError or NoSuchProcess; `discard` removes it then.
        """
        pid = pins.id.pid
        kept = read_checkpoint(pins.record(_RECORD), _AttachmentCheckpoint)
        if not self._maps.adopt_process(pid):
            raise ValueError("its tables are missing")
        state = self._maps.process(pid).state
        if state is RecordingState.STOPPED:
            raise ValueError("it was being attached or detached")
        if state is RecordingState.UNATTENDED:
            raise ValueError("recording had stopped: no daemon for too long")
        unfinished = pins.unfinished_links()
        opened = pins.open_links()
        links = tuple(link for links in opened.values() for link in links)
        pidfd = GONE if state is RecordingState.EXECED else _hold_again(kept.process)
        files = tuple(file for file in kept.files if file.number not in unfinished)
        attachment = Attachment(kept.process, pidfd, links, kept.mappings, files, pins)
        try:
            self._verify_links(attachment, opened)
            if pidfd != GONE:
                self._unwinding.follow(pid, read_mappings(pid), wait_s=0.0)
                attachment = replace(attachment, go=_go_program_again(pid, kept.mappings))
        except BaseException:
            self.release(attachment)
            raise
        return attachment

    def _verify_links(self, attachment: Attachment, opened: dict[int, list[int]]) -> None:
        is_alive = attachment.pidfd != GONE
        if is_alive:
            _refuse_unlinked(attachment.files, opened)
        for file in attachment.files:
            if links := opened.get(file.number):
                self._linker.adopt(file.id[:2], attachment.process.id.pid, links)
        if is_alive:
            _refuse_without_breakpoints(attachment)

    def discard(self, pins: ProcessPins) -> None:
        """Remove all that is pinned of a process, and its tables."""
        turn_off_profile(pins)
        self._maps.remove_process(pins.id.pid)
        pins.remove()
        self._linker.forget(pins.id.pid)

    def drop_unused(self) -> None:
        """Drop what an earlier daemon left and no process that was adopted uses."""
        self._linker.drop_unused()

    def poll(self) -> None:
        """Finish what the kernel needed time for."""
        self._linker.sweep()

    def follow(
        self, attachment: Attachment, mappings: tuple[Mapping, ...], wait_s: float = SEARCH_WAIT_S
    ) -> Attachment:
        """Probe the allocators that have come with new libraries.

        What cannot be probed is left out and logged: the rest of the process goes on being recorded. Raises
        NotYet if to read the libraries takes longer than `wait_s`.
        """
        pid = attachment.process.id.pid
        known = {file.id for file in attachment.files}
        try:
            files = self._discovery.files(pid, mappings, passed_over=known, wait_s=wait_s)
        except errors.NotYet:
            raise
        except errors.BpfleakdError as error:
            log.warning("allocator.not-followed", pid=pid, reason=str(error))
            return attachment
        attachment = replace(attachment, mappings=mappings)
        _log_refused(pid, files)
        parts = (part_of(file, is_inside=attachment.is_inside) for file in files)
        for file in (part for part in parts if part is not None):
            number = 1 + max((linked.number for linked in attachment.files), default=0)
            module = file.shown_path
            links: list[int] = []
            try:
                links = self._link(file, pid)
                attachment.pins.stage_links(number, links)
                grown = replace(
                    attachment,
                    links=attachment.links + tuple(links),
                    files=(*attachment.files, _linked(file, number, links)),
                )
                _write_checkpoint(grown)
                attachment.pins.commit_links(number)
            except OSError as error:
                close_all(links)
                log.warning("allocator.not-followed", pid=pid, path=module, reason=str(error))
                continue
            attachment = grown
            log.info("allocator.followed", pid=pid, path=module, probes=len(file.points) + len(file.sampled))
        return attachment

    def stop(self, attachment: Attachment) -> None:
        """Stop recording and take the breakpoints out; the tables stay to be read."""
        self._maps.set_state(attachment.process.id.pid, RecordingState.STOPPED)
        attachment.pins.remove_links()
        self.release(attachment)
        self._linker.forget(attachment.process.id.pid)

    def release(self, attachment: Attachment) -> None:
        """Close what is open of a process, and leave what is pinned to the next daemon."""
        close_all(attachment.links if attachment.pidfd == GONE else (*attachment.links, attachment.pidfd))

    def clear(self, attachment: Attachment) -> None:
        """Drop the tables of a process that was stopped."""
        self._clear(attachment.process.id.pid, attachment.pins)

    def has_sampler(self, pid: int, wait: AttachWait = UNHURRIED) -> bool:
        """Whether a sampler inside a process announces its blocks. Raises as Discovery.files does."""
        return has_sampler(self._discovery.files(pid, read_mappings(pid), wait_s=wait.wait_s))

    def _probed_files(
        self,
        process: ProcessInfo,
        mappings: tuple[Mapping, ...],
        mode: TracingMode,
        wait_s: float,
        *,
        needed: bool,
    ) -> list[ProbedFile]:
        """The files to probe, with an allocator if one is `needed`.

        Raises NoAllocator with what was refused, and what Discovery.files raises.
        """
        files = self._discovery.files(process.id.pid, mappings, wait_s=wait_s)
        _log_refused(process.id.pid, files)
        parts = parts_of(files, mode)
        if needed and not any(file.has_allocator or file.sampled for file in parts):
            raise _unverified(process, files) or _no_allocator(process)
        return parts

    def _clear(self, pid: int, pins: ProcessPins) -> None:
        self._unwinding.release(pid)
        self._maps.remove_process(pid)
        pins.remove()

    def _unmounted(self) -> errors.KernelError | None:
        """What to say where the pins' file system is gone; None if it is there."""
        if self._pins.is_mounted:
            return None
        return errors.KernelError(
            f"{self._pins.directory} is gone: the bpf file system was unmounted, or the pins were removed",
            "mount it (mount -t bpf bpf /sys/fs/bpf), and restart the daemon: systemctl restart bpfleakd",
        )

    def _link(self, file: ProbedFile, pid: int) -> list[int]:
        slot, links = self._maps.slot_of(pid), list[int]()
        if file.sampled:
            points = [
                SampledPoint(
                    probe.shown.offset,
                    probe.role,
                    self._maps.operands_number(packed_operands(probe.arguments, ARGUMENT_COUNTS[probe.name])),
                    probe.semaphore,
                )
                for probe in file.sampled
            ]
            links += self._linker.link_sampled(file.path, points, pid, slot)
        if file.points:
            try:
                links += self._linker.link(file.path, file.points, pid, slot, file.id[:2])
            except BaseException:
                close_all(links)
                raise
        return links

    def _link_all(self, making: _Making, live_blocks: int, due_s: float) -> Attachment:
        process, mappings, files = making.process, making.mappings, making.files
        pid = process.id.pid
        links: list[int] = []
        linked: list[LinkedFile] = []
        pins = self._pins.process(process.id)
        self._maps.add_process(pid, live_blocks)
        try:
            pins.make()
            self._unwinding.begin(pid, mappings)
            for number, file in enumerate(files):
                to_file = self._link(file, pid)
                links += to_file
                pins.stage_links(number, to_file)
                linked.append(_linked(file, number, to_file))
            self._unwinding.finish(pid, _left_s(due_s))
            attachment = Attachment(process, making.pidfd, tuple(links), mappings, tuple(linked), pins)
            write_request(pins, making.request)
            _write_checkpoint(attachment)
            for to_commit in linked:
                pins.commit_links(to_commit.number)
            if self._maps.process(pid).state is RecordingState.EXECED:
                raise errors.NoSuchProcess(f"process {pid} called exec during the attach", "attach again")
            if attachment.is_inside:
                self._maps.set_sampled_inside(pid)
            self._maps.set_state(pid, RecordingState.RECORDING)
        except BaseException as error:
            pins.remove_links()
            close_all(links)
            self._linker.forget(pid)
            self._clear(pid, pins)
            if isinstance(error, OSError):
                raise self._unmounted() or _link_error(pid, error) from error
            raise
        return attachment


def _left_s(due_s: float) -> float:
    return max(0.0, due_s - time.monotonic())


def _linked(file: ProbedFile, number: int, links: Sequence[int]) -> LinkedFile:
    """What is kept of a file: the allocator's functions; the dynamic loader's is our own affair."""
    functions = tuple(f for f in file.functions if f.role is not FunctionRole.LIBRARIES_CHANGED)
    probed = {point.offset for point in file.points}
    return LinkedFile(
        file.id,
        number,
        (*(f for f in functions if f.offset in probed), *(probe.shown for probe in file.sampled)),
        file.ranges if file.has_allocator else (),
        tuple(f for f in functions if f.offset not in probed),
        len(links),
    )


def _refuse_unlinked(files: Sequence[LinkedFile], opened: dict[int, list[int]]) -> None:
    """Raise ValueError if links were removed while no daemon ran: what went by there was not recorded."""
    for file in files:
        missing = file.links - len(opened.get(file.number, []))
        if missing > 0:
            name = file.module or f"file {file.number}"
            raise ValueError(f"{missing} of {file.links} links to {name} are gone")


def _refuse_without_breakpoints(attachment: Attachment) -> None:
    """Raise ValueError if the process runs code without the breakpoints that its links stand for."""
    pid = attachment.process.id.pid
    try:
        mappings = read_mappings(pid)
    except errors.BpfleakdError:
        return  # it has just ended
    missing = missing_breakpoints(pid, attachment.probes, mappings)
    if missing:
        raise ValueError(f"{len(missing)} breakpoints are gone, such as that of {missing[0].function}")


def _write_checkpoint(attachment: Attachment) -> None:
    """Write down what the next daemon has to know. Raises OSError."""
    record = attachment.pins.record(_RECORD)
    write_checkpoint(record, _AttachmentCheckpoint(attachment.process, attachment.mappings, attachment.files))
    record.close()


def _hold_again(process: ProcessInfo) -> int:
    """A pidfd of a process if it is still the same one, or GONE."""
    try:
        pidfd = os.pidfd_open(process.id.pid)
    except OSError:
        return GONE
    try:
        if read_process(process.id.pid).id == process.id:
            return pidfd
    except errors.BpfleakdError:
        pass
    os.close(pidfd)
    return GONE


def _hold(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise errors.NoSuchProcess(f"there is no process {pid}", "`ps -e` lists those that exist") from error
    except OSError as error:
        # A tid: read_process says whose. ENOENT since Linux 6.16.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            read_process(pid)
        raise errors.KernelError(f"cannot open a pidfd for process {pid}: {error.strerror}") from error


def _go_program_again(pid: int, mappings: Sequence[Mapping]) -> GoProgram | None:
    """The Go program of a process that was attached to before; None if it has ended meanwhile."""
    try:
        return open_go_program(pid, mappings)
    except errors.BpfleakdError as error:
        log.info("go.not-adopted", pid=pid, reason=error.message)
        return None


def _log_refused(pid: int, files: Sequence[ProbedFile]) -> None:
    for file in files:
        if file.refused:
            log.warning("probes.refused", pid=pid, count=len(file.refused), reasons=file.refused[:4])


def _unverified(process: ProcessInfo, files: Sequence[ProbedFile]) -> errors.NoAllocator | None:
    """The reason if there were symbols, and the program's own file did not confirm them."""
    refused = [reason for file in files for reason in file.refused]
    if not refused:
        return None
    return errors.NoAllocator(
        f"process {process.id.pid} ({process.comm}) has no allocator that can be probed safely: {refused[0]}",
        "check that its debug file belongs to this build",
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
            f"process {pid} ({process.comm}) is for machine {machine}, not x86-64",
            "32-bit programs cannot be traced",
        )
    if is_bare:
        return errors.NoAllocator(
            f"process {pid} ({process.comm}) is a statically linked program without symbols: its "
            "allocator cannot be located",
            "install its debug symbols (a separate debug file is enough), or do not strip it",
        )
    known = ", ".join(dict.fromkeys(allocator.name for allocator in ALLOCATORS))
    return errors.NoAllocator(
        f"no known allocator is mapped in process {pid} ({process.comm}) (known: {known})",
        "to support another allocator, add its functions to process/allocators.py",
    )


def _link_error(pid: int, error: OSError) -> errors.BpfleakdError:
    if error.errno in (errno.ESRCH, errno.ENOENT):
        return errors.NoSuchProcess(f"process {pid} ended during the attach")
    if error.errno in (errno.EPERM, errno.EACCES):
        return errors.AccessDenied(
            f"the kernel refuses probes in process {pid}: {error.strerror}",
            "the daemon needs CAP_SYS_ADMIN and CAP_SYS_PTRACE; `bpfleakctl doctor` lists its capabilities",
        )
    hint = ""
    if error.errno == errno.EINVAL:
        # bcc 0.26 passes a reference counter's offset that it never set, and the kernel wants the same
        # one from everybody at that address (dmesg: "ref_ctr_offset mismatch").
        hint = (
            "check whether another tracer probes the same functions: older bcc tools (memleak) exclude others"
        )
    return errors.KernelError(f"probes in process {pid} failed: {error.strerror or error}", hint)
