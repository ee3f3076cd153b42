"""The keys, values and numbers of bpf/abi.h, as numpy types.

The C header is authoritative: tests/unit/kernel/test_abi.py compiles it and compares every size, offset and
number with this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.model.code.stack import StackEnd
from bpfleakd.model.site import AllocationKind

MAX_FRAMES = 128
UNWIND_SHARD_WORDS = 0x40000
MAX_UNWIND_MAPPINGS = 1024
ONE_RULE = 0xFFFF
KNOWN_CODE_RANGES = 512
NUMBERED_CODE_RANGES = 16
CODE_NAMES = 16
CODE_NAME_BYTES = 64
MANAGED_OBJECT = 2 << 61
MANAGED_POSITION = 3 << 61
MANAGED_ADDRESS_BITS = 47
MANAGED_CHECK_BITS = 14
KNOWN_RULES_BITS = 10

COOKIE_ROLE_BITS = 8
COOKIE_CALL_BITS = 8
COOKIE_REGISTER_BITS = 4
COOKIE_OPERANDS_MASK = 0xFFFFFF
COOKIE_CALLS_RELEASE = 1 << 32
COOKIE_CALLS_ALLOCATOR = 1 << 33
COOKIE_SLOT_SHIFT = 40
COOKIE_SLOT_SHARED = 0xFFFFFF

MAX_SAMPLE_SHIFT = 22
SAMPLING_EVER, SAMPLING_NOW = 1, 2
CURVE_STEPS = 128
COUNT_UNIT = 65_536
THREAD_END_NS = 500_000_000
CALL_COUNTERS = 8
COMMIT_CALLS = 4
BREAK_CALLERS = 4


class RecordingState(IntEnum):
    """enum recording_state."""

    STOPPED = 0
    RECORDING = 1
    EXECED = 2
    UNATTENDED = 3


# enum loss, allocation_kind, function_role, argument_register and stack_end, in their order.
LOSS_REASONS = (
    "live_full",
    "site_full",
    "stack_full",
    "thread_full",
    "return_missed",
    "free_missed",
    "result_unreadable",
    "stack_unreadable",
    "event_full",
    "unattended",
    "descriptor_full",
)
KINDS = (AllocationKind.HEAP, AllocationKind.DESCRIPTOR)
HEAP_KIND, DESCRIPTOR_KIND = KINDS.index(AllocationKind.HEAP), KINDS.index(AllocationKind.DESCRIPTOR)
FUNCTION_ROLES = (
    FunctionRole.SIZE_FIRST,
    FunctionRole.SIZE_SECOND,
    FunctionRole.CALLOC,
    FunctionRole.REALLOC,
    FunctionRole.POSIX_MEMALIGN,
    FunctionRole.RELEASE,
    FunctionRole.LIBRARIES_CHANGED,
    FunctionRole.REALLOC_ARRAY,
    FunctionRole.REALLOC_OR_FREE,
    FunctionRole.RESIZE,
    FunctionRole.STRDUP,
    FunctionRole.SAMPLED_ALLOC,
    FunctionRole.SAMPLED_FREE,
    FunctionRole.CODE_RELEASED,
    FunctionRole.SYSCALL_ENTRY,
    FunctionRole.SYSCALL_RETURN,
)
ARGUMENT_REGISTERS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax", "r10", "r11")
STACK_ENDS = (
    StackEnd.BOTTOM,
    StackEnd.DEPTH,
    StackEnd.READ_FAULT,
    StackEnd.NO_RULE,
    StackEnd.FRAME_POINTER_END,
    StackEnd.TABLE_PENDING,
)

PYTHON_LOOPS = 4
PYTHON_FRAME_BYTES = 128
PYTHON_SEGMENTS = 8
NO_SECOND_STEP = 0xFFFF
PYTHON_FRAME = 1 << 63

PYTHON_LOOP = np.dtype([("start", "u8"), ("end", "u8")])
PYTHON = np.dtype(
    [
        ("loop_count", "u4"),
        ("instruction_kind", "u1"),
        ("entry_kind", "u1"),
        ("thread_id_at", "u2"),
        ("namespace_device", "u8"),
        ("namespace_inode", "u8"),
        ("runtime", "u8"),
        ("code_type", "u8"),
        ("text_start", "u8"),
        ("text_end", "u8"),
        ("loops", PYTHON_LOOP, (PYTHON_LOOPS,)),
        ("interpreters_head", "u2"),
        ("interpreter_next", "u2"),
        ("threads_head", "u2"),
        ("thread_next", "u2"),
        ("thread_id", "u2"),
        ("frame_path", "u2"),
        ("frame_path_second", "u2"),
        ("frame_bytes", "u2"),
        ("frame_code", "u2"),
        ("frame_previous", "u2"),
        ("frame_instruction", "u2"),
        ("frame_entry", "u2"),
        ("code_checks", "u2", (3,)),
        ("code_adaptive", "u2"),
        ("current_state", "u2"),
        ("sees_releases", "u2"),
        ("has_fixed_frames", "u2"),
        ("cframe_distance", "u2"),
        ("code_releases", "u8"),
    ]
)
COMMIT_CALL = np.dtype([("caller", "u8"), ("ip", "u8")])
CALL_COUNTER = np.dtype(
    [("probe_hits", "u8"), ("unrecorded", "u8"), ("unknown_frees", "u8"), ("unused", "u8", (5,))]
)
PROCESS = np.dtype(
    [
        ("tgid", "u4"),
        ("state", "u4"),
        ("sample_shift", "u4"),
        ("sampling", "u4"),
        ("reading", "u4"),
        ("change_unlisted", "u4"),
        ("unmatched_frees", "u8"),
        ("inside_interval_bytes", "u8"),
        ("inside_reading", "u4"),
        ("space_at_sites", "u4"),
        ("site_hits", "u8"),
        ("library_changes", "u8"),
        ("losses", "u8", (len(LOSS_REASONS),)),
        ("recorded", "u8"),
        ("released", "u8"),
        ("site_count", "u8"),
        ("stack_count", "u8"),
        ("thread_count", "u8"),
        ("sites_removed", "u8"),
        ("stacks_removed", "u8"),
        ("threads_removed", "u8"),
        ("removed_bytes", "u8"),
        ("removed_count", "u8"),
        ("removed_temporary_count", "u8"),
        ("space_reading", "u4"),
        ("space_count", "u4"),
        ("space_quota", "u4"),
        ("removed_before", "u4"),
        ("live_bytes", "i8"),
        ("peak_live_bytes", "i8"),
        ("last_allocations", "u8", (64,)),
        ("code_count", "u8"),
        ("code_changes", "u8"),
        ("numbered_start", "u8"),
        ("numbered_end", "u8"),
        ("false_frees", "u8"),
        ("commit_calls", COMMIT_CALL, (COMMIT_CALLS,)),
        ("break_callers", "u8", (BREAK_CALLERS,)),
        ("program_break", "u8"),
        ("lowest_break", "u8"),
        ("calls", CALL_COUNTER, (CALL_COUNTERS,)),
        ("python", PYTHON),
    ]
)
PROBE_ARGUMENTS = 3
NO_REGISTER = 0xFF
PROBE_OPERAND = np.dtype(
    [
        ("displacement", "i8"),
        ("kind", "u1"),
        ("base", "u1"),
        ("index", "u1"),
        ("scale_shift", "u1"),
        ("unused_bits", "u1"),
        ("is_signed", "u1"),
        ("reserved", "u2"),
    ]
)
PROBE_OPERANDS = np.dtype([("arguments", PROBE_OPERAND, (PROBE_ARGUMENTS,))])
SAMPLING_CURVE = np.dtype([("points", "u4", (CURVE_STEPS + 1,))])
UNPROVEN_FREES = np.dtype([("first_ns", "u8"), ("count", "u8")])
SITE_KEY = np.dtype([("tgid", "u4"), ("kind", "u4"), ("stack_id", "u8")])
SITE = np.dtype(
    [
        ("live_bytes", "i8"),
        ("live_count", "i8"),
        ("allocated_bytes", "u8"),
        ("allocated_count", "u8"),
        ("temporary_count", "u8"),
        ("peak_live_bytes", "i8"),
        ("listed", "u4"),
        ("reserved", "u4"),
        ("live_bytes_variance", "i8"),
        ("live_count_variance", "i8"),
    ]
)
CHANGED_SITE = np.dtype([*SITE_KEY.descr, ("reading", "u4"), ("reserved", "u4")])
STACK_KEY = np.dtype([("tgid", "u8"), ("stack_id", "u8")])
STACK = np.dtype(
    [
        ("depth", "u4"),
        ("end", "u4"),
        ("checks", "u4", (PYTHON_SEGMENTS,)),
        ("frames", "u8", (MAX_FRAMES,)),
    ]
)
CODE_KEY = np.dtype(
    [("tgid", "u4"), ("device", "u4"), ("inode", "u8"), ("start", "u8"), ("end", "u8"), ("offset", "u8")]
)
CODE_NAME = np.dtype([("text", "i1", (CODE_NAME_BYTES,))])
LOADED_CODE = np.dtype(
    [
        ("number", "u4"),
        ("was_unnumbered", "u4"),
        ("name_count", "u4"),
        ("is_counted", "u4"),
        ("names", CODE_NAME, (CODE_NAMES,)),
    ]
)
CODE_RANGE = np.dtype(
    [("start", "u8"), ("end", "u8"), ("identity", "u8"), ("number", "u4"), ("reserved", "u4")]
)
CODE_RANGES = np.dtype(
    [
        ("next_known", "u8"),
        ("next_numbered", "u8"),
        ("known", CODE_RANGE, (KNOWN_CODE_RANGES,)),
        ("numbered", CODE_RANGE, (NUMBERED_CODE_RANGES,)),
    ]
)
LIVE_BLOCK = np.dtype(
    [
        ("size", "u8"),
        ("weight", "u8"),
        ("born_ns", "u8"),
        ("stack_id", "u8"),
        ("tid", "u4"),
        ("kind", "u4"),
    ]
)
# The beginning of a thread's entry in `threads`.
PENDING_CALL = np.dtype(
    [
        ("entry_sp", "u8"),
        ("return_address", "u8"),
        ("function_ip", "u8"),
        ("size", "u8"),
        ("weight", "u8"),
        ("old_address", "u8"),
        ("old_block", LIVE_BLOCK),
        ("result_pointer", "u8"),
        ("new_address", "u8"),
        ("old_known", "u8"),
        ("allocation_before", "u8"),
    ]
)
SPACE_EVENT = np.dtype(
    [
        ("time_ns", "u8"),
        ("stack_id", "u8"),
        ("arguments", "u8", (6,)),
        ("result", "i8"),
        ("heap_peak_bytes", "i8"),
        ("tgid", "u4"),
        ("tid", "u4"),
        ("syscall", "u4"),
        ("phase", "u4"),
        ("inside_allocator", "u4"),
        ("reserved", "u4"),
    ]
)
HEARTBEAT = np.dtype([("beat_ns", "u8"), ("timeout_ns", "u8")])
UNWIND_MAPPING = np.dtype(
    [
        ("start", "u8"),
        ("end", "u8"),
        ("bias", "u8"),
        ("shard", "u2"),
        ("gap_rule", "u2"),
        ("index_base", "u4"),
    ]
)
UNWIND_MAPPINGS = np.dtype(
    [
        ("count", "u4"),
        ("pending", "u4"),
        ("sorted", UNWIND_MAPPING, (MAX_UNWIND_MAPPINGS,)),
        ("known_rules", "u8", (1 << KNOWN_RULES_BITS,)),
    ]
)

# The arguments that a role needs: how many others come before each.
_ROLE_ARGUMENTS = {
    FunctionRole.SIZE_FIRST: (0,),
    FunctionRole.SIZE_SECOND: (1,),
    FunctionRole.CALLOC: (0, 1),
    FunctionRole.REALLOC: (0, 1),
    FunctionRole.POSIX_MEMALIGN: (0, 2),
    FunctionRole.RELEASE: (0,),
    FunctionRole.LIBRARIES_CHANGED: (),
    FunctionRole.REALLOC_ARRAY: (0, 1, 2),
    FunctionRole.REALLOC_OR_FREE: (0, 1),
    FunctionRole.RESIZE: (0, 1),
    FunctionRole.STRDUP: (),
    FunctionRole.SAMPLED_ALLOC: (),
    FunctionRole.SAMPLED_FREE: (),
    FunctionRole.CODE_RELEASED: (),
    FunctionRole.SYSCALL_ENTRY: (),
    FunctionRole.SYSCALL_RETURN: (),
}


def role_arguments(role: FunctionRole, leading: int = 0) -> tuple[str, ...]:
    """The registers that hold the arguments of a role at a function's entry.

    `leading` is the number of other arguments before them. System V ABI, AMD64 supplement, section 3.2.3.
    """
    return tuple(ARGUMENT_REGISTERS[leading + position] for position in _ROLE_ARGUMENTS[role])


def site_operands(call: int, distance: int) -> int:
    """The `operands` of a role SYSCALL_*: the number of the call, and the bytes from where it returns to."""
    return call | distance << COOKIE_CALL_BITS


def cookie_of(
    role: FunctionRole,
    registers: Sequence[str],
    *,
    slot: int = 0,
    calls_release: bool = False,
    calls_allocator: bool = False,
    operands: int = 0,
) -> int:
    """The cookie of a probe point: its role, and the registers of `role_arguments` there.

    `operands` is for roles without registers: SAMPLED_* (an entry of `probe_operands`) and SYSCALL_*
    (`site_operands`). `slot` is the process' place in the maps, or COOKIE_SLOT_SHARED. `calls_release`: the
    function frees, and may do so by calling another probed one; `calls_allocator`: the same for one that
    allocates.
    """
    cookie = FUNCTION_ROLES.index(role) | slot << COOKIE_SLOT_SHIFT
    cookie |= operands << COOKIE_ROLE_BITS
    cookie |= COOKIE_CALLS_RELEASE if calls_release else 0
    cookie |= COOKIE_CALLS_ALLOCATOR if calls_allocator else 0
    for index, register in enumerate(registers):
        cookie |= ARGUMENT_REGISTERS.index(register) << (COOKIE_ROLE_BITS + index * COOKIE_REGISTER_BITS)
    return cookie
