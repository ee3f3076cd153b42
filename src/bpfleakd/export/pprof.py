"""Profiles for `go tool pprof`, Pyroscope and Parca: gzipped protocol buffers.

Format: https://github.com/google/pprof/blob/main/proto/profile.proto; it defines the field numbers below. The
sample types are those of Go's own heap profiles, in their order, so that viewers know them.

A sample is a call site, or one thread's share of it. Allocations are not known by thread: they are in the
site's own sample, so every sum over all samples is right.
"""

from __future__ import annotations

import gzip
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from bpfleakd.export.frame_names import frame_name, source_place
from bpfleakd.model.code.mapping import CodeMapping
from bpfleakd.model.code.stack import Frame
from bpfleakd.model.report import HeapProfile, SiteReport
from bpfleakd.model.site import ThreadShare
from bpfleakd.printable import printable

# (type, unit), in the order of a sample's values.
_SAMPLE_TYPES = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)
# pprof, internal/profile/prune.go, simplifyFunc: these two names keep their parenthesis.
_PARAMETERS = re.compile(r"(?<!operator)\((?!anonymous namespace\))")
# internal/symbolizer, demangleSingleFunction: `go tool pprof` removes these from C++ names first.
_BRACKETED = (re.compile(r"\([^()]*\)"), re.compile(r"<[^<>]*>"))
_NS_PER_S = 1_000_000_000

# Values and labels of one sample.
_Sample = tuple[tuple[int, int, int, int], dict[str, str | int]]

_VARINT, _BYTES = 0, 2


def pprof_profile(profile: HeapProfile) -> bytes:
    """Return the profile as a file that pprof reads."""
    return gzip.compress(bytes(_Writer(profile).message()), mtime=0)


class _Writer:
    """Writes one profile. Strings, functions and locations are numbered in order of appearance."""

    def __init__(self, profile: HeapProfile) -> None:
        self._profile = profile
        self._mappings = profile.mappings
        self._starts = [mapping.start for mapping in profile.mappings]
        self._message = MessageWriter()
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[Frame, ...], int] = {}

    def message(self) -> MessageWriter:
        for kind, unit in _SAMPLE_TYPES:
            self._message.message(1, self._value_type(kind, unit))
        for site in self._profile.report.sites:
            self._write_site(site)
        for number, mapping in enumerate(self._mappings, 1):
            self._message.message(3, self._mapping(number, mapping))
        process = self._profile.report.process
        comment = self._string(f"{printable(process.comm)}, pid {process.pid}")
        default = self._string("inuse_space")
        dropped = self._string(_drop_frames(self._profile.report.sites))
        for text in self._strings:
            self._message.text(6, text)
        self._message.number(7, dropped)
        self._message.number(9, round(self._profile.time_s * _NS_PER_S))
        self._message.number(10, round(process.attached_s * _NS_PER_S))
        self._message.numbers(13, [comment])
        self._message.number(14, default)
        return self._message

    def _write_site(self, site: SiteReport) -> None:
        locations = [self._location(frames) for frames in _by_address(site.stack)]
        for values, labels in _samples(site):
            if not any(values):
                continue
            sample = MessageWriter()
            sample.numbers(1, locations)
            sample.numbers(2, values)
            for key, value in labels.items():
                sample.message(3, self._label(key, value))
            self._message.message(2, sample)

    def _value_type(self, kind: str, unit: str) -> MessageWriter:
        message = MessageWriter()
        message.number(1, self._string(kind))
        message.number(2, self._string(unit))
        return message

    def _label(self, key: str, value: str | int) -> MessageWriter:
        label = MessageWriter()
        label.number(1, self._string(key))
        if isinstance(value, str):
            label.number(2, self._string(value))
        else:
            label.number(3, value)
        return label

    def _location(self, frames: tuple[Frame, ...]) -> int:
        known = self._locations.get(frames)
        if known:
            return known
        number = self._locations[frames] = len(self._locations) + 1
        location = MessageWriter()
        location.number(1, number)
        location.number(2, self._mapping_number(frames[0].address))
        location.number(3, frames[0].address)
        for frame in frames:
            line = MessageWriter()
            line.number(1, self._function(frame))
            line.number(2, source_place(frame)[1])
            location.message(4, line)
        self._message.message(4, location)
        return number

    def _function(self, frame: Frame) -> int:
        name, file = frame_name(frame), source_place(frame)[0]
        known = self._functions.get((name, file))
        if known:
            return known
        number = self._functions[name, file] = len(self._functions) + 1
        function = MessageWriter()
        function.number(1, number)
        function.number(2, self._string(name))
        function.number(3, self._string(name))
        function.number(4, self._string(file))
        self._message.message(5, function)
        return number

    def _mapping(self, number: int, mapping: CodeMapping) -> MessageWriter:
        message = MessageWriter()
        message.number(1, number)
        message.number(2, mapping.start)
        message.number(3, mapping.end)
        message.number(4, mapping.offset)
        message.number(5, self._string(printable(mapping.path)))
        message.number(6, self._string(mapping.build_id or ""))
        # It is already symbolised: functions, file names, line numbers, inlined frames.
        for field in (7, 8, 9, 10):
            message.number(field, 1)
        return message

    def _mapping_number(self, address: int) -> int:
        """The number of the mapping that contains an address; 0 for code outside of files."""
        index = bisect_right(self._starts, address) - 1
        return index + 1 if index >= 0 and address < self._mappings[index].end else 0

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))


def _drop_frames(sites: Sequence[SiteReport]) -> str:
    """The pattern of functions that pprof removes with their callees, so that leaves are the blamed frames.

    These are the frames between the allocator and the blamed function of a call site. A function that is
    blamed somewhere, or calls one that is, is never removed.
    """
    inner: set[str] = set()
    outer: set[str] = set()
    for site in sites:
        names = [frame_name(frame) for frame in site.stack]
        blamed = (
            index
            for index, frame in enumerate(site.stack)
            if (frame.function, frame.module) == (site.function, site.module)
        )
        first = next(blamed, 0)
        inner.update(names[:first])
        outer.update(names[first:])
    dropped = {_unparenthesized(name) for name in inner - outer}
    dropped |= set(map(_bare, inner)) - set(map(_bare, outer))
    return "|".join(_escaped(name) for name in sorted(dropped))


def _bare(name: str) -> str:
    """A name without parameters, template arguments and anonymous namespaces."""
    for bracketed in _BRACKETED:
        shorter = None
        while shorter != name:
            shorter, name = name, bracketed.sub("", name)
    return name


def _unparenthesized(name: str) -> str:
    """A name in the form that pprof matches: without parameters."""
    return _PARAMETERS.split(name, maxsplit=1)[0]


def _escaped(name: str) -> str:
    """A regular expression of Go for that text; re.escape writes escapes that Go does not support."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", name)


def _by_address(stack: Sequence[Frame]) -> Iterator[tuple[Frame, ...]]:
    """Yield one location each: the frames inlined at an address, and last the function that contains them."""
    frames: list[Frame] = []
    for frame in stack:
        frames.append(frame)
        if not frame.inlined:
            yield tuple(frames)
            frames = []
    if frames:
        yield tuple(frames)


def _samples(site: SiteReport) -> Iterator[_Sample]:
    labels: dict[str, str | int] = {"kind": site.kind.value, "site": site.site}
    shares = _fitting_shares(site)
    for share in shares:
        thread = {"thread": printable(share.comm)} if share.comm else {}
        yield (0, 0, share.live_count, share.live_bytes), labels | thread | {"tid": share.tid}
    rest_count = site.live_count - sum(share.live_count for share in shares)
    rest_bytes = site.live_bytes - sum(share.live_bytes for share in shares)
    yield (site.allocated_count, site.allocated_bytes, rest_count, rest_bytes), labels


def _fitting_shares(site: SiteReport) -> tuple[ThreadShare, ...]:
    """The threads' shares, unless they were counted a moment later and exceed the site's."""
    bytes_of_all = sum(share.live_bytes for share in site.threads)
    count_of_all = sum(share.live_count for share in site.threads)
    fits = bytes_of_all <= site.live_bytes and count_of_all <= site.live_count
    return site.threads if fits else ()


class MessageWriter:
    """One message, field by field. Fields with their default value are left out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def number(self, field: int, value: int) -> None:
        """An int64, uint64 or bool."""
        if value:
            self._data += _varint(field << 3 | _VARINT) + _varint(value)

    def numbers(self, field: int, values: Iterable[int]) -> None:
        """A repeated int64 or uint64, packed."""
        packed = b"".join(map(_varint, values))
        if packed:
            self._field(field, packed)

    def text(self, field: int, value: str) -> None:
        """A string, or an element of a repeated one, even if it is empty."""
        self._field(field, value.encode(errors="backslashreplace"))

    def message(self, field: int, value: MessageWriter) -> None:
        """A message, or an element of repeated ones."""
        self._field(field, bytes(value))

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def _field(self, field: int, content: bytes) -> None:
        self._data += _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; a negative number is the two's complement of 64 bits."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
