"""The figure of a call site by which stacks are drawn."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bpfleakd.model.report import SiteReport


class StackValue(StrEnum):
    """Figures that add up over call sites."""

    LIVE_BYTES = "live-bytes"
    LIVE_COUNT = "live-count"
    ALLOCATED_BYTES = "allocated-bytes"
    ALLOCATED_COUNT = "allocated-count"
    GROWTH = "growth"


def value_of(site: SiteReport, value: StackValue) -> int:
    """The figure, in bytes, blocks or bytes per second; shrinking sites have no growth."""
    match value:
        case StackValue.LIVE_BYTES:
            return site.live_bytes
        case StackValue.LIVE_COUNT:
            return site.live_count
        case StackValue.ALLOCATED_BYTES:
            return site.allocated_bytes
        case StackValue.ALLOCATED_COUNT:
            return site.allocated_count
        case StackValue.GROWTH:
            return max(0, round(site.growth_bytes_per_s))
