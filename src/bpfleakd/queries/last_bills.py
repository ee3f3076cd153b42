"""Bills of processes whose memory changes, kept for the case that the kernel kills one for it.

A process that is being killed has no memory that could be read: what is kept is from before. A bill is made
when the anonymous memory has changed by a tenth since the last one, and never for more than a small share of
the time; so a process that grows has a few, the later the fewer. One that has grown by half since its last
bill gets another in any case: it may be killed before the time for it has come.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from bpfleakd import errors
from bpfleakd.model.address_space import BillLine
from bpfleakd.model.container import ContainerBill
from bpfleakd.model.process import ProcessId

__all__ = ["Bill", "LastBills"]

_CHANGE = 0.1
_GROWN = 1.5
# A smaller process is not killed for lack of memory.
_BYTES_MIN = 4 << 20
_KEPT_MAX = 256


@dataclass(frozen=True, slots=True)
class Bill:
    """A bill, when it was made (CLOCK_MONOTONIC), and of how much anonymous memory."""

    at_ns: int
    anonymous_bytes: int
    lines: tuple[BillLine, ...]
    container: ContainerBill | None


class LastBills:
    """The last bill of each process, of at most 256; making them takes `share` (0 to 1) of the time."""

    def __init__(self, share: float, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._share = share
        self._clock_ns = clock_ns
        self._due_ns = 0
        self._bills: OrderedDict[ProcessId, Bill] = OrderedDict()

    def note(
        self,
        process: ProcessId,
        anonymous_bytes: int,
        make: Callable[[], tuple[tuple[BillLine, ...], ContainerBill | None]],
    ) -> None:
        """Take in how much memory a process has now; `make` makes its bill."""
        known = self._bills.get(process)
        before_bytes = known.anonymous_bytes if known is not None else 0
        if anonymous_bytes < _BYTES_MIN or abs(anonymous_bytes - before_bytes) < _CHANGE * before_bytes:
            return
        began_ns = self._clock_ns()
        has_grown = known is not None and anonymous_bytes >= _GROWN * before_bytes
        if began_ns < self._due_ns and not has_grown:
            return
        try:
            lines, container = make()
        except (errors.BpfleakdError, OSError):
            # It has just ended.
            return
        self._due_ns = began_ns + round((self._clock_ns() - began_ns) / self._share)
        self._bills[process] = Bill(began_ns, anonymous_bytes, lines, container)
        self._bills.move_to_end(process)
        while len(self._bills) > _KEPT_MAX:
            self._bills.popitem(last=False)

    def get(self, process: ProcessId) -> Bill | None:
        """The last bill of a process, if there is one."""
        return self._bills.get(process)

    def take(self, process: ProcessId) -> Bill | None:
        """The last bill of a process that is gone, which is forgotten with that."""
        return self._bills.pop(process, None)
