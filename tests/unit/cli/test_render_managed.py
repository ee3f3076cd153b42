"""The lines on a managed heap."""

from __future__ import annotations

import pytest

from bpfleakd.cli.render.managed import heap_lines
from bpfleakd.model.runtimes.managed import TypeFigures


@pytest.mark.parametrize(
    ("is_proven", "age_s", "says"),
    [
        (True, 0.0, "stays"),
        (False, 0.0, "survived collections, with no full one that confirms it yet"),
        (True, 80.0, "stays, as of 1m20s ago"),
    ],
)
def test_how_certain_it_is_that_memory_stays(is_proven: bool, age_s: float, says: str) -> None:
    types = [TypeFigures("Shop.Order", 1 << 20, None, 2048.0, is_proven, age_s)]
    assert heap_lines(None, types, ()) == [
        f"of the memory allocated since the attach {says}: Shop.Order 1.00 MiB +2.00 KiB/s"
    ]
