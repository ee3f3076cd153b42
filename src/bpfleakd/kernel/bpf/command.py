"""bpf(2) by ctypes: the call, and helpers for all commands."""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntEnum
from pathlib import Path

import numpy as np

libc = ctypes.CDLL(None, use_errno=True)
SYS_BPF = 321  # x86-64
_NAME_BYTES = 16


class Command(IntEnum):
    """enum bpf_cmd: the commands used here."""

    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_DELETE_ELEM = 3
    MAP_GET_NEXT_KEY = 4
    PROG_LOAD = 5
    OBJ_PIN = 6
    OBJ_GET = 7
    MAP_GET_FD_BY_ID = 14
    OBJ_GET_INFO_BY_FD = 15
    RAW_TRACEPOINT_OPEN = 17
    MAP_LOOKUP_BATCH = 24
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28


def u32(number: int) -> bytes:
    """A key or value of four bytes."""
    return number.to_bytes(4, "little")


def bpf_call(command: Command, attributes: bytes | bytearray) -> int:
    """Run a command; returns a descriptor or 0. Raises OSError."""
    buffer = (ctypes.c_char * len(attributes)).from_buffer(bytearray(attributes))
    result: int = libc.syscall(SYS_BPF, int(command), buffer, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def address_of(buffer: bytes | bytearray | np.ndarray | None) -> int:
    """Address of a buffer that the caller keeps alive; 0 for None."""
    if buffer is None:
        return 0
    if isinstance(buffer, bytes):
        return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0
    if isinstance(buffer, bytearray):
        return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
    return buffer.ctypes.data


def object_name(text: str) -> bytes:
    """A text as the kernel accepts it for an object's name."""
    return text.encode()[: _NAME_BYTES - 1]


def object_pin(fd: int, path: Path) -> None:
    """Pin the object under a name in bpffs. Raises FileExistsError if the name is taken."""
    target = os.fsencode(path) + b"\0"
    bpf_call(Command.OBJ_PIN, struct.pack("=QII", address_of(target), fd, 0))


def object_get(path: Path) -> int:
    """Open a pinned object. Raises FileNotFoundError if it does not exist."""
    target = os.fsencode(path) + b"\0"
    return bpf_call(Command.OBJ_GET, struct.pack("=QII", address_of(target), 0, 0))
