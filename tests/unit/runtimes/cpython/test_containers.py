"""The contents of containers, in this process' memory."""

from __future__ import annotations

import os
from collections import deque

import pytest

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.containers import _values_at_the_ends


@pytest.mark.parametrize("at_beginning", [False, True])
@pytest.mark.parametrize("count", [1, 30, 64, 65, 200])
def test_a_block_of_a_deque_has_values_of_earlier_times(count: int, at_beginning: bool) -> None:
    """Only those that the deque has now are read, at both of its ends."""
    values: deque[object] = deque(range(1_000, 2_000))
    for _ in range(990):
        values.popleft()
    values.extend(range(3_000, 3_100))
    values.clear()
    for number in range(count):
        (values.appendleft if at_beginning else values.append)((number,))
    with RemoteMemory(os.getpid()) as memory:
        found = _values_at_the_ends(memory, id(values))
    mine = [id(value) for value in values]
    assert set(found) <= set(mine)
    assert {mine[0], mine[-1]} <= set(found)
