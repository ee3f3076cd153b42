"""The links to the system calls that change address spaces, there while a process is traced.

A syscall tracepoint slows every system call of every process, so the links exist only while they are needed.
Detaching each of them takes a grace period of the kernel, half a second together on a busy machine. So a
separate thread does it, `_LINGER_S` after the last process, in case another one follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.mounts import ensure_tracefs
from bpfleakd.kernel.pins import PinnedSet
from bpfleakd.kernel.probes.links import close_all
from bpfleakd.kernel.programs import SPACE_PROGRAMS

__all__ = ["AddressSpaceLinks"]

_LINGER_S = 2.0


class AddressSpaceLinks:
    """All of them or none. `program_fd` gives the descriptor of a program by its C function."""

    def __init__(
        self, pins: PinnedSet, program_fd: Callable[[str], int], *, linger_s: float = _LINGER_S
    ) -> None:
        self._pins = pins
        self._program_fd = program_fd
        self._linger_s = linger_s
        self._links: dict[str, int] = {}
        self._lock = threading.Lock()
        self._detaching: threading.Timer | None = None

    def adopt(self) -> None:
        """Continue with those that an earlier daemon pinned, unless some are missing."""
        names = [_pin_name(tracepoint) for _function, tracepoint in _wanted()]
        found = {name: self._pins.link(name) for name in names}
        self._links = {name: link for name, link in found.items() if link is not None}
        if len(self._links) < len(names):
            self._detach()

    def want(self, wanted: bool) -> None:
        """Link them now, or detach them soon. Raises KernelError if the tracepoints are unavailable."""
        if self._detaching is not None and wanted:
            self._detaching.cancel()
            self._detaching = None
        with self._lock:
            is_linked = bool(self._links)
            if wanted and not is_linked:
                self._link()
        if not wanted and is_linked and self._detaching is None:
            self._detaching = threading.Timer(self._linger_s, self._detach_at_last)
            self._detaching.daemon = True
            self._detaching.start()

    def close(self) -> None:
        """Close the descriptors; what is pinned stays."""
        if self._detaching is not None:
            self._detaching.cancel()
            self._detaching.join()
            self._detaching = None
        close_all(tuple(self._links.values()))
        self._links = {}

    def _link(self) -> None:
        ensure_tracefs()
        try:
            for function, tracepoint in _wanted():
                name = _pin_name(tracepoint)
                event_fd = bpf.open_tracepoint_event(tracepoint)
                self._links[name] = link = bpf.link_perf_event(self._program_fd(function), event_fd, cookie=0)
                self._pins.pin_link(name, link)
        except OSError as error:
            self._detach()
            raise errors.KernelError(
                f"the syscall tracepoints cannot be used: {error.strerror or error}",
                "mount tracefs: mount -t tracefs tracefs /sys/kernel/tracing",
            ) from error

    def _detach_at_last(self) -> None:
        with self._lock:
            # Wanted again while the timer was on its way here.
            if self._detaching is threading.current_thread():
                self._detach()

    def _detach(self) -> None:
        for name in self._links:
            self._pins.unpin_link(name)
        close_all(tuple(self._links.values()))
        self._links = {}


def _wanted() -> list[tuple[str, str]]:
    """C function and tracepoint of each."""
    return [
        (program.function, tracepoint)
        for program, tracepoints in SPACE_PROGRAMS.items()
        for tracepoint in tracepoints
    ]


def _pin_name(tracepoint: str) -> str:
    return tracepoint.rpartition("/")[2]
