"""The results of an attach: probed files, links and pins, and the data for the next daemon."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from bpfleakd import errors
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.kernel.probes.announced import PLACES_PROVIDER
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import NOTICES, FunctionRole, ProbedFunction
from bpfleakd.process.breakpoints import missing_breakpoints
from bpfleakd.process.files.mapped_files import FileKey
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.go.program import FoundGo
from bpfleakd.tracing.attaching.probed_file import ProbedFile
from bpfleakd.tracing.checkpoint import read_checkpoint, write_checkpoint

_RECORD = "attachment"
# A probe is at the entry of a function, or as near behind it.
_PROLOGUE_BYTES = 64


class LinkedFile(Struct, frozen=True):
    """A file with probes in it, the number in its links' pins, and the number of `links`.

    `ranges` are the allocator's functions, as file offsets. `unprobed` are functions without a probe because
    a sampler inside announces their blocks. `notices` are probed functions that are no allocator's, `sites`
    probed places that make system calls.
    """

    id: FileKey
    number: int
    probes: tuple[ProbedFunction, ...]
    ranges: tuple[tuple[int, int], ...] = ()
    unprobed: tuple[ProbedFunction, ...] = ()
    links: int = 0
    notices: tuple[ProbedFunction, ...] = ()
    sites: tuple[ProbedFunction, ...] = ()

    @property
    def allocator_functions(self) -> tuple[ProbedFunction, ...]:
        """Its functions of allocators, probed or not, and a sampler's own probes."""
        return (*self.probes, *self.unprobed)

    @property
    def module(self) -> str | None:
        """The path of the file as the process sees it; None if it has no function of an allocator."""
        return self.allocator_functions[0].module if self.allocator_functions else None


class Attachment(Struct, frozen=True):
    """An attached process. `pidfd` (or GONE), `links`, `site_links` and the program of `go` are open."""

    process: ProcessInfo
    pidfd: int
    links: tuple[int, ...]
    mappings: tuple[Mapping, ...]
    files: tuple[LinkedFile, ...]
    pins: ProcessPins
    go: FoundGo = msgspec.field(default_factory=FoundGo)
    site_links: tuple[int, ...] = ()

    @property
    def probes(self) -> tuple[ProbedFunction, ...]:
        """The probed allocator functions, or a sampler's own probes."""
        return tuple(probe for file in self.files for probe in file.probes)

    @property
    def allocator_functions(self) -> tuple[ProbedFunction, ...]:
        """All known functions of the process' allocators, probed or not."""
        return tuple(function for file in self.files for function in file.allocator_functions)

    @property
    def allocators(self) -> set[str]:
        """The names of the process' allocators; libbpfleak.so, which hands all calls on, is none."""
        names = [{function.allocator for function in file.allocator_functions} for file in self.files]
        return {name for of_file in names if PLACES_PROVIDER not in of_file for name in of_file}

    @property
    def notices(self) -> tuple[ProbedFunction, ...]:
        """Probed functions that are no allocator's, such as the dynamic loader's."""
        return tuple(probe for file in self.files for probe in file.notices)

    @property
    def sites(self) -> tuple[ProbedFunction, ...]:
        """The probed places that make system calls."""
        return tuple(site for file in self.files for site in file.sites)

    def sees_call(self, offset: int) -> bool:
        """Whether a probe sees the calls of the function of NOTICES at a file offset."""
        return any(0 <= probe.offset - offset < _PROLOGUE_BYTES for probe in self.notices)

    @property
    def is_inside(self) -> bool:
        """Whether a sampler inside the process announces its blocks."""
        return any(probe.role is FunctionRole.SAMPLED_ALLOC for probe in self.probes)


class AttachmentCheckpoint(Struct, frozen=True):
    """The data on an attachment for the next daemon."""

    process: ProcessInfo
    mappings: tuple[Mapping, ...]
    files: tuple[LinkedFile, ...]


def linked_file(file: ProbedFile, number: int, links: Sequence[int]) -> LinkedFile:
    """The data to store on a file."""
    functions = tuple(f for f in file.functions if f.role not in NOTICES)
    probed = {point.offset for point in file.points}
    return LinkedFile(
        file.id,
        number,
        (*(f for f in functions if f.offset in probed), *(probe.shown for probe in file.sampled)),
        file.ranges if file.has_allocator else (),
        tuple(f for f in functions if f.offset not in probed),
        len(links),
        tuple(f for f in file.functions if f.role in NOTICES),
        tuple(site.shown for site in file.sites),
    )


def read_attachment(pins: ProcessPins) -> AttachmentCheckpoint:
    """The record of an earlier daemon's attachment. Raises ValueError if there is none."""
    return read_checkpoint(pins.record(_RECORD), AttachmentCheckpoint)


def write_attachment(attachment: Attachment) -> None:
    """Store the data for the next daemon. Raises OSError."""
    record = attachment.pins.record(_RECORD)
    write_checkpoint(record, AttachmentCheckpoint(attachment.process, attachment.mappings, attachment.files))
    record.close()


def refuse_unlinked(files: Sequence[LinkedFile], opened: dict[int, list[int]]) -> None:
    """Raise ValueError if links were removed while no daemon ran, so calls were not recorded."""
    for file in files:
        missing = file.links - len(opened.get(file.number, []))
        if missing > 0:
            name = file.module or f"file {file.number}"
            raise ValueError(f"{missing} of {file.links} links to {name} are gone")


def refuse_without_breakpoints(attachment: Attachment) -> None:
    """Raise ValueError if the process runs code without the breakpoints of its links."""
    pid = attachment.process.id.pid
    try:
        mappings = read_mappings(pid)
    except errors.BpfleakdError:
        return  # it has just ended
    missing = missing_breakpoints(pid, (*attachment.probes, *attachment.notices, *attachment.sites), mappings)
    if missing:
        raise ValueError(f"{len(missing)} breakpoints are gone, such as that of {missing[0].function}")
