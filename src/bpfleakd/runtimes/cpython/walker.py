"""The stack walker's parameters for an interpreter."""

from __future__ import annotations

import os

from bpfleakd.model.code.python_walk import PythonWalk
from bpfleakd.runtimes.cpython.interpreter import Interpreter
from bpfleakd.runtimes.cpython.layout import CPythonLayout, EntryKind

# struct python of bpf/abi_python.h has 16 bits for an offset; the walker reads this much of a frame at most.
_OFFSET_MAX = 0xFFFE
_FRAME_BYTES_MAX = 128
# Names that the layout and the walker share.
_OF_LAYOUT = (
    "instruction_kind",
    "entry_kind",
    "interpreters_head",
    "interpreter_next",
    "threads_head",
    "thread_next",
    "thread_id",
    "current_state",
    "frame_code",
    "frame_previous",
    "frame_instruction",
    "frame_entry",
    "code_checks",
    "code_adaptive",
)


def python_walk(interpreter: Interpreter, namespace: os.stat_result | None) -> PythonWalk:
    """The parameters. `namespace` is the process' pid namespace if it differs from the daemon's.

    Raises ValueError if an offset is larger than the walker can use.
    """
    layout = interpreter.layout
    frame_bytes = _frame_bytes(layout)
    offsets = (layout.interpreters_head, layout.interpreter_next, layout.threads_head, layout.thread_id)
    is_ordered = layout.frame_path[0] <= layout.thread_id
    if max(offsets) > _OFFSET_MAX or frame_bytes > _FRAME_BYTES_MAX or not is_ordered:
        raise ValueError("its structures are larger than the stack walker can read")
    return PythonWalk(
        loops=interpreter.loop,
        fields={name: getattr(layout, name) for name in _OF_LAYOUT}
        | {
            "thread_id_at": interpreter.thread_id_at or 0,
            "namespace_device": namespace.st_dev if namespace else 0,
            "namespace_inode": namespace.st_ino if namespace else 0,
            "runtime": interpreter.runtime,
            "code_type": interpreter.types.code,
            "text_start": interpreter.text[0],
            "text_end": interpreter.text[1],
            "frame_path": layout.frame_path[0],
            "frame_path_second": layout.frame_path[1] if len(layout.frame_path) > 1 else None,
            "frame_bytes": frame_bytes,
            "has_fixed_frames": interpreter.has_fixed_frames,
        },
        code_release=interpreter.code_release,
    )


def _frame_bytes(layout: CPythonLayout) -> int:
    """The part of a frame to read: up to the last used field, in whole words."""
    ends = [layout.frame_code + 8, layout.frame_previous + 8, layout.frame_instruction + 8]
    if layout.entry_kind is not EntryKind.EACH:
        ends.append(layout.frame_entry + 1)
    return -(-max(ends) // 8) * 8
