"""The processes that the kernel kills when memory runs out: the tracepoint oom:mark_victim, by perf events.

No BPF program is needed: each processor has a perf event of the tracepoint and a ring of one page, to which
the kernel writes records (perf_event_open(2)); the daemon reads them on demand. Closing the descriptors
removes the rings. The kernel writes a record before the victim can end.

tracefs describes the fields (events/oom/mark_victim/format): only `pid` in older kernels, the name and the
figures of the victim too in newer ones.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from bpfleakd import errors, pid_namespace
from bpfleakd.kernel import bpf
from bpfleakd.kernel.mounts import ensure_tracefs
from bpfleakd.model.oom import OomVictim
from bpfleakd.printable import printable

_TRACEPOINT = "oom/mark_victim"
_FORMAT = Path("/sys/kernel/tracing/events") / _TRACEPOINT / "format"
_ONLINE = Path("/sys/devices/system/cpu/online")

# struct perf_event_mmap_page and struct perf_event_header (linux/perf_event.h).
_PAGE_BYTES = mmap.PAGESIZE
_HEAD_AT, _TAIL_AT = 1024, 1032
_HEADER = struct.Struct("=IHH")
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_LOST = struct.Struct("=QQ")
# With PERF_SAMPLE_TIME and PERF_SAMPLE_RAW: the time, the record's size, and the record.
_SAMPLE = struct.Struct("=QI")

_KILOBYTES = {
    "anon_rss": "anon_bytes",
    "file_rss": "file_bytes",
    "shmem_rss": "shmem_bytes",
    "pgtables": "page_table_bytes",
}
_WAY_OUT = "run the daemon as root in the host's PID namespace, with tracefs mounted"


class _Field(Struct, frozen=True):
    """The place of a field in a tracepoint's record; a `located` field gives the place of its text."""

    offset: int
    size: int
    located: bool


class OomEvents:
    """The rings of all processors. Raises KernelUnsupported or AccessDenied if they are unavailable.

    `lost_count` is the number of records for which the rings had no room.
    """

    def __init__(self) -> None:
        self.lost_count = 0
        self._rings: list[tuple[int, mmap.mmap]] = []
        if not pid_namespace.is_initial():
            raise errors.KernelUnsupported("OOM kills are only reported with the host's pids", _WAY_OUT)
        try:
            ensure_tracefs()
            self._fields = parse_format(_FORMAT.read_text())
            for cpu in _numbers(_ONLINE.read_text()):
                fd = bpf.open_recorded_tracepoint_event(_TRACEPOINT, cpu)
                try:
                    # The page of the ring's head and tail, and one of records.
                    ring = mmap.mmap(fd, 2 * _PAGE_BYTES)
                except BaseException:
                    os.close(fd)
                    raise
                self._rings.append((fd, ring))
        except PermissionError as error:
            self.close()
            raise errors.AccessDenied(f"the tracepoint {_TRACEPOINT} is refused", _WAY_OUT) from error
        except (OSError, ValueError) as error:
            self.close()
            raise errors.KernelUnsupported(
                f"the tracepoint {_TRACEPOINT} cannot be used: {error}", _WAY_OUT
            ) from error

    def read(self) -> list[OomVictim]:
        """The victims since the last call, in the order of their kills; does not wait."""
        victims = [victim for _fd, ring in self._rings for victim in self._read(ring)]
        return sorted(victims, key=lambda victim: victim.at_ns)

    def close(self) -> None:
        """Close all rings."""
        for fd, ring in self._rings:
            ring.close()
            os.close(fd)
        self._rings = []

    def _read(self, ring: mmap.mmap) -> Iterator[OomVictim]:
        (head,) = struct.unpack_from("=Q", ring, _HEAD_AT)
        (tail,) = struct.unpack_from("=Q", ring, _TAIL_AT)
        while tail < head:
            kind, _misc, size = _HEADER.unpack(_piece(ring, tail, _HEADER.size))
            if size < _HEADER.size:
                break
            body = _piece(ring, tail + _HEADER.size, size - _HEADER.size)
            if kind == _RECORD_SAMPLE:
                at_ns, raw_bytes = _SAMPLE.unpack_from(body)
                victim = parse_victim(self._fields, body[_SAMPLE.size :][:raw_bytes], at_ns)
                if victim is not None:
                    yield victim
            elif kind == _RECORD_LOST:
                self.lost_count += _LOST.unpack_from(body)[1]
            tail += size
        struct.pack_into("=Q", ring, _TAIL_AT, head)


def parse_format(text: str) -> dict[str, _Field]:
    """Parse a tracepoint's `format`: the places of its fields. Raises ValueError without a field pid."""
    found = re.findall(r"^\tfield:(.*?)(\w+)(?:\[\d*\])?;\toffset:(\d+);\tsize:(\d+);", text, re.MULTILINE)
    fields = {
        name: _Field(int(offset), int(size), "__data_loc" in kind) for kind, name, offset, size in found
    }
    if "pid" not in fields:
        raise ValueError("it does not tell the pid")
    return fields


def parse_victim(fields: Mapping[str, _Field], record: bytes, at_ns: int) -> OomVictim | None:
    """The victim of a record; None if the record is too short."""
    pid = _number(fields, record, "pid")
    if pid is None or pid < 1:
        return None
    kilobytes = {ours: _number(fields, record, name) for name, ours in _KILOBYTES.items()}
    figures = {name: None if value is None else value * 1024 for name, value in kilobytes.items()}
    return OomVictim(pid, at_ns, _text(fields, record, "comm"), **figures)


def _number(fields: Mapping[str, _Field], record: bytes, name: str) -> int | None:
    field = fields.get(name)
    if field is None or field.located or field.offset + field.size > len(record):
        return None
    return int.from_bytes(record[field.offset : field.offset + field.size], "little")


def _text(fields: Mapping[str, _Field], record: bytes, name: str) -> str:
    """A text behind the fields: the field has its length and its place."""
    field = fields.get(name)
    if field is None or not field.located or field.offset + 4 > len(record):
        return ""
    place = int.from_bytes(record[field.offset : field.offset + 4], "little")
    text = record[place & 0xFFFF :][: place >> 16].split(b"\0")[0]
    return printable(text.decode(errors="surrogateescape"))


def _piece(ring: mmap.mmap, position: int, size: int) -> bytes:
    """Bytes of the ring, which may wrap around."""
    start = position % _PAGE_BYTES
    first = min(size, _PAGE_BYTES - start)
    end = _PAGE_BYTES + start + first
    return ring[_PAGE_BYTES + start : end] + ring[_PAGE_BYTES : _PAGE_BYTES + size - first]


def _numbers(text: str) -> Iterator[int]:
    """The numbers of a list such as "0-3,8"."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
