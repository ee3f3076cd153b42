"""Blocks that point to one another, as a graph of block numbers, without objects.

The search processes a wide front as arrays, and a narrow one (a linked list is one block wide) node by node:
the other way is a hundred times slower in both cases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

_WIDE = 512

Numbers = NDArray[np.uint32]
Marks = NDArray[np.bool_]


class Links(Struct, frozen=True, eq=False):
    """Pointers from block to block: link k is from `sources[k]` to `offsets[k]` bytes into `targets[k]`."""

    sources: Numbers
    targets: Numbers
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.sources)

    @classmethod
    def joined(cls, parts: Sequence[Links]) -> Links:
        """All links of several."""
        empty = [np.empty(0, np.uint32)]
        return cls(
            np.concatenate(empty + [part.sources for part in parts]),
            np.concatenate(empty + [part.targets for part in parts]),
            np.concatenate(empty + [part.offsets for part in parts]),
        )

    def where(self, marks: Marks) -> Links:
        """The links that are marked."""
        return Links(self.sources[marks], self.targets[marks], self.offsets[marks])

    def to_starts(self) -> Links:
        """The links to the start of a block."""
        return self.where(self.offsets == 0)

    def without_repeats(self) -> Links:
        """Each link once."""
        order = np.lexsort((self.offsets, self.targets, self.sources))
        links = Links(self.sources[order], self.targets[order], self.offsets[order])
        new = np.ones(len(links), bool)
        for column in (links.sources, links.targets, links.offsets):
            new[1:] &= column[1:] == column[:-1]
        new[1:] = ~new[1:]
        return links.where(new)


class Graph:
    """The links of `node_count` blocks, by their sources."""

    def __init__(self, links: Links, node_count: int) -> None:
        keys = links.sources.astype(np.uint64) << np.uint64(32) | links.targets
        keys.sort()
        self.targets = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        # Node k's targets are those from firsts[k] to firsts[k + 1].
        self.firsts = np.zeros(node_count + 1, np.int64)
        np.cumsum(np.bincount(links.sources, minlength=node_count), out=self.firsts[1:])

    def spread(self, front: NDArray[np.integer], marks: Marks) -> None:
        """Mark everything that can be reached from the nodes in `front`, which are already marked.

        Does not continue through nodes that were marked before.
        """
        while len(front):
            front = self._step(front, marks) if len(front) > _WIDE else self._walk(front, marks)

    def spread_from_each(self, nodes: Sequence[int], marks: Marks) -> list[int]:
        """The same for one node after the other; returns those that were unmarked at their turn."""
        firsts, targets, is_marked = self.firsts.data, self.targets.data, marks.data
        starts = []
        for start in nodes:
            if is_marked[start]:
                continue
            starts.append(start)
            is_marked[start] = True
            waiting = [start]
            while waiting:
                node = waiting.pop()
                for target in targets[firsts[node] : firsts[node + 1]]:
                    if not is_marked[target]:
                        is_marked[target] = True
                        waiting.append(target)
        return starts

    def _step(self, front: NDArray[np.integer], marks: Marks) -> NDArray[np.integer]:
        firsts = self.firsts[front]
        counts = self.firsts[front + 1] - firsts
        before = np.cumsum(counts) - counts
        total = int(counts.sum())
        places = np.arange(total) + np.repeat(firsts - before, counts)
        targets = self.targets[places]
        fresh = np.unique(targets[~marks[targets]])
        marks[fresh] = True
        return fresh.astype(np.int64)

    def _walk(self, front: NDArray[np.integer], marks: Marks) -> NDArray[np.integer]:
        """Search node by node, until the front gets wide."""
        # A memoryview returns plain numbers, without creating a numpy object for each.
        firsts, targets, is_marked = self.firsts.data, self.targets.data, marks.data
        waiting = front.tolist()
        while waiting and len(waiting) <= 2 * _WIDE:
            node = waiting.pop()
            for target in targets[firsts[node] : firsts[node + 1]]:
                if not is_marked[target]:
                    is_marked[target] = True
                    waiting.append(target)
        return np.array(waiting, np.int64)


def reachable_by(links: Links, seeds: Marks) -> Marks:
    """The marked blocks, and all blocks that can be reached from them."""
    marks = seeds.copy()
    Graph(links, len(marks)).spread(np.flatnonzero(seeds), marks)
    return marks
