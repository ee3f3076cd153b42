"""Sums over sampled blocks, and their standard errors.

A block of s bytes is recorded with probability p and then represents s/p bytes and 1/p blocks, so that sums
are right on average (Horvitz and Thompson, 1952). Blocks are recorded independently of one another: the
variance of a sum is the sum over all blocks of (1-p)/p s^2, of which the sum over the recorded ones of
(1-p)/p^2 s^2 is an estimate that is right on average too. The truth lies within 1.96 standard errors of the
estimate 95 times in 100, if some dozens of blocks were recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

# The units of the variances in SiteCounters: bytes^2 and blocks^2 each. bpf/abi.h has the same.
BYTES_VARIANCE_UNIT = 65_536
COUNT_VARIANCE_UNIT = 1 / 65_536


def bytes_stderr(variance: int) -> float:
    """The standard error that belongs to SiteCounters.live_bytes_variance, in bytes."""
    return round(math.sqrt(max(0, variance) * BYTES_VARIANCE_UNIT), 1)


def count_stderr(variance: int) -> float:
    """The standard error that belongs to SiteCounters.live_count_variance, in blocks."""
    return round(math.sqrt(max(0, variance) * COUNT_VARIANCE_UNIT), 3)


def stderr_of_sum(stderrs: Iterable[float]) -> float:
    """The standard error of a sum of independent estimates."""
    return round(math.sqrt(sum(stderr * stderr for stderr in stderrs)), 3)


def block_weights(blocks: NDArray[np.void]) -> NDArray[np.float64]:
    """How many blocks each LIVE_BLOCK record (size, weight in bytes) represents; 1 for those of 0 bytes."""
    weights: NDArray[np.float64] = blocks["weight"] / np.maximum(blocks["size"], 1)
    return weights


def estimated_bytes(blocks: NDArray[np.void]) -> NDArray[np.uint64]:
    """How many bytes each LIVE_BLOCK record represents."""
    return np.where(blocks["size"] > 0, blocks["weight"], 0).astype(np.uint64)
