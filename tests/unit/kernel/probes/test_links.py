"""Which processes get their own links, and which share: the fake kernel records the calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from bpfleakd.kernel import bpf
from bpfleakd.kernel.probes.links import Linker, ProbePoint, SampledPoint, close_all
from bpfleakd.kernel.probes.shared import InodeKey, SharedKind, SharedPoint
from bpfleakd.kernel.programs import AttachMethod, programs_of
from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.threads import IdlePriority, is_idle, may_be_idle

FILE, OTHER_FILE = (1, 23), (1, 29)
POINTS = [
    ProbePoint(0x10, FunctionRole.SIZE_FIRST, ("rdi",)),
    ProbePoint(0x20, FunctionRole.RELEASE, ("rdi",)),
    ProbePoint(0x30, FunctionRole.LIBRARIES_CHANGED, ()),
]
SAMPLED_POINTS = [
    SampledPoint(0x40, FunctionRole.SAMPLED_ALLOC, 0, 0x100),
    SampledPoint(0x50, FunctionRole.SAMPLED_FREE, 1, 0x102),
]
FIRST, SECOND, THIRD = 101, 103, 107


class Shared:
    """In place of SharedProbes."""

    def __init__(self) -> None:
        self.linked: list[tuple[InodeKey, int]] = []
        self.points: Sequence[SharedPoint] = ()
        self.failure: OSError | None = None

    def link(self, file: InodeKey, _path: str, points: Sequence[SharedPoint], pid: int) -> int:
        if self.failure:
            raise self.failure
        self.linked.append((file, pid))
        self.points = points
        return os.memfd_create("shared")

    def forget(self, pid: int) -> None:
        self.linked = [each for each in self.linked if each[1] != pid]


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[int], bool]]:
    """The links that were made: program, offsets, whether at the return."""
    made: list[tuple[int, set[int], bool]] = []

    def link(program, _type, _path, cookies, _pid, at_return=False, *, semaphores=None):
        made.append((program, set(cookies), at_return))
        return os.memfd_create("link")

    monkeypatch.setattr(bpf, "link_uprobe_multi", link)
    return made


def link_all(linker: Linker, pid: int, file: InodeKey | None = FILE) -> None:
    for link in linker.link("/lib/libc.so", POINTS, pid, 0, file):
        os.close(link)


def linker_of(shared: Shared | None, method: AttachMethod = AttachMethod.SESSION) -> Linker:
    fds = {program.function: number for number, program in enumerate(programs_of(method))}
    return Linker(method, fds, shared)  # type: ignore[arg-type]


def test_the_first_of_a_file_has_links_of_its_own_and_the_others_share(owned) -> None:
    """Until it is gone: then the next one is the first."""
    shared = Shared()
    linker = linker_of(shared)

    link_all(linker, FIRST)
    own_links = len(owned)
    link_all(linker, SECOND)
    assert len(owned) == own_links > 0
    assert shared.linked == [(FILE, SECOND)]
    link_all(linker, THIRD, OTHER_FILE)
    assert len(owned) == 2 * own_links

    linker.forget(FIRST)
    link_all(linker, FIRST)
    assert len(owned) == 3 * own_links
    linker.forget(SECOND)
    assert shared.linked == []


def test_one_that_was_adopted_is_the_first(owned) -> None:
    """Links that an earlier daemon made count as those of one's own."""
    shared = Shared()
    linker = linker_of(shared)
    link = os.memfd_create("adopted")
    linker.adopt(FILE, FIRST, [link])
    os.close(link)

    link_all(linker, SECOND)

    assert (owned, shared.linked) == ([], [(FILE, SECOND)])


def test_returns_and_frees_come_first(owned) -> None:
    """A call that is seen to begin is seen to end, and a block that is recorded is seen to be freed."""
    shared = Shared()
    linker = linker_of(shared)
    link_all(linker, FIRST)
    link_all(linker, SECOND)

    assert [offsets for _program, offsets, _at_return in owned] == [{0x20, 0x30}, {0x10}]
    assert [(p.offset, p.kind) for p in shared.points] == [
        (0x10, SharedKind.RETURN),
        (0x20, SharedKind.ENTRY),
        (0x10, SharedKind.ENTRY),
        (0x30, SharedKind.ENTRY),
    ]


def link_sampled(linker: Linker, *pids: int) -> None:
    for pid in pids:
        for link in linker.link_sampled("/usr/lib/libbpfleak.so", SAMPLED_POINTS, pid, 0, FILE):
            os.close(link)


@pytest.mark.parametrize(
    ("method", "are_shared"),
    [(AttachMethod.SESSION, False), (AttachMethod.MULTI, False), (AttachMethod.PERF, True)],
)
def test_notices_are_shared_only_where_all_are_perf_events(
    monkeypatch: pytest.MonkeyPatch, owned, method: AttachMethod, are_shared: bool
) -> None:
    """One perf event makes each context switch of its process slower; the dynamic linker is rarely called."""
    monkeypatch.setattr(bpf, "open_uprobe_event", lambda *_: os.memfd_create("event"))
    monkeypatch.setattr(bpf, "link_perf_event", lambda _program, event, _cookie: event)
    shared = Shared()
    linker = linker_of(shared, method)
    for pid in (FIRST, SECOND):
        close_all(linker.link("/lib/ld.so", POINTS[2:], pid, 0, FILE))
    assert bool(shared.linked) == are_shared


@pytest.mark.parametrize("method", [AttachMethod.SESSION, AttachMethod.MULTI])
def test_the_probes_of_a_sampler_are_not_shared(owned, method: AttachMethod) -> None:
    """A perf event of a process would cost it more, at each of its context switches."""
    shared = Shared()
    link_sampled(linker_of(shared, method), FIRST, SECOND)

    assert [offsets for _program, offsets, _at_return in owned] == [{0x40, 0x50}, {0x40, 0x50}]
    assert shared.linked == []


def test_perf_events_of_a_sampler_are_shared(owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their semaphores, frees first: each process would have perf events anyway."""
    monkeypatch.setattr(bpf, "open_uprobe_event", lambda *_: os.memfd_create("event"))
    monkeypatch.setattr(bpf, "link_perf_event", lambda _program, event, _cookie: event)
    shared = Shared()
    link_sampled(linker_of(shared, AttachMethod.PERF), FIRST, SECOND)

    assert owned == []
    assert shared.linked == [(FILE, SECOND)]
    assert [(p.offset, p.kind, p.semaphore) for p in shared.points] == [
        (0x50, SharedKind.STATIC, 0x102),
        (0x40, SharedKind.STATIC, 0x100),
    ]


def test_where_sharing_fails_each_has_links_of_its_own(owned) -> None:
    """Such as without tracefs; but a process that ended needs none."""
    shared = Shared()
    linker = linker_of(shared)
    link_all(linker, FIRST)
    own_links = len(owned)

    shared.failure = OSError(errno.EROFS, "read-only")
    link_all(linker, SECOND)
    assert len(owned) == 2 * own_links

    shared.failure = OSError(errno.ESRCH, "no such process")
    with pytest.raises(OSError, match="no such process"):
        link_all(linker, THIRD)


def test_nobody_shares_without_a_file_or_shared_programs(owned) -> None:
    """As with the daemon's own trial, or walkers that cannot go on in shared programs."""
    shared = Shared()
    for linker, file in ((linker_of(shared), None), (linker_of(None), FILE)):
        owned.clear()
        link_all(linker, FIRST, file)
        own_links = len(owned)
        link_all(linker, SECOND, file)
        assert len(owned) == 2 * own_links
    assert shared.linked == []


def test_breakpoints_are_never_changed_at_idle_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fork of the machine waits meanwhile; the kernel removes breakpoints when a link is closed."""
    were_idle: list[bool] = []
    close = os.close

    def link(*_arguments: object, **_options: object) -> int:
        were_idle.append(is_idle())
        return os.memfd_create("link")

    def observed_close(descriptor: int) -> None:
        were_idle.append(is_idle())
        close(descriptor)

    monkeypatch.setattr(bpf, "link_uprobe_multi", link)
    monkeypatch.setattr(os, "close", observed_close)
    linker = linker_of(None)
    with IdlePriority().lowered():
        made = linker.link("/lib/libc.so", POINTS, FIRST, 0)
        made += linker.link_sampled("/usr/lib/libbpfleak.so", SAMPLED_POINTS, FIRST, 0)
        close_all(made)
        assert is_idle() == may_be_idle()

    assert were_idle == [False] * 2 * len(made)
