"""No program of ours runs on a stack per CPU, which the kernel gives to programs like them."""

from __future__ import annotations

import os
import platform
import re

import pytest

from bpfleakd.errors import KernelUnsupported
from bpfleakd.kernel import bpf
from bpfleakd.kernel.bpf import AttachType, ProgramType
from bpfleakd.kernel.compilation.machine_code import check_stack, has_private_stack
from bpfleakd.kernel.compilation.options import Capacities, LoadOptions
from bpfleakd.kernel.loader import load
from bpfleakd.kernel.pins import PinnedSet
from bpfleakd.kernel.programs import AttachMethod, WalkerKind, lasting_programs

from .daemons import BPFFS_ROOT
from .machine import cannot_run

PROG_ARRAY = 3
# A word far down the stack, and back.
DEEP = bytes.fromhex("7a0a00ff00000000 b700000000000000 9500000000000000")
KERNEL = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def tail_call_of(array_fd: int) -> bytes:
    """r2 = the array, r3 = 0, and the call."""
    call = bytes.fromhex("b703000000000000 850000000c000000")
    return bytes.fromhex("18120000") + bpf.u32(array_fd) + bytes(8) + call


@pytest.fixture
def array():
    fd = bpf.map_create(PROG_ARRAY, 4, 4, 1, 0, "t")
    yield fd
    os.close(fd)


@pytest.mark.parametrize("kind", [ProgramType.KPROBE, ProgramType.TRACEPOINT, ProgramType.RAW_TRACEPOINT])
def test_a_tail_call_keeps_the_stack_the_tasks(kind: ProgramType, array: int) -> None:
    """Since Linux 6.13 the same program has a private stack without it, and is refused."""
    plain = bpf.program_load(kind, DEEP, AttachType.NONE, "plain")
    calling = bpf.program_load(kind, tail_call_of(array) + DEEP, AttachType.NONE, "calling")
    try:
        assert bpf.program_machine_code(plain)
        assert has_private_stack(bpf.program_machine_code(plain)) == (KERNEL >= (6, 13))
        assert not has_private_stack(bpf.program_machine_code(calling))
        check_stack(calling, tail_call_of(array), "calling")
        if KERNEL >= (6, 13):
            with pytest.raises(OSError, match="the kernel runs plain on a stack per CPU"):
                check_stack(plain, tail_call_of(array), "plain")
        with pytest.raises(OSError, match="plain has lost the tail call"):
            check_stack(plain, DEEP, "plain")
    finally:
        os.close(plain)
        os.close(calling)


@pytest.mark.parametrize("walker", WalkerKind)
@pytest.mark.parametrize("method", AttachMethod)
def test_no_program_has_a_private_stack(method: AttachMethod, walker: WalkerKind) -> None:
    """Whatever its kind, and however it is attached."""
    pins = PinnedSet.of(BPFFS_ROOT / f"bpfleakd-test-{os.getpid()}", "stacks")
    pins.directory.parent.mkdir()
    try:
        loaded = load(pins, LoadOptions(Capacities(8, 64, 64, 64), method, walker))
        for program in lasting_programs(method, walker, loaded.syscalls):
            fd = bpf.object_get(pins.directory / program.function)
            code = bpf.program_machine_code(fd)
            os.close(fd)
            assert code, program
            assert not has_private_stack(code), program
    except KernelUnsupported as failure:
        cannot_run(f"this kernel has no {method} with {walker}: {failure}")
    finally:
        pins.remove()
        pins.directory.parent.rmdir()
