"""Cookies, decoded as the programs do it."""

from __future__ import annotations

import pytest

from bpfleakd.kernel import abi
from bpfleakd.kernel.abi import cookie_of, role_arguments
from bpfleakd.model.code.probe import FunctionRole


def taken_apart(cookie: int) -> tuple[FunctionRole, list[str]]:
    """As bpf/bpfleakd.bpf.c does: the role, and a register for each of three arguments."""
    registers = [
        abi.ARGUMENT_REGISTERS[cookie >> (abi.COOKIE_ROLE_BITS + index * abi.COOKIE_REGISTER_BITS) & 0xF]
        for index in range(3)
    ]
    return abi.FUNCTION_ROLES[cookie & 0xFF], registers


@pytest.mark.parametrize("role", FunctionRole)
@pytest.mark.parametrize("leading", [0, 1])
def test_a_cookie_says_role_and_registers(role: FunctionRole, leading: int) -> None:
    """Whatever the function is, and wherever its arguments are."""
    for registers in (role_arguments(role, leading), ("r11", "rax", "r10")[: len(role_arguments(role))]):
        found, named = taken_apart(cookie_of(role, registers))
        assert (found, named[: len(registers)]) == (role, list(registers))


def test_a_release_that_calls_another_says_so() -> None:
    """Above everything else."""
    with_it = cookie_of(FunctionRole.RELEASE, ("rcx",), calls_release=True)
    assert with_it ^ cookie_of(FunctionRole.RELEASE, ("rcx",)) == abi.COOKIE_CALLS_RELEASE
    assert taken_apart(with_it)[0] is FunctionRole.RELEASE


@pytest.mark.parametrize("slot", [0, 1, 511, 65_535])
def test_the_slot_and_what_an_allocator_calls_are_apart_from_the_rest(slot: int) -> None:
    """The slot is in the highest bits, and changes nothing below."""
    plain = cookie_of(FunctionRole.CALLOC, ("r11", "rax"))
    cookie = cookie_of(FunctionRole.CALLOC, ("r11", "rax"), slot=slot, calls_allocator=True)
    assert cookie >> abi.COOKIE_SLOT_SHIFT == slot
    assert cookie & ((1 << abi.COOKIE_SLOT_SHIFT) - 1) == plain | abi.COOKIE_CALLS_ALLOCATOR
    assert cookie < 1 << 64


@pytest.mark.parametrize(
    ("role", "registers"),
    [
        (FunctionRole.SIZE_FIRST, ("rdi",)),
        (FunctionRole.SIZE_SECOND, ("rsi",)),
        (FunctionRole.CALLOC, ("rdi", "rsi")),
        (FunctionRole.REALLOC_ARRAY, ("rdi", "rsi", "rdx")),
        (FunctionRole.POSIX_MEMALIGN, ("rdi", "rdx")),
        (FunctionRole.LIBRARIES_CHANGED, ()),
    ],
)
def test_arguments_are_where_the_abi_has_them(role: FunctionRole, registers: tuple[str, ...]) -> None:
    """rdi, rsi, rdx, rcx, in this order."""
    assert role_arguments(role) == registers


def test_arguments_before_them_move_them_on() -> None:
    """mi_heap_reallocn(heap, old, count, size)."""
    assert role_arguments(FunctionRole.REALLOC_ARRAY, leading=1) == ("rsi", "rdx", "rcx")
