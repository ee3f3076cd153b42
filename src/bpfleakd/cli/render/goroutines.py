"""The goroutines of a Go program, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from bpfleakd.model.runtimes.goroutines import GoroutineGroup
from bpfleakd.printable import printable

__all__ = ["goroutine_lines"]


def goroutine_lines(groups: Sequence[GoroutineGroup]) -> list[str]:
    """Return the number of goroutines, and where most of them were started; no line without goroutines."""
    if not groups:
        return []
    most = max(groups, key=lambda group: group.count)
    place = (most.started_at or "").rpartition("/")[2]
    where = " ".join(word for word in (most.started_in or "?", place) if word)
    doing = next(iter(most.states), "")
    total = sum(group.count for group in groups)
    return [printable(f"{total:,} goroutines, {most.count:,} of them started at {where}: {doing}")]
