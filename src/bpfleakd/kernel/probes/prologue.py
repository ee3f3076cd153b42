"""The first instructions of a function: where to place a probe, and the registers' contents there.

A uprobe on an instruction that the kernel emulates costs a tenth of one that the kernel single-steps out of
line (0.6 µs against 7 µs). The probe point is the first such instruction at or after the entry that

  - every real call reaches: no branch precedes it, and none in the function leads back to it;
  - has the arguments: each relevant one is in a register, not necessarily its original one;
  - has the return address at [rsp]: nothing before it moves the stack pointer.

If a release function first returns for null pointers, a point after that is better still. If no instruction
is suitable, the probe is placed on the entry itself, or behind a nop of 5 bytes there: Linux 6.18 replaces a
breakpoint on such a nop by a call, to memory that forked children do not have. They would end by SIGSEGV
(seen on 6.18.44).

x86-64 only. Emulated instructions: arch/x86/kernel/uprobes.c, branch_setup_xol_ops and push_setup_xol_ops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from bpfleakd.kernel.abi import ARGUMENT_REGISTERS

if TYPE_CHECKING:
    import capstone

    Instruction: TypeAlias = capstone.CsInsn

# The prologue has at most this many instructions.
_LONGEST_PROLOGUE = 16
_LONGEST_INSTRUCTION_BYTES = 15
# can_optimize in arch/x86/kernel/uprobes.c: any nop of this length.
_REPLACED_NOP_BYTES = 5

# The 64-bit register that contains a register.
_WHOLE_REGISTER = {
    **{part: f"r{x}x" for x in "abcd" for part in (f"r{x}x", f"e{x}x", f"{x}x", f"{x}l", f"{x}h")},
    **{part: f"r{x}" for x in ("si", "di", "sp", "bp") for part in (f"r{x}", f"e{x}", x, f"{x}l")},
    **{f"r{n}{width}": f"r{n}" for n in range(8, 16) for width in ("", "d", "w", "b")},
}


def choose_probe_point(code: bytes, *, release: bool, arguments: Sequence[str]) -> tuple[int, bool]:
    """Choose in the machine code of a function: (distance from its entry in bytes, emulated).

    `arguments` are the registers that must not be lost; `argument_registers` says where they are.
    """
    targets = internal_jumps(code)
    best, is_at_nop = (0, False), True
    previous = None
    for instruction, holders in prologue(code):
        if instruction.address in targets and instruction.address:
            break
        if not set(arguments) <= set(holders.values()):
            break
        if is_at_nop and not _is_replaced(instruction.size, instruction.mnemonic):
            best, is_at_nop = (instruction.address, False), False
        if _is_emulated(instruction):
            best = (instruction.address, True)
            # The kernel emulates the branch of a null check as well, but fewer calls reach the code behind
            # it.
            if not (release and previous is not None and _is_null_check(previous, instruction)):
                break
        elif not is_harmless(instruction):
            break
        previous = instruction
    return best


def argument_registers(code: bytes, distance: int, arguments: Sequence[str]) -> tuple[str, ...]:
    """The registers that hold, `distance` bytes after a function's entry, what `arguments` held at the entry.

    A register that was not overwritten is preferred to its copies.
    """
    for instruction, holders in prologue(code):
        if instruction.address == distance:
            return tuple(_holder_of(argument, holders) for argument in arguments)
    return tuple(arguments)


def _holder_of(argument: str, holders: Mapping[str, str]) -> str:
    if holders.get(argument) == argument:
        return argument
    return next((register for register in ARGUMENT_REGISTERS if holders.get(register) == argument), argument)


def prologue(code: bytes) -> Iterator[tuple[Instruction, dict[str, str]]]:
    """Yield the first instructions, and before each: register -> the one whose entry value it holds."""
    holders = {register: register for register in ARGUMENT_REGISTERS}
    beginning = code[: _LONGEST_PROLOGUE * _LONGEST_INSTRUCTION_BYTES]
    for instruction in islice(_disassembler(detail=True).disasm(beginning, 0), _LONGEST_PROLOGUE):
        yield instruction, dict(holders)
        copied = _copy(instruction)
        if copied:
            to, source = copied
            if source in holders and to in ARGUMENT_REGISTERS:
                holders[to] = holders[source]
            else:
                holders.pop(to, None)
            continue
        for register in _written_by(instruction):
            holders.pop(register, None)


def _copy(instruction: Instruction) -> tuple[str, str] | None:
    """(to, from) of a copy of a whole register to another."""
    from capstone import x86

    if instruction.id != x86.X86_INS_MOV or len(instruction.operands) != 2:
        return None
    if any(operand.type != x86.X86_OP_REG or operand.size != 8 for operand in instruction.operands):
        return None
    to, source = (instruction.reg_name(operand.reg) for operand in instruction.operands)
    return (to, source) if to in _WHOLE_REGISTER and source in _WHOLE_REGISTER else None


def _disassembler(*, detail: bool) -> capstone.Cs:
    import capstone

    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = detail
    return disassembler


def instructions(code: bytes, vaddr: int) -> Iterator[tuple[int, str]]:
    """The address and mnemonic of each instruction."""
    for address, _size, mnemonic, _operands in _disassembler(detail=False).disasm_lite(code, vaddr):
        yield address, mnemonic


def internal_jumps(code: bytes) -> set[int]:
    """The targets of jumps within the function."""
    return {target for is_call, target in transfers(code) if not is_call}


def transfers(code: bytes) -> Iterator[tuple[bool, int]]:
    """Yield (is a call, target) for every direct jump and call; targets are distances from the entry."""
    for _address, _size, mnemonic, operands in _disassembler(detail=False).disasm_lite(code, 0):
        name = mnemonic.rpartition(" ")[2]
        if name.startswith(("j", "loop", "call")):
            with contextlib.suppress(ValueError):  # through a register or memory
                target = int(operands, 16)
                yield name == "call", target - (1 << 64 if target >> 63 else 0)


def _is_emulated(instruction: Instruction) -> bool:
    from capstone import x86

    code = bytes(instruction.bytes)
    if code == b"\x90":
        return True
    if instruction.id == x86.X86_INS_PUSH:
        return code[-1] & 0xF8 == 0x50 and code[:-1] in (b"", b"\x41")
    return (
        code[0] in (0xE8, 0xE9, 0xEB)
        or code[0] & 0xF0 == 0x70
        or (code[0] == 0x0F and code[1] & 0xF0 == 0x80)
    )


def is_harmless(instruction: Instruction) -> bool:
    """Whether an instruction preserves stack pointer, frame pointer and control flow."""
    from capstone import x86

    if any(instruction.group(group) for group in (x86.X86_GRP_JUMP, x86.X86_GRP_CALL, x86.X86_GRP_RET)):
        return False
    return not _written_by(instruction) & {"rsp", "rbp"}


def written_registers(code: bytes) -> set[str]:
    """The general registers that the first instruction changes, whole or in part, by their 64-bit names."""
    beginning = code[:_LONGEST_INSTRUCTION_BYTES]
    return _written_by(next(_disassembler(detail=True).disasm(beginning, 0, 1)))


def _written_by(instruction: Instruction) -> set[str]:
    _read, written = instruction.regs_access()
    names = {instruction.reg_name(register) for register in written}
    return {_WHOLE_REGISTER[name] for name in names if name in _WHOLE_REGISTER}


def is_replaced(code: bytes) -> bool:
    """Whether code begins with an instruction on which the kernel may replace a breakpoint by a call."""
    first = next(_disassembler(detail=False).disasm_lite(code[:_LONGEST_INSTRUCTION_BYTES], 0), None)
    if first is None:
        return False
    _address, size, mnemonic, _operands = first
    return _is_replaced(size, mnemonic)


def _is_replaced(size: int, mnemonic: str) -> bool:
    return size == _REPLACED_NOP_BYTES and mnemonic == "nop"


def _is_null_check(test: Instruction, branch: Instruction) -> bool:
    return (test.mnemonic, test.op_str, branch.mnemonic) == ("test", "rdi, rdi", "je")


class JumpTarget(NamedTuple):
    """The target of a jump, or the slot that contains it: a distance in bytes from the entry."""

    distance: int
    is_slot: bool


def jump_target(jump: Instruction) -> JumpTarget | None:
    """The target of a jump, or None if a register decides."""
    from capstone import x86

    (operand,) = jump.operands
    if operand.type == x86.X86_OP_IMM:
        return JumpTarget(operand.imm, is_slot=False)
    if operand.type == x86.X86_OP_MEM and operand.mem.base == x86.X86_REG_RIP:
        return JumpTarget(jump.address + jump.size + operand.mem.disp, is_slot=True)
    return None
