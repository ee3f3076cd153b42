"""Decides which traced processes have their descriptors recorded, and where most new ones are opened."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from bpfleakd import errors
from bpfleakd.kernel.maps import Maps
from bpfleakd.model.resources import RecordedDescriptors
from bpfleakd.process.descriptors import descriptor_limit
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.descriptor_sites import NOT_RECORDED
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000
# Descriptors may grow again, and those opened in between would be unknown.
_QUIET_NS = 300 * _NS_PER_S
_ENTRIES_MAX = 262_144
# Processes to look at in parallel.
_LOOKS_MAX = 2
_NEARLY_ALL = 0.95
_OPEN_MIN = 10


class DescriptorRecording(TracingObserver):
    """`watch` links the programs to the system calls, or detaches them soon.

    It returns whether they are linked, and may raise KernelError.
    """

    def __init__(self, maps: Maps, watch: Callable[[bool], bool], choice: RecordedDescriptors) -> None:
        self._maps = maps
        self._watch = watch
        self._choice = choice
        self._background = Background("descriptors", _LOOKS_MAX)
        self._grew_ns: dict[int, int] = {}
        self._can_watch = True

    def collected(self, view: ProcessView) -> None:
        """Start or stop the recording of a process, and update its call sites."""
        traced, now_ns = view.traced, view.clock_ns()
        is_wanted = self._is_wanted(traced, now_ns)
        if traced.pid in self._maps.descriptors.pids() and not traced.descriptors.is_recorded:
            # An earlier daemon had started it.
            traced.descriptors.begin(now_ns, knows_past=False)
            self._watch_while_needed()
        if is_wanted and not traced.descriptors.is_recorded:
            self._begin(traced, now_ns)
        elif traced.descriptors.is_recorded and not is_wanted:
            self._end(traced)
        traced.descriptors.read(self._maps.descriptors, view.clock_ns, self._background)
        traced.resources.note_opened_at(_opened_at(view))

    def ended(self, traced: TracedProcess) -> None:
        """The tables of the process are gone."""
        self._grew_ns.pop(traced.pid, None)
        self._watch_while_needed()

    def _is_wanted(self, traced: TracedProcess, now_ns: int) -> bool:
        if self._choice is not RecordedDescriptors.GROWING:
            return self._choice is RecordedDescriptors.ALWAYS
        if traced.resources.descriptors_grow:
            self._grew_ns[traced.pid] = now_ns
        grew_ns = self._grew_ns.get(traced.pid)
        return grew_ns is not None and now_ns - grew_ns < _QUIET_NS

    def _begin(self, traced: TracedProcess, now_ns: int) -> None:
        pid = traced.pid
        if not (self._can_watch and self._is_watched(True)):
            # Not yet, or not at all: descriptors opened before would have no call site.
            return
        limit = descriptor_limit(pid)
        try:
            self._maps.descriptors.begin(pid, min(limit or _ENTRIES_MAX, _ENTRIES_MAX))
        except OSError as error:
            log.warning("descriptors.not-recorded", pid=pid, reason=error.strerror)
            self._watch_while_needed()
            return
        traced.descriptors.begin(now_ns)
        log.info("descriptors.recorded", pid=pid, comm=traced.attachment.process.comm)

    def _end(self, traced: TracedProcess) -> None:
        self._maps.descriptors.end(traced.pid)
        traced.descriptors.end()
        self._watch_while_needed()

    def _watch_while_needed(self) -> None:
        self._is_watched(bool(self._maps.descriptors.pids()))

    def _is_watched(self, wanted: bool) -> bool:
        try:
            return self._watch(wanted)
        except errors.KernelError as error:
            log.warning("descriptors.not-watched", reason=error.message, hint=error.hint)
            self._can_watch = False
            return False


def _opened_at(view: ProcessView) -> str:
    """Where most of the descriptors that stay open are opened, in words; "" if there are too few yet."""
    sites, totals = view.traced.descriptors.sites(), view.traced.descriptors.totals
    if totals is None:
        return ""
    # Before a call site has its verdict, its open descriptors count too.
    weights = [totals.other_growth_per_min, *(site.growth_per_min for site in sites)]
    if not any(weights):
        weights = [float(totals.other_count), *(float(site.open_count) for site in sites)]
    if totals.recorded_count + totals.other_count < _OPEN_MIN:
        return ""
    most = weights.index(max(weights))
    share = weights[most] / sum(weights)
    how_many = "" if share >= _NEARLY_ALL else f"{share:.0%} "
    if most == 0:
        return f"{how_many}came {NOT_RECORDED}"
    key = sites[most - 1].key
    frames = view.name([key])[key].stack.frames
    frame = view.traced.charging.charged(key, frames)
    if frame is None or not frame.function:
        return ""
    where = " ".join(word for word in (frame.function, (frame.location or "").rpartition("/")[2]) if word)
    return f"{how_many}opened at {where}"
