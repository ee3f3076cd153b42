"""The maps of the stack walker without a kernel, and the walker's own search in them.

The inner maps are files in memory, so that whoever writes them can map them; the search is find_mapping and
find_rule of bpf/walk.h, word by word. Whatever the store is not expected to do fails the test.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.unwind_tables import shards
from bpfleakd.kernel.unwind_tables import store as unwind_store
from bpfleakd.kernel.unwind_tables.store import UnwindStore
from bpfleakd.unwind.rules import GAP, PACKED_RULE_BYTES, UnwindRule, unpack

_RULES, _SHARDS, _MAPPINGS = 1_000_001, 1_000_002, 1_000_003
_KEY = 4
_MASK_32 = (1 << 32) - 1


class FakeKernel:
    """Takes the place of the module bpfleakd.kernel.bpf. `shards_max` and `rules_max` are map sizes."""

    MapType = bpf.MapType
    MAP_FLAG_MMAPABLE = bpf.MAP_FLAG_MMAPABLE
    u32 = staticmethod(bpf.u32)

    def __init__(self, shards_max: int = 8, rules_max: int = 16_384) -> None:
        self.descriptors = {"unwind_rules": _RULES, "unwind_shards": _SHARDS, "unwind_mappings": _MAPPINGS}
        self._sizes = {_RULES: rules_max, _SHARDS: shards_max, _MAPPINGS: 64}
        self.out_of_memory = False
        self.rules: list[bytes] = []
        # Inner maps as the outer ones hold them: separate descriptors.
        self._inner: dict[int, dict[int, int]] = {_SHARDS: {}, _MAPPINGS: {}}

    # The interface that the store uses

    def map_info(self, fd: int) -> bpf.MapInfo:
        value_bytes = PACKED_RULE_BYTES if fd == _RULES else 4
        return bpf.MapInfo(bpf.MapType.ARRAY, _KEY, value_bytes, self._sizes[fd], 0)

    def map_create(
        self, map_type: bpf.MapType, key_bytes: int, value_bytes: int, entries: int, flags: int, name: str
    ) -> int:
        assert (map_type, key_bytes, entries) == (bpf.MapType.ARRAY, _KEY, 1)
        assert len(name) < 16
        if self.out_of_memory:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, value_bytes)
        return fd

    def map_update(self, fd: int, key: bytes, value: bytes) -> None:
        number = int.from_bytes(key, "little")
        assert len(key) == _KEY
        if fd == _RULES:
            # In their order, each once (or the same again): the walker may be reading.
            assert len(value) == PACKED_RULE_BYTES
            if number < len(self.rules):
                assert self.rules[number] == value
                return
            assert number == len(self.rules) < self._sizes[fd]
            self.rules.append(value)
        elif fd in self._inner:
            assert len(value) == 4
            limit = number if fd == _SHARDS else len(self._inner[fd])
            assert limit < self._sizes[fd]
            replaced = self._inner[fd].get(number)
            self._inner[fd][number] = os.dup(int.from_bytes(value, "little"))
            if replaced is not None:
                assert fd == _MAPPINGS, "a shard was replaced while it may be in use"
                os.close(replaced)
        else:
            assert number == 0
            assert len(value) == os.fstat(fd).st_size
            os.pwrite(fd, value, 0)

    def map_delete(self, fd: int, key: bytes) -> bool:
        inner = self._inner[fd].pop(int.from_bytes(key, "little"), None)
        if inner is not None:
            os.close(inner)
        return inner is not None

    def map_lookup(self, fd: int, key: bytes, value_bytes: int) -> bytes | None:
        number = int.from_bytes(key, "little")
        if fd == _RULES:
            assert value_bytes == PACKED_RULE_BYTES
            return self.rules[number] if number < len(self.rules) else bytes(PACKED_RULE_BYTES)
        assert value_bytes == 4
        inner = self._inner[fd].get(number)
        return None if inner is None else inner.to_bytes(4, "little")

    def map_get(self, map_id: int) -> int:
        """The id of an inner map is the descriptor that the outer one holds."""
        return os.dup(map_id)

    def map_keys(self, fd: int, key_bytes: int) -> Iterator[bytes]:
        assert key_bytes == _KEY
        return iter([number.to_bytes(4, "little") for number in self._inner[fd]])

    # The interface that the walker uses

    @property
    def shards(self) -> set[int]:
        """The shards that exist."""
        return set(self._inner[_SHARDS])

    @property
    def pids(self) -> set[int]:
        """The processes that have a mapping list."""
        return set(self._inner[_MAPPINGS])

    def is_pending(self, pid: int) -> bool:
        """Whether the mapping list of a process says that tables are still to come."""
        (published,) = np.frombuffer(self._value(_MAPPINGS, pid), abi.UNWIND_MAPPINGS)
        return bool(published["pending"])

    def mappings_of(self, pid: int) -> np.ndarray:
        """The mapping list of a process: UNWIND_MAPPING records."""
        (published,) = np.frombuffer(self._value(_MAPPINGS, pid), abi.UNWIND_MAPPINGS)
        return published["sorted"][: int(published["count"])]

    def words_of(self, shard: int) -> np.ndarray:
        """The words of a shard."""
        return np.frombuffer(self._value(_SHARDS, shard), np.uint32)

    def rules_at(self, pid: int, addresses: list[int]) -> list[UnwindRule]:
        """The result of find_rule at each address in a process."""
        mappings = self.mappings_of(pid).tolist() if pid in self.pids else []
        shards = {shard: self.words_of(shard) for shard in self.shards}
        rules = [unpack(rule)[0] for rule in self.rules]
        return [rules[_find_rule(mappings, shards, address)] for address in addresses]

    def close(self) -> None:
        for inner in self._inner.values():
            for fd in inner.values():
                os.close(fd)
            inner.clear()

    def _value(self, outer: int, key: int) -> bytes:
        fd = self._inner[outer][key]
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
            return memory[:]


def _find_rule(
    mappings: list[tuple[int, int, int, int, int, int]], shards: dict[int, np.ndarray], ip: int
) -> int:
    low, high = 0, len(mappings)
    while low < high:
        middle = (low + high) >> 1
        if mappings[middle][1] <= ip:
            low = middle + 1
        else:
            high = middle
    if low >= len(mappings) or mappings[low][0] > ip:
        return 0
    _start, _end, bias, shard, gap_rule, index_base = mappings[low]
    if shard == abi.ONE_RULE:
        return index_base
    if shard not in shards:
        return 0
    words, mask = shards[shard], abi.UNWIND_SHARD_WORDS - 1
    vaddr = (ip - bias) % (1 << 64)
    page = (((vaddr >> 12) & _MASK_32) + index_base) & _MASK_32
    low, high = int(words[page & mask]), int(words[(page + 1) & mask])
    while high - low > 1:
        middle = (low + high) >> 1
        if int(words[middle & mask]) & 0xFFF <= vaddr & 0xFFF:
            low = middle
        else:
            high = middle
    return int(words[low & mask]) >> 12 or gap_rule


assert unpack(bytes(PACKED_RULE_BYTES))[0] == GAP


@contextmanager
def store_in(kernel: FakeKernel, *, idle_words_max: int = 0) -> Iterator[UnwindStore]:
    """A store over the maps; both are closed, and no descriptor may be left."""
    before = _open_descriptors()
    with mock.patch.object(unwind_store, "bpf", kernel), mock.patch.object(shards, "bpf", kernel):
        store = UnwindStore(kernel.descriptors, lambda pid: pid, idle_words_max=idle_words_max)
        yield store
        store.close()
    kernel.close()
    assert _open_descriptors() == before


def _open_descriptors() -> int:
    links = (_target_of(fd) for fd in os.listdir("/proc/self/fd"))
    return sum(target.startswith("/memfd:bpfleakd") for target in links)


def _target_of(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # of another thread, and closed already
        return ""
