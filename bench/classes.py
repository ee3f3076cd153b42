"""Which classes of C++ blocks hold: CPU time for 500 blocks, as the daemon reads them from outside."""

from __future__ import annotations

import contextlib
import time

import numpy as np

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_workload
from bench.tracing import RunningDaemon
from bpfleakd.api.service import BLOCKS_LISTED_MAX
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.symbols.cxx.rtti import ClassReader

_BLOCKS = 500
_READINGS = 50
_CLASSES = 9
_CPU_MS = 5


def measure(short: bool) -> Benchmark:
    """Mappings, blocks, vtables and names, each time without any cache; no demangling."""
    benchmark = Benchmark("classes", "Classes of C++ objects", short)
    with RunningDaemon() as daemon, contextlib.closing(Target([build_workload("classes")])) as target:
        daemon.client.attach(target.pid)
        target.step()
        report = daemon.client.blocks(target.pid, limit=BLOCKS_LISTED_MAX)
        blocks = [block for site in report.sites for block in site.blocks]
        blocks = [blocks[place * len(blocks) // _BLOCKS] for place in range(_BLOCKS)]
        addresses = np.array([block.address for block in blocks], np.uint64)
        sizes = np.array([block.size_bytes for block in blocks], np.uint64)
        samples = []
        with RemoteMemory(target.pid) as memory:
            for _ in range(5 if short else _READINGS):
                began_s = time.process_time()
                reader = ClassReader()
                reader.use(read_mappings(target.pid))
                found = reader.read(target.pid, memory, addresses, sizes)
                samples.append((time.process_time() - began_s) * 1e3)
    classes = len({one.name for one in found if one})
    assert classes >= _CLASSES, classes
    took = benchmark.add(f"{_BLOCKS} blocks of {classes} classes, or none", "ms", samples)
    benchmark.demand(took.name, _CPU_MS, took, "ms")
    return benchmark


if __name__ == "__main__":
    run_alone(measure)
