"""The budget of tracing: its cost in each process, and which processes are traced less because of it.

The load of a process is the number of its probe hits and recorded blocks since the last round, times the cost
of each. The traced program pays it, in its own processor time.

Rules:
  - A process that is over its budget in several successive rounds goes one level cheaper; far over it, at
    once. At the last level it is not traced at all.
  - If all processes of the policy together are over the host's budget, the most expensive one goes cheaper.
    Manually attached processes do not count: they neither become cheaper nor make others cheaper.
  - A process goes back a level if it would then, by its current cost, stay below half the budget, and has
    done so for a while; after each relapse that takes twice as long. A process that is not traced never goes
    back.

Times come from any monotonic clock. Loads are in percent of a core.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from bpfleakd.model.code.probe import ProbeCost

K = TypeVar("K", bound=Hashable)

_NS_PER_S = 1_000_000_000
_ROUNDS_OVER = 3
_FAR_OVER = 4.0
# Exact recording costs about this much more than sampling: bench/results, a malloc+free pair.
_STEP_BACK_FACTOR = 3.0
_SPARE = 0.5
_CALM_S = 300.0
_CALM_MAX_S = 7_200.0


# For a machine that could not be measured: twice the cost on a slow one.
CONSERVATIVE_COST = ProbeCost(hit_ns=1_200.0, record_ns=2_000.0)


class BudgetLimits(Struct, frozen=True):
    """The maximum cost of tracing, in percent of a core: in one process, and in all together."""

    process_percent: float = 10.0
    host_percent: float = 25.0


class Usage(Struct, frozen=True):
    """Running totals of one process since the attach. `is_exempt` from the limits: a user attached it.

    `level` is its level when it is first seen.
    """

    probe_hits: int
    recorded: int
    is_exempt: bool = False
    level: int = 0


class Change(Struct, Generic[K], frozen=True):
    """A process whose tracing level changes; `reason` says why, with figures."""

    key: K
    level: int
    is_cheaper: bool
    reason: str


class _Account(Struct):
    usage: Usage
    at_s: float
    load_percent: float = 0.0
    level: int = 0
    rounds_over: int = 0
    calm_since_s: float | None = None
    drops: int = 0


class Budget(Generic[K]):
    """The accounts of traced processes.

    Level 0 is as the policy requires, the last of `levels` not at all.
    """

    def __init__(self, limits: BudgetLimits, cost: ProbeCost, levels: int) -> None:
        self.cost = cost
        self._limits = limits
        self._levels = levels
        self._accounts: dict[K, _Account] = {}
        self._host_rounds_over = 0

    @property
    def host_percent(self) -> float:
        """The load of all processes together."""
        return sum(account.load_percent for account in self._accounts.values())

    @property
    def policy_percent(self) -> float:
        """The load of the processes that the policy traces, to which the host's budget applies."""
        return sum(one.load_percent for one in self._accounts.values() if not one.usage.is_exempt)

    def load_percent(self, key: K) -> float:
        """The load of a process in the last round; 0 before the second, and if it is unknown."""
        account = self._accounts.get(key)
        return account.load_percent if account else 0.0

    def level(self, key: K) -> int:
        """The level of a process; 0 if it is unknown."""
        account = self._accounts.get(key)
        return account.level if account else 0

    def round(self, now_s: float, usages: Iterable[tuple[K, Usage]]) -> list[Change[K]]:
        """Update the totals of all traced processes; returns those that change. Absent ones are forgotten."""
        present = dict(usages)
        for key in self._accounts.keys() - present.keys():
            del self._accounts[key]
        for key, usage in present.items():
            self._charge(key, usage, now_s)
        changes = [change for key in present if (change := self._change_for(key, now_s))]
        if not changes and (dearest := self._over_host()):
            changes.append(dearest)
        return changes

    def _charge(self, key: K, usage: Usage, now_s: float) -> None:
        account = self._accounts.get(key)
        if account is None or usage.probe_hits < account.usage.probe_hits:
            self._accounts[key] = _Account(usage, now_s, level=usage.level, drops=usage.level)
            return
        passed_ns = (now_s - account.at_s) * _NS_PER_S
        if passed_ns > 0:
            hits = usage.probe_hits - account.usage.probe_hits
            recorded = max(0, usage.recorded - account.usage.recorded)
            cost_ns = hits * self.cost.hit_ns + recorded * self.cost.record_ns
            account.load_percent = 100 * cost_ns / passed_ns
        account.usage, account.at_s = usage, now_s

    def _change_for(self, key: K, now_s: float) -> Change[K] | None:
        account = self._accounts[key]
        limit = self._limits.process_percent
        if account.usage.is_exempt or account.level == self._levels - 1:
            return None
        if account.load_percent > limit:
            account.rounds_over += 1
            account.calm_since_s = None
            if account.rounds_over >= _ROUNDS_OVER or account.load_percent > _FAR_OVER * limit:
                return self._cheaper(key, f"{_cost(account.load_percent)}: over its budget of {limit:g}%")
            return None
        account.rounds_over = 0
        if account.level == 0 or account.load_percent * _STEP_BACK_FACTOR > _SPARE * limit:
            account.calm_since_s = None
            return None
        if account.calm_since_s is None:
            account.calm_since_s = now_s
        calm_s = min(_CALM_S * 2 ** (account.drops - 1), _CALM_MAX_S)
        if now_s - account.calm_since_s < calm_s or self._host_is_full(account):
            return None
        account.level -= 1
        account.calm_since_s = None
        reason = f"{_cost(account.load_percent)}: far below its budget of {limit:g}%"
        return Change(key, account.level, False, reason)

    def _over_host(self) -> Change[K] | None:
        limit = self._limits.host_percent
        self._host_rounds_over = self._host_rounds_over + 1 if self.policy_percent > limit else 0
        if self._host_rounds_over < _ROUNDS_OVER:
            return None
        candidates = [
            key
            for key, account in self._accounts.items()
            if not account.usage.is_exempt and account.level < self._levels - 1
        ]
        if not candidates:
            return None
        dearest = max(candidates, key=self.load_percent)
        self._host_rounds_over = 0
        loads = f"{_cost(self.load_percent(dearest))}, {self.policy_percent:.0f}% with all others"
        return self._cheaper(dearest, f"{loads}: over the host's budget of {limit:g}%")

    def _host_is_full(self, account: _Account) -> bool:
        more = (_STEP_BACK_FACTOR - 1) * account.load_percent
        return self.policy_percent + more > self._limits.host_percent

    def _cheaper(self, key: K, reason: str) -> Change[K]:
        account = self._accounts[key]
        account.level += 1
        account.drops += 1
        account.rounds_over = 0
        account.calm_since_s = None
        return Change(key, account.level, True, reason)


def _cost(load_percent: float) -> str:
    return f"tracing costs {load_percent:.0f}% of a core"
