"""The bill of a container: it adds up, has growth, and says in a sentence what grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.analysis.container_bill import container_bill
from bpfleakd.model.container import ContainerBill, ContainerKind, GroupMemory

MIB = 1 << 20
NAMED = [kind for kind in ContainerKind if kind is not ContainerKind.OTHER]
ANON, FILE, SLAB, OTHER = ContainerKind.ANON, ContainerKind.FILE, ContainerKind.SLAB, ContainerKind.OTHER


def a_group(used: int, parts: dict[ContainerKind, int], cgroup: str = "/shop") -> GroupMemory:
    return GroupMemory(cgroup, 2, 256 * MIB, used, parts)


def by_kind(bill: ContainerBill) -> dict[ContainerKind, int]:
    return {line.kind: line.bytes for line in bill.lines}


def test_the_lines_add_up():
    """Memory that the kernel does not name is a separate line; the largest comes first."""
    bill = container_bill(a_group(64 * MIB, {ANON: 20 * MIB, FILE: 40 * MIB}), {ANON: 15 * MIB})
    assert by_kind(bill) == {FILE: 40 * MIB, ANON: 20 * MIB, OTHER: 4 * MIB}
    assert [line.process_bytes for line in bill.lines] == [None, 15 * MIB, None]
    assert {line.growth_bytes_per_s for line in bill.lines} == {None}
    assert bill.growth_summary is None


@given(st.dictionaries(st.sampled_from(NAMED), st.integers(1, MIB)), st.integers(0, MIB))
def test_they_add_up_whatever_they_are(parts, rest):
    """With any rest."""
    used = sum(parts.values()) + rest
    assert sum(by_kind(container_bill(a_group(used, parts), {})).values()) == used


def test_a_process_has_no_more_than_there_is():
    """It may map files that another group is charged for."""
    bill = container_bill(a_group(2 * MIB, {FILE: 2 * MIB}), {FILE: 3 * MIB})
    assert bill.lines[0].process_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("parts", "own", "words"),
    [
        ({ANON: 11 * MIB, FILE: 40 * MIB}, MIB, "97% of it is page cache, which the kernel reclaims"),
        (
            {ANON: 40 * MIB, FILE: 10 * MIB},
            25 * MIB,
            "is anonymous memory of its processes (80% of that",
        ),
        ({ANON: 10 * MIB, FILE: 10 * MIB, SLAB: 9 * MIB}, MIB, "100% of it is slab: kernel objects"),
    ],
)
def test_a_sentence_says_what_grows(parts, own, words):
    """By rate, and how much of it this process is to blame for."""
    first = container_bill(a_group(20 * MIB, {ANON: 10 * MIB, FILE: 10 * MIB}), {ANON: MIB})
    bill = container_bill(a_group(sum(parts.values()), parts), {ANON: own}, first, 10.0)
    assert bill.growth_summary is not None
    assert bill.growth_summary.startswith("the container grows +")
    assert words in bill.growth_summary


def test_what_has_gone_is_a_line_that_shrank():
    """So the growth of all lines adds up to the container's."""
    first = container_bill(a_group(30 * MIB, {ANON: 10 * MIB, FILE: 20 * MIB}), {})
    bill = container_bill(a_group(10 * MIB, {ANON: 10 * MIB}), {}, first, 10.0)
    assert {line.kind: line.growth_bytes_per_s for line in bill.lines} == {ANON: 0.0, FILE: -2 * MIB}
    assert bill.growth_summary is None


def test_another_group_has_no_growth():
    """The process was moved, or another limit is nearer now."""
    first = container_bill(a_group(30 * MIB, {ANON: 30 * MIB}, "/other"), {})
    bill = container_bill(a_group(60 * MIB, {ANON: 60 * MIB}), {}, first, 10.0)
    assert bill.lines[0].growth_bytes_per_s is None
    assert bill.growth_summary is None
