"""The loaded programs and their maps: adopted from an earlier daemon, or new."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import structlog

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.children.child import end_ahead
from bpfleakd.kernel.compilation.options import LoadOptions
from bpfleakd.kernel.loader import Loaded, load, reload, version_of
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.mounts import ensure_bpffs
from bpfleakd.kernel.pins import MAKING, DirectoryLock, PinnedSet, ProcessPins, pinned_sets, remove_pins
from bpfleakd.kernel.probes.links import Linker, close_all
from bpfleakd.kernel.probes.shared import SharedKind, SharedProbes, group_of
from bpfleakd.kernel.programs import (
    DESCRIPTOR_CALLS,
    LIFE_PROGRAMS,
    SPACE_CALLS,
    Covered,
    Program,
    lasting_programs,
    shared_programs_of,
)
from bpfleakd.kernel.syscall_links import SyscallLinks

log = structlog.get_logger()


class KernelSession:
    """All kernel objects of the daemon.

    `adopted`: the programs come from an earlier daemon, with everything they recorded.
    """

    def __init__(self, pins: PinnedSet, loaded: Loaded, lock: DirectoryLock, *, adopted: bool) -> None:
        self.method = loaded.method
        self.walker = loaded.walker
        self.syscalls = loaded.syscalls
        self.passed_over = loaded.passed_over
        self.was_compiled = loaded.was_compiled
        self.pins = pins
        self.adopted = adopted
        self._lock = lock
        self._program_fds: dict[str, int] = {}
        self._life_links: list[int] = []
        program_fd = self._program_fds.__getitem__
        self._space_links = SyscallLinks(pins, program_fd, SPACE_CALLS, self.syscalls)
        self._descriptor_links = SyscallLinks(pins, program_fd, DESCRIPTOR_CALLS, self.syscalls)
        self._linker: Linker | None = None
        self._shared: SharedProbes | None = None
        self.maps = Maps.open_pinned(pins.directory)

    @classmethod
    def open(
        cls,
        directory: Path,
        options: LoadOptions,
        left_behind: Callable[[ProcessPins], None] = lambda _pins: None,
    ) -> KernelSession:
        """Adopt the objects pinned under `directory`, or load new ones; watch for execs and ends of threads.

        Calls `left_behind` with each traced process that cannot be adopted, before its programs are removed.
        Adopts only objects of the same version; removes all others. Raises AlreadyRunning, KernelUnsupported,
        AccessDenied or KernelError.
        """
        ensure_bpffs(directory)
        try:
            lock = DirectoryLock(directory)
        except OSError as error:
            raise errors.KernelError(
                f"cannot pin under {directory}: {error.strerror}",
                "bpffs must be mounted there: mount -t bpf bpf /sys/fs/bpf",
            ) from error
        try:
            return cls._open_locked(directory, lock, options, left_behind)
        except BaseException:
            lock.release(remove=True)
            raise
        finally:
            # Ends the loader, if there was nothing to load.
            end_ahead()

    @classmethod
    def _open_locked(
        cls,
        directory: Path,
        lock: DirectoryLock,
        options: LoadOptions,
        left_behind: Callable[[ProcessPins], None],
    ) -> KernelSession:
        pins = PinnedSet.of(directory, version_of(options))
        _remove_others(directory, pins, left_behind)
        if pins.exists:
            try:
                return cls._adopted(pins, lock)
            except (OSError, errors.KernelError) as error:
                log.warning("pins.unusable", directory=pins.directory, reason=str(error))
                _remove(pins, left_behind)
        session = cls(pins, load(pins, options), lock, adopted=False)
        try:
            session._open_programs()
        except OSError as error:
            session.close(keep=False)
            raise errors.KernelError(f"the programs cannot be used: {error.strerror or error}") from error
        return session

    @classmethod
    def _adopted(cls, pins: PinnedSet, lock: DirectoryLock) -> KernelSession:
        session = cls(pins, reload(pins), lock, adopted=True)
        try:
            session._open_programs()
        except OSError:
            session._close_descriptors()
            raise
        return session

    @property
    def linker(self) -> Linker:
        """Attaches the loaded programs."""
        if self._linker is None:
            self._linker = Linker(self.method, self._program_fds, self._shared)
        return self._linker

    def watch_address_spaces(self, wanted: bool) -> None:
        """Link the programs to the system calls that change address spaces, or detach them soon.

        They are only needed while a process is traced. Raises KernelError if the tracepoints are unavailable.
        """
        self._space_links.want(wanted)

    def watch_descriptors(self, wanted: bool) -> bool:
        """The same for calls that open and close descriptors, while those of a process are recorded.

        Returns whether they are linked: not yet, while former links are being detached.
        """
        return self._descriptor_links.want(wanted)

    def close(self, *, keep: bool) -> None:
        """Close everything.

        With `keep`, programs and tables remain for the next daemon; else nothing does.
        """
        if not keep:
            with contextlib.suppress(OSError):
                self.pins.remove()
        self._close_descriptors()
        if not keep and self._shared:
            self._shared.close()
        self._lock.release(remove=not keep)

    def _close_descriptors(self) -> None:
        self._space_links.close()
        self._descriptor_links.close()
        close_all((*self._life_links, *self._program_fds.values()))
        self.maps.close()

    def _open_programs(self) -> None:
        for program in lasting_programs(self.method, self.walker, self.syscalls):
            self._program_fds[program.function] = bpf.object_get(self.pins.directory / program.function)
        shared = shared_programs_of(self.method, self.walker)
        if shared:
            group = group_of(self.pins.directory.parent)
            programs = {_shared_kind(program): self._program_fds[program.function] for program in shared}
            self._shared = SharedProbes(programs, group, self.pins.directory / "shared")
        for program in LIFE_PROGRAMS:
            link = self.pins.link(program.function)
            if link is None:
                fd = self._program_fds[program.function]
                link = bpf.raw_tracepoint_open(fd, program.tracepoint or "")
                self.pins.pin_link(program.function, link)
            self._life_links.append(link)
        self._space_links.adopt()
        self._descriptor_links.adopt()


def _shared_kind(program: Program) -> SharedKind:
    if program.covered is Covered.SAMPLED:
        return SharedKind.STATIC
    return SharedKind.RETURN if program.at_return else SharedKind.ENTRY


def _remove_others(directory: Path, ours: PinnedSet, left_behind: Callable[[ProcessPins], None]) -> None:
    """Remove incomplete sets and those of other versions."""
    try:
        remove_pins(directory / MAKING)
        for other in pinned_sets(directory):
            if other.directory != ours.directory:
                removed = _remove(other, left_behind)
                log.warning("pins.other-version", directory=other.directory, removed=removed)
    except OSError as error:
        raise errors.KernelError(f"cannot remove {error.filename}: {error.strerror}") from error


def _remove(pins: PinnedSet, left_behind: Callable[[ProcessPins], None]) -> int:
    for process in pins.processes():
        left_behind(process)
    return pins.remove()
