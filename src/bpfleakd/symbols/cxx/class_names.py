"""Readable names of classes, and the contents of blocks of the standard library's own classes."""

from __future__ import annotations

# The demangler's input for a class name: the symbol of its type information's name.
TYPE_NAME_PREFIX = "_ZTS"
_READABLE_PREFIX = "typeinfo name for "

# Blocks that contain a shared object and its counts (std::make_shared), of libstdc++ and libc++; the object's
# class is their first argument.
_WITH_OBJECT = ("std::_Sp_counted_ptr_inplace<", "std::__1::__shared_ptr_emplace<")
# Blocks with only the counts of an object; the first argument is the pointer to it.
_COUNTS_ALONE = (
    "std::_Sp_counted_ptr<",
    "std::_Sp_counted_deleter<",
    "std::__1::__shared_ptr_pointer<",
)
_BRACKETS = {"(": 1, "<": 1, "[": 1, "{": 1, ")": -1, ">": -1, "]": -1, "}": -1}


def type_name_symbol(name: str) -> str:
    """The symbol of a class' name in its type information."""
    return TYPE_NAME_PREFIX + name


def class_name(readable: str) -> str | None:
    """The class of a demangled `type_name_symbol`; None if it was not demangled.

    For a block of std::make_shared, it is the class of the object.
    """
    if not readable.startswith(_READABLE_PREFIX):
        return None
    name = readable.removeprefix(_READABLE_PREFIX)
    for wrapper in _WITH_OBJECT:
        if name.startswith(wrapper):
            return _first_argument(name.removeprefix(wrapper))
    for wrapper in _COUNTS_ALONE:
        if name.startswith(wrapper):
            pointee = _first_argument(name.removeprefix(wrapper)).removesuffix("*").rstrip()
            return f"std::shared_ptr<{pointee}> counts"
    return name


def _first_argument(arguments: str) -> str:
    """The first of a list of template arguments, which starts after its bracket."""
    depth = 0
    for place, character in enumerate(arguments):
        if depth == 0 and character in ",>":
            return arguments[:place].strip()
        depth += _BRACKETS.get(character, 0)
    return arguments
