"""What the reasons for losses mean, in words, for the command line and the page."""

from __future__ import annotations

# A reason that is not here is shown by its name.
LOSS_WORDS = {
    "live_full": "blocks not recorded: the table of live blocks is full (limits.live_blocks)",
    "site_full": "allocations counted together: the table of call sites is full (limits.sites)",
    "stack_full": "call sites without a stack: the table of stacks is full (limits.stacks)",
    "thread_full": "calls not recorded: the table of threads is full (limits.threads)",
    "return_missed": "calls not recorded: the probe at their return did not run",
    "free_missed": "frees missed: the address was reused first",
    "result_unreadable": "blocks not recorded: their address could not be read",
    "stack_unreadable": "stacks cut short: their memory could not be read",
    "event_full": "changes of the address space not recorded: too many between two ticks",
    "descriptor_full": "file descriptors not recorded: the table of descriptors is full",
    "unattended": "recording stopped: no daemon for too long (unattended_s)",
    "begun_anew": "times tracing started over: earlier records are gone",
    "region_full": "mappings not recorded: the address space is in too many pieces",
    "unknown_addresses": "frames without a name: outside all known mappings",
    "unreadable_files": "files that could not be opened: their frames have no names",
    "profile_damaged": "inconsistent buckets of the heap profile",
    "profile_full": "buckets of the heap profile left out: too many",
    "goroutines_missed": "goroutines not counted: too many, or inconsistent",
    "perf_map_junk_lines": "unreadable lines in the perf map",
    "perf_map_skipped_bytes": "bytes of the perf map not read: too many at once",
    "perf_map_dropped_entries": "methods of the perf map dropped: too many",
    "perf_map_refused": "perf map not opened, or not a regular file of the process' user on a local disk",
}
