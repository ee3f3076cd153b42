"""How full the kernel's tables are."""

from __future__ import annotations

import numpy as np

from bpfleakd.kernel import abi
from bpfleakd.monitor.table_fill import table_entries


def test_entries_are_counted_by_table():
    """Two stacks are shared by sites; the process with the most blocks counts, unless they are estimated."""
    keys = np.zeros(5, abi.SITE_KEY)
    keys["tgid"] = [23, 23, 101, 101, 103]
    keys["stack_id"] = [1, 2, 1, 1, 1]
    sites = np.zeros(5, abi.SITE)
    sites["live_count"] = [5, 7, 3, 1, 10_007]
    entries = table_entries(keys, sites, exact=[23, 101], processes=3, all_sites=7, threads=11)
    assert entries == {
        "processes": 3,
        "live_blocks": 12,
        "sites": 5,
        "stacks": 6,
        "process_sites": 2,
        "threads": 11,
    }


def test_nothing_is_traced():
    """Empty tables have no fullest one."""
    entries = table_entries(
        np.empty(0, abi.SITE_KEY), np.empty(0, abi.SITE), exact=[], processes=0, all_sites=0, threads=0
    )
    assert set(entries.values()) == {0}
