"""Whether something ends, without a say in how long it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["ends"]


def ends(action: Callable[[], object], within_s: float = 60.0) -> bool:
    """Run `action` in a thread; False if it does not end. `within_s` is for a machine that is very busy."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(within_s)
    return not thread.is_alive()
