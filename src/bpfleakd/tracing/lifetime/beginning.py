"""Creates traced processes, from a new attachment or from one of an earlier daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from bpfleakd.analysis.callers import NO_RULES, ChargeRules
from bpfleakd.analysis.suppressions import NO_SUPPRESSIONS, Suppressions
from bpfleakd.kernel.compilation.options import Capacities
from bpfleakd.kernel.maps import Maps
from bpfleakd.model.process import TracingRequest
from bpfleakd.runtimes.detection import Detector
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.tracing.attaching.attachment import Attachment
from bpfleakd.tracing.judging.site_suppressions import SiteSuppressions
from bpfleakd.tracing.recorded_state import History
from bpfleakd.tracing.runtimes import ProcessRuntimes
from bpfleakd.tracing.sampling.intervals import SamplingOptions
from bpfleakd.tracing.site_charging import SiteCharging
from bpfleakd.tracing.traced_process import TracedProcess, TracedSince
from bpfleakd.tracing.unwinding import Unwinding
from bpfleakd.verdicts.measurement import LEAK_AFTER_S


class TracingOptions(Struct, frozen=True):
    """`capacities` are those of the kernel's tables.

    The programs stop recording `unattended_s` after the last tick; growth is a leak after `leak_after_s`.
    """

    sampling: SamplingOptions
    capacities: Capacities
    unattended_s: float
    leak_after_s: float = LEAK_AFTER_S
    suppressions: Suppressions = NO_SUPPRESSIONS
    charge_rules: ChargeRules = NO_RULES
    detectors: Mapping[str, Detector] = msgspec.field(default_factory=dict)


class Beginning:
    """Creates traced processes, with `suppressions`. `symbolizer_of` creates the symbolizer of one."""

    def __init__(
        self,
        maps: Maps,
        unwinding: Unwinding,
        symbolizer_of: Callable[[Attachment], Symbolizer],
        options: TracingOptions,
        clock_ns: Callable[[], int],
    ) -> None:
        self._maps = maps
        self._unwinding = unwinding
        self._symbolizer_of = symbolizer_of
        self._options = options
        self._clock_ns = clock_ns
        self.suppressions = options.suppressions

    def take_on(
        self, attachment: Attachment, request: TracingRequest, since: TracedSince, history: History
    ) -> TracedProcess:
        """Create a traced process; nothing else does."""
        pid, (table, verdicts, identities) = attachment.process.id.pid, history
        symbolizer, counters = self._symbolizer_of(attachment), self._maps.process(pid)
        table.add_removed(counters.removed)
        traced = TracedProcess(attachment, request, since, symbolizer, table, counters, verdicts)
        traced.runtimes = ProcessRuntimes(attachment.process, self._options.detectors)
        traced.suppressions = SiteSuppressions(self.suppressions)
        traced.charging = SiteCharging(self._options.charge_rules, identities)
        traced.follow_go(attachment.go, self._clock_ns)
        if traced.go is not None and not len(table):
            # The program knows what it had before the attach.
            table.begin_with(*traced.go.read_now())
        if not traced.is_gone:
            traced.follow_runtimes(self._maps, attachment.mappings, self._clock_ns())
            follow_code(traced, self._unwinding, self._clock_ns())
        return traced


def follow_code(traced: TracedProcess, unwinding: Unwinding, now_ns: int) -> None:
    """Tell the walker the addresses and unwind rules of code compiled at run time."""
    unwinding.use_tables(traced.pid, traced.runtimes.code_tables)
    code = traced.runtimes.code
    if code is not None and not traced.is_gone:
        unwinding.use_managed(traced.pid, code.ranges(now_ns))
