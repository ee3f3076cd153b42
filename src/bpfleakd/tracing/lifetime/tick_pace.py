"""How long the next tick may wait, and how long it may take at idle priority (`bpfleakd.threads`).

A program that samples inside, and was observed for long, needs few ticks: it reports some events a second,
and the kernel keeps them in its tables. A tick costs as much as dozens of them, and on a machine without an
idle core each delays some request of the programs.

No tick waits while any process needs a prompt reading:
  - its functions are probed (a library that it loads may allocate at once), or calls of mmap fill the ring;
  - it has a runtime, whose frames and heap are read before they change;
  - it was observed for a short time: a wait is a small part of that, as bins of the timeline are;
  - its memory changes: the next reading may be the last one before it runs out.

A tick that may wait may take as long at idle priority. The others of processes that all sample inside may
take half a second so: their readings are not that urgent.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from msgspec import Struct

from bpfleakd.model.process import ProcessId
from bpfleakd.tracing.judging.pacing import has_changed
from bpfleakd.tracing.traced_process import TracedProcess

_WAIT_OF_OBSERVED = 1 / 120
_RING_SHARE_MAX = 0.05
_IDLE_S = 0.5


class NextTick(Struct, frozen=True):
    """How many seconds the next tick may wait, and how many it may take at idle priority.

    `wait_s` is 0.0 if it is not to wait longer than usual; both are infinite if nothing is traced.
    """

    wait_s: float = 0.0
    idle_s: float = 0.0


class TickPace:
    """Finds how long the next tick may wait, from what the last one has read."""

    def __init__(self) -> None:
        self._anonymous_bytes: dict[ProcessId, int] = {}

    def next_tick(
        self, running: Collection[TracedProcess], ring_used_share: float, now_ns: int
    ) -> NextTick:
        """The limits of the next tick. To be asked once after each tick.

        `ring_used_share` is the used part (0 to 1) of the ring of reports.
        """
        changes = self._have_changed(running)
        if ring_used_share > _RING_SHARE_MAX or not all(map(_is_inside, running)):
            return NextTick()
        if changes or any(traced.has_runtime for traced in running):
            return NextTick(idle_s=_IDLE_S)
        youngest_ns = max((traced.since.attached_ns for traced in running), default=None)
        wait_s = math.inf if youngest_ns is None else (now_ns - youngest_ns) / 1e9 * _WAIT_OF_OBSERVED
        return NextTick(wait_s, max(wait_s, _IDLE_S))

    def _have_changed(self, running: Collection[TracedProcess]) -> bool:
        """Whether the memory of any process changes: since the last call, or for all one knows."""
        before, self._anonymous_bytes = self._anonymous_bytes, {
            traced.attachment.process.id: traced.anonymous_bytes
            for traced in running
            if traced.anonymous_bytes is not None
        }
        return any(has_changed(before.get(id_), now) for id_, now in self._anonymous_bytes.items())


def _is_inside(traced: TracedProcess) -> bool:
    return traced.attachment.is_inside and traced.set_aside is None
