"""perf_event_open(2) by ctypes: events of tracepoints and uprobes, to link programs to."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

from bpfleakd.kernel.bpf.command import address_of, libc

_SYS_PERF_EVENT_OPEN = 298  # x86-64
_PERF_TYPE_TRACEPOINT = 2
_PERF_DISABLED = 1
_PERF_USE_CLOCKID = 1 << 25
_PERF_SAMPLE_TIME, _PERF_SAMPLE_RAW = 1 << 2, 1 << 10
# PERF_UPROBE_REF_CTR_OFFSET_SHIFT
_SEMAPHORE_SHIFT = 32
_TRACEFS = Path("/sys/kernel/tracing")


def has_tracepoint(tracepoint: str) -> bool:
    """Whether the kernel has a tracepoint such as "syscalls/sys_enter_mmap", and tracefs is mounted."""
    return (_TRACEFS / "events" / tracepoint / "id").exists()


def open_tracepoint_event(tracepoint: str) -> int:
    """Open a perf event of a tracepoint such as "syscalls/sys_enter_mmap"; returns its descriptor.

    Raises FileNotFoundError if the tracepoint does not exist, or tracefs is not mounted.
    """
    number = int((_TRACEFS / "events" / tracepoint / "id").read_text())
    attributes = bytearray(128)
    struct.pack_into("=IIQ", attributes, 0, _PERF_TYPE_TRACEPOINT, len(attributes), number)
    # For all processes, on any single processor: a program linked to it runs on all of them.
    return _perf_event_open(attributes, pid=-1, cpu=0, name=tracepoint)


def open_recorded_tracepoint_event(tracepoint: str, cpu: int) -> int:
    """Open a perf event that records a tracepoint's records on one processor, in a ring to be mapped.

    Each sample has its time (CLOCK_MONOTONIC) and the tracepoint's record. Raises as `open_tracepoint_event`.
    """
    number = int((_TRACEFS / "events" / tracepoint / "id").read_text())
    attributes = bytearray(128)
    struct.pack_into("=IIQ", attributes, 0, _PERF_TYPE_TRACEPOINT, len(attributes), number)
    struct.pack_into("=QQ", attributes, 16, 1, _PERF_SAMPLE_TIME | _PERF_SAMPLE_RAW)  # each one
    struct.pack_into("=Q", attributes, 40, _PERF_USE_CLOCKID)
    struct.pack_into("=i", attributes, 92, time.CLOCK_MONOTONIC)
    return _perf_event_open(attributes, pid=-1, cpu=cpu, name=tracepoint)


def open_shared_event(number: int, pid: int) -> int:
    """Open a perf event of tracing event `number` for process `pid`, which itself counts nothing.

    A program linked to another perf event of the same tracing event runs for this process as well.
    """
    attributes = bytearray(128)
    struct.pack_into("=IIQ", attributes, 0, _PERF_TYPE_TRACEPOINT, len(attributes), number)
    # Not enabled: the kernel would switch an enabled event at each context switch. The probe exists anyway.
    struct.pack_into("=Q", attributes, 40, _PERF_DISABLED)
    return _perf_event_open(attributes, pid=pid, cpu=-1, name=f"event {number}")


def open_uprobe_event(path: str, offset: int, pid: int, at_return: bool, semaphore: int = 0) -> int:
    """Open a perf event of the uprobe PMU for process `pid`; returns its descriptor.

    `semaphore` as for `link_uprobe_multi`.

    FileNotFoundError if the kernel has no uprobe PMU.
    """
    pmu = Path("/sys/bus/event_source/devices/uprobe")
    pmu_type = int((pmu / "type").read_text())
    return_bit = int((pmu / "format/retprobe").read_text().removeprefix("config:"))
    name = os.fsencode(path) + b"\0"
    attributes = bytearray(128)
    config = (1 << return_bit if at_return else 0) | semaphore << _SEMAPHORE_SHIFT
    struct.pack_into("=IIQ", attributes, 0, pmu_type, len(attributes), config)
    struct.pack_into("=QQ", attributes, 56, address_of(name), offset)  # uprobe_path, probe_offset
    return _perf_event_open(attributes, pid=pid, cpu=-1, name=path)


def _perf_event_open(attributes: bytearray, *, pid: int, cpu: int, name: str) -> int:
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    close_on_exec = 8
    fd: int = libc.syscall(_SYS_PERF_EVENT_OPEN, buffer, pid, cpu, -1, close_on_exec)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return fd
