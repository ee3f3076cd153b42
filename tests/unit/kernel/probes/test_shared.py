"""The names of tracing events."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.kernel.probes.shared import SharedKind, SharedPoint, group_of

NAME_BYTES_MAX = 63  # MAX_EVENT_NAME_LEN in kernel/trace/trace_probe.h, less the end
WORD_MAX = (1 << 64) - 1
POINTS = [
    SharedPoint(offset, cookie, kind, semaphore)
    for offset in (0x1000, 0x10001)
    for cookie in (0, 23)
    for kind in SharedKind
    for semaphore in (0, 0x2000)
]


@pytest.mark.parametrize("semaphore", [0, WORD_MAX])
def test_the_longest_name_is_one(semaphore: int) -> None:
    """Whatever the numbers are, tracefs takes the name: letters, digits and underscores, not too many."""
    point = SharedPoint(WORD_MAX, WORD_MAX, SharedKind.STATIC, semaphore)
    name = point.name_in(((1 << 32) - 1, WORD_MAX))
    assert name.isidentifier()
    assert len(name) <= NAME_BYTES_MAX


def test_what_differs_has_another_name() -> None:
    """Two points, or the same one in two files, are never one event."""
    files = [(0x1, 0x23), (0x12, 0x3), (0x12, 0x31)]
    assert len({point.name_in(file) for point in POINTS for file in files}) == len(POINTS) * len(files)


@pytest.mark.parametrize("directory", ["/sys/fs/bpf/bpfleakd", "/sys/fs/bpf/other one"])
def test_daemons_have_groups_of_their_own(directory: str) -> None:
    """By where they pin, which no two do in the same place; and always the same, for the next daemon."""
    group = group_of(Path(directory))
    assert group == group_of(Path(directory)) != group_of(Path(directory) / "x")
    assert group.isidentifier()
    assert len(group) <= NAME_BYTES_MAX
