"""The line about suppressed sites."""

from __future__ import annotations

from bpfleakd.cli.render.suppressed import suppressed_lines
from bpfleakd.model.report import SuppressedSites

from ..samples import HOSTILE
from .test_render import drawn


def test_patterns_that_suppress_most_come_first() -> None:
    """Three of them, and how many more."""
    suppressed = {f"p{n}": SuppressedSites(1, n << 20, 7) for n in range(1, 6)}
    (line,) = suppressed_lines(suppressed, 80)
    assert line.plain == "5 sites, 15.0 MiB suppressed: leak:p5, leak:p4, leak:p3 and 2 more"
    assert suppressed_lines({}, 80) == []


def test_a_hostile_pattern() -> None:
    """It stays in its line, and the line in the terminal."""
    (line,) = suppressed_lines({HOSTILE * 9: SuppressedSites(1, 23, 1)}, 80)
    assert line.plain.startswith("1 site, 23 B suppressed: leak:[red]")
    assert len(drawn(line)) == 1
