"""A file with functions to probe: its probe points, their description, and the part to probe in a mode.

A process with a sampler inside (docs/inside.md), which announces blocks, costs almost nothing and gives the
same figures as sampling from outside. So bpfleakd uses the sampler whenever not every block is wanted, in
place of the allocators' functions, which then get no probes. Functions of NOTICES are still probed: of the
dynamic loader, to notice new libraries, and of Python.

The malloc that a program exports takes precedence over any preloaded library, and C++ code bypasses the
library if an allocator has its own C++ operators (jemalloc, tcmalloc, mimalloc): the sampler of such a
library would not announce all blocks. musl's functions call each other by way of the symbol table, so a
preloaded library would count a block of calloc twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.kernel.address_space_events import Syscall
from bpfleakd.kernel.probes.announced import COARSER, PLACES_PROVIDER, PROVIDER
from bpfleakd.kernel.probes.links import ProbePoint
from bpfleakd.kernel.probes.points import SITE_AT_ENTRY, SITE_AT_RETURN, FunctionProbe
from bpfleakd.model.code.probe import NOTICES, FunctionRole, ProbedFunction
from bpfleakd.model.process import TracingMode
from bpfleakd.process.allocators import OPERATORS_NEW, UNKNOWN, identify
from bpfleakd.process.files.mapped_files import FileKey, OpenedFile
from bpfleakd.process.files.process_code import CodeFile

_SAMPLED_ROLES = {
    f"{provider}:{name}": role
    for provider in (PROVIDER, PLACES_PROVIDER)
    for name, role in (("alloc", FunctionRole.SAMPLED_ALLOC), ("free", FunctionRole.SAMPLED_FREE))
} | {
    # Never hit; if it were, it would announce the end of an unknown block, which is ignored.
    f"{PLACES_PROVIDER}:{COARSER}": FunctionRole.SAMPLED_FREE
}

_SITE_ROLES = {
    SITE_AT_ENTRY: FunctionRole.SYSCALL_ENTRY,
    SITE_AT_RETURN: FunctionRole.SYSCALL_RETURN,
}
# What the dynamic loader calls, and what glibc calls.
_CALLS_OF_LOADER = frozenset({Syscall.MMAP, Syscall.MPROTECT, Syscall.MUNMAP})
_LOADER, _GLIBC = "ld.so", "glibc"


class SamplerProbe(Struct, frozen=True):
    """A static probe of a sampler: its description, and the arguments in its note."""

    shown: ProbedFunction
    arguments: str
    semaphore: int

    @property
    def name(self) -> str:
        """The probe's name, without its provider's."""
        return self.shown.function.removeprefix(f"{self.shown.allocator}:")

    @property
    def role(self) -> FunctionRole:
        """Whether the probe announces a block or the end of one."""
        return self.shown.role


class SiteProbe(Struct, frozen=True):
    """A place that makes a system call, or `distance` bytes behind where that returns to."""

    shown: ProbedFunction
    distance: int

    @property
    def call(self) -> Syscall:
        """Which call it is."""
        return Syscall[self.shown.function.upper()]


class ProbedFile(Struct, frozen=True):
    """A file with functions to probe; `functions` describes them.

    `sampled` are the static probes of a sampler, if it has one, and their arguments in the note. Each of
    `coarser`, while in use, doubles the sampler's interval.
    `sites` are the places that make system calls; none if one of its places cannot be probed.
    `is_program`: it is the process' executable, not a library; `beside_cxx`: some file of the process has C++
    code that allocates. `refused` are the reasons for not probing others, `ranges` the file offsets of all
    functions. `file` stays open as long as this object exists.
    """

    file: OpenedFile
    points: tuple[ProbePoint, ...]
    functions: tuple[ProbedFunction, ...]
    refused: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    sampled: tuple[SamplerProbe, ...] = ()
    coarser: tuple[SamplerProbe, ...] = ()
    sites: tuple[SiteProbe, ...] = ()
    is_program: bool = False
    beside_cxx: bool = False

    @property
    def id(self) -> FileKey:
        """The identity of the file."""
        return self.file.key

    @property
    def path(self) -> str:
        """A path that opens exactly the file that was read."""
        return self.file.descriptor_path

    @property
    def shown_path(self) -> str:
        """The path of the file as the process sees it."""
        return (*self._static, *self.functions)[0].module

    @property
    def has_sampler(self) -> bool:
        """Whether a sampler in it announces both blocks and their ends."""
        return any(map(_is_whole, _by_provider(self.sampled)))

    def at_place(self, number: int | None) -> ProbedFile:
        """The file with the probes of its sampler that one process needs.

        If it has many that announce the same, one of each role: processes with different numbers get
        different ones, because every hit of a probe runs through the links of all processes there. With None,
        those that all processes share.
        """
        shared, places = _by_provider(self.sampled)
        if not _is_whole(places) or (number is None and _is_whole(shared)):
            return replace(self, sampled=shared)
        by_role = ([probe for probe in places if probe.role is role] for role in _roles(places))
        return replace(self, sampled=tuple(alike[(number or 0) % len(alike)] for alike in by_role))

    @property
    def probed_code(self) -> list[tuple[int, int]]:
        """The file offsets of each probe's function, as far as known, and of the instruction."""
        offsets = [
            *(point.offset for point in self.points),
            *(probe.offset for probe in self._static),
        ]
        return [
            (next((start for start, end in self.ranges if start <= offset < end), offset), offset)
            for offset in offsets
        ]

    @property
    def _static(self) -> list[ProbedFunction]:
        return [*(probe.shown for probe in self.sampled), *(site.shown for site in self.sites)]

    @property
    def has_allocator(self) -> bool:
        """Whether it has more than functions of NOTICES."""
        return any(function.role not in NOTICES for function in self.functions)


def _by_provider(
    probes: Sequence[SamplerProbe],
) -> tuple[tuple[SamplerProbe, ...], tuple[SamplerProbe, ...]]:
    """The probes of the convention, and the places of libbpfleak.so."""
    shared, places = (
        tuple(probe for probe in probes if probe.shown.allocator == provider)
        for provider in (PROVIDER, PLACES_PROVIDER)
    )
    return shared, places


def _roles(probes: Iterable[SamplerProbe]) -> set[FunctionRole]:
    return {probe.role for probe in probes}


def _is_whole(probes: Iterable[SamplerProbe]) -> bool:
    """Whether probes announce both blocks and their ends."""
    return _roles(probes) == set(_SAMPLED_ROLES.values())


def probed_file(mapped: CodeFile, probes: Sequence[FunctionProbe], *, beside_cxx: bool) -> ProbedFile:
    """The parts to probe among these probe points of a file."""
    file, mapping = mapped.file, mapped.mapping
    sites = [probe for probe in probes if _is_site(probe)]
    probes = [probe for probe in probes if not _is_site(probe)]
    found = {p.function: p for p in probes if not p.refusal and p.function not in _SAMPLED_ROLES}
    refused = tuple(f"{probe.function}: {probe.refusal}" for probe in probes if probe.refusal)
    identified = identify({name: probe.entry for name, probe in found.items()})
    static = [
        _sampler_probe(probe, mapping.path)
        for probe in probes
        if not probe.refusal and probe.function in _SAMPLED_ROLES
    ]
    sampled = tuple(probe for probe in static if probe.name != COARSER)
    # libbpfleak.so hands all calls on: blocks that it returns belong to another allocator.
    _shared, places = _by_provider(sampled)
    is_sampler_only = _is_whole(places)
    names = {function.name for _allocator, function in identified}
    points: list[ProbePoint] = []
    functions: list[ProbedFunction] = []
    for allocator, function in identified:
        probe = found[function.name]
        # The target of the jump is probed, and a second breakpoint on the way costs as much again.
        if probe.jumps_to in names:
            continue
        frees = function.role is FunctionRole.RELEASE
        points.append(
            ProbePoint(
                probe.offset,
                function.role,
                probe.registers,
                calls_release=frees and probe.calls_alike,
                calls_allocator=not frees and (probe.calls_alike or function.name not in allocator.leaves),
            )
        )
        functions.append(
            ProbedFunction(
                PLACES_PROVIDER if is_sampler_only and allocator.name == UNKNOWN else allocator.name,
                function.name,
                function.role,
                mapping.path,
                probe.offset,
                probe.emulated,
            )
        )
    shown = {function.name for _allocator, function in identified}
    inside = tuple(
        (probe.start, probe.start + probe.size_bytes)
        for name, probe in found.items()
        if name in shown and probe.size_bytes
    )
    return ProbedFile(
        file,
        tuple(points),
        tuple(functions),
        refused,
        inside,
        sampled,
        tuple(probe for probe in static if probe.name == COARSER),
        () if any(site.refusal for site in sites) else tuple(_site(site, mapping.path) for site in sites),
        is_program=mapped.is_program,
        beside_cxx=beside_cxx,
    )


def _is_site(probe: FunctionProbe) -> bool:
    return probe.function.startswith(tuple(_SITE_ROLES))


def _sampler_probe(probe: FunctionProbe, module: str) -> SamplerProbe:
    provider, role = probe.function.split(":")[0], _SAMPLED_ROLES[probe.function]
    shown = ProbedFunction(provider, probe.function, role, module, probe.offset, probe.emulated)
    return SamplerProbe(shown, probe.arguments, probe.semaphore)


def _site(probe: FunctionProbe, module: str) -> SiteProbe:
    kind, call = probe.function.split(":")
    shown = ProbedFunction("kernel", call, _SITE_ROLES[f"{kind}:"], module, probe.offset, probe.emulated)
    return SiteProbe(shown, probe.offset - probe.start)


def _see_address_space(files: Iterable[ProbedFile]) -> bool:
    """Whether the places that make system calls in these files are those of glibc and of its loader.

    Others may make calls, too.
    """
    calls: dict[str, set[Syscall]] = {}
    for file in files:
        seen = {site.call for site in file.sites if site.shown.role is FunctionRole.SYSCALL_RETURN}
        for function in file.functions:
            calls.setdefault(function.allocator, set()).update(seen)
    return calls.get(_GLIBC, set()) == set(Syscall) and calls.get(_LOADER, set()) >= _CALLS_OF_LOADER


def has_sampler(files: Iterable[ProbedFile]) -> bool:
    """Whether a sampler in one of the files of a process sees all allocations."""
    files = tuple(files)
    samplers = [file for file in files if file.has_sampler]
    others = [file for file in files if not file.has_sampler and file.has_allocator]
    if not samplers or any(file.is_program for file in samplers):
        return bool(samplers)
    if any(file.is_program or _is_musl(file) for file in others):
        return False
    has_cxx = any(file.beside_cxx for file in files)
    return not (has_cxx and any(_has_operators(file) for file in others))


def _is_musl(file: ProbedFile) -> bool:
    return any(function.allocator == "musl" for function in file.functions)


def _has_operators(file: ProbedFile) -> bool:
    return any(function.function in OPERATORS_NEW for function in file.functions)


def parts_of(files: Sequence[ProbedFile], mode: TracingMode) -> list[ProbedFile]:
    """The parts of a process' files to probe in a mode.

    Raises NoAllocator for INSIDE without a sampler.
    """
    is_there = has_sampler(files)
    if mode is TracingMode.INSIDE and not is_there:
        raise errors.NoAllocator(
            "the process has no sampler inside that announces all of its blocks (otel_memory)",
            "start it by `bpfleakctl run -- COMMAND`, or attach in another mode",
        )
    is_inside = is_there and mode is not TracingMode.EXACT
    return [part for part in (part_of(file, is_inside=is_inside) for file in files) if part is not None]


def site_parts(files: Sequence[ProbedFile]) -> list[ProbedFile]:
    """The places of a process' files that make system calls, if they show its address space."""
    if not _see_address_space(files):
        return []
    return [
        ProbedFile(file.file, (), (), ranges=file.ranges, sites=file.sites) for file in files if file.sites
    ]


def coarser_parts(files: Iterable[ProbedFile], doublings: int) -> list[ProbedFile]:
    """The probes that double the interval of a sampler so often, or as often as it can be told to."""
    parts = (replace(file, points=(), sampled=file.coarser[:doublings], sites=()) for file in files)
    return [part for part in parts if part.sampled]


def part_of(file: ProbedFile, *, is_inside: bool) -> ProbedFile | None:
    """The part of a file to probe; None for nothing.

    From inside, an allocator's file is kept without any probe, to recognise mappings of the allocator, for
    instance.
    """
    file = replace(file, sites=())
    if not is_inside:
        part = replace(file, sampled=())
        return part if part.points else None
    news = tuple(point for point in file.points if point.role in NOTICES)
    part = replace(file, points=news, sampled=file.sampled if file.has_sampler else ())
    return part if part.points or part.sampled or part.has_allocator else None
