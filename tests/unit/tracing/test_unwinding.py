"""Which tables the walker has for which process, over a kernel that is made up and a builder that waits."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel.abi import UNWIND_SHARD_WORDS
from bpfleakd.kernel.unwind_tables.store import UnwindStore
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.tracing import unwinding
from bpfleakd.tracing.unwinding import Unwinding
from bpfleakd.unwind.build import table_of
from bpfleakd.unwind.rules import GAP, RESERVED_RULES, CfaKind, UnwindRule
from bpfleakd.unwind.table import UnwindTable
from bpfleakd.unwind.table_builder import BuiltTable, TableBuilder

from ..helping import helpers
from ..kernel.fake_kernel import FakeKernel, store_in
from ..waiting import ends
from .doubles import FakeRecord

PAGE = 0x1000
# The copy of a file that another user could change.
COPY = "memfd:mapped-file (deleted)"
TEXT = 0x4000


def table_with(rule: UnwindRule) -> UnwindTable:
    """A table of one page, all of it under one rule."""
    rows = np.array([len(RESERVED_RULES) << 12], np.uint32)
    return UnwindTable(None, TEXT, rows, np.array([0, 1], np.uint32), (*RESERVED_RULES, rule), 1)


class Builder:
    """Replaces the child that builds tables: answers for a file on the test's command, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, BuiltTable | Exception] = {}
        self._changed = threading.Condition()

    def table_of(self, descriptor: int, *, is_stable: bool) -> BuiltTable:
        del is_stable
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        name = Path(path).name
        with self._changed:
            self.asked.append(path)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: name in self._answers, 10)
            answer = self._answers.pop(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(
        self,
        name: str,
        rule: UnwindRule | None = None,
        *,
        table: UnwindTable | None = None,
        digest: str = "",
        failure: str = "",
    ) -> None:
        """Give the table of the file called `name`, such as one of a single rule; or the reason for none."""
        table = table_with(rule) if rule else table
        segments = ((PAGE, TEXT, PAGE),) if table else ()
        self._give(name, BuiltTable(digest or name, table, segments, failure))

    def fail(self, name: str) -> None:
        """The builder itself breaks when it comes to this file."""
        self._give(name, OSError(11, "no more processes"))

    def wait_until_asked(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, 10)

    def _give(self, name: str, answer: BuiltTable | Exception) -> None:
        with self._changed:
            self._answers[name] = answer
            self._changed.notify_all()


@pytest.fixture
def builder() -> Builder:
    return Builder()


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel(shards_max=2)


@pytest.fixture
def store(kernel: FakeKernel) -> Iterator[UnwindStore]:
    with store_in(kernel) as store:
        yield store


@pytest.fixture
def tables(store: UnwindStore, builder: Builder) -> Unwinding:
    return Unwinding(store, builder, FakeRecord())  # type: ignore[arg-type]


@pytest.fixture
def process() -> Iterator[Callable[[], int]]:
    """Start processes to trace; all that is needed of them is that they are there."""
    children: list[subprocess.Popen] = []

    def start() -> int:
        children.append(subprocess.Popen(["sleep", "60"]))
        return children[-1].pid

    yield start
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    """Make files, each larger than the last: small ones are built first."""
    made: list[str] = []

    def make(name: str) -> Path:
        made.append(name)
        path = tmp_path / name
        path.write_bytes(bytes(len(made)))
        return path

    return make


def code_of(path: Path, start: int = 0x7F00_0000_0000, *, offset: int = PAGE) -> Mapping:
    return Mapping(start, start + PAGE, offset, "fe:01", path.stat().st_ino, str(path), True, False, True)


def rule_at(kernel: FakeKernel, pid: int, mapping: Mapping) -> UnwindRule:
    (rule,) = kernel.rules_at(pid, [mapping.start + 0x123])
    return rule


def poll_until(tables: Unwinding, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        tables.poll()
        time.sleep(0.001)


ONE, OTHER, THIRD = (UnwindRule(CfaKind.RSP, 8 * n) for n in (1, 2, 3))


def test_an_attach_waits_for_its_tables(tables, builder, kernel, process, file) -> None:
    """Tables that are ready in time are there when `follow` returns."""
    pid, code = process(), code_of(file("shop"))
    builder.answer("shop", ONE)
    tables.follow(open_code(pid, [code]))
    assert rule_at(kernel, pid, code) == ONE
    assert tables.missing(pid) == []


def test_what_takes_longer_comes_later(tables, builder, kernel, process, file) -> None:
    """An attach does not wait forever; `poll` publishes tables that are ready later."""
    pid, shop, library = process(), code_of(file("shop"), 0x1000), code_of(file("library"), 0x9000)
    builder.answer("shop", ONE)
    tables.follow(open_code(pid, [shop, library]), wait_s=0.5)
    assert (rule_at(kernel, pid, shop), rule_at(kernel, pid, library)) == (ONE, GAP)
    assert tables.missing(pid) == [library.path]
    assert kernel.is_pending(pid)

    builder.answer("library", OTHER)
    poll_until(tables, lambda: not tables.missing(pid))
    assert not kernel.is_pending(pid)
    assert (rule_at(kernel, pid, shop), rule_at(kernel, pid, library)) == (ONE, OTHER)


def test_files_are_built_once(tables, builder, kernel, process, file) -> None:
    """Two processes with one file share its table, each at its own address, until both are gone."""
    path = file("shop")
    pids = [process(), process()]
    codes = [code_of(path, 0x10_000), code_of(path, 0x20_000)]
    builder.answer("shop", ONE)
    for pid, code in zip(pids, codes, strict=True):
        tables.follow(open_code(pid, [code]))
    assert [rule_at(kernel, pid, code) for pid, code in zip(pids, codes, strict=True)] == [ONE, ONE]
    assert len(builder.asked) == 1

    tables.release(pids[0])
    assert rule_at(kernel, pids[1], codes[1]) == ONE
    tables.release(pids[1])
    assert kernel.shards == set()


def test_equal_files_share_a_table(tables, store, builder, kernel, process, file) -> None:
    """A copy of a library has the same contents, and so the same table."""
    pid, codes = process(), [code_of(file("a"), 0x10_000), code_of(file("b"), 0x20_000)]
    builder.answer("a", ONE, digest="same")
    builder.answer("b", ONE, digest="same")
    tables.follow(open_code(pid, codes))
    assert [rule_at(kernel, pid, code) for code in codes] == [ONE, ONE]
    assert len(store.tables) == 1


def test_tables_of_two_processes_that_get_ready_at_once(tables, builder, kernel, process, file) -> None:
    """Publishing to one does not drop the other's tables."""
    pids, codes = [process(), process()], [code_of(file("a")), code_of(file("b"))]
    for pid, code in zip(pids, codes, strict=True):
        tables.follow(open_code(pid, [code]), wait_s=0)
    builder.answer("a", ONE)
    builder.answer("b", OTHER)
    builder.wait_until_asked(2)
    time.sleep(0.05)

    poll_until(tables, lambda: not any(map(tables.missing, pids)))
    assert [rule_at(kernel, pid, code) for pid, code in zip(pids, codes, strict=True)] == [ONE, OTHER]


def test_a_table_that_gets_ready_during_another_attach(tables, builder, kernel, process, file) -> None:
    """The process that waits for it longer gets it then."""
    early, late = process(), process()
    slow, quick = code_of(file("slow")), code_of(file("quick"))
    tables.follow(open_code(early, [slow]), wait_s=0)
    builder.answer("slow", ONE)
    builder.wait_until_asked(1)
    builder.answer("quick", OTHER)
    time.sleep(0.05)

    tables.follow(open_code(late, [quick]))
    assert (rule_at(kernel, early, slow), rule_at(kernel, late, quick)) == (ONE, OTHER)
    tables.poll()
    assert (rule_at(kernel, early, slow), rule_at(kernel, late, quick)) == (ONE, OTHER)


def test_libraries_come_and_go(tables, store, builder, kernel, process, file) -> None:
    """After dlopen the new table is there, after dlclose it is gone, and back with the library."""
    pid, shop, plugin = process(), code_of(file("shop"), 0x10_000), code_of(file("plugin"), 0x20_000)
    builder.answer("shop", ONE)
    tables.follow(open_code(pid, [shop]))
    for _time in range(2):
        builder.answer("plugin", OTHER)
        tables.follow(open_code(pid, [shop, plugin]))
        assert [rule_at(kernel, pid, code) for code in (shop, plugin)] == [ONE, OTHER]
        tables.follow(open_code(pid, [shop]))
        assert [rule_at(kernel, pid, code) for code in (shop, plugin)] == [ONE, GAP]
        assert len(store.tables) == 1


def as_large_as_two_shards() -> UnwindTable:
    rows = 2 * UNWIND_SHARD_WORDS - 4096
    pages = np.linspace(0, rows, 1025).astype(np.uint32)
    return UnwindTable(
        None, TEXT, np.full(rows, len(RESERVED_RULES) << 12, np.uint32), pages, (*RESERVED_RULES, ONE), 1
    )


def test_a_table_without_room_gets_it_when_another_goes(tables, builder, kernel, process, file) -> None:
    """A table for which all shards were full is retried when a process has released its tables, not before.
    """
    large = as_large_as_two_shards()
    first, second = process(), process()
    huge, shop = code_of(file("huge"), 0x10_000), code_of(file("shop"), 0x20_000)
    builder.answer("huge", table=large)
    tables.follow(open_code(first, [huge]))
    assert kernel.shards == {0, 1}

    builder.answer("shop", table=large, digest="another")
    tables.follow(open_code(second, [shop]))
    for _time in range(3):
        tables.poll()
    assert tables.missing(second) == [shop.path]
    assert [Path(path).name for path in builder.asked] == ["huge", "shop"]

    tables.release(first)
    builder.answer("shop", OTHER)
    poll_until(tables, lambda: not tables.missing(second))
    assert rule_at(kernel, second, shop) == OTHER


def test_a_table_without_room_that_nobody_wants_any_more(tables, builder, process, file) -> None:
    """Then nothing is built, and the next process with that file asks for it."""
    first, second = process(), process()
    huge, shop = code_of(file("huge"), 0x10_000), code_of(file("shop"), 0x20_000)
    builder.answer("huge", table=as_large_as_two_shards())
    tables.follow(open_code(first, [huge]))
    builder.answer("shop", table=as_large_as_two_shards(), digest="another")
    tables.follow(open_code(second, [shop]))
    tables.release(second)
    tables.release(first)
    tables.poll()
    assert len(builder.asked) == 2

    pid = process()
    builder.answer("shop", ONE)
    tables.follow(open_code(pid, [shop]))
    assert tables.missing(pid) == []


def test_files_without_a_table_are_remembered(tables, builder, kernel, process, file) -> None:
    """A file that has no call frame information is not looked at again, and the others are not held up."""
    pid, stripped, shop = process(), code_of(file("stripped"), 0x10_000), code_of(file("shop"), 0x20_000)
    builder.answer("stripped", failure="no .eh_frame")
    builder.answer("shop", ONE)
    for _time in range(2):
        tables.follow(open_code(pid, [stripped, shop]))
        assert [rule_at(kernel, pid, code) for code in (stripped, shop)] == [GAP, ONE]
    assert tables.missing(pid) == [stripped.path]
    assert [Path(path).name for path in builder.asked] == ["stripped", "shop"]


def test_a_process_that_ends_while_its_files_are_read(tables, builder, kernel, process, file) -> None:
    """They are open: another process that maps them gets their tables."""
    ended, lives = process(), process()
    code = code_of(file("libc.so.6"))
    tables.follow(open_code(ended, [code]), wait_s=0)
    builder.wait_until_asked(1)
    tables.follow(open_code(lives, [code]), wait_s=0)
    os.kill(ended, 9)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    tables.release(ended)

    builder.answer("libc.so.6", ONE)
    poll_until(tables, lambda: not tables.missing(lives))

    assert rule_at(kernel, lives, code) == ONE
    assert len(builder.asked) == 1


def test_a_file_that_anybody_can_write_is_built_for_each_process(
    tables, builder, kernel, process, file
) -> None:
    """Its table serves the process that maps it, and no other."""
    path = file("plugin.so")
    path.chmod(0o666)
    first, second, code = process(), process(), code_of(path)
    builder.answer(COPY, ONE)
    tables.follow(open_code(first, [code]))
    builder.answer(COPY, OTHER, digest="another")
    tables.follow(open_code(second, [code]))
    assert (rule_at(kernel, first, code), rule_at(kernel, second, code)) == (ONE, OTHER)


def test_a_builder_that_breaks(tables, builder, kernel, process, file) -> None:
    """No process waits for it forever, and its remaining files are requested again."""
    pid, first, second = process(), code_of(file("first"), 0x10_000), code_of(file("second"), 0x20_000)
    builder.answer("first", ONE)
    builder.fail("second")
    assert ends(lambda: tables.follow(open_code(pid, [first, second]), wait_s=600))
    assert [rule_at(kernel, pid, code) for code in (first, second)] == [ONE, GAP]

    builder.answer("second", OTHER)
    tables.follow(open_code(pid, [first, second]))
    assert [rule_at(kernel, pid, code) for code in (first, second)] == [ONE, OTHER]


def test_a_table_that_failed_is_built_again_later(
    tables, builder, kernel, process, file, monkeypatch
) -> None:
    """By itself, a few times: the machine may have been too busy for the builder."""
    monkeypatch.setattr(unwinding, "_AGAIN_AFTER_S", (0.01, 0.01))
    pid, code = process(), code_of(file("shop"))
    builder.fail("shop")
    tables.follow(open_code(pid, [code]))
    assert rule_at(kernel, pid, code) == GAP
    builder.answer("shop", ONE)
    poll_until(tables, lambda: rule_at(kernel, pid, code) == ONE)

    hopeless = code_of(file("hopeless"), 0x20_000)
    before = len(builder.asked)
    builder.fail("hopeless")
    tables.follow(open_code(pid, [code, hopeless]))
    for times in (2, 3):
        builder.fail("hopeless")
        poll_until(tables, lambda times=times: len(builder.asked) == before + times)
    poll_until(tables, lambda: not tables._building)
    for _time in range(30):
        time.sleep(0.001)
        tables.poll()
    assert len(builder.asked) == before + 3


def test_no_room_for_a_table(tables, builder, kernel, process, file) -> None:
    """A table that finds no room is missing, and does no harm to the others."""
    pid, shop, large = process(), code_of(file("shop"), 0x10_000), code_of(file("large"), 0x20_000)
    builder.answer("shop", ONE)
    tables.follow(open_code(pid, [shop]))
    pages = 2 * (1 << 18)
    index = np.arange(pages + 1, dtype=np.uint32)
    rows = np.full(pages, len(RESERVED_RULES) << 12, np.uint32)
    builder.answer("large", table=UnwindTable(None, TEXT, rows, index, (*RESERVED_RULES, OTHER), 1))
    tables.follow(open_code(pid, [shop, large]))
    assert [rule_at(kernel, pid, code) for code in (shop, large)] == [ONE, GAP]
    assert tables.missing(pid) == [large.path]


@pytest.mark.parametrize(
    ("offset", "rule"),
    [(PAGE, ONE), (0, GAP), (2 * PAGE, GAP), (9 * PAGE, GAP)],
    ids=["its code", "its header", "behind it", "elsewhere"],
)
def test_only_mapped_code_has_a_table(
    tables, builder, kernel, process, file, offset: int, rule: UnwindRule
) -> None:
    """A mapping of another part of the file is not searched by the addresses of its code."""
    pid, code = process(), code_of(file("shop"), offset=offset)
    builder.answer("shop", ONE)
    tables.follow(open_code(pid, [code]))
    assert rule_at(kernel, pid, code) == rule


def test_mappings_that_have_no_file(tables, builder, kernel, process, file) -> None:
    """Data, JIT code, and files that cannot be opened are ignored."""
    data = Mapping(0x1000, 0x2000, PAGE, "fe:01", 23, str(file("data")), True, True, False)
    jit = Mapping(0x3000, 0x4000, 0, "00:00", 0, "", True, True, True)
    gone = Mapping(0x5000, 0x6000, PAGE, "fe:01", 24, "/no/such/file", True, False, True)
    pid = process()
    tables.follow(open_code(pid, [data, jit, gone]))
    assert kernel.rules_at(pid, [0x1123, 0x3123, 0x5123]) == [GAP, GAP, GAP]
    assert builder.asked == []
    assert tables.missing(pid) == []


def test_release_without_follow(tables, kernel) -> None:
    """An attach that failed early releases tables that it never had."""
    tables.release(4_711)
    tables.poll()
    assert tables.missing(4_711) == []
    assert kernel.pids == set()


def test_this_process(store, kernel) -> None:
    """With the real builder and our own mappings, the walker finds libc's rules where libc is."""
    tables = Unwinding(store, TableBuilder(helpers()), FakeRecord())
    pid = os.getpid()
    mappings = read_mappings(pid)
    wanted = [m for m in mappings if m.executable and (m.path == "[vdso]" or "libc" in Path(m.path).name)]
    tables.follow(open_code(pid, wanted), wait_s=20)
    assert tables.missing(pid) == []
    (libc,) = (mapping for mapping in wanted if Path(mapping.path).name.startswith(("libc.so", "libc-2")))
    (vdso,) = (mapping for mapping in wanted if mapping.path == "[vdso]")
    with ElfImage.open(libc.path) as image:
        table = table_of(image)
        bias = libc.start - next(
            s.vaddr - s.file_offset + libc.offset for s in image.segments if s.executable
        )
    addresses = list(range(libc.start, libc.end, 3_001))
    assert kernel.rules_at(pid, addresses) == [table.lookup(address - bias) for address in addresses]
    assert set(kernel.rules_at(pid, list(range(vdso.start, vdso.end, 7)))) != {GAP}


def test_code_that_a_process_makes(tables, store, builder, kernel, process, file) -> None:
    """Its tables are replaced by the next ones, and nothing of them is kept."""
    pid, code = process(), code_of(file("shop"))
    made = Mapping(TEXT, TEXT + PAGE, 0, "00:00", 0, "", True, True, True)
    builder.answer("shop", ONE)
    tables.follow(open_code(pid, [code]))

    tables.use_tables(pid, [table_with(OTHER)])
    assert (rule_at(kernel, pid, code), rule_at(kernel, pid, made)) == (ONE, OTHER)
    tables.use_tables(pid, [table_with(THIRD)])
    assert (rule_at(kernel, pid, code), rule_at(kernel, pid, made)) == (ONE, THIRD)
    assert len(store.tables) == 2

    # and are still there when libraries have come
    tables.follow(open_code(pid, [code]))
    assert rule_at(kernel, pid, made) == THIRD
    tables.release(pid)
    assert store.tables == {}
