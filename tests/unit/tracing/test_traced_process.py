"""One traced process: names that are kept, the census, and the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from bpfleakd.kernel.abi import RecordingState
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import FunctionRole, ProbedFunction
from bpfleakd.model.code.stack import FrameKind, RawStack, StackEnd
from bpfleakd.model.process import ProcessState
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.process.files.mapped_files import FileKey
from bpfleakd.tracing import traced_process as module
from bpfleakd.tracing.attaching.attachment import LinkedFile
from bpfleakd.tracing.traced_process import TracedProcess

from .doubles import NS_PER_S, Clock, FakeMaps, FakeProcess, FakeSymbolizer, a_traced
from .programs import running, without_main_thread

PID = 4_711


def heap(stack_id: int) -> SiteKey:
    return SiteKey(AllocationKind.HEAP, stack_id)


@pytest.fixture
def maps() -> FakeMaps:
    """A kernel that has a stack of one frame, address n, for each stack id n."""
    maps = FakeMaps()
    process = maps.processes[PID] = FakeProcess()
    process.stacks = {n: RawStack((n,), StackEnd.BOTTOM) for n in range(1, 200)}
    return maps


def functions(traced: TracedProcess, maps: FakeMaps, *stack_ids: int, now_ns: int = 0) -> list[str | None]:
    named = traced.named_stacks(maps, [heap(n) for n in stack_ids], now_ns)
    return [named[heap(n)].stack.frames[0].function for n in stack_ids]


def symbolizer_of(traced: TracedProcess) -> FakeSymbolizer:
    assert isinstance(traced.symbolizer, FakeSymbolizer)
    return traced.symbolizer


class TestNames:
    """Stacks are named once."""

    def test_each_once(self, maps: FakeMaps) -> None:
        """A stack that has its names is not looked up again."""
        traced = a_traced()
        assert functions(traced, maps, 1, 2) == ["function_1", "function_2"]
        assert functions(traced, maps, 2, 1, 3) == ["function_2", "function_1", "function_3"]
        assert symbolizer_of(traced).symbolized == 3

    def test_names_that_come_late(self, maps: FakeMaps) -> None:
        """JIT code gets its name when the JIT has written it; until then the name is requested again."""
        traced = a_traced()
        symbolizer_of(traced).unnamed = {1}
        assert functions(traced, maps, 1) == [None]
        symbolizer_of(traced).unnamed = set()
        assert functions(traced, maps, 1) == ["function_1"]
        assert functions(traced, maps, 1) == ["function_1"]
        assert symbolizer_of(traced).symbolized == 2

    def test_files_without_symbols_are_final(self, maps: FakeMaps) -> None:
        """A stripped file stays stripped."""
        traced = a_traced()
        named = traced.named_stacks(maps, [heap(1)], 0)[heap(1)]
        assert named.final
        assert named.stack.frames[0].kind is FrameKind.NATIVE

    def test_addresses_in_no_mapping_are_not_final(self, maps: FakeMaps) -> None:
        """Even where the frames that are left have names: the mapping may be new."""
        traced = a_traced()
        symbolizer_of(traced).covered = False
        traced.counters = replace(traced.counters, state=RecordingState.STOPPED)
        assert not traced.named_stacks(maps, [heap(1)], 0)[heap(1)].final

    def test_a_lost_stack_is_final(self, maps: FakeMaps) -> None:
        """A stack for which there was no room does not come back."""
        traced = a_traced()
        for _time in range(2):
            named = traced.named_stacks(maps, [heap(0)], 0)[heap(0)]
            assert (named.stack.frames, named.stack.truncated, named.final) == ((), StackEnd.LOST, True)
        assert symbolizer_of(traced).symbolized == 1

    def test_kinds_have_fingerprints_of_their_own(self, maps: FakeMaps) -> None:
        """One stack under two kinds is two sites."""
        keys = [heap(1), SiteKey(AllocationKind.MMAP, 1)]
        named = a_traced().named_stacks(maps, keys, 0)
        assert len({stack.fingerprint for stack in named.values()}) == 2

    def test_no_more_than_there_is_room_for(self, maps: FakeMaps, monkeypatch: pytest.MonkeyPatch) -> None:
        """Names are kept of the stacks that were shown last, and of all that are shown at once."""
        monkeypatch.setattr(module, "_NAMED_STACKS_MAX", 10)
        traced = a_traced()
        functions(traced, maps, *range(1, 31))
        assert symbolizer_of(traced).symbolized == 30
        functions(traced, maps, 31)
        functions(traced, maps, *range(22, 32))
        assert symbolizer_of(traced).symbolized == 31
        functions(traced, maps, 21)
        assert symbolizer_of(traced).symbolized == 32

    def test_an_old_stack_shown_beside_a_new_one(
        self, maps: FakeMaps, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Although it was shown least recently, it is needed: another one makes room."""
        monkeypatch.setattr(module, "_NAMED_STACKS_MAX", 10)
        traced = a_traced()
        for stack_id in range(1, 11):
            functions(traced, maps, stack_id)
        assert functions(traced, maps, 1, 11) == ["function_1", "function_11"]
        assert functions(traced, maps, 1) == ["function_1"]
        assert symbolizer_of(traced).symbolized == 11


class TestIsInAllocator:
    """Whether a stack goes through a probed function, by addresses alone."""

    def test_a_return_address_belongs_to_the_call_before_it(self) -> None:
        """Behind the end of a function begins another."""
        traced = a_traced()
        library = Mapping(0x7000, 0x9000, 0x1000, "fe:01", 23, "/lib/own.so", True, False, True)
        data = replace(library, start=0x9000, end=0xA000, executable=False)
        probe = ProbedFunction("other", "malloc", FunctionRole.SIZE_FIRST, "/lib/own.so", 0x1234, True)
        files = (LinkedFile(FileKey(0, 0, 0, 0, 0, ""), 0, (probe,), ((0x1230, 0x1250),)),)
        traced.attachment = replace(traced.attachment, files=files, mappings=(library, data))

        def is_inside(*addresses: int) -> bool:
            return traced.is_in_allocator(RawStack(addresses, StackEnd.BOTTOM))

        assert is_inside(0x5000, 0x7234)
        assert is_inside(0x5000, 0x7250)
        assert not is_inside(0x5000, 0x7230)
        assert is_inside(0x7230)
        assert not is_inside(0x7250)
        assert not is_inside(0x9234, 0x5000)

    def test_a_call_from_the_allocators_own_file_is_always_an_allocators(self) -> None:
        """From another file, it is one only below an allocator's function."""
        traced = a_traced()
        library = Mapping(0x7000, 0x9000, 0x1000, "fe:01", 23, "/lib/own.so", True, False, True)
        other = replace(library, start=0x9000, end=0xA000, inode=24, path="/lib/other.so")
        probe = ProbedFunction("other", "malloc", FunctionRole.SIZE_FIRST, "/lib/own.so", 0x1234, True)
        files = (LinkedFile(FileKey(0, 0, 0, 0, 0, ""), 0, (probe,), ((0x1230, 0x1250),)),)
        traced.attachment = replace(traced.attachment, files=files, mappings=(library, other))

        def is_allocators(*addresses: int) -> bool:
            return traced.is_call_of_allocator(RawStack(addresses, StackEnd.BOTTOM))

        assert is_allocators(0x8000, 0x8100, 0x7234)
        assert is_allocators(0x8000, 0x7234)
        assert not is_allocators(0x8000, 0x9100, 0x7234)
        assert not is_allocators(0x8000, 0x8100, 0x9234)
        assert not is_allocators(0x7230, 0x8100)

    def test_only_a_c_librarys_own_call_of_sbrk_is_always_an_allocators(self) -> None:
        """Other files may call it for themselves; so may the program that malloc is part of."""
        traced = a_traced()
        library = Mapping(0x7000, 0x9000, 0x1000, "fe:01", 23, "/lib/own.so", True, False, True)
        program = replace(library, start=0x9000, end=0xA000, inode=24, path="/usr/bin/program")
        probe = ProbedFunction("other", "malloc", FunctionRole.SIZE_FIRST, "/lib/own.so", 0x1234, True)

        def caller(*addresses: int, exe: str = "/usr/bin/program") -> int | None:
            files = (LinkedFile(FileKey(0, 0, 0, 0, 0, ""), 0, (probe,), ((0x1230, 0x1250),)),)
            traced.attachment = replace(
                traced.attachment,
                process=replace(traced.attachment.process, exe=exe),
                files=files,
                mappings=(library, program),
            )
            return traced.allocators_caller_of_sbrk(RawStack(addresses, StackEnd.BOTTOM))

        assert caller(0x8000, 0x8100, 0x8200, 0x7234, 0x9100) == 0x8200
        assert caller(0x8000, 0x8100, 0x9100, 0x7234) is None
        assert caller(0x8000, 0x8100, 0x8200, 0x9100) is None
        assert caller(0x8000, 0x7234) is None
        assert caller(0x8000, 0x8100, 0x8200, 0x7234, exe="/lib/own.so") is None


class TestThreads:
    """Names of threads, which identify blocks even after the thread has ended."""

    def test_ended_threads_keep_their_names(self) -> None:
        """A later thread with the same number has its own name."""
        traced = a_traced()
        traced.note_threads({1: "main", 2: "worker"})
        traced.note_threads({1: "main", 3: "other"})
        assert traced.thread_names == {1: "main", 2: "worker", 3: "other"}
        traced.note_threads({2: "again"})
        assert traced.thread_names[2] == "again"

    def test_no_more_than_there_is_room_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process starts a thread a second for a year: those seen last are kept, and all that exist."""
        monkeypatch.setattr(module, "_THREAD_NAMES_MAX", 10)
        traced = a_traced()
        for tid in range(2, 102):
            traced.note_threads({1: "main", tid: "worker"})
        assert set(traced.thread_names) == {1, *range(93, 102)}
        traced.note_threads(dict.fromkeys(range(200, 223), "many"))
        assert set(traced.thread_names) == set(range(200, 223))


class TestLosses:
    """All losses, wherever they occurred."""

    def test_all_of_them(self) -> None:
        """By the programs, in the address map and with the names; zeroes included."""
        traced = a_traced()
        traced.counters.losses["live_full"] = 3
        traced.unrecorded_regions = 5
        symbolizer_of(traced).unreadable_files = 7
        losses = traced.losses
        assert {reason: count for reason, count in losses.items() if count} == {
            "live_full": 3,
            "region_full": 5,
            "unreadable_files": 7,
        }
        assert {"event_full", "unknown_addresses", "perf_map_refused"} <= losses.keys()


class TestMappings:
    """The maps of the process are read again for addresses that nothing covers."""

    @pytest.fixture
    def traced(self) -> TracedProcess:
        """This very process, so that there is memory to read; its symbolizer knows nothing of it."""
        traced = a_traced()
        symbolizer_of(traced).covered = False
        return traced

    @pytest.fixture(autouse=True)
    def _this_process(self, maps: FakeMaps, monkeypatch: pytest.MonkeyPatch) -> None:
        maps.processes[os.getpid()] = maps.processes[PID]
        monkeypatch.setattr(TracedProcess, "pid", property(lambda _self: os.getpid()))

    def test_not_too_often(self, traced: TracedProcess, maps: FakeMaps) -> None:
        """At most once a second, however many addresses nothing covers."""
        for stack_id, now_ns in ((1, 0), (2, 1), (3, NS_PER_S - 1)):
            functions(traced, maps, stack_id, now_ns=now_ns)
        assert symbolizer_of(traced).updates == 1
        functions(traced, maps, 4, now_ns=NS_PER_S)
        assert symbolizer_of(traced).updates == 2

    def test_not_if_all_is_covered(self, traced: TracedProcess, maps: FakeMaps) -> None:
        """Most of the time nothing is new."""
        symbolizer_of(traced).covered = True
        functions(traced, maps, 1)
        assert symbolizer_of(traced).updates == 0

    @pytest.mark.parametrize("state", [RecordingState.EXECED, RecordingState.STOPPED])
    def test_not_of_another_program(
        self, traced: TracedProcess, maps: FakeMaps, state: RecordingState
    ) -> None:
        """After exec, or after the end, the pid's mappings are not those that the addresses were in."""
        maps.processes[os.getpid()].state = state
        traced.counters = maps.process(os.getpid())
        assert functions(traced, maps, 1) == ["function_1"]
        assert symbolizer_of(traced).updates == 0


class TestCensus:
    """Blocks are counted one by one, which takes its time."""

    def take(self, traced: TracedProcess, maps: FakeMaps, clock: Clock) -> set[SiteKey]:
        traced.take_census(maps, None, clock)
        assert traced.census is not None
        return set(traced.census)

    def test_sites_by_kind_and_stack(self, maps: FakeMaps) -> None:
        """The blocks of a process are summed by site and thread."""
        traced, clock = a_traced(), Clock()
        maps.processes[PID].blocks = [(23, 5, 1, 7, 0), (101, 3, 1, 9, 0), (1, 9, 2, 7, 0)]
        assert self.take(traced, maps, clock) == {heap(1), heap(2)}
        assert traced.census is not None
        assert traced.census[heap(1)].oldest_born_ns == 3
        assert traced.census[heap(1)].live_bytes_by_tid == {7: 23, 9: 101}

    def test_a_recent_one_is_used_again(self, maps: FakeMaps) -> None:
        """Within half a second nothing is counted again; after it, everything."""
        traced, clock = a_traced(), Clock()
        maps.processes[PID].blocks = [(23, 5, 1, 7, 0)]
        self.take(traced, maps, clock)
        maps.processes[PID].blocks = []
        clock.go_on(0.49)
        assert self.take(traced, maps, clock) == {heap(1)}
        clock.go_on(0.02)
        assert self.take(traced, maps, clock) == set()

    def test_a_slow_one_is_rare(self, maps: FakeMaps) -> None:
        """A census that takes a second is taken every ten seconds."""
        clock = Clock()

        def slow() -> int:
            clock.go_on(1.0)
            return clock.now_ns

        traced = a_traced()
        traced.take_census(maps, None, slow)
        maps.processes[PID].blocks = [(23, 5, 1, 7, 0)]
        clock.go_on(8.5)
        assert self.take(traced, maps, clock) == set()
        clock.go_on(1.0)
        assert self.take(traced, maps, clock) == {heap(1)}

    def test_the_last_one_is_taken_anew(self, maps: FakeMaps) -> None:
        """The report that is kept of an ended process shows its end."""
        traced, clock = a_traced(), Clock()
        self.take(traced, maps, clock)
        maps.processes[PID].blocks = [(23, 5, 1, 7, 0)]
        traced.state = ProcessState.EXITED
        assert self.take(traced, maps, clock) == {heap(1)}


class TestEnd:
    """When a process is gone."""

    def ended(self, pidfd: int) -> bool:
        traced = a_traced()
        traced.attachment = replace(traced.attachment, pidfd=pidfd)
        return traced.has_ended()

    def test_killed(self) -> None:
        """A process that runs has not ended; a zombie has."""
        with running() as pid:
            pidfd = os.pidfd_open(pid)
            assert not self.ended(pidfd)
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert self.ended(pidfd)
            os.close(pidfd)

    def test_a_process_without_its_main_thread(self, tmp_path: Path) -> None:
        """A process lives as long as its last thread, though /proc shows a zombie."""
        with running(without_main_thread(tmp_path)) as pid:
            assert "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
            pidfd = os.pidfd_open(pid)
            assert not self.ended(pidfd)
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert self.ended(pidfd)
            os.close(pidfd)


def test_leaks_are_logged_together_and_seldom() -> None:
    """Leaks found within ten minutes of the last lines wait for the next ones."""
    traced, pause_ns = a_traced(), 600
    assert traced.leaks_to_announce([3], 1_000, pause_ns) == [3]
    assert traced.leaks_to_announce([5, 7], 1_100, pause_ns) == []
    assert traced.leaks_to_announce([], 1_599, pause_ns) == []
    assert traced.leaks_to_announce([9], 1_600, pause_ns) == [5, 7, 9]
    assert traced.leaks_to_announce([], 9_999, pause_ns) == []
