"""Stops the threads of another process for a moment, and reads their registers.

This uses ptrace(2): PTRACE_SEIZE and PTRACE_INTERRUPT. It sends no signal to the process and changes nothing
in it; but a few blocking system calls may return EINTR afterwards, as under strace or gdb (signal(7) lists
them: epoll_wait is one).

Rules:
  - ptrace binds a tracee to one thread of the tracer: that of `Held`, which does nothing else. It releases
    the tracees on request or after the time limit, whatever the rest of this process does.
  - If that thread or this process ends, the kernel releases the tracees.
  - A thread that a signal had stopped before stays stopped, and signals sent meanwhile arrive afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.process.proc_text import status_fields
from bpfleakd.process.process import command_of
from bpfleakd.threads import begin_thread

PROC = Path("/proc")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long

# include/uapi/linux/ptrace.h
_PTRACE_DETACH = 17
_PTRACE_GETREGSET = 0x4204
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
_PTRACE_EVENT_STOP = 128
# include/uapi/linux/elf.h
_NT_PRSTATUS = 1
_NT_X86_XSTATE = 0x202
# include/uapi/linux/wait.h
_WALL = 0x4000_0000

# struct user_regs_struct
_REGISTERS_BYTES = 27 * 8
_RSP = 19
_FS_BASE = 21
# AVX-512 and AMX take 11 KB.
_VECTORS_BYTES = 16 << 10
_POLL_S = 0.0002


class ThreadRegisters(Struct, frozen=True, eq=False):
    """A thread's stack pointer, its thread pointer (%fs), and all its registers as words (vectors too)."""

    tid: int
    stack_pointer: int
    thread_pointer: int
    words: NDArray[np.uint64]


class Held:
    """Threads that are stopped from `hold` until `release`, or until the time limit."""

    def __init__(self, pid: int, limit_s: float, when_over: Callable[[], object], proc: Path) -> None:
        self._pid = pid
        self._limit_s = limit_s
        self._when_over = when_over
        self._proc = proc
        self._ready = threading.Event()
        self._release = threading.Event()
        self._failure: errors.BpfleakdError | None = None
        self._signals: dict[int, int] = {}
        self._holding = False
        self.registers: tuple[ThreadRegisters, ...] = ()
        self.stopped_s = 0.0
        self._thread = begin_thread("stopper", self._run)
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    @property
    def is_holding(self) -> bool:
        """Whether the process has been stopped from the beginning until now."""
        return self._holding

    def let_go(self) -> None:
        """Let the threads continue; returns when they run. `stopped_s` is final then."""
        self._release.set()
        self._thread.join()

    # In the tracing thread.

    def _run(self) -> None:
        began = time.monotonic()
        deadline = began + self._limit_s
        try:
            self._stop_all(deadline)
            self.registers = tuple(filter(None, map(_registers, self._signals)))
            if not self.registers:
                raise errors.NoSuchProcess(f"process {self._pid} has ended")
            self._holding = True
        except errors.BpfleakdError as error:
            self._failure = error
        else:
            self._ready.set()
            self._release.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self._holding = False
            for tid, number in self._signals.items():
                _ptrace(_PTRACE_DETACH, tid, number)
            self.stopped_s = time.monotonic() - began
            self._when_over()
            self._ready.set()

    def _stop_all(self, deadline: float) -> None:
        """Stop every thread, including those that others start meanwhile."""
        while fresh := [tid for tid in self._threads() if tid not in self._signals]:
            seized = [tid for tid in fresh if self._seize(tid)]
            if not seized:
                return  # those that are left are dead
            for tid in seized:
                self._wait_for(tid, deadline)

    def _threads(self) -> list[int]:
        try:
            return [int(tid) for tid in os.listdir(self._proc / str(self._pid) / "task")]
        except OSError as error:
            raise errors.NoSuchProcess(f"process {self._pid} has ended") from error

    def _seize(self, tid: int) -> bool:
        number = _ptrace(_PTRACE_SEIZE, tid, 0)
        if number == errno.ESRCH:
            return False  # it has ended
        if number == errno.EPERM:
            tracer = tracer_of(tid, self._proc)
            if tracer:
                raise traced_by_another(self._pid, tracer, self._proc)
            if _is_dead(self._proc / str(self._pid) / "task" / str(tid)):
                return False
        if number:
            words = f"thread {tid} of process {self._pid} cannot be stopped: {os.strerror(number)}"
            raise errors.AccessDenied(words, "the daemon needs CAP_SYS_PTRACE; --no-stop works without it")
        _ptrace(_PTRACE_INTERRUPT, tid, 0)
        return True

    def _wait_for(self, tid: int, deadline: float) -> None:
        while True:
            try:
                done, status = os.waitpid(tid, os.WNOHANG | _WALL)
            except ChildProcessError:
                return  # ended, and taken by its process
            if done and os.WIFSTOPPED(status):
                # A pending signal stops the thread as well, and must be delivered to it.
                at_event = status >> 16 == _PTRACE_EVENT_STOP
                self._signals[tid] = 0 if at_event else os.WSTOPSIG(status)
                return
            if done:
                return
            if time.monotonic() > deadline:
                raise errors.TargetRefused(
                    f"thread {tid} of process {self._pid} did not stop within {self._limit_s * 1000:g} ms",
                    "it is blocked in the kernel: retry, raise --stop-limit, or use --no-stop",
                )
            time.sleep(_POLL_S)


def _nothing() -> None:
    pass


def hold(pid: int, limit_s: float, *, when_over: Callable[[], object] = _nothing, proc: Path = PROC) -> Held:
    """Stop all threads of a process, for at most `limit_s`; `when_over` is called as soon as they continue.

    Raises NoSuchProcess, AccessDenied, or TargetRefused: another one traces it, or it did not stop in time.
    """
    tracer = tracer_of(pid, proc)
    if tracer:
        raise traced_by_another(pid, tracer, proc)
    return Held(pid, limit_s, when_over, proc)


def tracer_of(pid: int, proc: Path = PROC) -> int:
    """The pid of the process' ptrace tracer; 0 for none. Raises NoSuchProcess."""
    try:
        thread = _status_number(proc / str(pid), "TracerPid")
    except OSError as error:
        raise errors.NoSuchProcess(f"process {pid} has ended") from error
    try:
        # The kernel names the tracing thread.
        return _status_number(proc / str(thread), "Tgid") if thread else 0
    except OSError:
        return 0  # It has just ended, and was released.


def traced_by_another(pid: int, tracer: int, proc: Path = PROC) -> errors.TargetRefused:
    """The error for a process that already has a tracer; there can be only one."""
    return errors.TargetRefused(
        f"process {pid} is already being traced by {command_of(tracer, proc) or 'another one'} "
        f"(process {tracer})",
        "wait until it detaches, or use --no-stop",
    )


def _status_number(directory: Path, name: str) -> int:
    return int(status_fields(directory).get(name, "0"))


def _is_dead(directory: Path) -> bool:
    try:
        stat = (directory / "stat").read_bytes()
    except OSError:
        return True
    return stat[stat.rindex(b")") + 2 :][:1] in b"ZX"


def _registers(tid: int) -> ThreadRegisters | None:
    general = _register_set(tid, _NT_PRSTATUS, _REGISTERS_BYTES)
    if len(general) < _REGISTERS_BYTES // 8:
        return None  # it has been killed
    words = np.concatenate([general, _register_set(tid, _NT_X86_XSTATE, _VECTORS_BYTES)])
    return ThreadRegisters(tid, int(general[_RSP]), int(general[_FS_BASE]), words)


def _register_set(tid: int, number: int, size_bytes: int) -> NDArray[np.uint64]:
    words = np.zeros(size_bytes // 8, np.uint64)
    iovec = (ctypes.c_size_t * 2)(words.ctypes.data, words.nbytes)
    if _ptrace(_PTRACE_GETREGSET, tid, ctypes.addressof(iovec), number):
        return words[:0]
    return words[: iovec[1] // 8]


def _ptrace(request: int, tid: int, data: int, address: int = 0) -> int:
    """Returns 0, or the errno."""
    ctypes.set_errno(0)
    result = _libc.ptrace(
        ctypes.c_long(request), ctypes.c_long(tid), ctypes.c_void_p(address), ctypes.c_void_p(data)
    )
    return ctypes.get_errno() if result < 0 else 0
