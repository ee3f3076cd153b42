"""The maps, opened by the daemon: bpf/README.md lists their other readers and writers.

Rules:
  - A process has an entry in every per-process map or in none. What it had in the maps of all processes is
    removed a little at a time (`sweep`), since these are walked for it; its pid is not used again before.
  - Nothing is recorded before its state is RECORDING, and the overflow site exists by then.
  - The programs run while tables are read: an entry is whole, a table is not a snapshot.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.address_space_events import AddressSpaceEvent, read_space_events
from bpfleakd.kernel.descriptor_tables import DescriptorTables
from bpfleakd.kernel.probes.operand_table import OperandTable
from bpfleakd.kernel.process_slots import NoSlot, ProcessSlots
from bpfleakd.kernel.python_row import python_row
from bpfleakd.kernel.ring import RingReader
from bpfleakd.kernel.site_reader import SiteReader
from bpfleakd.kernel.skipped_runs import SkippedRunCounters, SkippedRuns
from bpfleakd.kernel.unwind_store import UnwindStore
from bpfleakd.model.code.python_walk import PythonWalk
from bpfleakd.model.code.stack import RawStack, StackEnd
from bpfleakd.unwind.rules import PACKED_RULE_BYTES

__all__ = ["CHANGED_SITE_BYTES", "PINNED_MAPS", "SPACE_EVENT_BYTES", "Maps", "ProcessCounters"]

# Written and read by the programs alone.
_OPAQUE = np.dtype("V1")
# A ring buffer has neither keys nor values.
_NOTHING = np.dtype("V0")

# Map name -> key and value type, for all that the daemon opens.
PINNED_MAPS: dict[str, tuple[np.dtype, np.dtype]] = {
    "processes": (np.dtype("u4"), abi.PROCESS),
    "slots": (np.dtype("u4"), np.dtype("u4")),
    "live": (np.dtype("u4"), np.dtype("u4")),
    "descriptors": (np.dtype("u4"), np.dtype("u4")),
    "sampling_curves": (np.dtype("u4"), abi.SAMPLING_CURVE),
    "sites": (abi.SITE_KEY, abi.SITE),
    "changed_sites": (_NOTHING, _NOTHING),
    "stacks": (abi.STACK_KEY, abi.STACK),
    "threads": (np.dtype("u8"), _OPAQUE),
    "unproven_frees": (np.dtype("u8"), abi.UNPROVEN_FREES),
    "unwind_rules": (np.dtype("u4"), np.dtype(("V", PACKED_RULE_BYTES))),
    "unwind_shards": (np.dtype("u4"), np.dtype("u4")),
    "unwind_mappings": (np.dtype("u4"), np.dtype("u4")),
    "space_events": (_NOTHING, _NOTHING),
    "probe_operands": (np.dtype("u4"), abi.PROBE_OPERANDS),
    "heartbeat": (np.dtype("u4"), abi.HEARTBEAT),
}

# Some 16,000 events between two readings.
SPACE_EVENT_BYTES = 2 << 20
# With the header of a record in a ring.
_SPACE_RECORD_BYTES = 8 + abi.SPACE_EVENT.itemsize
# About 32,000 sites; if more change at once, reading all is as fast.
CHANGED_SITE_BYTES = 1 << 20

_OVERFLOW_STACK_ID = 0

# Keyed by process and more.
_SHARED_MAPS = ("sites", "stacks", "threads", "unproven_frees")

# A stack has a kilobyte.
_BATCH_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class ProcessCounters:
    """What the programs say of a process.

    `sample_shift` is the binary logarithm of the sampling interval in bytes, 0 if every block is recorded,
    and `was_sampled` whether it ever was otherwise. `recorded` blocks entered the live table, and `released`
    ones left it; `site_count` and `stack_count` are entries in those tables. `unmatched_frees` counts frees
    of unknown blocks, `idle_unmatched_frees` those by threads that have made none since; `library_changes`
    counts dlopen and dlclose, `losses` is by reason. `heap_peak_bytes` is the peak of live bytes in the heap
    since the last event of the address space. `inside_interval_bytes` is the interval of the sampler inside
    the process, 0 without one. `probe_hits` are the runs of programs in this process; each costs it about 0.5
    us.
    """

    state: abi.RecordingState
    unmatched_frees: int
    library_changes: int
    losses: dict[str, int]
    heap_peak_bytes: int = 0
    probe_hits: int = 0
    sample_shift: int = 0
    was_sampled: bool = False
    recorded: int = 0
    released: int = 0
    site_count: int = 0
    stack_count: int = 0
    idle_unmatched_frees: int = 0
    inside_interval_bytes: int = 0

    @property
    def sample_interval_bytes(self) -> int:
        """One block in so many bytes is recorded now, on average; 0: all are."""
        return self.inside_interval_bytes or (1 << self.sample_shift if self.sample_shift else 0)


class Maps:
    """All maps of one set of programs. Owns `descriptors` and `skipped`; `close` closes them."""

    def __init__(self, descriptors: Mapping[str, int], skipped: SkippedRunCounters | None = None) -> None:
        self._skipped = skipped
        self._fds = dict(descriptors)
        self._live_fds: dict[int, int] = {}
        # Processes whose entries in the maps of all are still to be removed, and how far that is.
        self._removed: set[int] = set()
        self._sweeping: Iterator[None] | None = None
        self._operands: OperandTable | None = None
        self._slots = ProcessSlots(
            self._fds["processes"], self._fds["slots"], SPACE_EVENT_BYTES // _SPACE_RECORD_BYTES
        )
        self.unwind = UnwindStore(self._fds, self._slots.slot_of)
        self.descriptors = DescriptorTables(self._fds["descriptors"], self._fds["sites"], self._slots.slot_of)
        self._space_events = RingReader(self._fds["space_events"], SPACE_EVENT_BYTES)
        self._sites = SiteReader(
            self._fds["sites"], RingReader(self._fds["changed_sites"], CHANGED_SITE_BYTES), self._slots
        )

    @classmethod
    def open_pinned(cls, directory: Path) -> Maps:
        """Open the maps pinned under `directory`.

        Raises KernelError if one is missing or laid out otherwise: it is another version's.
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
            right_value = value_type is _OPAQUE or value_bytes == value_type.itemsize
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
        """Close all descriptors; the maps live on while they are pinned or in use."""
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
        """Make the tables of a process, stopped.

        Raises CapacityError if there is no memory for its own, TablesFull if those that all share are full.
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
        while pid in self._removed:
            self.sweep()
        try:
            bpf.map_update(self._fds["sites"], overflow.tobytes(), bytes(abi.SITE.itemsize))
            slot = self._slots.take(pid)
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

    def adopt_process(self, pid: int) -> bool:
        """Open the tables of a process that an earlier daemon added; False if they do not exist."""
        try:
            found = bpf.map_lookup(self._fds["live"], bpf.u32(self._slots.slot_of(pid)), 4)
        except KeyError:
            return False
        if found is None:
            return False
        self._live_fds[pid] = bpf.map_get(int.from_bytes(found, "little"))
        self.descriptors.adopt(pid)
        return True

    def pids(self) -> list[int]:
        """The processes that have an entry."""
        return self._slots.pids()

    def set_state(self, pid: int, state: abi.RecordingState) -> None:
        """Start or stop the recording of a process that was added."""
        self._slots.set_word(pid, "state", state)

    def set_sampling(self, pid: int, shift: int) -> None:
        """Record the blocks of a process from now on one in 2^shift bytes; 0: all."""
        ever = int(self._slots.row(pid)["sampling"]) & abi.SAMPLING_EVER
        sampling = abi.SAMPLING_EVER | abi.SAMPLING_NOW if shift else ever
        # Before the first block is left out, and after the last.
        order = (("sampling", sampling), ("sample_shift", shift))
        for field, value in order if shift else reversed(order):
            self._slots.set_word(pid, field, value)

    def set_sampled_inside(self, pid: int) -> None:
        """Its blocks are sampled before they get here: frees of unknown ones tell nothing."""
        self._slots.set_word(pid, "sampling", abi.SAMPLING_EVER | abi.SAMPLING_NOW)

    def operands_number(self, pid: int, packed: bytes) -> int:
        """The entry that says where the arguments of a probe in a process are. As OperandTable.number."""
        fd = self._fds["probe_operands"]
        if self._operands is None:
            numbers = range(bpf.map_info(fd).entries)
            entries = [bpf.map_lookup(fd, bpf.u32(number), len(packed)) or b"" for number in numbers]
            self._operands = OperandTable(entries, lambda at, new: bpf.map_update(fd, bpf.u32(at), new))
        return self._operands.number(pid, packed)

    def set_python(self, pid: int, walk: PythonWalk) -> None:
        """Record the Python frames of a process from now on. Raises ValueError if the walker cannot."""
        self._slots.set_python(pid, python_row(walk))

    def slot_of(self, pid: int) -> int:
        """The place of a process in the maps. KeyError if it was not added."""
        return self._slots.slot_of(pid)

    def process(self, pid: int, idle_unmatched_frees: int = 0) -> ProcessCounters:
        """Read the counters of a process; those of one that is unknown are zero.

        `idle_unmatched_frees` would need all processes at once: the method of this name reads them.
        """
        process = self._slots.row(pid)
        losses = {reason: int(n) for reason, n in zip(abi.LOSS_REASONS, process["losses"], strict=True)}
        return ProcessCounters(
            state=abi.RecordingState(int(process["state"])),
            unmatched_frees=int(process["unmatched_frees"]),
            idle_unmatched_frees=idle_unmatched_frees,
            library_changes=int(process["library_changes"]),
            losses=losses,
            heap_peak_bytes=int(process["peak_live_bytes"]),
            probe_hits=int(process["probe_hits"][:: abi.HIT_COUNTER_WORDS].sum()),
            sample_shift=int(process["sample_shift"]),
            was_sampled=bool(process["sampling"]),
            recorded=int(process["recorded"]),
            released=int(process["released"]),
            site_count=int(process["site_count"]),
            stack_count=int(process["stack_count"]),
            inside_interval_bytes=int(process["inside_interval_bytes"]),
        )

    def idle_unmatched_frees(self) -> Counter[int]:
        """Frees of unknown blocks by threads that made none since, and were not about to end, by pid.

        It walks a table of all threads.
        """
        before_ns = time.monotonic_ns() - abi.THREAD_END_NS
        counts: Counter[int] = Counter()
        for keys, values in bpf.map_batches(self._fds["unproven_frees"], np.dtype("u8"), abi.UNPROVEN_FREES):
            idle = values["first_ns"] < before_ns
            pids, places = np.unique(_processes_of(keys[idle]), return_inverse=True)
            sums = np.zeros(len(pids), np.uint64)
            np.add.at(sums, places, values["count"][idle])
            counts.update(dict(zip(pids.tolist(), sums.tolist(), strict=True)))
        return counts

    def remove_process(self, pid: int) -> None:
        """Clear all that belongs to a process. Its links must be closed already."""
        self.descriptors.end(pid)
        with contextlib.suppress(KeyError):
            bpf.map_delete(self._fds["live"], bpf.u32(self._slots.slot_of(pid)))
        self._slots.give_back(pid)
        if self._operands is not None:
            self._operands.release(pid)
        if pid in self._live_fds:
            os.close(self._live_fds.pop(pid))
        self._removed.add(pid)

    def sweep(self, limit_s: float = math.inf) -> None:
        """Remove what is left of processes that were removed, for so long at a time."""
        until_s = time.monotonic() + limit_s
        if self._sweeping is None and self._removed:
            self._sweeping = self._sweep(frozenset(self._removed))
        for _batch in self._sweeping or ():
            if time.monotonic() >= until_s:
                return
        self._sweeping = None

    def _sweep(self, pids: frozenset[int]) -> Iterator[None]:
        numbers = np.array(sorted(pids), np.uint64)
        for name in _SHARED_MAPS:
            for fd, keys in self._batches_of_keys(name):
                bpf.map_delete_many(fd, keys[np.isin(_processes_of(keys), numbers)])
                yield
        self._removed -= pids

    def remove_unknown(self) -> None:
        """Remove what an earlier daemon has left of processes that have no entry any more."""
        known = np.array(self._slots.pids(), np.uint64)
        for name in _SHARED_MAPS:
            self._remove_keys(name, lambda keys: ~np.isin(_processes_of(keys), known))

    def skipped_runs(self) -> SkippedRuns:
        """What the kernel has left out of the programs that are run once for an event."""
        return self._skipped.read() if self._skipped else SkippedRuns()

    def remove_ended_threads(self, pids: Collection[int]) -> None:
        """Remove what is kept of threads of these processes that have ended."""

        def has_ended(key: int) -> bool:
            pid, tid = key >> 32, key & 0xFFFFFFFF
            return pid in pids and not Path(f"/proc/{pid}/task/{tid}").exists()

        for name in ("threads", "unproven_frees"):
            self._remove_keys(name, lambda keys: np.array([has_ended(key) for key in keys.tolist()], bool))

    def _remove_keys(self, name: str, chosen: Callable[[np.ndarray], NDArray[np.bool_]]) -> None:
        # Collected first, since it is the table that is walked.
        for fd, keys in [(fd, keys[chosen(keys)]) for fd, keys in self._batches_of_keys(name)]:
            bpf.map_delete_many(fd, keys)

    def _batches_of_keys(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        fd = self._fds[name]
        value_type = np.dtype(("V", bpf.map_info(fd).value_bytes))
        for keys, _values in bpf.map_batches(fd, PINNED_MAPS[name][0], value_type, _BATCH_ENTRIES):
            yield fd, keys

    def live_blocks(self, pid: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of (addresses, LIVE_BLOCK records) of a process; overwritten by the next batch."""
        return bpf.map_batches(self._live_fds[pid], np.dtype("u8"), abi.LIVE_BLOCK, 16_384)

    def live_capacity(self, pid: int) -> int:
        """How many live blocks of a process there is room for."""
        return bpf.map_info(self._live_fds[pid]).entries

    def live_descriptor(self, pid: int) -> int:
        """The map of a process' live blocks (address -> LIVE_BLOCK); it stays this object's."""
        return self._live_fds[pid]

    @property
    def threads_descriptor(self) -> int:
        """The map of what threads are doing (tgid, tid -> PENDING_CALL and more); it stays this object's."""
        return self._fds["threads"]

    def stack(self, pid: int, stack_id: int) -> RawStack:
        """The frames of a stack; none, with the end LOST, if they found no room."""
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
        """Changes of address spaces since the last call, in order. They take room until they are released."""
        return read_space_events(self._space_events)

    @property
    def space_position(self) -> int:
        """The position behind the last event that was read."""
        return self._space_events.position

    @property
    def space_unreleased_share(self) -> float:
        """How much of the ring (0 to 1) is taken by events that were read."""
        return self._space_events.unreleased_bytes / self._space_events.size_bytes

    def release_space_events(self) -> None:
        """Forget the events that were read: another daemon would not see them again."""
        self._space_events.release()

    def beat(self, now_ns: int, timeout_ns: int) -> None:
        """Tell the programs that a daemon reads; they record for `timeout_ns` without one (0: for ever)."""
        value = np.zeros(1, abi.HEARTBEAT)
        value["beat_ns"], value["timeout_ns"] = now_ns, timeout_ns
        bpf.map_update(self._fds["heartbeat"], bytes(4), value.tobytes())

    def last_beat_ns(self) -> int:
        """When a daemon last said that it reads; 0 if none ever did."""
        value = bpf.map_lookup(self._fds["heartbeat"], bytes(4), abi.HEARTBEAT.itemsize)
        return int(np.frombuffer(value or bytes(abi.HEARTBEAT.itemsize), abi.HEARTBEAT)["beat_ns"][0])

    def changed_sites(self) -> tuple[np.ndarray, np.ndarray]:
        """The sites that changed since the last call, and maybe others: arrays of SITE_KEY and of SITE."""
        return self._sites.read()


def _processes_of(keys: np.ndarray) -> np.ndarray:
    """The tgid of each key, which is a struct or (tgid, tid) in one number."""
    return keys["tgid"] if keys.dtype.names else keys >> 32
