"""From sampled buckets to call sites, and the allocating functions of a Go program."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.method import Method
from bpfleakd.model.code.stack import Frame, FrameKind, Stack, StackEnd
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.runtimes.go.heap_profile import SampledBuckets
from bpfleakd.runtimes.go.pacer import Pacing
from bpfleakd.table.estimates import bytes_stderr, count_stderr
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.go.profile import GoProfile, is_gos_allocator, is_gos_memory, without_guesses

RATE = 524_288
NS_PER_S = 1_000_000_000


class Program:
    """A program with two sites, of which one has blocks of two sizes."""

    def __init__(self, rate: int = RATE) -> None:
        self.main = mock.Mock(bias=0x1000)
        self.main.name = "shop"
        self.main.code.layout.stack_max = 3
        self.calls_c, self.is_library = True, False
        self.pacing: Pacing | None = Pacing(100, None)
        self.profile = mock.Mock(rate_bytes=rate, damaged=0, left_out=0, cycle=5)
        self.profile.read.return_value = SampledBuckets(
            [7, 8],
            np.array([0, 0, 1]),
            np.array([1024, 1 << 20, 4096]),
            np.array([10, 4, 3]),
            np.array([4, 4, 0]),
            rate,
        )

    def heap_profile(self) -> mock.Mock:
        return self.profile

    def pacer(self) -> mock.Mock:
        return mock.Mock(read=lambda: self.pacing)

    def module_at(self, _address: int) -> mock.Mock:
        return self.main

    def method(self, address: int) -> Method | None:
        return {0x2001: Method("main.a", file="/src/a.go", line=5), 0x2002: Method("main.b")}.get(address)

    def close(self) -> None:
        """Nothing is open."""


def figures(profile: GoProfile, stack_id: int) -> dict[str, int]:
    keys, counters = profile.read_now()
    row = keys.index(SiteKey(AllocationKind.GO_HEAP, stack_id))
    return dict(zip(COUNTERS, counters[row].tolist(), strict=True))


def test_estimates_are_those_of_pprof() -> None:
    """scaleHeapSample of runtime/pprof: a block of s bytes stands for 1 / (1 - exp(-s / rate)) blocks."""
    site = figures(GoProfile(Program(), 23, lambda: 0), 7)
    small, large = (1 / (1 - math.exp(-size / RATE)) for size in (1024, 1 << 20))
    assert site["live_count"] == round(6 * small)
    assert site["live_bytes"] == round(6 * small * 1024)
    assert site["allocated_bytes"] == round(10 * small * 1024 + 4 * large * (1 << 20))
    assert count_stderr(site["live_count_variance"]) == pytest.approx(
        math.sqrt(6 * (small**2 - small)), rel=1e-3
    )
    assert bytes_stderr(site["live_bytes_variance"]) == pytest.approx(
        1024 * math.sqrt(6 * (small**2 - small)), rel=1e-3
    )


@pytest.mark.parametrize("rate", [0, 1])
def test_where_every_block_is_recorded(rate: int) -> None:
    """At a rate of 1 the figures are exact; at 0 the blocks were recorded before."""
    site = figures(GoProfile(Program(rate), 23, lambda: 0), 8)
    assert (site["live_count"], site["live_bytes"], site["live_count_variance"]) == (3, 3 * 4096, 0)


def test_it_is_looked_at_every_five_seconds() -> None:
    """Ticks in between cost nothing."""
    program = Program()
    profile = GoProfile(program, 23, lambda: 0)
    assert len(profile.read(NS_PER_S)[0]) == 2
    assert profile.read(2 * NS_PER_S)[0] == []
    assert program.profile.read.call_count == 1
    assert profile.read(6 * NS_PER_S)[0] == []
    assert program.profile.read.call_count == 2


def test_only_sites_with_news_are_told() -> None:
    """A table of fifty thousand is not updated for one of them."""
    program = Program()
    profile = GoProfile(program, 23, lambda: 0)
    assert len(profile.read_now()[0]) == 2
    program.profile.read.return_value = replace(
        program.profile.read.return_value, allocs=np.array([10, 4, 5])
    )
    keys, counters = profile.read_now()
    assert keys == [SiteKey(AllocationKind.GO_HEAP, 8)]
    assert counters[0, COUNTERS.index("live_count")] == round(5 / (1 - math.exp(-4096 / RATE)))


def test_a_reading_that_took_long_is_followed_by_a_long_pause() -> None:
    """No program takes more than a fiftieth of the tracing loop's processor time."""
    program = Program()
    profile = GoProfile(program, 23, lambda: 0, spent_ns=mock.Mock(side_effect=[0, NS_PER_S, 0, 0]))
    program.profile.cycle = None
    profile.read(NS_PER_S)
    profile.read(50 * NS_PER_S)
    assert program.profile.read.call_count == 1
    profile.read(51 * NS_PER_S)
    assert program.profile.read.call_count == 2


def test_a_program_without_a_profile_says_how_to_get_one() -> None:
    """Both ways out; none if it has one."""
    assert GoProfile(Program(), 23, lambda: 0).notes == ()
    (note,) = GoProfile(Program(0), 23, lambda: 0).notes
    assert "import net/http/pprof or runtime/pprof" in note
    assert note.endswith("bpfleakctl attach --enable-profile 23")


def test_what_is_old_or_missing_is_said() -> None:
    """A heap without collections, and C memory that is not recorded."""
    now_ns = 0
    program = Program()
    profile = GoProfile(program, 23, lambda: now_ns, sees_c=False)
    (note,) = profile.notes
    assert note.startswith("allocations of C code (cgo) are not recorded")
    profile.read_now()
    assert profile.new_collections() == 0
    now_ns = 47 * NS_PER_S
    assert profile.notes[0].startswith("its Go heap has not been collected for 47s")
    program.profile.cycle = 6
    profile.read_now()
    assert (profile.new_collections(), profile.new_collections()) == (1, 0)
    assert profile.notes == (note,)
    assert profile.tells_too_little
    for program.profile.cycle in range(7, 11):
        profile.read_now()
    assert not profile.tells_too_little


@pytest.mark.parametrize(("percent", "share"), [(100, 1.0), (50, 0.5), (None, 0.0), (999_999_999, 10.0)])
def test_room_for_garbage(percent: int | None, share: float) -> None:
    """As the runtime has it now; what makes no sense changes nothing."""
    program = Program()
    program.pacing = Pacing(percent, None)
    profile = GoProfile(program, 23, lambda: 0)
    assert profile.garbage_share == share
    program.pacing = None
    profile.read_now()
    assert profile.garbage_share == share


@pytest.mark.parametrize(
    ("limit_bytes", "words"),
    [
        (None, "its garbage collector is off (GOGC=off, or debug.SetGCPercent(-1)); its Go heap has not"),
        (
            1 << 30,
            "its garbage collector waits until the program uses 1.00 GiB (GOGC=off, and a memory limit)",
        ),
    ],
)
def test_a_collector_that_does_not_run_is_said(limit_bytes: int | None, words: str) -> None:
    """At once: what it keeps is unknown."""
    program = Program()
    program.pacing = Pacing(None, limit_bytes)
    profile = GoProfile(program, 23, lambda: 0)
    (note,) = profile.notes
    assert note.startswith(words)
    program.pacing = Pacing(100, None)
    profile.read_now()
    assert profile.notes == ()


def test_a_profile_that_the_program_turns_off_is_said() -> None:
    """The blocks of that time stay as they were."""
    program = Program()
    profile = GoProfile(program, 23, lambda: 0)
    before = figures(profile, 7)
    program.profile.rate_bytes = 0
    program.profile.read.return_value = replace(program.profile.read.return_value, rate_bytes=0)
    assert profile.read_now()[0] == []
    assert "the program has turned its heap profile off" in profile.notes[0]
    program.profile.read.return_value = replace(program.profile.read.return_value, frees=np.array([7, 4, 0]))
    after = figures(profile, 7)
    assert after["live_bytes"] == pytest.approx(before["live_bytes"] / 2, abs=1)


def test_a_stack_has_a_frame_for_each_logical_function() -> None:
    """As the runtime records it, inlined calls too."""
    program = Program()
    program.profile.stack.return_value = (0x2001, 0x2002, 0x9999)
    named = GoProfile(program, 23, lambda: 0).named_stack(SiteKey(AllocationKind.GO_HEAP, 7))
    assert [(frame.function, frame.location, frame.offset) for frame in named.stack.frames] == [
        ("main.a", "/src/a.go:5", 0x1001),
        ("main.b", None, 0x1002),
        (None, None, None),
    ]
    assert named.stack.truncated is StackEnd.DEPTH
    # Stacks share their frames: a program has thousands of stacks, and few places.
    again = GoProfile(program, 23, lambda: 0)
    first, second = (again.named_stack(SiteKey(AllocationKind.GO_HEAP, number)) for number in (7, 8))
    assert all(one is other for one, other in zip(first.stack.frames, second.stack.frames, strict=True))
    program.profile.stack.return_value = ()
    assert (
        GoProfile(program, 23, lambda: 0).named_stack(SiteKey(AllocationKind.GO_HEAP, 7)).stack.truncated
        is StackEnd.LOST
    )


@pytest.mark.parametrize(
    ("function", "is_it"),
    [
        ("runtime.sysReserve", True),
        ("runtime.sysMapOS", True),
        ("runtime.mmap.func1", True),
        ("runtime.mallocgc", False),
        ("main.sysMap", False),
        ("syscall.Mmap", False),
        (None, False),
    ],
)
def test_what_maps_memory_for_the_runtime(function: str | None, is_it: bool) -> None:
    """The program's own mappings are call sites."""
    assert is_gos_allocator(function) is is_it


@pytest.mark.parametrize(
    ("start", "path", "is_it"),
    [
        (0xC000000000, "", True),
        (0xC800000000, "", True),
        (0x7F0000000000, "", False),
        (0x7F0000000000, "[anon: Go: heap]", True),
        (0xC000000000, "/a/file", False),
        (0x1000000, "[heap]", False),
    ],
)
def test_what_was_gos_before_the_attach(start: int, path: str, is_it: bool) -> None:
    """Arenas are where the runtime asks for them, or have its name."""
    mapping = Mapping(start, start + 4096, 0, "00:00", 0, path, True, True, False)
    assert is_gos_memory(mapping) is is_it


def test_a_stack_of_c_ends_where_go_called_it() -> None:
    """The goroutine's stack is another one, which the walk does not find."""
    functions = ("malloc", "leak", "runtime.asmcgocall.abi0", "runtime.park_m", None)
    frames = tuple(Frame(name, "shop", 1, None, 1, FrameKind.NATIVE) for name in functions)
    stack = Stack(frames, (None,) * 5, None, pending=True)
    cut = without_guesses(stack)
    assert cut.pending
    assert [frame.function for frame in cut.frames] == list(functions[:3])
    assert len(cut.build_ids) == 3
    assert cut.truncated is StackEnd.GO_STACK
    assert without_guesses(Stack(frames[:2], (None,) * 2, None)).truncated is None
