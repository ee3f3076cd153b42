"""Tables built in a child process, so that neither their memory nor their time is the daemon's.

What is in the cache needs no child: it takes a millisecond or two, where a child takes a hundred to start.

The child (`python -m bpfleakd.unwind.worker [CACHE_DIRECTORY]`) reads one path a line ("[vdso]" for the
kernel's) and answers each, in order: a line of JSON, then as many bytes as it says: rows, page index,
packed rules.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.vdso import VDSO, own_vdso_image
from bpfleakd.errors import BadElf
from bpfleakd.unwind.build import MAX_ROWS, build_table, sections_of
from bpfleakd.unwind.cache import TableCache
from bpfleakd.unwind.pe import build_pe_table, is_pe, pe_sections_of
from bpfleakd.unwind.rules import PACKED_RULE_BYTES, pack, unpack
from bpfleakd.unwind.table import UnwindTable

__all__ = ["BuiltTable", "build_tables"]


_FRAME_SECTIONS = (".eh_frame", ".eh_frame_hdr", ".debug_frame")
# Of larger ones the memory would be the daemon's for ever. libpython has 0.8 MB, libLLVM 10.
_READ_HERE_BYTES_MAX = 2 << 20
# A framework compiled into one file has 100 MB.
_PE_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class BuiltTable:
    """The answer for one file: `table` or the reason why there is none.

    `digest` (hex) stands for the contents that the table was made of: equal digests, equal tables.
    `segments` are the file's executable ones: file offset, vaddr, bytes.
    """

    path: str
    digest: str
    table: UnwindTable | None
    segments: tuple[tuple[int, int, int], ...] = ()
    failure: str = ""


def build_tables(paths: Sequence[str], cache_directory: Path | None = None) -> Iterator[BuiltTable]:
    """The tables of files: those in the cache first, then the others as a child process builds them.

    A child that dies takes only the file that killed it with it: the rest go to another one.
    """
    remaining = list(paths)
    if cache_directory is not None:
        cache = TableCache(cache_directory)
        for path in paths:
            found = _cached(path, cache)
            if found is not None:
                remaining.remove(path)
                yield found
    while remaining:
        answered = 0
        for built in _run(remaining, cache_directory):
            answered += 1
            yield built
        remaining = remaining[answered:]
        if remaining:
            yield BuiltTable(remaining.pop(0), "", None, failure="the process that built its table ended")


def _cached(path: str, cache: TableCache) -> BuiltTable | None:
    try:
        with _image(path) as image:
            frames = [section for name in _FRAME_SECTIONS if (section := image.section(name))]
            if sum(section.size_bytes for section in frames) > _READ_HERE_BYTES_MAX:
                return None
            sections = sections_of(image)
            table = cache.find(sections)
            if table is None:
                return None
            return BuiltTable(path, sections.digest.hex(), table, _executable_segments(image))
    except (BadElf, OSError):
        return None  # the child says what is wrong with it


def _image(path: str) -> ElfImage:
    return own_vdso_image()[0] if path == VDSO else ElfImage.open(path)


def _executable_segments(image: ElfImage) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (segment.file_offset, segment.vaddr, segment.file_size_bytes)
        for segment in image.segments
        if segment.executable
    )


def _run(paths: Sequence[str], cache_directory: Path | None) -> Iterator[BuiltTable]:
    command = [sys.executable, "-P", "-m", __spec__.name]
    if cache_directory is not None:
        command.append(str(cache_directory))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        try:
            # A few kilobytes at most: paths below /proc/PID/map_files.
            child.stdin.write("".join(f"{path}\n" for path in paths).encode(errors="surrogateescape"))
            child.stdin.close()
            for path in paths:
                built = _read_answer(child.stdout, path)
                if built is None:
                    return
                yield built
        except BrokenPipeError:
            return
        finally:
            child.kill()


def _read_answer(stream: IO[bytes], path: str) -> BuiltTable | None:
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    header = json.loads(line)
    if "failure" in header:
        return BuiltTable(path, "", None, failure=header["failure"])
    rows = stream.read(4 * header["rows"])
    index = stream.read(4 * header["index"])
    rules = stream.read(PACKED_RULE_BYTES * header["rules"])
    if len(rules) != PACKED_RULE_BYTES * header["rules"]:
        return None
    table = UnwindTable(
        build_id=header["build_id"],
        text_start=header["text_start"],
        rows=np.frombuffer(rows, np.uint32),
        page_index=np.frombuffer(index, np.uint32),
        rules=unpack(rules),
        fde_count=header["fde_count"],
        skipped=header["skipped"],
    )
    return BuiltTable(path, header["digest"], table, tuple(map(tuple, header["segments"])))


# The child's side


def _answer(path: str, cache: TableCache | None, out: IO[bytes]) -> None:
    try:
        table, digest, segments = _built(path, cache)
    except (BadElf, OSError) as error:
        out.write(json.dumps({"failure": str(error)}).encode() + b"\n")
        return
    header = {
        "build_id": table.build_id,
        "text_start": table.text_start,
        "rows": len(table.rows),
        "index": len(table.page_index),
        "rules": len(table.rules),
        "fde_count": table.fde_count,
        "skipped": table.skipped,
        "digest": digest,
        "segments": segments,
    }
    out.write(json.dumps(header).encode() + b"\n")
    for part in (table.rows, table.page_index):
        out.write(part.data.cast("B"))
    out.write(pack(table.rules))


def _built(path: str, cache: TableCache | None) -> tuple[UnwindTable, str, tuple[tuple[int, int, int], ...]]:
    if path != VDSO and is_pe(_beginning(path)):
        pe = pe_sections_of(_whole(path))
        return build_pe_table(pe, MAX_ROWS), pe.digest, pe.segments
    with _image(path) as image:
        sections = sections_of(image)
        table = cache.table_of(sections) if cache else build_table(sections)
        return table, sections.digest.hex(), _executable_segments(image)


def _beginning(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(2)


def _whole(path: str) -> bytes:
    with Path(path).open("rb") as file:
        data = file.read(_PE_BYTES_MAX + 1)
    if len(data) > _PE_BYTES_MAX:
        raise BadElf(f"a PE file of more than {_PE_BYTES_MAX >> 20} MiB")
    return data


def _main() -> None:
    cache = TableCache(Path(sys.argv[1])) if len(sys.argv) > 1 else None
    for line in sys.stdin.buffer.read().splitlines():
        _answer(line.decode(errors="surrogateescape"), cache, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
