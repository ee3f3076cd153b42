"""How full the kernel's tables are. A hash map does not report its size, but the programs count."""

from __future__ import annotations

from collections.abc import Collection

from bpfleakd.kernel.process_slots import ProcessCounters


def table_entries(processes: Collection[ProcessCounters], *, threads: int) -> dict[str, int]:
    """Entries by table, under the names of the section `limits`.

    `live_blocks` and `process_sites` are those of the process with the most, as their limits are. The number
    of threads of traced processes is an upper bound: a thread has an entry from its first allocation on.
    """
    return {
        "processes": len(processes),
        "live_blocks": max((one.recorded - one.released for one in processes), default=0),
        # Each has an overflow site.
        "sites": sum(one.site_count + 1 for one in processes),
        "stacks": sum(one.stack_count for one in processes),
        "process_sites": max((one.site_count for one in processes), default=0),
        "threads": threads,
    }
