"""Attackers of another user, and a tracer that a bystander shares with them."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest

from ..kernel.daemons import Daemon
from .bystander import Bystander, resident_bytes

# Whether all attacks are tried, and for longer: `make test-hostile`. `make test` has some of each kind.
AT_LENGTH = "HOSTILE_S" in os.environ
HOSTILE_S = float(os.environ.get("HOSTILE_S", "2"))
at_length = pytest.mark.skipif(not AT_LENGTH, reason="takes long: make test-hostile")
NOBODY = 65534


@contextlib.contextmanager
def attackers(*command: object, count: int = 1, lasting: bool = True) -> Iterator[list[int]]:
    """Run `command` as the user nobody, `count` times, until the end of the context; yields their pids.

    `lasting`: one that ends earlier is a failure of the test.
    """
    running = [_as_nobody(command) for _ in range(count)]
    try:
        yield [process.pid for process in running]
        assert not lasting or all(process.poll() is None for process in running), "an attacker has ended"
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def expect_left_alone(bystander: Bystander) -> Iterator[None]:
    """All that a bystander is promised holds while the body attacks, and its daemon's memory comes back."""
    with bystander.during_attack():
        yield
    answers_s, walls_s = bystander.answers_s, bystander.walls_s
    peak_bytes = resident_bytes(bystander.tracer.pid)
    print(
        f"ps median {statistics.median(answers_s) * 1e3:.0f} ms, longest {max(answers_s) * 1e3:.0f} ms "
        f"(by the clock {statistics.median(walls_s) * 1e3:.0f} and {max(walls_s) * 1e3:.0f}); "
        f"longest tick {max(bystander.ticks_s) * 1e3:.0f} ms of a processor "
        f"(by the clock {max(bystander.waits_s) * 1e3:.0f}); "
        f"daemon {bystander.resident_before >> 20} → {peak_bytes >> 20} MiB"
    )
    began_s = time.monotonic()
    bystander.memory_returns()
    print(f"memory was back after {time.monotonic() - began_s:.1f} s")


def work_on(bystander: Bystander) -> None:
    """Have the bystander go on for as long as attacks last."""
    deadline_s = time.monotonic() + HOSTILE_S
    while time.monotonic() < deadline_s:
        bystander.program.step(23)
        bystander.tracer.top_after_tick(bystander.program.pid)


def notes_of(tracer: Daemon, pid: int) -> str:
    """The notes that `ps` shows for a traced process."""
    row = tracer.process(pid)
    return " ".join(row["process"]["notes"]) if row else ""


def _as_nobody(command: Sequence[object]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(part) for part in command],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
