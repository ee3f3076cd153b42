"""How full the kernel's tables are."""

from __future__ import annotations

from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.queries.overview import table_entries


def test_entries_are_counted_by_table():
    """For limits per process, the fullest one counts; the others are sums."""
    one, other = (
        ProcessCounters(RecordingState.RECORDING, 0, 0, {}, **counts)
        for counts in (
            {"recorded": 101, "released": 89, "site_count": 2, "stack_count": 3},
            {"recorded": 1_000, "released": 999, "site_count": 5, "stack_count": 7},
        )
    )
    assert table_entries([one, other], threads=11) == {
        "processes": 2,
        "live_blocks": 12,
        "sites": 2 + 5 + 2,
        "stacks": 10,
        "process_sites": 5,
        "threads": 11,
    }


def test_nothing_is_traced():
    """Empty tables have no fullest one."""
    assert set(table_entries([], threads=0).values()) == {0}
