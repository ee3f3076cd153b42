"""Entries of processes in the shared maps: counts over them, and removes them.

Finding the entries of one process takes a walk through a map. So entries of processes that are no longer
traced are removed a little at a time (`sweep`), for several processes at once.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.pinned_maps import PINNED_MAPS

# Keyed by process and more.
_SHARED_MAPS = ("sites", "stacks", "threads", "unproven_frees", "loaded_code", "code_ranges")

# A stack has a kilobyte.
_BATCH_ENTRIES = 1024


class SharedEntries:
    """`descriptors` are those of all maps, by name; the caller owns them."""

    def __init__(self, descriptors: Mapping[str, int]) -> None:
        self._fds = descriptors
        # Processes with entries to remove, and how far the removal is.
        self._removed: set[int] = set()
        self._sweeping: Iterator[None] | None = None

    def idle_unmatched_frees(self) -> Counter[int]:
        """Frees of unknown blocks by threads without any since, that were not about to end, by pid.

        Walks a table of all threads.
        """
        before_ns = time.monotonic_ns() - abi.THREAD_END_NS
        counts: Counter[int] = Counter()
        for keys, values in bpf.map_batches(self._fds["unproven_frees"], np.dtype("u8"), abi.UNPROVEN_FREES):
            idle = values["first_ns"] < before_ns
            if not idle.any():
                continue
            pids, places = np.unique(_processes_of(keys[idle]), return_inverse=True)
            sums = np.zeros(len(pids), np.uint64)
            np.add.at(sums, places, values["count"][idle])
            counts.update(dict(zip(pids.tolist(), sums.tolist(), strict=True)))
        return counts

    def remove_later(self, pid: int) -> None:
        """Let `sweep` remove the entries of a process."""
        self._removed.add(pid)

    def finish_removing(self, pid: int) -> None:
        """Wait until `sweep` has no entry of a process left to remove."""
        while pid in self._removed:
            self.sweep()

    def sweep(self, limit_s: float = math.inf) -> None:
        """Remove entries of removed processes, for at most `limit_s`."""
        until_s = time.monotonic() + limit_s
        if self._sweeping is None and self._removed:
            self._sweeping = self._sweep(frozenset(self._removed))
        for _batch in self._sweeping or ():
            if time.monotonic() >= until_s:
                return
        self._sweeping = None

    def remove_others(self, pids: Collection[int]) -> None:
        """Remove the entries of all processes but these: an earlier daemon's leftovers."""
        known = np.array(pids, np.uint64)
        for name in _SHARED_MAPS:
            self._remove_keys(name, lambda keys: ~np.isin(_processes_of(keys), known))

    def remove_ended_threads(self, pids: Collection[int]) -> Counter[int]:
        """Remove the entries of ended threads of these processes; returns how many of each."""

        def has_ended(key: int) -> bool:
            pid, tid = key >> 32, key & 0xFFFFFFFF
            return pid in pids and not Path(f"/proc/{pid}/task/{tid}").exists()

        def ended(keys: np.ndarray) -> NDArray[np.bool_]:
            return np.array([has_ended(key) for key in keys.tolist()], bool)

        self._remove_keys("unproven_frees", ended)
        return Counter(_processes_of(self._remove_keys("threads", ended)).tolist())

    def _sweep(self, pids: frozenset[int]) -> Iterator[None]:
        numbers = np.array(sorted(pids), np.uint64)
        for name in _SHARED_MAPS:
            for fd, keys in self._batches_of_keys(name):
                bpf.map_delete_many(fd, keys[np.isin(_processes_of(keys), numbers)])
                yield
        self._removed -= pids

    def _remove_keys(self, name: str, chosen: Callable[[np.ndarray], NDArray[np.bool_]]) -> np.ndarray:
        # Collected first, since this walks the table.
        found = [keys[chosen(keys)] for _fd, keys in self._batches_of_keys(name)]
        removed = np.concatenate(found or [np.zeros(0, PINNED_MAPS[name][0])])
        bpf.map_delete_many(self._fds[name], removed)
        return removed

    def _batches_of_keys(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        fd = self._fds[name]
        value_type = np.dtype(("V", bpf.map_info(fd).value_bytes))
        for keys, _values in bpf.map_batches(fd, PINNED_MAPS[name][0], value_type, _BATCH_ENTRIES):
            yield fd, keys


def _processes_of(keys: np.ndarray) -> np.ndarray:
    """The tgid of each key: a struct, or (tgid, tid) or the tgid alone in one number."""
    if keys.dtype.names:
        return keys["tgid"]
    return keys >> 32 if keys.itemsize > 4 else keys
