"""Function names as people write them; `--json` has them in full."""

from __future__ import annotations

from bpfleakd.printable import printable

__all__ = ["readable_function"]

# What the C++ library calls the types that everybody knows by other names.
_EVERYDAY_NAMES = (
    ("std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"),
    ("std::basic_string_view<char, std::char_traits<char> >", "std::string_view"),
    ("std::__cxx11::", "std::"),
)


def readable_function(name: str) -> str:
    """Return a demangled name with the standard library's long types by their everyday names."""
    for long, short in _EVERYDAY_NAMES:
        name = name.replace(long, short)
    return printable(name)
