"""Doubles for the tracer's dependencies: they give a test's answers, and fail on any other call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.kernel import abi
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.kernel.skipped_runs import SkippedRuns
from bpfleakd.model.code.mapping import CodeMapping, Mapping
from bpfleakd.model.code.probe import FunctionRole, ProbedFunction
from bpfleakd.model.code.stack import Frame, FrameKind, NamedStack, RawStack, Stack, StackEnd
from bpfleakd.model.process import ProcessId, TracingRequest
from bpfleakd.model.site import SiteKey
from bpfleakd.process.files.process_code import ProcessCode
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import ProcessInfo, read_process
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.attaching.attach import AttachWait
from bpfleakd.tracing.attaching.attachment import Attachment, LinkedFile
from bpfleakd.tracing.traced_process import TracedProcess, TracedSince

NS_PER_S = 1_000_000_000


@dataclass
class Clock:
    """CLOCK_MONOTONIC as far as the test let it go."""

    now_ns: int = 1_000 * NS_PER_S

    def __call__(self) -> int:
        return self.now_ns

    def go_on(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS_PER_S)


@dataclass
class FakeProcess:
    """The records of the programs for a process. `sites` and `blocks` are by stack id."""

    state: RecordingState = RecordingState.RECORDING
    unmatched_frees: int = 0
    library_changes: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    heap_peak_bytes: int = 0
    probe_hits: int = 0
    recorded: int = 0
    sample_shift: int = 0
    was_sampled: bool = False
    sites: dict[int, tuple[int, ...]] = field(default_factory=lambda: {0: (0, 0, 0, 0)})
    blocks: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    stacks: dict[int, RawStack] = field(default_factory=dict)


class FakeRemover:
    """kernel.sites.remover.SiteRemover, for processes whose programs do nothing meanwhile."""

    def __init__(self, processes: dict[int, FakeProcess]) -> None:
        self._processes = processes

    def remove(self, pid: int, stack_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        process = self._processes[pid]
        dead = np.array([process.sites[stack_id][1] == 0 for stack_id in stack_ids.tolist()], bool)
        for stack_id in stack_ids[dead].tolist():
            del process.sites[stack_id]
        return dead

    def remove_stacks(self, pid: int, stack_ids: NDArray[np.uint64]) -> None:
        for stack_id in stack_ids.tolist():
            del self._processes[pid].stacks[stack_id]

    def restore_stacks(self, pid: int, stack_ids: Iterable[int]) -> None:
        pass


class FakeMaps:
    """kernel.maps.Maps as the monitor reads it."""

    def __init__(self) -> None:
        self.processes: dict[int, FakeProcess] = {}
        self.last_beat = 0, 0
        self.skipped = SkippedRuns()
        self.swept: list[set[int]] = []
        self.site_remover = FakeRemover(self.processes)

    def stack_of_block(self, _pid: int, _address: int) -> RawStack | None:
        return None

    @property
    def shared(self) -> FakeMaps:
        """Entries in the maps of all are here, too."""
        return self

    def idle_unmatched_frees(self) -> Counter[int]:
        return Counter()

    def process(self, pid: int, idle_unmatched_frees: int = 0) -> ProcessCounters:
        process = self.processes[pid]
        losses = {reason: process.losses.get(reason, 0) for reason in abi.LOSS_REASONS}
        return ProcessCounters(
            process.state,
            process.unmatched_frees,
            process.library_changes,
            losses,
            process.heap_peak_bytes,
            probe_hits=process.probe_hits,
            recorded=process.recorded,
            sample_shift=process.sample_shift,
            was_sampled=process.was_sampled,
            idle_unmatched_frees=idle_unmatched_frees,
            site_count=len(process.sites),
            stack_count=len(process.stacks),
        )

    def skipped_runs(self) -> SkippedRuns:
        return self.skipped

    def set_state(self, pid: int, state: RecordingState) -> None:
        self.processes[pid].state = state

    def remove_ended_threads(self, pids: Collection[int]) -> None:
        self.swept.append(set(pids))

    def live_descriptor(self, pid: int) -> int:
        """Standard input: what would read the map is another process."""
        assert pid in self.processes
        return 0

    @property
    def threads_descriptor(self) -> int:
        return 0

    def live_capacity(self, pid: int) -> int:
        assert pid in self.processes
        return 1_000_000

    def set_sampling(self, pid: int, shift: int) -> None:
        process = self.processes[pid]
        process.sample_shift, process.was_sampled = shift, process.was_sampled or shift > 0

    def changed_sites(self) -> tuple[np.ndarray, np.ndarray]:
        rows = [
            (pid, 0, stack_id, *counters)
            for pid, process in self.processes.items()
            for stack_id, counters in process.sites.items()
        ]
        keys = np.array([row[:3] for row in rows], abi.SITE_KEY)
        sites = np.zeros(len(rows), abi.SITE)
        for name, column in zip(COUNTERS, counter_rows(row[3:] for row in rows).T, strict=True):
            sites[name] = column
        return keys, sites

    def live_blocks(self, pid: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rows = [(size, max(size, 1), *rest) for size, *rest in self.processes[pid].blocks]
        blocks = np.array(rows, abi.LIVE_BLOCK)
        if len(blocks):
            yield np.arange(len(blocks), dtype=np.uint64), blocks

    def stack(self, pid: int, stack_id: int) -> RawStack:
        return self.processes[pid].stacks.get(stack_id, RawStack((), StackEnd.LOST))

    def space_events(self) -> Iterator[object]:
        return iter(())

    def take_break(self, _pid: int) -> None:
        return None

    space_position = 0
    space_unreleased_share = 0.0

    def release_space_events(self) -> None:
        pass

    def beat(self, now_ns: int, timeout_ns: int) -> None:
        self.last_beat = now_ns, timeout_ns

    def last_beat_ns(self) -> int:
        return self.last_beat[0]

    def pids(self) -> list[int]:
        return list(self.processes)

    def sweep(self, limit_s: float) -> None:
        pass

    def remove_unknown(self) -> None:
        pass

    def remove_process(self, pid: int) -> None:
        del self.processes[pid]


class FakeRecord:
    """kernel.blob.Blob: bytes that are kept."""

    def __init__(self, text: bytes | None = None) -> None:
        self.text = text

    def read(self) -> bytes | None:
        return self.text

    def write(self, text: bytes) -> None:
        self.text = text

    def remove(self) -> None:
        self.text = None

    def close(self) -> None:
        pass


class FakePins:
    """kernel.pins.ProcessPins: the pins of a process. `staged` and `committed` hold links to files."""

    def __init__(self, id_: ProcessId | None = None) -> None:
        self.id = id_ or ProcessId(4_711, 8_009)
        self.records: dict[str, FakeRecord] = {}
        self.staged: dict[int, list[int]] = {}
        self.committed: dict[int, list[int]] = {}
        self.exists = False

    def make(self) -> None:
        self.exists = True

    def record(self, name: str) -> FakeRecord:
        return self.records.setdefault(name, FakeRecord())

    def stage_links(self, number: int, links: Sequence[int]) -> None:
        self.staged[number] = [os.dup(link) for link in links]

    def commit_links(self, number: int) -> None:
        self.committed[number] = self.staged.pop(number)

    def unfinished_links(self) -> set[int]:
        return set(self.staged)

    def open_links(self) -> dict[int, list[int]]:
        self._unpin(self.staged)
        return {number: list(map(os.dup, links)) for number, links in self.committed.items()}

    def remove_links(self) -> None:
        self._unpin(self.staged)
        self._unpin(self.committed)

    @staticmethod
    def _unpin(pinned: dict[int, list[int]]) -> None:
        for links in pinned.values():
            for link in links:
                os.close(link)
        pinned.clear()

    def remove(self) -> None:
        self.remove_links()
        self.records.clear()
        self.exists = False


class FakeAttacher:
    """tracing.attaching.attach.Attacher: holds real processes by a pidfd, and attaches nothing."""

    def __init__(self, maps: FakeMaps) -> None:
        self._maps = maps
        self.attached: set[int] = set()
        self.followed: list[int] = []
        self.refused: set[int] = set()
        self.unreadable: dict[int, Exception] = {}
        self.mappings: dict[int, tuple[Mapping, ...]] = {}

    def attach(
        self,
        pid: int,
        request: TracingRequest,
        *,
        expected: ProcessId | None,
        wait: AttachWait,
        prefer_inside: bool,
    ) -> Attachment:
        if pid in self.refused:
            raise errors.NoAllocator(f"process {pid} has none")
        self._maps.processes[pid] = FakeProcess()
        self.attached.add(pid)
        start_ticks = read_process(pid).id.start_ticks
        attachment = an_attachment(pid, pidfd=os.pidfd_open(pid), start_ticks=start_ticks)
        return replace(attachment, mappings=self.mappings.get(pid, ()))

    def read_code(self, attachment: Attachment) -> ProcessCode:
        pid = attachment.process.id.pid
        if pid in self.unreadable:
            raise self.unreadable[pid]
        return ProcessCode(pid, str(pid), read_mappings(pid), {})

    def follow(self, attachment: Attachment, code: ProcessCode, wait_s: float) -> Attachment:
        self.followed.append(attachment.process.id.pid)
        return replace(attachment, mappings=code.mappings)

    def stop(self, attachment: Attachment) -> None:
        self._maps.processes[attachment.process.id.pid].state = RecordingState.STOPPED
        os.close(attachment.pidfd)

    def release(self, attachment: Attachment) -> None:
        os.close(attachment.pidfd)
        self.attached.remove(attachment.process.id.pid)

    def poll(self) -> None:
        pass

    def drop_unused(self) -> None:
        pass

    def clear(self, attachment: Attachment) -> None:
        del self._maps.processes[attachment.process.id.pid]
        self.attached.remove(attachment.process.id.pid)


class FakeUnwinding:
    """tracing.unwinding.Unwinding: records which processes it follows."""

    def __init__(self) -> None:
        self.followed: list[int] = []

    def follow(self, code: ProcessCode, wait_s: float) -> None:
        assert wait_s == 0, "a tick does not wait"
        self.followed.append(code.pid)

    def poll(self) -> None:
        pass

    def use_tables(self, pid: int, tables: Sequence[object]) -> None:
        assert not tables, f"process {pid} has run-time compiled code"


class FakeSymbolizer:
    """symbols.symbolizer.Symbolizer: a function for each address, named after it.

    Addresses from `unnamed` are in no file and have no name yet.
    """

    def __init__(self) -> None:
        self.updates = 0
        self.symbolized = 0
        self.closed = False
        self.unnamed: set[int] = set()
        self.covered = True
        self.unreadable_files = 0
        self.is_pending = False
        self.hurried = 0
        self.lacked_total = 0

    @property
    def losses(self) -> dict[str, int]:
        return {"unreadable_files": self.unreadable_files} if self.unreadable_files else {}

    def update_mappings(self, _mappings: Sequence[Mapping]) -> None:
        self.updates += 1

    def hurry(self) -> None:
        self.hurried += 1

    def covers(self, _addresses: Iterable[int]) -> bool:
        return self.covered

    def readable(self, names: Collection[str], _limit_s: float) -> dict[str, str]:
        return {name: name for name in names}

    def vtables(self, _mapping: Mapping, _offsets: Sequence[int], limit_s: float) -> dict[int, str]:
        return {}

    def code_mappings(self) -> tuple[CodeMapping, ...]:
        return (CodeMapping(0x1000, 0x2000, 0, "/usr/bin/shop", "deadbeef"),)

    def symbolize(self, stacks: Sequence[RawStack]) -> list[Stack]:
        assert not self.closed
        self.symbolized += len(stacks)
        return [
            Stack(
                tuple(map(self._frame, stack.addresses)),
                (None,) * len(stack.addresses),
                None if stack.end is StackEnd.BOTTOM else stack.end,
            )
            for stack in stacks
        ]

    def close(self) -> None:
        self.closed = True

    def _frame(self, address: int) -> Frame:
        if address in self.unnamed:
            return Frame(None, None, None, None, address, FrameKind.UNKNOWN)
        return Frame(f"function_{address}", "shop", address, None, address, FrameKind.NATIVE)


def counter_rows(rows: Iterable[tuple[int, ...]]) -> np.ndarray:
    """Counters of sites, a row each; columns that are not given are zero."""
    return np.array([(*row, *(0,) * (len(COUNTERS) - len(row))) for row in rows], np.int64).reshape(
        -1, len(COUNTERS)
    )


def an_attachment(pid: int = 4_711, *, pidfd: int = 999_999, start_ticks: int = 8_009) -> Attachment:
    info = ProcessInfo(
        id=ProcessId(pid, start_ticks),
        namespace_pid=pid,
        comm="shop",
        exe="/usr/bin/shop",
        uid=1_001,
        state="S",
        threads=1,
        kernel_thread=False,
        seccomp_filtered=False,
    )
    probe = ProbedFunction("glibc", "malloc", FunctionRole.SIZE_FIRST, "libc.so.6", 0x99E00, True)
    file = LinkedFile((0, 0, 0, 0), 0, (probe,))
    return Attachment(info, pidfd, (), (), (file,), FakePins())  # type: ignore[arg-type]


def a_traced(
    sites: dict[SiteKey, tuple[int, ...]] | None = None, *, began_ns: int = 0, now_ns: int = 0
) -> TracedProcess:
    """A process that was attached at `began_ns`, with these counters at `now_ns`."""
    table = SiteTable(began_ns)
    if sites:
        table.update(now_ns, list(sites), counter_rows(sites.values()))
    losses = dict.fromkeys(abi.LOSS_REASONS, 0)
    counters = ProcessCounters(RecordingState.RECORDING, 13, 0, losses)
    return TracedProcess(
        attachment=an_attachment(),
        request=TracingRequest(),
        since=TracedSince(began_ns),
        symbolizer=FakeSymbolizer(),  # type: ignore[arg-type]
        table=table,
        counters=counters,
    )


@dataclass(frozen=True)
class View:
    """tracing.process_view.ProcessView of a process, with names and an address map as a test has them."""

    traced: TracedProcess
    maps: object = None
    space: object = None
    names: Callable[[Iterable[SiteKey]], dict[SiteKey, NamedStack]] | None = None
    now_ns: int = 0

    def name(self, keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
        assert self.names is not None
        return self.names(keys)

    def learn_charging(self) -> None:
        maps, pid = self.maps, self.traced.pid
        self.traced.charging.learn(self.traced.table, lambda key: maps.stack(pid, key.stack_id))

    def clock_ns(self) -> int:
        return self.now_ns
