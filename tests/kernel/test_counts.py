"""The figures equal the truth, exactly."""

from __future__ import annotations

from collections import Counter

import pytest

from .truth import by_function, expect_ledger, expect_no_losses, short_name, site_of
from .waiting import wait_until


def test_every_allocator_function_is_counted_exactly(daemon, workload):
    """23 kept and 101 freed through each function, on three threads, with each way to fail."""
    # given a program that says how much it will have allocated, and where
    program = workload("every_function", 3)
    tracer = daemon()
    tracer.attach(program.pid)

    # when it has run
    ledger = program.step()

    # then the report is the ledger
    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    expect_no_losses(report)


def test_every_run_into_a_probe_is_counted(daemon, workload):
    """The cost of tracing is visible from outside: entry, return and free of 10,007 pairs."""
    program = workload("churn")
    tracer = daemon(attach_method="multi")
    tracer.attach(program.pid)
    tracer.top_after_tick(program.pid)
    before = tracer.process(program.pid)["probe_hits"]

    program.step(10_007)

    tracer.top_after_tick(program.pid)
    hits = tracer.process(program.pid)["probe_hits"] - before
    assert 3 * 10_007 <= hits <= 3 * 10_007 + 100


def test_figures_stay_exact_from_step_to_step(daemon, workload):
    """Counters are running totals: a second round adds up, and nothing is counted twice."""
    program = workload("every_function", 2)
    tracer = daemon()
    tracer.attach(program.pid)

    for _round in range(3):
        ledger = program.step()
        expect_ledger(tracer.top_after_tick(program.pid), ledger)


@pytest.mark.long
def test_blocks_from_before_the_attach_are_unmatched_frees_and_no_loss(daemon, workload):
    """A free or realloc of a block from before the attach changes no figure."""
    program = workload("every_function", 1)
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    assert ledger["frees_of_earlier_blocks"] == 23
    # They count once their thread has gone on for half a second.
    wait_until(lambda: tracer.top(program.pid)["process"]["unmatched_frees"] == 23)
    expect_no_losses(report)


def test_frees_of_older_blocks_count_once_all_are_recorded(daemon, workload):
    """A process that was sampled at first, and allocates little."""
    program = workload("every_function", 1)
    tracer = daemon()
    tracer.control("attach", program.pid, "--mode", "sampled")
    wait_until(lambda: tracer.top(program.pid)["process"]["sample_interval_bytes"] is None)

    ledger = program.step()

    wait_until(lambda: tracer.top(program.pid)["process"]["unmatched_frees"] == 23)
    assert ledger["frees_of_earlier_blocks"] == 23


def test_failing_calls_leave_no_trace(daemon, workload):
    """malloc, calloc, reallocarray, posix_memalign that fail, and free(NULL), make no site."""
    program = workload("every_function", 1)
    tracer = daemon()
    tracer.attach(program.pid)

    program.step()

    blamed = by_function(tracer.top_after_tick(program.pid))
    assert not [name for name in blamed if name and name.startswith(("fail_", "free_nothing"))]


def test_blocks_freed_by_other_threads_at_full_speed_are_counted_exactly(daemon, workload):
    """A million blocks, each address given out again at once by another thread: 46 remain."""
    program = workload("cross_thread", 2)
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step(500_000)

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    assert report["process"]["live_count"] == 46
    expect_no_losses(report)


def test_a_thousand_call_stacks_are_a_thousand_sites(daemon, workload):
    """Stacks that differ in one return address are different sites."""
    program = workload("many_sites", 1000)
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    assert len(report["sites"]) == 1000
    assert {site["live_count"] for site in report["sites"]} == {23}
    assert len({site["site"] for site in report["sites"]}) == 1000, "two stacks have one fingerprint"


def test_a_million_live_blocks_are_counted_exactly(daemon, workload):
    """The live table holds the blocks of a large program."""
    program = workload("many_sites", 101)
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step(1_000_003)

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    assert report["process"]["live_count"] == 1_000_003
    expect_no_losses(report)


def test_cxx_leaks_are_blamed_on_the_programs_own_functions(daemon, workload):
    """new, new[], std::string, std::vector, make_shared: never operator new or std:: is to blame."""
    program = workload("cxx")
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    for function in ledger["sites"]:
        assert "cxx.cpp:" in site_of(report, function)["location"]


def test_an_inlined_function_is_blamed_and_its_caller_is_in_the_stack(daemon, workload):
    """The debug information has shop::detail::label, which has no symbol."""
    program = workload("cxx")
    tracer = daemon()
    tracer.attach(program.pid)

    program.step()

    stack = site_of(tracer.top_after_tick(program.pid), "shop::detail::label")["stack"]
    functions = [short_name(frame["function"]) for frame in stack]
    where = functions.index("shop::detail::label")
    assert functions[where + 1] == "shop::SessionStore::remember"
    assert stack[where]["inlined"]
    assert not stack[where + 1]["inlined"]
    assert stack[where]["address"] == stack[where + 1]["address"]


def test_the_shares_of_the_threads_add_up_to_their_site(daemon, workload):
    """Each site states which threads allocated its live bytes."""
    program = workload("every_function", 3)
    tracer = daemon()
    tracer.attach(program.pid)

    program.step()

    for site in tracer.top_after_tick(program.pid)["sites"]:
        if site["live_bytes"] and site["threads"]:
            assert sum(thread["live_bytes"] for thread in site["threads"]) == site["live_bytes"]
    site = site_of(tracer.top(program.pid), "take_malloc")
    assert len(site["threads"]) == 3
    assert {thread["comm"] for thread in site["threads"]} == {"every_function"}


def test_the_oldest_age_grows_with_the_leak(daemon, workload):
    """`oldest_age_s` is the age of the oldest block, not of the newest."""
    program = workload("many_sites", 1, 23)
    tracer = daemon()
    tracer.attach(program.pid)

    program.step()
    first = tracer.top_after_tick(program.pid)["sites"][0]["oldest_age_s"]
    program.step()
    second = tracer.top_after_tick(program.pid)["sites"][0]["oldest_age_s"]

    assert 0 < first < second


def test_attaching_in_the_middle_of_a_storm_loses_and_invents_nothing(daemon, workload):
    """At any moment of a malloc/free loop at most one block a thread is live, from the first look on."""
    program = workload("churn", 2)
    tracer = daemon()

    # given a program at full speed, when it is attached and detached repeatedly
    program.start_step(1_500_000_000 // 1000)
    for _round in range(3):
        tracer.attach(program.pid)
        report = tracer.top_after_tick(program.pid)
        assert 0 <= report["process"]["live_count"] <= 2
        assert all(site["live_count"] >= 0 for site in report["sites"])
        tracer.detach(program.pid)

    # then it ends well
    program.finish_step()
    program.exit()


@pytest.mark.long
def test_a_site_that_changes_between_readings_is_never_missed(daemon, workload):
    """Only the sites that changed are read: of a thousand now one and now many, many times a second."""
    program = workload("many_sites", 1000, 1000)
    tracer = daemon(tick_s=0.1)
    tracer.attach(program.pid)
    expected = Counter(dict.fromkeys(range(1000), 1))
    program.step()

    for count in (1, 7, 1, 101, 23, 1, 997, 3, 1):
        ledger = program.step(count)
        expected.update(range(count))
        report = tracer.top(program.pid)
        expect_ledger(report, ledger)
        live = sorted(site["live_count"] for site in report["sites"])
        assert live == sorted(expected.values())
