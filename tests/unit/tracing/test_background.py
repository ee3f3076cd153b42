"""Jobs beside the loop: callers wait no longer than their limit, and each owner has one job at a time."""

from __future__ import annotations

import threading

from bpfleakd.tracing.background import Background


def test_a_job_that_takes_long_is_not_waited_for():
    """It continues, and is not started again; the next one starts after its end."""
    jobs, may_end, runs = Background("test", 2), threading.Event(), []

    def job() -> None:
        runs.append(1)
        may_end.wait()

    assert not jobs.do("one", job, 0.0)
    assert not jobs.do("one", job, 0.0)
    may_end.set()
    assert jobs.do("one", job, 10.0)
    assert jobs.do("one", job, 10.0)
    assert len(runs) in (2, 3)


def test_owners_beyond_the_limit_wait():
    """Earlier ones continue."""
    jobs, may_end = Background("test", 1), threading.Event()
    assert not jobs.do("one", may_end.wait, 0.0)
    assert not jobs.do("two", lambda: None, 0.0)
    may_end.set()
    assert jobs.do("one", lambda: None, 10.0)
    assert jobs.do("two", lambda: None, 10.0)


def test_an_error_ends_one_job():
    """It is logged, and waiting owners continue."""
    jobs = Background("test", 1)

    def fail() -> None:
        raise ValueError("a bug")

    assert jobs.do("one", fail, 10.0)
    assert jobs.do("one", lambda: None, 10.0)
