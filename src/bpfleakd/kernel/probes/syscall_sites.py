"""The instructions of a file that enter the kernel to change the address space, as glibc writes them.

    mov eax, NUMBER
    syscall             (probed before: the arguments are in their registers)
    cmp rax, -4096
    ja ...              (probed behind: so is the result, and nothing has changed what is needed of the call)

A breakpoint in the middle of an instruction ends the process that reaches it. So a site is accepted only if
decoding the instructions of its function reaches it. What is behind must be an instruction that the kernel
can probe, and no jump may lead there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import TypeAlias

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel.address_space_events import Syscall
from bpfleakd.kernel.probes.prologue import written_registers

AT_ENTRY = frozenset({Syscall.MUNMAP, Syscall.MREMAP})
"""Calls that are seen before they are made as well (bpf/space.h)."""

_NUMBERS = b"".join(re.escape(bytes([call])) for call in Syscall)
_SITE = re.compile(rb"\xb8([" + _NUMBERS + rb"])\x00\x00\x00\x0f\x05", re.DOTALL)
_MOVE_BYTES, _SITE_BYTES = 5, 7
_SITES_MAX = 256
# glibc's code has 1.5 MiB. That of large programs is not read for this.
_CODE_BYTES_MAX = 8 << 20
_FUNCTION_BYTES_MAX = 16 << 10
# Instructions behind a call that are looked at. glibc's brk stores the result before it looks at it.
_BEHIND_MAX = 4
# Up to the conditional jump, which the kernel emulates.
_PASSED = frozenset({"cmp", "test", "mov"})
_EMULATED = frozenset({"nop", "push", "ret"})
# What a compiler puts there; the kernel refuses few others.
_PROBED = _EMULATED | _PASSED | {"movsxd", "lea", "neg", "add", "sub", "and", "or", "xor", "pop"}
# What the daemon needs of a call: the result, the arguments, and where the caller's frame is.
_CALLER = frozenset({"rax", "rsp", "rbp"})
_NEEDED = {Syscall.BRK: _CALLER}
_NEEDED_OF_OTHERS = _CALLER | {"rdi", "rsi", "rdx", "r10", "r8", "r9"}

Disassemble: TypeAlias = Callable[[bytes, int], Iterable[tuple[int, str]]]
"""From machine code and its address to the address and mnemonic of each instruction."""
JumpTargets: TypeAlias = Callable[[bytes], set[int]]
"""From machine code to the distances that its jumps lead to."""


class SyscallSite(Struct, frozen=True):
    """A call at `vaddr`, or a place `distance` bytes behind where it returns to.

    `emulated`: the kernel emulates the instruction there. Otherwise it executes it by itself, with a second
    trap, which costs ten times as much in a virtual machine. `refusal`: why it cannot be probed; the call is
    then not seen.
    """

    call: Syscall
    at_return: bool
    vaddr: int
    distance: int = 0
    emulated: bool = False
    refusal: str = ""


def syscall_sites(
    image: ElfImage, starts: Sequence[int], disassemble: Disassemble, jump_targets: JumpTargets
) -> Iterator[SyscallSite]:
    """The sites of a file whose functions begin at `starts` (vaddr, sorted). Raises `BadElf`."""
    found = 0
    for segment in image.segments:
        if not segment.executable or segment.file_size_bytes > _CODE_BYTES_MAX:
            continue
        code = image.read(segment.vaddr, segment.file_size_bytes)
        for match in islice(_SITE.finditer(code), _SITES_MAX - found):
            found += 1
            call, vaddr = Syscall(match[1][0]), segment.vaddr + match.start()
            needed = _NEEDED.get(call, _NEEDED_OF_OTHERS)
            behind = _behind(image, starts, vaddr, needed, disassemble, jump_targets)
            if behind is None:
                yield SyscallSite(call, True, vaddr, refusal=f"{vaddr:#x} cannot be probed")
                continue
            if call in AT_ENTRY:
                yield SyscallSite(call, False, vaddr)
            place, emulated = behind
            yield SyscallSite(call, True, place, place - vaddr - _SITE_BYTES, emulated)


def _behind(
    image: ElfImage,
    starts: Sequence[int],
    vaddr: int,
    needed: Set[str],
    disassemble: Disassemble,
    jump_targets: JumpTargets,
) -> tuple[int, bool] | None:
    """The address to probe behind a site, and whether the kernel emulates that; None: there is none.

    The registers `needed` have the same contents there as behind the call.
    """
    index = bisect_right(starts, vaddr) - 1
    if index < 0 or vaddr - starts[index] > _FUNCTION_BYTES_MAX:
        return None
    start = starts[index]
    end = starts[index + 1] if index + 1 < len(starts) else vaddr + _FUNCTION_BYTES_MAX
    code = image.read(start, min(end - start, _FUNCTION_BYTES_MAX))
    decoded = dict(disassemble(code, start))
    if decoded.get(vaddr) != "mov" or decoded.get(vaddr + _MOVE_BYTES) != "syscall":
        return None
    # Whoever jumps there has made no call, and may have anything in the registers.
    jumped_to = {start + distance for distance in jump_targets(code)}
    behind = [place for place in sorted(decoded) if place > vaddr + _MOVE_BYTES][:_BEHIND_MAX]
    if behind[:1] != [vaddr + _SITE_BYTES] or jumped_to & {vaddr + _MOVE_BYTES, behind[0]}:
        return None
    for place in behind:
        if place in jumped_to:
            break
        if decoded[place].startswith("j") and decoded[place] != "jmp":
            return place, True
        if decoded[place] not in _PASSED or written_registers(code[place - start :]) & needed:
            break
    first = decoded[behind[0]]
    return (behind[0], first in _EMULATED) if first in _PROBED else None
