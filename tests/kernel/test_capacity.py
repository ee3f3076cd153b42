"""A process without a free slot is refused, with a hint, until another process is detached."""

from __future__ import annotations

import pytest

from bpfleakd import errors
from bpfleakd.api.client import DaemonClient

from .truth import expect_ledger


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
