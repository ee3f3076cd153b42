"""V8 as a runtime of a traced process."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.mapped_files import open_mapped
from bpfleakd.process.mappings import KnownMappings
from bpfleakd.process.process import ProcessInfo
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.v8.code import V8Code
from bpfleakd.runtimes.v8.constants import Constants, UntrustedHeap, read_constants, read_version
from bpfleakd.runtimes.v8.functions import FunctionReader
from bpfleakd.runtimes.v8.gc_tracer import TracerLayout, read_layout
from bpfleakd.runtimes.v8.heap_objects import HeapObjects
from bpfleakd.runtimes.v8.inspector import V8Inspector
from bpfleakd.runtimes.v8.live_heap import V8LiveHeap
from bpfleakd.runtimes.v8.node_options import old_space_limit_bytes, read_options
from bpfleakd.runtimes.v8.source_lines import ScriptLines
from bpfleakd.sandbox.helpers import Helpers

_INLINED = (
    "JavaScript functions that V8 has inlined into their callers have no frames: "
    "their caller takes the blame (node --no-turbo-inlining keeps them apart)"
)
_MAYBE = re.compile(r"(?:^|/)(?:node(?:js)?|libnode)[^/]*$")


class V8:
    """V8 with trusted constants; without them, nothing is named, and the notes explain why."""

    name = "V8"
    methods = None
    code_tables = ()
    frames = None
    allocations = None
    types = None

    def __init__(
        self,
        helpers: Helpers,
        process: ProcessInfo,
        memory: RemoteMemory,
        mapping: Mapping,
        found: _Found | UntrustedHeap,
    ) -> None:
        """Takes ownership of `memory`. `mapping` is of the file that contains V8."""
        self._memory = memory
        pid = process.id.pid
        self.sampler = V8Inspector(helpers, process, self._heap_bytes)
        self.heap_limit_bytes = _heap_limit_bytes(pid)
        self._reason: str | None = None
        self.version = "?"
        self.code: V8Code | None = None
        self.live_heap: V8LiveHeap | None = None
        if isinstance(found, UntrustedHeap):
            self._reason = str(found)
            return
        constants, self.version, layout = found
        heap = HeapObjects(memory, constants)
        mappings = KnownMappings(pid)
        self.code = V8Code(constants, FunctionReader(heap), ScriptLines(heap), mapping.path, mappings)
        self.live_heap = V8LiveHeap(memory, mappings, layout)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on missing data, with the reasons."""
        if self._reason:
            return (f"no JavaScript frames: {self._reason}",)
        failure = self.live_heap.failure if self.live_heap else None
        return (_INLINED, f"collections of V8 are unknown: {failure}") if failure else (_INLINED,)

    def _heap_bytes(self) -> int | None:
        return self.live_heap.heap_bytes if self.live_heap else None

    def close(self) -> None:
        """Close the access to the process' memory, and drop known names."""
        self.code = None
        self._memory.close()


_Found = tuple[Constants, str, TracerLayout | None]


def detect_v8(helpers: Helpers, process: ProcessInfo, mappings: Sequence[Mapping]) -> V8 | None:
    """The V8 of a process; None if there is none, or the process has ended."""
    for mapping in mappings:
        if not (mapping.executable and _MAYBE.search(mapping.path)):
            continue
        try:
            memory = RemoteMemory(process.id.pid)
        except OSError:
            return None
        try:
            found = _constants(process.id.pid, mapping, memory)
        except (BadElf, OSError):
            found = None
        if found is not None:
            return V8(helpers, process, memory, mapping, found)
        memory.close()
    return None


def _heap_limit_bytes(pid: int) -> int | None:
    """The limit; None if no option sets it: V8's own depends on its version and on the machine's memory."""
    try:
        return old_space_limit_bytes(read_options(pid))
    except OSError:
        return None


def _constants(pid: int, mapping: Mapping, memory: RemoteMemory) -> _Found | UntrustedHeap | None:
    """The constants of the V8 in a file, its version, and the layout of its GCTracer; None without V8.

    Raises BadElf or OSError.
    """
    file = open_mapped(pid, mapping, str(pid))
    with ElfImage.open(file.descriptor) as image:
        vaddr = image.vaddr_of(mapping.offset)
        if vaddr is None:
            return None
        bias = mapping.start - vaddr

        def word(address: int) -> int:
            return int.from_bytes(memory.read(address + bias, 4), "little", signed=True)

        try:
            constants = read_constants(image, word)
        except UntrustedHeap as error:
            return error
        if constants is None:
            return None
        return constants, read_version(image, word), read_layout(image)
