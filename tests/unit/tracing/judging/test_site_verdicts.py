"""When verdicts are computed, for which rows, and what is announced."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from bpfleakd.kernel import abi
from bpfleakd.kernel.abi import LIVE_BLOCK, RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import Verdict
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.address_space.regions import BLOCK_KINDS
from bpfleakd.tracing.judging.site_verdicts import NOT_YET, SiteVerdicts
from bpfleakd.tracing.managed_heap import HeapTracking
from bpfleakd.tracing.owned_memory import OwnedGrowth
from bpfleakd.tracing.site_charging import SiteIdentity
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.merged_histories import Units
from bpfleakd.verdicts.persistence import Persistence
from bpfleakd.verdicts.site_histories import SiteHistories

from ..doubles import NS_PER_S, Clock, counter_rows

LEAK, CHURN = SiteKey(AllocationKind.HEAP, 7), SiteKey(AllocationKind.HEAP, 8)


class World:
    """A table with a site that leaks a block of 2,300 bytes a second, and one whose blocks are all freed."""

    def __init__(self) -> None:
        self.clock, self.spent = Clock(), Clock()
        self.began_ns = self.clock.now_ns
        self.table = SiteTable(self.began_ns)
        self.verdicts = SiteVerdicts(spent_ns=self.spent)
        self.born_ns: list[int] = []

    def go_on(
        self,
        seconds: int,
        *,
        unmatched_frees: int = 0,
        losses: dict[str, int] | None = None,
        leaks: bool = True,
    ) -> None:
        for _ in range(seconds):
            self.clock.go_on(1)
            self.born_ns += [self.clock.now_ns] * leaks
            leaked = len(self.born_ns)
            rows = counter_rows(
                [(2300 * leaked, leaked, 2300 * leaked, leaked), (0, 0, 50 * leaked, 5 * leaked)]
            )
            self.table.update(self.clock.now_ns, [LEAK, CHURN], rows)
            missed = {reason: (losses or {}).get(reason, 0) for reason in abi.LOSS_REASONS}
            counters = ProcessCounters(RecordingState.RECORDING, unmatched_frees, 0, missed, 0)
            self.verdicts.observed.note(self.clock.now_ns, counters, self.table.heap_totals)

    def blocks(self) -> Iterator[np.ndarray]:
        yield np.array([(2300, 2300, born_ns, 7, 1, 0) for born_ns in self.born_ns], LIVE_BLOCK)

    def compute(self) -> list[int]:
        return self.verdicts.compute(self.table, self.blocks(), self.clock)

    def verdict(self, row: int) -> Verdict:
        counters = self.table.counters(self.table.keys[row])
        return self.verdicts.of(row, counters.live_count, counters.allocated_count).verdict


@pytest.fixture
def world() -> World:
    return World()


def test_the_sites_are_judged_by_row(world: World) -> None:
    """The first is a leak, the second churn, and the ranks sort them."""
    world.go_on(70)
    world.compute()
    assert [world.verdict(0), world.verdict(1)] == [Verdict.LEAK, Verdict.CHURN]
    ranks, rates = world.verdicts.ranks(np.array([1, 0]))
    assert ranks.tolist() == [0, 2]
    assert rates == pytest.approx([0, 2300], rel=0.1)


def test_what_is_new_was_not_looked_at(world: World) -> None:
    """Before the first time, and for rows that have come since."""
    assert world.verdicts.of(0, 1, 1) == NOT_YET
    world.go_on(70)
    world.compute()
    assert world.verdicts.of(2, 1, 1) == NOT_YET
    assert world.verdicts.of(1, 1, 7).verdict is Verdict.CHURN


def test_a_leak_is_announced_once_and_not_at_first_sight(world: World) -> None:
    """Two successive verdicts must agree."""
    world.go_on(70)
    announced = [world.compute()]
    for _ in range(3):
        world.go_on(5)
        announced.append(world.compute())
    assert announced == [[], [0], [], []]


def test_they_are_computed_every_few_seconds(world: World) -> None:
    """Sooner on request; later if it is expensive, for all together, and after a long time."""
    world.go_on(1)
    world.compute()
    now_ns = world.clock.now_ns

    def is_due(after_s: int, *, observed_s: int = 60, processes: int = 1, asked: bool = False) -> bool:
        then_ns = now_ns + after_s * NS_PER_S
        return world.verdicts.is_due(
            then_ns, then_ns - observed_s * NS_PER_S, processes=processes, asked=asked
        )

    assert [is_due(4), is_due(5), is_due(1, asked=True)] == [False, True, True]
    assert [is_due(9, observed_s=240), is_due(10, observed_s=240)] == [False, True]
    assert [is_due(29, observed_s=10_000), is_due(30, observed_s=10_000)] == [False, True]

    def slow_blocks(waited_s: int, spent_s: int) -> Iterator[np.ndarray]:
        world.clock.go_on(waited_s)
        world.spent.go_on(spent_s)
        yield from world.blocks()

    world.go_on(1)
    now_ns = world.clock.now_ns
    world.verdicts.compute(world.table, slow_blocks(waited_s=3, spent_s=0), world.clock)
    assert [is_due(4), is_due(5), is_due(1, asked=True)] == [False, True, True]
    world.go_on(1)
    now_ns = world.clock.now_ns
    world.verdicts.compute(world.table, slow_blocks(waited_s=1, spent_s=1), world.clock)
    assert [is_due(19, asked=True), is_due(20, asked=True)] == [False, True]
    assert [is_due(124, observed_s=200), is_due(125, observed_s=200)] == [False, True]
    for after_s, due in ((1249, False), (1250, True)):
        assert is_due(after_s, observed_s=1_500, processes=10) == due


def test_one_process_takes_a_small_share_except_to_confirm_a_leak(world: World) -> None:
    """An evaluation takes 40 ms: 0.8% of 5 s, 0.2% of 20 s."""

    def due_s() -> int:
        now_ns = world.clock.now_ns
        return next(s for s in range(99) if world.verdicts.is_due(now_ns + s * NS_PER_S, world.began_ns))

    def compute() -> list[int]:
        def blocks() -> Iterator[np.ndarray]:
            world.spent.now_ns += 40_000_000
            yield from world.blocks()

        return world.verdicts.compute(world.table, blocks(), world.clock)

    found = []
    for seconds in (10, 60, 10, 10):
        world.go_on(seconds)
        found.append((compute(), due_s()))
    assert found == [([], 20), ([], 5), ([0], 20), ([], 20)]


def test_they_are_computed_as_soon_as_there_may_be_a_leak(world: World) -> None:
    """An expensive evaluation after 40 s delays the next by two minutes, but not the first that counts."""

    def blocks() -> Iterator[np.ndarray]:
        world.spent.go_on(1)
        yield from world.blocks()

    def due_s() -> int:
        """After how many seconds of tracing the next one is due."""
        of_tracing = range((world.clock.now_ns - world.began_ns) // NS_PER_S, 300)
        return next(
            at_s
            for at_s in of_tracing
            if world.verdicts.is_due(world.began_ns + at_s * NS_PER_S, world.began_ns)
        )

    world.go_on(40)
    world.verdicts.compute(world.table, blocks(), world.clock)
    # A twentieth of the time, as after a request.
    assert due_s() == 60
    world.go_on(20)
    world.verdicts.compute(world.table, blocks(), world.clock)
    assert world.verdict(0) is Verdict.LEAK
    assert due_s() == 60 + 125


@pytest.mark.parametrize("many", [(1_000_000, 1_000), (100_000, 100_000)])
def test_who_asks_does_not_wait_for_much_work(world: World, many: tuple[int, int]) -> None:
    """The first time one does; later the last verdict is shown if it is new, and the next tick makes one."""
    assert world.verdicts.want(world.clock.now_ns, *many)
    world.go_on(300)
    world.compute()
    then_ns, began_ns = world.clock.now_ns + NS_PER_S, world.table.began_ns
    assert world.verdicts.want(then_ns, 1_000, 1_000)
    assert not world.verdicts.is_due(then_ns, began_ns)
    assert not world.verdicts.want(then_ns, *many)
    assert world.verdicts.is_due(then_ns, began_ns)
    world.compute()
    assert not world.verdicts.is_due(then_ns, began_ns)
    assert not world.verdicts.want(world.clock.now_ns + 9 * NS_PER_S, *many)
    assert world.verdicts.want(world.clock.now_ns + 10 * NS_PER_S, *many)


def test_many_sites_are_measured_when_they_may_have_become_something_else() -> None:
    """If few sites change, the others are seldom measured, with the same verdicts as if they were."""
    random = np.random.default_rng(23)
    sites = 300
    keys = [SiteKey(AllocationKind.HEAP, number + 1) for number in range(sites)]
    table, clock = SiteTable(0), Clock(0)
    verdicts, measured, judged = SiteVerdicts(), 0, 0
    counters = np.zeros((sites, len(COUNTERS)), np.int64)
    born: list[tuple[int, int]] = []

    def count(histories: SiteHistories, leak_after_s: float) -> Persistence:
        nonlocal measured
        measured += len(histories.live_bytes)
        return persistence_of(histories, leak_after_s)

    def ranks_of(of: SiteVerdicts) -> np.ndarray:
        blocks = np.zeros(len(born), LIVE_BLOCK)
        blocks["stack_id"], blocks["born_ns"] = np.array(born).T
        blocks["size"] = blocks["weight"] = 2300
        of.compute(table, [blocks], clock)
        ranks, _rates = of.ranks(np.arange(sites))
        return ranks

    for second in range(1, 201):
        clock.go_on(1)
        # At first all; then one continues, one stops in the middle, and some come and go at random.
        busy = np.unique([0, *[1] * (second < 100), *random.integers(2, 99, 3)])
        rows = np.arange(sites) if second <= 3 else busy
        stays = np.isin(rows, [0, 1]) | (second <= 3)
        counters[np.ix_(rows, [2, 3])] += 2300, 1
        counters[np.ix_(rows[stays], [0, 1])] += 2300, 1
        born += [(keys[row].stack_id, clock.now_ns) for row in rows[stays].tolist()]
        table.update(clock.now_ns, [keys[row] for row in rows.tolist()], counters[rows])
        if second % 5 == 0:
            with mock.patch("bpfleakd.tracing.judging.site_verdicts.persistence_of", count):
                ranks = ranks_of(verdicts)
            judged += sites
        if second % 20 == 0:
            assert ranks.tolist() == ranks_of(SiteVerdicts()).tolist(), second
    assert ranks[0] == 2
    assert measured < judged / 2


def test_old_memory_that_is_replaced(world: World) -> None:
    """As many frees of blocks from before the attach as blocks gained: that may be all there is to it."""
    world.go_on(50)
    world.go_on(20, unmatched_frees=30)
    world.compute()
    assert world.verdict(0) is Verdict.GROWING


def test_blocks_that_were_not_recorded(world: World) -> None:
    """They reduce the confidence, and the reason says so."""
    world.go_on(50)
    world.go_on(20, losses={"live_full": 5})
    world.compute()
    verdict = world.verdicts.of(0, 70, 70)
    assert verdict.verdict is Verdict.LEAK
    assert verdict.reason.endswith("; blocks were not recorded")


def test_no_live_blocks_at_all() -> None:
    """No sites are not an error."""
    table, verdicts = SiteTable(0), SiteVerdicts()
    assert verdicts.compute(table, iter(()), Clock()) == []
    assert verdicts.of_process(table, ()).verdict is Verdict.UNKNOWN


def test_the_process(world: World) -> None:
    """It leaks as much as its sites; its memory is known after some readings."""
    for _ in range(70):
        world.go_on(1)
        world.verdicts.observed.note_memory(world.clock.now_ns, world.began_ns, 100 << 20)
    world.verdicts.observed.note_memory(world.clock.now_ns, world.began_ns, None)
    world.compute()
    verdict = world.verdicts.of_process(world.table, ())
    assert verdict.verdict is Verdict.LEAK
    assert verdict.leak_bytes_per_s == pytest.approx(2300, rel=0.1)
    assert verdict.memory_bytes_per_s == 0


@pytest.mark.parametrize("seconds", [70, 300, 811, 2_000])
def test_the_rate_of_an_even_leak_is_right_for_long(world: World, seconds: int) -> None:
    """The first bins have become wide by then: the least in one is what was live at its beginning."""
    world.go_on(seconds)
    world.compute()
    assert world.verdicts.of(0, 70, 70).leak_bytes_per_s == pytest.approx(2300, rel=0.02)
    # The reason agrees with it.
    growth = world.verdicts.growth_of(0)
    assert growth.gained_bytes == pytest.approx(2300 * (growth.end_s - growth.start_s), rel=0.02)


@pytest.mark.parametrize("seconds", [300, 811, 2_000])
def test_the_growth_of_memory_is_right_for_long(world: World, seconds: int) -> None:
    for second in range(1, seconds + 1):
        world.go_on(1)
        world.verdicts.observed.note_memory(world.clock.now_ns, world.began_ns, (100 << 20) + 23_000 * second)
    world.compute()
    assert world.verdicts.of_process(world.table, ()).memory_bytes_per_s == pytest.approx(23_000, rel=0.02)


def test_a_suppressed_leak(world: World) -> None:
    """It makes no process one that leaks."""
    world.go_on(70)
    world.compute()
    assert world.verdicts.of_process(world.table, ()).verdict is Verdict.LEAK
    suppressed = np.zeros(1, np.intp)
    verdict = world.verdicts.of_process(world.table, (), suppressed)
    assert (verdict.verdict, verdict.leak_bytes_per_s) == (Verdict.UNKNOWN, 0)


def test_growth_of_what_the_runtime_takes_for_itself(world: World) -> None:
    """It makes no process one that grows; a leak of it does."""
    world.go_on(30)
    world.compute()
    heap = HeapTracking()
    heap.heap = ManagedHeap("JVM", Verdict.STEADY, "does not grow", 1 << 20, 9, 2, 0.0)
    assert world.verdicts.of_process(world.table, (), heap=heap).verdict is Verdict.GROWING
    heap.own = np.zeros(1, np.intp)
    assert world.verdicts.of_process(world.table, (), heap=heap).verdict is Verdict.UNKNOWN
    world.go_on(40)
    world.compute()
    assert world.verdicts.of_process(world.table, (), heap=heap).verdict is Verdict.LEAK


def test_leaking_shared_memory(world: World) -> None:
    """A mapping is no anonymous memory and not in the totals, but the process leaks what its site leaks."""
    memfd = SiteKey(AllocationKind.FILE, 9)
    for second in range(1, 71):
        world.go_on(1)
        mapped = (65_536 * second, second, 65_536 * second, second)
        world.table.update(world.clock.now_ns, [memfd], counter_rows([mapped]))
    kind, began_ns = BLOCK_KINDS.index(AllocationKind.FILE), world.began_ns
    maps = [(65_536, 65_536, began_ns + NS_PER_S * second, 9, 1, kind) for second in range(1, 71)]
    world.verdicts.compute(world.table, [*world.blocks(), np.array(maps, LIVE_BLOCK)], world.clock)
    assert world.verdict(2) is Verdict.LEAK
    verdict = world.verdicts.of_process(world.table, (), np.zeros(1, np.intp))
    assert verdict.verdict is Verdict.LEAK
    assert verdict.leak_bytes_per_s == pytest.approx(65_536, rel=0.1)
    assert verdict.reason == "1 call site leaks +64.0 KiB/s of mapped files or shared memory"


def test_a_leak_that_no_full_collection_has_confirmed(world: World) -> None:
    """Memory that objects of the heap own makes the process grow, and not leak yet."""
    world.go_on(70)
    world.compute()
    heap, growth = HeapTracking(), world.verdicts.growth_of(0)
    assert 0 < growth.start_s < 45 < growth.end_s <= 70
    assert growth.gained_bytes == pytest.approx(2300 * (growth.end_s - growth.start_s), rel=0.1)
    heap.heap = ManagedHeap("V8", Verdict.STEADY, "does not grow", 1 << 20, 9, 2, 0.0)
    heap.owned.judge([(0, "it may be garbage")])
    verdict = world.verdicts.of_process(world.table, (), heap=heap)
    assert (verdict.verdict, verdict.leak_bytes_per_s) == (Verdict.GROWING, 0)
    heap.owned.judge([])
    assert world.verdicts.of_process(world.table, (), heap=heap).verdict is Verdict.LEAK
    assert growth.gained_count > 0
    assert world.verdicts.growth_of(77) == OwnedGrowth(0.0, 0.0, 0.0)


def test_what_ends_keeps_the_verdict_from_before_its_end(world: World) -> None:
    """All is freed in the last moments, and even an evaluation of these changes nothing."""
    world.go_on(70)
    world.compute()
    world.go_on(6)
    world.compute()
    world.go_on(1)
    rows = counter_rows([(0, 0, 2300 * 77, 77), (0, 0, 50, 5)])
    world.table.update(world.clock.now_ns, [LEAK, CHURN], rows)
    world.verdicts.compute(world.table, [], world.clock)
    assert world.verdict(0) is Verdict.CHURN
    assert world.verdicts.settle(world.clock.now_ns)
    found = world.verdicts.of(0, 0, 77)
    assert found.verdict is Verdict.LEAK
    assert found.reason.endswith("; freed as the process ended")
    assert world.verdicts.of_process(world.table, ()).verdict is Verdict.LEAK


def test_sites_that_are_one_have_one_verdict(world: World) -> None:
    """Each row says so, and the rate counts once."""
    world.go_on(70)
    units = Units.of({0: "same", 1: "same"}, 2)
    world.verdicts.compute(world.table, world.blocks(), world.clock, units)
    assert [world.verdict(0), world.verdict(1)] == [Verdict.LEAK, Verdict.LEAK]
    assert world.verdicts.of_process(world.table, ()).leak_bytes_per_s == pytest.approx(2300, rel=0.1)
    assert world.verdicts.ranks(np.array([0, 1]))[1] == pytest.approx([2300, 0], rel=0.1)


def test_a_method_that_is_compiled_again_is_one_leak() -> None:
    """Its code was replaced half a minute ago, and a caller inlines it: the sum leaks, at its whole rate."""
    world = World()
    tiers = [SiteKey(AllocationKind.HEAP, number) for number in (7, 8, 9)]
    used = [2 if second % 4 == 0 else 0 if second < 110 else 1 for second in range(140)]
    for second in range(1, 141):
        world.clock.go_on(1)
        counts = [used[:second].count(tier) for tier in range(3)]
        rows = counter_rows([(2300 * count, count, 2300 * count, count) for count in counts])
        world.table.update(world.clock.now_ns, tiers, rows)
        counters = ProcessCounters(RecordingState.RECORDING, 0, 0, dict.fromkeys(abi.LOSS_REASONS, 0), 0)
        world.verdicts.observed.note(world.clock.now_ns, counters, world.table.heap_totals)
    rows = [
        (2300, 2300, world.began_ns + NS_PER_S * (second + 1), 7 + tier, 1, 0)
        for second, tier in enumerate(used)
    ]
    blocks = iter([np.array(rows, LIVE_BLOCK)])
    same = Units.of(dict.fromkeys(range(3), "Shop.keep"), 3)
    world.verdicts.compute(world.table, blocks, world.clock, functions=same)
    found = [world.verdicts.of(row, 40, 40) for row in range(3)]
    assert {one.verdict for one in found} == {Verdict.LEAK}
    assert sum(one.leak_bytes_per_s for one in found) == pytest.approx(2300, rel=0.1)
    assert all(one.reason.startswith("3 call sites of this function together: +") for one in found)
    assert world.verdicts.of_process(world.table, ()).reason.startswith("3 call sites leak +")
    # The next window expects no more than that.
    identities = {key: SiteIdentity(str(key.stack_id), None, "Shop.keep") for key in tiers}
    known = world.verdicts.known_leaks(world.table, identities).values()
    assert sum(leak.rate_bytes_per_s for leak in known) == pytest.approx(2300, rel=0.1)


@pytest.mark.parametrize("beside", ["queue", "table", "table that moves once"])
@pytest.mark.parametrize("period", [31, 47])
def test_a_cache_is_no_leak_for_what_is_beside_it(beside: str, period: int) -> None:
    """All are charged to one function: a cache that fills ever more slowly, and a queue or a hash table.

    The cache's old blocks and the queue's young ones make an even curve, and so do the cache and a table that
    doubles.
    """
    world, random = World(), np.random.default_rng(23)
    cache, other = (SiteKey(AllocationKind.HEAP, number) for number in (7, 8))
    keys: set[int] = set()
    cached: list[int] = []
    others: list[int] = []
    born = {cache: 0, other: 0}
    leaks = table_bytes = 0
    for second in range(1, 241):
        world.clock.go_on(1)
        new = set(random.integers(0, 5000, 230).tolist()) - keys
        keys |= new
        born[cache] += len(new)
        cached += [world.clock.now_ns] * len(new)
        if beside == "queue":
            others = [] if second % period == 0 else others + [world.clock.now_ns] * 230
            born[other] += 230
            size, figures = 200, (200 * len(others), len(others))
        elif beside == "table that moves once":
            others = others or ([world.clock.now_ns] if second == 28 else [])
            born[other] = len(others)
            size, figures = 60_000, (60_000 * len(others), len(others))
        else:
            size = 64 * 2 ** int(np.ceil(np.log2(len(keys))))
            if not others or size > table_bytes:
                others, born[other] = [world.clock.now_ns], born[other] + 1
                table_bytes = size
            figures = (size, 1)
        rows = [(40 * len(cached), len(cached), 40 * born[cache], born[cache])]
        rows += [(*figures, size * born[other], born[other])]
        world.table.update(world.clock.now_ns, [cache, other], counter_rows(rows))
        if second % 5:
            continue
        blocks = [(40, 40, born_ns, 7, 1, 0) for born_ns in cached]
        blocks += [(size, size, born_ns, 8, 1, 0) for born_ns in others]
        same = Units.of(dict.fromkeys(range(2), "main"), 2)
        world.verdicts.compute(world.table, [np.array(blocks, LIVE_BLOCK)], world.clock, functions=same)
        leaks += Verdict.LEAK in (world.verdict(0), world.verdict(1))
    assert leaks == 0


def test_sites_without_blocks_are_judged_by_their_figures(world: World) -> None:
    """The ages of blocks of Go's heap are unknown, so missing survivors prove nothing."""
    go = SiteKey(AllocationKind.GO_HEAP, 9)
    for second in range(1, 71):
        world.go_on(1)
        world.table.update(
            world.clock.now_ns, [go], counter_rows([(9000 * second, 9 * second, 9000 * second, 9 * second)])
        )
    world.compute()
    assert [world.verdict(row) for row in range(3)] == [Verdict.LEAK, Verdict.CHURN, Verdict.LEAK]
    assert "old blocks" not in world.verdicts.of(2, 630, 630).reason
    assert "old blocks still live" in world.verdicts.of(0, 70, 70).reason


def test_sites_that_are_known_as_of_collections(world: World) -> None:
    """Between two collections, and after the last one, nothing is known: no silence, also after a restart."""
    go = SiteKey(AllocationKind.GO_HEAP, 9)
    collected = (4, 11, 19, 28, 38, 49, 61)
    for second in range(1, 171):
        world.go_on(1)
        if second in collected:
            figures = [(9000 * second, 9 * second, 9000 * second, 9 * second)]
            world.table.update(world.clock.now_ns, [go], counter_rows(figures))
        world.verdicts.observed.note_collections(world.clock.now_ns, int(second in collected))
    world.compute()
    assert world.verdict(2) is Verdict.LEAK
    checkpoint = world.verdicts.checkpoint(np.arange(3))
    world.verdicts = SiteVerdicts.restored(checkpoint, world.verdicts.leak_after_s)
    world.compute()
    assert world.verdict(2) is Verdict.LEAK


def test_a_leak_that_is_only_kept_stays_one_after_a_restart(world: World) -> None:
    """It is too irregular to be found again, and nothing shows that it has ended."""
    world.go_on(70)
    world.compute()
    for silence_s in (40, 30):
        world.go_on(silence_s, leaks=False)
        world.go_on(silence_s // 4)
    world.compute()
    assert "nothing shows that this has ended" in world.verdicts.of(0, 87, 87).reason

    world.verdicts = SiteVerdicts.restored(world.verdicts.checkpoint(np.arange(2)), 45)
    world.compute()
    assert world.verdict(0) is Verdict.LEAK
    assert world.verdicts.of(0, 87, 87).leak_bytes_per_s == pytest.approx(2300, rel=0.05)


def test_a_row_of_another_site_has_no_past(world: World) -> None:
    """It was announced, measured and seen to leak: none of that is the new site's."""
    world.go_on(70)
    for _ in range(3):
        world.go_on(5)
        world.compute()
    rows = np.array([0, 1])
    assert world.verdicts.ranks(rows)[0].tolist() == [2, 0]

    world.verdicts.forget(np.array([0]))
    assert world.verdicts.of(0, 1, 1) == NOT_YET
    assert world.verdicts.ranks(rows)[0].tolist() == [0, 0]

    announced = []
    for _ in range(3):
        world.go_on(5)
        announced.append(world.compute())
    assert announced == [[], [0], []]
