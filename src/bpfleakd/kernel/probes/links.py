"""Uprobe links: turns the probe points of a file into links that keep the programs attached.

A link is a file descriptor; closing it removes its breakpoints. Only pages of the given process get
breakpoints: the kernel filters by pid.

The first process of a file gets its own links, by the best method; those attached while it is traced share
probes (shared.py), since further links would make the calls of all of them more expensive. Some probes are
hit rarely: those of a sampler inside, and notices, such as the dynamic linker's. Only AttachMethod.PERF
shares these: a perf event, even a disabled one, costs its process about a microsecond at each context switch
(perf_event_context_sched_in in kernel/events/core.c).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence

import structlog
from msgspec import Struct

from bpfleakd.kernel import bpf
from bpfleakd.kernel.abi import COOKIE_SLOT_SHARED, cookie_of
from bpfleakd.kernel.probes.shared import InodeKey, SharedKind, SharedPoint, SharedProbes
from bpfleakd.kernel.programs import AttachMethod, Covered, Program, programs_of
from bpfleakd.model.code.probe import NOTICES, FunctionRole
from bpfleakd.threads import usual_priority

log = structlog.get_logger()

_WITHOUT_RETURN = (FunctionRole.RELEASE, *NOTICES)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors, ignoring errors."""
    with usual_priority():
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class SampledPoint(Struct, frozen=True):
    """A static probe of a sampler inside the process (announced.py), entry only.

    `operands` is the number of the entry with the places of its arguments (Maps.operands_number), `semaphore`
    the file offset of the counter that is incremented while it is probed, or 0. At a place that makes a
    system call (syscall_sites.py), `operands` is the number of the call.
    """

    offset: int
    role: FunctionRole
    operands: int
    semaphore: int

    def cookie(self, slot: int) -> int:
        """The cookie of the program at this point, for the process in a slot."""
        return cookie_of(self.role, (), slot=slot, operands=self.operands)


class ProbePoint(Struct, frozen=True):
    """A breakpoint to place: file offset, the function's role, and the registers of its arguments.

    A function that frees may do so by calling another probed one: `calls_release`; `calls_allocator` means
    the same for one that allocates.
    """

    offset: int
    role: FunctionRole
    registers: tuple[str, ...]
    calls_release: bool = False
    calls_allocator: bool = False

    def cookie(self, slot: int) -> int:
        """The cookies of the programs at this point, for the process in a slot."""
        return cookie_of(
            self.role,
            self.registers,
            slot=slot,
            calls_release=self.calls_release,
            calls_allocator=self.calls_allocator,
        )


class Linker:
    """Attaches loaded programs by one method.

    `program_fds` maps the C function of every program of `programs_of(method)` to its descriptor.
    `shared` None: each process has its own links.
    """

    def __init__(
        self, method: AttachMethod, program_fds: Mapping[str, int], shared: SharedProbes | None = None
    ) -> None:
        self.method = method
        self._program_fds = program_fds
        self._shared = shared
        # The processes with separate links, by file.
        self._owners: dict[InodeKey, set[int]] = {}

    def link(
        self, path: str, points: Sequence[ProbePoint], pid: int, slot: int, file: InodeKey | None = None
    ) -> list[int]:
        """Attach to all `points` of the file at `path` in process `pid`; return the links.

        `slot` is the process' index in the maps (Maps.slot_of). With `file` None, the probes belong to this
        process alone, and `forget` need not be called.

        All or none: on an OSError the links made so far are closed.
        """
        # Aliases of one function share a probe.
        wanted = {point.offset: point for point in points}
        are_rare = all(point.role in NOTICES for point in points)
        with usual_priority():
            links = self._link_shared(file, path, _shared_points(wanted), pid, are_rare)
            if links is None:
                links = self._link_own(path, wanted, pid, slot)
                self._own(file, pid)
        return links

    @property
    def shares_rare(self) -> bool:
        """Whether processes share those probes in the same file that are hit rarely."""
        return self.method is AttachMethod.PERF

    def link_sampled(
        self, path: str, points: Sequence[SampledPoint], pid: int, slot: int, file: InodeKey | None = None
    ) -> list[int]:
        """Attach to static probes of the file at `path` in process `pid`, frees first; return the links.

        `file`, and all or none, as with `link`.
        """
        ordered = sorted(
            points, key=lambda point: (point.role is not FunctionRole.SAMPLED_FREE, point.offset)
        )
        with usual_priority():
            links = self._link_shared(file, path, _shared_static_points(ordered), pid, are_rare=True)
            if links is None:
                links = self._link_own_sampled(path, ordered, pid, slot)
                self._own(file, pid)
        return links

    def _link_shared(
        self, file: InodeKey | None, path: str, points: Sequence[SharedPoint], pid: int, are_rare: bool
    ) -> list[int] | None:
        """None if the process is the first of the file, or if probes cannot or should not be shared."""
        if not (file and self._shared and self._owners.get(file, set()) - {pid}):
            return None
        if are_rare and not self.shares_rare:
            return None
        try:
            return [self._shared.link(file, path, points, pid)]
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise
            log.warning("probes.not-shared", pid=pid, path=path, reason=str(error))
            return None

    def _own(self, file: InodeKey | None, pid: int) -> None:
        if file:
            self._owners.setdefault(file, set()).add(pid)

    def _link_own_sampled(self, path: str, ordered: Sequence[SampledPoint], pid: int, slot: int) -> list[int]:
        (program,) = (one for one in programs_of(self.method) if one.covered is Covered.SAMPLED)
        program_fd = self._program_fds[program.function]
        cookies = {point.offset: point.cookie(slot) for point in ordered}
        semaphores = {point.offset: point.semaphore for point in ordered}
        if self.method is not AttachMethod.PERF:
            attach_type = program.attach_type
            return [bpf.link_uprobe_multi(program_fd, attach_type, path, cookies, pid, semaphores=semaphores)]
        links: list[int] = []
        try:
            for offset, cookie in cookies.items():
                event_fd = bpf.open_uprobe_event(path, offset, pid, False, semaphores[offset])
                links.append(bpf.link_perf_event(program_fd, event_fd, cookie))
        except OSError:
            close_all(links)
            raise
        return links

    def adopt(self, file: InodeKey, pid: int, links: Sequence[int]) -> None:
        """Register an earlier daemon's links in a file.

        Raises ValueError if the programs of shared probes are gone.
        """
        shared = [link for link in links if bpf.is_map(link)]
        if self._shared and shared:
            self._shared.note(file, pid)
            if self._shared.anchor_count(file) < max(bpf.map_info(link).entries for link in shared):
                raise ValueError("programs of shared probes are gone")
        else:
            self._own(file, pid)

    def drop_unused(self) -> None:
        """Drop an earlier daemon's leftovers that belong to no adopted process."""
        if self._shared:
            self._shared.drop_unused()

    def forget(self, pid: int) -> None:
        """Forget a process: its links are closed, and no pin holds them."""
        for file in [file for file, pids in self._owners.items() if pid in pids]:
            self._owners[file].discard(pid)
            if not self._owners[file]:
                del self._owners[file]
        if self._shared:
            self._shared.forget(pid)

    def sweep(self) -> None:
        """Remove leftovers that the kernel was still closing before."""
        if self._shared:
            self._shared.sweep()

    def _link_own(self, path: str, wanted: Mapping[int, ProbePoint], pid: int, slot: int) -> list[int]:
        returning = _returning(wanted)
        others = {offset: point for offset, point in wanted.items() if offset not in returning}
        chosen_by = {
            Covered.ALL: wanted,
            Covered.RETURNING: returning,
            Covered.OTHERS: others,
            Covered.SAMPLED: {},
        }
        links: list[int] = []
        try:
            # The return first: a call that is entered afterwards is then seen to end. Frees come before
            # allocations.
            for program in reversed(programs_of(self.method)):
                chosen = chosen_by[program.covered]
                if chosen:
                    links.extend(self._link_program(program, path, chosen, pid, slot))
        except OSError:
            close_all(links)
            raise
        return links

    def _link_program(
        self, program: Program, path: str, points: Mapping[int, ProbePoint], pid: int, slot: int
    ) -> Iterator[int]:
        program_fd = self._program_fds[program.function]
        cookies = {offset: points[offset].cookie(slot) for offset in _in_order(points)}
        if self.method is not AttachMethod.PERF:
            yield bpf.link_uprobe_multi(
                program_fd, program.attach_type, path, cookies, pid, program.at_return
            )
            return
        for offset, cookie in cookies.items():
            event_fd = bpf.open_uprobe_event(path, offset, pid, program.at_return)
            yield bpf.link_perf_event(program_fd, event_fd, cookie)


def _returning(points: Mapping[int, ProbePoint]) -> dict[int, ProbePoint]:
    return {offset: point for offset, point in points.items() if point.role not in _WITHOUT_RETURN}


def _in_order(points: Mapping[int, ProbePoint]) -> list[int]:
    """Frees first: the free of every recorded block is then recorded too."""
    return sorted(points, key=lambda offset: (points[offset].role is not FunctionRole.RELEASE, offset))


def _shared_points(points: Mapping[int, ProbePoint]) -> list[SharedPoint]:
    """Returns first, as with links."""
    return [
        SharedPoint(offset, points[offset].cookie(COOKIE_SLOT_SHARED), kind)
        for kind, chosen in ((SharedKind.RETURN, _returning(points)), (SharedKind.ENTRY, points))
        for offset in _in_order(chosen)
    ]


def _shared_static_points(points: Sequence[SampledPoint]) -> list[SharedPoint]:
    return [
        SharedPoint(point.offset, point.cookie(COOKIE_SLOT_SHARED), SharedKind.STATIC, point.semaphore)
        for point in points
    ]
