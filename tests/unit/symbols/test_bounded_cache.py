"""A cache limited in entries and in bytes."""

from __future__ import annotations

from bpfleakd.symbols.bounded_cache import BoundedCache


def test_the_oldest_goes_when_there_are_too_many() -> None:
    """A look-up makes an entry new."""
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_the_oldest_go_when_they_are_too_large() -> None:
    """An entry that is replaced counts once; one that is larger than the limit is not kept."""
    cache: BoundedCache[str, bytes] = BoundedCache(100, len, 10)
    cache.put("a", bytes(9))
    cache.put("a", bytes(4))
    cache.put("b", bytes(6))
    assert cache.used_bytes == 10
    cache.put("c", bytes(1))
    assert [cache.get(key) for key in "abc"] == [None, bytes(6), bytes(1)]
    cache.put("d", bytes(11))
    assert (len(cache), cache.used_bytes) == (0, 0)
    cache.put("a", bytes(5))
    cache.clear()
    assert cache.used_bytes == 0
