"""Source lines and inlined functions by libdw (elfutils), which reads DWARF of an open file.

It runs in an unprivileged helper, because libdw is C code and the DWARF comes from others. It can open no
files there, so .gnu_debugaltlink has no effect.

A function of the library is used as `elfutils/libdw.h` declares it; its ABI is versioned since 0.122.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_ssize_t,
    c_uint,
    c_uint64,
    c_void_p,
    py_object,
)
from functools import cache
from typing import Any

_DWARF_C_READ = 0
_TAG_BLOCK, _TAG_INLINED, _TAG_SUBPROGRAM = 0x0B, 0x1D, 0x2E
_TAG_CLASS, _TAG_STRUCTURE, _TAG_UNION, _TAG_NAMESPACE = 0x02, 0x13, 0x17, 0x39
_SCOPES_OF_NAMES = (_TAG_CLASS, _TAG_STRUCTURE, _TAG_UNION, _TAG_NAMESPACE)
_AT_ABSTRACT_ORIGIN, _AT_SPECIFICATION = 0x31, 0x47
# C++, and its versions of 2003 to 2020.
_CXX = (0x04, 0x19, 0x1A, 0x21, 0x2B)
_AT_LINKAGE_NAME, _AT_MIPS_LINKAGE_NAME, _AT_CALL_FILE, _AT_CALL_LINE = 0x6E, 0x2007, 0x58, 0x59

# Only a malicious file has more inlined functions at one address.
_SCOPES_MAX = 256
_UNITS_MAX = 200_000
_FUNCTIONS_MAX = 1_000_000
_GO_ON, _ABORT = 0, 1
_UNNAMED, _LAMBDA = "{unnamed}", "{lambda}"


class _Die(ctypes.Structure):
    _fields_ = (("addr", c_void_p), ("cu", c_void_p), ("abbrev", c_void_p), ("padding", ctypes.c_long))


class _Attribute(ctypes.Structure):
    _fields_ = (("code", c_uint), ("form", c_uint), ("value", c_void_p), ("cu", c_void_p))


def _visit(die: Any, visit: Callable[[Any], int]) -> int:
    return visit(die)


# The library calls this for each function. It is created at import, since a locked helper can create no code.
_Visitor = CFUNCTYPE(c_int, POINTER(_Die), py_object)
_visitor = _Visitor(_visit)


@cache
def libdw() -> Any | None:
    """The library; None if it is not installed."""
    try:
        library = ctypes.CDLL("libdw.so.1")
    except OSError:
        return None
    die, files, number = POINTER(_Die), c_void_p, POINTER(c_uint64)
    for name, result, arguments in (
        ("dwarf_begin", c_void_p, (c_int, c_int)),
        ("dwarf_end", c_int, (c_void_p,)),
        ("dwarf_addrdie", die, (c_void_p, c_uint64, die)),
        ("dwarf_offdie", die, (c_void_p, c_uint64, die)),
        ("dwarf_nextcu", c_int, (c_void_p, c_uint64, number, POINTER(c_size_t), *[c_void_p] * 3)),
        ("dwarf_ranges", c_ssize_t, (die, c_ssize_t, number, number, number)),
        ("dwarf_getscopes", c_int, (die, c_uint64, POINTER(die))),
        ("dwarf_getscopes_die", c_int, (die, POINTER(die))),
        ("dwarf_getfuncs", c_ssize_t, (die, _Visitor, py_object, c_ssize_t)),
        ("dwarf_child", c_int, (die, die)),
        ("dwarf_siblingof", c_int, (die, die)),
        ("dwarf_haspc", c_int, (die, c_uint64)),
        ("dwarf_dieoffset", c_uint64, (die,)),
        ("dwarf_tag", c_int, (die,)),
        ("dwarf_diename", c_char_p, (die,)),
        ("dwarf_srclang", c_int, (die,)),
        ("dwarf_attr", POINTER(_Attribute), (die, c_uint, POINTER(_Attribute))),
        ("dwarf_formref_die", die, (POINTER(_Attribute), die)),
        ("dwarf_attr_integrate", POINTER(_Attribute), (die, c_uint, POINTER(_Attribute))),
        ("dwarf_formstring", c_char_p, (POINTER(_Attribute),)),
        ("dwarf_formudata", c_int, (POINTER(_Attribute), number)),
        ("dwarf_getsrc_die", c_void_p, (die, c_uint64)),
        ("dwarf_lineno", c_int, (c_void_p, POINTER(c_int))),
        ("dwarf_linesrc", c_char_p, (c_void_p, c_void_p, c_void_p)),
        ("dwarf_getsrcfiles", c_int, (die, POINTER(files), POINTER(c_size_t))),
        ("dwarf_filesrc", c_char_p, (files, c_size_t, c_void_p, c_void_p)),
    ):  # fmt: skip
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Index:
    """The places of entries by non-overlapping ranges: (low, high, offset of the entry)."""

    def __init__(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        self._ranges = sorted(ranges)
        self._lows = [low for low, _high, _offset in self._ranges]

    def get(self, vaddr: int) -> int | None:
        """The offset of the entry that contains this address."""
        place = bisect_right(self._lows, vaddr) - 1
        if place < 0 or vaddr >= self._ranges[place][1]:
            return None
        return self._ranges[place][2]


class DwarfLines:
    """The DWARF of one open file; the caller owns the descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Raises OSError if the library is missing or finds no DWARF."""
        library = libdw()
        if library is None:
            raise OSError(2, "libdw.so.1 is not installed (package libdw1)")
        self._library = library
        self._dwarf = library.dwarf_begin(descriptor, _DWARF_C_READ)
        if not self._dwarf:
            raise OSError(22, "no DWARF")
        self._units: _Index | None = None
        # The functions of a unit, by its offset.
        self._functions: dict[int, _Index] = {}
        # Names with their namespaces, by the offset of the declaration.
        self._qualified: dict[int, str | None] = {}
        # Passed to C by address, so the object must stay alive.
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = (c_void_p,)

    def frames_at(self, vaddr: int) -> list[tuple[str | None, str | None]]:
        """(function, "file:line") at an address, the innermost inlined function first; empty if unknown.

        Names are the linker's.
        """
        unit = _Die()
        if not self._library.dwarf_addrdie(self._dwarf, vaddr, byref(unit)) and not self._unit_at(
            vaddr, unit
        ):
            return []
        location = self._location(unit, vaddr)
        frames: list[tuple[str | None, str | None]] = []
        for scope in self._scopes(unit, vaddr):
            tag = self._library.dwarf_tag(byref(scope))
            if tag in (_TAG_INLINED, _TAG_SUBPROGRAM):
                frames.append((self._name(unit, scope), location))
            if tag == _TAG_INLINED:
                location = self._call_site(unit, scope)
            elif tag == _TAG_SUBPROGRAM:
                return frames
        return frames or ([(None, location)] if location else [])

    def close(self) -> None:
        """Free the library's memory."""
        dwarf, self._dwarf = self._dwarf, None
        if dwarf:
            self._library.dwarf_end(dwarf)

    def _scopes(self, unit: _Die, vaddr: int) -> list[_Die]:
        """The scopes that contain an address in the code, innermost first, up to the function."""
        innermost = self._array(lambda found: self._library.dwarf_getscopes(byref(unit), vaddr, found), 1)
        if not innermost:
            # The library skips namespaces, in which rustc and clang put functions.
            return self._scopes_in_namespace(unit, vaddr)
        # Outer ones show where an inlined function was defined, not where it was inlined.
        return self._array(
            lambda found: self._library.dwarf_getscopes_die(byref(innermost[0]), found), _SCOPES_MAX
        )

    def _scopes_in_namespace(self, unit: _Die, vaddr: int) -> list[_Die]:
        at = self._library.dwarf_dieoffset(byref(unit))
        if at not in self._functions:
            self._functions[at] = _Index(self._functions_of(unit))
        function, scope = self._functions[at].get(vaddr), _Die()
        if function is None or not self._library.dwarf_offdie(self._dwarf, function, byref(scope)):
            return []
        scopes = [scope]
        while len(scopes) < _SCOPES_MAX and (inner := self._scope_in(scopes[-1], vaddr)) is not None:
            scopes.append(inner)
        return scopes[::-1]

    def _functions_of(self, unit: _Die) -> list[tuple[int, int, int]]:
        """The ranges of all functions of a unit, however deeply nested in namespaces and types."""
        found: list[tuple[int, int, int]] = []

        def visit(die: Any) -> int:
            offset = self._library.dwarf_dieoffset(die)
            found.extend((low, high, offset) for low, high in self._ranges_of(die))
            return _GO_ON if len(found) < _FUNCTIONS_MAX else _ABORT

        self._library.dwarf_getfuncs(byref(unit), _visitor, visit, 0)
        return found

    def _scope_in(self, outer: _Die, vaddr: int) -> _Die | None:
        """The block or inlined function directly inside `outer` that contains the address."""
        inner = _Die()
        status = self._library.dwarf_child(byref(outer), byref(inner))
        while status == 0:
            is_scope = self._library.dwarf_tag(byref(inner)) in (_TAG_BLOCK, _TAG_INLINED)
            if is_scope and self._library.dwarf_haspc(byref(inner), vaddr) > 0:
                return inner
            status = self._library.dwarf_siblingof(byref(inner), byref(inner))
        return None

    def _array(self, get: Any, count_max: int) -> list[_Die]:
        found = POINTER(_Die)()
        count = get(byref(found))
        if count <= 0:
            return []
        dies = [_Die.from_buffer_copy(found[number]) for number in range(min(count, count_max))]
        self._free(found)
        return dies

    def _name(self, unit: _Die, die: _Die) -> str | None:
        for attribute in (_AT_LINKAGE_NAME, _AT_MIPS_LINKAGE_NAME):
            value = _Attribute()
            if self._library.dwarf_attr_integrate(byref(die), attribute, byref(value)):
                return _text(self._library.dwarf_formstring(byref(value)))
        if self._library.dwarf_srclang(byref(unit)) not in _CXX:
            return _text(self._library.dwarf_diename(byref(die)))
        return self._qualified_once(self._declaration(die))

    def _qualified_once(self, declared: _Die) -> str | None:
        at = self._library.dwarf_dieoffset(byref(declared))
        if at not in self._qualified:
            # A malicious file may nest a function in itself.
            self._qualified[at] = None
            self._qualified[at] = self._qualified_name(declared)
        return self._qualified[at]

    def _declaration(self, die: _Die) -> _Die:
        """Where a function is declared: in its class or namespace, not where it was inlined or defined."""
        for attribute in (_AT_ABSTRACT_ORIGIN, _AT_SPECIFICATION):
            value, found = _Attribute(), _Die()
            if self._library.dwarf_attr(
                byref(die), attribute, byref(value)
            ) and self._library.dwarf_formref_die(byref(value), byref(found)):
                die = found
        return die

    def _qualified_name(self, declared: _Die) -> str | None:
        """The name with its classes and namespaces: gcc gives no linker's name to what has a lambda's type.

        Without `std`, a function of the C++ library would be blamed for what its caller allocates.
        """
        own = _text(self._library.dwarf_diename(byref(declared)))
        if not own:
            return None
        outer = self._array(
            lambda found: self._library.dwarf_getscopes_die(byref(declared), found), _SCOPES_MAX
        )
        names = [own]
        for scope in outer[1:]:
            tag = self._library.dwarf_tag(byref(scope))
            if tag == _TAG_SUBPROGRAM:
                # What it contains may be in a copy of it, outside of its namespace.
                names.append(self._qualified_once(self._declaration(scope)) or _UNNAMED)
                break
            if tag in _SCOPES_OF_NAMES:
                name = _text(self._library.dwarf_diename(byref(scope)))
                names.append(name or (_LAMBDA if names[-1] == "operator()" else _UNNAMED))
        return "::".join(reversed(names))

    def _location(self, unit: _Die, vaddr: int) -> str | None:
        line, number = self._library.dwarf_getsrc_die(byref(unit), vaddr), c_int()
        if not line or self._library.dwarf_lineno(line, byref(number)) != 0:
            return None
        return _located(_text(self._library.dwarf_linesrc(line, None, None)), number.value)

    def _call_site(self, unit: _Die, inlined: _Die) -> str | None:
        file, line = self._number(inlined, _AT_CALL_FILE), self._number(inlined, _AT_CALL_LINE)
        files = c_void_p()
        if (
            file is None
            or line is None
            or self._library.dwarf_getsrcfiles(byref(unit), byref(files), None) != 0
        ):
            return None
        return _located(_text(self._library.dwarf_filesrc(files, file, None, None)), line)

    def _number(self, die: _Die, attribute: int) -> int | None:
        value, number = _Attribute(), c_uint64()
        if not self._library.dwarf_attr_integrate(byref(die), attribute, byref(value)):
            return None
        return number.value if self._library.dwarf_formudata(byref(value), byref(number)) == 0 else None

    def _unit_at(self, vaddr: int, unit: _Die) -> bool:
        """Find the unit of an address by the units' own ranges: clang writes no .debug_aranges."""
        if self._units is None:
            self._units = _Index(self._ranges_of_units())
        offset = self._units.get(vaddr)
        return offset is not None and bool(self._library.dwarf_offdie(self._dwarf, offset, byref(unit)))

    def _ranges_of_units(self) -> Iterator[tuple[int, int, int]]:
        offset, following, header_bytes = 0, c_uint64(), c_size_t()
        for _number in range(_UNITS_MAX):
            if self._library.dwarf_nextcu(
                self._dwarf, offset, byref(following), byref(header_bytes), None, None, None
            ):
                return
            at, die = offset + header_bytes.value, _Die()
            if self._library.dwarf_offdie(self._dwarf, at, byref(die)):
                yield from ((low, high, at) for low, high in self._ranges_of(byref(die)))
            offset = following.value

    def _ranges_of(self, die: Any) -> Iterator[tuple[int, int]]:
        """Yield the address ranges of an entry: the first address and the one after the last."""
        position, base, low, high = 0, c_uint64(), c_uint64(), c_uint64()
        while True:
            position = self._library.dwarf_ranges(die, position, byref(base), byref(low), byref(high))
            if position <= 0:
                return
            yield low.value, high.value


def _located(file: str | None, line: int) -> str | None:
    return f"{file}:{line}" if file and file != "???" and line > 0 else None


def _text(raw: bytes | None) -> str | None:
    return raw.decode(errors="surrogateescape") if raw else None
