"""Unwind tables: how long they take to build, how large they are, and what the cache saves.

    PYTHONPATH=src python bench/unwind_tables.py [FILE...]

Each file is built in a process of its own, so that the peak of one is not that of another. "peak" is the
growth of the resident set over what importing takes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bpfleakd.elf.image import ElfImage
from bpfleakd.unwind.build import sections_of, table_of
from bpfleakd.unwind.cache import TableCache

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
FILES = [
    LIBRARIES / "libc.so.6",
    LIBRARIES / "libstdc++.so.6",
    LIBRARIES / "libcrypto.so.3",
    LIBRARIES / "libLLVM-14.so.1",
    Path("/usr/bin/python3.11"),
    Path("/usr/bin/node"),
]
TITLES = ("file", "FDEs", "rows", "rules", "skipped", "table kB", "seconds", "cached s", "peak MB")
FORMAT = "{:20} {:>8} {:>9} {:>6} {:>8} {:>9} {:>8} {:>9} {:>8}"


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measure(path: Path) -> str:
    """Build one file's table, and return its line of figures."""
    before_bytes, start_s = peak_rss_bytes(), time.perf_counter()
    with ElfImage.open(path) as image:
        table = table_of(image)
    elapsed_s, peak_bytes = time.perf_counter() - start_s, peak_rss_bytes() - before_bytes
    return FORMAT.format(
        path.name,
        table.fde_count,
        len(table.rows),
        len(table.rules),
        sum(table.skipped.values()),
        table.size_bytes >> 10,
        f"{elapsed_s:.3f}",
        f"{cached_s(path):.3f}",
        f"{peak_bytes / 2**20:.0f}",
    )


def cached_s(path: Path) -> float:
    """Return how long a hit takes, reading and hashing the file's sections included."""
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):
            start_s = time.perf_counter()
            with ElfImage.open(path) as image:
                TableCache(Path(directory)).table_of(sections_of(image))
    return time.perf_counter() - start_s


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        print(measure(Path(arguments[1])), flush=True)
        return
    print(FORMAT.format(*TITLES), flush=True)
    for path in [Path(argument) for argument in arguments] or [path for path in FILES if path.exists()]:
        subprocess.run([sys.executable, __file__, "--one", str(path)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
