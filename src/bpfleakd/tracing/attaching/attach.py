"""From a pid to probes in that process.

`hold` finds out who has a pid, later steps take what it found, and the code reader checks that the pid still
refers to it. `Attacher.attach` is the table of contents. The order matters, and a failed step undoes all
previous ones:
  1. The process is identified, held by a pidfd, so its pid cannot come to mean another, and checked; its code
     is opened and searched. Nothing is in the kernel yet.
  2. Its tables are created; the recording is stopped.
  3. The probes are linked, while the unwind tables of its files are built. Probes that are already linked see
     calls and record nothing.
  4. The walker gets the unwind tables.
  5. The data for the next daemon is stored, then the links get their final names.
  6. Recording starts with one write: no free can be missed between a malloc's probe and its own.

Pins of a process that is not recording come from an unfinished attach or detach.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import structlog
from msgspec import Struct
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.kernel.abi import RecordingState, site_operands
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pins import PinnedSet, ProcessPins
from bpfleakd.kernel.probes.announced import ARGUMENT_COUNTS
from bpfleakd.kernel.probes.links import Linker, SampledPoint, close_all
from bpfleakd.kernel.probes.operands import packed_operands
from bpfleakd.model.process import ProcessId, TracingMode, TracingRequest
from bpfleakd.process.files import mapped_files
from bpfleakd.process.files.process_code import ProcessCode, open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import GONE, HeldProcess, hold, hold_again
from bpfleakd.runtimes.go.program import FoundGo, find_go
from bpfleakd.tracing.attaching.attachment import (
    Attachment,
    LinkedFile,
    linked_file,
    read_attachment,
    refuse_unlinked,
    refuse_without_breakpoints,
    write_attachment,
)
from bpfleakd.tracing.attaching.code_reader import ProcessCodeReader
from bpfleakd.tracing.attaching.discovery import SEARCH_WAIT_S, Discovery
from bpfleakd.tracing.attaching.probed_file import (
    ProbedFile,
    coarser_parts,
    has_sampler,
    part_of,
    parts_of,
    site_parts,
)
from bpfleakd.tracing.attaching.refusals import (
    has_changed_code,
    link_error,
    log_refused,
    refuse,
    refuse_changed_code,
    refuse_if_ended,
    refuse_without_allocator,
    unmounted,
)
from bpfleakd.tracing.checkpoint import write_request
from bpfleakd.tracing.go.profile_switch import turn_off_profile
from bpfleakd.tracing.sampling.intervals import SAMPLED_LIVE_BLOCKS
from bpfleakd.tracing.unwinding import Unwinding

log = structlog.get_logger()


# Per process, when the daemon starts.
_ADOPT_WAIT_S = 1.0

_COMMON_LIBRARIES = ("libc.", "libc-", "ld-", "libstdc++.")


class AttachWait(Struct, frozen=True):
    """How long an attach may stop the tracing loop, and so all other processes.

    `for_tables`: do not start before the unwind tables are ready; otherwise late tables follow.
    """

    wait_s: float
    for_tables: bool = False


IMPATIENT = AttachWait(0.05)
"""A program that starts is recorded at once, its first stacks without tables if necessary."""
PATIENT = AttachWait(0.05, for_tables=True)
"""A caller that can repeat its request gets NotYet until the tables are ready."""
UNHURRIED = AttachWait(SEARCH_WAIT_S)
"""Nobody else waits."""


class _Making(Struct, frozen=True):
    """An attachment before the first link."""

    process: HeldProcess
    code: ProcessCode
    files: Sequence[ProbedFile]
    go: FoundGo
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
        *,
        uses_sites: bool = False,
    ) -> None:
        """`uses_sites`: system calls of a process with a sampler inside are seen where it makes them."""
        self._maps = maps
        self._uses_sites = uses_sites
        self._pins = pins
        self._unwinding = unwinding
        self._linker = linker
        self._live_blocks = live_blocks
        self._discovery = discovery
        self._reader = ProcessCodeReader()
        # How often the intervals of samplers inside are doubled, and the links that keep them so.
        self._doublings: dict[int, tuple[int, list[int]]] = {}

    def prepare(self) -> None:
        """Search the libraries that most processes share with this one, so the first attach need not wait.

        Raises NoSuchProcess or KernelError.
        """
        pid = os.getpid()
        shared = (m for m in read_mappings(pid) if os.path.basename(m.path).startswith(_COMMON_LIBRARIES))
        self._discovery.files(open_code(pid, shared))

    def attach(
        self,
        pid: int,
        request: TracingRequest,
        *,
        expected: ProcessId | None = None,
        wait: AttachWait = UNHURRIED,
        prefer_inside: bool = False,
    ) -> Attachment:
        """Start recording process `pid`, if it is the `expected` one, with the requested capacity.

        `prefer_inside`: by a sampler inside it if one announces its blocks, whatever the mode.

        Raises NotYet if its files take longer to read than `wait` allows; then call it again. Raises
        NoSuchProcess, TargetRefused, NoAllocator, BadElf, AccessDenied, CapacityError, TablesFull or
        KernelError, and then leaves nothing behind.
        """
        if error := unmounted(self._pins):
            raise error
        due_s = time.monotonic() + wait.wait_s
        with ExitStack() as undo:
            process = hold(pid)
            undo.callback(process.close)
            refuse(process.info, expected)
            code = self._reader.code_of(process.info.id)
            go = find_go(code)
            undo.callback(go.close)
            found = self._discovery.files(code, wait_s=wait.wait_s)
            log_refused(pid, found)
            if prefer_inside and has_sampler(found):
                request = replace(request, mode=TracingMode.INSIDE)
            files = parts_of(found, request.mode)
            refuse_without_allocator(process.info, code, found, files, is_needed=not go.is_programs)
            if wait.for_tables:
                self._build_tables(code, due_s)
            refuse_changed_code(code, files)
            if self._uses_sites and any(file.sampled for file in files):
                at_sites = site_parts(found)
                files += [] if has_changed_code(code, at_sites) else at_sites
            refuse_if_ended(process)
            attachment = self._link_all(_Making(process, code, files, go, request), due_s)
            undo.pop_all()
            return attachment

    def adopt(self, pins: ProcessPins) -> Attachment:
        """Continue with a process that an earlier daemon attached to.

        Its pidfd is GONE if it has ended or called exec: then read the tables and drop them. Raises
        ValueError if pins are missing, OSError or NoSuchProcess; `discard` then removes the rest.
        """
        pid = pins.id.pid
        kept = read_attachment(pins)
        if not self._maps.adopt_process(pid):
            raise ValueError("its tables are missing")
        state = self._maps.process(pid).state
        if state is RecordingState.STOPPED:
            raise ValueError("it was being attached or detached")
        if state is RecordingState.UNATTENDED:
            raise ValueError("recording had stopped: no daemon for too long")
        unfinished = pins.unfinished_links()
        opened = pins.open_links()
        at_sites = {file.number for file in kept.files if file.sites}
        links = tuple(link for number, links in opened.items() if number not in at_sites for link in links)
        site_links = tuple(link for number in at_sites for link in opened.get(number, ()))
        pidfd = GONE if state is RecordingState.EXECED else hold_again(kept.process)
        files = tuple(file for file in kept.files if file.number not in unfinished)
        attachment = Attachment(kept.process, pidfd, links, kept.mappings, files, pins, site_links=site_links)
        try:
            self._verify_links(attachment, opened)
            if pidfd != GONE:
                attachment = replace(attachment, go=self._files_again(kept.process.id))
        except BaseException:
            self.release(attachment)
            raise
        return attachment

    def _files_again(self, process: ProcessId) -> FoundGo:
        """Unwind a process that was attached to before; returns its Go code if it is alive."""
        try:
            code = self._reader.code_of(process, _ADOPT_WAIT_S)
            self._unwinding.follow(code, wait_s=0.0)
            return find_go(code)
        except errors.BpfleakdError as error:
            log.info("files.not-adopted", pid=process.pid, reason=error.message)
            return FoundGo()

    def _verify_links(self, attachment: Attachment, opened: dict[int, list[int]]) -> None:
        is_alive = attachment.pidfd != GONE
        if is_alive:
            refuse_unlinked(attachment.files, opened)
        for file in attachment.files:
            if links := opened.get(file.number):
                self._linker.adopt(file.id.inode_key, attachment.process.id.pid, links)
        if is_alive:
            refuse_without_breakpoints(attachment)

    def discard(self, pins: ProcessPins) -> None:
        """Remove all pins of a process, and its tables."""
        turn_off_profile(pins)
        self._maps.remove_process(pins.id.pid)
        pins.remove()
        self._linker.forget(pins.id.pid)

    def drop_unused(self) -> None:
        """Drop an earlier daemon's leftovers that no adopted process uses."""
        self._linker.drop_unused()

    def poll(self) -> None:
        """Finish work that the kernel needed time for, and close what is no longer needed."""
        self._linker.sweep()
        mapped_files.close_idle()

    def follow(self, attachment: Attachment, code: ProcessCode, wait_s: float = SEARCH_WAIT_S) -> Attachment:
        """Probe the allocators in newly loaded libraries.

        Files that cannot be probed are left out and logged; the rest of the process stays traced. Raises
        NotYet if reading the libraries takes longer than `wait_s`.
        """
        pid = attachment.process.id.pid
        # A new link, owner or mode of a file changes its identity, but its probes are still there.
        probed = {file.id.inode_key for file in attachment.files}
        try:
            files = self._discovery.files(code, passed_over=probed, wait_s=wait_s)
        except errors.NotYet:
            raise
        except errors.BpfleakdError as error:
            log.warning("allocator.not-followed", pid=pid, reason=str(error))
            return attachment
        attachment = replace(attachment, mappings=code.mappings)
        log_refused(pid, files)
        parts = (part_of(file, is_inside=attachment.is_inside) for file in files)
        for file in (self._at_place(part, pid) for part in parts if part is not None):
            number = 1 + max((linked.number for linked in attachment.files), default=0)
            module = file.shown_path
            links: list[int] = []
            try:
                refuse_changed_code(code, [file])
                links = self._link(file, pid)
                attachment.pins.stage_links(number, links)
                grown = replace(
                    attachment,
                    links=attachment.links + tuple(links),
                    files=(*attachment.files, linked_file(file, number, links)),
                )
                write_attachment(grown)
                attachment.pins.commit_links(number)
            except (OSError, errors.TargetRefused, errors.CapacityError) as error:
                close_all(links)
                log.warning("allocator.not-followed", pid=pid, path=module, reason=str(error))
                continue
            attachment = grown
            log.info("allocator.followed", pid=pid, path=module, probes=len(file.points) + len(file.sampled))
        return attachment

    def read_code(self, attachment: Attachment) -> ProcessCode:
        """The current code of a process, for `follow`; raises the errors of
        ProcessCodeReader.code_so_far."""
        return self._reader.code_so_far(attachment.process.id)

    def doublings(self, attachment: Attachment) -> int:
        """How often the interval of the sampler inside a process is doubled for us."""
        doublings, _links = self._doublings.get(attachment.process.id.pid, (0, ()))
        return doublings

    def double_interval(self, attachment: Attachment, doublings: int) -> None:
        """Have the sampler inside a process double its interval so often, as far as it can be told to.

        That ends with the tracing, and with the daemon. Raises NotYet, NoSuchProcess, TargetRefused,
        CapacityError or OSError.
        """
        pid, parts, links = attachment.process.id.pid, list[ProbedFile](), list[int]()
        # A perf event costs its process more than it would save (probes/links.py).
        if doublings and not self._linker.shares_rare:
            code = self.read_code(attachment)
            parts = coarser_parts(self._discovery.files(code, wait_s=0.0), doublings)
            refuse_changed_code(code, parts)
        try:
            for part in parts:
                links += self._link(part, pid)
        except BaseException:
            close_all(links)
            raise
        self._end_doublings(pid)
        self._doublings[pid] = doublings, links

    def _end_doublings(self, pid: int) -> None:
        _doublings, links = self._doublings.pop(pid, (0, ()))
        close_all(links)

    def stop(self, attachment: Attachment) -> None:
        """Stop recording and remove the breakpoints; the tables can still be read."""
        self._maps.set_state(attachment.process.id.pid, RecordingState.STOPPED)
        attachment.pins.remove_links()
        self.release(attachment)
        self._linker.forget(attachment.process.id.pid)

    def release(self, attachment: Attachment) -> None:
        """Close the descriptors of a process, and leave its pins to the next daemon."""
        pidfd = () if attachment.pidfd == GONE else (attachment.pidfd,)
        self._end_doublings(attachment.process.id.pid)
        close_all((*attachment.links, *attachment.site_links, *pidfd))

    def leave_sites(self, attachment: Attachment) -> Attachment:
        """Remove the probes where the process makes system calls."""
        left = tuple(file for file in attachment.files if file.sites)
        rest = tuple(file for file in attachment.files if not file.sites)
        for file in left:
            attachment.pins.remove_links_to(file.number)
        close_all(attachment.site_links)
        attachment = replace(attachment, files=rest, site_links=())
        write_attachment(attachment)
        return attachment

    def clear(self, attachment: Attachment) -> None:
        """Drop the tables of a stopped process."""
        self._clear(attachment.process.id.pid, attachment.pins)

    def _build_tables(self, code: ProcessCode, due_s: float) -> None:
        if not self._unwinding.build_ahead(code, _left_s(due_s)):
            raise errors.NotYet(f"the unwind tables of process {code.pid} are still being built")

    def _room(self, making: _Making) -> int:
        """The maximum of recorded blocks."""
        room = making.request.live_blocks or self._live_blocks
        is_sampled = making.request.mode is TracingMode.SAMPLED or any(file.sampled for file in making.files)
        return min(room, SAMPLED_LIVE_BLOCKS) if is_sampled else room

    def _clear(self, pid: int, pins: ProcessPins) -> None:
        self._unwinding.release(pid)
        self._maps.remove_process(pid)
        pins.remove()

    def _link(self, file: ProbedFile, pid: int) -> list[int]:
        slot, links = self._maps.slot_of(pid), list[int]()
        entries = [*self._announcements(file, pid), *_sites(file)]
        if entries:
            links += self._linker.link_sampled(file.path, entries, pid, slot, file.id.inode_key)
        if file.points:
            try:
                links += self._linker.link(file.path, file.points, pid, slot, file.id.inode_key)
            except BaseException:
                close_all(links)
                raise
        return links

    def _at_place(self, file: ProbedFile, pid: int) -> ProbedFile:
        return file.at_place(None if self._linker.shares_rare else self._maps.slot_of(pid))

    def _announcements(self, file: ProbedFile, pid: int) -> Iterator[SampledPoint]:
        for probe in file.sampled:
            operands = packed_operands(probe.arguments, ARGUMENT_COUNTS[probe.name])
            number = self._maps.operands_number(pid, operands)
            yield SampledPoint(probe.shown.offset, probe.role, number, probe.semaphore)

    def _link_all(self, making: _Making, due_s: float) -> Attachment:
        """Make its tables, link its probes, and register all of it; nothing is left of it if that fails."""
        process, code = making.process.info, making.code
        pid = process.id.pid
        links: list[int] = []
        site_links: list[int] = []
        linked: list[LinkedFile] = []
        pins = self._pins.process(process.id)
        self._maps.add_process(pid, self._room(making))
        try:
            pins.make()
            self._unwinding.begin(code)
            self._maps.code.begin(pid, code.mappings)
            for number, file in enumerate(self._at_place(file, pid) for file in making.files):
                to_file = self._link(file, pid)
                (site_links if file.sites else links).extend(to_file)
                pins.stage_links(number, to_file)
                linked.append(linked_file(file, number, to_file))
            self._unwinding.finish(pid, _left_s(due_s))
            attachment = Attachment(
                process,
                making.process.pidfd,
                tuple(links),
                code.mappings,
                tuple(linked),
                pins,
                making.go,
                tuple(site_links),
            )
            write_request(pins, making.request)
            write_attachment(attachment)
            for to_commit in linked:
                pins.commit_links(to_commit.number)
            if self._maps.process(pid).state is RecordingState.EXECED:
                raise errors.NoSuchProcess(f"process {pid} called exec during the attach", "attach again")
            if attachment.is_inside:
                self._maps.set_sampled_inside(pid)
            if attachment.sites:
                self._maps.see_address_space_at_sites(pid, True)
            self._maps.set_state(pid, RecordingState.RECORDING)
        except BaseException as error:
            pins.remove_links()
            close_all((*links, *site_links))
            self._linker.forget(pid)
            self._clear(pid, pins)
            if isinstance(error, OSError):
                raise unmounted(self._pins) or link_error(pid, error) from error
            raise
        return attachment


def _left_s(due_s: float) -> float:
    return max(0.0, due_s - time.monotonic())


def _sites(file: ProbedFile) -> Iterator[SampledPoint]:
    for site in file.sites:
        operands = site_operands(site.call, site.distance)
        yield SampledPoint(site.shown.offset, site.shown.role, operands, semaphore=0)
