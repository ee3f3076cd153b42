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
from bpfleakd.model.mapping import Mapping
from bpfleakd.model.space import UseSummary
from bpfleakd.process.mappings import read_mappings
from bpfleakd.tracing.address_space import AddressSpaces
from bpfleakd.tracing.attach import GONE, Attacher, Attachment
from bpfleakd.tracing.record import read_record, write_record
from bpfleakd.tracing.space_feed import SpaceFeed
from bpfleakd.tracing.spaces import AddressMaps
from bpfleakd.tracing.unwinding import Unwinding

__all__ = ["Adopter", "KeptTraced", "keep_traced", "was_kept_by_hand"]

log = structlog.get_logger()

_RECORD = "traced"


@dataclass(frozen=True, slots=True)
class KeptTraced:
    """What the next daemon has to know of a traced process besides its attachment, address map and history.

    `by_hand`: somebody attached it, not the policy; None if that is not known.
    """

    attached_ns: int
    memory: tuple[UseSummary, ...]
    by_hand: bool | None = None
    adopted_count: int = 0
    gap_s: float = 0.0


def keep_traced(pins: ProcessPins, kept: KeptTraced) -> None:
    """Write it down. A kernel without room for it is a matter of the next daemon's."""
    record = pins.record(_RECORD)
    try:
        write_record(record, kept)
    except OSError as error:
        log.warning("process.not-kept", pid=pins.id.pid, reason=error.strerror)
    finally:
        record.close()


def was_kept_by_hand(pins: ProcessPins) -> bool | None:
    """Whether somebody attached a process that an earlier daemon traced; None if nobody wrote that down."""
    record = pins.record(_RECORD)
    try:
        return read_record(record, KeptTraced).by_hand
    except (ValueError, OSError):
        return None
    finally:
        record.close()


@dataclass(frozen=True, slots=True)
class Adopter:
    """Takes processes over, `gap_s` after the last sign of life of the daemon before."""

    maps: Maps
    attacher: Attacher
    unwinding: Unwinding
    spaces: AddressMaps
    feed: SpaceFeed
    memory: AddressSpaces
    gap_s: float
    now_ns: int

    def adopt(self, pins: ProcessPins) -> tuple[Attachment, KeptTraced]:
        """Go on with a process. Raises ValueError or OSError if it cannot be; nothing of it is left then."""
        try:
            attachment = self.attacher.adopt(pins)
        except (ValueError, OSError):
            self.attacher.discard(pins)
            raise
        try:
            return attachment, self._restored(attachment)
        except BaseException:
            self.attacher.let_go(attachment)
            self.attacher.discard(pins)
            raise

    def _restored(self, attachment: Attachment) -> KeptTraced:
        pid, pins = attachment.process.id.pid, attachment.pins
        if self.maps.process(pid).state is RecordingState.UNATTENDED:
            raise ValueError("the programs had stopped recording: no daemon for too long")
        before = self._traced_before(pins)
        after = replace(before, adopted_count=before.adopted_count + 1, gap_s=before.gap_s + self.gap_s)
        keep_traced(pins, after)
        self.memory.restore(attachment.process, before.memory)
        self._restore_space(attachment)
        if attachment.pidfd != GONE:
            self.unwinding.follow(pid, read_mappings(pid), wait_s=0.0)
        return after

    def _traced_before(self, pins: ProcessPins) -> KeptTraced:
        record = pins.record(_RECORD)
        try:
            return read_record(record, KeptTraced)
        except ValueError:
            # The daemon was killed between the begin of the recording and this record.
            return KeptTraced(self.now_ns, ())
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
