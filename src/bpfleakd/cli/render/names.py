"""Shortens function names: keeps the method and its class, and cuts the parts before them first."""

from __future__ import annotations

import re
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

# Limits a mangled name in an unlimited table: it says little, and moves the next column out of sight.
_LONGEST_MANGLED = 60

_ELLIPSIS = "…"
_OPENING = {"<": ">", "(": ")", "[": "]"}
# C++ (Itanium) and Rust, if no demangler supports them.
_MANGLED = ("_Z", "_R")
# What may follow a list of parameters: "const", a clone's suffix.
_AFTER_PARAMETERS = re.compile(r"(?: (?:const|volatile)|&{1,2}| ?\[clone [^\]]*\])*\Z")


def short_function(name: str, width: int) -> str:
    """Return `name` in at most `width` columns of a terminal.

    What goes, in this order: the types of the parameters, template arguments, the return type, and namespaces
    from the left, up to the last class; then the class; then the start of the method's name.
    Of a mangled name the end goes: it begins with the namespaces, and its types follow.
    """
    if cell_len(name) <= width:
        return name
    if _is_mangled(name):
        return set_cell_size(set_cell_size(name, max(0, width - 1)) + _ELLIPSIS, max(0, width))
    bare = without_parameters(name)
    for shorter in (f"{bare}(…)" if bare != name else bare, bare):
        if cell_len(shorter) <= width:
            return shorter
    bare = _without_return_type(_without_template_arguments(_without_trait(bare)))
    if cell_len(bare) <= width:
        return bare
    for start in _component_starts(bare):
        if cell_len(bare) - cell_len(bare[:start]) + 1 <= width:
            return _ELLIPSIS + bare[start:]
    starts = _component_starts(bare)
    last = bare[starts[-1] :] if starts else bare
    return _end_of(last, width)


def unbounded_function(name: str) -> str:
    """Return `name` for a table in a pipe or a file: whole, so that it is found, unless it is mangled."""
    return short_function(name, _LONGEST_MANGLED) if _is_mangled(name) else name


def _is_mangled(name: str) -> bool:
    return name.startswith(_MANGLED) and " " not in name


def _end_of(text: str, width: int) -> str:
    if width < 1:
        return ""
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return set_cell_size(_ELLIPSIS + text, width)


def without_parameters(name: str) -> str:
    """`a::f(int) const` is `a::f`; a parenthesis within the name stays: `(anonymous namespace)::f`."""
    groups = [group for group in _groups(name) if name[group[0]] == "("]
    if not groups:
        return name
    start, end = groups[-1]
    is_last = _AFTER_PARAMETERS.match(name, end) is not None
    return name[:start] if is_last and start else name


def _without_trait(name: str) -> str:
    """The type in place of Rust's `<type as trait>`."""
    groups = _groups(name)
    if not groups or groups[0][0] != 0 or name[0] != "<":
        return name
    inner = name[1 : groups[0][1] - 1]
    return inner.partition(" as ")[0] + name[groups[0][1] :]


def _without_template_arguments(name: str) -> str:
    text, kept = "", 0
    for start, end in _groups(name):
        if name[start] == "<" and start:
            text += f"{name[kept:start]}<{_ELLIPSIS}>"
            kept = end
    return text + name[kept:]


def _without_return_type(name: str) -> str:
    """The return type of a template's instance: `std::string shop::f<int>`."""
    spaces = [place for place in _outside(name) if name[place] == " "]
    starts = [place + 1 for place in spaces if not re.search(r"\boperator\S*$|[,*]$", name[:place])]
    return name[starts[-1] :] if starts else name


def _component_starts(name: str) -> list[int]:
    """Where the components after the first begin, of C++, Rust, Java, .NET, Python and JavaScript names."""
    outside = set(_outside(name))
    ends = [m.end() for m in re.finditer(r"::|[./](?=[\w<$~`(])", name) if m.start() in outside]
    return [end for end in ends if end < len(name)]


def _groups(name: str) -> list[tuple[int, int]]:
    """The start and end of each bracketed part that is in no other."""
    groups, closing, start = [], [""], 0
    for place, character in enumerate(name):
        if character == closing[-1]:
            closing.pop()
            if len(closing) == 1:
                groups.append((start, place + 1))
        elif character in _OPENING and not _names_operator(name, place):
            if len(closing) == 1:
                start = place
            closing.append(_OPENING[character])
    return groups


def _names_operator(name: str, place: int) -> bool:
    """Whether the bracket there is an operator's name: operator(), operator[], operator<<."""
    before = name[:place]
    return before.endswith("operator") or (name[place] == "<" and before.endswith("operator<"))


def _outside(name: str) -> list[int]:
    """The places of the characters outside all brackets."""
    edges = [0, *(place for group in _groups(name) for place in group), len(name)]
    return [place for start, end in list(pairwise(edges))[::2] for place in range(start, end)]
