"""Lines of a log that one process could repeat for ever."""

from __future__ import annotations


class LogPause:
    """When a log line of one kind and process may be repeated: `pause_ns` after the last one."""

    __slots__ = ("_due_ns", "_pause_ns")

    def __init__(self, pause_ns: int) -> None:
        self._pause_ns = pause_ns
        self._due_ns: int | None = None

    def take(self, now_ns: int) -> bool:
        """Whether the line may be logged at `now_ns`, as it then is."""
        if self._due_ns is not None and now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + self._pause_ns
        return True
