"""Unwind tables for traced processes: which files need one, where it is built, when the walker gets it.

Unprivileged helpers build the tables, fed by one thread per process. An attach waits for its tables, but not
for long: late ones are published when they are ready (`poll`). Until then the walker follows frame pointers
in files without a table, and marks these stacks.

A record stores the places in the kernel's maps for the next daemon: it is written before anything new is
published and after anything was dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.elf.vdso import VDSO
from bpfleakd.errors import BadElf
from bpfleakd.kernel.blob import Blob
from bpfleakd.kernel.unwind_tables.mapping_list import TableMapping
from bpfleakd.kernel.unwind_tables.shards import Piece, StoreFull
from bpfleakd.kernel.unwind_tables.store import OF_OTHERS, UnwindStore
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.mapped_files import FileKey, OpenedFile
from bpfleakd.process.files.process_code import ProcessCode, open_code
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.threads import begin_thread
from bpfleakd.tracing.checkpoint import read_checkpoint, write_checkpoint
from bpfleakd.unwind.managed_code import CodeRange
from bpfleakd.unwind.rules import pack
from bpfleakd.unwind.table import PAGE_BYTES, UnwindTable
from bpfleakd.unwind.table_builder import BuiltTable, TableBuilder

log = structlog.get_logger()

# For all processes together, and the time limit for the files of one.
_BUILDERS_MAX = 4
_PROCESS_LIMIT_S = 60.0
# A file whose table was late or failed is tried again after these times: the machine may be busy for a while.
_AGAIN_AFTER_S = (15.0, 60.0, 240.0, 960.0)

# The same in every process; no file has inode 0.
_VDSO_KEY = FileKey(0, 0, 0, 0, 0, "")


class _Code(Struct, frozen=True):
    """An open file with code (the vdso has none), and its name."""

    key: FileKey
    name: str
    file: OpenedFile | None


# None: the builder failed, which proves nothing about the file.
_Answer = tuple[_Code, BuiltTable | None]


class _UnwoundProcess(Struct):
    """A process' executable file mappings, with the file of each.

    `tables` are those of code that it has generated, `code` the same by digest; `managed` are the ranges of
    code with frame pointers.
    """

    mappings: list[tuple[Mapping, FileKey]] = msgspec.field(default_factory=list)
    tables: Sequence[UnwindTable] = ()
    code: dict[str, UnwindTable] = msgspec.field(default_factory=dict)
    managed: tuple[CodeRange, ...] = ()


class _File(Struct, frozen=True):
    """The result for a file: its table's digest ("": it has none) and its executable segments."""

    digest: str = ""
    segments: tuple[tuple[int, int, int], ...] = ()

    def bias(self, mapping: Mapping) -> int | None:
        """How far a mapping is above the file's own addresses; None outside of executable segments."""
        for file_offset, vaddr, size_bytes in self.segments:
            # The kernel maps whole pages, so a mapping may begin before its segment.
            if file_offset & -PAGE_BYTES <= mapping.offset < file_offset + size_bytes:
                return mapping.start - (mapping.offset - file_offset + vaddr)
        return None


class _TablesCheckpoint(Struct, frozen=True):
    """The content of the record: the tables, and their files."""

    tables: dict[str, tuple[Piece, ...]]
    files: list[tuple[FileKey, _File]]


class Unwinding:
    """The tables of all traced processes.

    Used from the tracing thread; only the builder runs outside of it.
    """

    def __init__(self, store: UnwindStore, builder: TableBuilder, record: Blob | None = None) -> None:
        """With `record` None, no other daemon will adopt the tables."""
        self._store = store
        self._record = record
        self._saved_state = store.generation, 0
        self._builder = builder
        self._at_a_time = threading.Semaphore(_BUILDERS_MAX)
        self._processes: dict[int, _UnwoundProcess] = {}
        self._files: dict[FileKey, _File] = {}
        self._building: set[FileKey] = set()
        # Files whose table did not fit, and the words in use at that time.
        self._without_room: dict[FileKey, int] = {}
        # Files whose builder failed, how often, and when to try again.
        self._failed: dict[FileKey, tuple[int, float]] = {}
        self._finished: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    def restore(self) -> None:
        """Adopt the tables of an earlier daemon, until `drop_unused`.

        If their places are unknown, they are built again.
        """
        if self._record is None or self._store.is_empty:
            return
        try:
            kept = read_checkpoint(self._record, _TablesCheckpoint)
            self._store.restore(kept.tables)
        except (ValueError, OSError) as error:
            # Opening a map by its id takes CAP_SYS_ADMIN, which nothing else needs.
            log.warning("unwind.tables-lost", reason=str(error))
            kept = _TablesCheckpoint({}, [])
            self._store.restore(kept.tables)
        finally:
            self._record.close()
        self._files = {key: file for key, file in kept.files if self._store.has(file.digest)}

    def drop_unused(self) -> None:
        """Release tables that no followed process uses."""
        self._store.drop_unused(self._processes)
        self._write_checkpoint()

    def follow(self, code: ProcessCode, wait_s: float = 5.0) -> None:
        """Publish the tables of a process, now or when they are ready; call again when its maps changed."""
        self.begin(code)
        self.finish(code.pid, wait_s)

    def begin(self, code: ProcessCode) -> None:
        """Start building the missing tables of a process; `finish` publishes them."""
        before = self._processes.get(code.pid) or _UnwoundProcess()
        self._processes[code.pid] = replace(before, mappings=self._build_missing(code))

    def build_ahead(self, code: ProcessCode, wait_s: float) -> bool:
        """Build the tables of a process before it is followed; returns whether they are ready in time."""
        keys = {key for _mapping, key in self._build_missing(code)}
        self._publish(self._mapping_any(self._wait_for(keys, wait_s)))
        return not keys & self._building

    def _build_missing(self, process: ProcessCode) -> list[tuple[Mapping, FileKey]]:
        """The code of a process, by file; starts building missing tables."""
        found: list[tuple[Mapping, FileKey]] = []
        wanted: dict[FileKey, _Code] = {}
        for mapping, code in _mapped_code(process):
            found.append((mapping, code.key))
            known = self._files.get(code.key)
            needed = known is None or (known.digest and not self._store.has(known.digest))
            if needed and code.key not in self._building:
                wanted[code.key] = code
        if wanted:
            self._build(wanted)
        return found

    def finish(self, pid: int, wait_s: float) -> None:
        """Publish the tables that are ready within `wait_s`; `poll` publishes the rest."""
        taken = self._wait_for({key for _mapping, key in self._processes[pid].mappings}, wait_s)
        self._publish({pid} | self._mapping_any(taken))

    def poll(self) -> None:
        """Publish newly built tables to the processes that map their files."""
        self._retry_without_room()
        self._retry_failed()
        self._publish(self._mapping_any(self._take_finished()))

    def use_tables(self, pid: int, tables: Sequence[UnwindTable]) -> None:
        """Unwind generated code of a followed process by these tables, which replace earlier ones."""
        process = self._processes.get(pid)
        if process is None or process.tables is tables:
            return
        before = process.code
        process.tables, process.code = tables, {_digest(table): table for table in tables}
        # The mappings refer to tables that are already written, and recorded.
        for digest, table in process.code.items():
            try:
                self._store.add(digest, table)
            except StoreFull:
                log.warning("unwind.no-room", pid=pid, words=table.size_bytes // 4)
        self._publish({pid})
        # The tables are valid for this very code, so no other process will need them.
        self._store.drop(before.keys() - process.code.keys())

    def use_managed(self, pid: int, ranges: Sequence[CodeRange]) -> None:
        """Unwind the managed frames of a followed process by these rules."""
        process = self._processes.get(pid)
        if process is not None and process.managed != tuple(ranges):
            process.managed = tuple(ranges)
            self._publish({pid})

    def release(self, pid: int) -> None:
        """Forget a process that is no longer traced."""
        process = self._processes.pop(pid, None)
        if process is not None:
            self._store.release(pid)
            self._store.drop(process.code)
            self._write_checkpoint()

    def missing(self, pid: int) -> list[str]:
        """The files of a process without a table."""
        process = self._processes.get(pid, _UnwoundProcess())
        return sorted({m.path for m, key in process.mappings if not self._files.get(key, _File()).digest})

    def _build(self, wanted: dict[FileKey, _Code]) -> None:
        # Small files first: most frames are in the program itself and in the C library.
        codes = sorted(wanted.values(), key=lambda code: code.key.size_bytes)
        self._building.update(wanted)
        begin_thread("unwind-tables", self._build_each, codes)

    def _build_each(self, codes: Sequence[_Code]) -> None:
        """Runs in the thread of one process."""
        until_s = time.monotonic() + _PROCESS_LIMIT_S
        for code in codes:
            built: BuiltTable | None = None
            try:
                with self._at_a_time:
                    if time.monotonic() < until_s:
                        built = _built(self._builder, code)
                    else:
                        log.warning("unwind.builder-late", path=code.name)
            except (HelperFailed, BadElf, OSError) as error:
                log.warning("unwind.builder-failed", path=code.name, reason=str(error))
            finally:
                self._finished.put((code, built))

    def _retry_without_room(self) -> None:
        if not self._without_room:
            return
        words_used = self._store.words_used
        keys = {key for key, words in self._without_room.items() if words_used < words}
        for key in keys:
            del self._without_room[key]
            # Nothing is known about the file until its table is built.
            self._files.pop(key, None)
        self._build_again(keys)

    def _retry_failed(self) -> None:
        now_s = time.monotonic()
        due = {key for key, (_times, at_s) in self._failed.items() if now_s >= at_s}
        if not due:
            return
        mapped = {key for process in self._processes.values() for _mapping, key in process.mappings}
        for key in due:
            times, _at_s = self._failed.pop(key)
            if key in mapped:
                # Meanwhile the process may have ended, or its file may be gone.
                self._failed[key] = times, now_s + _AGAIN_AFTER_S[0]
        self._build_again(due & mapped - self._building)

    def _build_again(self, keys: set[FileKey]) -> None:
        """Build these tables through a process that maps their files."""
        left = set(keys)
        for pid, process in self._processes.items():
            mappings = [mapping for mapping, key in process.mappings if key in left]
            if not mappings:
                continue
            with contextlib.suppress(errors.NoSuchProcess):
                codes = [code for _mapping, code in _mapped_code(open_code(pid, mappings))]
                wanted = {code.key: code for code in codes if code.key in left}
                if wanted:
                    self._build(wanted)
                    left -= wanted.keys()

    def _mapping_any(self, keys: set[FileKey]) -> set[int]:
        """The processes that map one of the files."""
        return {
            pid
            for pid, process in self._processes.items()
            if any(key in keys for _mapping, key in process.mappings)
        }

    def _wait_for(self, keys: set[FileKey], wait_s: float) -> set[FileKey]:
        """Wait until none of the files is being built; returns all files that became ready meanwhile."""
        deadline = time.monotonic() + wait_s
        taken = self._take_finished()
        while keys & self._building:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                log.debug("unwind.not-ready", files=len(keys & self._building))
                break
            try:
                code, built = self._finished.get(timeout=remaining)
            except queue.Empty:
                continue
            self._take(code, built)
            taken.add(code.key)
        return taken

    def _take_finished(self) -> set[FileKey]:
        taken = set()
        while not self._finished.empty():
            code, built = self._finished.get()
            self._take(code, built)
            taken.add(code.key)
        return taken

    def _take(self, code: _Code, built: BuiltTable | None) -> None:
        key = code.key
        self._building.discard(key)
        if built is None:
            self._note_failure(key)
            return
        self._failed.pop(key, None)
        if built.table is None:
            log.info("unwind.no-table", path=code.name, reason=built.failure)
            self._files[key] = _File()
            return
        self._files[key] = _File(built.digest, built.segments)
        try:
            self._store.add(built.digest, built.table)
        except StoreFull:
            log.warning("unwind.no-room", path=code.name, words=built.table.size_bytes // 4)
            self._files[key] = _File()
            self._without_room[key] = self._store.words_used

    def _note_failure(self, key: FileKey) -> None:
        times, _at_s = self._failed.get(key, (0, 0.0))
        after_s = _AGAIN_AFTER_S[times] if times < len(_AGAIN_AFTER_S) else math.inf
        self._failed[key] = times + 1, time.monotonic() + after_s

    def _write_checkpoint(self) -> None:
        # Another file may have the same table.
        state = self._store.generation, len(self._files)
        if self._record is None or self._saved_state == state:
            return
        tables = self._store.tables
        files = [(key, file) for key, file in self._files.items() if file.digest in tables]
        write_checkpoint(self._record, _TablesCheckpoint(tables, files))
        self._record.close()
        self._saved_state = state

    def _publish(self, pids: Iterable[int]) -> None:
        self._write_checkpoint()
        # All processes acquire their tables before one releases its own: the store drops unused tables.
        used = {pid: self._publish_to(pid) for pid in pids}
        for pid, digests in used.items():
            self._store.release(pid, keep=digests)
        self._write_checkpoint()

    def _publish_to(self, pid: int) -> list[str]:
        process = self._processes[pid]
        ready: list[TableMapping] = []
        digests: list[str] = []
        for mapping, key in process.mappings:
            file = self._files.get(key, _File())
            bias = file.bias(mapping)
            if bias is not None and self._store.has(file.digest):
                digests.append(file.digest)
                pieces = self._store.use(file.digest, pid)
                ready.append(TableMapping(mapping.start, mapping.end, bias, pieces))
        for digest, table in process.code.items():
            if self._store.has(digest):
                digests.append(digest)
                pieces = self._store.use(digest, pid)
                ready.append(TableMapping(table.text_start, table.text_end, 0, pieces))
        pending = any(key in self._building for _mapping, key in process.mappings)
        left_out = self._store.publish(pid, ready, process.managed, pending=pending)
        if left_out:
            log.warning("unwind.too-many-mappings", pid=pid, left_out=left_out)
        return digests


def _digest(table: UnwindTable) -> str:
    """The identity of a table of generated code: its contents."""
    digest = hashlib.blake2b(pack(table.rules), digest_size=16)
    digest.update(table.text_start.to_bytes(8, "little"))
    digest.update(table.page_index.tobytes())
    digest.update(table.rows.tobytes())
    return f"code-{digest.hexdigest()}{OF_OTHERS}"


def _built(builder: TableBuilder, code: _Code) -> BuiltTable:
    if code.file is None:
        return builder.vdso_table()
    with code.file.content(with_digest=False) as content:
        built = builder.table_of(content.descriptor, is_stable=content.is_stable)
        if built.table is None or code.key.is_shared:
            return built
        # If the bytes can change, the table may not belong to the digest.
        process = "" if content.is_stable else f" {code.key.owner}"
        return replace(built, digest=built.digest + process + OF_OTHERS)


def _mapped_code(process: ProcessCode) -> Iterator[tuple[Mapping, _Code]]:
    """The executable mappings of files, with what opens each; memory without a file is left out."""
    for mapping in process.mappings:
        if mapping.executable and mapping.path == VDSO:
            yield mapping, _Code(_VDSO_KEY, VDSO, None)
        elif found := process.file_of(mapping):
            yield mapping, _Code(found.file.key, mapping.path, found.file)
