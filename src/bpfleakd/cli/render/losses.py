"""What was missed, in words."""

from __future__ import annotations

from collections.abc import Mapping

from bpfleakd.printable import printable

__all__ = ["loss_lines"]

# A reason that is not here is shown by its name.
_WORDS = {
    "live_full": "blocks not recorded: the table of live blocks is full (limits.live_blocks)",
    "site_full": "allocations counted together: the table of call sites is full (limits.sites)",
    "stack_full": "call sites without a stack: the table of stacks is full (limits.stacks)",
    "thread_full": "calls not recorded: the table of threads is full (limits.threads)",
    "return_missed": "calls not recorded: their return was not seen",
    "free_missed": "frees not seen: the address was given out again before",
    "result_unreadable": "blocks not recorded: their address could not be read",
    "stack_unreadable": "stacks cut short: their memory could not be read",
    "event_full": "changes of the address space not seen: too many between two ticks",
    "unattended": "recording had stopped: there was no daemon for too long (unattended_s)",
    "region_full": "mappings not recorded: the address space is in too many pieces",
    "unknown_addresses": "frames without a name: in no mapping",
    "unreadable_files": "files that could not be opened: their frames have no names",
    "perf_map_junk_lines": "lines of the perf map that name no method",
    "perf_map_skipped_bytes": "bytes of the perf map not read: too many at once",
    "perf_map_dropped_entries": "methods of the perf map forgotten: too many",
    "perf_map_refused": "perf map not believed: not a regular file of the process' user",
}


def loss_lines(losses: Mapping[str, int]) -> list[str]:
    """Return a line for each way in which something was missed; none if nothing was."""
    return [f"missed: {count:,} {_words(reason)}" for reason, count in losses.items() if count]


def _words(reason: str) -> str:
    return _WORDS.get(reason) or printable(reason).replace("_", " ")
