"""Removes call sites without live blocks from the kernel's tables, while the process runs.

Rules:
  - Sums stay exact: a site is removed only if no program can be about to add to it. `removed_before` is set
    first; programs that see it use the overflow site instead. After an RCU grace period all programs have
    seen it, and the sites that have not changed by then are removed.
  - A stack is removed with the last site that has it. If a program has meanwhile used it for a new site,
    `restore_stacks` restores it before its frames are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.process_slots import ProcessSlots
from bpfleakd.kernel.sites.reader import whole_blocks

StackIds = NDArray[np.uint64]

# A change is read with the next reading or the one after (sites/reader.py), so older ones have been read.
_READ_AFTER = 2


class _RemovedStacks(Struct, frozen=True):
    """Stacks of a process that were removed together, in its `reading`; `rows` are their places by id."""

    reading: int
    rows: dict[int, int]
    stacks: NDArray[np.void]


class SiteRemover:
    """`sites_fd` and `stacks_fd` are the maps of these names; the caller owns them.

    `grace_period` waits until all programs that run now in the process of a pid have ended.
    """

    def __init__(
        self, sites_fd: int, stacks_fd: int, slots: ProcessSlots, grace_period: Callable[[int], None]
    ) -> None:
        self._sites_fd = sites_fd
        self._stacks_fd = stacks_fd
        self._slots = slots
        self._grace_period = grace_period
        self._removed: dict[int, list[_RemovedStacks]] = {}

    def remove(self, pid: int, stack_ids: StackIds) -> NDArray[np.bool_]:
        """Remove those of a process' heap sites (each named once) that have no live block.

        Returns which were removed; that takes a second grace period. Raises KeyError for an unknown process.
        """
        keys = _site_keys(pid, abi.HEAP_KIND, stack_ids)
        found, before = bpf.map_lookup_many(self._sites_fd, keys, abi.SITE)
        dead: NDArray[np.bool_] = found & (before["live_count"] == 0)
        dead &= before["listed"].astype(np.int64) < self._reading(pid) - _READ_AFTER
        if not dead.any():
            return dead
        self._slots.set_word(pid, "removed_before", int(before["listed"][dead].max()) + 1)
        try:
            self._grace_period(pid)
            found, now = bpf.map_lookup_many(self._sites_fd, keys, abi.SITE)
            dead &= found & (now == before)
            self._count(pid, now[dead])
            bpf.map_delete_many(self._sites_fd, keys[dead])
            self._grace_period(pid)
        finally:
            self._slots.set_word(pid, "removed_before", 0)
        return dead

    def remove_stacks(self, pid: int, stack_ids: StackIds) -> None:
        """Remove stacks that no memory site has; they can be restored while changes may be unread."""
        sites = _site_keys(pid, abi.DESCRIPTOR_KIND, stack_ids)
        opens, _site = bpf.map_lookup_many(self._sites_fd, sites, abi.SITE)
        stack_ids = stack_ids[~opens]
        keys = np.zeros(len(stack_ids), abi.STACK_KEY)
        keys["tgid"], keys["stack_id"] = pid, stack_ids
        found, stacks = bpf.map_lookup_many(self._stacks_fd, keys, abi.STACK)
        self._slots.add_to(pid, "stacks_removed", int(found.sum()))
        bpf.map_delete_many(self._stacks_fd, keys[found])
        rows = {stack_id: row for row, stack_id in enumerate(stack_ids.tolist()) if found[row]}
        self._removed.setdefault(pid, []).append(_RemovedStacks(self._reading(pid), rows, stacks))

    def restore_stacks(self, pid: int, stack_ids: Iterable[int]) -> None:
        """Restore those of the stacks that were removed recently."""
        if pid not in self._removed:
            return
        oldest = self._reading(pid) - _READ_AFTER
        self._removed[pid] = lately = [one for one in self._removed[pid] if one.reading >= oldest]
        wanted = set(stack_ids)
        for removed in lately:
            for stack_id in removed.rows.keys() & wanted:
                self._restore(pid, stack_id, removed.stacks[removed.rows[stack_id]])
        if not lately:
            del self._removed[pid]

    def forget(self, pid: int) -> None:
        """Forget the removed stacks of a process."""
        self._removed.pop(pid, None)

    def _restore(self, pid: int, stack_id: int, stack: np.void) -> None:
        key = np.zeros(1, abi.STACK_KEY)
        key["tgid"], key["stack_id"] = pid, stack_id
        if bpf.map_lookup(self._stacks_fd, key.tobytes(), abi.STACK.itemsize) is None:
            bpf.map_update(self._stacks_fd, key.tobytes(), stack.tobytes())
            self._slots.add_to(pid, "stacks_removed", -1)

    def _count(self, pid: int, sites: NDArray[np.void]) -> None:
        """Count sites as removed, before that is done.

        If the daemon is killed in between, the tables seem to have too much room.
        """
        self._slots.add_to(pid, "sites_removed", len(sites))
        self._slots.add_to(pid, "removed_bytes", int(sites["allocated_bytes"].sum()))
        for field, counter in (
            ("removed_count", "allocated_count"),
            ("removed_temporary_count", "temporary_count"),
        ):
            self._slots.add_to(pid, field, int(whole_blocks(sites[counter]).sum()))

    def _reading(self, pid: int) -> int:
        return int(self._slots.row(pid)["reading"])


def _site_keys(pid: int, kind: int, stack_ids: StackIds) -> NDArray[np.void]:
    keys = np.zeros(len(stack_ids), abi.SITE_KEY)
    keys["tgid"], keys["kind"], keys["stack_id"] = pid, kind, stack_ids
    return keys
