"""The maps, opened by the daemon: bpf/README.md lists their other readers and writers.

Rules:
  - A process has an entry in every per-process map or in none. Its entries in the shared maps are removed a
    little at a time (shared_entries.py), and only then may its pid be added again. A thread empties its slot
    (slot_cleaner.py), and only then may the slot be reused.
  - Recording starts when its state becomes RECORDING; the overflow site exists before that.
  - The programs run while tables are read: an entry is consistent, a table is not a snapshot.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from bpfleakd import errors
from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.address_space_events import AddressSpaceEvent, read_space_events
from bpfleakd.kernel.descriptor_tables import DescriptorTables
from bpfleakd.kernel.loaded_code import LoadedCodeTable
from bpfleakd.kernel.pinned_maps import (
    CHANGED_SITE_BYTES,
    OPAQUE,
    PINNED_MAPS,
    SPACE_EVENT_BYTES,
    SPACE_EVENTS_MAX,
)
from bpfleakd.kernel.probes.operand_table import OperandTable
from bpfleakd.kernel.process_slots import NoSlot, ProcessCounters, ProcessSlots, ProgramBreak
from bpfleakd.kernel.python_row import python_row
from bpfleakd.kernel.ring import RingReader
from bpfleakd.kernel.shared_entries import SharedEntries
from bpfleakd.kernel.sites.reader import SiteReader
from bpfleakd.kernel.sites.remover import SiteRemover
from bpfleakd.kernel.skipped_runs import SkippedRunCounters, SkippedRuns
from bpfleakd.kernel.slot_cleaner import SlotCleaner
from bpfleakd.kernel.unwind_tables.store import UnwindStore
from bpfleakd.model.code.python_walk import PythonWalk
from bpfleakd.model.code.stack import RawStack, StackEnd


class Maps:
    """All maps of one set of programs. Owns `descriptors` and `skipped`; `close` closes them."""

    def __init__(self, descriptors: Mapping[str, int], skipped: SkippedRunCounters | None = None) -> None:
        self._skipped = skipped
        self._fds = dict(descriptors)
        self._live_fds: dict[int, int] = {}
        self._operands: OperandTable | None = None
        self._slots = ProcessSlots(self._fds["processes"], self._fds["slots"], SPACE_EVENTS_MAX)
        self._cleaner = SlotCleaner([self._fds["live"], self._fds["unwind_mappings"]])
        self.shared = SharedEntries(self._fds)
        self.unwind = UnwindStore(self._fds, self._slots.slot_of)
        self.descriptors = DescriptorTables(self._fds["descriptors"], self._fds["sites"], self._slots.slot_of)
        self.code = LoadedCodeTable(self._fds["loaded_code"], self._fds["code_ranges"])
        self._space_events = RingReader(self._fds["space_events"], SPACE_EVENT_BYTES)
        self._sites = SiteReader(
            self._fds["sites"], RingReader(self._fds["changed_sites"], CHANGED_SITE_BYTES), self._slots
        )
        self.site_remover = SiteRemover(
            self._fds["sites"], self._fds["stacks"], self._slots, self._wait_for_programs
        )

    @classmethod
    def open_pinned(cls, directory: Path) -> Maps:
        """Open the maps pinned under `directory`.

        Raises KernelError if one is missing or has another layout: it belongs to another version.
        """
        descriptors: dict[str, int] = {}
        for name, (key_type, value_type) in PINNED_MAPS.items():
            try:
                descriptors[name] = bpf.object_get(directory / name)
            except OSError as error:
                raise errors.KernelError(
                    f"cannot open the map {directory / name}: {error.strerror}"
                ) from error
            _kind, key_bytes, value_bytes, _entries, _flags = bpf.map_info(descriptors[name])
            right_value = value_type is OPAQUE or value_bytes == value_type.itemsize
            if key_bytes != key_type.itemsize or not right_value:
                raise errors.KernelError(
                    f"the map {directory / name} has entries of {key_bytes}+{value_bytes} bytes,"
                    f" not {key_type.itemsize}+{value_type.itemsize}: it is another version's"
                )
        try:
            return cls(descriptors, SkippedRunCounters(directory))
        except OSError as error:
            raise errors.KernelError(f"cannot open the programs in {directory}: {error.strerror}") from error

    def close(self) -> None:
        """Close all descriptors; the maps exist as long as they are pinned or in use."""
        self._cleaner.close()
        self.unwind.close()
        self.descriptors.close()
        self._slots.close()
        self._space_events.close()
        self._sites.close()
        if self._skipped:
            self._skipped.close()
        for fd in (*self._fds.values(), *self._live_fds.values()):
            os.close(fd)
        self._fds.clear()
        self._live_fds.clear()

    # One process

    def add_process(self, pid: int, live_blocks: int) -> None:
        """Create the tables of a process; the recording is stopped.

        Raises CapacityError if there is no memory for them, TablesFull if the shared tables are full.
        """
        try:
            live_fd = bpf.map_create(
                bpf.MapType.HASH,
                8,
                abi.LIVE_BLOCK.itemsize,
                live_blocks,
                bpf.MAP_FLAG_NO_PREALLOC,
                "bpfleakd_live",
            )
        except OSError as error:
            raise errors.CapacityError(
                f"no table of {live_blocks} blocks for process {pid}: {error.strerror}",
                "lower limits.live_blocks, or that of its rule",
            ) from error
        self._live_fds[pid] = live_fd
        overflow = np.zeros(1, abi.SITE_KEY)
        overflow["tgid"] = pid
        self.shared.finish_removing(pid)
        try:
            bpf.map_update(self._fds["sites"], overflow.tobytes(), bytes(abi.SITE.itemsize))
            slot = self._take_slot(pid)
            bpf.map_update(self._fds["live"], bpf.u32(slot), bpf.u32(live_fd))
        except (OSError, NoSlot) as error:
            self.remove_process(pid)
            if isinstance(error, OSError) and error.errno != errno.E2BIG:
                raise errors.CapacityError(f"no table for process {pid}: {error.strerror}") from error
            reason = "every slot is taken" if isinstance(error, NoSlot) else "there are too many call sites"
            raise errors.TablesFull(
                f"no room for process {pid} in the tables: {reason}",
                "detach another one, or raise limits.processes and limits.sites",
            ) from error

    def _wait_for_programs(self, pid: int) -> None:
        """Wait until all programs that run now have ended.

        After each change of a map of maps, the kernel waits for an RCU grace period, since Linux 4.20
        (1ae80cf31938). So this replaces the process' table by itself.
        """
        bpf.map_update(self._fds["live"], bpf.u32(self._slots.slot_of(pid)), bpf.u32(self._live_fds[pid]))

    def _take_slot(self, pid: int) -> int:
        while True:
            try:
                return self._slots.take(pid, self._cleaner.unclean)
            except NoSlot:
                if not self._cleaner.wait():
                    raise

    def adopt_process(self, pid: int) -> bool:
        """Open the tables of a process that an earlier daemon added; returns False if they do not exist."""
        try:
            found = bpf.map_lookup(self._fds["live"], bpf.u32(self._slots.slot_of(pid)), 4)
        except KeyError:
            return False
        if found is None:
            return False
        self._live_fds[pid] = bpf.map_get(int.from_bytes(found, "little"))
        # The earlier daemon may have been killed while it removed sites.
        self._slots.set_word(pid, "removed_before", 0)
        self.descriptors.adopt(pid)
        return True

    def pids(self) -> list[int]:
        """The processes that have an entry."""
        return self._slots.pids()

    def set_state(self, pid: int, state: abi.RecordingState) -> None:
        """Start or stop the recording of an added process."""
        self._slots.set_word(pid, "state", state)

    def set_sampling(self, pid: int, shift: int) -> None:
        """Record one block in 2^shift bytes of a process from now on; 0: all blocks."""
        ever = int(self._slots.row(pid)["sampling"]) & abi.SAMPLING_EVER
        sampling = abi.SAMPLING_EVER | abi.SAMPLING_NOW if shift else ever
        # Zero comes last, a nonzero shift first: both are valid for every block that is skipped.
        order = (("sampling", sampling), ("sample_shift", shift))
        for field, value in order if shift else reversed(order):
            self._slots.set_word(pid, field, value)

    def set_sampled_inside(self, pid: int) -> None:
        """Declare that a sampler inside the process chooses its blocks.

        Frees of unknown blocks then prove nothing.
        """
        self._slots.set_word(pid, "sampling", abi.SAMPLING_EVER | abi.SAMPLING_NOW)

    def see_address_space_at_sites(self, pid: int, is_seen: bool) -> None:
        """Declare whether changes of the address space are seen at probed instructions of a process.

        Otherwise the programs attached to the kernel's system calls report them.
        """
        self._slots.set_word(pid, "space_at_sites", int(is_seen))

    def add_commit_call(self, pid: int, ip: int, caller: int) -> None:
        """Declare how an allocator of a process calls mprotect: such calls need no stack.

        `ip` is where the call enters the kernel, `caller` its return address, which is on top of the stack.
        There is room for the first few.
        """
        self._slots.add_commit_call(pid, ip, caller)

    def add_break_caller(self, pid: int, caller: int) -> None:
        """Declare that an allocator of a process calls sbrk, which returns to `caller`.

        `take_break` then has these moves of the program break. There is room for the first few callers.
        """
        self._slots.add_break_caller(pid, caller)

    def take_break(self, pid: int) -> ProgramBreak | None:
        """The program break after all events so far; None if there was no call since the attach."""
        return self._slots.take_break(pid)

    def operands_number(self, pid: int, packed: bytes) -> int:
        """The entry with the places of a probe's arguments in a process.

        Raises the errors of OperandTable.number.
        """
        fd = self._fds["probe_operands"]
        if self._operands is None:
            numbers = range(bpf.map_info(fd).entries)
            entries = [bpf.map_lookup(fd, bpf.u32(number), len(packed)) or b"" for number in numbers]
            self._operands = OperandTable(entries, lambda at, new: bpf.map_update(fd, bpf.u32(at), new))
        return self._operands.number(pid, packed)

    def set_python(self, pid: int, walk: PythonWalk, *, sees_releases: bool) -> None:
        """Start recording the Python frames of a process. Raises ValueError if the walker cannot.

        `sees_releases`: a probe of the role CODE_RELEASED sees every release of a code object.
        """
        self._slots.set_python(pid, python_row(walk, sees_releases=sees_releases))

    def slot_of(self, pid: int) -> int:
        """The place of a process in the maps. Raises KeyError if it was not added."""
        return self._slots.slot_of(pid)

    def process(self, pid: int, idle_unmatched_frees: int = 0) -> ProcessCounters:
        """The counters of a process; zero for an unknown one.

        `idle_unmatched_frees` requires a walk over all processes: the method of this name does it.
        """
        return self._slots.counters(pid, idle_unmatched_frees)

    def remove_process(self, pid: int) -> None:
        """Clear everything that belongs to a process. Its links must already be closed."""
        self.descriptors.end(pid)
        slot = self._slots.give_back(pid)
        if slot is not None:
            self._cleaner.clean(slot)
        if self._operands is not None:
            self._operands.release(pid)
        if pid in self._live_fds:
            os.close(self._live_fds.pop(pid))
        self.code.end(pid)
        self.site_remover.forget(pid)
        self.shared.remove_later(pid)

    def remove_ended_threads(self, pids: Collection[int]) -> None:
        """Remove the entries of ended threads of these processes."""
        for pid, count in self.shared.remove_ended_threads(pids).items():
            self._slots.add_to(pid, "threads_removed", count)

    def remove_unknown(self) -> None:
        """Remove an earlier daemon's leftovers of processes that have no entry."""
        self.shared.remove_others(self._slots.pids())
        # The earlier daemon may have been killed before it emptied its slots.
        for slot in self._slots.free():
            if bpf.map_lookup(self._fds["live"], bpf.u32(slot), 4) is not None:
                self._cleaner.clean(slot)

    def skipped_runs(self) -> SkippedRuns:
        """How many runs of the programs for single events the kernel has skipped."""
        return self._skipped.read() if self._skipped else SkippedRuns()

    def live_blocks(self, pid: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of (addresses, LIVE_BLOCK records) of a process; overwritten by the next batch."""
        return bpf.map_batches(self._live_fds[pid], np.dtype("u8"), abi.LIVE_BLOCK, 16_384)

    def live_capacity(self, pid: int) -> int:
        """How many live blocks of a process can be recorded."""
        return bpf.map_info(self._live_fds[pid]).entries

    def live_descriptor(self, pid: int) -> int:
        """The map of a process' live blocks (address -> LIVE_BLOCK); this object keeps ownership."""
        return self._live_fds[pid]

    @property
    def threads_descriptor(self) -> int:
        """The map of the threads' current calls (tgid, tid -> PENDING_CALL and more); this object owns it."""
        return self._fds["threads"]

    def stack(self, pid: int, stack_id: int) -> RawStack:
        """The frames of a stack; none, with the end LOST, if the table had no room for it."""
        key = np.zeros(1, abi.STACK_KEY)
        key["tgid"], key["stack_id"] = pid, stack_id
        value = bpf.map_lookup(self._fds["stacks"], key.tobytes(), abi.STACK.itemsize)
        if value is None:
            return RawStack((), StackEnd.LOST)
        stack = np.frombuffer(value, abi.STACK)[0]
        depth = int(stack["depth"])
        end = abi.STACK_ENDS[int(stack["end"])]
        return RawStack(tuple(stack["frames"][:depth].tolist()), end, tuple(stack["checks"].tolist()))

    def stack_of_block(self, pid: int, address: int) -> RawStack | None:
        """The stack that allocated the live block at an address; None if no such block is live."""
        key = np.array([address], np.uint64).tobytes()
        value = bpf.map_lookup(self._live_fds[pid], key, abi.LIVE_BLOCK.itemsize)
        return (
            None
            if value is None
            else self.stack(pid, int(np.frombuffer(value, abi.LIVE_BLOCK)[0]["stack_id"]))
        )

    # All processes

    def space_events(self) -> Iterator[AddressSpaceEvent]:
        """Yield changes of address spaces since the last call, in order.

        They occupy the ring until released.
        """
        return read_space_events(self._space_events)

    @property
    def space_position(self) -> int:
        """The position behind the last event that was read."""
        return self._space_events.position

    @property
    def space_unreleased_share(self) -> float:
        """The share of the ring (0 to 1) that read events occupy."""
        return self._space_events.unreleased_bytes / self._space_events.size_bytes

    def release_space_events(self) -> None:
        """Free the events that were read: another daemon will not see them."""
        self._space_events.release()

    def beat(self, now_ns: int, timeout_ns: int) -> None:
        """Tell the programs that a daemon runs; without one they record for `timeout_ns` (0: for ever)."""
        value = np.zeros(1, abi.HEARTBEAT)
        value["beat_ns"], value["timeout_ns"] = now_ns, timeout_ns
        bpf.map_update(self._fds["heartbeat"], bytes(4), value.tobytes())

    def last_beat_ns(self) -> int:
        """When a daemon last called `beat`; 0 if none did."""
        value = bpf.map_lookup(self._fds["heartbeat"], bytes(4), abi.HEARTBEAT.itemsize)
        return int(np.frombuffer(value or bytes(abi.HEARTBEAT.itemsize), abi.HEARTBEAT)["beat_ns"][0])

    def changed_sites(self) -> tuple[np.ndarray, np.ndarray]:
        """The sites that changed since the last call, and perhaps others: arrays of SITE_KEY and of SITE."""
        return self._sites.read()
