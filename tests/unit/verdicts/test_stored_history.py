"""Saved histories: the same verdicts again."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from bench import simulated_sites as sites
from msgspec.structs import replace

from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import Verdict
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.site_verdict import Context, classify_sites
from bpfleakd.verdicts.stored_history import STORED_VERSION, classified

MIB = 1 << 20


def saved(*makes: sites.Make, seconds: float = 90.0) -> StoredHistory:
    """The history of made-up sites, as the daemon would save it; memory grows by a MiB a second."""
    random = np.random.default_rng(23)
    (histories,) = sites.histories_at([make(random, seconds) for make in makes], [seconds])
    matrices = (
        histories.low_bytes,
        histories.low_count,
        histories.born_count,
        histories.survivors_count,
        histories.survivors_bytes,
    )
    rows = []
    for number in range(len(makes)):
        live = int(histories.live_bytes[number]), int(histories.live_count[number])
        figures = [tuple(matrix[:, number].tolist()) for matrix in matrices]
        rows.append(StoredSite(f"{number:016x}", AllocationKind.HEAP, f"f{number}", "shop", *live, *figures))
    ends_s = tuple(histories.ends_s.tolist())
    # The least in each bin.
    memory = tuple(100.0 * MIB + MIB * end_s for end_s in ends_s)
    limits = (MemoryLimit(MemoryLimitKind.CGROUP, 512 * MIB, 412 * MIB),)
    return StoredHistory(
        STORED_VERSION,
        "shop",
        45.0,
        0.0,
        0,
        0,
        ends_s,
        ends_s,
        memory,
        limits,
        tuple(rows),
        firsts_s=tuple(histories.firsts_s.tolist()),
        allocated_count=tuple(histories.allocated_count.tolist()),
    )


def test_the_verdicts_are_those_of_the_daemon() -> None:
    """After a way through JSON, too."""
    history = saved(sites.leak(5), sites.cache(50, 20), sites.churn(100, 0.1))
    again = msgspec.json.decode(msgspec.json.encode(history), type=StoredHistory)
    assert again == history
    _process, found = classified(again)
    assert [verdict.verdict for _site, verdict in found] == [Verdict.LEAK, Verdict.PLATEAU, Verdict.CHURN]
    random = np.random.default_rng(23)
    makes = (sites.leak(5), sites.cache(50, 20), sites.churn(100, 0.1))
    (histories,) = sites.histories_at([make(random, 90.0) for make in makes], [90.0])
    classification = classify_sites(persistence_of(replace(histories, weight=None)), Context())
    assert [verdict for _site, verdict in found] == [classification.of(row) for row in range(3)]


def test_a_column_of_the_process_of_another_length() -> None:
    with pytest.raises(ValueError, match="5 figures for"):
        classified(replace(saved(sites.leak(5)), allocated_count=(1.0,) * 5))


def test_the_process_is_judged_too() -> None:
    """Its memory grows by far more than the leak."""
    process, _sites = classified(saved(sites.leak(5)))
    assert process.verdict is Verdict.LEAK
    assert process.memory_bytes_per_s == pytest.approx(MIB, rel=0.01)
    assert process.limit_reached_s == pytest.approx(100, rel=0.01)


def test_a_longer_wait_for_leaks() -> None:
    """The configured value is saved, too."""
    _process, ((_site, verdict),) = classified(replace(saved(sites.leak(5)), leak_after_s=600.0))
    assert verdict.verdict is Verdict.GROWING


def test_nothing_saved() -> None:
    """No sites and no time are not an error."""
    history = StoredHistory(STORED_VERSION, "shop", 45.0, 0.0, 0, 0, (), (), (), (), ())
    process, found = classified(history)
    assert (process.verdict, found) == (Verdict.UNKNOWN, [])


def test_columns_of_different_lengths() -> None:
    """A file that was edited is refused in words."""
    history = replace(saved(sites.leak(5)), firsts_s=(), allocated_count=())
    with pytest.raises(ValueError, match="has not 60 figures"):
        classified(replace(history, ends_s=history.ends_s[:60], memory_s=(), memory_bytes=()))


def test_sites_whose_blocks_nobody_counted_are_judged_beside_others() -> None:
    """Those of Go's heap have no survivors: without them a leak is one all the same."""
    history = saved(sites.leak(5), sites.cache(50, 20), sites.leak(5))
    without = replace(history.sites[2], survivors_count=(), survivors_bytes=(), kind=AllocationKind.GO_HEAP)
    _process, found = classified(replace(history, sites=(*history.sites[:2], without)))
    assert [verdict.verdict for _site, verdict in found] == [Verdict.LEAK, Verdict.PLATEAU, Verdict.LEAK]
    assert ["of old blocks" in verdict.reason for _site, verdict in found] == [True, False, False]


def test_sites_of_gos_heap_are_judged_as_of_its_collections() -> None:
    """Which were too few here: the same figures, and no verdict."""
    history = saved(sites.leak(5))
    site = replace(history.sites[0], survivors_count=(), survivors_bytes=(), kind=AllocationKind.GO_HEAP)
    history = replace(history, sites=(site,))
    for collected_s, verdict in ((None, Verdict.LEAK), (history.ends_s, Verdict.LEAK), ((30.0, 60.0), None)):
        _process, [(_site, found)] = classified(replace(history, collected_s=collected_s))
        assert (found.verdict is Verdict.LEAK) == (verdict is Verdict.LEAK), collected_s


def test_sites_are_judged_as_of_when_the_table_of_blocks_was_full() -> None:
    """Sites that seem to have stopped then may continue."""
    history = saved(sites.stopping(10, 120.0), seconds=300.0)
    _process, [(_site, seen)] = classified(history)
    process, [(_site, unseen)] = classified(replace(history, full_s=180.0))
    assert (seen.verdict, unseen.verdict) == (Verdict.PLATEAU, Verdict.LEAK)
    assert unseen.reason.endswith("; not seen for 3m00s: the table of live blocks is full")
    full = "the table of live blocks has been full for 3m00s, memory grows +1.00 MiB/s since"
    assert full in process.reason
