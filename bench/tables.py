"""Unwind tables: how long they take to build, their memory, and the daemon's memory with many of them.

    python -m bench.tables --file PATH      one file, as JSON

Each build is a separate process, so that their peaks are separate. "Memory" is how far the resident set grows
beyond its size before the file is opened; it includes pages of the file itself.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Benchmark, Figure
from bench.runner import run_alone
from bench.tracing import RunningDaemon, ended_with_us
from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.process.mappings import read_mappings
from bpfleakd.unwind.build import sections_of, table_of
from bpfleakd.unwind.cache import TableCache

_LIBC_S = 0.1
_LARGEST_S = 2
_LARGEST_MB = 64
_RESIDENT_MB = 64
_FILES = 20

_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
_LIBC = _LIBRARIES / "libc.so.6"
_KNOWN = (
    _LIBC,
    _LIBRARIES / "libstdc++.so.6",
    _LIBRARIES / "libcrypto.so.3",
    Path("/usr/bin/node"),
)
# bcc loads LLVM: the largest library on most machines that run bpfleakd.
_LLVM = "libLLVM-*.so*"

# bpfleakd needs these modules, so they are installed. bcc alone loads twenty-five files, including libLLVM.
_TWENTY_FILES = "bcc"
_FIFTY_FILES = "bcc, capstone, ctypes, msgspec, numpy, ssl, sqlite3, yaml"


def measure(short: bool) -> Benchmark:
    """Measure single files, then the daemon with a process of many."""
    benchmark = Benchmark("tables", "Unwind tables", short)
    repeats = 1 if short else 5
    llvm = max(_LIBRARIES.glob(_LLVM), key=lambda path: path.stat().st_size, default=_LIBC)
    known = [_LIBC] if short else [path for path in (*_KNOWN, llvm) if path.exists()]
    largest = _LIBC if short else _largest(llvm)
    for path in dict.fromkeys((*known, largest)):
        _file(benchmark, path, repeats, is_largest=path == largest)
    resident = _daemon_of_many_files(benchmark, _TWENTY_FILES)
    benchmark.demand(resident.name, _RESIDENT_MB, resident, "MB")
    if not short:
        _daemon_of_many_files(benchmark, _FIFTY_FILES)
    return benchmark


def _file(benchmark: Benchmark, path: Path, repeats: int, *, is_largest: bool) -> None:
    builds = [_in_child(path) for _ in range(repeats)]
    rows, fdes = builds[0]["rows"], builds[0]["fdes"]
    name = f"{path.name} ({fdes:,} functions, {rows:,} rows)"
    took = benchmark.add(f"{name}: build", "s", [build["build_s"] for build in builds])
    memory = benchmark.add(f"{name}: memory", "MB", [build["memory_mb"] for build in builds])
    benchmark.add(f"{name}: from the cache", "s", [build["cached_s"] for build in builds])
    benchmark.add(f"{name}: table", "MB", [builds[0]["table_mb"]])
    if path == _LIBC:
        benchmark.demand("build the C library's table", _LIBC_S, took, "s")
    if is_largest:
        benchmark.demand(f"build the table of the largest file here, {path.name}", _LARGEST_S, took, "s")
        benchmark.demand(f"memory for that of {path.name}", _LARGEST_MB, memory, "MB")


def _largest(known: Path) -> Path:
    """The file with the most call frame information on this file system."""
    found = subprocess.run(
        ["find", "/", "-xdev", "-type", "f", "-size", "+8M", "-print0"], capture_output=True, check=False
    )
    candidates = [Path(name) for name in found.stdout.decode(errors="surrogateescape").split("\0") if name]
    return max([known, *candidates], key=_frame_information_bytes)


def _frame_information_bytes(path: Path) -> int:
    try:
        with ElfImage.open(str(path)) as image:
            return len(sections_of(image).eh_frame)
    except (BadElf, OSError):
        return 0


def _daemon_of_many_files(benchmark: Benchmark, modules: str) -> Figure:
    with RunningDaemon(tick_s=0.25, cache_dir=None) as daemon, _process_of_many_files(modules) as pid:
        files = {(m.device, m.inode) for m in read_mappings(pid) if m.executable and m.inode}
        if len(files) < _FILES:
            raise RuntimeError(f"a process of {len(files)} files, not {_FILES}")
        daemon.client.attach(pid)
        _wait_for_children(daemon.pid)
        daemon.wait_ticks(2)
        memory = daemon.resident_mb()
    what = f"a daemon that traces one process of {len(files)} ELF files"
    benchmark.add(f"highest so far: {what}", "MB", [memory["VmHWM"]])
    return benchmark.add(f"resident: {what}", "MB", [memory["VmRSS"]])


@contextlib.contextmanager
def _process_of_many_files(modules: str) -> Iterator[int]:
    program = f"import {modules}; print('ready', flush=True); input()"
    command = ended_with_us(sys.executable, "-c", program)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def _wait_for_children(pid: int, timeout_s: float = 120.0) -> None:
    """Wait until a process has no children: the daemon builds tables in one, which stays for 20 s more."""
    deadline = time.monotonic() + timeout_s
    while any(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"tables were not ready after {timeout_s:g} s")
        time.sleep(0.05)


# The child's side


def _in_child(path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, "--file", str(path)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def _build(path: str) -> dict[str, float]:
    before_mb, started_s = _resident_mb("VmRSS"), time.perf_counter()
    with ElfImage.open(path) as image:
        table = table_of(image)
    build_s, peak_mb = time.perf_counter() - started_s, _resident_mb("VmHWM")
    return {
        "fdes": table.fde_count,
        "rows": len(table.rows),
        "build_s": build_s,
        "cached_s": _cached_s(path),
        "memory_mb": peak_mb - before_mb,
        "table_mb": table.size_bytes / 2**20,
    }


def _cached_s(path: str) -> float:
    """The time of a cache hit, including reading and hashing the file's sections."""
    took_s = 0.0
    with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
        for _ in range(2):
            started_s = time.perf_counter()
            with ElfImage.open(path) as image:
                TableCache(Path(directory)).table_of(sections_of(image))
            took_s = time.perf_counter() - started_s
    return took_s


def _resident_mb(field: str) -> float:
    # Not ru_maxrss, which starts with the parent's size when it started this process.
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1]) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--file"]:
        print(json.dumps(_build(sys.argv[2])))
    else:
        run_alone(measure)
