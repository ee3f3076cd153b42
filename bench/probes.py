"""Probes that do nothing, and the kernel's own account of how long programs run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bpfleakd.kernel import bpf
from bpfleakd.kernel.bpf import AttachType, ProgramType
from bpfleakd.kernel.links import close_all
from bpfleakd.kernel.probe_points import find_probe_points
from bpfleakd.target.allocators import allocators_in
from bpfleakd.target.mappings import mapped_file, read_mappings

__all__ = ["HeapPoints", "RunTime", "empty_probes", "empty_program", "heap_points", "run_time_counted", "run_time_of"]

_SYS_BPF = 321  # x86-64
_ENABLE_STATS = 32  # enum bpf_cmd; counts while its descriptor is open
_STATS_RUN_TIME = 0
_OBJ_GET_INFO_BY_FD = 15
_RUN_TIME_OFFSET = 192  # run_time_ns and run_cnt in struct bpf_prog_info

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class HeapPoints:
    """Where bpfleakd puts its probes for malloc and free: file offsets in the C library at `path`."""

    path: str
    malloc: int
    free: int


@dataclass(frozen=True, slots=True)
class RunTime:
    """How long a program has run, all runs together."""

    ns: int
    runs: int

    def since(self, earlier: RunTime) -> float:
        """Nanoseconds a run since then."""
        return (self.ns - earlier.ns) / max(1, self.runs - earlier.runs)


def heap_points(pid: int) -> HeapPoints:
    """Choose the probe points of malloc and free in a process, as an attach does."""
    _allocator, mapping = allocators_in(read_mappings(pid))[0]
    path = mapped_file(pid, mapping)
    offsets = {point.function: point.offset for point in find_probe_points(path, ["malloc"], ["free"])}
    return HeapPoints(path, offsets["malloc"], offsets["free"])


def empty_program(attach_type: AttachType, result: int = 0) -> int:
    """Load a program that only returns `result`: `r0 = result; exit`."""
    instructions = struct.pack("=BBhi", 0xB7, 0, 0, result) + struct.pack("=BBhi", 0x95, 0, 0, 0)
    return bpf.program_load(ProgramType.KPROBE, instructions, attach_type, "bench_empty")


@contextlib.contextmanager
def empty_probes(points: HeapPoints, pid: int, *, at_return: bool) -> Iterator[int]:
    """Probes that do nothing on malloc and free, and `at_return` of malloc too; yields a program."""
    descriptors: list[int] = []
    try:
        program = empty_program(AttachType.UPROBE_MULTI)
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
    """Let the kernel count the run time of all programs; that costs each run some 20 ns."""
    fd = _bpf(_ENABLE_STATS, bytearray(struct.pack("=I", _STATS_RUN_TIME)))
    try:
        yield
    finally:
        os.close(fd)


def run_time_of(programs: Sequence[int]) -> RunTime:
    """Run time of programs (descriptors) together."""
    total_ns = total_runs = 0
    for program in programs:
        info = bytearray(_RUN_TIME_OFFSET + 16)
        view = (ctypes.c_char * len(info)).from_buffer(info)
        _bpf(_OBJ_GET_INFO_BY_FD, bytearray(struct.pack("=IIQ", program, len(info), ctypes.addressof(view))))
        ns, runs = struct.unpack_from("=QQ", info, _RUN_TIME_OFFSET)
        total_ns, total_runs = total_ns + ns, total_runs + runs
    return RunTime(total_ns, total_runs)


def open_pinned(paths: Sequence[Path]) -> list[int]:
    """Open pinned programs; the caller closes them."""
    return [bpf.object_get(path) for path in paths]


def _bpf(command: int, attributes: bytearray) -> int:
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    result = _libc.syscall(_SYS_BPF, command, buffer, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
