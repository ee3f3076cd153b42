"""bpf(2) and perf_event_open(2), by ctypes.

Small on purpose: a process that opens pinned objects through this module needs 11 MB, one that imports
bcc 125 MB. Objects are file descriptors (int); the caller closes them. Every failure is an OSError
with the errno of the system call; callers translate it where they know what was being attempted.

Structure layouts are those of union bpf_attr in include/uapi/linux/bpf.h and struct perf_event_attr.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAP_FLAG_MMAPABLE",
    "MAP_FLAG_NO_PREALLOC",
    "MAP_FLAG_PRESERVE_ELEMS",
    "AttachType",
    "MapInfo",
    "MapType",
    "ProgramType",
    "has_tracepoint",
    "is_map",
    "link_perf_event",
    "link_uprobe_multi",
    "map_batches",
    "map_create",
    "map_delete",
    "map_delete_many",
    "map_get",
    "map_info",
    "map_keys",
    "map_lookup",
    "map_lookup_many",
    "map_update",
    "object_get",
    "object_pin",
    "open_recorded_tracepoint_event",
    "open_shared_event",
    "open_tracepoint_event",
    "open_uprobe_event",
    "program_load",
    "program_machine_code",
    "program_misses",
    "raw_tracepoint_open",
    "u32",
]

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_BPF = 321  # x86-64
_SYS_PERF_EVENT_OPEN = 298  # x86-64
_NAME_BYTES = 16
_PERF_TYPE_TRACEPOINT = 2
# struct bpf_prog_info
_PROGRAM_INFO_BYTES = 256
_MACHINE_CODE_LENGTH_AT = 16
_MACHINE_CODE_AT = 24
_RECURSION_MISSES_AT = 208
_TRACEFS = Path("/sys/kernel/tracing")


class _Command(IntEnum):
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


class MapType(IntEnum):
    """enum bpf_map_type, those used here."""

    HASH = 1
    ARRAY = 2
    PERF_EVENT_ARRAY = 4


class ProgramType(IntEnum):
    """enum bpf_prog_type, those used here."""

    KPROBE = 2
    TRACEPOINT = 5
    RAW_TRACEPOINT = 17


class AttachType(IntEnum):
    """enum bpf_attach_type, those used here."""

    NONE = 0
    PERF_EVENT = 41
    UPROBE_MULTI = 48
    UPROBE_SESSION = 57


MAP_FLAG_NO_PREALLOC = 1
MAP_FLAG_MMAPABLE = 1 << 10
MAP_FLAG_PRESERVE_ELEMS = 1 << 11
_LINK_FLAG_UPROBE_RETURN = 1
_PERF_DISABLED = 1
_PERF_USE_CLOCKID = 1 << 25
_PERF_SAMPLE_TIME, _PERF_SAMPLE_RAW = 1 << 2, 1 << 10
# PERF_UPROBE_REF_CTR_OFFSET_SHIFT
_SEMAPHORE_SHIFT = 32
_ANY = 0


def u32(number: int) -> bytes:
    """A key or value of four bytes."""
    return number.to_bytes(4, "little")


def _bpf(command: _Command, attributes: bytes | bytearray) -> int:
    buffer = (ctypes.c_char * len(attributes)).from_buffer(bytearray(attributes))
    result: int = _libc.syscall(_SYS_BPF, int(command), buffer, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _address(buffer: bytes | bytearray | np.ndarray | None) -> int:
    """Address of a buffer that the caller keeps alive; 0 for None."""
    if buffer is None:
        return 0
    if isinstance(buffer, bytes):
        return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0
    if isinstance(buffer, bytearray):
        return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
    return buffer.ctypes.data


def _name(text: str) -> bytes:
    return text.encode()[: _NAME_BYTES - 1]


def object_pin(fd: int, path: Path) -> None:
    """Give the object a name under bpffs. FileExistsError if the name is taken."""
    target = os.fsencode(path) + b"\0"
    _bpf(_Command.OBJ_PIN, struct.pack("=QII", _address(target), fd, 0))


def object_get(path: Path) -> int:
    """Open a pinned object. FileNotFoundError if it does not exist."""
    target = os.fsencode(path) + b"\0"
    return _bpf(_Command.OBJ_GET, struct.pack("=QII", _address(target), 0, 0))


def map_create(
    map_type: int, key_bytes: int, value_bytes: int, entries: int, flags: int, name: str, inner_fd: int = 0
) -> int:
    """Make a map and return its descriptor. Those in a map of maps are all like the map `inner_fd`."""
    attributes = struct.pack(
        "=IIIIIII16s", map_type, key_bytes, value_bytes, entries, flags, inner_fd, 0, _name(name)
    )
    return _bpf(_Command.MAP_CREATE, attributes)


def map_get(map_id: int) -> int:
    """Open a map by its id, which a look-up in a map of maps gives. FileNotFoundError if it is gone."""
    return _bpf(_Command.MAP_GET_FD_BY_ID, struct.pack("=III", map_id, 0, 0))


class MapInfo(NamedTuple):
    """What a map was made with; `type` is of enum bpf_map_type."""

    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


def map_info(fd: int) -> MapInfo:
    """Return what a map was made with."""
    info = bytearray(256)
    _bpf(_Command.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), _address(info)))
    kind, _id, key_bytes, value_bytes, entries, flags = struct.unpack_from("=IIIIII", info)
    return MapInfo(kind, key_bytes, value_bytes, entries, flags)


def map_update(fd: int, key: bytes, value: bytes, flags: int = _ANY) -> None:
    """Insert or replace an entry. OSError(E2BIG) if the map is full."""
    _bpf(_Command.MAP_UPDATE_ELEM, struct.pack("=IxxxxQQQ", fd, _address(key), _address(value), flags))


def map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """Return the value of a key, None if the key is missing."""
    value = bytearray(value_bytes)
    try:
        _bpf(_Command.MAP_LOOKUP_ELEM, struct.pack("=IxxxxQQQ", fd, _address(key), _address(value), 0))
    except FileNotFoundError:
        return None
    return bytes(value)


def map_lookup_many(fd: int, keys: np.ndarray, value_type: np.dtype) -> tuple[NDArray[np.bool_], np.ndarray]:
    """Look up keys one by one, 1.5 us each: whether each was found, and the values, else zeroes."""
    keys = np.ascontiguousarray(keys)
    values, found = np.zeros(len(keys), value_type), np.ones(len(keys), np.bool_)
    attributes = (ctypes.c_uint64 * 4)(fd)
    place, command = ctypes.c_void_p(ctypes.addressof(attributes)), int(_Command.MAP_LOOKUP_ELEM)
    key_address, value_address = keys.ctypes.data, values.ctypes.data
    for index in range(len(keys)):
        attributes[1] = key_address + index * keys.itemsize
        attributes[2] = value_address + index * values.itemsize
        if _libc.syscall(_SYS_BPF, command, place, 32) < 0:
            number = ctypes.get_errno()
            if number != errno.ENOENT:
                raise OSError(number, os.strerror(number))
            found[index] = False
    return found, values


def map_delete(fd: int, key: bytes) -> bool:
    """Remove an entry; return whether it was there."""
    try:
        _bpf(_Command.MAP_DELETE_ELEM, struct.pack("=IxxxxQQQ", fd, _address(key), 0, 0))
    except FileNotFoundError:
        return False
    return True


def map_keys(fd: int, key_bytes: int) -> Iterator[bytes]:
    """Walk the keys. A map that changes meanwhile may show some twice or start again."""
    key: bytes | None = None
    while True:
        following = bytearray(key_bytes)
        try:
            _bpf(_Command.MAP_GET_NEXT_KEY, struct.pack("=IxxxxQQ", fd, _address(key), _address(following)))
        except FileNotFoundError:
            return
        key = bytes(following)
        yield key


def map_batches(
    fd: int, key_type: np.dtype, value_type: np.dtype, batch_entries: int = 4096
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read a hash map in batches of (keys, values); the arrays are overwritten by the next batch.

    Entries are copied one by one while the programs run: each is whole, together they are not a
    snapshot. BPF_MAP_LOOKUP_BATCH returns ENOSPC where a bucket does not fit; the batch then doubles.
    """
    position: bytes | None = None
    keys = np.empty(batch_entries, key_type)
    values = np.empty(batch_entries, value_type)
    while True:
        following = bytearray(8)
        number, count = _batch(_Command.MAP_LOOKUP_BATCH, fd, keys, values, position, following)
        if number == errno.ENOSPC:
            keys = np.empty(2 * len(keys), key_type)
            values = np.empty(2 * len(values), value_type)
            continue
        if number not in (0, errno.ENOENT):
            raise OSError(number, os.strerror(number))
        if count:
            yield keys[:count], values[:count]
        if number == errno.ENOENT:
            return
        position = bytes(following)


def map_delete_many(fd: int, keys: np.ndarray) -> None:
    """Remove the existing entries of these keys."""
    keys = np.ascontiguousarray(keys)
    while len(keys):
        number, count = _batch(_Command.MAP_DELETE_BATCH, fd, keys)
        if number not in (0, errno.ENOENT):
            raise OSError(number, os.strerror(number))
        # It stops at the first that is not there.
        keys = keys[count + 1 :]


def _batch(
    command: _Command,
    fd: int,
    keys: np.ndarray,
    values: np.ndarray | None = None,
    position: bytes | None = None,
    following: bytearray | None = None,
) -> tuple[int, int]:
    """Run a command on many entries: the error's number, 0 for none, and how many entries it got through."""
    addresses = map(_address, (position, following, keys, values))
    attributes = bytearray(struct.pack("=QQQQIIQQ", *addresses, len(keys), fd, 0, 0))
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    result: int = _libc.syscall(_SYS_BPF, int(command), buffer, len(attributes))
    number = ctypes.get_errno() if result < 0 else 0
    (count,) = struct.unpack_from("=I", attributes, 32)
    return number, count


def program_load(program_type: ProgramType, instructions: bytes, attach_type: AttachType, name: str) -> int:
    """Verify and load a program. OSError carries the last lines of the verifier's log."""
    license_text = b"GPL\0"
    log = bytearray(0)
    for log_bytes in (0, 1 << 20):
        log = bytearray(log_bytes)
        attributes = struct.pack(
            "=IIQQIIQII16sII",
            program_type,
            len(instructions) // 8,
            _address(instructions),
            _address(license_text),
            1 if log else 0,
            len(log),
            _address(log) if log else 0,
            0,
            0,
            _name(name),
            0,
            attach_type,
        )
        try:
            return _bpf(_Command.PROG_LOAD, attributes)
        except OSError as error:
            failure = error
    text = log.split(b"\0", 1)[0].decode(errors="replace").strip().splitlines()
    raise OSError(failure.errno, f"{failure.strerror}: {name}: " + " | ".join(text[-4:]))


def program_machine_code(fd: int) -> bytes:
    """What the JIT made of a program; empty if the kernel interprets it or keeps it (kptr_restrict)."""
    room = 0
    while True:
        code = bytearray(room)
        info = bytearray(_PROGRAM_INFO_BYTES)
        struct.pack_into("=I", info, _MACHINE_CODE_LENGTH_AT, room)
        struct.pack_into("=Q", info, _MACHINE_CODE_AT, _address(code) if room else 0)
        _bpf(_Command.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), _address(info)))
        (length,) = struct.unpack_from("=I", info, _MACHINE_CODE_LENGTH_AT)
        (address,) = struct.unpack_from("=Q", info, _MACHINE_CODE_AT)
        if length <= room:
            return bytes(code[:length]) if address else b""
        room = length


def program_misses(fd: int) -> int:
    """How often the kernel has left out a run of a program; 0 where it does not count that."""
    info = bytearray(_PROGRAM_INFO_BYTES)
    _bpf(_Command.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), _address(info)))
    (misses,) = struct.unpack_from("=Q", info, _RECURSION_MISSES_AT)
    return int(misses)


def raw_tracepoint_open(program_fd: int, tracepoint: str) -> int:
    """Attach a program to a raw tracepoint; returns the link."""
    name = tracepoint.encode() + b"\0"
    return _bpf(_Command.RAW_TRACEPOINT_OPEN, struct.pack("=QIxxxx", _address(name), program_fd))


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

    `cookies` maps each offset to what bpf_get_attach_cookie returns there, and `semaphores` to the offset
    of the number that the kernel counts up in the process for as long as the probe is there; 0: none.

    ESRCH if the process is gone, EINVAL or EOPNOTSUPP from a kernel without this attach type.
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
        _address(name),
        _address(offsets),
        _address(counted),
        _address(cookie_array),
        len(offsets),
        _LINK_FLAG_UPROBE_RETURN if at_return else 0,
        pid,
        0,
    )
    return _bpf(_Command.LINK_CREATE, attributes)


def link_perf_event(program_fd: int, event_fd: int, cookie: int) -> int:
    """Attach a program to a perf event; returns the link, which keeps the event alive.

    `event_fd` is closed, also if that fails.
    """
    attributes = struct.pack("=IIIIQ", program_fd, event_fd, AttachType.PERF_EVENT, 0, cookie)
    try:
        return _bpf(_Command.LINK_CREATE, attributes)
    finally:
        os.close(event_fd)


def has_tracepoint(tracepoint: str) -> bool:
    """Whether the kernel has a tracepoint such as "syscalls/sys_enter_mmap", and tracefs is mounted."""
    return (_TRACEFS / "events" / tracepoint / "id").exists()


def open_tracepoint_event(tracepoint: str) -> int:
    """Open a perf event of a tracepoint such as "syscalls/sys_enter_mmap"; returns its descriptor.

    FileNotFoundError if the tracepoint does not exist, or tracefs is not mounted.
    """
    number = int((_TRACEFS / "events" / tracepoint / "id").read_text())
    attributes = bytearray(128)
    struct.pack_into("=IIQ", attributes, 0, _PERF_TYPE_TRACEPOINT, len(attributes), number)
    # For all processes, on any one processor: a program that is linked to it runs on all of them.
    return _perf_event_open(attributes, pid=-1, cpu=0, name=tracepoint)


def open_recorded_tracepoint_event(tracepoint: str, cpu: int) -> int:
    """Open a perf event that records what a tracepoint writes on one processor, to a ring to be mapped.

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
    """Open a perf event of tracing event `number` for process `pid`, which counts nothing itself.

    A program that is linked to another perf event of the same tracing event runs for this process as well.
    """
    attributes = bytearray(128)
    struct.pack_into("=IIQ", attributes, 0, _PERF_TYPE_TRACEPOINT, len(attributes), number)
    # Not enabled: an enabled one is switched at each context switch. The probe exists anyway.
    struct.pack_into("=Q", attributes, 40, _PERF_DISABLED)
    return _perf_event_open(attributes, pid=pid, cpu=-1, name=f"event {number}")


def is_map(fd: int) -> bool:
    """Whether a descriptor is that of a map, not of a link or program."""
    return "\nmap_type:" in Path(f"/proc/self/fdinfo/{fd}").read_text()


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
    struct.pack_into("=QQ", attributes, 56, _address(name), offset)  # uprobe_path, probe_offset
    return _perf_event_open(attributes, pid=pid, cpu=-1, name=path)


def _perf_event_open(attributes: bytearray, *, pid: int, cpu: int, name: str) -> int:
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    close_on_exec = 8
    fd: int = _libc.syscall(_SYS_PERF_EVENT_OPEN, buffer, pid, cpu, -1, close_on_exec)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return fd
