"""The layouts and numbers of bpf/abi.h, as the C compiler sees them, against those that Python reads with."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from bpfleakd.analysis.sampling_rate import MAX_SHIFT
from bpfleakd.kernel import abi
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.address_space_events import read_space_events
from bpfleakd.kernel.compilation.source import bpf_directory, flattened
from bpfleakd.kernel.probes.operands import OperandKind
from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.model.code.stack import StackEnd
from bpfleakd.runtimes.cpython.layout import EntryKind, InstructionKind
from bpfleakd.table.estimates import BYTES_VARIANCE_UNIT, COUNT_VARIANCE_UNIT
from bpfleakd.unwind.rules import GAP_NUMBER, PACKED_RULE_BYTES, CfaKind, RbpKind, UnwindRule, pack
from bpfleakd.unwind.table import PAGE_BITS, ROW_ADDRESS_MASK

from ..elf.building import output_of

# thread.h begins with what the daemon reads of an entry in `threads`.
HEADERS = ("abi.h", "thread.h")
# Only the programs read these.
BPF_ONLY = {
    "python_walk",
    "managed_walk",
    "walk_state",
    "known_code",
    "walk_scratch",
    "thread",
    "unwind_shard",
}
# Mirrored by a separate class, and compared by a separate test.
MIRRORED_ELSEWHERE = {"unwind_rule"}

# Enum -> prefix of its names, and Python's names in their order.
ENUMS: dict[str, tuple[str, Sequence[str]]] = {
    "allocation_kind": ("KIND_", [kind.name for kind in abi.KINDS]),
    "function_role": ("ROLE_", [role.name for role in abi.FUNCTION_ROLES]),
    "argument_register": ("REGISTER_", [register.upper() for register in abi.ARGUMENT_REGISTERS]),
    "recording_state": ("STATE_", [state.name for state in RecordingState]),
    "loss": ("LOSS_", [*(reason.upper() for reason in abi.LOSS_REASONS), "KINDS"]),
    "stack_end": ("END_", [end.name for end in abi.STACK_ENDS]),
    "cfa_kind": ("CFA_", [kind.name for kind in CfaKind]),
    "python_instruction": ("INSTRUCTION_", [kind.name for kind in InstructionKind]),
    "python_entry": ("ENTRY_", [kind.name for kind in EntryKind]),
    "operand_kind": ("OPERAND_", [kind.name for kind in OperandKind]),
    "rbp_kind": ("RBP_", [kind.name for kind in RbpKind]),
}
BPF_ONLY_ENUMS = {"managed_word", "python_phase", "space_phase"}

SIGNED, UNSIGNED, COMPOUND = 1, 0, -1


@dataclass(frozen=True)
class Declarations:
    """The names that HEADERS declare, by their text."""

    structs: dict[str, list[str]]
    enums: dict[str, list[str]]
    defines: list[str]


@dataclass(frozen=True)
class Layout:
    """A struct as the compiler lays it out: field -> (offset, bytes, SIGNED, UNSIGNED or COMPOUND)."""

    size_bytes: int
    fields: dict[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Compiled:
    """The declarations as the compiler sees them."""

    structs: dict[str, Layout]
    numbers: dict[str, int]


@pytest.fixture(scope="module")
def declared() -> Declarations:
    text = "".join(flattened(bpf_directory(), name) for name in HEADERS)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    bodies = re.findall(r"^(struct|enum) (\w+) \{(.*?)^\};", text, re.MULTILINE | re.DOTALL)
    return Declarations(
        {name: re.findall(r"(\w+)(?:\[[^]]+\])?;", body) for kind, name, body in bodies if kind == "struct"},
        {name: re.findall(r"^\s*(\w+)", body, re.MULTILINE) for kind, name, body in bodies if kind == "enum"},
        re.findall(r"^#define (\w+)[ \t]+\S", text, re.MULTILINE),
    )


@pytest.fixture(scope="module")
def compiled(declared: Declarations, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The declarations in a program that prints their values as JSON."""
    directory = tmp_path_factory.mktemp("abi")
    prints = [
        f'print("{name}", sizeof(struct {name}));\n'
        + "".join(
            f"field({name}, {field}, _Generic(((struct {name} *)0)->{field}, __s64: {SIGNED}, "
            f"__s32: {SIGNED}, __s8: {SIGNED}, __u64: {UNSIGNED}, __u32: {UNSIGNED}, "
            f"__u16: {UNSIGNED}, __u8: {UNSIGNED}, "
            f"default: {COMPOUND}));\n"
            for field in fields
        )
        for name, fields in declared.structs.items()
    ]
    numbers = [name for names in declared.enums.values() for name in names] + declared.defines
    prints += [f'print("{name}", (long)({name}));\n' for name in numbers]
    (directory / "abi.c").write_text(
        "#include <linux/types.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        + "".join(f"#include <{name}>\n" for name in HEADERS)
        + '#define print(name, number) printf("\\"%s\\": %ld,\\n", name, (long)(number))\n'
        "#define field(type, name, sign) "
        'printf("\\"%s.%s\\": [%zu, %zu, %d],\\n", #type, #name, offsetof(struct type, name), '
        "sizeof(((struct type *)0)->name), sign)\n"
        'int main(void)\n{\nputs("{");\n' + "".join(prints) + 'puts("\\"\\": 0}");\n}\n'
    )
    output_of("gcc", "-Wall", "-Werror", "-I", bpf_directory(), "-o", directory / "abi", directory / "abi.c")
    program = subprocess.run([directory / "abi"], check=True, capture_output=True, text=True)
    printed = json.loads(program.stdout)
    structs = {
        name: Layout(printed[name], {field: tuple(printed[f"{name}.{field}"]) for field in fields})
        for name, fields in declared.structs.items()
    }
    return Compiled(structs, {name: printed[name] for name in numbers})


def layout_of(dtype: np.dtype) -> Layout:
    assert dtype.fields is not None
    signs = {"i": SIGNED, "u": UNSIGNED, "V": COMPOUND}
    fields = {
        name: (offset, field.itemsize, signs[field.kind])
        for name, (field, offset, *_title) in dtype.fields.items()
    }
    return Layout(dtype.itemsize, fields)


def test_the_header_was_understood(declared: Declarations) -> None:
    """The struct, enums and numbers of this file are among those parsed from the text."""
    assert {"process", "site_key", "live_block", "unwind_rule"} <= declared.structs.keys()
    assert ENUMS.keys() <= declared.enums.keys()
    assert {"MAX_FRAMES", "UNWIND_SHARD_WORDS"} <= set(declared.defines)
    assert declared.structs["process"][:4] == ["tgid", "state", "sample_shift", "sampling"]


def test_every_struct_has_the_layout_that_python_reads(declared: Declarations, compiled: Compiled) -> None:
    """Each struct of the header has a dtype (its name in capitals) with the compiler's sizes and offsets."""
    for name in declared.structs.keys() - BPF_ONLY - MIRRORED_ELSEWHERE:
        assert layout_of(getattr(abi, name.upper())) == compiled.structs[name], name


def test_every_dtype_is_of_a_struct(declared: Declarations) -> None:
    """Python declares no struct that the header lacks."""
    dtypes = {name for name in dir(abi) if isinstance(getattr(abi, name), np.dtype)}
    assert dtypes == {name.upper() for name in declared.structs.keys() - BPF_ONLY - MIRRORED_ELSEWHERE}


@pytest.mark.parametrize(
    "field",
    ["cfa_kind", "rbp_kind", "cfa_offset", "cfa_addend", "rbp_offset", "position_slot", "caller_slot"],
)
def test_packed_rules_are_read_by_the_struct(compiled: Compiled, field: str) -> None:
    """A packed rule has the layout of struct unwind_rule."""
    layout = compiled.structs["unwind_rule"]
    rule = UnwindRule(CfaKind.DEREF_RBP, -0x1234567, 0x2345678, RbpKind.AT_RSP, -0x3456789, -8, -1)
    values = {
        "cfa_kind": rule.cfa,
        "rbp_kind": rule.rbp,
        "cfa_offset": rule.cfa_offset,
        "cfa_addend": rule.cfa_addend,
        "rbp_offset": rule.rbp_offset,
        "position_slot": rule.position_slot,
        "caller_slot": rule.caller_slot,
    }

    packed = pack([rule])

    offset, size_bytes, sign = layout.fields[field]
    assert layout.size_bytes == PACKED_RULE_BYTES == len(packed)
    number = int.from_bytes(packed[offset : offset + size_bytes], "little", signed=sign == SIGNED)
    assert number == values[field]


def test_a_mapping_list_holds_mappings(compiled: Compiled) -> None:
    """The array in struct unwind_mappings has elements of struct unwind_mapping, all of them."""
    _offset, size_bytes, _sign = compiled.structs["unwind_mappings"].fields["sorted"]
    assert size_bytes == abi.MAX_UNWIND_MAPPINGS * compiled.structs["unwind_mapping"].size_bytes
    assert abi.UNWIND_MAPPINGS["sorted"].base == abi.UNWIND_MAPPING


def test_every_enum_is_mirrored(declared: Declarations) -> None:
    """An enum that is new in the header needs a mirror, or a word here that it needs none."""
    assert declared.enums.keys() == ENUMS.keys() | BPF_ONLY_ENUMS


@pytest.mark.parametrize("enum", ENUMS)
def test_names_of_an_enum_are_pythons_in_the_same_order(
    declared: Declarations, compiled: Compiled, enum: str
) -> None:
    """The names agree one by one, none is missing on either side, and they are numbered from 0."""
    prefix, names = ENUMS[enum]
    assert declared.enums[enum] == [prefix + name for name in names]
    assert [compiled.numbers[name] for name in declared.enums[enum]] == list(range(len(names)))


@pytest.mark.parametrize("enum", [RecordingState, OperandKind, CfaKind, RbpKind])
def test_numbers_of_python_enums_are_those_of_c(compiled: Compiled, enum: type) -> None:
    """Python's own numbers equal the compiler's."""
    prefix = {RecordingState: "STATE_", OperandKind: "OPERAND_", CfaKind: "CFA_", RbpKind: "RBP_"}[enum]
    assert {prefix + member.name: int(member) for member in enum}.items() <= compiled.numbers.items()


def test_every_noun_of_the_model_has_a_number() -> None:
    """No role or end of the model is unknown to the programs; two ends are the daemon's own."""
    assert set(abi.FUNCTION_ROLES) == set(FunctionRole)
    assert set(abi.STACK_ENDS) == set(StackEnd) - {StackEnd.LOST, StackEnd.GO_STACK}


def test_constants_are_the_headers(compiled: Compiled) -> None:
    """Numbers that stand in both languages are the same."""
    numbers = compiled.numbers
    assert numbers["MAX_FRAMES"] == abi.MAX_FRAMES
    assert numbers["COOKIE_ROLE_BITS"] == abi.COOKIE_ROLE_BITS
    assert numbers["COOKIE_CALL_BITS"] == abi.COOKIE_CALL_BITS
    assert numbers["COOKIE_REGISTER_BITS"] == abi.COOKIE_REGISTER_BITS
    assert numbers["COOKIE_OPERANDS_MASK"] == abi.COOKIE_OPERANDS_MASK
    assert numbers["PROBE_ARGUMENTS"] == abi.PROBE_ARGUMENTS
    assert numbers["NO_REGISTER"] == abi.NO_REGISTER
    assert numbers["COOKIE_CALLS_RELEASE"] == abi.COOKIE_CALLS_RELEASE
    assert numbers["COOKIE_CALLS_ALLOCATOR"] == abi.COOKIE_CALLS_ALLOCATOR
    assert numbers["COOKIE_SLOT_SHIFT"] == abi.COOKIE_SLOT_SHIFT
    assert numbers["COOKIE_SLOT_SHARED"] == abi.COOKIE_SLOT_SHARED == (1 << 64 - abi.COOKIE_SLOT_SHIFT) - 1
    assert numbers["SAMPLING_EVER"] == abi.SAMPLING_EVER
    assert numbers["SAMPLING_NOW"] == abi.SAMPLING_NOW
    assert numbers["MAX_SAMPLE_SHIFT"] == abi.MAX_SAMPLE_SHIFT == MAX_SHIFT
    assert numbers["CURVE_STEPS"] == abi.CURVE_STEPS
    assert numbers["COUNT_UNIT"] == abi.COUNT_UNIT == 1 / COUNT_VARIANCE_UNIT
    assert numbers["BYTES_VARIANCE_UNIT"] == BYTES_VARIANCE_UNIT
    assert numbers["CALL_COUNTERS"] == abi.CALL_COUNTERS
    assert numbers["COMMIT_CALLS"] == abi.COMMIT_CALLS
    assert numbers["BREAK_CALLERS"] == abi.BREAK_CALLERS
    assert numbers["UNWIND_SHARD_WORDS"] == abi.UNWIND_SHARD_WORDS
    assert compiled.structs["unwind_shard"].size_bytes == 4 * abi.UNWIND_SHARD_WORDS
    assert numbers["MAX_UNWIND_MAPPINGS"] == abi.MAX_UNWIND_MAPPINGS
    assert numbers["KNOWN_RULES_BITS"] == abi.KNOWN_RULES_BITS
    assert numbers["ONE_RULE"] == abi.ONE_RULE
    assert numbers["MANAGED_OBJECT"] % (1 << 64) == abi.MANAGED_OBJECT
    assert numbers["MANAGED_POSITION"] % (1 << 64) == abi.MANAGED_POSITION
    assert numbers["MANAGED_ADDRESS_BITS"] == abi.MANAGED_ADDRESS_BITS
    assert numbers["MANAGED_CHECK_BITS"] == abi.MANAGED_CHECK_BITS
    assert numbers["UNWIND_PAGE_BITS"] == PAGE_BITS
    assert numbers["UNWIND_PAGE_MASK"] == ROW_ADDRESS_MASK
    assert numbers["RULE_GAP"] == GAP_NUMBER


@pytest.mark.parametrize(
    "name",
    [
        "MAX_FRAMES",
        "UNWIND_SHARD_WORDS",
        "MAX_UNWIND_MAPPINGS",
        "STACK_COPY_WORDS",
        "LAST_ALLOCATIONS",
        "CURVE_STEPS",
        "CALL_COUNTERS",
    ],
)
def test_masked_sizes_are_powers_of_two(compiled: Compiled, name: str) -> None:
    """The programs bound an index by `& (size - 1)`, which is right for powers of 2 alone."""
    assert compiled.numbers[name].bit_count() == 1


def test_going_on_is_no_end(compiled: Compiled) -> None:
    """The number that stands in place of an end is not one."""
    assert compiled.numbers["WALK_GOES_ON"] >= len(abi.STACK_ENDS)


def test_searches_have_rounds_enough(compiled: Compiled) -> None:
    """The constant bounds of loops suffice for the longest list and the fullest page."""
    walk = (bpf_directory() / "walk.h").read_text()
    rounds = {name: int(number) for name, number in re.findall(r"#define (\w+_ROUNDS) (\d+)", walk)}
    low, high, mapping_rounds = 0, compiled.numbers["MAX_UNWIND_MAPPINGS"], 0
    while low < high:
        high, mapping_rounds = (low + high) // 2, mapping_rounds + 1
    low, high, row_rounds = 0, ROW_ADDRESS_MASK + 1, 0
    while high - low > 1:
        low, row_rounds = (low + high) // 2, row_rounds + 1
    assert rounds["MAPPING_SEARCH_ROUNDS"] >= mapping_rounds
    assert rounds["ROW_SEARCH_ROUNDS"] >= row_rounds


def test_events_are_unpacked_as_they_are_laid_out(compiled: Compiled) -> None:
    """A struct space_event with a different value in every field arrives as the same event."""
    record = np.zeros(1, abi.SPACE_EVENT)
    for number, field in enumerate(abi.SPACE_EVENT.names or (), start=1):
        record[field] = number if field != "arguments" else np.arange(11, 17)
    record["phase"] = compiled.numbers["SPACE_ENTRY"]

    class Ring:
        def records(self) -> list[tuple[int, bytes]]:
            return [(23, record.tobytes())]

    (event,) = read_space_events(Ring())  # type: ignore[arg-type]

    assert event.position == 23
    assert event.at_entry
    assert event.inside_allocator
    assert event.arguments == (11, 12, 13, 14, 15, 16)
    for field, name in {"tgid": "pid", "tid": "tid"}.items():
        assert getattr(event, name) == record[field][0]
    for field in ("time_ns", "stack_id", "result", "syscall"):
        assert getattr(event, field) == record[field][0]


def test_other_phases_are_no_entries(compiled: Compiled) -> None:
    """Only one number means that the call has not been made yet."""
    assert compiled.numbers["SPACE_ENTRY"] == 0 != compiled.numbers["SPACE_EXIT"]
