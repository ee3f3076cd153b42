"""Decides whether to trace a process from inside, by a sampler that announces blocks, or by its functions.

A sampler (docs/inside.md) costs the process almost nothing and gives the same figures as sampling from
outside. So bpfleakd uses it whenever not every block is wanted, in place of the allocators' functions, which
then get no probes. The dynamic loader is still probed, to notice new libraries.

The malloc that a program exports takes precedence over any preloaded library, and C++ code bypasses the
library if an allocator has its own C++ operators (jemalloc, tcmalloc, mimalloc): the sampler of such a
library would not announce all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.model.process import TracingMode
from bpfleakd.process.allocators import OPERATORS_NEW
from bpfleakd.tracing.attaching.probed_file import ProbedFile


def has_sampler(files: Iterable[ProbedFile]) -> bool:
    """Whether a sampler in one of the files of a process sees all allocations."""
    files = tuple(files)
    samplers = [file for file in files if file.has_sampler]
    others = [file for file in files if not file.has_sampler and file.has_allocator]
    if not samplers or any(file.is_program for file in samplers):
        return bool(samplers)
    if any(file.is_program for file in others):
        return False
    has_cxx = any(file.beside_cxx for file in files)
    return not (has_cxx and any(_has_operators(file) for file in others))


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


def part_of(file: ProbedFile, *, is_inside: bool) -> ProbedFile | None:
    """The part of a file to probe; None for nothing.

    From inside, an allocator's file is kept without any probe, to recognise mappings of the allocator, for
    instance.
    """
    if not is_inside:
        part = replace(file, sampled=())
        return part if part.points else None
    news = tuple(point for point in file.points if point.role is FunctionRole.LIBRARIES_CHANGED)
    part = replace(file, points=news, sampled=file.sampled if file.has_sampler else ())
    return part if part.points or part.sampled or part.has_allocator else None
