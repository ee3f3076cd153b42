"""How full the kernel's tables are."""

from __future__ import annotations

import numpy as np

from bpfleakd.kernel import abi
from bpfleakd.monitor.table_fill import table_entries


def test_entries_are_counted_by_table():
    """Two stacks are shared by sites; the process with the most blocks counts."""
    keys = np.zeros(4, abi.SITE_KEY)
    keys["tgid"] = [23, 23, 101, 101]
    keys["stack_id"] = [1, 2, 1, 1]
    sites = np.zeros(4, abi.SITE)
    sites["live_count"] = [5, 7, 3, 1]
    entries = table_entries(keys, sites, processes=2, all_sites=6, threads=11)
    assert entries == {"processes": 2, "live_blocks": 12, "sites": 4, "stacks": 5, "threads": 11}


def test_nothing_is_traced():
    """Empty tables have no fullest one."""
    entries = table_entries(
        np.empty(0, abi.SITE_KEY), np.empty(0, abi.SITE), processes=0, all_sites=0, threads=0
    )
    assert set(entries.values()) == {0}
