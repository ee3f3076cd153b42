"""Frees of blocks from before the attach, counted or estimated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import pytest

from bpfleakd.kernel.abi import LOSS_REASONS, RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.estimates import COUNT_VARIANCE_UNIT
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.judging.observations import Observations
from bpfleakd.verdicts.process_verdict import FoundGrowth, classify_process
from bpfleakd.verdicts.site_verdict import Context

NS_PER_S = 1_000_000_000
SECONDS = 90


def counters(unmatched_frees: int = 0, **figures: int) -> ProcessCounters:
    losses = dict.fromkeys(LOSS_REASONS, 0)
    return ProcessCounters(RecordingState.RECORDING, unmatched_frees, 0, losses, **figures)


GROWS, CHURNS = SiteKey(AllocationKind.HEAP, 1), SiteKey(AllocationKind.HEAP, 2)
Reading: TypeAlias = "tuple[ProcessCounters, dict[SiteKey, SiteCounters]]"


def site(live_count: int, allocated_count: int, weight: int = 1) -> SiteCounters:
    """The estimates of blocks that stand for `weight` each."""
    variance = live_count * (weight - 1) / COUNT_VARIANCE_UNIT
    return SiteCounters(0, live_count, 0, allocated_count, live_count_variance=round(variance))


def note(observed: Observations, table: SiteTable, now_ns: int, reading: Reading) -> None:
    figures, sites = reading
    rows = np.array([[getattr(each, name) for name in COUNTERS] for each in sites.values()], np.int64)
    table.update(now_ns, list(sites), rows.reshape(len(sites), len(COUNTERS)))
    observed.note(now_ns, figures, table.heap_totals)


def context_after(readings: Iterable[Reading]) -> Context:
    """One reading a second."""
    observed, table = Observations(), SiteTable(0)
    for second, reading in enumerate(readings):
        note(observed, table, second * NS_PER_S, reading)
    return observed.context(table)


def sampled(weight: int, grown: int, churned: int, older_frees: int) -> Reading:
    """One block in `weight` was recorded: `grown` that stay and `churned` that do not."""
    made, recorded, released = grown + churned, grown // weight + churned // weight, churned // weight
    figures = counters(
        sample_shift=12,
        was_sampled=True,
        recorded=recorded,
        released=released,
        unrecorded=made - recorded,
        unrecorded_frees=churned - released + older_frees,
    )
    seen = grown // weight * weight
    return figures, {GROWS: site(seen, seen, weight), CHURNS: site(0, churned, weight)}


def test_while_every_block_is_recorded_frees_of_unknown_ones_are_of_older_ones() -> None:
    """In the last third of the time."""
    readings = [
        (counters(unmatched_frees=100 * t), {GROWS: site(100 * t, 100 * t)}) for t in range(SECONDS + 1)
    ]
    assert context_after(readings).replaced_count == 100 * SECONDS / 3


@pytest.mark.parametrize("is_restored", [False, True])
def test_more_frees_than_older_blocks_can_have_been(is_restored: bool) -> None:
    """A wrapper passes on other addresses than it got: each of its frees is one of an unknown block."""
    observed, table = Observations(), SiteTable(0)
    observed.note_memory(NS_PER_S, 0, 16 * 50 * SECONDS)
    for second in range(SECONDS + 1):
        frees = counters(unmatched_frees=1_000 + 100 * second)
        note(observed, table, second * NS_PER_S, (frees, {GROWS: site(100 * second, 100 * second)}))
        observed.note_memory((second + 1) * NS_PER_S, 0, 1 << 30)
        if is_restored:
            observed = Observations.restored(observed.checkpoint())
        replaced = observed.context(table).replaced_count
        assert replaced == (100 * (second - second * 2 // 3) if second <= SECONDS / 2 else 0)


@pytest.mark.parametrize("weight", [8, 64])
def test_while_blocks_are_sampled_what_sites_gain_beyond_the_process_was_freed_before(weight: int) -> None:
    """100 blocks a second replace 100 older ones, besides 10,000 that come and go."""
    readings = [sampled(weight, 100 * t, 10_000 * t, 100 * t) for t in range(SECONDS + 1)]
    assert context_after(readings).replaced_count == pytest.approx(100 * SECONDS / 3, abs=weight)


def test_a_leak_of_a_sampled_process_replaces_nothing() -> None:
    """The process gains as much as its site seems to gain."""
    readings = [sampled(8, 100 * t, 5_000 * t, 0) for t in range(SECONDS + 1)]
    assert context_after(readings).replaced_count < 10


def test_what_grows_and_what_churns_err_apart() -> None:
    """A third of what grows was gained lately; of what churns, two estimates are compared."""
    readings = [sampled(64, 640 * t, 64_000 * t, 0) for t in range(SECONDS + 1)]
    figures, sites = readings[-1]
    readings[-1] = figures, sites | {CHURNS: site(640, 64_000 * SECONDS, 64)}
    context = context_after(readings)
    assert context.growth_variance == pytest.approx(640 * SECONDS * 63 / 3, rel=1e-3)
    assert context.churn_variance == pytest.approx(2 * 640 * 63, rel=1e-2)


def test_a_sampler_inside_the_process_tells_nothing_of_other_blocks() -> None:
    """The gain of its sites is not compared with a counted gain."""
    readings = [
        (
            counters(was_sampled=True, inside_interval_bytes=1 << 15, recorded=t),
            {GROWS: site(100 * t, 100 * t)},
        )
        for t in range(SECONDS + 1)
    ]
    assert context_after(readings).replaced_count == 0


def test_the_estimate_continues_after_a_restart() -> None:
    """From the points that were saved."""
    observed, table = Observations(), SiteTable(0)
    for t in range(61):
        note(observed, table, t * NS_PER_S, sampled(8, 80 * t, 0, 80 * t))
    restored = Observations.restored(observed.checkpoint())
    note(restored, table, 90 * NS_PER_S, sampled(8, 7_200, 0, 7_200))
    assert restored.context(table).replaced_count == 80 * 30


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("growth", [1.0, 1.07, 1.4])
def test_memory_that_is_read_ever_less_often(growth: float, is_restored: bool) -> None:
    """With many processes the pauses between two readings become longer: a reading counts for its own time.

    The first pause is a second, each later one `growth` times as long as the one before, up to a minute.
    """
    observed, now_s, pause_s = Observations(), 0.0, 1.0
    while now_s < 600:
        now_s += pause_s
        pause_s = min(60.0, pause_s * growth)
        observed.note_memory(round(now_s * NS_PER_S), 0, round((100 + now_s) * (1 << 20)))
        if is_restored:
            observed = Observations.restored(observed.checkpoint())
    verdict = classify_process(*observed.memory(), FoundGrowth(0, 0.0, 0.0), ())
    assert verdict.memory_bytes_per_s == pytest.approx(1 << 20, rel=0.02)
