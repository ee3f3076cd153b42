"""The reference walker against gdb, on live programs: every frame, and the reason for the end."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from bpfleakd.model.code.stack import StackEnd
from bpfleakd.unwind.rules import STOP, CfaKind

from .compiling import Program, compiled
from .live import Snapshot, finder, gdb_stacks, gdb_steps, memory_of, sleeping
from .reference_walk import FindTable, walk

PYTHON_PROGRAM = """
import functools, re, time
def sleep(match): print("ready", flush=True); time.sleep(1000)
def compare(a, b): return re.sub("x", sleep, "axb")
def recurse(n): return recurse(n - 1) if n else sorted([2, 1], key=functools.cmp_to_key(compare))
recurse(11)
"""


def expect_gdb_stacks(*command: str | Path) -> list[Snapshot]:
    """Start a program, and fail unless all its stacks are those that gdb sees; return gdb's."""
    with sleeping(*command) as pid:
        truths = gdb_stacks(pid)
        find = finder(Path(f"/proc/{pid}/maps").read_text())
        with memory_of(pid) as read_u64:
            stacks = [walk(truth.registers, read_u64, find) for truth in truths]
    for stack, truth in zip(stacks, truths, strict=True):
        assert [hex(address) for address in stack.addresses] == [hex(pc) for pc in truth.program_counters]
        assert stack.end is StackEnd.BOTTOM
    return truths


@pytest.mark.parametrize(
    "options",
    [
        ("-O2",),
        ("-O0",),
        ("-O2", "-fomit-frame-pointer", "-mavx2"),
        ("-O2", "-fno-omit-frame-pointer"),
        ("-O2", "-static"),
        ("-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"),
    ],
    ids=" ".join,
)
def test_c(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Through a realigned stack, alloca, qsort, recursion, a signal handler on its own stack; two threads."""
    main_thread, other = expect_gdb_stacks(compiled(Program.FRAMES, tmp_path, *options))

    assert len(main_thread.program_counters) > 35
    assert len(other.program_counters) >= 3


@pytest.mark.parametrize("options", [("-O2",), ("-O0",)], ids=" ".join)
def test_cxx_while_an_exception_unwinds(tmp_path: Path, options: tuple[str, ...]) -> None:
    """In a destructor that the C++ runtime called out of the middle of throwing."""
    (stack,) = expect_gdb_stacks(compiled(Program.EXCEPTIONS, tmp_path, *options))

    assert len(stack.program_counters) > 10


def test_python() -> None:
    """A large program: the interpreter, in callbacks from sorting and from regular expressions."""
    (stack,) = expect_gdb_stacks(os.path.realpath("/usr/bin/python3"), "-c", PYTHON_PROGRAM)

    assert len(stack.program_counters) > 10


def test_every_instruction(tmp_path: Path) -> None:
    """Prologues, epilogues, the lazy PLT and the loader behind it: the state is right between any two.

    The walk ends early only where a rule cannot express the state, and says so: between the instructions
    that realign a stack, and in the lazy resolver of the loader, whose CFA is in rbx.
    """
    program = compiled(Program.FRAMES, tmp_path, "-O2", "-Wl,-z,lazy")
    snapshots, maps = gdb_steps(program, 4_000, skip_functions="_dl_lookup_symbol")
    find = finder(maps)
    ends: Counter[StackEnd] = Counter()

    for snapshot in snapshots:
        stack = walk(snapshot.registers, snapshot.read_u64, find)
        ends[stack.end] += 1
        if stack.end is StackEnd.NO_RULE:
            last = len(stack.addresses) - 1
            table, bias = find(stack.addresses[last])
            assert table.lookup(stack.addresses[last] - bias - (last > 0)) == STOP
            assert last == 0 or in_loader(stack.addresses[last], maps)
            assert stack.addresses == snapshot.program_counters[: last + 1]
        else:
            assert stack.addresses == snapshot.program_counters

    print(dict(ends))
    assert set(ends) == {StackEnd.BOTTOM, StackEnd.NO_RULE}
    assert ends[StackEnd.BOTTOM] > 2_000
    assert len(plt_addresses(snapshots, find)) >= 3


def in_loader(address: int, maps: str) -> bool:
    """Tell whether an address is in the dynamic loader."""
    ranges = (line.split()[0].split("-") for line in maps.splitlines() if "ld-linux" in line)
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def plt_addresses(snapshots: list[Snapshot], find: FindTable) -> set[int]:
    """Return the addresses in a lazy PLT that were stepped on."""
    found = set()
    for snapshot in snapshots:
        rip = snapshot.registers.rip
        table, bias = find(rip) or (None, 0)
        if table is not None and table.lookup(rip - bias).cfa is CfaKind.PLT:
            found.add(rip)
    return found
