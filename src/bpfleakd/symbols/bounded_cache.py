"""A dictionary that drops the least recently used entry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """At most `limit` entries. None is not a value: it means "unknown".

    `bytes_of` returns the approximate memory of a value; together they have at most `limit_bytes`.
    """

    def __init__(
        self, limit: int, bytes_of: Callable[[V], int] = lambda _value: 0, limit_bytes: int = 0
    ) -> None:
        self._limit = limit
        self._bytes_of = bytes_of
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        """The total memory of the values."""
        return self._used_bytes

    def get(self, key: K) -> V | None:
        """Return the value of `key`, which becomes the most recently used."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Store `value`; while the limit is exceeded, drop the least recently used entries."""
        before = self._entries.get(key)
        if before is not None:
            self._used_bytes -= self._bytes_of(before)
        self._entries[key] = value
        self._entries.move_to_end(key)
        self._used_bytes += self._bytes_of(value)
        while len(self._entries) > self._limit or self._used_bytes > self._limit_bytes:
            _key, dropped = self._entries.popitem(last=False)
            self._used_bytes -= self._bytes_of(dropped)

    def clear(self) -> None:
        self._entries.clear()
        self._used_bytes = 0
