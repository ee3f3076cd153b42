"""BPF programs by bpf(2): load them, query them, and link them to events."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np

from bpfleakd.kernel.bpf.command import Command, address_of, bpf_call, object_name

# struct bpf_prog_info
_PROGRAM_INFO_BYTES = 256
_MACHINE_CODE_LENGTH_AT = 16
_MACHINE_CODE_AT = 24
_RECURSION_MISSES_AT = 208
# BPF_F_UPROBE_MULTI_RETURN, BPF_F_KPROBE_MULTI_RETURN
_LINK_FLAG_RETURN = 1


class ProgramType(IntEnum):
    """enum bpf_prog_type: the types used here."""

    KPROBE = 2
    TRACEPOINT = 5
    RAW_TRACEPOINT = 17


class AttachType(IntEnum):
    """enum bpf_attach_type: the types used here."""

    NONE = 0
    PERF_EVENT = 41
    KPROBE_MULTI = 42
    UPROBE_MULTI = 48
    UPROBE_SESSION = 57


def program_load(program_type: ProgramType, instructions: bytes, attach_type: AttachType, name: str) -> int:
    """Verify and load a program. An OSError contains the last lines of the verifier's log."""
    license_text = b"GPL\0"
    log = bytearray(0)
    for log_bytes in (0, 1 << 20):
        log = bytearray(log_bytes)
        attributes = struct.pack(
            "=IIQQIIQII16sII",
            program_type,
            len(instructions) // 8,
            address_of(instructions),
            address_of(license_text),
            1 if log else 0,
            len(log),
            address_of(log) if log else 0,
            0,
            0,
            object_name(name),
            0,
            attach_type,
        )
        try:
            return bpf_call(Command.PROG_LOAD, attributes)
        except OSError as error:
            failure = error
    text = log.split(b"\0", 1)[0].decode(errors="replace").strip().splitlines()
    raise OSError(failure.errno, f"{failure.strerror}: {name}: " + " | ".join(text[-4:]))


def program_machine_code(fd: int) -> bytes:
    """The JIT's machine code of a program; empty if the kernel interprets it or hides it (kptr_restrict)."""
    room = 0
    while True:
        code = bytearray(room)
        info = bytearray(_PROGRAM_INFO_BYTES)
        struct.pack_into("=I", info, _MACHINE_CODE_LENGTH_AT, room)
        struct.pack_into("=Q", info, _MACHINE_CODE_AT, address_of(code) if room else 0)
        bpf_call(Command.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), address_of(info)))
        (length,) = struct.unpack_from("=I", info, _MACHINE_CODE_LENGTH_AT)
        (address,) = struct.unpack_from("=Q", info, _MACHINE_CODE_AT)
        if length <= room:
            return bytes(code[:length]) if address else b""
        room = length


def program_misses(fd: int) -> int:
    """How many runs of a program the kernel has skipped; 0 if it does not count them."""
    info = bytearray(_PROGRAM_INFO_BYTES)
    bpf_call(Command.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), address_of(info)))
    (misses,) = struct.unpack_from("=Q", info, _RECURSION_MISSES_AT)
    return int(misses)


def raw_tracepoint_open(program_fd: int, tracepoint: str) -> int:
    """Attach a program to a raw tracepoint; returns the link."""
    name = tracepoint.encode() + b"\0"
    return bpf_call(Command.RAW_TRACEPOINT_OPEN, struct.pack("=QIxxxx", address_of(name), program_fd))


def link_uprobe_multi(
    program_fd: int,
    attach_type: AttachType,
    path: str,
    cookies: Mapping[int, int],
    pid: int,
    at_return: bool = False,
    semaphores: Mapping[int, int] | None = None,
) -> int:
    """Attach a program at file offsets of `path` in process `pid`; returns the link.

    `cookies` maps each offset to the result of bpf_get_attach_cookie there, and `semaphores` to the offset of
    the counter that the kernel increments in the process while the probe exists; 0: none.

    Raises OSError: ESRCH if the process is gone, EINVAL or EOPNOTSUPP from a kernel without this attach type.
    """
    name = os.fsencode(path) + b"\0"
    offsets = np.array(list(cookies.keys()), np.uint64)
    cookie_array = np.array(list(cookies.values()), np.uint64)
    counted = None
    if semaphores is not None:
        counted = np.array([semaphores[offset] for offset in cookies], np.uint64)
    attributes = struct.pack(
        "=IIIIQQQQIIII",
        program_fd,
        0,
        attach_type,
        0,
        address_of(name),
        address_of(offsets),
        address_of(counted),
        address_of(cookie_array),
        len(offsets),
        _LINK_FLAG_RETURN if at_return else 0,
        pid,
        0,
    )
    return bpf_call(Command.LINK_CREATE, attributes)


def link_kprobe_multi(program_fd: int, functions: Sequence[str], at_return: bool = False) -> int:
    """Attach a program to functions of the kernel, for all processes; returns the link.

    Raises OSError: ENOENT if the kernel lacks one of the functions, EOPNOTSUPP without CONFIG_FPROBE.
    """
    names = [function.encode() + b"\0" for function in functions]
    addresses = np.array([address_of(name) for name in names], np.uint64)
    # Linux 6.18.15 dereferences a null pointer when anyone reads the fdinfo of a link without cookies
    # (bpf_kprobe_multi_show_fdinfo).
    cookies = np.zeros(len(names), np.uint64)
    attributes = struct.pack(
        "=IIIIIIQQQ",
        program_fd,
        0,
        AttachType.KPROBE_MULTI,
        0,
        _LINK_FLAG_RETURN if at_return else 0,
        len(names),
        address_of(addresses),
        0,
        address_of(cookies),
    )
    return bpf_call(Command.LINK_CREATE, attributes)


def link_perf_event(program_fd: int, event_fd: int, cookie: int) -> int:
    """Attach a program to a perf event; returns the link, which keeps the event alive.

    Closes `event_fd`, also on failure.
    """
    attributes = struct.pack("=IIIIQ", program_fd, event_fd, AttachType.PERF_EVENT, 0, cookie)
    try:
        return bpf_call(Command.LINK_CREATE, attributes)
    finally:
        os.close(event_fd)
