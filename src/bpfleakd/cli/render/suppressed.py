"""The line on suppressed call sites."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from bpfleakd.cli.render.words import fitted
from bpfleakd.model.report import SuppressedSites
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes

_PATTERNS_SHOWN = 3


def suppressed_lines(suppressed: Mapping[str, SuppressedSites], width: int | None) -> list[Text]:
    """Return a line, or none if nothing is suppressed; the patterns that suppress most come first."""
    if not suppressed:
        return []
    patterns = sorted(suppressed, key=lambda pattern: suppressed[pattern].live_bytes, reverse=True)
    names = ", ".join(f"leak:{printable(pattern)}" for pattern in patterns[:_PATTERNS_SHOWN])
    more = f" and {len(patterns) - _PATTERNS_SHOWN} more" if len(patterns) > _PATTERNS_SHOWN else ""
    sites = sum(one.sites for one in suppressed.values())
    size = human_bytes(sum(one.live_bytes for one in suppressed.values()))
    line = f"{sites:,} {'site' if sites == 1 else 'sites'}, {size} suppressed: {names}{more}"
    return [Text(fitted(line, width), "dim")]
