"""The guard: limits the cost of tracing for the traced processes, and the daemon's own memory.

At each tick it updates the accounts (budget.py); processes that cost too much are recorded more sparsely, or
detached. Manually attached processes are exempt from that, but not from the limit on memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto

import structlog
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.model.code.probe import ProbeCost
from bpfleakd.model.daemon import GuardStats
from bpfleakd.model.process import ProcessRow
from bpfleakd.supervision.budget import CONSERVATIVE_COST, Budget, BudgetLimits, Change
from bpfleakd.supervision.tracing_control import Guarded, TracingControl

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000

# Freed memory returns to the kernel within a few ticks.
_SETTLE_S = 5.0
# Caches dropped more recently than this cannot be the cause.
_CACHES_S = 60.0


class OverheadGuard:
    """Guards all traced processes. The last of `levels` ways to trace one is not to trace it.

    `resident_bytes` returns the daemon's memory. `measure_price` is called once, at the first traced process,
    and raises OSError or BpfleakdError if it fails.
    """

    def __init__(
        self,
        control: TracingControl,
        limits: BudgetLimits,
        cap: MemoryCap,
        *,
        levels: int,
        resident_bytes: Callable[[], int],
        measure_price: Callable[[], ProbeCost],
    ) -> None:
        self._control = control
        self._budget: Budget[int] = Budget(limits, CONSERVATIVE_COST, levels)
        self._cap = cap
        self._levels = levels
        self._resident_bytes = resident_bytes
        self._measure_price = measure_price
        self._is_priced = False
        self._reasons: dict[int, str] = {}
        self._cheaper_total = 0
        self._evicted_total = 0
        self._caches_dropped_total = 0

    def tick(self, now_ns: int) -> None:
        """Update the accounts, and act on them."""
        guarded = self._control.guarded()
        if guarded and not self._is_priced:
            self._price()
        now_s = now_ns / _NS_PER_S
        for change in self._budget.round(now_s, [(process.pid, process.usage) for process in guarded]):
            self._change(change, now_ns)
        self._keep_cap(now_ns, guarded)

    def annotated(self, rows: Iterable[ProcessRow]) -> tuple[ProcessRow, ...]:
        """Rows of `ps`, with the cost of tracing, and why a process is not traced as the policy requires."""
        rows = tuple(rows)
        pids = {row.process.pid for row in rows}
        self._reasons = {pid: reason for pid, reason in self._reasons.items() if pid in pids}
        return tuple(
            replace(
                row,
                load_percent=round(self._budget.load_percent(row.process.pid), 2),
                limited=self._reasons.get(row.process.pid, row.limited),
            )
            for row in rows
        )

    def stats(self) -> GuardStats:
        """The costs, and the measures against them."""
        return GuardStats(
            hit_ns=self._budget.cost.hit_ns,
            record_ns=self._budget.cost.record_ns,
            host_load_percent=self._budget.host_percent,
            cheaper_total=self._cheaper_total,
            evicted_total=self._evicted_total,
            caches_dropped_total=self._caches_dropped_total,
        )

    def _price(self) -> None:
        self._is_priced = True
        try:
            self._budget.cost = self._measure_price()
        except (OSError, errors.BpfleakdError) as error:
            log.warning("guard.not-priced", reason=str(error), hit_ns=round(self._budget.cost.hit_ns))
            return
        cost = self._budget.cost
        log.info("guard.priced", hit_ns=round(cost.hit_ns), record_ns=round(cost.record_ns))

    def _change(self, change: Change[int], now_ns: int) -> None:
        pid, level = change.key, change.level
        if level == self._levels - 1:
            self._evict(pid, change.reason, now_ns)
            return
        self._cheaper_total += change.is_cheaper
        log.info("process.level", pid=pid, level=level, reason=change.reason)
        self._control.set_level(pid, level, change.reason if level else "")

    def _keep_cap(self, now_ns: int, guarded: Sequence[Guarded]) -> None:
        resident_bytes = self._resident_bytes()
        step = self._cap.step(now_ns / _NS_PER_S, resident_bytes)
        if step is MemoryStep.DROP_CACHES:
            self._caches_dropped_total += 1
            log.warning(
                "memory.caches-shed", resident_bytes=resident_bytes, limit_bytes=self._cap.limit_bytes
            )
            self._control.drop_caches()
        elif step is MemoryStep.RELEASE_LARGEST and guarded:
            largest = max(guarded, key=lambda process: process.sites)
            mib = 1 << 20
            limit = f"its {self._cap.limit_bytes / mib:.0f} MiB limit"
            words = f"daemon memory {resident_bytes / mib:.0f} MiB exceeds {limit}"
            self._evict(largest.pid, f"{words}, and this process has the most call sites", now_ns)

    def _evict(self, pid: int, reason: str, now_ns: int) -> None:
        self._evicted_total += 1
        self._reasons[pid] = reason
        log.warning("process.given-up", pid=pid, reason=reason)
        self._control.evict(pid, reason, now_ns)


class MemoryStep(Enum):
    """The next measure."""

    NOTHING = auto()
    DROP_CACHES = auto()
    RELEASE_LARGEST = auto()


class MemoryCap:
    """Enforces a limit of `limit_bytes` on the daemon's resident memory; times are of any monotonic clock.

    Beyond it, the daemon first drops its caches, which costs time but no figures. If that is not enough, it
    detaches the largest process, and after a while the next.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._settled_s = float("-inf")
        self._shed_s = float("-inf")

    def step(self, now_s: float, resident_bytes: int) -> MemoryStep:
        """The measure for this size; call it again and again."""
        if resident_bytes <= self.limit_bytes or now_s < self._settled_s:
            return MemoryStep.NOTHING
        self._settled_s = now_s + _SETTLE_S
        if now_s - self._shed_s >= _CACHES_S:
            self._shed_s = now_s
            return MemoryStep.DROP_CACHES
        return MemoryStep.RELEASE_LARGEST
