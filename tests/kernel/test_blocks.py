"""Blocks one by one, temporary blocks, peaks, and shares by function and thread: all of it exact."""

from __future__ import annotations

import pytest

from .truth import by_function, expect_no_losses, short_name
from .waiting import wait_until

MIB = 1 << 20


@pytest.fixture
def traced(daemon, workload):
    """A daemon that traces the workload `blocks`, which has run a step; and its ledger."""

    def run(step: int, **configuration):
        program = workload("blocks")
        tracer = daemon(**configuration)
        tracer.attach(program.pid)
        ledger = program.step(step)
        tracer.top_after_tick(program.pid)
        return tracer, program, ledger

    return run


def addresses_in(ledger: dict) -> list[int]:
    return [ledger[f"block_{n}"] for n in range(20)]


def expect_the_guilty(report: dict, ledger: dict) -> None:
    (site,) = report["sites"]
    assert [block["address"] for block in site["blocks"]] == addresses_in(ledger), "oldest first"
    assert {block["size_bytes"] for block in site["blocks"]} == {MIB}
    assert (site["live_bytes"], site["live_count"], site["left_out_count"]) == (20 * MIB, 20, 0)
    assert (report["live_bytes"], report["live_count"], report["left_out_count"]) == (20 * MIB, 20, 0)
    assert site["caller"]["function"] == "guilty"
    assert site["caller"]["location"].endswith(f"blocks.c:{ledger['guilty_line']}")
    functions = [frame["function"] for frame in site["stack"]]
    assert functions[1:4] == ["checked_malloc", "guilty", "use_the_wrapper"]
    assert functions[4:6] == ["step", "workload_serve"]


def test_the_blocks_of_who_leaks_through_a_wrapper(traced):
    """20 blocks of 1 MiB, each by its address, with the function that keeps them: neither the wrapper nor an
    innocent caller.
    """
    tracer, program, ledger = traced(1)

    report = tracer.blocks(program.pid)

    expect_the_guilty(report, ledger)
    expect_no_losses(report)
    (site,) = report["sites"]
    assert {(block["tid"], block["comm"]) for block in site["blocks"]} == {(program.pid, "blocks")}
    ages = [block["age_s"] for block in site["blocks"]]
    assert ages == sorted(ages, reverse=True)
    assert 0 < min(ages) <= max(ages) < 60
    # Both callers are separate sites, and one of them has no blocks.
    sites = {site["stack"][2]["function"]: site for site in tracer.top(program.pid)["sites"]}
    assert {name: site["live_count"] for name, site in sites.items()} == {"guilty": 20, "innocent": 0}
    assert sites["guilty"]["site"] == report["sites"][0]["site"]


def test_one_site_and_old_blocks_only(traced):
    """By the fingerprint that `top` and the report show; a site without blocks has none to list."""
    tracer, program, ledger = traced(1)
    sites = {site["stack"][2]["function"]: site["site"] for site in tracer.top(program.pid)["sites"]}

    expect_the_guilty(tracer.blocks(program.pid, "--site", sites["guilty"]), ledger)
    assert tracer.blocks(program.pid, "--site", sites["innocent"])["sites"] == []
    assert tracer.blocks(program.pid, "--older-than", "1h")["live_count"] == 0
    wait_until(lambda: tracer.blocks(program.pid, "--older-than", "1s")["live_count"])
    expect_the_guilty(tracer.blocks(program.pid, "--older-than", "1s"), ledger)
    short = tracer.blocks(program.pid, "--limit", 7)
    assert [block["address"] for block in short["sites"][0]["blocks"]] == addresses_in(ledger)[:7]
    assert (short["live_count"], short["left_out_count"]) == (20, 13)
    text = tracer.control("report", "--pid", program.pid)
    for address in addresses_in(ledger):
        assert f"{address:#x} " in text
    assert f"blocks.c:{ledger['guilty_line']}" in text


def test_the_report_is_kept_when_the_process_exits(traced):
    """Blocks, ages, callers and stacks: all that was there before."""
    tracer, program, ledger = traced(1)
    before = tracer.blocks(program.pid)

    program.exit()
    wait_until(lambda: tracer.process(program.pid)["process"]["state"] == "exited")

    after = tracer.blocks(program.pid)
    expect_the_guilty(after, ledger)
    assert after["sites"][0]["stack"] == before["sites"][0]["stack"]
    assert after["process"]["state"] == "exited"
    assert tracer.blocks(program.pid, "--limit", 3)["left_out_count"] == 17


@pytest.mark.long
def test_a_million_blocks_are_summed_and_some_are_listed(daemon, workload):
    """The list is bounded, the sums are not; old blocks are found among all."""
    program = workload("many_sites", 101)
    tracer = daemon()
    tracer.attach(program.pid)
    ledger = program.step(1_000_003)
    tracer.top_after_tick(program.pid)

    report = tracer.blocks(program.pid)

    assert (report["live_bytes"], report["live_count"]) == (ledger["live_bytes"], 1_000_003)
    listed = [block for site in report["sites"] for block in site["blocks"]]
    assert (len(report["sites"]), len(listed), report["left_out_count"]) == (101, 1000, 999_003)
    assert len({block["address"] for block in listed}) == 1000


@pytest.mark.parametrize("step", [2, 5])
def test_temporary_blocks(traced, step):
    """Exactly those that were freed by their thread before it allocated another, whatever others did."""
    tracer, program, ledger = traced(step)

    report = tracer.top(program.pid)

    expected = {
        name.removeprefix("temporary_"): count
        for name, count in ledger.items()
        if name.startswith("temporary_")
    }
    counted = dict.fromkeys(expected, 0)
    for site in report["sites"]:
        counted[short_name(site["function"])] += site["temporary_count"]
    assert counted == expected
    assert report["process"]["temporary_count"] == sum(expected.values())
    assert report["process"]["live_count"] == 0
    assert tracer.process(program.pid)["process"]["temporary_count"] == sum(expected.values())


@pytest.mark.parametrize("method", ["session", "multi", "perf"])
def test_peaks(traced, method):
    """Of a site, and of heap and mappings together, which peaked at different times."""
    tracer, program, ledger = traced(3, attach_method=method)

    report = tracer.top(program.pid)

    assert report["process"]["peak_live_bytes"] == ledger["peak"]
    peaks = {}
    for site in report["sites"]:
        name = short_name(site["function"])
        peaks[name, site["kind"]] = max(site["peak_live_bytes"], peaks.get((name, site["kind"]), 0))
    assert peaks["swell", "heap"] == ledger["peak_swell"]
    assert peaks["map", "mmap"] == 8 * MIB
    mappings = [site for site in report["sites"] if site["kind"] == "mmap"]
    assert {site["temporary_count"] for site in mappings} == {None}


def test_shares_of_functions_and_threads(traced):
    """Three functions leak different amounts from three threads at once: each share is right to the byte."""
    tracer, program, ledger = traced(4)

    report = tracer.top(program.pid)
    figures = by_function(report)
    assert {name: figures[name] for name in ledger["sites"]} == ledger["sites"]
    total = ledger["live_bytes"], ledger["live_count"]

    functions = {group["group"]: group for group in tracer.groups(program.pid, "function")["groups"]}
    for name, figures in ledger["sites"].items():
        assert {figure: functions[name][figure] for figure in figures} == figures
    assert set(functions) == set(ledger["sites"])

    threads = {group["group"]: group for group in tracer.groups(program.pid, "thread")["groups"]}
    assert len(threads) == 3
    for n in range(3):
        thread = threads[str(ledger[f"tid_{n}"])]
        assert (thread["live_bytes"], thread["live_count"]) == (ledger[f"thread_{n}"], ledger[f"count_{n}"])
        assert thread["comm"] == "blocks"
        assert len(thread["sites"]) == 3

    for by in ("function", "module", "thread", "stack"):
        groups = tracer.groups(program.pid, by)["groups"]
        assert tuple(sum(group[name] for group in groups) for name in ("live_bytes", "live_count")) == total
    (module,) = tracer.groups(program.pid, "module")["groups"]
    assert module["group"].endswith("blocks")
    expect_no_losses(report)
