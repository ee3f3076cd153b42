"""A CPython interpreter in a process: its place, its version, and whether its layout can be trusted.

Rules:
- The interpreter is the mapped file that defines `_PyRuntime` and `_PyEval_EvalFrameDefault`, whatever its
  name: a program may embed it. .symtab is only read if a file's name looks like an interpreter.
- From 3.13 on it states its layout itself (`_Py_DebugOffsets`); before, the minor version determines it.
- A layout is trusted after it has been verified: from `_PyRuntime` to thread states whose thread ids are
  threads of the process, and in the type `code` to members at the offsets that the layout has. An interpreter
  that fails any of this has no Python frames, and `Untrusted` says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import NamedSymbol, find_symbols
from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.code_object import ObjectTypes
from bpfleakd.runtimes.cpython.evaluation_loop import code_ranges, has_fixed_frames
from bpfleakd.runtimes.cpython.layout import DEBUG_OFFSETS_BYTES, CPythonLayout, layout_of, stated_layout
from bpfleakd.runtimes.runtime import NotStarted

_RUNTIME, _LOOP, _VERSION = "_PyRuntime", "_PyEval_EvalFrameDefault", "Py_Version"
_TYPES = ("PyCode_Type", "PyUnicode_Type", "PyBytes_Type", "PyType_Type")
_NEEDED = {_RUNTIME, _LOOP, *_TYPES}
_PYPY = "pypy_main_startup"
_NAMED = re.compile(r"python[^/]*$", re.IGNORECASE)
# sys.implementation.cache_tag (Python/sysmodule.c).
_CACHE_TAG = re.compile(rb"\0cpython-3(\d{1,2})\0")

_TYPE_DEALLOC, _TYPE_MEMBERS = 48, 240  # PyTypeObject.tp_dealloc and tp_members
_MEMBER_BYTES, _MEMBER_OFFSET = 40, 16  # PyMemberDef
_MEMBERS_MAX = 64
_NAME_MAX_BYTES = 64
_INTERPRETERS_MAX, _THREADS_MAX = 64, 4096
# glibc's struct pthread has held the tid at the same place since 2.4 (nptl/descr.h).
_PTHREAD_TID = 720


class UntrustedInterpreter(Exception):
    """Why the Python frames of a process cannot be read: a sentence for the user."""


class Interpreter(Struct, frozen=True):
    """An interpreter whose layout has been checked. All addresses are those of the process.

    `loop` are the ranges of the evaluation loop, `text` that of the file's code. `has_fixed_frames`: local
    variables of the loop are always at the same place in its frame. `thread_id_at` is the offset of the tid
    in the structure that a thread state's thread id points to; None: the thread id is the tid. `code_release`
    is the file offset of the function that releases code objects.
    """

    layout: CPythonLayout
    runtime: int
    types: ObjectTypes
    loop: tuple[tuple[int, int], ...]
    has_fixed_frames: bool
    text: tuple[int, int]
    thread_id_at: int | None
    code_release: int

    @property
    def version(self) -> str:
        """Major and minor version."""
        return "{}.{}".format(*self.layout.version)


def find_interpreter(
    mappings: Sequence[Mapping],
    open_image: Callable[[Mapping], AbstractContextManager[ElfImage]],
    memory: RemoteMemory,
    tids: Callable[[], Collection[int]],
) -> Interpreter | None:
    """The interpreter of a process, checked; None if it has none.

    `tids` returns its threads, in its own pid namespace. Raises Untrusted or NotStarted.
    """
    files = {mapping.path: mapping for mapping in reversed(mappings) if mapping.executable and mapping.inode}
    for mapping in sorted(files.values(), key=lambda one: not _NAMED.search(one.path)):
        try:
            with open_image(mapping) as image:
                if not may_hold_interpreter(image, mapping.path):
                    continue
                symbols = find_symbols(image, [*_NEEDED, _VERSION, _PYPY])
                if symbols.keys() >= _NEEDED:
                    return _interpreter(mapping, image, symbols, memory, tids)
        except (BadElf, OSError):
            continue
        if _PYPY in symbols:
            raise UntrustedInterpreter("PyPy is not supported: only CPython's frames can be read")
    return None


def may_hold_interpreter(image: ElfImage, path: str) -> bool:
    """Whether a file needs a closer look. Raises BadElf."""
    return bool(_NAMED.search(path) or find_symbols(image, [_RUNTIME, _PYPY], [".dynsym"]))


def _interpreter(
    mapping: Mapping,
    image: ElfImage,
    symbols: dict[str, NamedSymbol],
    memory: RemoteMemory,
    tids: Callable[[], Collection[int]],
) -> Interpreter:
    vaddr = image.vaddr_of(mapping.offset)
    if vaddr is None:
        raise UntrustedInterpreter("the interpreter's file does not hold the code that is mapped")
    bias = mapping.start - vaddr
    runtime = symbols[_RUNTIME].vaddr + bias
    try:
        version = _stated_version(memory, symbols.get(_VERSION), bias) or _version_in(image)
        layout = _layout(memory, runtime, version)
        if not memory.word(runtime + layout.interpreters_head):
            raise NotStarted
        types = ObjectTypes(*(symbols[name].vaddr + bias for name in _TYPES))
        _check_code_type(memory, types.code, layout)
        thread_id_at = _check_threads(memory, runtime, layout, tids())
        release = memory.word(types.code + _TYPE_DEALLOC)
    except (OSError, ValueError) as error:
        raise UntrustedInterpreter(f"the interpreter's memory is not as expected: {error}") from error
    loop = code_ranges(image)
    return Interpreter(
        layout=layout,
        runtime=runtime,
        types=types,
        loop=tuple((start + bias, end + bias) for start, end in loop),
        has_fixed_frames=has_fixed_frames(image, loop),
        text=(mapping.start, mapping.end),
        thread_id_at=thread_id_at,
        code_release=release - mapping.start + mapping.offset,
    )


def _stated_version(memory: RemoteMemory, symbol: NamedSymbol | None, bias: int) -> tuple[int, int] | None:
    """`Py_Version` is PY_VERSION_HEX of the running interpreter, from 3.11 on."""
    if symbol is None:
        return None
    number = memory.word(symbol.vaddr + bias)
    return number >> 24 & 0xFF, number >> 16 & 0xFF


def _version_in(image: ElfImage) -> tuple[int, int]:
    section = image.section(".rodata")
    minors = set(_CACHE_TAG.findall(section.data)) if section is not None else set()
    if len(minors) != 1:
        raise UntrustedInterpreter("the Python version cannot be read from the interpreter's file")
    return 3, int(minors.pop())


def _layout(memory: RemoteMemory, runtime: int, version: tuple[int, int]) -> CPythonLayout:
    layout: CPythonLayout | None
    if version >= (3, 13):
        layout, is_free_threaded = stated_layout(memory.read(runtime, DEBUG_OFFSETS_BYTES))
        if is_free_threaded:
            raise UntrustedInterpreter("free-threaded builds of Python are not supported")
        if layout is not None and layout.version != version:
            layout = None
    else:
        layout = layout_of(version)
    if layout is None:
        raise UntrustedInterpreter("Python {}.{} is not supported: 3.9 to 3.14 are".format(*version))
    return layout


def _check_code_type(memory: RemoteMemory, code_type: int, layout: CPythonLayout) -> None:
    """Check the type's own table of members and offsets (Objects/codeobject.c, code_memberlist)."""
    expected = {
        b"co_argcount": layout.code_argcount,
        b"co_firstlineno": layout.code_firstlineno,
        b"co_filename": layout.code_filename,
        b"co_name": layout.code_name,
    }
    found: dict[bytes, int] = {}
    table = memory.word(code_type + _TYPE_MEMBERS)
    for index in range(_MEMBERS_MAX):
        name = memory.word(table + index * _MEMBER_BYTES)
        if not name:
            break
        offset = memory.word(table + index * _MEMBER_BYTES + _MEMBER_OFFSET)
        found[memory.text(name, _NAME_MAX_BYTES)] = offset
    if any(found.get(name) != offset for name, offset in expected.items()):
        raise UntrustedInterpreter("the layout of Python's code objects is not that of its version")


def _check_threads(
    memory: RemoteMemory, runtime: int, layout: CPythonLayout, tids: Collection[int]
) -> int | None:
    states = list(thread_states(memory, runtime, layout))
    ids = [memory.word(state + layout.thread_id) for state in states]
    if not any(ids):
        # It is starting, or about to end.
        raise NotStarted
    at = None
    if not layout.has_native_thread_id:
        at = _PTHREAD_TID
        ids = [int.from_bytes(memory.read(id_ + at, 4), "little") for id_ in ids]
    # One may have ended meanwhile, or be about to start.
    if not any(id_ in tids for id_ in ids):
        raise UntrustedInterpreter("Python's list of threads does not match the process")
    return at


def thread_states(memory: RemoteMemory, runtime: int, layout: CPythonLayout) -> Iterator[int]:
    """The addresses of the thread states of all interpreters. Raises OSError."""
    interpreter = memory.word(runtime + layout.interpreters_head)
    for _ in range(_INTERPRETERS_MAX):
        if not interpreter:
            return
        state = memory.word(interpreter + layout.threads_head)
        for _ in range(_THREADS_MAX):
            if not state:
                break
            yield state
            state = memory.word(state + layout.thread_next)
        interpreter = memory.word(interpreter + layout.interpreter_next)
