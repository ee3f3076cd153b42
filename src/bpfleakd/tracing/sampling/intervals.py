"""Sampling intervals: which blocks of each traced process are recorded, adapted at every tick."""

from __future__ import annotations

import structlog
from msgspec import Struct, field

from bpfleakd.analysis.sampling_rate import MIN_SHIFT, RecordingRates, SamplingState, adapted, next_crowded
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.log_pause import LogPause
from bpfleakd.model.process import TracingMode, TracingRequest

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000

# A process that is sampled from the start begins with 64 KiB: about 1,500 blocks per second at 100 MB/s.
FIRST_SHIFT = 16
# The live-block capacity for a process that is sampled from the start: when it fills, sampling becomes
# coarser. The kernel reserves 16 bytes per block.
SAMPLED_LIVE_BLOCKS = 1 << 17
# Each further level of the guard reduces the recorded blocks by this factor; the cost per hit remains.
_LEVEL_FACTOR = 8
# Minimum time between log entries on one process: a program may swing for hours.
_LOG_PAUSE_NS = 60 * _NS_PER_S


class SamplingOptions(Struct, frozen=True):
    """`target_per_s` is the number of blocks to record per second and process.

    With `interval_bytes`, a power of 2, the interval is fixed and not adapted.
    """

    target_per_s: float
    interval_bytes: int | None = None


class _SampledProcess(Struct):
    state: SamplingState
    seen_ns: int
    counters: ProcessCounters
    live_capacity: int
    allocated_bytes: int | None = 0  # None: it is not known yet
    log: LogPause = field(default_factory=lambda: LogPause(_LOG_PAUSE_NS))
    level: int = 0


class Sampling:
    """The intervals of all processes that are not traced by mode EXACT."""

    def __init__(self, maps: Maps, options: SamplingOptions) -> None:
        self._maps = maps
        self._options = options
        self._processes: dict[int, _SampledProcess] = {}
        # The unadapted shifts of processes that are sampled otherwise because they cost too much.
        self._unlimited: dict[int, int] = {}

    def begin(self, pid: int, request: TracingRequest, now_ns: int) -> None:
        """Start with a process that has just been attached.

        EXACT records every block, INSIDE all announced ones. SAMPLED starts with sampling; any other mode
        records all blocks until that is too much.
        """
        fixed_shift = self._fixed_shift(request.mode)
        if fixed_shift is None:
            shift = FIRST_SHIFT if request.mode is TracingMode.SAMPLED else 0
            self._maps.set_sampling(pid, shift)
            self._adapt_from(pid, shift, self._maps.process(pid), now_ns)
        elif fixed_shift:
            self._maps.set_sampling(pid, fixed_shift)
        self.set_level(pid, request.level, self._maps.process(pid), now_ns)

    def resume(self, pid: int, request: TracingRequest, now_ns: int) -> None:
        """Continue with an earlier daemon's process, at its interval."""
        fixed_shift = self._fixed_shift(request.mode)
        if fixed_shift is not None and request.level:
            self._unlimited[pid] = fixed_shift
        if fixed_shift is None or request.level:
            counters = self._maps.process(pid)
            process = self._adapt_from(pid, counters.sample_shift, counters, now_ns)
            process.level, process.allocated_bytes = request.level, None

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced."""
        self._processes.pop(pid, None)
        self._unlimited.pop(pid, None)

    def set_level(self, pid: int, level: int, counters: ProcessCounters, now_ns: int) -> None:
        """Record more sparsely from level to level; 0 is the original interval.

        A process with a fixed interval is sampled by adapted intervals at other levels.
        """
        if level == 0 and pid in self._unlimited:
            self._maps.set_sampling(pid, self._unlimited[pid])
            self.forget(pid)
            return
        process = self._processes.get(pid)
        if process is None:
            if level == 0:
                return
            self._unlimited[pid] = counters.sample_shift
            shift = max(counters.sample_shift, FIRST_SHIFT)
            process = self._adapt_from(pid, shift, counters, now_ns)
            self._maps.set_sampling(pid, shift)
        process.level = level

    def adapt(self, pid: int, counters: ProcessCounters, allocated_bytes: int, now_ns: int) -> None:
        """Choose the interval again; `allocated_bytes` is what the process allocated since the attach."""
        process = self._processes.get(pid)
        if process is None or now_ns <= process.seen_ns:
            return
        if process.allocated_bytes is None:
            process.allocated_bytes, process.seen_ns, process.counters = allocated_bytes, now_ns, counters
            return
        elapsed_s = (now_ns - process.seen_ns) / _NS_PER_S
        before = process.counters
        rates = RecordingRates(
            elapsed_s=elapsed_s,
            records_per_s=(counters.recorded - before.recorded) / elapsed_s,
            bytes_per_s=(allocated_bytes - process.allocated_bytes) / elapsed_s,
            hits_per_s=(counters.probe_hits - before.probe_hits) / elapsed_s,
            filled=_filled(counters, process.live_capacity),
        )
        target_per_s = self._options.target_per_s / _LEVEL_FACTOR ** max(0, process.level - 1)
        state = adapted(process.state, rates, target_per_s)
        if process.level and not state.shift:
            # Exact recording cost too much.
            state = SamplingState(MIN_SHIFT)
        if state.shift != process.state.shift:
            self._maps.set_sampling(pid, state.shift)
            self._log(pid, process, state.shift, rates, now_ns)
        process.state, process.counters = state, counters
        process.seen_ns, process.allocated_bytes = now_ns, allocated_bytes

    def _fixed_shift(self, mode: TracingMode) -> int | None:
        """The fixed shift of a process that is not adapted; 0: every block is recorded."""
        if mode in (TracingMode.EXACT, TracingMode.INSIDE):
            return 0
        interval_bytes = self._options.interval_bytes
        return None if interval_bytes is None else interval_bytes.bit_length() - 1

    def _adapt_from(self, pid: int, shift: int, counters: ProcessCounters, now_ns: int) -> _SampledProcess:
        capacity = self._maps.live_capacity(pid)
        state = SamplingState(shift, crowded_at=next_crowded(_filled(counters, capacity)))
        process = self._processes[pid] = _SampledProcess(state, now_ns, counters, capacity)
        return process

    def _log(
        self, pid: int, process: _SampledProcess, shift: int, rates: RecordingRates, now_ns: int
    ) -> None:
        level = log.info if process.log.take(now_ns) else log.debug
        level(
            "process.sampling-changed",
            pid=pid,
            sample_interval_bytes=1 << shift if shift else None,
            recorded_per_s=round(rates.records_per_s),
            allocated_bytes_per_s=round(rates.bytes_per_s),
        )


def _filled(counters: ProcessCounters, live_capacity: int) -> float:
    """How full the table of live blocks is, from 0 to 1."""
    return (counters.recorded - counters.released) / live_capacity
