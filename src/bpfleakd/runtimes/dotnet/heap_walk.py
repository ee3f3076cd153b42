"""Sums up the objects of a .NET heap by type, from the events of a walk over it.

No I/O; a helper runs this (stream_jobs.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bpfleakd.runtimes.dotnet import events
from bpfleakd.runtimes.dotnet.nettrace import NettraceReader

_IS_ARRAY = 0x8
_NAMES_MAX = 200_000


class HeapWalk:
    """One walk. `names` are the types that are known by id: the runtime sends the name of each once.

    `new_names` are those received in this walk; `is_done` when the walk is over.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.is_done = False
        self.new_names: dict[int, str] = {}
        self._names = dict(names)
        self._reader = NettraceReader()
        self._sums: dict[int, tuple[int, int]] = {}

    def feed(self, data: bytes) -> None:
        """Process more of the stream. Raises BadNettrace or struct.error."""
        for event in self._reader.feed(data):
            if event.number == events.BULK_NODE:
                self._add(events.heap_nodes(event))
            elif event.number == events.BULK_TYPE:
                for type_id, name, flags, parameters in events.type_names(event):
                    element = self._names.get(parameters[0], "") if flags & _IS_ARRAY and parameters else ""
                    self._learn(type_id, name or f"{element}[]")
            elif event.number == events.GC_END and self._sums:
                self.is_done = True

    def sums(self) -> list[tuple[str, int, int]]:
        """Name, bytes and count of each type, most bytes first."""
        sums: dict[str, tuple[int, int]] = {}
        for type_id, (size_bytes, count) in self._sums.items():
            name = self._names.get(type_id, "") or f"type {type_id:#x}"
            before = sums.get(name, (0, 0))
            sums[name] = before[0] + size_bytes, before[1] + count
        found = [(name, *figures) for name, figures in sums.items()]
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def _learn(self, type_id: int, name: str) -> None:
        if len(self._names) < _NAMES_MAX:
            self._names[type_id] = self.new_names[type_id] = name

    def _add(self, nodes: np.ndarray) -> None:
        types, place = np.unique(nodes["type"], return_inverse=True)
        sizes = np.bincount(place, nodes["size_bytes"], len(types)).astype(np.int64)
        counts = np.bincount(place, minlength=len(types))
        for type_id, size_bytes, count in zip(types.tolist(), sizes.tolist(), counts.tolist(), strict=True):
            before = self._sums.get(type_id, (0, 0))
            self._sums[type_id] = before[0] + size_bytes, before[1] + count
