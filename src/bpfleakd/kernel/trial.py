"""Tries what works on this kernel, by attaching to this process.

Kernels differ in more than their version says: uprobe multi of Linux 6.6 to 6.9 filtered by thread instead of
by process, and distributions backport fixes. So a second thread of this process calls two functions of libc
that nothing else here calls, in the roles of an allocator: `getpid` for a malloc (the pid is the "address")
and `getppid` for free. The live table must then show the allocation and miss the freed one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path

from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.bpf import AttachType, ProgramType
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.probes.links import Linker, ProbePoint, close_all
from bpfleakd.kernel.programs import SyscallMethod, WalkerKind, function_of, has_come
from bpfleakd.model.code.probe import FunctionRole

_SIZE_BYTES = 23
_FTRACE_ENABLED = Path("/proc/sys/kernel/ftrace_enabled")


def best_walker(passed_over: dict[str, str]) -> WalkerKind:
    """may_goto if the kernel supports the instruction, found out by loading a loop of it.

    Otherwise `passed_over` receives the reason.
    """
    # r0 = 0; again: may_goto end; goto again; end: exit. Linux 6.12.107 refuses one that leads to the next
    # instruction.
    program = bytes.fromhex("b700000000000000 e500010000000000 0500feff00000000 9500000000000000")
    try:
        os.close(bpf.program_load(ProgramType.KPROBE, program, AttachType.NONE, "may_goto"))
    except OSError as error:
        passed_over[WalkerKind.MAY_GOTO] = error.strerror or str(error)
        return WalkerKind.TAIL_CALLS
    return WalkerKind.MAY_GOTO


def best_syscall_method(walker: WalkerKind, release: str) -> SyscallMethod:
    """How to attach to system calls: at their functions if a link to the return of one can be made.

    Walks that need several programs cannot continue from there. If the sysctl is 0, links are made, but their
    programs never run.
    """
    if walker is WalkerKind.TAIL_CALLS or not has_come(SyscallMethod.FUNCTIONS, release):
        return SyscallMethod.TRACEPOINTS
    with contextlib.suppress(OSError):
        if _FTRACE_ENABLED.read_text().strip() != "1":
            return SyscallMethod.TRACEPOINTS
    # r0 = 0; exit
    program = bytes.fromhex("b700000000000000 9500000000000000")
    try:
        fd = bpf.program_load(ProgramType.KPROBE, program, AttachType.KPROBE_MULTI, "function")
        try:
            os.close(bpf.link_kprobe_multi(fd, [function_of("mremap")], at_return=True))
        finally:
            os.close(fd)
    except OSError:
        return SyscallMethod.TRACEPOINTS
    return SyscallMethod.FUNCTIONS


def try_linker(linker: Linker, maps: Maps) -> None:
    """Raise OSError, with the reason in words, if programs attached by `linker` do not record correctly."""
    pid = os.getpid()
    libc = ctypes.CDLL(None)
    path, allocate = _point("getpid", libc.getpid, FunctionRole.SIZE_FIRST)
    _path, release = _point("getppid", libc.getppid, FunctionRole.RELEASE)
    maps.add_process(pid, live_blocks=16)
    links: list[int] = []
    try:
        links = linker.link(path, [allocate, release], pid, maps.slot_of(pid))
        maps.set_state(pid, abi.RecordingState.RECORDING)
        _in_thread(libc.getpid, _SIZE_BYTES)
        sizes = {
            int(address): int(block["size"])
            for addresses, blocks in maps.live_blocks(pid)
            for address, block in zip(addresses, blocks, strict=True)
        }
        if sizes != {pid: _SIZE_BYTES}:
            raise OSError(0, f"a call and its return were recorded as {sizes}")
        _in_thread(libc.getppid, pid)
        if any(len(addresses) for addresses, _blocks in maps.live_blocks(pid)):
            raise OSError(0, "a free was not recorded")
    finally:
        close_all(links)
        maps.remove_process(pid)


def _point(name: str, function: object, role: FunctionRole) -> tuple[str, ProbePoint]:
    address = ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _rights, offset, _device, _inode, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            point = ProbePoint(address - start + int(offset, 16), role, abi.role_arguments(role))
            return path[0], point
    raise OSError(0, f"{name} is in no mapping")


def _in_thread(function: object, argument: int) -> None:
    call = threading.Thread(target=function, args=(ctypes.c_ulong(argument),))  # type: ignore[arg-type]
    call.start()
    call.join()
