"""What is measured of call sites before they are judged."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from bpfleakd.verdicts.envelope import Row
from bpfleakd.verdicts.site_histories import Flags

__all__ = ["Persistence"]


@dataclass(frozen=True, slots=True)
class Persistence:
    """Figures for each site.

    `quiet_s` is for how long nothing was born, `excursion_s` the longest time after which the site came down
    again. `persists` is whether it grows as a leak does, over `window_s`; `by_blocks` whether blocks become
    more, and `by_survivors` whether only the survivors show it; `dies` whether old blocks still die, or are
    replaced. For that window, `rate_bytes_per_s` is what it gains and `old_share` what still lives of the
    blocks born in its first third (NaN: not known). `grows` and `stopped` are about the whole time after the
    first seconds, with `grown_bytes` over `grown_s`, `steps` and `silence_s`. `unseen_s` is the silence where
    it is no evidence: what was recorded of late is too little to see a growth like that before; else 0.
    `collections` is infinite for sites that are known all the time.
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
    grows: Flags
    stopped: Flags
    grown_bytes: Row
    grown_s: Row
    steps: Row
    silence_s: Row
    unseen_s: Row
    collections: Row

    def joined(self, other: Persistence) -> Persistence:
        """These sites, and then the other ones, observed for as long."""
        of_sites = [field.name for field in fields(self) if field.name not in ("observed_s", "leak_after_s")]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in of_sites
        }
        return replace(self, **columns)
