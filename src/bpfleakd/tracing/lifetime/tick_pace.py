"""How long the next tick may wait, and how long it may take at idle priority (`bpfleakd.threads`).

A program that samples inside, and was observed for long, needs few ticks: it reports some events a second,
and the kernel keeps them in its tables. A tick costs as much as dozens of them, and on a machine without an
idle core each delays some request of the programs.

No tick waits while the functions of any process are probed: a library that it loads may allocate at once.
A runtime's code and heap change by themselves: they are followed between ticks (`Tracer.glance`).

Otherwise a wait is a small part
  - of the time that each process was observed, as bins of the timeline are;
  - of the time until memory runs out, if processes go on to grow as since the last tick. One that grows in
    bursts is read as promptly after a burst as after an attach;
  - of the time in which calls of mmap fill the ring.

A tick that may wait may take as long at idle priority. The others of processes that all sample inside may
take half a second so: their readings are not that urgent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from msgspec import Struct

from bpfleakd.model.process import ProcessId
from bpfleakd.tracing.traced_process import TracedProcess

_WAIT_OF_TIME = 1 / 120
_RING_SHARE_MAX = 0.05
# A ring that fills faster leaves no time for idle priority.
_RING_LASTS_S = 1.0
_IDLE_S = 0.5
# The memory of any process varies by this much. No share of it: a large process may take the last gigabyte.
_VARIES_BYTES = 1 << 20


class NextTick(Struct, frozen=True):
    """How many seconds the next tick may wait, and how many it may take at idle priority.

    `wait_s` is 0.0 if it is not to wait longer than usual; both are infinite if nothing is traced. Meanwhile,
    Tracer.glance is to be called as often as usual if it `needs_glances`.
    """

    wait_s: float = 0.0
    idle_s: float = 0.0
    needs_glances: bool = False


class TickPace:
    """Finds how long the next tick may wait, from what the last one has read."""

    def __init__(self) -> None:
        self._anonymous_bytes: dict[ProcessId, int] = {}
        self._asked_ns: int | None = None
        self._memory_lasts_s = math.inf

    def next_tick(
        self,
        running: Collection[TracedProcess],
        ring_used_share: float,
        now_ns: int,
        room_bytes_of: Callable[[int], int],
    ) -> NextTick:
        """The limits of the next tick. To be asked once after each tick.

        `ring_used_share` is the used part (0 to 1) of the ring of reports; `room_bytes_of` returns how many
        bytes the limits leave to a pid.
        """
        elapsed_s = 0.0 if self._asked_ns is None else (now_ns - self._asked_ns) / 1e9
        grown_bytes = self._grown_bytes(running)
        self._memory_lasts_s += elapsed_s
        ring_lasts_s = elapsed_s * _RING_SHARE_MAX / ring_used_share if ring_used_share else math.inf
        self._asked_ns = now_ns
        if ring_lasts_s < _RING_LASTS_S or not all(map(_is_inside, running)):
            return NextTick()
        if grown_bytes:
            # All may be limited by what they share.
            room_bytes = min(room_bytes_of(id_.pid) for id_ in grown_bytes)
            lasts_s = elapsed_s * room_bytes / sum(grown_bytes.values())
            self._memory_lasts_s = min(self._memory_lasts_s, lasts_s)
        youngest_ns = max((traced.since.attached_ns for traced in running), default=None)
        observed_s = math.inf if youngest_ns is None else (now_ns - youngest_ns) / 1e9
        wait_s = min(min(observed_s, self._memory_lasts_s) * _WAIT_OF_TIME, ring_lasts_s)
        return NextTick(wait_s, max(wait_s, _IDLE_S), any(traced.has_runtime for traced in running))

    def _grown_bytes(self, running: Collection[TracedProcess]) -> dict[ProcessId, int]:
        """By how much processes have grown since the last call, for all one knows."""
        before, self._anonymous_bytes = self._anonymous_bytes, {
            traced.attachment.process.id: traced.anonymous_bytes
            for traced in running
            if traced.anonymous_bytes is not None
        }
        return {
            id_: grown_bytes
            for id_, now_bytes in self._anonymous_bytes.items()
            if (grown_bytes := now_bytes - before.get(id_, 0)) > _VARIES_BYTES
        }


def _is_inside(traced: TracedProcess) -> bool:
    return traced.attachment.is_inside and traced.set_aside is None
