"""The address map against the kernel: a program's calls are replayed, and compared with /proc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.process.mappings import read_mappings
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.regions import Special

_SOURCE = Path(__file__).with_name("programs") / "mappings.c"
_TID = 23
_CALLS = 4_000

Range = tuple[int, int]


@dataclass(frozen=True)
class Recording:
    """A program's address space before and after its calls, and the calls in order."""

    before: tuple[Mapping, ...]
    calls: list[tuple[str, list[int]]]
    after: tuple[Mapping, ...]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed: apt install gcc")
    path = tmp_path_factory.mktemp("mappings") / "mappings"
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, _SOURCE], check=True)
    return path


def _mappings(pid: int) -> list[Mapping]:
    """Without the stack, which the kernel extends when it is used."""
    return [mapping for mapping in read_mappings(pid) if mapping.path != "[stack]"]


def record(program: Path, seed: int) -> Recording:
    with subprocess.Popen(
        [program, str(seed), str(_CALLS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        lines = iter(process.stdout.readline, b"")
        assert next(lines).startswith(b"ready")
        before = _mappings(process.pid)
        process.stdin.write(b"\n")
        calls = []
        for line in lines:
            name, *numbers = line.decode().split()
            if name == "done":
                break
            calls.append((name, [int(number, 16) for number in numbers]))
        after = _mappings(process.pid)
        process.stdin.close()
    assert process.returncode == 0
    return Recording(before, calls, after)


def replay(space: AddressMap, calls: Iterable[tuple[str, list[int]]]) -> None:
    """As the monitor would: calls that failed change nothing, each call has one of seven stacks."""
    failed = (1 << 64) - 1
    for time_ns, (name, (result, *arguments)) in enumerate(calls):
        site = SiteKey(AllocationKind.MMAP, time_ns % 7)
        if name == "mremap":
            start, old_length, new_length, keep_old = arguments
            space.take(_TID, start, old_length)
            if result == failed:
                space.put_back(_TID)
            else:
                space.put(_TID, result, new_length, site, time_ns, keep_old=bool(keep_old))
        elif name == "brk":
            space.program_break(arguments[0], result, site, time_ns, _TID)
        elif result == failed:
            continue
        elif name == "mmap":
            length, access, from_file = arguments
            owner = SiteKey(AllocationKind.FILE, site.stack_id) if from_file else site
            space.mapped(result, length, owner if access else Special.RESERVED, time_ns, _TID)
        elif name == "munmap":
            space.unmapped(*arguments)
        elif name == "mprotect":
            start, length, access = arguments
            committer = SiteKey(AllocationKind.COMMIT, site.stack_id)
            space.protected(start, length, bool(access), committer, time_ns, _TID)
        elif name == "madvise":
            space.discarded(*arguments)


def joined(ranges: Iterable[Range]) -> list[Range]:
    result: list[Range] = []
    for start, end in ranges:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result


def expect_equal(space: AddressMap, truth: Iterable[Mapping]) -> None:
    """The same addresses are mapped, and the same of them without access."""
    mappings = [mapping for mapping in truth if mapping.path != "[vsyscall]"]
    assert joined((start, end) for start, end, _owner in space.ranges()) == joined(
        (mapping.start, mapping.end) for mapping in mappings
    )
    assert joined(
        (start, end) for start, end, owner in space.ranges() if owner is Special.RESERVED
    ) == joined((m.start, m.end) for m in mappings if not (m.readable or m.writable or m.executable))


@pytest.mark.parametrize("seed", [23, 101, 607])
def test_the_map_is_what_proc_says(program, seed):
    """After thousands of random calls, all of the address space, to the byte."""
    recording = record(program, seed)
    done = {name for name, (result, *_) in recording.calls if result != (1 << 64) - 1}
    assert done == {"mmap", "munmap", "mremap", "mprotect", "madvise", "brk"}
    space = AddressMap(recording.before)
    expect_equal(space, recording.before)
    replay(space, recording.calls)
    expect_equal(space, recording.after)
    assert space.resynchronise(recording.after) == 0


def test_what_was_lost_is_found_again(program):
    """With every tenth report missing the map is wrong, and right again after it was resynchronised."""
    recording = record(program, 1_009)
    space = AddressMap(recording.before)
    replay(space, (call for n, call in enumerate(recording.calls) if n % 10))
    assert space.resynchronise(recording.after) > 0
    expect_equal(space, recording.after)
    assert space.resynchronise(recording.after) == 0
    # Nothing is counted twice: every mapped page has exactly one owner.
    sites, rows = space.counters()
    special_bytes = sum(space.totals(special).live_bytes for special in Special)
    mapped_bytes = sum(m.end - m.start for m in recording.after if m.path != "[vsyscall]")
    assert int(rows[:, 0].sum()) + special_bytes == mapped_bytes
    assert len(sites) > 7
