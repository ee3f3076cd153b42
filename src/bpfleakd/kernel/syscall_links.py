"""Links to the system calls that change address spaces, and to those that open and close descriptors.

At the kernel's functions of these calls, two links suffice, one for entries and one for returns, and other
calls are not affected. A syscall tracepoint slows every system call of every process. So the links exist only
while they are needed: the former while a process is traced, the latter while a process' descriptors are
recorded. Detaching each of them takes a grace period of the kernel, 80 ms on a busy machine. So a separate
thread does it, `_LINGER_S` after the last process, in case another one follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.mounts import ensure_tracefs
from bpfleakd.kernel.pins import PinnedSet
from bpfleakd.kernel.probes.links import close_all
from bpfleakd.kernel.programs import SyscallMethod, SyscallSet, function_of, syscall_programs

_LINGER_S = 2.0
_Makers = Callable[[str, str, Sequence[str], int], dict[str, Callable[[], int]]]
_HINTS = {
    SyscallMethod.FUNCTIONS: "end other tracers of the kernel's functions, and try again",
    SyscallMethod.TRACEPOINTS: "mount tracefs: mount -t tracefs tracefs /sys/kernel/tracing",
}


class SyscallLinks:
    """Either all of the links or none. `program_fd` returns the descriptor of a program by its C function.

    If `calls` may miss, those that the kernel does not have are left out, and while former links are still
    being detached there are none: linking would wait for a grace period of the kernel before each of them.
    """

    def __init__(
        self,
        pins: PinnedSet,
        program_fd: Callable[[str], int],
        calls: SyscallSet,
        method: SyscallMethod,
        *,
        linger_s: float = _LINGER_S,
    ) -> None:
        self._pins = pins
        self._calls = calls
        self._program_fd = program_fd
        self._method = method
        self._functions = [program.function for program in syscall_programs(method)]
        self._linger_s = linger_s
        self._links: dict[str, int] = {}
        self._lock = threading.Lock()
        self._detaching: threading.Timer | None = None
        self._is_closing = False

    def adopt(self) -> None:
        """Adopt the links that an earlier daemon pinned, unless some are missing."""
        found = {name: self._pins.link(name) for name in self._wanted()}
        self._links = {name: link for name, link in found.items() if link is not None}
        if None in found.values():
            self._detach()

    def want(self, wanted: bool) -> bool:
        """Link the programs now, or detach them soon; returns whether they are linked.

        Raises KernelError if the calls cannot be attached to.
        """
        if self._detaching is not None and wanted:
            self._detaching.cancel()
            self._detaching = None
        with self._lock:
            if wanted and not self._links and not (self._calls.may_miss and self._is_closing):
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

    def _wanted(self) -> dict[str, Callable[[], int]]:
        """What makes each link, by the name of its pin."""
        enter, exit_ = self._calls.at_entry, self._calls.at_return
        if self._calls.may_miss:
            enter, exit_ = (tuple(filter(_exists, calls)) for calls in (enter, exit_))
        enter_fd, exit_fd = map(self._program_fd, self._functions)
        makers: _Makers = _at_functions if self._method is SyscallMethod.FUNCTIONS else _at_tracepoints
        return {
            **makers(self._calls.name, "enter", enter, enter_fd),
            **makers(self._calls.name, "exit", exit_, exit_fd),
        }

    def _link(self) -> None:
        ensure_tracefs()
        try:
            for name, make in self._wanted().items():
                self._links[name] = link = make()
                self._pins.pin_link(name, link)
        except OSError as error:
            self._detach()
            raise errors.KernelError(
                f"system calls cannot be attached to: {error.strerror or error}",
                _HINTS[self._method],
            ) from error

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


def _at_functions(
    set_name: str, end: str, calls: Sequence[str], program_fd: int
) -> dict[str, Callable[[], int]]:
    if not calls:
        return {}
    functions, at_return = [function_of(call) for call in calls], end == "exit"
    return {f"{set_name}_{end}": lambda: bpf.link_kprobe_multi(program_fd, functions, at_return)}


def _at_tracepoints(
    _set_name: str, end: str, calls: Sequence[str], program_fd: int
) -> dict[str, Callable[[], int]]:
    def make(tracepoint: str) -> int:
        return bpf.link_perf_event(program_fd, bpf.open_tracepoint_event(tracepoint), cookie=0)

    return {f"sys_{end}_{call}": partial(make, f"syscalls/sys_{end}_{call}") for call in calls}


def _exists(call: str) -> bool:
    return bpf.has_tracepoint(f"syscalls/sys_enter_{call}")
