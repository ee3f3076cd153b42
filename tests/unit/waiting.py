"""Waiting for conditions, without a say in how long they take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def ends(action: Callable[[], object], within_s: float = 60.0) -> bool:
    """Run `action` in a thread; False if it does not end. `within_s` is for a machine that is very busy."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(within_s)
    return not thread.is_alive()


def until(condition: Callable[[], T], within_s: float = 60.0) -> T:
    """The first value of `condition` that counts as true."""
    deadline_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    return value
