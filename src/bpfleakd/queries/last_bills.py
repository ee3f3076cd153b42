"""Bills of processes whose memory changes, in case the kernel kills one of them.

The memory of a process that is being killed cannot be read, so the last earlier bill is used. A bill is made
when the anonymous memory has changed by a tenth since the last one, within a small share of the time; so a
growing process gets a few, ever more rarely. One that has grown by half since it was first seen gets its
first bill at once, and one that has grown by half since its last bill gets another, if the memory that is
left may not last until the next regular one: as long as a reserve for that lasts. The reason for a missing
bill is stored as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import structlog
from msgspec import Struct

from bpfleakd import errors
from bpfleakd.model.address_space import BillLine
from bpfleakd.model.container import ContainerBill
from bpfleakd.model.process import ProcessId
from bpfleakd.threads import waited_for_core_ns
from bpfleakd.units import human_bytes

log = structlog.get_logger()

_CHANGE = 0.1
_GROWN = 1.5
# A process may grow twice as fast as since its last bill.
_FASTER = 2
# A smaller process is not killed for lack of memory.
_BYTES_MIN = 4 << 20
_KEPT_MAX = 256
_SEEN_MAX = 4096
# For processes that have grown by half: a second, restored at ten times the share.
_RESERVE_NS = 1_000_000_000
_RESERVE_SHARES = 10

_Kept = TypeVar("_Kept")


class Bill(Struct, frozen=True):
    """A bill, when it was made (CLOCK_MONOTONIC), and the anonymous memory at that time."""

    at_ns: int
    anonymous_bytes: int
    lines: tuple[BillLine, ...]
    container: ContainerBill | None


class LastBills:
    """The last bill of each process, of at most 256; making them takes `share` (0 to 1) of the time.

    `room_of` returns how many bytes are left for a process; `waited_ns` how long the thread has waited for a
    core: a bill that is only late is no reason for a longer pause.
    """

    def __init__(
        self,
        share: float,
        clock_ns: Callable[[], int],
        room_of: Callable[[ProcessId], int],
        waited_ns: Callable[[], int] = waited_for_core_ns,
    ) -> None:
        self._share = share
        self._clock_ns = clock_ns
        self._waited_ns = waited_ns
        self._room_of = room_of
        self._due_ns = 0
        self._reserve_ns = _RESERVE_NS
        self._reserve_at_ns = clock_ns()
        self._first_bytes: OrderedDict[ProcessId, int] = OrderedDict()
        self._bills: OrderedDict[ProcessId, Bill] = OrderedDict()
        self._missing: OrderedDict[ProcessId, str] = OrderedDict()

    def note(
        self,
        process: ProcessId,
        anonymous_bytes: int,
        make: Callable[[], tuple[tuple[BillLine, ...], ContainerBill | None]],
    ) -> None:
        """Record the current memory of a process; `make` makes its bill."""
        if process not in self._first_bytes:
            _keep(self._first_bytes, process, anonymous_bytes, _SEEN_MAX)
        known = self._bills.get(process)
        before_bytes = known.anonymous_bytes if known is not None else 0
        if anonymous_bytes < _BYTES_MIN or abs(anonymous_bytes - before_bytes) < _CHANGE * before_bytes:
            return
        began_ns = self._clock_ns()
        if began_ns < self._due_ns and not self._is_urgent(process, anonymous_bytes, known, began_ns):
            _keep(self._missing, process, "bills had used up the time that they may take", _KEPT_MAX)
            return
        before_ns = self._waited_ns()
        try:
            lines, container = make()
        except (errors.BpfleakdError, OSError) as error:
            self._failed(process, error)
        else:
            self._missing.pop(process, None)
            _keep(self._bills, process, Bill(began_ns, anonymous_bytes, lines, container), _KEPT_MAX)
        took_ns = self._clock_ns() - began_ns - (self._waited_ns() - before_ns)
        if began_ns < self._due_ns:
            self._reserve_ns -= took_ns
        self._due_ns = began_ns + round(took_ns / self._share)

    def get(self, process: ProcessId) -> Bill | None:
        """The last bill of a process, if any."""
        return self._bills.get(process)

    def missing(self, process: ProcessId) -> str | None:
        """Why a process has no bill, or none of its last change; None if nothing is missing."""
        if process in self._missing or process in self._bills:
            return self._missing.get(process)
        if process in self._first_bytes:
            return f"it had less than {human_bytes(_BYTES_MIN)} of anonymous memory when it was last read"
        return "its memory had not been read before"

    def take(self, process: ProcessId) -> Bill | None:
        """Remove the last bill of a process that is gone, and return it."""
        self._first_bytes.pop(process, None)
        self._missing.pop(process, None)
        return self._bills.pop(process, None)

    def _is_urgent(self, process: ProcessId, anonymous_bytes: int, known: Bill | None, now_ns: int) -> bool:
        """Whether a process gets a bill before it is due."""
        before_bytes = self._first_bytes[process] if known is None else known.anonymous_bytes
        if anonymous_bytes < _GROWN * before_bytes or not self._has_reserve(now_ns):
            return False
        if known is None:
            return True
        gained_bytes, passed_ns = anonymous_bytes - before_bytes, max(1, now_ns - known.at_ns)
        until_due_bytes = gained_bytes * (self._due_ns - now_ns) // passed_ns
        return _FASTER * until_due_bytes >= self._room_of(process)

    def _has_reserve(self, now_ns: int) -> bool:
        come_back_ns = round((now_ns - self._reserve_at_ns) * self._share * _RESERVE_SHARES)
        self._reserve_ns = min(_RESERVE_NS, self._reserve_ns + come_back_ns)
        self._reserve_at_ns = now_ns
        return self._reserve_ns > 0

    def _failed(self, process: ProcessId, error: Exception) -> None:
        reason = str(error)
        is_new = self._missing.get(process) != reason
        _keep(self._missing, process, reason, _KEPT_MAX)
        if is_new and not isinstance(error, errors.NoSuchProcess):
            log.info("process.bill-not-made", pid=process.pid, reason=reason)


def _keep(kept: OrderedDict[ProcessId, _Kept], process: ProcessId, value: _Kept, limit: int) -> None:
    """Add the newest entry; drop the oldest beyond the limit."""
    kept[process] = value
    kept.move_to_end(process)
    while len(kept) > limit:
        kept.popitem(last=False)
