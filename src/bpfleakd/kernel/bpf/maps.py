"""BPF maps by bpf(2): create, describe, read and write them, one entry or many at a time."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpfleakd.kernel.bpf.command import SYS_BPF, Command, address_of, bpf_call, libc, object_name

MAP_FLAG_NO_PREALLOC = 1
MAP_FLAG_MMAPABLE = 1 << 10
MAP_FLAG_PRESERVE_ELEMS = 1 << 11
_ANY = 0


class MapType(IntEnum):
    """enum bpf_map_type: the types used here."""

    HASH = 1
    ARRAY = 2
    PERF_EVENT_ARRAY = 4


class MapInfo(NamedTuple):
    """The parameters of a map; `type` is of enum bpf_map_type."""

    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


def map_create(
    map_type: int, key_bytes: int, value_bytes: int, entries: int, flags: int, name: str, inner_fd: int = 0
) -> int:
    """Create a map and return its descriptor. All maps in a map of maps are like the map `inner_fd`."""
    attributes = struct.pack(
        "=IIIIIII16s", map_type, key_bytes, value_bytes, entries, flags, inner_fd, 0, object_name(name)
    )
    return bpf_call(Command.MAP_CREATE, attributes)


def map_get(map_id: int) -> int:
    """Open a map by its id, the result of a look-up in a map of maps.

    Raises FileNotFoundError if it is gone.
    """
    return bpf_call(Command.MAP_GET_FD_BY_ID, struct.pack("=III", map_id, 0, 0))


def map_info(fd: int) -> MapInfo:
    """The parameters of a map."""
    info = bytearray(256)
    bpf_call(Command.OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), address_of(info)))
    kind, _id, key_bytes, value_bytes, entries, flags = struct.unpack_from("=IIIIII", info)
    return MapInfo(kind, key_bytes, value_bytes, entries, flags)


def is_map(fd: int) -> bool:
    """Whether a descriptor is a map's, not a link's or program's."""
    return "\nmap_type:" in Path(f"/proc/self/fdinfo/{fd}").read_text()


def map_update(fd: int, key: bytes, value: bytes, flags: int = _ANY) -> None:
    """Insert or replace an entry. Raises OSError(E2BIG) if the map is full."""
    bpf_call(Command.MAP_UPDATE_ELEM, struct.pack("=IxxxxQQQ", fd, address_of(key), address_of(value), flags))


def map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """Return the value of a key, None if the key is missing."""
    value = bytearray(value_bytes)
    try:
        bpf_call(Command.MAP_LOOKUP_ELEM, struct.pack("=IxxxxQQQ", fd, address_of(key), address_of(value), 0))
    except FileNotFoundError:
        return None
    return bytes(value)


def map_lookup_many(fd: int, keys: np.ndarray, value_type: np.dtype) -> tuple[NDArray[np.bool_], np.ndarray]:
    """Look up keys one by one, 1.5 us each.

    Returns whether each was found, and the values, zeroes for missing ones.
    """
    keys = np.ascontiguousarray(keys)
    values, found = np.zeros(len(keys), value_type), np.ones(len(keys), np.bool_)
    attributes = (ctypes.c_uint64 * 4)(fd)
    place, command = ctypes.c_void_p(ctypes.addressof(attributes)), int(Command.MAP_LOOKUP_ELEM)
    key_address, value_address = keys.ctypes.data, values.ctypes.data
    for index in range(len(keys)):
        attributes[1] = key_address + index * keys.itemsize
        attributes[2] = value_address + index * values.itemsize
        if libc.syscall(SYS_BPF, command, place, 32) < 0:
            number = ctypes.get_errno()
            if number != errno.ENOENT:
                raise OSError(number, os.strerror(number))
            found[index] = False
    return found, values


def map_delete(fd: int, key: bytes) -> bool:
    """Remove an entry; returns whether it existed."""
    try:
        bpf_call(Command.MAP_DELETE_ELEM, struct.pack("=IxxxxQQQ", fd, address_of(key), 0, 0))
    except FileNotFoundError:
        return False
    return True


def map_keys(fd: int, key_bytes: int) -> Iterator[bytes]:
    """Yield the keys. If the map changes meanwhile, some keys may come twice, or the walk may restart."""
    key: bytes | None = None
    while True:
        following = bytearray(key_bytes)
        try:
            bpf_call(
                Command.MAP_GET_NEXT_KEY, struct.pack("=IxxxxQQ", fd, address_of(key), address_of(following))
            )
        except FileNotFoundError:
            return
        key = bytes(following)
        yield key


def map_batches(
    fd: int, key_type: np.dtype, value_type: np.dtype, batch_entries: int = 4096
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read a hash map in batches of (keys, values); the arrays are overwritten by the next batch.

    Entries are copied one by one while the programs run: each entry is consistent, but together they are not
    a snapshot. BPF_MAP_LOOKUP_BATCH returns ENOSPC if a bucket does not fit; the batch then doubles.
    """
    position: bytes | None = None
    keys = np.empty(batch_entries, key_type)
    values = np.empty(batch_entries, value_type)
    while True:
        following = bytearray(8)
        number, count = _batch(Command.MAP_LOOKUP_BATCH, fd, keys, values, position, following)
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
    """Remove the entries of these keys, if they exist."""
    keys = np.ascontiguousarray(keys)
    while len(keys):
        number, count = _batch(Command.MAP_DELETE_BATCH, fd, keys)
        if number not in (0, errno.ENOENT):
            raise OSError(number, os.strerror(number))
        # The command stops at the first missing key.
        keys = keys[count + 1 :]


def _batch(
    command: Command,
    fd: int,
    keys: np.ndarray,
    values: np.ndarray | None = None,
    position: bytes | None = None,
    following: bytearray | None = None,
) -> tuple[int, int]:
    """Run a command on many entries; returns the error number (0: none) and the entries processed."""
    addresses = map(address_of, (position, following, keys, values))
    attributes = bytearray(struct.pack("=QQQQIIQQ", *addresses, len(keys), fd, 0, 0))
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    result: int = libc.syscall(SYS_BPF, int(command), buffer, len(attributes))
    number = ctypes.get_errno() if result < 0 else 0
    (count,) = struct.unpack_from("=I", attributes, 32)
    return number, count
