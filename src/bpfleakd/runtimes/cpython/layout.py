"""CPython's layout for a stack walk: offsets in bytes, by version.

3.13 and later state them in `_Py_DebugOffsets`, at the start of `_PyRuntime` (Include/internal/
pycore_debug_offsets.h, in 3.13 pycore_runtime.h). For 3.9 to 3.12 the table below holds the offsets of
release builds for x86-64, from offsetof() over the headers of 3.9.18, 3.10.13, 3.11.7 and 3.12.1; an ABI does
not change within a minor version, and `interpreter` checks the table against the running process.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace


class InstructionKind(IntEnum):
    """How a frame gives its current instruction. bpf/abi_python.h enum python_instruction."""

    BYTES = 0  # the offset in the bytecode, in bytes (3.9)
    UNITS = 1  # the offset in instructions of two bytes (3.10)
    POINTER = 2  # the address of the instruction (3.11 and later)


class EntryKind(IntEnum):
    """Where the frames of one native evaluation loop end. bpf/abi_python.h enum python_entry."""

    EACH = 0  # every frame has a native one (3.9, 3.10)
    FLAG = 1  # at a frame whose `entry` byte is not 0 (3.11)
    OWNER = 2  # before a frame whose owner is the C stack: 3 or more (3.12 and later)


class CPythonLayout(Struct, frozen=True):
    """Offsets in bytes. `frame_path` leads from a thread state to its newest frame, a pointer each.

    `thread_id` is the place of the native thread id (a tid) from 3.11 on, of the pthread_t before.
    `current_state` is where `_PyRuntime` has the state of the thread with the lock, 0 if it is elsewhere.
    `code_adaptive` is where the bytecode begins in a code object, 0 if it is a separate object.
    """

    version: tuple[int, int]
    interpreters_head: int
    interpreter_next: int
    interpreter_gc: int
    threads_head: int
    thread_next: int
    thread_id: int
    current_state: int
    frame_path: tuple[int, ...]
    frame_code: int
    frame_previous: int
    frame_instruction: int
    instruction_kind: InstructionKind
    frame_entry: int
    entry_kind: EntryKind
    code_argcount: int
    code_firstlineno: int
    code_filename: int
    code_name: int
    code_qualname: int | None
    code_lines: int
    code_adaptive: int
    ascii_bytes: int
    compact_bytes: int

    @property
    def code_checks(self) -> tuple[int, int, int]:
        """The words that identify a code object: first line, constants and names."""
        pointers = (24, 32) if self.version >= (3, 11) else (56, 64)
        return self.code_firstlineno & ~7, *pointers

    @property
    def has_native_thread_id(self) -> bool:
        """Whether a thread state has the tid; before 3.11 it only has the pthread_t."""
        return self.version >= (3, 11)


_3_10 = CPythonLayout(
    version=(3, 10),
    interpreters_head=32,
    interpreter_next=0,
    interpreter_gc=616,
    threads_head=8,
    thread_next=8,
    thread_id=176,
    current_state=568,
    frame_path=(24,),
    frame_code=32,
    frame_previous=24,
    frame_instruction=96,
    instruction_kind=InstructionKind.UNITS,
    frame_entry=0,
    entry_kind=EntryKind.EACH,
    code_argcount=16,
    code_firstlineno=40,
    code_filename=104,
    code_name=112,
    code_qualname=None,
    code_lines=120,
    code_adaptive=0,
    ascii_bytes=48,
    compact_bytes=72,
)
_3_11 = CPythonLayout(
    version=(3, 11),
    interpreters_head=40,
    interpreter_next=0,
    interpreter_gc=648,
    threads_head=16,
    thread_next=8,
    thread_id=160,
    current_state=576,
    frame_path=(56, 8),
    frame_code=32,
    frame_previous=48,
    frame_instruction=56,
    instruction_kind=InstructionKind.POINTER,
    frame_entry=68,
    entry_kind=EntryKind.FLAG,
    code_argcount=56,
    code_firstlineno=72,
    code_filename=112,
    code_name=120,
    code_qualname=128,
    code_lines=136,
    code_adaptive=184,
    ascii_bytes=48,
    compact_bytes=72,
)
_TABLE = {
    (3, 9): replace(_3_10, version=(3, 9), frame_instruction=104, instruction_kind=InstructionKind.BYTES),
    (3, 10): _3_10,
    (3, 11): _3_11,
    (3, 12): replace(
        _3_11,
        version=(3, 12),
        interpreter_gc=112,
        threads_head=72,
        thread_id=144,
        current_state=0,
        frame_path=(56, 0),
        frame_code=0,
        frame_previous=8,
        frame_entry=70,
        entry_kind=EntryKind.OWNER,
        code_argcount=52,
        code_firstlineno=68,
        code_adaptive=192,
        ascii_bytes=40,
        compact_bytes=56,
    ),
}

_COOKIE = b"xdebugpy"
# The words after cookie, version and free_threaded, up to the last one used.
_GIL = "ceval_gil gil_state gil_enabled gil_locked gil_holder"
_THREAD = "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"
_FRAME = "size previous executable instr_ptr localsplus owner"
_CODE = "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds adaptive"
_STATED = {
    (3, 13): {
        "runtime": "size finalizing interpreters_head",
        "interpreter": f"size id next threads_head gc modules sysdict builtins {_GIL}",
        "thread": _THREAD,
        "frame": _FRAME,
        "code": _CODE,
    },
    (3, 14): {
        "runtime": "size finalizing interpreters_head",
        "interpreter": "size id next threads_head threads_main gc modules sysdict builtins"
        f" {_GIL} code_generation tlbc_generation",
        "thread": _THREAD,
        "frame": f"{_FRAME} stackpointer tlbc_index",
        "code": f"{_CODE} tlbc",
    },
}
_HEAD = struct.Struct("<8sQQ")
DEBUG_OFFSETS_BYTES = 512


def layout_of(version: tuple[int, int]) -> CPythonLayout | None:
    """The offsets of a version that does not state them itself; None for an unknown one."""
    return _TABLE.get(version)


def stated_layout(head: bytes) -> tuple[CPythonLayout | None, bool]:
    """The layout that a `_Py_DebugOffsets` states, and whether the build is free-threaded.

    `head` is the first DEBUG_OFFSETS_BYTES of `_PyRuntime`. None: it states none, or in the format of an
    unsupported version.
    """
    cookie, hexversion, free_threaded = _HEAD.unpack_from(head)
    version = (hexversion >> 24 & 0xFF, hexversion >> 16 & 0xFF)
    if cookie != _COOKIE or version not in _STATED:
        return None, False
    names = [f"{group}.{name}" for group, text in _STATED[version].items() for name in text.split()]
    at = dict(zip(names, struct.unpack_from(f"<{len(names)}Q", head, _HEAD.size), strict=True))
    if max(at.values()) >= 1 << 24:
        return None, False
    layout = CPythonLayout(
        version=version,
        interpreters_head=at["runtime.interpreters_head"],
        interpreter_next=at["interpreter.next"],
        interpreter_gc=at["interpreter.gc"],
        threads_head=at["interpreter.threads_head"],
        thread_next=at["thread.next"],
        thread_id=at["thread.native_thread_id"],
        current_state=0,
        frame_path=(at["thread.current_frame"],),
        frame_code=at["frame.executable"],
        frame_previous=at["frame.previous"],
        frame_instruction=at["frame.instr_ptr"],
        instruction_kind=InstructionKind.POINTER,
        frame_entry=at["frame.owner"],
        entry_kind=EntryKind.OWNER,
        code_argcount=at["code.argcount"],
        code_firstlineno=at["code.firstlineno"],
        code_filename=at["code.filename"],
        code_name=at["code.name"],
        code_qualname=at["code.qualname"],
        code_lines=at["code.linetable"],
        code_adaptive=at["code.adaptive"],
        ascii_bytes=40,
        compact_bytes=56,
    )
    return layout, bool(free_threaded)
