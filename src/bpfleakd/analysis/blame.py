"""Which frame of a stack is to blame: the innermost one that is not a tool of its caller.

malloc is where every leak was allocated, and strdup, operator new or std::string are where half of them
were: that says nothing. The first frame outside of allocators, of the C and C++ run-time libraries and
of their templates compiled into the program is the one whose author decided to allocate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bpfleakd.model import Frame

__all__ = ["blamed_frame"]

# Files that hold nothing but tools of their callers.
_LIBRARY = re.compile(
    r"""(?: libc | libm | libpthread | ld-linux[\w.-]* | ld-musl[\w.-]* | ld | libc\.musl[\w.-]*
        | libstdc\+\+ | libc\+\+ | libc\+\+abi | libgcc_s | libsupc\+\+
        | libjemalloc | libtcmalloc(?:_\w+)* | libmimalloc | libasan | liblsan | libtsan
        )(?:-\d[\d.]*)? (?:\.so(?:\.\d+)*)?""",
    re.VERBOSE,
)

# Functions that are tools wherever they were compiled into.
_WRAPPER = re.compile(
    r"""(?: (?:__libc_|__GI_+|_+)?
            (?:malloc|calloc|realloc|reallocarray|memalign|aligned_alloc|posix_memalign|valloc|pvalloc)
        | (?:__)?(?:strdup|strndup|wcsdup|asprintf|vasprintf|getline|getdelim)
        | operator\ (?:new|delete)(?:\[\])? .*
        | (?:.*\ )?(?:std|__gnu_cxx|__cxxabiv1|boost::detail)::.*
        | <?(?:alloc|core|std|hashbrown)::.*
        | __rust_(?:alloc|realloc|alloc_zeroed) | __rdl_\w+ | __rg_\w+
        )""",
    re.VERBOSE,
)


def blamed_frame(frames: Sequence[Frame]) -> Frame | None:
    """The frame to blame; of a stack of tools only the outermost named one; None for an empty stack."""
    for frame in frames:
        if not _is_tool(frame):
            return frame
    named = [frame for frame in frames if frame.function]
    return (named or list(frames) or [None])[-1]


def _is_tool(frame: Frame) -> bool:
    if frame.module and _LIBRARY.fullmatch(frame.module):
        return True
    return bool(frame.function and _WRAPPER.fullmatch(_without_arguments(frame.function)))


def _without_arguments(function: str) -> str:
    """`std::f<A>(int)` as `std::f<A>`; a return type in front of a template stays, the pattern allows it."""
    return function.split("(", 1)[0] if not function.startswith("(") else function
