"""Call sites without blocks make room for new ones, unless a verdict depends on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfleakd.model.code.stack import RawStack, StackEnd
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.tracing.traced_process import TracedProcess

from .programs import running
from .test_tracer import CAPACITIES, EXACT, World

ROOM = CAPACITIES.process_sites


class Scene:
    """A process whose sites come and go."""

    def __init__(self, world: World, pid: int) -> None:
        self.world, self.pid = world, pid
        self.traced: TracedProcess = world.tracer.start(pid, EXACT)

    def use(self, stack_ids: range, *, live: bool = False, address: int | None = None) -> None:
        """A block of 23 bytes at each of these stacks, which is freed unless it stays `live`.

        All are of the code at the same `address`, or each of other code.
        """
        process = self.world.maps.processes[self.pid]
        for stack_id in stack_ids:
            _bytes, live_count, _all, count = process.sites.get(stack_id, (0, 0, 0, 0))
            live_count += live
            process.sites[stack_id] = 23 * live_count, live_count, 23 * (count + 1), count + 1
            if live:
                process.blocks.append((23, self.world.clock.now_ns, stack_id, self.pid, 0))
            process.stacks[stack_id] = RawStack((address or stack_id,), StackEnd.BOTTOM)

    def free(self, stack_ids: range) -> None:
        """All blocks of these stacks are freed."""
        process = self.world.maps.processes[self.pid]
        for stack_id in stack_ids:
            process.sites[stack_id] = 0, 0, *process.sites[stack_id][2:]
        process.blocks = [block for block in process.blocks if block[2] not in stack_ids]

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.clock.go_on(1)
            self.world.tracer.tick()

    @property
    def sites(self) -> set[int]:
        """The stacks of the sites that are in the table, and in the kernel's."""
        table = self.traced.table
        found = {key.stack_id for key in table.keys_of(table.used_rows)}
        assert found == self.world.maps.processes[self.pid].sites.keys() - {0}
        return found


@pytest.fixture
def scene() -> Iterator[Scene]:
    world = World()
    with running() as pid:
        yield Scene(world, pid)
        world.tracer.close()


def test_nothing_is_removed_while_there_is_room(scene: Scene):
    """Three quarters of a process' share may be sites without blocks, however old."""
    scene.use(range(1, ROOM * 3 // 4))
    scene.go_on(60)
    assert len(scene.sites) == ROOM * 3 // 4 - 1


def test_unused_sites_go_and_the_sums_stay(scene: Scene):
    """Those with blocks stay, and so do young ones; a new process of the same stacks begins at zero."""
    scene.use(range(1, 11), live=True)
    scene.use(range(11, 701))
    scene.go_on(12)
    scene.use(range(701, 801))
    scene.go_on(3)

    assert scene.sites == {*range(1, 11), *range(701, 801)}
    assert scene.traced.table.totals.allocated_count == 800
    assert scene.traced.table.totals.live_count == 10

    scene.use(range(11, 16))
    scene.go_on(1)
    counters = scene.traced.table.counters(SiteKey(AllocationKind.HEAP, 11))
    assert (counters.allocated_count, scene.traced.table.totals.allocated_count) == (1, 805)


def test_stacks_that_others_have_stay(scene: Scene):
    """A mapping made by the same stack still has its frames."""
    scene.use(range(1, 801))
    table, now_ns = scene.traced.table, scene.world.clock.now_ns
    scene.go_on(1)
    table.update(now_ns, [SiteKey(AllocationKind.MMAP, 7)], table.columns()[:1] * 0 + 1)
    scene.go_on(15)
    assert scene.world.maps.processes[scene.pid].stacks.keys() == {7}


def test_another_process_needs_the_room(scene: Scene):
    """Together they have more than three quarters of all: the one with the most gives way."""
    with running() as other:
        one, two = scene, Scene(scene.world, other)
        one.use(range(1, 601))
        two.use(range(1, 551))
        one.go_on(12)
        two.use(range(551, 591))
        one.use(range(601, 641))
        one.go_on(3)
        assert one.sites == set(range(601, 641))
        assert len(two.sites) == 590, "there is room enough now"


def test_verdicts_of_a_row_are_not_those_of_its_next_site(scene: Scene):
    """A site that leaked, and then was freed, is forgotten with all that was known of it."""
    for _second in range(120):
        for _block in range(50):
            scene.use(range(1, 2), live=True)
        scene.go_on(1)
    ranks, _rates = scene.traced.verdicts.ranks(row := scene.traced.table.used_rows)
    assert ranks.tolist() == [2]

    scene.free(range(1, 2))
    # On a slow machine, the next evaluation comes late.
    for _ in range(600):
        scene.go_on(1)
        if not scene.traced.verdicts.ranks(row)[0].any():
            break
    scene.use(range(2, 801))
    scene.go_on(15)
    assert scene.sites == set()
    scene.use(range(901, 1_701), live=True)
    scene.go_on(1)
    assert scene.traced.table.keys_of(row)[0].stack_id > 900
    ranks, _rates = scene.traced.verdicts.ranks(row)
    assert ranks.tolist() == [0]


def test_a_site_that_is_judged_with_a_live_one_leaves_it_its_past(scene: Scene):
    """Without the history of the freed ones, a cache whose code moved would seem to grow."""
    scene.use(range(1, 20), live=True, address=4_711)
    scene.go_on(30)
    scene.free(range(1, 20))
    scene.use(range(20, 40), live=True, address=4_711)
    scene.use(range(101, 901))
    scene.go_on(20)
    assert scene.sites == set(range(20, 40))
    table = scene.traced.table
    past = table.timeline.columns(table.used_rows)
    assert past.low_count.sum(axis=1)[[2, -1]].tolist() == [19, 20]
    assert past.born_count.sum() == 39
