"""Threads and their time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bpfleakd.threads import waited_for_core_ns


def test_the_time_of_waiting_for_a_core_is_known() -> None:
    """Beside a program that never rests, on the same core."""

    def work() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            before_ns, deadline_s = waited_for_core_ns(), time.monotonic() + 60
            try:
                # Without a rest: who rests gets the core at once.
                while waited_for_core_ns() < before_ns + 20_000_000:
                    assert time.monotonic() < deadline_s
            finally:
                other.kill()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
