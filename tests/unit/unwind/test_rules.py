"""Rules: numbering, and the layout that the BPF side reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bpfleakd.unwind import rules
from bpfleakd.unwind.rules import (
    END,
    GAP,
    PACKED_RULE_BYTES,
    STOP,
    CfaKind,
    RbpKind,
    RuleSet,
    UnwindRule,
    pack,
    unpack,
)

from .readelf import need_tool

RULE = UnwindRule(CfaKind.DEREF_RBP, -16, 8, RbpKind.AT_CFA, -1_000_000)


def test_reserved_numbers_are_the_same_everywhere() -> None:
    """GAP, STOP and END are 0, 1 and 2, as numbers and as kinds."""
    rule_set = RuleSet()

    assert [rule_set.number_of(rule) for rule in (GAP, STOP, END)] == [0, 1, 2]
    assert [rule.cfa for rule in (GAP, STOP, END)] == [0, 1, 2]


def test_equal_rules_have_one_number() -> None:
    """A rule set numbers by value, in the order of arrival."""
    rule_set = RuleSet()

    numbers = [
        rule_set.number_of(rule) for rule in (RULE, UnwindRule(CfaKind.RSP, 8), UnwindRule(*_fields(RULE)))
    ]

    assert numbers == [3, 4, 3]
    assert list(rule_set)[3] == RULE


def _fields(rule: UnwindRule) -> tuple:
    return rule.cfa, rule.cfa_offset, rule.cfa_addend, rule.rbp, rule.rbp_offset


def test_a_full_set_refuses_and_counts() -> None:
    """A rule that has no room ends the walk; those that were there keep their numbers."""
    rule_set = RuleSet(limit=4)

    numbers = [rule_set.number_of(rule) for rule in (RULE, UnwindRule(CfaKind.RSP, 8), RULE)]

    assert numbers == [3, 1, 3]
    assert rule_set.refused_count == 1


def test_a_limit_that_no_row_can_hold_is_refused() -> None:
    """Rows have 20 bits for the number."""
    with pytest.raises(ValueError, match="rule set"):
        RuleSet(limit=1 << 21)


def test_packing_keeps_the_value() -> None:
    """Every kind survives, and the packed size is the one that C has."""
    every = [UnwindRule(cfa, -8, 24, rbp, 16) for cfa in CfaKind for rbp in RbpKind]

    packed = pack(every)

    assert len(packed) == len(every) * PACKED_RULE_BYTES
    assert unpack(packed) == tuple(every)


@pytest.mark.parametrize("packed", [b"\x63" + bytes(15), b"\3\x63" + bytes(14), bytes(17)])
def test_unpacking_refuses_what_is_no_rule(packed: bytes) -> None:
    """Unknown kinds and odd sizes are errors and not rules."""
    with pytest.raises(ValueError, match=r"\w"):
        unpack(packed)


def test_only_new_rules_are_packed() -> None:
    """A publisher that has the first n rules requests the others."""
    rule_set = RuleSet()
    known = len(rule_set)
    rule_set.number_of(RULE)

    assert unpack(rule_set.packed(known)) == (RULE,)
    assert len(rule_set.packed()) == PACKED_RULE_BYTES * 4


def test_the_documented_struct_has_the_packed_layout(tmp_path: Path) -> None:
    """The C declaration in the module's docstring, compiled, reads what `pack` writes."""
    declaration = rules.__doc__[rules.__doc__.index("struct unwind_rule") :]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <linux/types.h>\n#include <stdio.h>\n"
        + declaration
        + """
        int main(void)
        {
            struct unwind_rule r;
            while (fread(&r, sizeof(r), 1, stdin))
                printf("%d %d %d %d %d\\n", r.cfa_kind, r.cfa_offset, r.cfa_addend, r.rbp_kind, r.rbp_offset);
        }
        """
    )
    subprocess.run([need_tool("gcc"), "-o", tmp_path / "layout", source], check=True)

    read = subprocess.run([tmp_path / "layout"], input=pack([RULE]), capture_output=True, check=True)

    assert [int(number) for number in read.stdout.split()] == list(_fields(RULE))
