"""What a probe costs a program on this machine, measured on the daemon itself in a few milliseconds.

The probed functions are made for this, four instructions in a file in memory. They begin like most allocator
functions, with an instruction that the kernel emulates; the beginning of a library's functions depends on its
build, and single-stepping costs ten times as much (bench/results).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable

import numpy as np

from bpfleakd.kernel import abi
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.probes.links import Linker, ProbePoint, close_all
from bpfleakd.model.code.probe import FunctionRole, ProbeCost

# push rbp; mov rax, rsi; pop rbp; ret: returns its second argument.
_CODE = bytes.fromhex("55 4889f0 5d c3")
_RELEASE_OFFSET = 64
_SIZE_BYTES = 23
_ADDRESS = 0x1000
_ROUNDS = 5
_CALLS = 300
# Between the fastest machines and a slow one that single-steps.
_PLAUSIBLE_NS = (50.0, 30_000.0)
_PAIR_HITS = 3  # an entry and its return, and the entry of the release


def measure_price(linker: Linker, maps: Maps) -> ProbeCost:
    """Measure with programs attached by `linker`.

    Raises OSError if that is not possible, or CapacityError.
    """
    pid = os.getpid()
    with _Functions() as functions:
        points = [
            ProbePoint(offset, role, abi.role_arguments(role))
            for offset, role in ((0, FunctionRole.SIZE_FIRST), (_RELEASE_OFFSET, FunctionRole.RELEASE))
        ]
        free_ns, pair_ns = functions.times_ns()
        maps.add_process(pid, live_blocks=16)
        links: list[int] = []
        try:
            links = linker.link(functions.path, points, pid, maps.slot_of(pid))
            maps.set_state(pid, abi.RecordingState.RECORDING)
            probed_free_ns, probed_pair_ns = functions.times_ns()
        finally:
            close_all(links)
            maps.remove_process(pid)
    hit_ns = probed_free_ns - free_ns
    record_ns = max(0.0, probed_pair_ns - pair_ns - _PAIR_HITS * hit_ns)
    if not _PLAUSIBLE_NS[0] <= hit_ns <= _PLAUSIBLE_NS[1]:
        raise OSError(0, f"implausible probe cost: {hit_ns:.0f} ns")
    return ProbeCost(hit_ns, record_ns)


class _Functions:
    """An allocator of one block, and its free, in a separate file."""

    def __enter__(self) -> _Functions:
        self._fd = os.memfd_create("bpfleakd-price", os.MFD_CLOEXEC)
        self.path = f"/proc/self/fd/{self._fd}"
        os.write(self._fd, _CODE.ljust(_RELEASE_OFFSET, b"\xcc") + _CODE.ljust(mmap.PAGESIZE, b"\xcc"))
        self._code = mmap.mmap(self._fd, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        return self

    def __exit__(self, *_: object) -> None:
        self._code.close()
        os.close(self._fd)

    def times_ns(self) -> tuple[float, float]:
        """The times of a call that releases an unknown block, and of an allocation with its release."""
        kind = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
        address = np.frombuffer(self._code, np.uint8).ctypes.data
        allocate, release = kind(address), kind(address + _RELEASE_OFFSET)

        def pair() -> None:
            allocate(_SIZE_BYTES, _ADDRESS)
            release(_ADDRESS, 0)

        return _call_ns(lambda: release(_ADDRESS, 0)), _call_ns(pair)


def _call_ns(call: Callable[[], object]) -> float:
    """The fastest of some rounds, in a separate thread: some methods do not see the attaching thread."""
    rounds: list[float] = []

    def measure() -> None:
        for _ in range(_ROUNDS):
            began_ns = time.perf_counter_ns()
            for _ in range(_CALLS):
                call()
            rounds.append((time.perf_counter_ns() - began_ns) / _CALLS)

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    return min(rounds)
