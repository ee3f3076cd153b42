"""Whether a program runs on the stack of its task, as it must (see bpf/stack.h).

The kernel provides the machine code of a program unless kernel.kptr_restrict is 2. With a private stack the
x86-64 JIT (6.13, emit_priv_frame_ptr in arch/x86/net/bpf_jit_comp.c) lets the program's frame begin at an
address per CPU, in a register that programs use for nothing else:

    movabs $PRIVATE_STACK, %r9
    add    %gs:THIS_CPU_OFF, %r9
"""

from __future__ import annotations

import errno
import struct

from bpfleakd.kernel import bpf

# add %gs:…, %r9: segment, REX.WR, operation; the address is absolute or relative to rip.
_ADD_CPU_OFFSET = (bytes.fromhex("65 4c 03 0c 25"), bytes.fromhex("65 4c 03 0d"))
# struct bpf_insn: BPF_JMP | BPF_CALL of BPF_FUNC_tail_call.
_TAIL_CALL = struct.pack("=BBhi", 0x85, 0, 0, 12)


def has_private_stack(machine_code: bytes) -> bool:
    """Whether machine code of the x86-64 JIT sets up a private stack."""
    return any(pattern in machine_code for pattern in _ADD_CPU_OFFSET)


def has_tail_call(instructions: bytes) -> bool:
    """Whether BPF instructions contain a tail call: the kernel gives such programs no private stack."""
    size = len(_TAIL_CALL)
    return any(instructions[at : at + size] == _TAIL_CALL for at in range(0, len(instructions), size))


def check_stack(program_fd: int, instructions: bytes, name: str) -> None:
    """Raise OSError(ENOTSUP) if a loaded program has a private stack, or might have one."""
    if not has_tail_call(instructions):
        raise OSError(errno.ENOTSUP, f"{name} has lost the tail call that keeps it off stacks per CPU")
    if has_private_stack(bpf.program_machine_code(program_fd)):
        raise OSError(
            errno.ENOTSUP,
            f"the kernel runs {name} on a stack per CPU, which threads that preempt each other would share",
        )
