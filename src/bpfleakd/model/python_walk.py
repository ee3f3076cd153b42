"""What the stack walker is told of a Python interpreter."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PythonWalk"]


@dataclass(frozen=True, slots=True)
class PythonWalk:
    """The fields of struct python in bpf/abi.h, under the same names: offsets in bytes, addresses of memory.

    `namespace_device` and `namespace_inode` are of the pid namespace that thread ids are of; 0: the daemon's.
    `loops` are the (start, end) of the evaluation loop's code.
    """

    loops: tuple[tuple[int, int], ...]
    instruction_kind: int
    entry_kind: int
    thread_id_at: int
    namespace_device: int
    namespace_inode: int
    runtime: int
    code_type: int
    text_start: int
    text_end: int
    interpreters_head: int
    interpreter_next: int
    threads_head: int
    thread_next: int
    thread_id: int
    frame_path: int
    frame_path_second: int | None
    frame_bytes: int
    frame_code: int
    frame_previous: int
    frame_instruction: int
    frame_entry: int
    code_checks: tuple[int, int, int]
    code_adaptive: int
