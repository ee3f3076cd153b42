"""Links to the system calls that change address spaces, and to those that open and close descriptors.

A syscall tracepoint slows every system call of every process, so the links exist only while they are needed:
the former while a process is traced, the latter while a process' descriptors are recorded. Detaching each of
them takes a grace period of the kernel, 80 ms on a busy machine. So a separate thread does it, `_LINGER_S`
after the last process, in case another one follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.mounts import ensure_tracefs
from bpfleakd.kernel.pins import PinnedSet
from bpfleakd.kernel.probes.links import close_all

_LINGER_S = 2.0


class SyscallLinks:
    """Either all of the links or none. `program_fd` returns the descriptor of a program by its C function.

    `tracepoints` have the C function for each. With `may_miss`, those that the kernel does not have are left
    out, and while former links are still being detached there are none: linking would wait for a grace period
    of the kernel before each of them.
    """

    def __init__(
        self,
        pins: PinnedSet,
        program_fd: Callable[[str], int],
        tracepoints: Mapping[str, str],
        *,
        may_miss: bool = False,
        linger_s: float = _LINGER_S,
    ) -> None:
        self._pins = pins
        self._tracepoints = tracepoints
        self._may_miss = may_miss
        self._program_fd = program_fd
        self._linger_s = linger_s
        self._links: dict[str, int] = {}
        self._lock = threading.Lock()
        self._detaching: threading.Timer | None = None
        self._is_closing = False

    def adopt(self) -> None:
        """Adopt the links that an earlier daemon pinned, unless some are missing."""
        found = {tracepoint: self._pins.link(_pin_name(tracepoint)) for tracepoint in self._tracepoints}
        self._links = {_pin_name(name): link for name, link in found.items() if link is not None}
        missing = [tracepoint for tracepoint, link in found.items() if link is None]
        if self._may_miss:
            missing = list(filter(bpf.has_tracepoint, missing))
        if missing:
            self._detach()

    def want(self, wanted: bool) -> bool:
        """Link the programs now, or detach them soon; returns whether they are linked.

        Raises KernelError if the tracepoints are unavailable.
        """
        if self._detaching is not None and wanted:
            self._detaching.cancel()
            self._detaching = None
        with self._lock:
            if wanted and not self._links and not (self._may_miss and self._is_closing):
                self._link()
            is_linked = bool(self._links)
        if not wanted and is_linked and self._detaching is None:
            self._detaching = threading.Timer(self._linger_s, self._detach_at_last)
            self._detaching.daemon = True
            self._detaching.start()
        return is_linked

    def close(self) -> None:
        """Close the descriptors; pinned links remain."""
        if self._detaching is not None:
            self._detaching.cancel()
            self._detaching.join()
            self._detaching = None
        close_all(tuple(self._links.values()))
        self._links = {}

    def _link(self) -> None:
        ensure_tracefs()
        try:
            for tracepoint, function in self._tracepoints.items():
                self._link_one(tracepoint, function)
        except OSError as error:
            self._detach()
            raise errors.KernelError(
                f"the syscall tracepoints cannot be used: {error.strerror or error}",
                "mount tracefs: mount -t tracefs tracefs /sys/kernel/tracing",
            ) from error

    def _link_one(self, tracepoint: str, function: str) -> None:
        try:
            event_fd = bpf.open_tracepoint_event(tracepoint)
        except FileNotFoundError:
            if self._may_miss:
                return
            raise
        name = _pin_name(tracepoint)
        self._links[name] = link = bpf.link_perf_event(self._program_fd(function), event_fd, cookie=0)
        self._pins.pin_link(name, link)

    def _detach_at_last(self) -> None:
        with self._lock:
            # Otherwise they were wanted again before the timer ran.
            links = self._take() if self._detaching is threading.current_thread() else {}
            self._is_closing = True
        try:
            close_all(tuple(links.values()))
        finally:
            self._is_closing = False

    def _detach(self) -> None:
        close_all(tuple(self._take().values()))

    def _take(self) -> dict[str, int]:
        """Remove the links from this object; only their descriptors keep them."""
        for name in self._links:
            self._pins.unpin_link(name)
        links, self._links = self._links, {}
        return links


def _pin_name(tracepoint: str) -> str:
    return tracepoint.rpartition("/")[2]
