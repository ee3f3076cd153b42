"""Programs: each distinct sequence of call frame instructions, executed once for all FDEs with it.

Most functions are set up like others: libLLVM's 95,000 FDEs have 34,000 different sequences. An FDE is then a
start, a size and the number of a program; the rows of all programs lie in two flat arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.unwind.cfi import Cie, Fde
from bpfleakd.unwind.frame_state import FrameState
from bpfleakd.unwind.instructions import OFFSET_LIMIT, CfiProgram, initial_state, run
from bpfleakd.unwind.malformed import MalformedCfi, SkipReason
from bpfleakd.unwind.rules import RESERVED_RULES, STOP_NUMBER, UnwindRule
from bpfleakd.unwind.x86_64 import rule_of

# Every tested file had fewer than 1,500 rules. The limit keeps an unusual one from filling the set that all
# files share; further rules become STOP.
RULES_PER_FILE_MAX = 8_192


class _Executed(Struct):
    """One parsed CIE. `initial` is None if its instructions are invalid."""

    cie: Cie
    initial: FrameState | None
    program_numbers: dict[bytes, int] = msgspec.field(default_factory=dict)
    rule_numbers: dict[FrameState, int] = msgspec.field(default_factory=dict)


class ProgramSet:
    """The programs of one file and the rules they use.

    `max_rows` bounds the rows of all programs together, `max_instruction_bytes` the work.
    """

    def __init__(self, max_rows: int, max_instruction_bytes: int) -> None:
        self._max_rows = max_rows
        self._budget_bytes = max_instruction_bytes
        self._executed: dict[Cie, _Executed] = {}
        # By identity as well: hashing a CIE for every FDE would take longer than everything else here.
        self._executed_by_id: dict[int, _Executed] = {}
        self._rule_numbers: dict[UnwindRule, int] = {
            rule: number for number, rule in enumerate(RESERVED_RULES)
        }
        self._first_rows = array("I", [0])
        self._offsets = array("I")
        self._numbers = array("I")
        self._faults: dict[int, SkipReason] = {}

    @property
    def rules(self) -> tuple[UnwindRule, ...]:
        return tuple(self._rule_numbers)

    def number_of(self, fde: Fde) -> int:
        """Return the number of the FDE's program. Raises `MalformedCfi` where it cannot have one.

        The FDE's CIE must be the same object for all FDEs that share it.
        """
        executed = self._executed_by_id.get(id(fde.cie)) or self._executed_of(fde.cie)
        number = executed.program_numbers.get(fde.instructions)
        return self._add(executed, fde.instructions) if number is None else number

    def fault_of(self, number: int) -> SkipReason | None:
        """Why a program ends early, in a STOP row; None for a complete one."""
        return self._faults.get(number)

    def first_rows(self) -> np.ndarray:
        """Return the index of each program's first row, and behind them the number of rows."""
        return np.frombuffer(self._first_rows, np.uint32)

    def row_offsets(self) -> np.ndarray:
        """Return each row's offset from the start of the function, ascending in a program from 0."""
        return np.frombuffer(self._offsets, np.uint32)

    def row_rules(self) -> np.ndarray:
        """Return each row's rule, as an index of `rules`."""
        return np.frombuffer(self._numbers, np.uint32)

    def _executed_of(self, cie: Cie) -> _Executed:
        shared = replace(cie, offset=0)
        executed = self._executed.get(shared)
        if executed is None:
            self._spend(len(cie.instructions))
            try:
                initial = initial_state(cie)
            except MalformedCfi:
                initial = None
            executed = self._executed[shared] = _Executed(cie, initial)
        self._executed_by_id[id(cie)] = executed
        return executed

    def _add(self, executed: _Executed, instructions: bytes) -> int:
        if executed.initial is None:
            raise MalformedCfi(SkipReason.BAD_CIE)
        self._spend(len(instructions))
        program = run(instructions, executed.cie, executed.initial)
        number = len(self._first_rows) - 1
        if program.fault is not None:
            self._faults[number] = program.fault
        previous = None
        for offset, rule_number in self._numbered_rows(program, executed):
            if rule_number != previous:
                self._offsets.append(offset)
                self._numbers.append(rule_number)
                previous = rule_number
        self._first_rows.append(len(self._offsets))
        executed.program_numbers[instructions] = number
        return number

    def _numbered_rows(self, program: CfiProgram, executed: _Executed) -> Iterator[tuple[int, int]]:
        numbers = executed.rule_numbers
        for offset, state in program.rows:
            number = numbers.get(state)
            if number is None:
                rule = rule_of(state, executed.cie.is_signal_frame)
                number = numbers[state] = self._number_of_rule(rule)
            yield offset, number
        if program.fault is not None and program.fault_offset < OFFSET_LIMIT:
            yield program.fault_offset, STOP_NUMBER

    def _number_of_rule(self, rule: UnwindRule) -> int:
        if rule not in self._rule_numbers and len(self._rule_numbers) >= RULES_PER_FILE_MAX:
            return STOP_NUMBER
        return self._rule_numbers.setdefault(rule, len(self._rule_numbers))

    def _spend(self, instruction_bytes: int) -> None:
        self._budget_bytes -= instruction_bytes
        if self._budget_bytes < 0 or len(self._offsets) >= self._max_rows:
            raise MalformedCfi(SkipReason.LIMIT)
