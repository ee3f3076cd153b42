"""What the programs have counted is taken into the tables of the traced processes."""

from __future__ import annotations

import numpy as np
import structlog

from bpfleakd import errors
from bpfleakd.kernel import abi
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.maps import Maps
from bpfleakd.model.site import SiteKey
from bpfleakd.monitor.attach import Attacher
from bpfleakd.monitor.population import Population
from bpfleakd.monitor.sampling import Sampling
from bpfleakd.monitor.space_feed import SpaceFeed
from bpfleakd.monitor.spaces import AddressMaps
from bpfleakd.monitor.traced import Traced
from bpfleakd.monitor.unwinding import Unwinding
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.target.mappings import read_mappings

__all__ = ["Reading"]

log = structlog.get_logger()


class Reading:
    """Reads counters, changes of address spaces and of libraries, for all that are traced."""

    def __init__(
        self,
        maps: Maps,
        attacher: Attacher,
        unwinding: Unwinding,
        spaces: AddressMaps,
        feed: SpaceFeed,
        sampling: Sampling,
        population: Population,
    ) -> None:
        self._maps = maps
        self._attacher = attacher
        self._unwinding = unwinding
        self._spaces = spaces
        self._feed = feed
        self._sampling = sampling
        self._population = population
        # The kernel's sites, as they were read last.
        self.sites: tuple[np.ndarray, np.ndarray] = np.empty(0, abi.SITE_KEY), np.empty(0, abi.SITE)

    def read(self, now_ns: int) -> None:
        """Bring all tables up to now."""
        # First, so that a peak of the heap can be told from those that the events bring.
        counters = {pid: self._maps.process(pid) for pid in self._population.running}
        for pid in self._feed.read():
            if pid in self._population.running:
                self.follow_libraries(self._population.running[pid])
        keys, sites = self.sites = self._maps.sites()
        columns = np.stack([sites[name].astype(np.int64) for name in COUNTERS], axis=1)
        for pid, traced in self._population.running.items():
            rows = np.flatnonzero(keys["tgid"] == pid)
            site_keys = [
                SiteKey(abi.KINDS[kind], stack_id)
                for kind, stack_id in zip(
                    keys["kind"][rows].tolist(), keys["stack_id"][rows].tolist(), strict=True
                )
            ]
            if not traced.is_gone:
                self._spaces.repair(pid, traced.counters.losses["event_full"])
            space = self._spaces.map_of(pid)
            traced.unrecorded_regions = space.unrecorded_count if space else 0
            space_keys, space_columns = space.counters() if space else ([], columns[:0])
            traced.table.update(
                now_ns, site_keys + space_keys, np.concatenate([columns[rows], space_columns])
            )
            before, traced.counters = traced.counters, counters[pid]
            heap_bytes = int(columns[rows, COUNTERS.index("allocated_bytes")].sum())
            self._sampling.adapt(pid, traced.counters, heap_bytes, now_ns)
            heap_peak_bytes = traced.counters.heap_peak_bytes
            traced.verdicts.note(now_ns, traced.counters)
            traced.table.note_peak(self._spaces.peak_live_bytes(pid, heap_peak_bytes, now_ns))
            if traced.counters.library_changes != before.library_changes:
                self.follow_libraries(traced)

    def follow_libraries(self, traced: Traced) -> None:
        """Probe, unwind and name what a process has loaded meanwhile."""
        # After exec the libraries are those of another program.
        if traced.is_gone or self._maps.process(traced.pid).state is not RecordingState.RECORDING:
            return
        try:
            mappings = read_mappings(traced.pid)
        except errors.BpfleakdError:
            # It has just ended, which the next tick notices.
            return
        traced.attachment = self._attacher.follow(traced.attachment, mappings)
        traced.symbolizer.update_mappings(mappings)
        self._unwinding.follow(traced.pid, mappings, wait_s=0.0)
        log.info("process.libraries-changed", pid=traced.pid, mappings=len(mappings))
