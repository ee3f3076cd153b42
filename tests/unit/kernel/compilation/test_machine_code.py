"""What machine code and instructions reveal about the stack of a program."""

from __future__ import annotations

import re

from bpfleakd.kernel.compilation.machine_code import has_private_stack, has_tail_call
from bpfleakd.kernel.compilation.source import bpf_directory

# The beginning of a program as Linux 6.18 makes it: with a private stack of 280 bytes, and without.
PRIVATE = bytes.fromhex(
    "0f1f440000 0f1f00 55 4889e5 f30f1efa 49b9281108c0107e0000 654c030c2530000000 53 4155 4156 4157"
)
OWN = bytes.fromhex("0f1f440000 4831c0 55 4889e5 4881ec18010000 4883f821 7706 50 4889e0 eb01 50 50 53")
MOVE, TAIL_CALL, EXIT = "b700000000000000", "850000000c000000", "9500000000000000"


def test_a_private_stack_shows_in_the_machine_code():
    """By the offset of the CPU, added to r9: at an absolute address, or near the code."""
    assert has_private_stack(PRIVATE)
    assert has_private_stack(PRIVATE.replace(bytes.fromhex("654c030c25"), bytes.fromhex("654c030d")))
    assert not has_private_stack(OWN)
    # A map or helper per CPU: uses another register.
    assert not has_private_stack(bytes.fromhex("6548030c2530000000"))
    assert not has_private_stack(b"")


def test_a_tail_call_is_a_whole_instruction():
    """Not bytes that look like one across two others."""
    assert has_tail_call(bytes.fromhex(MOVE + TAIL_CALL + EXIT))
    assert not has_tail_call(bytes.fromhex(MOVE + EXIT))
    assert not has_tail_call(bytes.fromhex("b7000000" + TAIL_CALL + "00000000"))


def test_every_program_asks_first_whether_it_may_run():
    """The first statement of each is the check, which has the tail call."""
    source = (bpf_directory() / "bpfleakd.bpf.c").read_text()
    programs = re.findall(r"^int (\w+)\(.*\)\n\{\n\t(.*)", source, re.MULTILINE)
    assert len(programs) > 10
    for name, statement in programs:
        assert re.match(r"(if \(|return )!?\w+_may_run\(ctx\)", statement), name
