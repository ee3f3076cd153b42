"""Tables that are full: processes without a slot are refused, and call sites without blocks make room."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bpfleakd import errors
from bpfleakd.api.client import DaemonClient
from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pins import pinned_sets
from bpfleakd.kernel.process_slots import ProcessSlots
from bpfleakd.kernel.sites.reader import whole_blocks
from bpfleakd.model.code.stack import StackEnd

from .memory_cgroup import memory_cgroup
from .truth import by_function, expect_ledger
from .waiting import PATIENCE, wait_until


def test_a_slot_is_free_as_soon_as_its_process_is_detached(daemon, workload):
    """A third process is refused while two have all the slots; afterwards each detach makes room for one."""
    tracer = daemon(limits={"processes": 2})
    client = DaemonClient(tracer.socket)
    programs = [workload("many_sites", 23) for _ in range(4)]
    for program in programs[:2]:
        client.attach(program.pid)

    with pytest.raises(errors.TablesFull, match="every slot is taken") as refused:
        client.attach(programs[2].pid)
    assert "limits.processes" in refused.value.hint

    for leaving, coming in ((0, 2), (1, 3), (2, 0), (3, 1)):
        client.detach(programs[leaving].pid)
        client.attach(programs[coming].pid)
        ledger = programs[coming].step()
        expect_ledger(tracer.top_after_tick(programs[coming].pid), ledger)


def test_a_table_without_memory_is_refused(daemon, workload):
    """The daemon's group has too little memory for the table: the attach fails, and leaves nothing."""
    program = workload("many_sites", 23)
    tracer = daemon(limits={"live_blocks": 100_000_000})
    client = DaemonClient(tracer.socket)
    with memory_cgroup(200 << 20) as group:
        group.add(tracer.pid)
        with pytest.raises(errors.CapacityError, match="no table of 100000000 blocks") as refused:
            client.attach(program.pid)
        assert "limits.live_blocks" in refused.value.hint
        assert client.processes() == ()
        group.release(tracer.pid)
    assert tracer.is_alive


def test_call_sites_without_blocks_make_room(daemon, workload):
    """More than twice as many stacks as there is room for come and go: nothing is lost, what stays is named.

    The next daemon goes on with the same sums.
    """
    program = workload("passing_sites", 2_400, 100, 4)
    tracer = daemon(limits={"process_sites": 1_000})
    client = DaemonClient(tracer.socket)
    client.attach(program.pid)

    for allocated in range(240, 2_401, 240):
        ledger = program.step(240)
        wait_until(lambda: client.processes()[0].process.allocated_count == allocated)  # noqa: B023
        # When more than three quarters of the room is taken, sites that were unused for ten seconds are
        # removed. One reading may find them all, or two: then the younger ones stay.
        wait_until(lambda: client.processes()[0].sites <= 750, timeout_s=60)

    tracer.kill()
    tracer.start()
    report = tracer.top_after_tick(program.pid)
    site = ledger["sites"]["allocate_at_leaf"]
    assert report["losses"]["site_full"] == report["losses"]["stack_full"] == 0
    assert report["process"]["allocated_count"] == site["allocated_count"] == 2_400
    assert by_function(report)["allocate_at_leaf"]["live_count"] == site["live_count"] == 24
    assert any("were removed to make room" in note for note in report["process"]["notes"])


def test_sites_that_come_back_while_they_are_removed_are_exact(daemon, workload):
    """Four threads use thousands of stacks again and again while their sites are removed: sums stay exact."""
    program = workload("passing_sites", 20_000 if PATIENCE == 1 else 5_000, 100, 4)
    tracer = daemon()
    DaemonClient(tracer.socket).attach(program.pid)
    (pins,) = pinned_sets(tracer.bpffs_dir)
    maps = Maps.open_pinned(pins.directory)
    sites_fd, processes_fd, slots_fd = (
        bpf.object_get(pins.directory / name) for name in ("sites", "processes", "slots")
    )
    slots = ProcessSlots(processes_fd, slots_fd)
    assert maps.adopt_process(program.pid)

    def are_enough_removed() -> bool:
        step = beside.submit(program.step, round(200_000 / PATIENCE))
        while not step.done():
            keys, _sites = sites_of(sites_fd, program.pid)
            for _reading in range(3):
                # As if the daemon read them thrice now: what does not change from here on is unused.
                slots.begin_reading()
            maps.site_remover.remove(program.pid, keys["stack_id"][keys["stack_id"] != 0])
        ledger.update(step.result()["sites"]["allocate_at_leaf"])
        return maps.process(program.pid).removed.allocated_count > 10_000 / PATIENCE

    ledger: dict[str, int] = {}
    with ThreadPoolExecutor(1) as beside:
        wait_until(are_enough_removed, timeout_s=60)

    _keys, sites = sites_of(sites_fd, program.pid)
    removed = maps.process(program.pid).removed
    for fd in (sites_fd, processes_fd, slots_fd):
        os.close(fd)
    slots.close()
    maps.close()
    for counter in ("live_count", "allocated_count"):
        counted = int(whole_blocks(sites[counter]).sum()) + getattr(removed, counter)
        assert counted == ledger[counter], counter


def test_stacks_that_come_back_after_their_removal_have_their_frames(daemon, workload):
    """A program that has found a stack in the table uses it for a new site, whatever was removed since."""
    program = workload("many_sites", 40)
    tracer = daemon()
    DaemonClient(tracer.socket).attach(program.pid)
    program.step(40)
    (pins,) = pinned_sets(tracer.bpffs_dir)
    maps, sites_fd = Maps.open_pinned(pins.directory), bpf.object_get(pins.directory / "sites")
    assert maps.adopt_process(program.pid)
    keys, _sites = sites_of(sites_fd, program.pid)
    stack_ids = keys["stack_id"][keys["stack_id"] != 0]
    before = [maps.stack(program.pid, stack_id) for stack_id in stack_ids.tolist()]
    count = maps.process(program.pid).stack_count

    for some in (stack_ids[:20], stack_ids[20:]):
        maps.site_remover.remove_stacks(program.pid, some)
    assert {maps.stack(program.pid, one).end for one in stack_ids.tolist()} == {StackEnd.LOST}
    assert maps.process(program.pid).stack_count == count - 40

    maps.site_remover.restore_stacks(program.pid, stack_ids.tolist())
    assert [maps.stack(program.pid, one) for one in stack_ids.tolist()] == before
    assert maps.process(program.pid).stack_count == count
    os.close(sites_fd)
    maps.close()


def sites_of(sites_fd: int, pid: int) -> tuple[np.ndarray, np.ndarray]:
    """The heap's sites of a process in the kernel's table: SITE_KEY and SITE, row by row."""
    batches = [
        (keys.copy(), sites.copy()) for keys, sites in bpf.map_batches(sites_fd, abi.SITE_KEY, abi.SITE)
    ]
    keys, sites = np.concatenate([k for k, _ in batches]), np.concatenate([s for _, s in batches])
    mine = (keys["tgid"] == pid) & (keys["kind"] == abi.HEAP_KIND)
    return keys[mine], sites[mine]
