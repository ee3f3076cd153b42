"""Call frame instructions: from an FDE's bytes to (offset in the function, state) rows.

Rules (DWARF 5, section 6.4.2; the GNU extensions as in binutils):
- Registers that the walker does not carry are decoded and forgotten.
- A row is put down when the location advances and the state differs from the row before, so that rows
  ascend strictly and the first one is at offset 0.
- `restore_state` brings the CFA back as well, as all unwinders do.
- An expression as CFA stays until def_cfa or def_cfa_register; def_cfa_offset only changes the offset
  that a later def_cfa_register uses.
- Bytes that cannot be decoded end the program: the rows before them hold, and what comes after is unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from bpfleakd.unwind.cfi import Cie
from bpfleakd.unwind.encoding import read_sleb128, read_uleb128
from bpfleakd.unwind.frame_state import UNSPECIFIED, FrameState, How
from bpfleakd.unwind.malformed import MalformedCfi, SkipReason
from bpfleakd.unwind.registers import RBP, RIP, RSP

# No function is longer than 4 GiB, and no offset in one needs more bits.
OFFSET_LIMIT = 1 << 32
REMEMBERED_STATES_MAX = 64

_ADVANCE_LOC, _OFFSET, _RESTORE = 0x40, 0x80, 0xC0


class CfiProgram(NamedTuple):
    """The result of instructions. With `fault`, the rules from `fault_offset` on are unknown."""

    rows: list[tuple[int, FrameState]]
    fault: SkipReason | None
    fault_offset: int


# Before any instruction. Register -1 does not exist: a CIE that does not define the CFA cannot be used.
_BLANK = FrameState(-1, 0, None, UNSPECIFIED, UNSPECIFIED, UNSPECIFIED)


def initial_state(cie: Cie) -> FrameState:
    """Return the state that the CIE's instructions set up. Raises `MalformedCfi`."""
    machine = _Machine(cie, _BLANK)
    machine.execute(cie.instructions)
    return machine.state()


def run(instructions: bytes, cie: Cie, initial: FrameState) -> CfiProgram:
    """Execute an FDE's instructions. Never raises: what could not be decoded is `Program.fault`."""
    machine = _Machine(cie, initial)
    try:
        machine.execute(instructions)
    except MalformedCfi as error:
        return CfiProgram(machine.rows, error.reason, machine.location)
    machine.put_row()
    return CfiProgram(machine.rows, None, machine.location)


class _Machine:
    """The state while instructions are executed. `location` is the offset from the function's start."""

    def __init__(self, cie: Cie, initial: FrameState) -> None:
        self.cie = cie
        self.initial = {RBP: initial.rbp, RSP: initial.rsp, RIP: initial.rip}
        self.rows: list[tuple[int, FrameState]] = []
        self.location = 0
        self.remembered: list[FrameState] = []
        self.load(initial)

    def load(self, state: FrameState) -> None:
        self.cfa_register, self.cfa_offset, self.cfa_expression = state[:3]
        self.registers = {RBP: state.rbp, RSP: state.rsp, RIP: state.rip}

    def state(self) -> FrameState:
        registers = self.registers
        return FrameState(
            self.cfa_register,
            self.cfa_offset,
            self.cfa_expression,
            registers[RBP],
            registers[RSP],
            registers[RIP],
        )

    def put_row(self) -> None:
        state = self.state()
        if not self.rows or self.rows[-1][1] != state:
            self.rows.append((self.location, state))

    def execute(self, code: bytes) -> None:
        try:
            self._execute(code)
        except (IndexError, struct.error):
            raise MalformedCfi(SkipReason.TRUNCATED) from None

    def _execute(self, code: bytes) -> None:
        registers, data_alignment = self.registers, self.cie.data_alignment
        position, end = 0, len(code)
        while position < end:
            byte = code[position]
            position += 1
            operation, operand = byte & 0xC0, byte & 0x3F
            if operation == _ADVANCE_LOC:
                self.advance(operand)
            elif operation == _OFFSET:
                factored, position = read_uleb128(code, position)
                if operand in registers:
                    registers[operand] = (How.OFFSET, factored * data_alignment)
            elif operation == _RESTORE:
                self.restore(operand)
            elif byte:
                handler = _HANDLERS.get(byte)
                if handler is None:
                    raise MalformedCfi(SkipReason.BAD_INSTRUCTION)
                position = handler(self, code, position)
                registers = self.registers

    def advance(self, factored: int) -> None:
        if factored:
            self.put_row()
            self.location += factored * self.cie.code_alignment
            if self.location >= OFFSET_LIMIT:
                raise MalformedCfi(SkipReason.BAD_INSTRUCTION)

    def restore(self, register: int) -> None:
        if register in self.registers:
            self.registers[register] = self.initial[register]

    def set_rule(self, register: int, how: How, operand: int | bytes = 0) -> None:
        if register in self.registers:
            self.registers[register] = (how, operand)


Handler = Callable[[_Machine, bytes, int], int]


def _advance_by(layout: struct.Struct) -> Handler:
    def handler(machine: _Machine, code: bytes, position: int) -> int:
        machine.advance(layout.unpack_from(code, position)[0])
        return position + layout.size

    return handler


def _saved(how: How, factor_sign: int, is_signed: bool) -> Handler:
    read = read_sleb128 if is_signed else read_uleb128

    def handler(machine: _Machine, code: bytes, position: int) -> int:
        register, position = read_uleb128(code, position)
        factored, position = read(code, position)
        machine.set_rule(register, how, factor_sign * factored * machine.cie.data_alignment)
        return position

    return handler


def _plain(how: How) -> Handler:
    def handler(machine: _Machine, code: bytes, position: int) -> int:
        register, position = read_uleb128(code, position)
        machine.set_rule(register, how)
        return position

    return handler


def _expression(how: How) -> Handler:
    def handler(machine: _Machine, code: bytes, position: int) -> int:
        register, position = read_uleb128(code, position)
        expression, position = _block(code, position)
        machine.set_rule(register, how, expression)
        return position

    return handler


def _block(code: bytes, position: int) -> tuple[bytes, int]:
    size_bytes, position = read_uleb128(code, position)
    if position + size_bytes > len(code):
        raise MalformedCfi(SkipReason.TRUNCATED)
    return code[position : position + size_bytes], position + size_bytes


def _in_register(machine: _Machine, code: bytes, position: int) -> int:
    register, position = read_uleb128(code, position)
    other, position = read_uleb128(code, position)
    machine.set_rule(register, How.REGISTER, other)
    return position


def _restore_extended(machine: _Machine, code: bytes, position: int) -> int:
    register, position = read_uleb128(code, position)
    machine.restore(register)
    return position


def _remember_state(machine: _Machine, code: bytes, position: int) -> int:
    if len(machine.remembered) >= REMEMBERED_STATES_MAX:
        raise MalformedCfi(SkipReason.LIMIT)
    machine.remembered.append(machine.state())
    return position


def _restore_state(machine: _Machine, code: bytes, position: int) -> int:
    if not machine.remembered:
        raise MalformedCfi(SkipReason.BAD_INSTRUCTION)
    machine.load(machine.remembered.pop())
    return position


def _def_cfa_offset(is_signed: bool) -> Handler:
    def handler(machine: _Machine, code: bytes, position: int) -> int:
        if is_signed:
            factored, position = read_sleb128(code, position)
            machine.cfa_offset = factored * machine.cie.data_alignment
        else:
            machine.cfa_offset, position = read_uleb128(code, position)
        return position

    return handler


def _def_cfa(is_signed: bool) -> Handler:
    def handler(machine: _Machine, code: bytes, position: int) -> int:
        return read_offset(machine, code, _def_cfa_register(machine, code, position))

    read_offset = _def_cfa_offset(is_signed)
    return handler


def _def_cfa_register(machine: _Machine, code: bytes, position: int) -> int:
    machine.cfa_register, position = read_uleb128(code, position)
    machine.cfa_expression = None
    return position


def _def_cfa_expression(machine: _Machine, code: bytes, position: int) -> int:
    machine.cfa_expression, position = _block(code, position)
    return position


def _args_size(_: _Machine, code: bytes, position: int) -> int:
    # The size of pushed arguments: it matters for landing pads in the function, not for a walk.
    return read_uleb128(code, position)[1]


# DW_CFA_set_loc (0x01) is missing on purpose: it names an absolute address, so that equal bytes would
# not mean equal rows, and no compiler emits it.
_HANDLERS: dict[int, Handler] = {
    0x02: _advance_by(struct.Struct("<B")),
    0x03: _advance_by(struct.Struct("<H")),
    0x04: _advance_by(struct.Struct("<I")),
    0x05: _saved(How.OFFSET, 1, is_signed=False),
    0x06: _restore_extended,
    0x07: _plain(How.UNDEFINED),
    0x08: _plain(How.SAME_VALUE),
    0x09: _in_register,
    0x0A: _remember_state,
    0x0B: _restore_state,
    0x0C: _def_cfa(is_signed=False),
    0x0D: _def_cfa_register,
    0x0E: _def_cfa_offset(is_signed=False),
    0x0F: _def_cfa_expression,
    0x10: _expression(How.EXPRESSION),
    0x11: _saved(How.OFFSET, 1, is_signed=True),
    0x12: _def_cfa(is_signed=True),
    0x13: _def_cfa_offset(is_signed=True),
    0x14: _saved(How.VAL_OFFSET, 1, is_signed=False),
    0x15: _saved(How.VAL_OFFSET, 1, is_signed=True),
    0x16: _expression(How.VAL_EXPRESSION),
    0x1D: _advance_by(struct.Struct("<Q")),
    0x2E: _args_size,
    0x2F: _saved(How.OFFSET, -1, is_signed=False),
}
