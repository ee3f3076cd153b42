"""The map `processes`, mapped into memory: the programs' figures for each process, and its settings.

Rules:
  - A traced process has a slot, its index in all maps that are arrays; a free slot has tgid 0.
  - A slot is zeroed before it gets its tgid, and the map `slots` refers to it only after that.
  - The daemon changes only single words while programs run; they read them atomically.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Collection

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.kernel import abi, bpf
from bpfleakd.model.site import SiteCounters

# This many processes may fill the ring of changes together, however many are traced.
_STORMS = 16
# The fields of PROCESS that `counters` takes as they are.
_FIGURES = [
    "state",
    "sample_shift",
    "sampling",
    "unmatched_frees",
    "inside_interval_bytes",
    "space_at_sites",
    "site_hits",
    "library_changes",
    "recorded",
    "released",
    "site_count",
    "stack_count",
    "sites_removed",
    "stacks_removed",
    "removed_bytes",
    "removed_count",
    "removed_temporary_count",
    "peak_live_bytes",
    "code_changes",
    "false_frees",
]


class ProcessCounters(Struct, frozen=True):
    """The programs' figures for a process.

    `sample_shift` is the binary logarithm of the sampling interval in bytes, 0 if every block is recorded;
    `was_sampled` is whether it ever was nonzero. `recorded` blocks entered the live table, and `released`
    ones left it; `site_count` and `stack_count` are entries in those tables. `unmatched_frees` counts frees
    of unknown blocks, `idle_unmatched_frees` those by threads that have made none since; `library_changes`
    counts dlopen and dlclose, `losses` is by reason. `heap_peak_bytes` is the peak of live bytes in the heap
    since the last event of the address space. `inside_interval_bytes` is the interval of the sampler inside
    the process, 0 without one. While blocks are sampled outside of it, `unrecorded` blocks were allocated
    and not recorded, and `unrecorded_frees` freed blocks that are not in the live table. `probe_hits` are
    the runs of programs in this process; each costs it about 0.5 us. `sites_removed` sites without blocks
    were removed to make room, which had counted `removed` in all. `code_changes` grows with `loaded_code`.
    `space_at_sites`: changes of the address space are seen at instructions of the process; there were
    `site_hits`.
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
    unrecorded: int = 0
    unrecorded_frees: int = 0
    sites_removed: int = 0
    removed: SiteCounters = SiteCounters(0, 0, 0, 0)
    code_changes: int = 0
    space_at_sites: bool = False
    site_hits: int = 0

    @property
    def gained_blocks(self) -> int:
        """The gain of blocks since the attach, without the frees that are `unmatched`.

        Unknown if the sampler is inside the process.
        """
        return self.recorded - self.released + self.unrecorded - self.unrecorded_frees

    @property
    def sample_interval_bytes(self) -> int:
        """One block per this many bytes is recorded now, on average; 0: all are."""
        return self.inside_interval_bytes or (1 << self.sample_shift if self.sample_shift else 0)


class ProgramBreak(Struct, frozen=True):
    """The program break `now`, and the `lowest` that an allocator has moved it to since it was last taken."""

    now: int
    lowest: int


class NoSlot(Exception):
    """Every slot is in use."""


class ProcessSlots:
    """`processes_fd` and `slots_fd` are the maps of these names; the caller still owns them.

    `space_events` is the number of address space changes that fit between two readings.
    """

    def __init__(self, processes_fd: int, slots_fd: int, space_events: int = 16_384) -> None:
        self._space_events = space_events
        self._count = bpf.map_info(processes_fd).entries
        pages = -(-self._count * abi.PROCESS.itemsize // mmap.PAGESIZE)
        self._memory = mmap.mmap(processes_fd, pages * mmap.PAGESIZE)
        self._rows = np.frombuffer(self._memory, abi.PROCESS, self._count)
        # numpy copies a record field by field, and its bytes at once.
        self._bytes = self._rows.view(np.uint8).reshape(self._count, abi.PROCESS.itemsize)
        self._slots_fd = slots_fd
        self._slots = {int(self._rows["tgid"][slot]): int(slot) for slot in self._rows["tgid"].nonzero()[0]}

    def close(self) -> None:
        """Unmap the map."""
        self._rows, self._bytes = np.empty(0, abi.PROCESS), np.empty((0, 0), np.uint8)
        # A row in use keeps it mapped until then.
        with contextlib.suppress(BufferError):
            self._memory.close()

    def take(self, pid: int, unclean: Collection[int] = ()) -> int:
        """Give a process a zeroed slot that is not `unclean`; its recording is stopped.

        Raises NoSlot, or OSError.
        """
        taken = {*self._slots.values(), *unclean}
        slot = next((slot for slot in range(self._count) if slot not in taken), None)
        if slot is None:
            raise NoSlot
        self._rows[slot] = np.zeros((), abi.PROCESS)
        # Sites have not yet listed changes of any reading: 0.
        self._rows["reading"][slot] = 1
        # Larger than in an earlier recording, of which threads may remember code objects.
        self._rows["python"]["code_releases"][slot] = time.monotonic_ns()
        self._rows["space_quota"][slot] = self._space_quota
        self._slots[pid] = slot
        self._rows["tgid"][slot] = pid
        bpf.map_update(self._slots_fd, bpf.u32(pid), bpf.u32(slot))
        return slot

    def give_back(self, pid: int) -> int | None:
        """Take the slot of a process back and return it; None if it had none."""
        slot = self._slots.pop(pid, None)
        if slot is not None:
            bpf.map_delete(self._slots_fd, bpf.u32(pid))
            self._rows[slot] = np.zeros((), abi.PROCESS)
        return slot

    def free(self) -> list[int]:
        """The slots without a process."""
        taken = set(self._slots.values())
        return [slot for slot in range(self._count) if slot not in taken]

    def slot_of(self, pid: int) -> int:
        """The slot of a process. Raises KeyError if it has none."""
        return self._slots[pid]

    def pids(self) -> list[int]:
        """The processes that have a slot."""
        return list(self._slots)

    def row(self, pid: int) -> np.void:
        """The current figures of a process: a copy of its PROCESS, zero for one without a slot."""
        slot = self._slots.get(pid)
        copied = np.zeros(abi.PROCESS.itemsize, np.uint8) if slot is None else self._bytes[slot].copy()
        row: np.void = copied.view(abi.PROCESS)[0]
        return row

    def counters(self, pid: int, idle_unmatched_frees: int = 0) -> ProcessCounters:
        """The counters of a process; zero for an unknown one."""
        process = self.row(pid)
        # Fields one by one take 0.1 ms, and every process is read at every tick.
        known = dict(zip(_FIGURES, process[_FIGURES].item(), strict=True))
        calls = process["calls"]
        return ProcessCounters(
            state=abi.RecordingState(known["state"]),
            unmatched_frees=known["unmatched_frees"],
            idle_unmatched_frees=idle_unmatched_frees,
            library_changes=known["library_changes"],
            losses=dict(zip(abi.LOSS_REASONS, process["losses"].tolist(), strict=True)),
            heap_peak_bytes=known["peak_live_bytes"],
            probe_hits=int(calls["probe_hits"].sum()),
            sample_shift=known["sample_shift"],
            was_sampled=bool(known["sampling"]),
            recorded=known["recorded"],
            released=known["released"],
            site_count=known["site_count"] - known["sites_removed"],
            stack_count=known["stack_count"] - known["stacks_removed"],
            inside_interval_bytes=known["inside_interval_bytes"],
            space_at_sites=bool(known["space_at_sites"]),
            site_hits=known["site_hits"],
            sites_removed=known["sites_removed"],
            code_changes=known["code_changes"],
            removed=SiteCounters(
                0, 0, known["removed_bytes"], known["removed_count"], known["removed_temporary_count"]
            ),
            unrecorded=int(calls["unrecorded"].astype(np.int64).sum()),
            unrecorded_frees=int(calls["unknown_frees"].sum()) - known["false_frees"],
        )

    def begin_reading(self) -> None:
        """Count a reading of the sites: later changes are listed again."""
        self._rows["reading"][self._slots_in_use] += 1
        self._rows["space_quota"][self._slots_in_use] = self._space_quota

    def readings(self, pids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The number of the last reading of each process; 0 for those without a slot."""
        known, index = np.unique(pids, return_inverse=True)
        slots = [self._slots.get(pid) for pid in known.tolist()]
        numbers = [0 if slot is None else int(self._rows["reading"][slot]) for slot in slots]
        return np.array(numbers, np.uint32)[index] if len(pids) else np.zeros(0, np.uint32)

    def take_unlisted(self) -> bool:
        """Whether the list had no room for a change of a site since the last call."""
        unlisted = self._rows["change_unlisted"]
        found = unlisted[self._slots_in_use].any()
        unlisted[self._slots_in_use] = 0
        return bool(found)

    def site_count(self) -> int:
        """The number of sites of all processes."""
        rows = self._rows[self._slots_in_use]
        return int(rows["site_count"].sum() - rows["sites_removed"].sum()) + len(self._slots)

    @property
    def _space_quota(self) -> int:
        """The share of the ring that a process may fill between two readings; another one fits beside it."""
        return max(self._space_events // (len(self._slots) + 1), self._space_events // _STORMS)

    @property
    def _slots_in_use(self) -> list[int]:
        return list(self._slots.values())

    def set_python(self, pid: int, python: np.void) -> None:
        """Set the parameters of a process' Python for the stack walker (abi.PYTHON), if it has a slot."""
        slot = self._slots.get(pid)
        if slot is None:
            return
        row = self._rows["python"][slot : slot + 1]
        # The programs read the other fields only if there is a loop.
        row["loop_count"] = 0
        for name in abi.PYTHON.names or ():
            if name not in ("loop_count", "code_releases"):
                row[name] = python[name]
        row["loop_count"] = python["loop_count"]

    def set_word(self, pid: int, field: str, value: int) -> None:
        """Write a field of a process, if it has a slot."""
        slot = self._slots.get(pid)
        if slot is not None:
            self._rows[field][slot] = value

    def add_commit_call(self, pid: int, ip: int, caller: int) -> None:
        """Add a call to a process' `commit_calls`, unless it is there or they are full."""
        slot = self._slots.get(pid)
        if slot is None:
            return
        for call in self._rows["commit_calls"][slot]:
            if not call["ip"]:
                call["caller"] = caller
                call["ip"] = ip
                return
            if call["ip"] == ip and call["caller"] == caller:
                return

    def add_break_caller(self, pid: int, caller: int) -> None:
        """Add a return address to a process' `break_callers`, unless it is there or they are full."""
        slot = self._slots.get(pid)
        if slot is None:
            return
        callers = self._rows["break_callers"][slot]
        free = np.flatnonzero(callers == 0)
        if len(free) and caller not in callers:
            callers[free[0]] = caller

    def take_break(self, pid: int) -> ProgramBreak | None:
        """The program break of a process; None if it has not moved since the attach."""
        slot = self._slots.get(pid)
        if slot is None:
            return None
        lowest = int(self._rows["lowest_break"][slot])
        if lowest:
            self._rows["lowest_break"][slot] = 0
        # Read last: what moves it meanwhile is not missed.
        now = int(self._rows["program_break"][slot])
        return ProgramBreak(now, min(lowest or now, now)) if now else None

    def add_to(self, pid: int, field: str, number: int) -> None:
        """Add to a field that no program writes, if the process has a slot."""
        slot = self._slots.get(pid)
        if slot is not None:
            self._rows[field][slot] = int(self._rows[field][slot]) + number
