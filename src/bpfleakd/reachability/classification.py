"""Finds lost blocks: outstanding blocks that the program can no longer reach.

The kinds, by memcheck's definition (mc_leakcheck.c; its manual, section 4.2.8):

  - still reachable: a chain of pointers to the starts of blocks leads there from a root.
  - possibly lost: there is a chain, but one of its pointers is into the interior of a block, and may be none.
    LeakSanitizer counts it as reachable, and so does `is_reachable`. memcheck does if it looks like C++
    (--leak-check-heuristics: a second base class, an array behind its length, a string), which is not guessed
    here: the kind marks these blocks.
  - directly lost ("definitely lost"): no chain, and no other lost block leads there.
  - indirectly lost: there are only chains from lost blocks. It would be freed with them by a correct owner.

Of lost blocks that point to one another in a circle, and to which no other lost block leads, the one with the
lowest address is directly lost and the others indirectly, as in memcheck: so each group of lost blocks counts
as at least one loss. (LeakSanitizer calls the whole circle indirectly lost.)

The search is conservative: a number that happens to be the address of a block keeps it, and so does an old
pointer in memory that is no longer used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.scan import Reachability, ReachabilitySums
from bpfleakd.reachability.block_graph import Graph, Links, Marks, reachable_by
from bpfleakd.reachability.pointers import Pointers

# The meaning of the numbers in the result of `classify`.
KINDS = (
    Reachability.STILL_REACHABLE,
    Reachability.POSSIBLY_LOST,
    Reachability.INDIRECTLY_LOST,
    Reachability.DIRECTLY_LOST,
)
_REACHABLE, _POSSIBLE, _INDIRECT, _DIRECT = range(len(KINDS))


def classify(pointers: Pointers, more_roots: Marks) -> NDArray[np.uint8]:
    """The kind of each block, a number in KINDS.

    Blocks in `more_roots` count as reachable, and so does everything that they point to.
    """
    links = pointers.links
    kinds = np.full(len(more_roots), _DIRECT, np.uint8)
    reachable = reachable_by(links.to_starts(), pointers.root_starts | pointers.reachable | more_roots)

    held = reachable_by(links, pointers.root_interiors | reachable)
    kinds[held] = _POSSIBLE
    kinds[reachable] = _REACHABLE

    among_lost = links.where(~held[links.sources] & ~held[links.targets])
    kinds[_led_to(among_lost, ~held)] = _INDIRECT
    return kinds


def is_reachable(sums: ReachabilitySums) -> bool | None:
    """Whether a call site's blocks are reachable.

    True if none is lost, false if at least half of the bytes are. None without blocks, or if fewer are lost:
    then the site has both kinds.
    """
    lost_bytes = sums.directly_lost_bytes + sums.indirectly_lost_bytes
    lost_count = sums.directly_lost_count + sums.indirectly_lost_count
    held_bytes = sums.possibly_lost_bytes + sums.still_reachable_bytes
    held_count = sums.possibly_lost_count + sums.still_reachable_count
    if not lost_count:
        return True if held_count else None
    return False if lost_bytes >= held_bytes else None


def _led_to(links: Links, lost: Marks) -> Marks:
    """The indirectly lost ones of the lost blocks; `links` are between lost blocks."""
    graph = Graph(links, len(lost))
    is_target = np.zeros(len(lost), bool)
    is_target[links.targets] = True
    # Nothing leads to these, so they are directly lost, and everything they lead to is not.
    owners = np.flatnonzero(lost & ~is_target)
    seen = np.zeros(len(lost), bool)
    seen[owners] = True
    graph.spread(owners, seen)

    # Circles are left, and blocks that only circles lead to. In order of address, the first block of a circle
    # that nothing leads to counts as an owner; so may others, to which a later one leads.
    maybe_owners = graph.spread_from_each(np.flatnonzero(lost & ~seen).tolist(), seen)
    led_to = np.zeros(len(lost), bool)
    circle_owners = graph.spread_from_each(maybe_owners[::-1], led_to)

    indirect = lost.copy()
    indirect[owners] = False
    indirect[circle_owners] = False
    return indirect
