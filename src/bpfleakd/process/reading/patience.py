"""Limits how long readers wait for the memory of a process, and of all together.

Memory may belong to a file whose server answers when it likes (FUSE, NFS), or to a program that provides its
pages (userfaultfd(2)). Rules:

- A process has `OWN_S` seconds to keep readers waiting, and gets `OWN_SHARE` of the time passing back.
- All together have `COMMON_S`; when these are used up, each has `LEAST_S` still.
- A process that uses up what it has is silent: nothing is read of it for `SILENT_S`, then for twice as long.
- Another process that has got its pid begins anew.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from bpfleakd.errors import NoSuchProcess
from bpfleakd.process.process import instance_of

OWN_S = 0.25
OWN_SHARE = 0.01
COMMON_S = 0.4
COMMON_SHARE = 0.1
LEAST_S = 0.02
SILENT_S = 2.0
SILENT_MAX_S = 640.0
_ACCOUNTS_MAX = 4096


def instance_now(pid: int) -> str | None:
    """A text that identifies the process with this pid; None if there is none."""
    try:
        return instance_of(pid)
    except NoSuchProcess:
        return None


class _Account:
    """An account of seconds, which are restored over time."""

    def __init__(self, full_s: float, share: float, now_s: float) -> None:
        self._full_s = full_s
        self._share = share
        self._left_s = full_s
        self._at_s = now_s

    def left_s(self, now_s: float) -> float:
        """The remaining seconds; below 0 if it was overdrawn."""
        self._left_s = min(self._full_s, self._left_s + (now_s - self._at_s) * self._share)
        self._at_s = now_s
        return self._left_s

    def charge(self, used_s: float, now_s: float) -> None:
        """Charge the account."""
        self._left_s = self.left_s(now_s) - used_s


class _Waiter(Struct):
    instance: str | None
    account: _Account
    silent_s: float = SILENT_S
    until_s: float = 0.0


class Patience:
    """The accounts of processes, by pid. Times are of `clock`, in seconds.

    `instance_of` distinguishes processes with the same pid.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        instance_of: Callable[[int], str | None] = instance_now,
    ) -> None:
        self._clock = clock
        self._instance_of = instance_of
        self._common = _Account(COMMON_S, COMMON_SHARE, clock())
        self._waiters: OrderedDict[int, _Waiter] = OrderedDict()

    def is_silent(self, pid: int) -> bool:
        """Whether a process must not be read now."""
        waiter = self._waiters.get(pid)
        if waiter is None or self._clock() >= waiter.until_s:
            return False
        return waiter.instance == self._instance_of(pid)

    def wait(self, pid: int, waited_s: float) -> bool:
        """Charge time spent waiting for a process; returns False if it has become silent."""
        now_s = self._clock()
        waiter = self._waiter(pid, now_s)
        waiter.account.charge(waited_s, now_s)
        self._common.charge(waited_s, now_s)
        left_s = waiter.account.left_s(now_s)
        if left_s > 0 and (self._common.left_s(now_s) > 0 or left_s > OWN_S - LEAST_S):
            return True
        self.silence(pid)
        return False

    def silence(self, pid: int) -> None:
        """Silence a process for a while; afterwards its account is full again."""
        now_s = self._clock()
        waiter = self._waiter(pid, now_s)
        waiter.until_s = now_s + waiter.silent_s
        waiter.silent_s = min(2 * waiter.silent_s, SILENT_MAX_S)
        waiter.account = _Account(OWN_S, OWN_SHARE, waiter.until_s)

    def _waiter(self, pid: int, now_s: float) -> _Waiter:
        waiter, instance = self._waiters.get(pid), self._instance_of(pid)
        if waiter is None or waiter.instance != instance:
            while len(self._waiters) >= _ACCOUNTS_MAX:
                self._waiters.popitem(last=False)
            waiter = self._waiters[pid] = _Waiter(instance, _Account(OWN_S, OWN_SHARE, now_s))
        return waiter
