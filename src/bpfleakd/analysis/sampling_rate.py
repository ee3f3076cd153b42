"""How densely the blocks of a process are recorded.

The sampling interval is a power of 2: one block in about 2^shift bytes is recorded; shift 0 records all.

Rules:
  - There is a maximum of recorded blocks per second. A process that allocates at most that many is recorded
    exactly.
  - An excess is cut at once, by as much as necessary. Recording becomes denser slowly, one step after some
    calm seconds, because some programs allocate in bursts.
  - A live table that fills up also makes the sampling coarser: a full one would miss blocks, and no estimate
    can correct that. Recorded blocks of a leak stay, so it never gets emptier: one step when half is used,
    and another each time that half of the room then left is used.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

# Below 4 KiB, sampling skips too little to be worth an estimate; above 4 MiB, it records too little.
MIN_SHIFT = 12
MAX_SHIFT = 22

_TOO_MUCH = 1.5
# One step down doubles the records: the result must still be well below the target.
_TOO_LITTLE = 0.25
_CALM_S = 5.0
_FULL = 0.5


class RecordingRates(Struct, frozen=True):
    """What a process did in the last `elapsed_s` seconds.

    `records_per_s` blocks were recorded, of `bytes_per_s` that were allocated (an estimate).
    `hits_per_s` are probe hits: at least two for a block that is allocated and freed. `filled` is how
    full the table of live blocks is, from 0 to 1.
    """

    elapsed_s: float
    records_per_s: float
    bytes_per_s: float
    hits_per_s: float
    filled: float


class SamplingState(Struct, frozen=True):
    """The interval of a process, and how long fewer blocks were recorded than the target allows.

    Sampling becomes coarser when the table of live blocks is fuller than `crowded_at`, from 0 to 1.
    """

    shift: int
    calm_s: float = 0.0
    crowded_at: float = _FULL


def adapted(state: SamplingState, rates: RecordingRates, target_per_s: float) -> SamplingState:
    """The state after these rates; `target_per_s` is the wanted number of recorded blocks per second."""
    load = rates.records_per_s / target_per_s
    crowded = rates.filled > state.crowded_at and rates.records_per_s > 0
    if load > _TOO_MUCH or crowded:
        shift = _coarser(state.shift, rates, target_per_s, load)
        return SamplingState(shift, crowded_at=next_crowded(rates.filled))
    if state.shift == 0 or load >= _TOO_LITTLE or rates.filled > _FULL / 2:
        return replace(state, calm_s=0.0)
    calm_s = state.calm_s + rates.elapsed_s
    if calm_s < _CALM_S:
        return replace(state, calm_s=calm_s)
    # There are so few allocations that every block may be recorded.
    if rates.hits_per_s / 2 <= target_per_s:
        return SamplingState(0)
    return SamplingState(max(MIN_SHIFT, state.shift - 1))


def next_crowded(filled: float) -> float:
    """How full a table that is `filled` may become before sampling has to be coarser than now."""
    return (1 + filled) / 2 if filled > _FULL else _FULL


def _coarser(shift: int, rates: RecordingRates, target_per_s: float, load: float) -> int:
    if shift == 0:
        # One block per interval is recorded, if blocks are small.
        wanted = math.ceil(math.log2(max(1.0, rates.bytes_per_s / target_per_s)))
    else:
        wanted = shift + max(1, round(math.log2(max(1.0, load))))
    return min(MAX_SHIFT, max(MIN_SHIFT, wanted))
