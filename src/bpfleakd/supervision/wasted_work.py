"""Wasted attaches by user: the process ended or called exec before tracing was of use.

A user whose processes come and go faster than they can be attached to takes the tracing loop's time from all
others, with a grace period of the kernel for each attach. Rules:

- After a wasted attach, the processes of that user wait for `FACTOR` times its duration.

- No wait is longer than `PAUSE_MAX_NS`; a successful attach ends it.
"""

from __future__ import annotations

from collections import OrderedDict

FACTOR = 3
PAUSE_MAX_NS = 500_000_000
_USERS_MAX = 1024


class WastedWork:
    """The ends of users' waits, by uid. Times are in ns, of one clock."""

    def __init__(self) -> None:
        self._until_ns: OrderedDict[int, int] = OrderedDict()

    def until_ns(self, uid: int | None) -> int:
        """When a process of that user may be attached to."""
        return 0 if uid is None else self._until_ns.get(uid, 0)

    def note(self, uid: int | None, began_ns: int, ended_ns: int, *, wasted: bool) -> None:
        """Record the duration of an attach to a process of that user."""
        if uid is None:
            return
        self._until_ns.pop(uid, None)
        if wasted:
            self._until_ns[uid] = ended_ns + min(FACTOR * (ended_ns - began_ns), PAUSE_MAX_NS)
            if len(self._until_ns) > _USERS_MAX:
                self._until_ns.popitem(last=False)
