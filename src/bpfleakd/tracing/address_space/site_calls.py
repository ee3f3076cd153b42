"""Whether to see the system calls of a process where it makes them, or in the kernel.

The places in its C library (kernel/probes/syscall_sites.py) cost no other process anything, but a trap for
each call, and show nothing of calls that other code makes. So a process that changes its address space very
often, or whose address map keeps differing from /proc/PID/maps, is watched in the kernel.
"""

from __future__ import annotations

from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.tracing.address_space.address_maps import AddressMaps

# A trap costs some 0.7 us. A tracepoint costs 0.07 us at every system call of the machine.
_CALLS_PER_S_MAX = 5_000


class SiteCalls:
    """The calls of each process, by pid."""

    def __init__(self, address_maps: AddressMaps) -> None:
        self._address_maps = address_maps
        self._last: dict[int, tuple[int, int]] = {}

    def objection(self, pid: int, counters: ProcessCounters, now_ns: int) -> str:
        """Why the places are no longer right for a process; "" if they are. Called at each reading."""
        hits_before, before_ns = self._last.get(pid, (counters.site_hits, now_ns))
        self._last[pid] = counters.site_hits, now_ns
        per_s = (counters.site_hits - hits_before) * 1e9 / max(now_ns - before_ns, 1)
        if per_s > _CALLS_PER_S_MAX:
            return f"it changes its address space {per_s:,.0f} times a second"
        return "it makes system calls at unknown places" if self._address_maps.lacks_calls(pid) else ""

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced."""
        self._last.pop(pid, None)
