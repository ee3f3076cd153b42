"""Programs to trace, and the CPU time of their work."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.kernel.workloads import BUILD, SOURCES, Workload
from tests.kernel.workloads import build as build_workload

from bpfleakd.process.process import process_cpu_ns

__all__ = ["Target", "build_program", "build_workload", "cpu_percent", "own_libc", "process_cpu_ns"]

_PROGRAMS = Path(__file__).parent / "programs"
_PROBING_PAIRS = 500


class Target(Workload):
    """A workload whose step N repeats its work N times, with the C library of `own_libc` if given."""

    def __init__(self, command: Sequence[object], libc: Path | None = None) -> None:
        environment = ["env", f"LD_LIBRARY_PATH={libc.parent}"] if libc else []
        super().__init__([*environment, *map(str, command)])

    def ns_per_round(self, span_s: float = 0.03, repeats: int = 5) -> list[float]:
        """CPU time of one round, `repeats` times, each the mean over about `span_s` of rounds."""
        self.cpu_ns(_PROBING_PAIRS)
        probed = _PROBING_PAIRS
        # The kernel counts the time of a running thread now and then, so a short step may seem to take none.
        while not (probed_ns := self.cpu_ns(probed)):
            probed *= 2
        rounds = max(_PROBING_PAIRS, int(span_s * 1e9 * probed / probed_ns))
        return [self.cpu_ns(rounds) / rounds for _ in range(repeats)]

    def close(self) -> None:
        """End it."""
        self.kill()

    def cpu_ns(self, rounds: int) -> int:
        """CPU time of a step, of all threads together, including the kernel's probes."""
        before_ns = process_cpu_ns(self.pid)
        self.step(rounds)
        return process_cpu_ns(self.pid) - before_ns


@contextlib.contextmanager
def own_libc() -> Iterator[Path]:
    """A private copy of the C library.

    Probes belong to a file: every hit runs the filters of all probes at that place, whichever process they
    are for. And bcc 0.26 gives its probes a reference counter at a random place, so it cannot attach where
    other probes are, nor can they attach where it is.
    """
    with open("/proc/self/maps") as maps:
        (path,) = {found[0] for line in maps if (found := re.search(r"/\S*/libc\.so\.6$", line.rstrip()))}
    with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
        yield Path(shutil.copy(path, directory))


def build_program(name: str) -> Path:
    """A program of bench/programs, compiled if its source is newer."""
    program = BUILD.parent / "bench" / name
    subprocess.run(
        ["make", "--silent", "-C", _PROGRAMS, f"BUILD={program.parent}", f"WORKLOADS={SOURCES}", program],
        check=True,
    )
    return program


def cpu_percent(pid: int, span_s: float, spans: int) -> list[float]:
    """Percent of a core that a process uses, over each of this many spans."""
    percents = []
    for _span in range(spans):
        before_ns, began_s = process_cpu_ns(pid), time.monotonic()
        time.sleep(span_s)
        percents.append(100 * (process_cpu_ns(pid) - before_ns) / (time.monotonic() - began_s) / 1e9)
    return percents
