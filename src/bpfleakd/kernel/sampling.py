"""The weight of a sampled block: the constants of bpf/sampling.h.

The curve is f(x) = x / (1 - exp(-x)) at CURVE_STEPS + 1 points from 0 to 16, in units of the largest
interval. f is convex, and points are rounded up, so the lines between them lie above it.
"""

from __future__ import annotations

import numpy as np

from bpfleakd.kernel.abi import CURVE_STEPS, MAX_SAMPLE_SHIFT, SAMPLING_CURVE

_CURVE_END = 16


def curve() -> bytes:
    """A struct sampling_curve."""
    x = np.arange(1, CURVE_STEPS + 1) * (_CURVE_END / CURVE_STEPS)
    heights = np.concatenate([[1.0], x / -np.expm1(-x)])
    points = np.zeros(1, SAMPLING_CURVE)
    points["points"] = np.ceil(heights * (1 << MAX_SAMPLE_SHIFT))
    return points.tobytes()
