"""Waiting for what happens a little later, without a fixed sleep."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# How many times as long as usual everything may take: on an emulated machine.
PATIENCE = float(os.environ.get("PATIENCE", "1"))


def wait_until(condition: Callable[[], T], timeout_s: float = 15.0) -> T:
    """The first true value of `condition()`; fails on a timeout."""
    deadline = time.monotonic() + timeout_s * PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {timeout_s} s"
        time.sleep(0.05)
    return value
