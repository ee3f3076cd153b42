"""Reads the counters of call sites, if possible only of those that the programs list as changed.

Rules:
  - A change is read with the next reading, or, if a program is interrupted between the change and its report,
    with the one after that: bpf/record.h, note_change.
  - A new reader first reads all sites.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.process_slots import ProcessSlots
from bpfleakd.kernel.ring import RingReader

# Looking a site up costs as much as reading this many in a row.
_LOOKUP_COST = 5


class SiteReader:
    """`sites_fd` is of the map `sites` and stays the caller's, `changed` reads the ring `changed_sites`."""

    def __init__(self, sites_fd: int, changed: RingReader, slots: ProcessSlots) -> None:
        self._sites_fd = sites_fd
        self._ring = changed
        self._slots = slots
        self._is_listed = False
        # Listed after the last reading began, and perhaps changed again after it.
        self._again = np.empty(0, abi.SITE_KEY)

    def close(self) -> None:
        """Unmap the ring."""
        self._ring.close()

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The sites that changed since the last call, and perhaps others.

        Arrays of SITE_KEY and of SITE, row by row; counts are blocks, not COUNT_UNITths.
        """
        self._slots.begin_reading()
        changed = self._ring.rows(abi.CHANGED_SITE)
        self._ring.release()
        keys = changed[list(abi.SITE_KEY.fields or ())].astype(abi.SITE_KEY)
        wanted = _unique(np.concatenate([self._again, keys]))
        self._again = keys[changed["reading"] == self._slots.readings(keys["tgid"])]
        # Changes that found no room after this reading began may change again, like `_again`.
        was_listed, self._is_listed = self._is_listed, not self._slots.take_unlisted()
        if was_listed and self._is_listed and len(wanted) * _LOOKUP_COST < self._slots.site_count():
            found, sites = bpf.map_lookup_many(self._sites_fd, wanted, abi.SITE)
            keys, sites = wanted[found], sites[found]
        else:
            keys, sites = self._read_all()
        for count in ("live_count", "allocated_count", "temporary_count"):
            sites[count] = whole_blocks(sites[count])
        return keys, sites

    def _read_all(self) -> tuple[np.ndarray, np.ndarray]:
        batches = [
            (keys.copy(), values.copy())
            for keys, values in bpf.map_batches(self._sites_fd, abi.SITE_KEY, abi.SITE)
        ]
        if not batches:
            return np.empty(0, abi.SITE_KEY), np.empty(0, abi.SITE)
        return np.concatenate([k for k, _ in batches]), np.concatenate([v for _, v in batches])


def whole_blocks(counts: NDArray[Any]) -> NDArray[Any]:
    """Counts in units of 1/COUNT_UNIT as numbers of blocks, rounded."""
    return (counts + abi.COUNT_UNIT // 2) // abi.COUNT_UNIT


def _unique(keys: np.ndarray) -> np.ndarray:
    """Each key once. numpy's own function takes thirty times as long with structures."""
    if not len(keys):
        return keys
    words = keys.view(np.uint64).reshape(-1, 2)
    words = words[np.lexsort((words[:, 0], words[:, 1]))]
    is_first = np.concatenate([[True], (words[1:] != words[:-1]).any(axis=1)])
    return np.ascontiguousarray(words[is_first]).view(abi.SITE_KEY).reshape(-1)
