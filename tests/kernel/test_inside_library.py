"""libbpfleak.so in front of every installed allocator: the program checks its own blocks."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache

import pytest

from .inside_library import inside_program, library
from .machine import LIBRARIES, MIMALLOC, cannot_run, need_tool

THREADS, ROUNDS, LARGEST_BYTES = 16, 1_500, 16 << 20
# More probes that announce the same (inside/probes.h).
PLACES = 64


def semaphores() -> list[str]:
    """The addresses within the library of the semaphores of the probes that announce blocks."""
    notes = subprocess.run(
        [need_tool("readelf"), "-n", library()], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"Name: (?:alloc|free)\n.*Semaphore: (0x[0-9a-f]+)", notes)
    assert len(found) == len(set(found)) == 2 * (1 + PLACES)
    return found


def stress(preloaded: str, interval_bytes: int, **environment: str) -> str:
    """Run the stress test while the semaphores rise and fall; returns its output."""
    done = subprocess.run(
        [inside_program("stress"), *map(str, (THREADS, ROUNDS, LARGEST_BYTES)), *semaphores()],
        env={
            **os.environ,
            "LD_PRELOAD": preloaded,
            "BPFLEAK_SAMPLE_INTERVAL": str(interval_bytes),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def is_sound(allocator: str) -> bool:
    """Whether the stress test passes with this allocator alone: not with Debian 13's mimalloc 3.0.1."""
    command = [inside_program("stress"), *map(str, (THREADS, ROUNDS, LARGEST_BYTES))]
    environment = {"LD_PRELOAD": str(LIBRARIES / allocator), "STRESS_OTHER_ALLOCATOR": allocator}
    done = [
        subprocess.run(command, env=os.environ | environment, stderr=subprocess.DEVNULL, check=False)
        for _ in range(2)
    ]
    return all(each.returncode == 0 for each in done)


@pytest.mark.parametrize("interval_bytes", [1_024, 65_536])
def test_a_program_gets_what_it_asked_for(interval_bytes):
    """With the C library's allocator, where a block in two is sampled and where few are."""
    stress(str(library()), interval_bytes)


@pytest.mark.parametrize(
    ("blocks", "least", "most", "pairs"), [(100_000, 100, 100, 20_000_000), (100_000, 16, 2_048, 5_000_000)]
)
def test_a_heap_whose_blocks_are_replaced_over_and_over_does_not_grow(blocks, least, most, pairs):
    """A sampled block is larger, and its memory is for all once freed. 2 and 1 GB are allocated here."""
    command = [inside_program("churn"), *map(str, (blocks, least, most, pairs))]
    grown_kib = []
    for arguments, preloaded in (((), ""), (semaphores(), str(library()))):
        done = subprocess.run(
            [*command, *arguments],
            env={**os.environ, "LD_PRELOAD": preloaded},
            capture_output=True,
            text=True,
            check=True,
        )
        full_kib, end_kib, _ns = done.stdout.split()
        grown_kib.append((int(full_kib), int(end_kib) - int(full_kib)))
    (full_kib, without_kib), (_full_kib, with_kib) = grown_kib
    # A hundredth of the heap is what sampled blocks may take; the rest is for the tables of marks.
    assert with_kib - without_kib < full_kib // 100 + 1_024


def test_it_works_with_c_libraries_older_than_that_of_its_build():
    """The dynamic linker ignores a preloaded library that needs a newer one."""
    symbols = subprocess.run(
        [need_tool("readelf"), "--wide", "--dyn-syms", library()], capture_output=True, text=True, check=True
    ).stdout
    needed = {tuple(map(int, version.split("."))) for version in re.findall(r"@GLIBC_([\d.]+)", symbols)}
    assert needed
    # Red Hat Enterprise Linux 7, of 2014.
    assert max(needed) <= (2, 17)


def test_it_makes_no_system_call_of_its_own():
    """A sandbox may kill for one. The program has all its memory before, and is sampled in the sandbox."""
    done = subprocess.run(
        [inside_program("sandboxed"), *semaphores()],
        env={**os.environ, "LD_PRELOAD": str(library()), "BPFLEAK_SAMPLE_INTERVAL": "1024"},
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.parametrize("is_behind", [True, False])
@pytest.mark.parametrize("allocator", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", MIMALLOC])
def test_other_allocators_are_called_as_ever(allocator, is_behind):
    """The library is in front of one that was preloaded as well, or is bypassed by it."""
    if not (LIBRARIES / allocator).exists():
        cannot_run(f"{allocator} is not installed (make setup FOR=test)")
    if not is_sound(allocator):
        pytest.skip(f"{allocator} itself corrupts memory in this program, without the library")
    order = [library(), LIBRARIES / allocator][:: 1 if is_behind else -1]
    stress(":".join(map(str, order)), 4_096, STRESS_OTHER_ALLOCATOR=allocator)


@pytest.mark.parametrize(
    "allocator", [None, "libjemalloc.so.2", "libtcmalloc_minimal.so.4", MIMALLOC]
)
def test_calls_before_its_constructor_and_after_all_others_are_right(allocator):
    """A program's preinit functions come before constructors of libraries."""
    if allocator and not (LIBRARIES / allocator).exists():
        cannot_run(f"{allocator} is not installed (make setup FOR=test)")
    preloaded = f"{library()}:{LIBRARIES / allocator}" if allocator else str(library())
    environment = {**os.environ, "LD_PRELOAD": preloaded, "BPFLEAK_SAMPLE_INTERVAL": "1024"}
    done = subprocess.run(
        [inside_program("early")], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "main\n", "")


def test_what_it_prints_is_nothing():
    """A program writes the same output with the library preloaded as without it."""
    command = ["python3", "-c", "print(sum(len(str(n)) for n in range(100_000)))"]
    outputs = [
        subprocess.run(command, env={**os.environ, "LD_PRELOAD": preloaded}, capture_output=True, check=True)
        for preloaded in ("", str(library()))
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert outputs[0].stderr == outputs[1].stderr == b""
