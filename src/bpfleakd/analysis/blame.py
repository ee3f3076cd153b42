"""Chooses the frame to blame for a stack: the innermost one that does not merely serve its caller.

Every leak was allocated by malloc, and half of them by strdup, operator new or std::string, so these frames
explain nothing. The first frame outside of allocators, of the C and C++ run-time libraries and of their
templates compiled into the program is the one whose author decided to allocate. If that frame belongs to a
runtime, which works for the managed code that it executes, or to native code that the runtime's class library
called, the program's method that called it is blamed instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bpfleakd.analysis.c_library import is_c_library_function
from bpfleakd.analysis.managed_code import (
    caller_of_class_library,
    interpreted_caller,
    is_interpreter,
    is_own_method,
    is_runtime,
)
from bpfleakd.model.code.stack import Frame, FrameKind

# Files that contain only functions that serve their callers.
_LIBRARY = re.compile(
    r"""(?: libc | libm | libpthread | ld-linux[\w.-]* | ld-musl[\w.-]* | ld | libc\.musl[\w.-]*
        | libstdc\+\+ | libc\+\+ | libc\+\+abi | libgcc_s | libsupc\+\+
        | libbpfleak | libjemalloc | libtcmalloc(?:_\w+)* | libmimalloc | libasan | liblsan | libtsan
        )(?:-\d[\d.]*)? \.so(?:\.\d+)*""",
    re.VERBOSE,
)

# Functions that serve their callers, whichever file they are compiled into.
_WRAPPER = re.compile(
    r"""(?: (?:__libc_|__GI_+|_+)?
            (?:malloc|calloc|realloc|reallocarray|memalign|aligned_alloc|posix_memalign|valloc|pvalloc)
        | (?:je|_rjem|mi|tc)_\w+ | [mrx]allocx
        | (?:__)?(?:strdup|strndup|wcsdup|asprintf|vasprintf|getline|getdelim)
        | operator\ (?:new|delete)(?:\[\])?
        | (?:std|__gnu_cxx|__cxxabiv1|boost::detail)::.*
        # The same, of std, where binutils cannot read the name (of a generic lambda).
        | _ZN?[rVK]*S[tabsiod]\w+
        | __rust_(?:alloc|realloc|alloc_zeroed) | __rdl_\w+ | __rg_\w+
        )""",
    re.VERBOSE,
)
# Python's: name.cpython-311-x86_64-linux-gnu.so, name.abi3.so.
_EXTENSION = re.compile(r"[^.]+(?:\.cpython-\d+[\w-]*|\.abi3)\.so")
# Rust's; in C++ these are namespaces of programs. Unlike C++ names, Rust's have no argument list.
_RUST_LIBRARY = re.compile(
    r"<?(?:&(?:mut )?|\*(?:const|mut) |dyn )*(?:(?:alloc|core|std|hashbrown)::.*"
    # Methods of built-in types: <str>::repeat, <[T]>::to_vec, <u8 as alloc::slice::hack::ConvertVec>::to_vec.
    r"|(?:str|\[[^\]]*\]|char|bool|[iu](?:8|16|32|64|128|size)|f(?:32|64))(?: as [^>]*)?>::.*)"
)
# The source of Rust's own code, including its instances for types of a program: <shop::Order as
# SpecToString>::spec_to_string.
_RUST_SOURCE = re.compile(r"(?:/rustc/[0-9a-f]+/)?library/(?:alloc|core|std)/src/.*")

# Go's: package path, function. Servers and the like (net, os) are excluded: they are responsible for what
# they keep.
_GO_LIBRARY = re.compile(
    r"""(?: runtime | internal | vendor | bufio | bytes | cmp | compress | container | encoding | errors | fmt
        | hash | html | io | iter | maps | math | path | reflect | regexp | slices | sort | strconv | strings
        | sync | syscall | text | unicode | unique
        )(?:/[\w./-]+)? \. [^/]*
    | golang\.org/x/sys/[\w./-]+ \. [^/]*""",
    re.VERBOSE,
)
_GO_RUNTIME = re.compile(r"runtime\.[^/]*")

# It calls main, in glibc since 2.34 through an internal function.
_START_OF_MAIN = "__libc_start_main"

# Suffixes that compilers add to the names of parts of functions, as c++filt prints them.
_CLONE = re.compile(r"(?: \[clone [^]]*\]| \(\.[^)]*\))+$")
_OPERATOR = re.compile(r"\boperator\b(?:\(\)|\[\]|[-+*/%^&|~!=<>,]+)?")


def blamed_frame(frames: Sequence[Frame], allocators_file: str | None = None) -> Frame | None:
    """The frame to blame. None for an empty stack.

    In a stack without a frame to blame, it is the outermost named one. `allocators_file` is the allocator's
    file if `frames` are only the outer ones of a stack.
    """
    allocators_file = allocators_file or (frames[0].module if frames else None)
    interpreted = interpreted_caller(frames)
    if interpreted is not None:
        return interpreted
    for index, frame in enumerate(frames):
        if not _is_tool(frame, allocators_file):
            outer = frames[index:]
            return caller_of_class_library(outer) or _caller_of_runtime(outer) or frame
    named = [frame for frame in frames if frame.function]
    of_packages = [frame for frame in named if not _GO_RUNTIME.fullmatch(frame.function or "")]
    if named and not of_packages:
        # Go's runtime works for itself here; the function that a goroutine starts with explains less.
        return named[0]
    return next(reversed(of_packages or frames), None)


def named_in_library(frames: Sequence[Frame], chosen: Frame) -> Frame:
    """`chosen`, or its named caller if it is an unnamed internal function of a library.

    `frames` are those of the stack. The caller may belong to another library.
    """
    if chosen.function or not chosen.is_library:
        return chosen
    for frame in _outwards(frames, chosen):
        if not frame.is_library:
            break
        if frame.function:
            return frame
    return chosen


def calling_frame(frames: Sequence[Frame], charged: Frame | None) -> Frame | None:
    """The program's own function that called the library or package which is charged.

    None if the program itself is charged, or if none of its functions is in the stack, apart from a `main`
    without a name: all stacks pass through it, and in the small program that starts an interpreter (`ruby`)
    it is the only one.
    """
    if charged is None or not charged.is_library:
        return None
    outwards = _outwards(frames, charged)
    at = next((index for index, frame in enumerate(outwards) if _is_of_program(frame)), None)
    if at is None:
        return None
    callers = {frame.function for frame in outwards[at + 1 : at + 3]}
    return None if not outwards[at].function and _START_OF_MAIN in callers else outwards[at]


def _outwards(frames: Sequence[Frame], inner: Frame) -> Sequence[Frame]:
    """The frames outside of `inner`."""
    at = next(index for index, frame in enumerate(frames) if frame is inner)
    return frames[at + 1 :]


def _is_of_program(frame: Frame) -> bool:
    if frame.kind in (FrameKind.UNKNOWN, FrameKind.VDSO) or frame.is_library or frame.function == "_start":
        return False
    if frame.kind is not FrameKind.NATIVE and not frame.function:
        return False
    return not is_runtime(frame) and not _is_tool(frame, None)


def _caller_of_runtime(frames: Sequence[Frame]) -> Frame | None:
    """The caller of the runtime that `frames` begin with; None if there is no runtime or no known caller.

    The caller is a method. If no functions of an interpreter are known, it is the extension that called it
    (greenlet switches stacks, so the functions of the program are not on the thread's).
    """
    if not is_runtime(frames[0]):
        return None
    # Code compiled ahead of time has no names.
    caller = next((frame for frame in frames if frame.function and not is_runtime(frame)), None)
    if caller is None or is_own_method(caller):
        return caller
    is_extension = bool(caller.module and _EXTENSION.fullmatch(caller.module))
    return caller if is_extension and is_interpreter(frames[0]) else None


def _is_tool(frame: Frame, allocators_file: str | None) -> bool:
    if frame.module and _LIBRARY.fullmatch(frame.module):
        return True
    if not frame.function:
        return False
    if frame.kind is FrameKind.NATIVE and _GO_LIBRARY.fullmatch(frame.function):
        return True
    # An inlined function has its own location; a function may lack the entries of those inlined into it.
    if frame.inlined and frame.location and _RUST_SOURCE.fullmatch(frame.location):
        return True
    name, arguments = _split(_CLONE.sub("", frame.function))
    if _WRAPPER.fullmatch(name):
        return True
    if arguments:
        return False
    # A C library that is part of the program has no separate file, and neither has its allocator.
    is_beside_allocator = frame.module is not None and frame.module == allocators_file
    return bool(_RUST_LIBRARY.fullmatch(name) or (is_beside_allocator and is_c_library_function(name)))


def _split(function: str) -> tuple[str, str]:
    """The name of a demangled function without its return type, and its argument list with all that follows.

    `std::string shop::load<char, std::less<char> >(int) const` is `shop::load<char, std::less<char> >` and
    `(int) const`: brackets belong to the name, and a space outside of them begins another name.
    """
    start = position = depth = 0
    in_operator = False
    while position < len(function):
        character = function[position]
        operator = _OPERATOR.match(function, position) if depth == 0 else None
        if operator:
            in_operator = True
            position = operator.end()
            continue
        # Otherwise it is (anonymous namespace), or part of a return type.
        if character == "(" and depth == 0 and position > start and function[position - 1] != ":":
            return function[start:position], function[position:]
        if character in "<([{":
            depth += 1
        elif character in ">)]}":
            depth -= not function.endswith("->", 0, position + 1)
        elif character == " " and depth == 0 and not in_operator:
            start = position + 1
        position += 1
    return function[start:], ""
