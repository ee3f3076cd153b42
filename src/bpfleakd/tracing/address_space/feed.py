"""Applies the reports in the ring to the address maps, and stores these.

Rules:
  - A report occupies the ring until its change is stored: a daemon that is killed leaves it to the next one,
    which applies no report twice (each map records its position).
  - Changed maps are stored, but in at most a twentieth of the time, unless waiting reports fill a quarter of
    the ring.
  - A map with more than `_PIECES_MAX` intervals costs too much to store often, and one that waits for its
    repair is not worth it. Such a map is stored now and then, as stale: the next daemon has to repair it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import structlog

from bpfleakd.kernel.blob import Blob
from bpfleakd.kernel.maps import Maps
from bpfleakd.tracing.address_space.address_maps import AddressMapCheckpoint, AddressMaps
from bpfleakd.tracing.checkpoint import read_checkpoint, write_checkpoint

log = structlog.get_logger()

_BATCH_EVENTS = 1024
_SAVING_SHARE = 0.05
_RING_SHARE_MAX = 0.25
_PIECES_MAX = 50_000
_STALE_PAUSE_NS = 60_000_000_000


class AddressSpaceFeed:
    """Feeds `spaces` from `ring`. `clock_ns` is CLOCK_MONOTONIC."""

    def __init__(self, ring: Maps, spaces: AddressMaps, clock_ns: Callable[[], int]) -> None:
        self._ring = ring
        self._spaces = spaces
        self._clock_ns = clock_ns
        self._records: dict[int, Blob] = {}
        self._stale_due_ns: dict[int, int] = {}
        self._due_ns = 0
        # The used share of the ring (0 to 1) at the last reading, before anything was released.
        self.used_share = 0.0

    def keep(self, pid: int, record: Blob) -> None:
        """Store the map of a process in `record` from now on."""
        self._records[pid] = record

    def restore(self, pid: int, record: Blob) -> None:
        """Continue with the map in `record`. Raises ValueError or LookupError for inconsistent data."""
        self._spaces.restore(pid, read_checkpoint(record, AddressMapCheckpoint))
        self.keep(pid, record)

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced."""
        self._spaces.forget(pid)
        self._stale_due_ns.pop(pid, None)
        record = self._records.pop(pid, None)
        if record is not None:
            record.close()

    def read(self) -> set[int]:
        """Apply all reports; returns the processes that mapped new code from files."""
        mapped_code: set[int] = set()
        self.used_share = 0.0
        self._spaces.begin_reading()
        events = self._ring.space_events()
        while batch := list(islice(events, _BATCH_EVENTS)):
            mapped_code |= self._spaces.apply(batch)
            self.used_share = max(self.used_share, self._ring.space_unreleased_share)
            if self._ring.space_unreleased_share > _RING_SHARE_MAX:
                self.save()
        # Last: the programs note the break after each report, too.
        self._spaces.take_breaks()
        if self._clock_ns() >= self._due_ns:
            self.save()
        return mapped_code

    def save(self) -> None:
        """Store what changed, and release the reports."""
        began_ns = self._clock_ns()
        position = self._ring.space_position
        for pid in self._spaces.take_changed():
            if pid in self._records:
                self._save(pid, position, began_ns)
        self._ring.release_space_events()
        self._due_ns = began_ns + round((self._clock_ns() - began_ns) / _SAVING_SHARE)

    def _save(self, pid: int, position: int, now_ns: int) -> None:
        space = self._spaces.map_of(pid)
        stale = self._spaces.is_broken(pid) or (space is not None and len(space) > _PIECES_MAX)
        if not stale:
            self._stale_due_ns.pop(pid, None)
        elif now_ns < self._stale_due_ns.get(pid, 0):
            return
        else:
            self._stale_due_ns[pid] = now_ns + _STALE_PAUSE_NS
        try:
            write_checkpoint(self._records[pid], self._spaces.checkpoint(pid, position, stale=stale))
        except OSError as error:
            # An old record would seem valid; without one the next daemon starts over.
            self._records.pop(pid).remove()
            log.warning("space.not-kept", pid=pid, reason=error.strerror)
