"""Taking over what an earlier daemon was tracing.

The programs went on counting without it, so that nothing that they count is missing. What needs a daemon is:
  - reports of the address space wait in their ring; what found no room there is repaired (spaces.py);
  - libraries that were loaded meanwhile are probed now, and what their allocators did is not known;
  - a process that ended, or called exec, gets its last report now, with names as good as they can be had;
  - a process that nobody read for so long that the programs stopped is begun anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from bpfleakd import errors
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.model.address_space import UseSummary
from bpfleakd.model.mapping import Mapping
from bpfleakd.process.mappings import read_mappings
from bpfleakd.tracing.address_maps import AddressMaps
from bpfleakd.tracing.address_space_feed import AddressSpaceFeed
from bpfleakd.tracing.attach import GONE, Attacher, Attachment
from bpfleakd.tracing.checkpoint import read_checkpoint, write_if_possible
from bpfleakd.tracing.memory_breakdown import MemoryBreakdown
from bpfleakd.tracing.unwinding import Unwinding

__all__ = ["Adopter", "TracedProcessCheckpoint", "write_traced_process"]

log = structlog.get_logger()

_RECORD = "traced"


@dataclass(frozen=True, slots=True)
class TracedProcessCheckpoint:
    """What the next daemon has to know of a traced process beside its request, attachment, address map and
    history.
    """

    attached_ns: int
    memory: tuple[UseSummary, ...]
    adopted_count: int = 0
    gap_s: float = 0.0


def write_traced_process(pins: ProcessPins, checkpoint: TracedProcessCheckpoint) -> None:
    """Write it down for the next daemon. A kernel without room for it does not end the tracing."""
    write_if_possible(pins, _RECORD, checkpoint)


@dataclass(frozen=True, slots=True)
class Adopter:
    """Takes processes over, `gap_s` after the last sign of life of the daemon before."""

    maps: Maps
    attacher: Attacher
    unwinding: Unwinding
    spaces: AddressMaps
    feed: AddressSpaceFeed
    memory: MemoryBreakdown
    gap_s: float
    now_ns: int

    def adopt(self, pins: ProcessPins) -> tuple[Attachment, TracedProcessCheckpoint]:
        """Go on with a process. Raises ValueError or OSError if it cannot be; nothing of it is left then."""
        try:
            attachment = self.attacher.adopt(pins)
        except (ValueError, OSError):
            self.attacher.discard(pins)
            raise
        try:
            return attachment, self._restored(attachment)
        except BaseException:
            self.attacher.release(attachment)
            self.attacher.discard(pins)
            raise

    def _restored(self, attachment: Attachment) -> TracedProcessCheckpoint:
        pid, pins = attachment.process.id.pid, attachment.pins
        if self.maps.process(pid).state is RecordingState.UNATTENDED:
            raise ValueError("the programs had stopped recording: no daemon for too long")
        before = self._traced_before(pins)
        after = replace(before, adopted_count=before.adopted_count + 1, gap_s=before.gap_s + self.gap_s)
        write_traced_process(pins, after)
        self.memory.restore(attachment.process, before.memory)
        self._restore_space(attachment)
        if attachment.pidfd != GONE:
            self.unwinding.follow(pid, read_mappings(pid), wait_s=0.0)
        return after

    def _traced_before(self, pins: ProcessPins) -> TracedProcessCheckpoint:
        record = pins.record(_RECORD)
        try:
            return read_checkpoint(record, TracedProcessCheckpoint)
        except ValueError:
            # The daemon was killed between the begin of the recording and this record.
            return TracedProcessCheckpoint(self.now_ns, ())
        finally:
            record.close()

    def _restore_space(self, attachment: Attachment) -> None:
        pid = attachment.process.id.pid
        record = attachment.pins.record("space")
        try:
            self.feed.restore(pid, record)
        except (ValueError, LookupError) as error:
            log.warning("space.lost", pid=pid, reason=str(error))
            self.spaces.follow(pid, self._mappings_of(attachment))
            self.feed.keep(pid, record)

    def _mappings_of(self, attachment: Attachment) -> tuple[Mapping, ...]:
        if attachment.pidfd == GONE:
            return attachment.mappings
        try:
            return read_mappings(attachment.process.id.pid)
        except errors.BpfleakdError:
            return attachment.mappings
