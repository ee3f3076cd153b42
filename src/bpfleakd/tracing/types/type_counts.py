"""Objects of a managed heap by type, and the changes since the last count."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from bpfleakd.model.runtimes.managed import TypeFigures, TypeRow
from bpfleakd.runtimes.runtime import TypeCount

_FIGURES_MAX = 100


class TypeCounts(Struct, frozen=True):
    """A count at `at_ns`, and the one before it, if any."""

    at_ns: int
    counts: Sequence[TypeCount]
    before: TypeCounts | None

    @property
    def since_s(self) -> float | None:
        """The time between the last two counts."""
        return None if self.before is None else (self.at_ns - self.before.at_ns) / 1e9

    @property
    def rows(self) -> tuple[TypeRow, ...]:
        """All types, most bytes first."""
        before = self._before
        if before is None:
            return tuple(TypeRow(one.type, one.live_bytes, one.live_count, None, None) for one in self.counts)
        rows = []
        for one in self.counts:
            live_bytes, live_count = before.get(one.type, (0, 0))
            changes = one.live_bytes - live_bytes, one.live_count - live_count
            rows.append(TypeRow(one.type, one.live_bytes, one.live_count, *changes))
        return tuple(rows)

    @property
    def figures(self) -> tuple[TypeFigures, ...]:
        """The largest types, with their growth since the last count."""
        since_s = self.since_s
        return tuple(
            TypeFigures(
                row.type,
                row.live_bytes,
                row.live_count,
                round((row.change_bytes or 0) / since_s, 1) if since_s else 0.0,
            )
            for row in self.rows[:_FIGURES_MAX]
        )

    @property
    def _before(self) -> dict[str, tuple[int, int]] | None:
        if self.before is None:
            return None
        return {one.type: (one.live_bytes, one.live_count) for one in self.before.counts}
