"""Carries out decisions: attaches, releases, watches, opens and closes windows of tracing.

A refusal stands until the process executes another program or another rule decides: nothing is tried twice.
Temporary obstacles (no allocator mapped yet, no room) are tried again.
"""

from __future__ import annotations

import time
from collections import Counter

import structlog

from bpfleakd import errors
from bpfleakd.model.process import ProcessId, TracingMode, TracingRequest
from bpfleakd.model.supervision import SupervisionState
from bpfleakd.process.identity import effective_uid
from bpfleakd.process.policy.rules import Decision
from bpfleakd.supervision.growth_watcher import GrowthWatcher, Open
from bpfleakd.supervision.managed_process import AT_ONCE, Agenda, ManagedProcess
from bpfleakd.supervision.wasted_work import WastedWork
from bpfleakd.tracing.attaching.attach import IMPATIENT, PATIENT, AttachWait
from bpfleakd.tracing.tracer import Tracer

log = structlog.get_logger()

_MS = 1_000_000
# The dynamic linker takes a millisecond or two after exec to map the C library, more on a busy machine.
_RETRIES_NS = tuple(ms * _MS for ms in (2, 3, 5, 10, 20, 50, 100, 200, 500))
# After this time a window starts without its unwind tables; after twice this time it does not start.
_TABLES_LIMIT_NS = 5_000 * _MS
_FILES_LIMIT_NS = 60_000 * _MS
# A window of tracing with too few figures continues for this long, and is checked again.
_LONGER_NS = 30_000 * _MS

_WATCHING = (TracingMode.WATCH, TracingMode.AUTO)


class Reconciler:
    """Acts on processes; the agenda calls `follow` again for those whose state should be checked.

    The policy traces at most `traced_max` processes at once.
    """

    def __init__(self, tracer: Tracer, watcher: GrowthWatcher, agenda: Agenda, traced_max: int) -> None:
        self._tracer = tracer
        self._watcher = watcher
        self._agenda = agenda
        self._traced_max = traced_max
        self._full_at = traced_max  # less while a table of the kernel has no room for more
        self._wasted = WastedWork()
        self.refused_total: Counter[str] = Counter()

    def follow(self, process: ManagedProcess, decision: Decision, now_ns: int) -> bool:
        """Carry out the decision; returns whether that took long."""
        if decision.mode in _WATCHING:
            return self._watch(process, decision, now_ns)
        self.watch_no_more(process)
        request = self._tracer.request_of(process.pid)
        if request is not None and request.mode is decision.mode:
            process.be(SupervisionState.TRACED)
            return False
        released = self._release(process)
        if decision.mode is TracingMode.OFF:
            process.be(SupervisionState.OFF)
        elif process.state is not SupervisionState.REFUSED and self._may_attach(process):
            self._attach(process, decision.mode, now_ns)
            return True
        return released

    def _watch(self, process: ManagedProcess, decision: Decision, now_ns: int) -> bool:
        assert process.id is not None
        if decision.mode is TracingMode.AUTO and process.window_end_ns is not None:
            return self._keep_window(process, process.id, now_ns)
        released = self._release(process)
        self._watcher.add(process.id, decision)
        process.watched = True
        if process.state is SupervisionState.REFUSED:
            process.opening = None
        elif process.opening is not None and decision.mode is TracingMode.AUTO:
            self._open_window(process, process.opening, now_ns)
            return True
        else:
            process.be(SupervisionState.WATCHED)
        return released

    def _open_window(self, process: ManagedProcess, opening: Open, now_ns: int) -> None:
        if self._may_attach(process) and self._attach(
            process, opening.mode, now_ns, self._patience(process, now_ns)
        ):
            process.reason = opening.reason
            process.opening = None
            process.window_end_ns = now_ns + round(opening.window_s * 1e9)
            self._agenda.set(process.pid, process.window_end_ns)
            self._watcher.opened(opening.process, now_ns)
        elif process.state is not SupervisionState.ATTACHING:
            process.opening = None
            for_good = process.state is SupervisionState.REFUSED
            self._watcher.failed(opening.process, now_ns, process.reason, for_good=for_good)
            if not for_good:
                process.be(SupervisionState.WATCHED, process.reason)

    def resume_window(self, process: ManagedProcess, decision: Decision, began_ns: int, now_ns: int) -> None:
        """Continue a window of tracing that an earlier daemon opened."""
        assert process.id is not None
        self._watcher.add(process.id, decision)
        process.watched = True
        process.window_end_ns = self._watcher.resumed(process.id, began_ns, now_ns)
        self._agenda.set(process.pid, process.window_end_ns)

    def _keep_window(self, process: ManagedProcess, id: ProcessId, now_ns: int) -> bool:
        """Close a window of tracing if it is over; returns whether that took long."""
        assert process.window_end_ns is not None
        if now_ns < process.window_end_ns:
            self._agenda.set(process.pid, process.window_end_ns)
            return False
        if process.window_end_ns != AT_ONCE and self._tracer.tells_too_little(process.pid):
            process.window_end_ns = now_ns + _LONGER_NS
            self._agenda.set(process.pid, process.window_end_ns)
            return False
        process.window_end_ns = None
        released = self._release(process)
        process.be(SupervisionState.WATCHED)
        self._watcher.closed(id, now_ns)
        return released

    def watch_no_more(self, process: ManagedProcess) -> None:
        """Remove the process from the watcher, and any wanted window."""
        process.opening = None
        process.window_end_ns = None
        if process.watched and process.id is not None:
            self._watcher.remove(process.id)
        process.watched = False

    def _release(self, process: ManagedProcess) -> bool:
        if self._tracer.request_of(process.pid) is None:
            return False
        self._tracer.stop(process.pid)
        return True

    def has_room(self) -> bool:
        """Whether another process may be attached to."""
        return self._tracer.traced_count() < min(self._traced_max, self._full_at)

    def _may_attach(self, process: ManagedProcess) -> bool:
        if self.has_room():
            return True
        if process.state is not SupervisionState.WAITING:
            words = (
                f"{self._tracer.traced_count()} processes are traced: the limit is reached (limits.processes)"
            )
            process.be(SupervisionState.WAITING, words)
        return False

    def _attach(
        self, process: ManagedProcess, mode: TracingMode, now_ns: int, wait: AttachWait = IMPATIENT
    ) -> bool:
        """Attach, or record why not; returns whether it succeeded."""
        assert process.decision is not None
        uid = effective_uid(process.pid)
        if now_ns < (until_ns := self._wasted.until_ns(uid)):
            self._agenda.set(process.pid, until_ns)
            process.be(
                SupervisionState.ATTACHING,
                "processes of its user come and go faster than they are attached to",
            )
            return False
        began_ns = time.monotonic_ns()
        try:
            decision = process.decision
            request = TracingRequest(mode, decision.why, decision.live_blocks)
            self._tracer.start(process.pid, request, expected=process.id, wait=wait)
        except errors.NotYet as error:
            self._try_again(process, error, now_ns)
            return False
        except (errors.NoAllocator, errors.NoSuchProcess) as error:
            if isinstance(error, errors.NoSuchProcess):
                took_ns = time.monotonic_ns() - began_ns
                self._wasted.note(uid, now_ns, now_ns + took_ns, wasted=True)
            # Not yet: the dynamic linker is at work, or the process is just calling exec.
            if process.retries < len(_RETRIES_NS):
                self._agenda.set(process.pid, now_ns + _RETRIES_NS[process.retries])
                process.retries += 1
                process.be(SupervisionState.ATTACHING, error.message)
            else:
                self._refused(process, error)
            return False
        except errors.TablesFull as error:
            self._full_at = max(1, self._tracer.traced_count())
            process.be(SupervisionState.WAITING, error.message)
            return False
        except errors.BpfleakdError as error:
            self._refused(process, error)
            return False
        except Exception:
            # A bug, or an attack by the target: the other processes continue.
            log.exception("process.attach-failed", pid=process.pid, comm=process.comm)
            self._refused(process, errors.BpfleakdError("an error in bpfleakd: details are in its log"))
            return False
        self._full_at = self._traced_max
        self._wasted.note(uid, now_ns, now_ns, wasted=False)
        process.reading_since_ns = None
        process.be(SupervisionState.TRACED)
        return True

    def _patience(self, process: ManagedProcess, now_ns: int) -> AttachWait:
        """A window may start late: it waits for its unwind tables, but not for ever."""
        began_ns = process.reading_since_ns
        return PATIENT if began_ns is None or now_ns - began_ns < _TABLES_LIMIT_NS else IMPATIENT

    def _try_again(self, process: ManagedProcess, error: errors.NotYet, now_ns: int) -> None:
        """Try again later, since its files are being read; the longer that takes, the later."""
        if process.reading_since_ns is None:
            process.reading_since_ns = now_ns
        waited_ns = now_ns - process.reading_since_ns
        if waited_ns > _FILES_LIMIT_NS:
            self._refused(process, error)
            return
        self._agenda.set(process.pid, now_ns + 10 * _MS + waited_ns // 4)
        process.be(SupervisionState.ATTACHING, error.message)

    def _refused(self, process: ManagedProcess, error: errors.BpfleakdError) -> None:
        self.refused_total[error.code] += 1
        process.be(SupervisionState.REFUSED, error.message)
        log.info("process.refused", pid=process.pid, comm=process.comm, reason=error.message, hint=error.hint)
