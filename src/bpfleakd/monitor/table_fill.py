"""How full the kernel's tables are, from what every tick reads anyway: a hash map does not tell its size."""

from __future__ import annotations

import numpy as np

__all__ = ["table_entries"]


def table_entries(
    keys: np.ndarray, sites: np.ndarray, *, exact: list[int], processes: int, all_sites: int, threads: int
) -> dict[str, int]:
    """Entries by table, under the names of the section `limits`, from arrays of SITE_KEY and of SITE.

    `all_sites` are those of the address space too, which have stacks, but no place in the table of sites.
    `live_blocks` and `process_sites` are of the process with the most, as their limits are: the first of
    those whose pids are `exact`, since what is live elsewhere is an estimate. `threads` of the traced
    processes are at least what is taken: a thread has an entry from its first allocation on.
    """
    tgids, index, counts = np.unique(keys["tgid"], return_inverse=True, return_counts=True)
    live = np.bincount(index, weights=sites["live_count"], minlength=len(tgids))
    return {
        "processes": processes,
        "live_blocks": int(live[np.isin(tgids, exact)].max(initial=0)),
        "sites": len(keys),
        "stacks": len(np.unique(keys[["tgid", "stack_id"]])) + max(0, all_sites - len(keys)),
        "process_sites": int(counts.max(initial=0)),
        "threads": threads,
    }
