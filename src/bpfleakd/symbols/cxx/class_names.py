"""Classes as their authors wrote them, and what the blocks of the standard library's own classes hold."""

from __future__ import annotations

__all__ = ["TYPE_NAME_PREFIX", "class_name", "type_name_symbol"]

# What the name of a class is demangled as: the symbol of its type information's name.
TYPE_NAME_PREFIX = "_ZTS"
_READABLE_PREFIX = "typeinfo name for "

# Blocks that hold a shared object together with its counts (std::make_shared), of libstdc++ and libc++; the
# object's class is their first argument.
_WITH_OBJECT = ("std::_Sp_counted_ptr_inplace<", "std::__1::__shared_ptr_emplace<")
# Blocks that hold the counts of an object elsewhere; the first argument is the pointer to it.
_COUNTS_ALONE = (
    "std::_Sp_counted_ptr<",
    "std::_Sp_counted_deleter<",
    "std::__1::__shared_ptr_pointer<",
)
_BRACKETS = {"(": 1, "<": 1, "[": 1, "{": 1, ")": -1, ">": -1, "]": -1, "}": -1}


def type_name_symbol(name: str) -> str:
    """The symbol that stands for the name of a class in its type information."""
    return TYPE_NAME_PREFIX + name


def class_name(readable: str) -> str | None:
    """The class that a demangled `type_name_symbol` is of; None if it was not demangled.

    Of a block that std::make_shared made it is the class of the object.
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
    """The first of a list of template arguments, which begins after its bracket."""
    depth = 0
    for place, character in enumerate(arguments):
        if depth == 0 and character in ",>":
            return arguments[:place].strip()
        depth += _BRACKETS.get(character, 0)
    return arguments
