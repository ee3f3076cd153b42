"""Demangles C++ and Rust names by libiberty's demangler, which binutils' libbfd exports.

It runs in a helper: a name of 413 characters can take practically unlimited time and memory.

The style is that of `nm -C` and `addr2line -C`: std::string for the standard strings, Rust paths without
hashes.
"""

from __future__ import annotations

import ctypes
import glob
import re
from ctypes import c_char_p, c_int, c_void_p
from functools import cache
from typing import Any

_DMGL_PARAMS, _DMGL_ANSI = 1, 2
_NAME_BYTES_MAX = 4_096

# Itanium C++ and legacy Rust; the same with the underscore of other platforms' compilers; Rust v0.
_MANGLED = re.compile(r"_Z[\w.$@]+|__Z[\w.$@]+|_R[\w.$@]+", re.ASCII)
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}(?=$| \[clone )")


@cache
def demangler() -> Any | None:
    """The function; None if binutils are not installed."""
    places = ("/usr/lib/*/libbfd-*.so", "/usr/lib64/libbfd-*.so", "/usr/lib/libbfd-*.so")
    for path in (path for place in places for path in sorted(glob.glob(place))):
        try:
            function = ctypes.CDLL(path).bfd_demangle
        except (OSError, AttributeError):
            continue
        function.restype, function.argtypes = c_void_p, (c_void_p, c_char_p, c_int)
        return function
    return None


def is_mangled(name: str) -> bool:
    """Whether a name looks mangled."""
    return len(name) <= _NAME_BYTES_MAX and _MANGLED.fullmatch(name) is not None


def demangled(name: str) -> str:
    """The readable form of a name, or the name itself without one."""
    function = demangler()
    if function is None or not is_mangled(name):
        return name
    found = function(None, name[name.startswith("__Z") :].encode(), _DMGL_PARAMS | _DMGL_ANSI)
    if not found:
        return name
    # Not freed: this process ends soon.
    return _RUST_HASH.sub("", ctypes.string_at(found).decode(errors="surrogateescape"))
