"""Drops every privilege that a parser does not need, permanently.

    lock_down(LONG_LIVED)   # a process that will fork workers
    lock_down(WORKER)       # a worker: it computes, reads its descriptors, answers

It leaves an allow-list of system calls (seccomp(2)) that open nothing: no path, no socket, no program. All
other calls fail with EPERM. It also leaves no capabilities, no new privileges, no core file, an empty root
directory and a separate user (if we may change them), and limits of memory, time and descriptors.

x86-64 only. The filter is a few lines of classic BPF (Documentation/userspace-api/seccomp_filter.rst), so
that no library is needed for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import struct
from collections.abc import Collection

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_SECCOMP_MODE_FILTER = 2
_CAP_HEADER = struct.pack("=Ii", 0x20080522, 0)
_NOBODY = 65_534
_UNUSED_IDS = range(1 << 31, (1 << 32) - 1)

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x4000_0000
_RET_KILL, _RET_ERRNO, _RET_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _AND_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH = 0, 4
_PROT_EXEC = 4
_FORK_FLAGS = 0x01200011  # CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD: the flags of fork(3)

# Numbers of include/uapi/asm/unistd_64.h.
_READING = {
    "read": 0, "close": 3, "fstat": 5, "lseek": 8, "pread64": 17, "readv": 19, "dup": 32, "fcntl": 72,
    "newfstatat": 262, "preadv": 295,
}  # fmt: skip
_ANSWERING = {
    "write": 1,
    "poll": 7,
    "writev": 20,
    "sendto": 44,
    "recvfrom": 45,
    "sendmsg": 46,
    "recvmsg": 47,
    "ppoll": 271,
}
_MEMORY = {"munmap": 11, "brk": 12, "mremap": 25, "madvise": 28}
_LIFE = {
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "getpid": 39, "exit": 60,
    "times": 100, "getrusage": 98, "sigaltstack": 131, "gettid": 186, "futex": 202, "sched_getaffinity": 204,
    "restart_syscall": 219, "clock_gettime": 228, "exit_group": 231, "set_robust_list": 273, "getrandom": 318,
    "rseq": 334,
}  # fmt: skip
_FORKING = {
    "setitimer": 38, "getsockname": 51, "socketpair": 53, "wait4": 61, "sched_setscheduler": 144,
    "prctl": 157, "prlimit64": 302,
}  # fmt: skip
_MMAP, _MPROTECT, _CLONE, _CLONE3 = 9, 10, 56, 435

WORKER = frozenset({**_READING, **_ANSWERING, **_MEMORY, **_LIFE}.values())
"""System calls of a process that computes and answers."""
LONG_LIVED = frozenset({*WORKER, *_FORKING.values(), _CLONE})
"""The same for one that forks workers, limits them and locks them down further."""


def lock_down(system_calls: Collection[int]) -> None:
    """Give up everything but these system calls; a later call may reduce them further. Raises OSError."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if _CLONE in system_calls:
        _give_up_identity()
    _prctl(_PR_SET_DUMPABLE, 0)
    program = seccomp_program(system_calls)
    buffer = ctypes.create_string_buffer(program, len(program))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _sock_fprog(buffer, len(program) // 8))


def limit(*, memory_bytes: int, cpu_s: int, descriptors: int) -> None:
    """Limit the resources of this process; exceeding the CPU time ends it."""
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NOFILE, descriptors),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def seccomp_program(system_calls: Collection[int]) -> bytes:
    """The filter: 8 bytes per instruction (struct sock_filter)."""
    allowed = sorted(system_calls)
    code = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, _AUDIT_ARCH_X86_64, 1, 0),
        _instruction(_RETURN, _RET_KILL),
        _instruction(_LOAD, _NR),
        _instruction(_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _RET_KILL),
        # Memory may be mapped, but never as executable; clone is allowed with fork's flags only.
        *_unless_argument(_MMAP, 2, _PROT_EXEC),
        *_unless_argument(_MPROTECT, 2, _PROT_EXEC),
        *_unless_argument(_CLONE, 0, 0xFFFFFFFF & ~_FORK_FLAGS, only_if=_CLONE in system_calls),
        # glibc then falls back to clone.
        _instruction(_EQUAL, _CLONE3, 0, 1),
        _instruction(_RETURN, _RET_ERRNO | _ENOSYS),
    ]
    for number in allowed:
        if number != _CLONE:
            code += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _RET_ALLOW)]
    code.append(_instruction(_RETURN, _RET_ERRNO | _EPERM))
    return b"".join(code)


def _unless_argument(number: int, argument: int, bits: int, *, only_if: bool = True) -> list[bytes]:
    """Allow a system call unless its argument has any of the bits."""
    if not only_if:
        return []
    return [
        _instruction(_EQUAL, number, 0, 4),
        _instruction(_LOAD, 16 + 8 * argument),
        _instruction(_AND_SET, bits, 0, 1),
        _instruction(_RETURN, _RET_ERRNO | _EPERM),
        _instruction(_RETURN, _RET_ALLOW),
    ]


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _sock_fprog(buffer: ctypes.Array[ctypes.c_char], length: int) -> ctypes.Array[ctypes.c_char]:
    program = struct.pack("@HP", length, ctypes.addressof(buffer))
    return ctypes.create_string_buffer(program, len(program))


def _give_up_identity() -> None:
    # As far as permitted: the allowed system calls open nothing, whatever the user.
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    with contextlib.suppress(OSError):
        os.chroot("/proc/self/fdinfo")
        os.chdir("/")
    with contextlib.suppress(OSError):
        os.setgroups([])
        _become(_unused_id())
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if _libc.capset(_CAP_HEADER, bytes(24)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def _unused_id() -> int:
    """An identity that no process has: who runs as the same user may stop a helper, and so all names.

    Numbers from 2^31 on are given to no user, nor to a user of a container. The last one means "unchanged".
    """
    return _UNUSED_IDS.start + int.from_bytes(os.urandom(4), "little") % len(_UNUSED_IDS)


def _become(user: int) -> None:
    try:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        # A user namespace has no such number: user_namespaces(7).
        if error.errno != errno.EINVAL or user == _NOBODY:
            raise
        _become(_NOBODY)


def _prctl(option: int, *arguments: object) -> None:
    padded = [*arguments, *[0] * (4 - len(arguments))]
    if _libc.prctl(option, *padded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
