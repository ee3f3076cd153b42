"""A Java virtual machine as a runtime of a traced process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bpfleakd.elf.image import ElfImage
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.runtimes.managed import RuntimeArea
from bpfleakd.process.files.mapped_files import open_mapped
from bpfleakd.process.process import ProcessInfo
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.attach import JavaAttach
from bpfleakd.runtimes.jvm.code import JavaCode
from bpfleakd.runtimes.jvm.flags import read_flag, read_size
from bpfleakd.runtimes.jvm.heap_types import JavaTypes
from bpfleakd.runtimes.jvm.live_heap import JavaLiveHeap
from bpfleakd.runtimes.jvm.machine import Machine, Unsupported, find_library, read_machine
from bpfleakd.runtimes.jvm.methods import JavaFrames, JavaMethods
from bpfleakd.runtimes.jvm.names import JavaNames
from bpfleakd.runtimes.jvm.perf_data import PerfData
from bpfleakd.runtimes.jvm.perf_map import JavaPerfMap
from bpfleakd.runtimes.jvm.survivors import JavaSurvivors
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.unwind.table import UnwindTable

# The first version whose recordings accept the settings of single events on request.
_SURVIVORS_SINCE = 17


class JavaRuntime:
    """A machine whose structures are known, or the reason why they are not."""

    name = "JVM"
    frames = None
    allocations = None

    def __init__(
        self, helpers: Helpers, process: ProcessInfo, memory: RemoteMemory, found: Machine | Unsupported
    ) -> None:
        """Takes ownership of `memory`. Raises OSError if the process has ended."""
        self._memory = memory
        self._reason = str(found) if isinstance(found, Unsupported) else None
        self.version = "?"
        self.methods: JavaMethods | None = None
        self.code: JavaFrames | None = None
        self.live_heap: JavaLiveHeap | None = None
        self.types: JavaTypes | None = None
        flags = found.flags if isinstance(found, Unsupported) else found.layout.flags
        attach = JavaAttach(process, partial(read_flag, memory, flags))
        self.heap_limit_bytes = read_size(memory, flags, "MaxHeapSize")
        self.perf_map = JavaPerfMap(process, attach)
        self.survivors: JavaSurvivors | None = None
        if isinstance(found, Unsupported):
            return
        self.version = found.version
        names = JavaNames(memory, found.layout)
        self.methods = JavaMethods(names, JavaCode(process.id.pid, found.layout))
        self.code = JavaFrames(names)
        if found.layout.perf_start and found.layout.perf_end:
            counters = PerfData(memory, found.layout.perf_start, found.layout.perf_end)
            self.live_heap = JavaLiveHeap(counters.read)
        self.types = JavaTypes(attach, self._heap_bytes)
        if _major(self.version) >= _SURVIVORS_SINCE:
            self.survivors = JavaSurvivors(helpers, process, attach, self._heap_bytes)

    @property
    def code_tables(self) -> Sequence[UnwindTable]:
        """The unwind tables of compiled code, the interpreter and stubs."""
        return self.methods.tables if self.methods is not None else ()

    @property
    def areas(self) -> tuple[RuntimeArea, ...]:
        """The metaspace, as of the JVM's last count, and the code cache."""
        metaspace = self.live_heap.metaspace if self.live_heap is not None else None
        code_cache = self.methods.code_cache if self.methods is not None else None
        return tuple(area for area in (metaspace, code_cache) if area is not None)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on missing data, with the reasons."""
        if self._reason is not None:
            return (f"of Java, frames have no names: {self._reason}",)
        failure = (
            self.live_heap.failure if self.live_heap else "the JVM does not publish where its counters are"
        )
        notes = [f"of Java, its collections are unknown: {failure}"] if failure else []
        if self.methods is not None and self.methods.failure:
            notes.append(f"of Java, frames have no names: its code cannot be read: {self.methods.failure}")
        return notes

    def _heap_bytes(self) -> int | None:
        return self.live_heap.heap_bytes() if self.live_heap else None

    def close(self) -> None:
        """Close the access to the process' memory, and drop known names."""
        if self.methods is not None:
            self.methods.close()
        self._memory.close()


def _major(version: str) -> int:
    number = version.partition(".")[0].partition("+")[0]
    return int(number) if number.isdecimal() else 0


def detect_jvm(helpers: Helpers, process: ProcessInfo, mappings: Sequence[Mapping]) -> JavaRuntime | None:
    """The machine of a process; None if there is none, or the process has ended."""
    library = find_library(mappings)
    if library is None:
        return None

    @contextmanager
    def open_image(mapping: Mapping) -> Iterator[ElfImage]:
        file = open_mapped(process.id.pid, mapping, str(process.id.pid))
        with ElfImage.open(file.descriptor) as image:
            yield image

    try:
        memory = RemoteMemory(process.id.pid)
    except OSError:
        return None
    found: Machine | Unsupported
    try:
        found = read_machine(library, open_image, memory)
    except Unsupported as error:
        found = error
    except OSError:
        memory.close()
        return None
    return JavaRuntime(helpers, process, memory, found)
