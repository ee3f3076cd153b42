"""Empties slots without a process in the maps of maps, in threads.

The kernel ends each change of a map of maps with an RCU grace period (maybe_wait_bpf_programs), 10 to 30 ms
for which the caller would wait: with many short processes, that took a third of the daemon's time. Threads
that wait at the same time share a grace period.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from bpfleakd.kernel import bpf
from bpfleakd.threads import usual_priority

_THREADS = 4


class SlotCleaner:
    """`fds` are maps of maps by slot; the caller owns them, and closes them after this object."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = tuple(fds)
        self._threads = ThreadPoolExecutor(_THREADS, "slots")
        self._cleaning: dict[int, Future[None]] = {}

    def clean(self, slot: int) -> None:
        """Empty a slot soon. No program may refer to it, and nobody may take it meanwhile."""
        with usual_priority():
            self._cleaning[slot] = self._threads.submit(self._empty, slot)

    @property
    def unclean(self) -> Collection[int]:
        """The slots that are not yet empty. Raises OSError if one could not be emptied."""
        for slot in [slot for slot, cleaning in self._cleaning.items() if cleaning.done()]:
            self._cleaning.pop(slot).result()
        return self._cleaning.keys()

    def wait(self) -> bool:
        """Wait until one more slot is empty; returns False if all are."""
        return bool(wait(self._cleaning.values(), return_when=FIRST_COMPLETED).done)

    def close(self) -> None:
        """Wait until all slots are empty."""
        self._threads.shutdown()

    def _empty(self, slot: int) -> None:
        for fd in self._fds:
            bpf.map_delete(fd, bpf.u32(slot))
