"""Empty probes, and the kernel's own account of how long programs run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from bpfleakd.kernel import bpf
from bpfleakd.kernel.bpf import AttachType, ProgramType
from bpfleakd.kernel.probes import points
from bpfleakd.kernel.probes.links import close_all
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.tracing.attaching.discovery import Discovery

_SYS_BPF = 321  # x86-64
_ENABLE_STATS = 32  # enum bpf_cmd; counts while its descriptor is open
_STATS_RUN_TIME = 0
_OBJ_GET_INFO_BY_FD = 15
_RUN_TIME_OFFSET = 192  # run_time_ns and run_cnt in struct bpf_prog_info

# r0 = 0; exit
_EMPTY_PROGRAM = bytes.fromhex("b700000000000000 9500000000000000")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class HeapPoints:
    """Where bpfleakd places its probes for malloc and free: file offsets in the C library at `path`."""

    path: str
    malloc: int
    free: int


@dataclass(frozen=True, slots=True)
class RunTime:
    """The total run time of a program."""

    ns: int
    runs: int

    def since(self, earlier: RunTime) -> float:
        """Nanoseconds per run since then."""
        return (self.ns - earlier.ns) / max(1, self.runs - earlier.runs)


def heap_points(pid: int) -> HeapPoints:
    """Choose the probe points of malloc and free in a process' C library, as an attach does."""
    files = Discovery(Helpers([points.__name__])).files(open_code(pid, read_mappings(pid)))
    (file,) = (file for file in files if "malloc" in (function.function for function in file.functions))
    offsets = {function.function: function.offset for function in file.functions}
    return HeapPoints(os.readlink(file.path), offsets["malloc"], offsets["free"])


@contextlib.contextmanager
def empty_probes(points: HeapPoints, pid: int, *, at_return: bool) -> Iterator[int]:
    """Empty probes on malloc and free, and with `at_return` on malloc's return; yields a program."""
    descriptors: list[int] = []
    try:
        program = bpf.program_load(ProgramType.KPROBE, _EMPTY_PROGRAM, AttachType.UPROBE_MULTI, "bench_empty")
        descriptors.append(program)
        link = bpf.link_uprobe_multi
        both = {points.malloc: 0, points.free: 0}
        descriptors.append(link(program, AttachType.UPROBE_MULTI, points.path, both, pid))
        if at_return:
            malloc = {points.malloc: 0}
            descriptors.append(link(program, AttachType.UPROBE_MULTI, points.path, malloc, pid, True))
        yield program
    finally:
        close_all(descriptors)


@contextlib.contextmanager
def run_time_counted() -> Iterator[None]:
    """Make the kernel count the run time of all programs, which costs each run some 20 ns."""
    fd = _bpf(_ENABLE_STATS, bytearray(struct.pack("=I", _STATS_RUN_TIME)))
    try:
        yield
    finally:
        os.close(fd)


def run_time_of(program: int) -> RunTime:
    """Run time of a program since it was loaded, as far as the kernel counted it."""
    info = bytearray(_RUN_TIME_OFFSET + 16)
    view = (ctypes.c_char * len(info)).from_buffer(info)
    _bpf(_OBJ_GET_INFO_BY_FD, bytearray(struct.pack("=IIQ", program, len(info), ctypes.addressof(view))))
    return RunTime(*struct.unpack_from("=QQ", info, _RUN_TIME_OFFSET))


def _bpf(command: int, attributes: bytearray) -> int:
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    result = _libc.syscall(_SYS_BPF, command, buffer, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
