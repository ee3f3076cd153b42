"""The time that a request is reported to take."""

from __future__ import annotations

import time

from bpfleakd.process.reading.server import Took


def test_work_is_not_waiting():
    """However long it takes: the process that is read has no part in it."""
    for _ in range(50):
        took = Took()
        until_ns = time.thread_time_ns() + 2_000_000
        while time.thread_time_ns() < until_ns:
            pass
        if took.ns() == 0:
            return
    raise AssertionError("each time it slept")


def test_waiting_counts_with_all_that_is_between():
    """From the beginning on."""
    took = Took()
    time.sleep(0.02)
    assert took.ns() >= 20_000_000
