"""A debug file that an unprivileged user forged: it decides nothing for anybody else, and little for him."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import capstone
import pytest

from bpfleakd.elf.image import ElfImage

from ..kernel.daemons import ControlFailed
from ..kernel.machine import need_tool
from ..kernel.truth import expect_ledger
from ..kernel.workloads import SOURCES, Workload
from .bystander import text_differences
from .floods import at_length
from .users import in_own_namespace, need_user_namespaces

ALLOCATOR = (b"malloc", b"calloc", b"realloc", b"free", b"posix_memalign", b"aligned_alloc", b"memalign")
_SYMBOL = struct.Struct("<IBBHQQ")


@pytest.fixture
def stripped(public_directory: Path) -> Path:
    """A static program of root without symbols, and its debug file in a place that is not searched."""
    program, debug = public_directory / "victim", public_directory / "victim.symbols"
    need_tool("gcc")
    options = ("-O1", "-g", "-static", "-pthread", f"-I{SOURCES}", "-Wl,--build-id")
    subprocess.run(["gcc", *options, "-o", program, SOURCES / "many_sites.c"], check=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    subprocess.run(["strip", program], check=True)
    link = public_directory / "victim.debug"
    link.symlink_to(debug)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={link}", program], check=True)
    link.unlink()
    return program


@pytest.fixture
def forged(stripped: Path) -> Path:
    """The debug file, with the allocator's functions moved into the middle of an instruction."""
    file = stripped.with_name("victim.forged")
    content = bytearray(stripped.with_name("victim.symbols").read_bytes())
    with ElfImage.open(stripped) as program, ElfImage.from_bytes(bytes(content), "debug") as image:
        table = image.section(".symtab")
        assert table is not None
        strings = image.sections[table.header.link]
        for place in range(table.file_offset, table.file_offset + table.size_bytes, _SYMBOL.size):
            name, info, other, section, value, size = _SYMBOL.unpack_from(content, place)
            text = image.string_at(strings.file_offset + name, strings.file_offset + strings.size_bytes)
            if text in ALLOCATOR:
                middle = value + inside_of_an_instruction(program.read(value, 64))
                _SYMBOL.pack_into(content, place, name, info, other, section, middle, size)
    file.write_bytes(content)
    return file


def inside_of_an_instruction(code: bytes) -> int:
    """How far behind the beginning the first byte is that begins no instruction."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    return next(address + 1 for address, size, *_ in disassembler.disasm_lite(code, 0) if size > 1)


@pytest.fixture
def attacker(stripped: Path, forged: Path) -> Iterator[Workload]:
    """The same program, run by a user whose /usr/lib/debug has the forged file under its build-id."""
    need_user_namespaces()
    with ElfImage.open(stripped) as image:
        build_id = image.build_id
    assert build_id
    place = f"/usr/lib/debug/.build-id/{build_id[:2]}"
    script = [
        "mount -t tmpfs tmpfs /usr/lib/debug",
        f"mkdir -p {place}",
        f"cp {forged} {place}/{build_id[2:]}.debug",
    ]
    Path("/usr/lib/debug").mkdir(exist_ok=True)
    program = Workload(in_own_namespace(script, stripped, 1, 23, 101))
    yield program
    program.kill()


def boundaries(program: Path) -> set[int]:
    """Where instructions of a program begin, according to objdump."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", program], capture_output=True, text=True, check=True
    ).stdout
    addresses = (line.partition(":")[0].strip() for line in listing.splitlines() if ":\t" in line)
    return {int(address, 16) for address in addresses}


def attach(tracer, pid: int) -> str:
    """Attach; return why it was refused, or nothing."""
    try:
        tracer.attach(pid)
    except ControlFailed as refused:
        return refused.stderr
    return ""


def test_a_forged_debug_file_puts_no_breakpoint_anywhere(bystander, attacker, stripped) -> None:
    """Neither in the attacker's process, which is refused with a reason, nor in root's, attached later."""
    tracer = bystander.tracer
    victim = Workload([stripped, 1, 23, 101])
    try:
        with bystander.during_attack():
            reason = attach(tracer, attacker.pid)
            assert set(text_differences(attacker.pid)) <= boundaries(stripped)
            assert attach(tracer, victim.pid)
        assert text_differences(victim.pid) == []
        assert victim.step(1_009)["live_count"] == 1_009
        assert "does not begin" in reason
    finally:
        victim.kill()


@at_length
def test_the_debug_file_of_the_host_is_believed_whoever_came_first(
    bystander, attacker, stripped, public_directory
) -> None:
    """Root's own debug file gives root's process its exact counts, after the attacker was looked at."""
    attach(bystander.tracer, attacker.pid)
    (public_directory / "victim.symbols").rename(public_directory / "victim.debug")
    victim = Workload([stripped, 1, 23, 101])
    try:
        bystander.tracer.attach(victim.pid)
        ledger = victim.step(1_009)
        assert set(text_differences(victim.pid)) <= boundaries(stripped)
        expect_ledger(bystander.tracer.top_after_tick(victim.pid), ledger)
        bystander.tracer.detach(victim.pid)
    finally:
        victim.kill()
