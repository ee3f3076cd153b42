"""The loaded programs and their maps, for as long as the daemon runs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.links import Linker, close_all
from bpfleakd.kernel.loader import Capacities, Loaded, load, unpin
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.mounts import ensure_bpffs, ensure_tracefs
from bpfleakd.kernel.programs import (
    LIFE_PROGRAMS,
    SPACE_PROGRAMS,
    AttachMethod,
    Program,
    WalkerKind,
    programs_of,
)

__all__ = ["KernelSession"]


class KernelSession:
    """Everything of ours in the kernel. `close` leaves nothing of it."""

    def __init__(self, directory: Path, loaded: Loaded, maps: Maps) -> None:
        self.method = loaded.method
        self.walker = loaded.walker
        self.passed_over = loaded.passed_over
        self.maps = maps
        self._directory = directory
        self._program_fds: dict[str, int] = {}
        self._life_links: list[int] = []
        self._space_links: list[int] = []

    @classmethod
    def open(
        cls,
        directory: Path,
        capacities: Capacities,
        method: AttachMethod | None = None,
        walker: WalkerKind | None = None,
    ) -> KernelSession:
        """Load and pin under `directory`, and start to watch for execs and ends of threads.

        Raises KernelUnsupported, AccessDenied or KernelError.
        """
        ensure_bpffs(directory)
        loaded = load(directory, capacities, method, walker)
        session = cls(directory, loaded, Maps.open_pinned(directory))
        try:
            session._open_programs()
        except OSError as error:
            session.close()
            raise errors.KernelError(f"the programs cannot be used: {error.strerror or error}") from error
        return session

    @property
    def linker(self) -> Linker:
        """Attaches the loaded programs."""
        return Linker(self.method, self._program_fds)

    def watch_address_spaces(self, wanted: bool) -> None:
        """Link the programs to the calls that change address spaces, or let go of them.

        Only while a process is traced: a syscall tracepoint makes every call of every process go the
        longer way. Raises KernelError if the tracepoints are not to be had.
        """
        if wanted == bool(self._space_links):
            return
        if not wanted:
            close_all(self._space_links)
            self._space_links = []
            return
        ensure_tracefs()
        try:
            for program, tracepoints in SPACE_PROGRAMS.items():
                for tracepoint in tracepoints:
                    self._space_links.append(self._link_tracepoint(program, tracepoint))
        except OSError as error:
            close_all(self._space_links)
            self._space_links = []
            raise errors.KernelError(
                f"the syscall tracepoints cannot be used: {error.strerror or error}",
                "mount tracefs: mount -t tracefs tracefs /sys/kernel/tracing",
            ) from error

    def _link_tracepoint(self, program: Program, tracepoint: str) -> int:
        event_fd = bpf.open_tracepoint_event(tracepoint)
        try:
            return bpf.link_perf_event(self._program_fds[program.function], event_fd, cookie=0)
        finally:
            os.close(event_fd)

    def close(self) -> None:
        """Unlink, unpin and close."""
        close_all((*self._space_links, *self._life_links, *self._program_fds.values()))
        self.maps.close()
        with contextlib.suppress(OSError):
            unpin(self._directory)

    def _open_programs(self) -> None:
        for program in (*programs_of(self.method), *LIFE_PROGRAMS, *SPACE_PROGRAMS):
            self._program_fds[program.function] = bpf.object_get(self._directory / program.function)
        for program in LIFE_PROGRAMS:
            fd = self._program_fds[program.function]
            self._life_links.append(bpf.raw_tracepoint_open(fd, program.tracepoint or ""))
