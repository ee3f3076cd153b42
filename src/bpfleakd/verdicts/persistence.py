"""The measurements of call sites that verdicts are based on."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import Row
from bpfleakd.verdicts.site_histories import Flags


class Persistence(Struct, frozen=True):
    """Measurements, one figure per site.

    `quiet_s` is the time since a block was last born, `excursion_s` the longest time after which the site
    fell back. `persists` says whether it grows like a leak over `window_s`; `by_blocks` whether the number of
    blocks grows, and `by_survivors` whether only the survivors show it; `dies` whether old blocks still die
    or are replaced. For that window, `rate_bytes_per_s` is the gain per second and `old_share` the live share
    of the blocks born in its first third (NaN: unknown). `freed_later` says whether old blocks are freed, but
    ever later, as those of a queue that is filled faster than it is emptied: then `dies` is False.

    `grows` and `stopped` are about the whole time after the first seconds, with `grown_bytes` over `grown_s`,
    `steps` and `silence_s`; `slows` says whether growth slows down like a cache's, and `is_cache` whether by
    so much more than the process' load that an earlier leak is none. `unseen_s` is the silence if it is no
    evidence because too little was recorded lately to show growth like that before; else 0.
    `collections` is infinite for sites that are read at every tick.
    """

    observed_s: float
    leak_after_s: float
    is_heap: Flags
    live_bytes: Row
    live_count: Row
    born_count: Row
    born_lately: Row
    quiet_s: Row
    excursion_s: Row
    persists: Flags
    by_survivors: Flags
    by_blocks: Flags
    dies: Flags
    window_s: Row
    window_steps: Row
    gained_bytes: Row
    gained_count: Row
    gained_lately_count: Row
    rate_bytes_per_s: Row
    old_share: Row
    freed_later: Flags
    grows: Flags
    stopped: Flags
    slows: Flags
    is_cache: Flags
    grown_bytes: Row
    grown_s: Row
    steps: Row
    silence_s: Row
    unseen_s: Row
    collections: Row

    def joined(self, other: Persistence) -> Persistence:
        """These sites followed by the other ones, which were observed for the same time."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS
        }
        return replace(self, **columns)


COLUMNS = tuple(
    name for name in Persistence.__struct_fields__ if name not in ("observed_s", "leak_after_s")
)
"""The fields of Persistence with a figure for each site."""


def nothing_found(sites: int) -> dict[str, NDArray[Any]]:
    """The figures of windows in which no site grows like a leak, by name."""
    flags = ("by_survivors", "by_blocks", "dies", "freed_later")
    figures = (
        "window_s",
        "window_steps",
        "gained_bytes",
        "gained_count",
        "gained_lately_count",
        "rate_bytes_per_s",
    )
    return {
        **{name: np.zeros(sites, bool) for name in flags},
        **{name: np.zeros(sites) for name in figures},
        "old_share": np.full(sites, np.nan),
    }
